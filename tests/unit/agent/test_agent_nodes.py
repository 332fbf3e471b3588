"""What an agent knows of its batch job: its time and its nodes, of which one may be lost, and what it tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pilotage.agent.allocation import CommandResult, is_over, lost_node, seconds_left
from pilotage.agent.attempt.environment import own_entries, threads_of
from pilotage.agent.batch.pilot_job import BOUND_MARGIN_BYTES, PilotJobTemplate
from pilotage.agent.resources import Resources

IN_SLURM = {"SLURM_JOB_NUM_NODES": "3", "SLURMD_NODENAME": "n1"}
BERTH = PilotJobTemplate(site="lyon", folder="/shared/lyon", agent="/shared/agent.pyz", server="https://here:8642")
ALL_WELL = CommandResult(0)
NO_SUCH_PROGRAM = CommandResult(None, "No such file or directory")
TOO_LATE = CommandResult(None, in_time=False)
NO_CONNECTION = CommandResult(233, "srun: error: failed on node n2\nsrun: Job step aborted\n")


class Srun:
    """Answers of srun: to the call of all nodes, and to that of this one alone."""

    def __init__(self, everywhere: CommandResult, here: CommandResult) -> None:
        self._answers = {"3": everywhere, "1": here}
        self.calls: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str]) -> CommandResult:
        self.calls.append(words)
        (count,) = [word.partition("=")[2] for word in words if word.startswith("--nodes=")]
        return self._answers[count]


@pytest.mark.parametrize(
    "everywhere, here, told",
    [
        (ALL_WELL, ALL_WELL, ""),
        (NO_CONNECTION, ALL_WELL, "srun: error: failed on node n2"),
        (TOO_LATE, ALL_WELL, "no answer in 30 s"),
        # Where this node does not answer either, jobs may not ask, or the batch system is down: that says nothing.
        (NO_CONNECTION, NO_CONNECTION, ""),
        (TOO_LATE, TOO_LATE, ""),
        (NO_SUCH_PROGRAM, ALL_WELL, ""),
    ],
)
def test_a_node_is_lost_where_this_one_answers_and_not_all_of_them_do(
    everywhere: CommandResult, here: CommandResult, told: str
) -> None:
    assert lost_node(IN_SLURM, Srun(everywhere, here)) == told


def test_this_node_is_asked_by_its_name() -> None:
    srun = Srun(NO_CONNECTION, ALL_WELL)
    lost_node(IN_SLURM, srun)
    assert ["--nodelist=n1" in words for words in srun.calls] == [False, True]


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}])
def test_nobody_is_asked_where_there_are_no_other_nodes(environment: dict[str, str]) -> None:
    srun = Srun(NO_CONNECTION, ALL_WELL)
    assert lost_node(environment, srun) == ""
    assert srun.calls == []


@pytest.mark.parametrize(
    "told, left",
    [
        (CommandResult(0, stdout="1:30\n"), 90.0),
        (CommandResult(0, stdout="2-00:00:01\n"), 172_801.0),
        (CommandResult(0, stdout="UNLIMITED\n"), 0.0),
        (CommandResult(0), 0.0),
        (CommandResult(1, "slurm_load_jobs error", "9:00\n"), 0.0),
        (NO_SUCH_PROGRAM, 0.0),
        (TOO_LATE, 0.0),
    ],
)
def test_an_agent_asks_its_batch_job_how_long_it_may_last(told: CommandResult, left: float) -> None:
    asked: list[Sequence[str]] = []

    def squeue(words: Sequence[str]) -> CommandResult:
        asked.append(words)
        return told

    assert seconds_left({"SLURM_JOB_ID": "17"}, squeue) == left
    assert ["--jobs=17" in words for words in asked] == [True]
    assert seconds_left({}, squeue) == 0.0
    assert len(asked) == 1


@pytest.mark.parametrize(
    "told, over",
    [
        (CommandResult(0, stdout="TimeLimit\n"), True),
        (CommandResult(0, stdout="None\n"), False),  # somebody cancelled it, or needs its place
        (CommandResult(1, "slurm_load_jobs error"), False),
        (NO_SUCH_PROGRAM, False),
        (TOO_LATE, False),
    ],
)
def test_an_agent_that_is_told_to_end_asks_whether_the_time_of_its_batch_job_is_over(
    told: CommandResult, *, over: bool
) -> None:
    assert is_over({"SLURM_JOB_ID": "17"}, lambda _: told) == over
    assert not is_over({}, lambda _: CommandResult(0, stdout="TimeLimit\n"))


def test_the_files_of_several_nodes_are_where_all_of_them_see_them() -> None:
    alone = BERTH.attempt("j:1.1.1:1", serves="j:1.1.1:1", demand={"nodes": 1})
    wide = BERTH.attempt("j:1.1.1:1", serves="j:1.1.1:1", demand={"nodes": 4, "cores_hundredths": 200})
    assert "--scratch-folder=$TMPDIR" in alone.command
    assert not any(word.startswith("--scratch-folder") for word in wide.command)
    assert (alone.nodes, wide.nodes, wide.cores) == (1, 4, 2)
    assert "--scratch-folder=$TMPDIR" in BERTH.pilots("p-1").command


@pytest.mark.parametrize(
    "node_bytes, asked_bytes, job_bytes",
    [
        (0, 10**9, 10**9 + BOUND_MARGIN_BYTES),
        (2 * 10**9, 10**9, 10**9 + BOUND_MARGIN_BYTES),
        (10**9, 10**9, 10**9),
        (10**9, 0, 0),
        (0, 0, 0),
    ],
)
def test_a_batch_job_of_one_attempt_has_memory_for_its_agent_too_as_far_as_a_node_has_it(
    node_bytes: int, asked_bytes: int, job_bytes: int
) -> None:
    job_template = replace(BERTH, resources=Resources(memory_bytes=node_bytes))
    wanted = job_template.attempt("j:1.1.1:1", serves="j:1.1.1:1", demand={"memory_bytes": asked_bytes})
    assert wanted.memory_bytes == job_bytes
    assert f"--memory={asked_bytes}" in wanted.command


def test_an_application_is_told_its_nodes_and_has_one_thread_for_each_process_there() -> None:
    wide = {"nodes": 4, "cores_hundredths": 800}
    assignment = {"ref": {"job": "j", "package": "1.1.1", "attempt": 1}, "demand": wide}
    work = {"path": "j/001/001/001", "index": 1, "folder": "/work"}
    entries = own_entries(assignment, work, scratch="/scratch")
    assert {b"PILOTAGE_NODES=4", b"PILOTAGE_CORES=8"} <= {*entries}
    assert b"PILOTAGE_NODES=1" in own_entries({**assignment, "demand": {}}, work, scratch="/scratch")
    assert (threads_of(wide), threads_of({"cores_hundredths": 800})) == (1, 8)
