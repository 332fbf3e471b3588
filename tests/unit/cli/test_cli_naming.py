"""Which job a word means on the command line, and what programs read where a command fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pilotage.cli import main
from pilotage.cli.shared.errors import wants_json
from pilotage.client.errors import ServerUnreachable
from pilotage.client.server import Server
from tests.kit.canned_server import Answer, Asked, CannedServer, canned_server, event_view, job_view
from tests.kit.command_line import in_an_empty_folder, refused, run

NEW, OLD = "sweep-new", "sweep-old"
ACCEPTED = {"operation": 7, "events": 1}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> Iterator[CannedServer]:
    """A server with two jobs of the name `sweep`; the older one has the later id, and comes on the first page."""
    with canned_server() as server:
        monkeypatch.setenv("PILOTAGE_SERVER", server.url)
        server.refuse("/v1/jobs/sweep", 404, "unknown_job", "job sweep: there is no such job here")
        server.refuse("/v1/jobs/sweep/operations", 404, "unknown_job", "job sweep: there is no such job here")
        knows(server, {OLD: "DONE", NEW: "DONE"})
        yield server


def knows(server: CannedServer, states: dict[str, str], **more: Any) -> None:
    jobs = [
        job_view(id=job, name="sweep", state=state, submitted_at=float(number), **more)
        for number, (job, state) in enumerate(states.items())
    ]

    def page(asked: Asked) -> Answer:
        unfinished = "state in" in asked.parameters["query"]
        found = [job for job in jobs if not unfinished or job["state"] not in ("DONE", "CLEARED")]
        start = int(asked.parameters.get("cursor", "0"))
        return Answer({"jobs": found[start : start + 1], "next": str(start + 1) if start + 1 < len(found) else None})

    server.responders["/v1/jobs"] = page
    for job in jobs:
        server.answer(f"/v1/jobs/{job['id']}", job)
        server.answer(f"/v1/jobs/{job['id']}/stages", {"stages": []})
        server.answer(f"/v1/jobs/{job['id']}/operations", ACCEPTED)


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_name_means_the_newest_job_of_it_also_behind_the_first_page(canned: CannedServer) -> None:
    assert run("status", "sweep").stdout.startswith(f"{NEW}: DONE")
    assert [asked.parameters["query"] for asked in canned.asked if asked.path == "/v1/jobs"] == ['name="sweep"'] * 2


def test_without_a_name_it_is_the_last_job_that_is_not_over(canned: CannedServer) -> None:
    assert run("status").stdout.startswith(f"{NEW}: DONE")
    knows(canned, {OLD: "RUNNING", NEW: "DONE"})
    assert run("status").stdout.startswith(f"{OLD}: RUNNING")


def test_without_a_name_a_job_of_which_nothing_is_kept_is_passed_over(canned: CannedServer) -> None:
    knows(canned, {OLD: "DONE"})
    kept = canned.responders["/v1/jobs"]
    gone = job_view(id=NEW, name="site-test", state="CLEARED", submitted_at=9.0, place="purged")

    def page(asked: Asked) -> Answer:
        body = kept(asked).body
        assert isinstance(body, dict)
        return Answer(body | {"jobs": [*body["jobs"], gone]})

    canned.responders["/v1/jobs"] = page
    assert run("status").stdout.startswith(f"{OLD}: DONE")


def test_an_id_is_taken_before_a_name_and_costs_no_search(canned: CannedServer) -> None:
    knows(canned, {"sweep": "DONE", NEW: "DONE"})
    assert run("status", "sweep").stdout.startswith("sweep: DONE")
    assert "/v1/jobs" not in [asked.path for asked in canned.asked]


def test_a_name_with_quotes_is_a_name(canned: CannedServer) -> None:
    name = 'a "b" \\c'
    canned.refuse("/v1/jobs/a%20%22b%22%20%5Cc", 404, "unknown_job", "there is no such job here")
    run("status", name)
    assert canned.asked[1].parameters["query"] == r'name="a \"b\" \\c"'


def test_a_package_alone_is_one_of_the_last_job(canned: CannedServer) -> None:
    canned.answer(f"/v1/jobs/{NEW}/packages/1.2.1/logs", {"logs": []})
    assert json.loads(run("logs", "1.2.1", "--json").stdout) == {"job": NEW, "package": "1.2.1", "logs": []}


def test_who_steers_by_a_name_means_the_job_that_is_not_over(canned: CannedServer) -> None:
    assert run("kill", "sweep").stdout == f"killed {NEW}\n"
    knows(canned, {OLD: "RUNNING", NEW: "DONE"})
    assert run("kill", "sweep/1.2.1").stdout == f"killed {OLD}/1.2.1\n"
    assert run("drop", "sweep", "1.2").stdout == f"dropped {OLD}/1.2\n"


def test_who_steers_by_a_name_of_several_that_are_not_over_is_asked_which(canned: CannedServer) -> None:
    knows(canned, {OLD: "RUNNING", NEW: "WAITING"})
    told = refused("kill", "sweep")
    assert "2 jobs named 'sweep' have not ended; name one by its id:" in told
    assert f"{NEW}, {OLD}" in told
    assert not [asked for asked in canned.asked if asked.method == "POST" and OLD in asked.path]


@pytest.mark.parametrize("words", [["query"], ["kill", "--where"], ["release", "--jobs", "--where"]])
def test_a_query_that_takes_a_name_for_an_id_is_told_so_where_it_finds_nothing(
    canned: CannedServer, words: list[str]
) -> None:
    canned.answer("/v1/packages", {"packages": [], "next": None, "sealed_jobs": 0})
    canned.answer("/v1/counts/packages", {"count": 0, "sealed_jobs": 0})
    canned.answer("/v1/counts/jobs", {"count": 0})
    canned.answer("/v1/operations", {"found": 0, "done": 0, "refused": 0, "told": []})
    said = run(*words, "job=sweep and state=WAITING").stderr
    assert f"job= takes an id: the newest job named sweep is {NEW}; name=sweep finds all\n" in said


def test_an_event_may_be_logged_for_a_package_by_its_name(
    canned: CannedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canned.answer(f"/v1/jobs/{NEW}/packages", {"packages": [{"id": "1.7.1"}], "next": None})
    canned.answer(f"/v1/jobs/{OLD}/packages", {"packages": [], "next": None})
    for words in (["--package", f"{NEW}/fit-6"], ["--package", "fit-6", "--job", NEW]):
        told = run("log", "Noted", "text=x", *words, "--no-deliver", "--json")
        assert told.exit_code == 0, told.output
    (spool,) = {each for each in (tmp_path / "spool").rglob("*") if each.is_file() and "1.7.1" in each.read_text()}
    assert spool.read_text().count('"package":"1.7.1"') == 2
    assert "no package called 'fit-6'" in refused("log", "Noted", "--package", f"{OLD}/fit-6")
    assert "of which job" in refused("log", "Noted", "--package", "fit-6")
    monkeypatch.setenv("PILOTAGE_SERVER", "http://127.0.0.1:9")
    assert "write 1.2.1, 001/002/001 or JOB/1.2.1" in refused("log", "Noted", "--package", f"{NEW}/fit-6")


def test_who_steers_must_name_the_job_of_a_package(canned: CannedServer) -> None:
    assert "'1.2.1' is a package, but of which job? Write JOB/1.2.1." in refused("kill", "1.2.1")
    assert not canned.asked


def test_a_job_that_the_service_has_put_away_is_told_for_what_it_is(canned: CannedServer) -> None:
    knows(canned, {OLD: "CLEARED"}, failed=1)
    canned.refuse(f"/v1/jobs/{OLD}/operations", 404, "unknown_job", f"no job is called '{OLD}'")
    told = refused("kill", OLD)
    assert f"the job {OLD} has ended: CLEARED, its outputs were handed over" in told
    assert f"pilotage retry --failed {OLD}" in told
    knows(canned, {OLD: "CLEARED"})
    canned.refuse(f"/v1/jobs/{OLD}/operations", 404, "unknown_job", f"no job is called '{OLD}'")
    assert f"pilotage retry --force {OLD}/1.2.1" in refused("kill", OLD)


def test_a_refusal_does_not_say_twice_what_it_is_about(canned: CannedServer) -> None:
    canned.refuse(f"/v1/jobs/{NEW}/operations", 409, "package_over", "1.1.1: 1.1.1 is over: done", "restart it")
    assert refused("kill", f"{NEW}/1.1.1") == "error: 1.1.1 is over: done\n  restart it\n"


# --- errors for programs ----------------------------------------------------------------------------------------------


def with_json(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The words of every command below one that has `--json` and does not hand on options that it does not know."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from with_json(below, (*words, name))
    elif command.context_settings.get("ignore_unknown_options"):
        return
    elif any("--json" in parameter.opts for parameter in command.params):
        yield words


COMMANDS = list(with_json(main, ()))


def test_commands_with_json_are_found_at_all() -> None:
    assert {("status",), ("run",), ("kill",), ("doctor",), ("book", "check")} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_prints_one_object_where_it_fails(words: tuple[str, ...]) -> None:
    result = run(*words, "--json", "--no-such-option")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"]) == (2, "usage")
    assert "--no-such-option" in error["message"]
    assert error["hint"] == f"see: main {' '.join(words)} --help"
    assert "--no-such-option" in result.stderr
    assert run(*words, "--no-such-option").stdout == ""


def test_an_error_of_the_server_keeps_its_code_and_its_hint(canned: CannedServer) -> None:
    canned.refuse("/v1/jobs/j", 410, "purged", "job j was purged", "it is gone")
    result = run("status", "j", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"], error["message"]) == (2, "purged", "job j was purged")
    assert error["hint"].endswith("it is gone")


def test_faults_of_a_document_are_listed_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("pilotage: 1\njob: x\nstages: 3\n")
    result = run("plan", "bad.yaml", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"]) == (2, "bad_document")
    assert [(each["file"], each["line"]) for each in error["problems"]] == [("bad.yaml", 3)]


def test_a_folder_that_is_gone_and_a_word_that_is_no_text_are_told_as_well() -> None:
    assert json.loads(run("status", "--json").stdout)["error"]["code"] == "no_server"
    result = run("status", "--server", "\udcff", "--json")
    assert "\\udcff" in json.loads(result.stdout)["error"]["message"]


def test_events_are_one_object_also_where_the_server_goes_away_in_the_middle(
    canned: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = {"events": [event_view(position=1, job=NEW)], "after": 1, "more": True}
    canned.answer(f"/v1/jobs/{NEW}/events", page)
    real = Server.get

    def breaking(self: Server, path: str, parameters: Any = None) -> Any:
        if (parameters or {}).get("after"):
            raise ServerUnreachable("no answer", subject=self.url)
        return real(self, path, parameters)

    monkeypatch.setattr(Server, "get", breaking)
    result = run("events", NEW, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, len(told["events"]), told["error"]["code"]) == (3, 1, "server_unreachable")


@pytest.mark.parametrize(
    "words, wanted",
    [
        (["status", "--json"], True),
        (["status"], False),
        (["map", "--", "tool", "--json"], False),
        (["--json", "--", "x"], True),
    ],
)
def test_words_behind_two_dashes_are_no_options(words: list[str], *, wanted: bool) -> None:
    assert wants_json(words) is wanted
