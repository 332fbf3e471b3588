"""gLite L&B events: lines, sequence codes, states, and what is wrong with a line."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import msgspec
import pytest

from pilotage.book.ulm import ImportedJob, UlmEvent, parse_code, parse_line, read_ulm
from pilotage.book.ulm.lines import MOVES, SILENT_TYPES
from pilotage.model.errors import Problem
from pilotage.model.states import State
from tests.kit.ulm import JOB, LoggedJob, ulm_line

CODE = "UI=000001:NS=0000000002:WM=000003:BH=0000000004:JSS=000005:LM=000006:LRMS=000007:APP=000008:LBS=000009"


def event(text: str) -> UlmEvent:
    parsed = parse_line(text)
    assert isinstance(parsed, UlmEvent), parsed
    return parsed


def fault(text: str) -> Problem:
    parsed = parse_line(text, file="events.log", line=7)
    assert isinstance(parsed, Problem), parsed
    assert (parsed.file, parsed.line) == ("events.log", 7)
    return parsed


def only(job: LoggedJob) -> ImportedJob:
    imported = read_ulm(job.text(), file="events.log")
    assert (imported.faults, imported.warnings) == ((), ())
    return imported.jobs[0]


# Sequence codes


def test_a_code_is_its_nine_counters_and_is_written_as_it_was_read() -> None:
    code = parse_code(CODE)
    assert code == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert str(code) == CODE


def test_a_code_of_an_old_component_has_no_counter_of_the_server() -> None:
    assert parse_code(CODE.rpartition(":")[0]) == (1, 2, 3, 4, 5, 6, 7, 8, 0)


@pytest.mark.parametrize(
    "text",
    ["", "(nil)", CODE + ":X=1", CODE.replace("NS=", "SN="), CODE.replace("3", "x"), CODE.replace("3", "3" * 5000)],
)
def test_what_is_no_code_is_none(text: str) -> None:
    assert parse_code(text) is None


# Lines


def test_escapes_are_undone_and_names_compare_in_any_case() -> None:
    text = f'dg.evnt="rEGjOB" DG.JobId="a \\"b\\" \\\\ \\n" DG.SEQCODE="{CODE}" DG.SOURCE=networkserver'
    parsed = event(text)
    assert (parsed.kind, parsed.source, parsed.job) == ("RegJob", "NetworkServer", 'a "b" \\ \n')


def test_a_quote_that_nobody_escaped_is_part_of_its_value_and_is_told() -> None:
    text = f'DG.EVNT="Match" DG.MATCH.DEST_ID="ce = "a" ; b = \\"c\\"" DG.JOBID="j" DG.SEQCODE="{CODE}" '
    parsed = event(text)
    assert (parsed.destination, parsed.job) == ('ce = "a" ; b = "c"', "j")
    assert parsed.oddities == ("a quote inside DG.MATCH.DEST_ID is not escaped",)
    imported = read_ulm(text, file="events.log")
    assert [(warning.line, warning.message) for warning in imported.warnings] == [(1, parsed.oddities[0])]
    assert len(imported.jobs) == 1


@pytest.mark.parametrize(
    "text, code, column",
    [
        ("garbage", "ulm-field", 1),
        ('DATE="1" garbage', "ulm-field", 10),
        ("DATE = 1", "ulm-field", 1),
        ('DATE=1 HOST="never ends', "ulm-quote", 8),
        ('HOST="ends in an escape\\', "ulm-quote", 1),
        ("HOST=a HOST=b", "ulm-repeated-field", 8),
        ("HOST=a", "ulm-event-type", 0),
        ("DG.EVNT=Nothing", "ulm-event-type", 0),
        ("DG.EVNT=PBSQueued", "ulm-event-type", 0),
        ("DG.EVNT=Running", "ulm-sequence-code", 0),
        ("DG.EVNT=Running DG.SEQCODE=7", "ulm-sequence-code", 0),
        (f"DG.EVNT=Running DG.SEQCODE={CODE} DATE=yesterday", "ulm-date", 0),
    ],
)
def test_a_line_that_cannot_be_read_says_why_and_where(text: str, code: str, column: int) -> None:
    found = fault(text)
    assert (found.code, found.column) == (code, column)
    assert found.message


def test_one_bad_line_does_not_stop_the_others() -> None:
    job = LoggedJob()
    job.register()
    imported = read_ulm(f"what is this\n\n  \t\n{job.text()}\nDG.EVNT=Done\n", file="events.log")
    assert [(problem.line, problem.code) for problem in imported.faults] == [(1, "ulm-field"), (6, "ulm-sequence-code")]
    assert [(each.state, each.events) for each in imported.jobs] == [(State.SUBMITTED, 1)]


def test_bytes_text_and_lines_are_the_same_and_carriage_returns_are_blanks() -> None:
    job = LoggedJob()
    job.run("ce")
    expected = read_ulm(job.text(), file="f")
    assert read_ulm(job.text().encode(), file="f") == expected
    assert read_ulm(iter(job.lines), file="f") == expected
    assert read_ulm(job.text().replace("\n", "\r\n"), file="f") == expected


def test_separators_inside_a_value_do_not_end_its_line() -> None:
    job = LoggedJob("a\x0b\x0c\x1c\x85\u2028b\0c")
    job.register()
    assert only(job).id == "a\x0b\x0c\x1c\x85\u2028b\0c"


@pytest.mark.parametrize("job", [b"bad \xff\xfe id", "lone \udc80 surrogate"])
def test_what_is_not_utf8_is_replaced_told_and_can_be_written_out(job: str | bytes) -> None:
    fields = f'DG.EVNT=RegJob DG.SEQCODE={CODE} DG.JOBID="'
    text: str | bytes = fields.encode() + job + b'"' if isinstance(job, bytes) else fields + job + '"'
    imported = read_ulm(text, file="f")
    assert "\ufffd" in imported.jobs[0].id
    assert [warning.message for warning in imported.warnings] == ["the line is not UTF-8"]
    assert b"SUBMITTED" in msgspec.json.encode(imported.jobs)


def test_the_five_fields_of_a_job_are_its_json() -> None:
    job = LoggedJob()
    job.run("ce/queue")
    assert msgspec.to_builtins(only(job)) == {
        "id": JOB, "state": "RUNNING", "events": 12, "resubmissions": 0, "destination": "ce/queue",
    }  # fmt: skip


def test_the_same_event_by_two_ways_is_one_event() -> None:
    fields = {"DATE": "20080928052456.1", "DG__EVNT": "UserTag", "DG__SEQCODE": CODE, "DG__JOBID": JOB}
    by_proxy = ulm_line(**fields, DG__USER="/CN=me", DG__LLLID="12", DG__PRIORITY="1")
    other = ulm_line(**fields | {"DATE": "20080928052456.2"})
    imported = read_ulm("\n".join((ulm_line(**fields), by_proxy, other)), file="f")
    assert [job.events for job in imported.jobs] == [2]


# Events without job id


def test_events_without_job_id_belong_to_the_job_that_their_descriptions_name() -> None:
    job = LoggedJob("")
    job.register()
    job.log("NetworkServer", "EnQueued", RESULT="OK", JOB='[ edg_jobid = "https://lb:9000/x_y"; a = 1 ]')
    job.log("NetworkServer", "EnQueued", RESULT="OK", JOB="/sandbox/xx/https_3a_2f_2flb_3a9000_2fx_5fy/jdl")
    named = LoggedJob("https://lb:9000/x_y")
    named.log("Application", "UserTag", NAME="a", VALUE="b")
    named.lines.append(job.lines[0].replace('DG.JOBID=""', f'DG.JOBID="{named.job}"'))
    assert [(each.id, each.events) for each in read_ulm(job.text() + named.text(), file="f").jobs] == [
        ("https://lb:9000/x_y", 4)
    ]


def test_events_without_job_id_are_of_one_unnamed_job_where_names_are_missing_or_many() -> None:
    job = LoggedJob("")
    job.register()
    assert only(job).id == ""
    for name in ("a", "b"):
        job.log("NetworkServer", "EnQueued", RESULT="OK", JOB=f'edg_jobid = "{name}"')
    assert (only(job).id, only(job).events) == ("", 3)


# States


def test_codes_decide_and_clocks_only_where_codes_are_equal() -> None:
    done = ulm_line(
        DATE="20010101000000", DG__EVNT="Done", DG__SOURCE="LogMonitor", DG__DONE__STATUS_CODE="OK", DG__JOBID=JOB,
        DG__SEQCODE=CODE.replace("LM=000006", "LM=000010"),
    )  # fmt: skip
    running = ulm_line(
        DATE="20020202000000", DG__EVNT="Running", DG__SOURCE="LogMonitor", DG__JOBID=JOB, DG__SEQCODE=CODE
    )
    assert read_ulm(f"{done}\n{running}", file="f").jobs[0].state is State.DONE
    same = done.replace("LM=000010", "LM=000006")
    assert read_ulm(f"{same}\n{running}", file="f").jobs[0].state is State.RUNNING


def test_events_with_one_code_and_one_time_still_have_an_order() -> None:
    job = LoggedJob()
    fields = {"DATE": "20080928052456.1", "DG__SEQCODE": CODE, "DG__JOBID": JOB, "DG__SOURCE": "LogMonitor"}
    for kind in ("Running", "Pending", "Match"):
        job.lines += [ulm_line(**fields, DG__EVNT=kind, DG__MATCH__DEST_ID=place) for place in ("ce1", "ce2", "ce3")]
    seen = {read_ulm(lines, file="f").jobs for lines in itertools.permutations(job.lines[:2] + job.lines[-3:])}
    assert len(seen) == 1


def test_the_batch_system_may_be_faster_than_the_log_monitor() -> None:
    job = LoggedJob()
    job.log("NetworkServer", "Accepted")
    job.log("WorkloadManager", "EnQueued", RESULT="OK")
    before = job.code
    job.log("LRMS", "Running")
    job.log_with(before._replace(lm=1), "LogMonitor", "Accepted")
    job.log_with(before._replace(lm=2), "LogMonitor", "Transfer", RESULT="OK")
    assert only(job).state is State.RUNNING


def test_a_new_branch_is_believed_even_if_its_beginning_is_lost() -> None:
    job = LoggedJob()
    job.run("ce")
    job.log("LogMonitor", "Done", STATUS_CODE="FAILED")
    job.log("WorkloadManager", "EnQueued", RESULT="OK")
    assert only(job).state is State.READY


def test_the_end_of_the_wrapper_is_not_the_end_of_the_job() -> None:
    job = LoggedJob()
    job.run("ce")
    job.log("LRMS", "Done", STATUS_CODE="OK")
    assert only(job).state is State.RUNNING
    job.log("LogMonitor", "Done", STATUS_CODE="OK")
    assert only(job).state is State.DONE


@pytest.mark.parametrize("final", ["Abort", "Cancel", "Clear"])
def test_a_final_state_stays(final: str) -> None:
    job = LoggedJob()
    job.run("ce")
    job.log("LogMonitor", final, STATUS_CODE="DONE")
    state = only(job).state
    job.log("LogMonitor", "Running")
    job.log("NetworkServer", "Clear")
    job.log("LogMonitor", "Cancel", STATUS_CODE="DONE")
    assert only(job).state is state


def test_the_workload_manager_may_abort_what_was_cancelled() -> None:
    job = LoggedJob()
    job.log("LogMonitor", "Cancel", STATUS_CODE="DONE")
    job.log("WorkloadManager", "Abort")
    assert only(job).state is State.ABORTED


def test_a_request_to_cancel_is_not_a_cancellation() -> None:
    job = LoggedJob()
    job.run("ce")
    job.log("NetworkServer", "Cancel", STATUS_CODE="REQ")
    assert only(job).state is State.RUNNING


def test_a_job_of_which_nothing_is_known_was_submitted() -> None:
    job = LoggedJob()
    job.log("Application", "UserTag", NAME="a", VALUE="b")
    assert (only(job).state, only(job).destination) == (State.SUBMITTED, None)


def test_an_event_that_its_component_cannot_mean_counts_and_is_told() -> None:
    job = LoggedJob()
    job.register()
    job.log("Application", "Accepted")
    job.log("LogMonitor", "Done", STATUS_CODE="PERHAPS")
    imported = read_ulm(job.text(), file="f")
    assert [(each.state, each.events) for each in imported.jobs] == [(State.SUBMITTED, 3)]
    assert [warning.message for warning in imported.warnings] == [
        "Accepted from Application has no effect on a state",
        "Done from LogMonitor with the result PERHAPS has no effect on a state",
    ]


@pytest.mark.parametrize(
    "fields, state",
    [
        ({"RESULT": "DONE", "NEW_STATE": "REALLY-RUNNING"}, "RUNNING"),
        ({"RESULT": "DONE", "NEW_STATE": "purged"}, "CLEARED"),
        ({"RESULT": "ARRIVED", "NEW_STATE": "RUNNING"}, "SUBMITTED"),
    ],
)
def test_cream_reports_states_of_its_own(fields: dict[str, str], state: str) -> None:
    job = LoggedJob()
    job.log("CREAMInterface", "RegJob", NS="https://cream.example.org:8443", JOBTYPE="CREAM")
    job.log("CREAMExecutor", "CREAMStatus", **fields)
    assert (only(job).state, only(job).destination) == (state, "https://cream.example.org:8443")


# Cost, and the page


def test_a_hundred_thousand_lines_cost_a_few_seconds_and_long_lines_one_pass() -> None:
    job = LoggedJob("NAME")
    job.run("ce")
    text = "".join(job.text().replace("NAME", f"job{number}") for number in range(2_000))
    started = time.process_time()
    assert len(read_ulm(text, file="f").jobs) == 2_000
    per_line_seconds = (time.process_time() - started) / (2_000 * len(job.lines))
    assert per_line_seconds < 200e-6  # about 40 on a quiet core
    started = time.process_time()
    for unit in ('\\"', '" ', '" a', "A=1 ", " ", "\\", '="'):
        read_ulm('A="' + unit * 300_000, file="f")
        read_ulm('A="' + unit * 300_000 + '"', file="f")
    assert time.process_time() - started < 20


def test_the_page_lists_every_move(root: Path) -> None:
    page = (root / "docs/reference/ulm.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\w*]+) \| ([\w*/-]*) \| ([A-Z]+|-)( †)? \|$", page, re.MULTILINE)
    written = {
        (kind, source, result): (state.value if (state := move.state) else "-", " †" if move.overtaken else "")
        for (kind, source, result), move in MOVES.items()
        if kind not in (*SILENT_TYPES, "CollectionState")
    }
    assert {(kind, source, result): (state, late) for kind, source, result, state, late in rows} == written
    assert [name for name in SILENT_TYPES if name not in page] == []


def test_the_page_explains_every_code_of_a_fault(root: Path) -> None:
    page = (root / "docs/reference/ulm.md").read_text("utf-8")
    sources = (root / "src/pilotage/book/ulm").glob("*.py")
    used = {code for path in sources for code in re.findall(r'"(ulm-[a-z-]+)"', path.read_text("utf-8"))}
    assert used == set(re.findall(r"^\| `(ulm-[a-z-]+)` \|", page, re.MULTILINE))
