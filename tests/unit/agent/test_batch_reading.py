"""Reading what batch systems print: any text is taken, and what a system writes of its jobs is read back as it was."""

from __future__ import annotations

import importlib
import json
import zipfile
from contextlib import suppress
from pathlib import Path
from subprocess import run
from sys import executable
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.adapters.sites.zipapp import build
from pilotage.agent.batch import (
    Answer,
    BatchError,
    BatchJob,
    BatchRequest,
    Dialect,
    Limits,
    Unknown,
    dialects,
    element_key,
)
from pilotage.agent.batch.slurm import _COLUMNS
from pilotage.agent.batch.values import Reason, common_start, seconds, size_bytes
from tests.conformance.batch.voices.stage import Element, Stage

ALL = sorted(dialects())
WANTED = BatchRequest(key="lyon-1", command=["true"], count=3)

statuses = st.one_of(st.none(), st.integers(min_value=0, max_value=255))
fragments = st.sampled_from([
    "1", "12;a", "1.1-3:1", "|", "\n", "=====\n", "jobname pilotage.lyon-1\n", "failed 100\n", "jobnumber 1\n", "{", "}",
    "<job_info>", "</job_info>", "<job_list>", "<JB_name>pilotage.lyon-1</JB_name>", '{"Jobs": {"1[2].x": {"job_state": 7}}}',
    '{"Jobs": []}', "[]", '[{"PilotageName": "pilotage.a", "ProcId": {}}]', "Job <1> is submitted", "JobID = [1, 2]",
    "1|1|EXIT|x|y|z|pilotage.lyon-1[1]", "pilotage.lyon-1", "qname a\nslots 1,[b=2]\n", "up|1-0|8+|x|1|main*", "MaxArraySize = 5",
    "3,pilotage.a+1,Failed,x,y", "sbatch: error: ", "Unable to run job: ", "1.0 - 1.2", "Not defined",
])  # fmt: skip
texts = st.one_of(st.text(), st.lists(fragments).map("".join), st.text(st.characters(codec=None)))
answers = st.builds(Answer, exit_status=statuses, stdout=texts, stderr=texts)

STUCK: dict[str, Reason] = {"hqw": "held", "Eqw": "error"}


@pytest.mark.parametrize("name", ALL)
@given(answer=answers, other=answers)
def test_no_text_raises_anything_else(name: str, answer: Answer, other: Answer) -> None:
    dialect = dialects()[name]("pilotage")
    for read in (
        lambda: dialect.submitted(WANTED, answer),
        lambda: dialect.listed(answer),
        lambda: dialect.remembered(answer),
        lambda: dialect.cancelled(answer),
        lambda: dialect.limited([answer, other]),
        lambda: dialect.version(answer),
    ):
        with suppress(BatchError):
            assert isinstance(read(), (dict, Limits, str, type(None)))


@pytest.mark.parametrize("name", ALL)
def test_no_answer_is_never_an_answer(name: str) -> None:
    dialect, silent = dialects()[name]("pilotage"), Answer(None, "", "")
    for read in (
        lambda: dialect.submitted(WANTED, silent),
        lambda: dialect.listed(silent),
        lambda: dialect.cancelled(silent),
    ):
        with pytest.raises(Unknown):
            read()


@pytest.mark.parametrize("name", ALL)
def test_a_cancelled_submission_may_be_repeated_only_after_a_look(name: str) -> None:
    with pytest.raises(Unknown):
        dialects()[name]("pilotage").submitted(WANTED, Answer(1, "", "something that nobody has ever said"))


def test_all_dialects_are_found() -> None:
    assert {"slurm", "gridengine", "pbs", "lsf", "htcondor", "dirac"} <= set(ALL)
    assert {name for name, dialect in dialects().items() if not dialect.experimental} == {"slurm", "gridengine"}


def test_one_more_file_adds_one_in_the_archive_too(tmp_path: Path) -> None:
    agent = build(tmp_path / "agent.pyz")
    source = "from pilotage.agent.batch.slurm import Slurm\n\n\nclass Mine(Slurm):\n    name = 'mine'\n"
    with zipfile.ZipFile(agent, "a") as archive:
        archive.writestr("pilotage/agent/batch/mine.py", source)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pilotage.agent.batch import dialects; print(*dialects())"
    )
    done = run([executable, "-I", "-S", "-c", program, str(agent)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted([*ALL, "mine"])


class Canned(Stage):
    """A played system with nothing but what a test gave it."""

    def __init__(self, elements: list[Element]) -> None:
        self._elements = elements

    def elements(self) -> list[Element]:
        return self._elements


def named(dialect: Dialect, name: str, index: int | None) -> str:
    """A name as the played system keeps it."""
    if dialect.name == "pbs":
        return json.dumps({"PILOTAGE_NAME": f"{name}+", "PATH": "/usr/bin,/bin"})
    if dialect.name == "htcondor":
        return json.dumps([name, 60])
    return f"{name}+{index}" if dialect.name == "dirac" and index is not None else name


jobs = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
        st.integers(min_value=1, max_value=3),
        st.sampled_from(["running", "ended"]),
        st.sampled_from(["", "cancelled", "wall-time"]),
        st.integers(min_value=0, max_value=100),
    ),
    max_size=5,
    unique_by=lambda job: job[0],
)
LISTINGS = {"pbs": "qstat -f -F json", "lsf": "bjobs", "dirac": "dstat -g pilotage -F JobName,Status,MinorStatus,Site"}


@pytest.mark.parametrize("name", ["pbs", "lsf", "htcondor", "dirac"])
@given(jobs=jobs)
def test_what_a_system_writes_is_read_back(name: str, jobs: list[tuple[str, int, str, str, int]]) -> None:
    dialect = dialects()[name]("pilotage")
    elements, expected = [], {}
    for job, (text, count, state, how, status) in enumerate(jobs, 1):
        first = f"{text}-{job}00"  # far enough from each other
        for offset in range(count):
            index = None if count == 1 and name != "htcondor" else dialect.first_index + offset
            key = element_key(first, offset) or ""
            label = named(dialect, dialect.job_name(first), index)
            number = job * 10 + offset if name == "dirac" else job  # where each element is a job of its own
            made = Element(number, 0 if index is None else index, index is not None, label, state, how, status)
            elements.append(made)
            expected[key] = made
    voice: Any = importlib.import_module(f"tests.conformance.batch.voices.{name}")
    if name == "htcondor":
        constraint = dialect.listing().argv[-1]
        shown = [
            voice.COMMANDS[command](Canned(elements), [constraint], "") for command in ("condor_q", "condor_history")
        ]
        seen = {**dialect.listed(Answer(*shown[0])), **dialect.remembered(Answer(*shown[1]))}
    else:
        command, *words = LISTINGS[name].split()
        seen = dialect.listed(Answer(*voice.COMMANDS[command](Canned(elements), words, "")))
    assert seen.keys() == expected.keys()
    for key, made in expected.items():
        reason = made.how or ("failed" if made.status else "ended")
        assert (seen[key].state, seen[key].reason) == (made.state, reason if made.state == "ended" else "")
        if reason == "failed" and made.state == "ended" and name != "dirac":
            assert seen[key].exit_status == made.status


SLURM_STATES = st.sampled_from(
    ["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "STRANGE"]
)
plain = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=12)


@given(
    st.lists(
        st.tuples(st.text(max_size=5), st.integers(1, 3), SLURM_STATES, plain), max_size=5, unique_by=lambda job: job[0]
    )
)
def test_what_squeue_writes_is_read_back(jobs: list[tuple[str, int, str, str]]) -> None:
    dialect = dialects()["slurm"]("pilotage")
    lines, expected = ["7                   somebody else's"], {}
    for job, (text, count, state, node) in enumerate(jobs, 1):
        first = f"{text}-{job}00"
        for offset in range(count):
            index = str(offset) if count > 1 else "N/A"
            cells = [str(job * 10 + offset), str(job * 10), index, state, "0", "None", node, dialect.job_name(first)]
            lines.append(
                "".join(cell.ljust(width)[:width] for cell, width in zip(cells, _COLUMNS.values(), strict=True))
            )
            native_id = f"{job * 10}_{offset}" if count > 1 else f"{job * 10}"
            expected[element_key(first, offset)] = (native_id, state, node)
    seen = dialect.listed(Answer(0, "\n".join([*lines, ""])))
    ended = {"COMPLETED": "ended", "FAILED": "failed", "TIMEOUT": "wall-time", "NODE_FAIL": "platform-failure"}
    assert seen.keys() == expected.keys()
    for key, (native_id, state, node) in expected.items():
        assert seen[str(key)].native_id == native_id
        assert seen[str(key)].reason == ended.get(state, "")
        assert seen[str(key)].node == ("" if state == "PENDING" else node)


@given(
    st.lists(
        st.tuples(st.text(max_size=5), st.integers(1, 3), st.sampled_from(["qw", "hqw", "Eqw", "r", "t", "dr"])),
        max_size=5,
    )
)
def test_what_grid_engine_writes_is_read_back(jobs: list[tuple[str, int, str]]) -> None:
    dialect = dialects()["gridengine"]("pilotage")
    lists, expected = "", {}
    for job, (text, count, state) in enumerate(jobs, 1):
        first = f"{text}-{job}00"
        for offset in range(count):
            told = {
                "JB_job_number": job,
                "JB_name": dialect.job_name(first),
                "state": state,
                "queue_name": "main.q@here",
            }
            if count > 1:
                told["tasks"] = offset + 1
            lists += (
                "<job_list>"
                + "".join(f"<{tag}>{escape(str(value))}</{tag}>" for tag, value in told.items())
                + "</job_list>"
            )
            expected[element_key(first, offset)] = BatchJob(
                native_id=f"{job}.{offset + 1}" if count > 1 else str(job),
                state="queued" if "q" in state else "running",
                reason=STUCK.get(state, ""),
                node="here",
                detail=state,
            )
    answer = Answer(0, f"<?xml version='1.0'?>\n<job_info><queue_info>{lists}</queue_info></job_info>\n")
    assert dialect.listed(answer) == expected


@pytest.mark.parametrize(
    "text, told",
    [
        ("infinite", 0),
        ("5:00", 300),
        ("1-00:00:00", 86_400),
        ("1-02", 93_600),
        ("24:00:00", 86_400),
        ("INFINITY", 0),
        ("", 0),
    ],
)
def test_times_are_read_in_every_form(text: str, told: int) -> None:
    assert seconds(text) == told


@pytest.mark.parametrize(
    "text, told", [("16G", 16 << 30), ("512mb", 512 << 20), ("100", 100), ("INFINITY", 0), ("1.5G", 1 << 30)]
)
def test_sizes_are_read_in_every_form(text: str, told: int) -> None:
    assert size_bytes(text) == told


@given(st.lists(st.text(alphabet="ab", max_size=4), min_size=1))
def test_names_begin_as_they_begin(names: list[str]) -> None:
    start = common_start(names)
    assert all(name.startswith(start) for name in names)
    longer = {name[: len(start) + 1] for name in names}
    assert len(longer) > 1 or start in names


def test_a_queue_of_lsf_that_is_closed_is_no_choice() -> None:
    queues = (
        "QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP  RSV\n"
        "night            40  Closed:Active     -    -    -   16     0     0     0     0    0\n"
        "normal           30  Open:Active       -    -    -    8     0     0     0     0    0\n"
    )
    limits = dialects()["lsf"]("pilotage").limited(
        [Answer(0, queues, ""), Answer(0, "MAX_JOB_ARRAY_SIZE = 1000\n", "")]
    )
    assert [(each.name, each.cores) for each in limits.queues] == [("normal", 8)]
