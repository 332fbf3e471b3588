"""The commands of the book that speak to a server, against one that answers what the test says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.cli import main
from pilotage.cli.program import COMMANDS
from tests.kit.canned_server import (
    Answer,
    Asked,
    CannedServer,
    attempt_view,
    canned_server,
    event_view,
    job_view,
    package_view,
)
from tests.kit.command_line import in_an_empty_folder, refused, run

MOMENT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> Iterator[CannedServer]:
    with canned_server() as server:
        monkeypatch.setenv("PILOTAGE_SERVER", server.url)
        yield server


# --- the program ------------------------------------------------------------------------------------------------------


def test_the_help_of_the_program_says_what_each_command_says_of_itself() -> None:
    context = main.make_context("pilotage", [], resilient_parsing=True)
    for commands in COMMANDS.values():
        for name, (_, told) in commands.items():
            command = main.get_command(context, name)
            assert command is not None
            assert (command.help or "").partition("\n\n")[0].replace("\n", " ") == told


def test_every_command_that_needs_a_server_says_how_to_start_one() -> None:
    for words in (
        ("status", "j"),
        ("events", "j"),
        ("query", "all"),
        ("statistics",),
        ("log", "Noted", "text=x"),
        ("tag", "a=b", "j"),
    ):
        assert "pilotage serve --book-only" in refused(*words)


def test_a_book_alone_has_no_slots() -> None:
    assert "leave out --book-only" in refused("serve", "--book-only", "--slots", "2")


# --- status -----------------------------------------------------------------------------------------------------------


def test_the_status_of_a_job_is_shown(canned: CannedServer) -> None:
    job = job_view(
        id="sweep-1",
        name="sweep",
        owner="anna",
        state="RUNNING",
        held=True,
        counts={"done": 7, "running": 1, "waiting": 1990, "aborted": 2, "dropped": 3},
        failed=2,
        stages=2,
        submitted_at=MOMENT,
        updated_at=MOMENT + 60,
        tags={"study": "A12", "by": "me\x1b[2J\nnow"},
    )
    stage = {"stage": 1, "state": "RUNNING", "late": False, "counts": job["counts"]}
    late = {"stage": 2, "state": "WAITING", "late": True, "counts": job["counts"]}
    canned.answer("/v1/jobs/sweep-1", job)
    canned.answer("/v1/jobs/sweep-1/stages", {"stages": [stage, late], "more": False})
    result = run("status", "sweep-1")
    assert result.stdout == (
        "sweep-1: RUNNING (held)\n"
        "  name       sweep\n"
        "  owner      anna\n"
        "  packages   2,000: 7 DONE, 1 RUNNING, 1,990 WAITING, 2 ABORTED; 3 dropped\n"
        "  submitted  2023-11-14 22:13:20Z\n"
        "  updated    2023-11-14 22:14:20Z\n"
        "  tags       by=me\ufffd[2J now, study=A12\n"
        "  stages\n"
        "    1  RUNNING  2,000: 7 DONE, 1 RUNNING, 1,990 WAITING, 2 ABORTED; 3 dropped\n"
        "    2  WAITING  not known yet\n"
        '  2 packages failed; see them with: pilotage query "job=sweep-1 and state in (ABORTED, CANCELLED)"\n'
    )
    assert json.loads(run("status", "sweep-1", "--json").stdout) == {"job": job, "stages": [stage, late]}


@pytest.mark.parametrize(
    "state, counts, head, end",
    [
        ("CANCELLED", {"cancelled": 4}, "CANCELLED (held)", "4 packages cancelled"),
        ("CANCELLED", {"cancelled": 3, "aborted": 1}, "CANCELLED (held, 1 failed)", "1 package failed, 3 cancelled"),
        ("DONE", {"done": 1, "cancelled": 2}, "DONE (held, 2 cancelled)", "2 packages cancelled"),
    ],
)
def test_what_was_only_cancelled_is_not_said_to_have_failed(
    canned: CannedServer, state: str, counts: dict[str, int], head: str, end: str
) -> None:
    failed = counts.get("aborted", 0) + counts["cancelled"]
    canned.answer("/v1/jobs/j", job_view(id="j", state=state, held=True, counts=counts, failed=failed))
    canned.answer("/v1/jobs/j/stages", {"stages": [], "more": False})
    first, *_, last = run("status", "j").stdout.splitlines()
    assert first == f"j: {head}"
    assert last.startswith(f"  {end}; see them with: ")


def test_the_status_of_a_package_shows_every_attempt(canned: CannedServer) -> None:
    package = package_view(
        id="1.2.1", job="j", path="sweep/001/002/001", state="DONE", site="lyon", exit_code="SUCCESS", done_at=MOMENT
    )
    attempts = [
        attempt_view(attempt=1, site="bari", node="n1", exit_code="EXECUTION_FAILED", reason="out-of-memory"),
        attempt_view(
            attempt=2, site="lyon", exit_code="SUCCESS", granted=True, started_at=MOMENT, finished_at=MOMENT + 90
        ),
    ]
    canned.answer("/v1/jobs/j/packages/1.2.1", {"package": package, "attempts": attempts})
    result = run("status", "j/001/002/001")
    assert result.stdout == (
        "j/1.2.1: DONE\n"
        "  path  sweep/001/002/001\n"
        "  site  lyon\n"
        "  exit  SUCCESS\n"
        "  done  2023-11-14 22:13:20Z\n"
        "  attempts\n"
        "    1  bari  n1                                EXECUTION_FAILED   out-of-memory\n"
        "    2  lyon      2023-11-14 22:13:20Z  1 min 30 s  SUCCESS (granted)\n"
    ).replace("n1                                ", "n1" + " " * 36)


def test_the_status_of_a_package_says_which_attempts_are_in_doubt(canned: CannedServer) -> None:
    attempts = [
        attempt_view(attempt=1, site="bari", phase="inputs", lost_at=MOMENT, lost_reason="platform-failure"),
        attempt_view(attempt=2, site="lyon", phase="inputs", suspected_at=MOMENT),
        attempt_view(attempt=3, site="lyon", phase="inputs", recovered_at=MOMENT),
    ]
    package = package_view(id="1.2.1", job="j", path="sweep/001/002/001", state="RUNNING")
    canned.answer("/v1/jobs/j/packages/1.2.1", {"package": package, "attempts": attempts})
    shown = run("status", "j/001/002/001").stdout.partition("attempts\n")[2]
    assert [line.split() for line in shown.splitlines()] == [
        ["1", "bari", "lost", "platform-failure"], ["2", "lyon", "suspected"], ["3", "lyon", "inputs"],
    ]  # fmt: skip


def test_an_unknown_job_is_answered_with_what_was_perhaps_meant(canned: CannedServer) -> None:
    canned.refuse("/v1/jobs/swep", 404, "unknown_job", "job swep: there is no such job here", "did you mean sweep?")
    canned.answer("/v1/jobs", {"jobs": [], "next": None})
    assert refused("status", "swep") == "error: job swep: there is no such job here\n  did you mean sweep?\n"


# --- query ------------------------------------------------------------------------------------------------------------


def test_packages_are_found_by_a_query(canned: CannedServer) -> None:
    items = [
        package_view(job="j", id="1.2.1", state="RUNNING", site="lyon", attempts=1, updated_at=MOMENT),
        package_view(job="long-name", id="1.10.1", state="ABORTED", held=True, cause="quota"),
    ]
    canned.pages("/v1/packages", "packages", items, size=1)
    result = run("query", "site=lyon")
    assert result.stdout.splitlines() == [
        "PACKAGE           STATE           SITE  ATTEMPTS  REASON  UPDATED",
        "j/1.2.1           RUNNING         lyon  1                 2023-11-14 22:13:20Z",
        "long-name/1.10.1  ABORTED (held)                  quota",
    ]
    assert canned.asked[0].parameters == {"query": "site=lyon", "limit": "100", "words": "1"}


def test_a_limit_is_kept_and_the_rest_is_behind_a_cursor(canned: CannedServer) -> None:
    canned.pages("/v1/jobs", "jobs", [job_view(id=name) for name in "abc"], size=9)
    first = run("query", "--jobs", "all", "--limit", "2")
    assert [line.split()[0] for line in first.stdout.splitlines()] == ["JOB", "a", "b"]
    assert first.stderr == "there are more; continue with: --cursor 2\n"
    rest = json.loads(run("query", "--jobs", "all", "--cursor", "2", "--json").stdout)
    assert ([job["id"] for job in rest["jobs"]], rest["next"], rest["failures"]) == (["c"], None, [])


def test_nothing_found_is_said_and_no_failure(canned: CannedServer) -> None:
    canned.pages("/v1/events", "events", [], size=9)
    result = run("query", "--events", "type=Noted")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing found\n")


def test_sealed_jobs_that_were_not_searched_are_told(canned: CannedServer) -> None:
    canned.answer("/v1/packages", {"packages": [], "next": None, "sealed_jobs": 2})
    told = "packages of 2 sealed jobs were not searched; name the job in the query\n"
    assert run("query", "site=oslo").stderr == f"nothing found\n{told}"
    result = run("query", "site=oslo", "--json")
    assert (json.loads(result.stdout)["sealed_jobs"], result.stderr) == (2, told)
    canned.answer("/v1/counts/packages", {"count": 0, "sealed_jobs": 1})
    assert "packages of 1 sealed job were not searched" in run("query", "site=oslo", "--count").stderr


def test_a_purged_job_is_marked_and_what_is_kept_of_it_can_be_seen(canned: CannedServer) -> None:
    jobs = [job_view(id="old", state="CLEARED", place="purged"), job_view(id="new", state="DONE")]
    canned.answer("/v1/jobs", {"jobs": jobs, "next": None})
    _, old, new = run("query", "all", "--jobs").stdout.splitlines()
    assert "CLEARED (purged)" in old
    assert "purged" not in new
    canned.refuse("/v1/jobs/old", 410, "purged", "job old: this job was purged", "load a dump")
    assert refused("status", "old").splitlines()[1:] == [
        '  its name, owner and counts are kept: pilotage query --jobs "job=old"',
        "  load a dump",
    ]


def test_a_query_for_what_a_purged_job_had_says_that_it_was_purged(canned: CannedServer) -> None:
    canned.answer("/v1/packages", {"packages": [], "next": None, "sealed_jobs": 0})
    canned.refuse("/v1/jobs/old", 410, "purged", "job old: this job was purged")
    result = run("query", "job=old and state=DONE")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("nothing found\njob old: this job was purged\n")


def test_when_a_job_finished_is_shown_once_it_has(canned: CannedServer) -> None:
    for state, shown in (("RUNNING", False), ("DONE", True)):
        canned.answer("/v1/jobs/j", job_view(id="j", state=state, finished_at=MOMENT))
        canned.answer("/v1/jobs/j/stages", {"stages": [], "next": None})
        assert ("finished" in run("status", "j").stdout) == shown


def test_a_query_without_its_quotes_or_for_two_things_is_told(canned: CannedServer) -> None:
    assert "Put the query in quotes" in refused("query", "state=RUNNING", "and", "site=lyon")
    assert "--jobs and --events exclude each other" in refused("query", "all", "--jobs", "--events")
    assert canned.asked == []


def test_a_journal_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "book.sqlite").touch()
    for words in (("serve", "--book-only"), ("book", "check")):
        told = refused(*words, "--journal", "sqlite:books/book.sqlite")
        assert "a book is a folder, and this is a file" in told
        assert f"name the folder: sqlite:{tmp_path}/books" in told


def test_a_load_that_fails_leaves_no_book_behind(tmp_path: Path) -> None:
    assert "absent" in refused("book", "load", "absent")
    assert refused("book", "load", "-", stdin="no dump\n")
    assert list(tmp_path.iterdir()) == []


def test_a_count_is_a_number(canned: CannedServer) -> None:
    canned.answer("/v1/counts/packages", {"count": 12345})
    assert run("query", "state=DONE", "--count").stdout == "12,345\n"
    assert json.loads(run("query", "state=DONE", "--count", "--json").stdout)["count"] == 12345
    assert "not counted" in refused("query", "type=Noted", "--events", "--count")


def test_several_servers_are_merged_and_one_that_fails_is_named(canned: CannedServer) -> None:
    with canned_server() as other:
        canned.pages("/v1/jobs", "jobs", [job_view(id="a"), job_view(id="c")], size=9)
        other.pages("/v1/jobs", "jobs", [job_view(id="b")], size=9)
        servers = ("--server", canned.url, "--server", "http://127.0.0.1:9", "--server", other.url)
        result = run("query", "--jobs", "all", *servers)
        told = json.loads(run("query", "--jobs", "all", "--json", *servers).stdout)
    assert result.exit_code == 3
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["JOB", "a", "b", "c"]
    assert "error: http://127.0.0.1:9: no answer: connection refused" in result.stderr
    assert [(job["id"], job["server"]) for job in told["jobs"]] == [
        ("a", canned.url),
        ("b", other.url),
        ("c", canned.url),
    ]
    assert [failure["server"] for failure in told["failures"]] == ["http://127.0.0.1:9"]


def test_of_several_servers_one_that_refuses_is_named(canned: CannedServer) -> None:
    with canned_server() as other:
        canned.pages("/v1/jobs", "jobs", [job_view(id="a")], size=9)
        other.refuse("/v1/jobs", 401, "unauthenticated", "no token, or an unknown one")
        result = run("query", "--jobs", "all", "--server", canned.url, "--server", other.url)
    assert result.exit_code == 2
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["JOB", "a"]
    assert f"error: {other.url}: no token, or an unknown one" in result.stderr


def test_a_query_that_cannot_be_read_shows_where(canned: CannedServer) -> None:
    canned.refuse("/v1/packages", 400, "bad_query", "query, column 1: no such attribute: 'sitte'", "sitte=lyon\n^")
    told = refused("query", "sitte=lyon")
    assert told == "error: query, column 1: no such attribute: 'sitte'\n  sitte=lyon\n  ^\n"


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_are_shown_in_the_order_of_the_book(canned: CannedServer) -> None:
    first = event_view(
        position=7, time=MOMENT, type="AttemptStarted", job="j", package="1.1.1", attempt=2, data={"node": "n1"}
    )
    second = event_view(position=9, time=MOMENT, skewed=True, job="j", data={"text": "a\nb\x1b", "n": [1]})

    def pages(asked: Asked) -> Answer:
        rest = [event for event in (first, second) if event["position"] > int(asked.parameters["after"])]
        return Answer({"events": rest[:1], "after": rest[0]["position"], "more": len(rest) > 1})

    canned.responders["/v1/jobs/j/events"] = pages
    assert run("events", "j").stdout.splitlines() == [
        "       7  2023-11-14 22:13:20Z  AttemptStarted     j/1.1.1 #2  node=n1",
        "       9  2023-11-14 22:13:20Z (clock wrong)  Noted              j  text=a b\ufffd n=[1]",
    ]
    assert json.loads(run("events", "j", "--json").stdout) == {"events": [first, second]}
    assert json.loads(run("events", "j", "--json", "--after", "7").stdout) == {"events": [second]}


def test_events_of_a_package_are_asked_for_by_its_numbers(canned: CannedServer) -> None:
    canned.answer("/v1/jobs/j/packages/1.20.1/events", {"events": [], "after": 0, "more": False})
    assert run("events", "j/001/020/001", "--query", "type=Noted").exit_code == 0
    assert canned.asked[-1].parameters["query"] == "type=Noted"


def test_following_goes_on_where_the_stream_broke_off(canned: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)

    def stream(asked: Asked) -> Answer:
        after = int(asked.parameters["after"])
        if after == 2:
            monkeypatch.setattr("time.sleep", interrupt)
        event = event_view(position=after + 1, time=MOMENT, job="j", data={"text": "x"})
        text = b"retry: 2000\n\n: still here\n\nid: %d\ndata: %s\n\n" % (after + 1, msgspec.json.encode(event))
        return Answer(text, hang_up=True)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    canned.responders["/v1/jobs/j/events"] = stream
    result = run("events", "j", "--follow", "--json")
    assert [json.loads(line)["position"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert (result.exit_code, result.stderr, pauses) == (130, "", [0.5, 0.5])


def test_following_a_job_that_is_not_there_ends_at_once(canned: CannedServer) -> None:
    canned.refuse("/v1/jobs/j/events", 404, "unknown_job", "there is no such job here")
    assert "no such job" in refused("events", "j", "--follow")


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_are_shown(canned: CannedServer) -> None:
    interval = {"count": 3, "mean_seconds": 61.5, "median_seconds": 2.0, "p95_seconds": 7200.4}
    flow = {
        "window": "1h",
        "site": "lyon",
        "activity": "reco",
        "entries": {"RUNNING": 3600},
        "per_second": {"RUNNING": 1.0},
        "intervals": {"WAITING-RUNNING": interval},
    }
    canned.answer("/v1/statistics", {"window": "1h", "flows": [flow]})
    assert run("statistics", "--site", "lyon").stdout.splitlines() == [
        "site lyon, activity reco",
        "  into RUNNING  3,600  1/s",
        "  BETWEEN             COUNT  MEAN       MEDIAN  95 %",
        "  WAITING to RUNNING  3      1 min 2 s  2 s     2 h",
    ]
    assert canned.asked[0].parameters == {"window": "1h", "site": "lyon"}
    canned.answer("/v1/statistics", {"window": "1m", "flows": []})
    assert run("statistics", "--window", "1m").stderr == "no package changed its state within 1m\n"
