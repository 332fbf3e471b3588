"""`run`, `map`, `plan`, `watch` and `attach` against a server that answers what a test put into its mouth."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.model.answers import FailureCard, FailureGroup, Progress, StageProgress, UnmadeTarget
from pilotage.model.jobs.submission import PlannedPackage, RunPlan, StagePlan
from pilotage.service.announcement import Announcement, announced
from tests.kit.canned_server import Answer, Asked, CannedServer, canned_server, job_view
from tests.kit.command_line import in_an_empty_folder, run

DOCUMENT = """\
pilotage: 1
job: sweep
stages:
  - each: {seed: 1..3}
    run: simulate --seed {seed} --out sim-{seed}.dat
    outputs: [sim-{seed}.dat]
"""
JOB = "sweep-abc123"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CannedServer]:
    """A service of the folder that takes a job and has it done."""
    in_an_empty_folder(tmp_path, monkeypatch)
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT)
    state = tmp_path / ".pilotage"
    state.mkdir()
    (state / "token").write_text("secret")
    with canned_server() as canned:
        announcement = Announcement(
            url=canned.url,
            pid=os.getpid(),
            token_file=str(state / "token"),
            version="1",
            started_at=0.0,
            socket=str(state / "agent.sock"),
        )
        canned.answer("/v1/jobs", {"job": JOB, "packages": 3}, status=201)
        tell(canned, progress())
        with announced(state, announcement):
            yield canned


def progress(**said: Any) -> Progress:
    fields = {"job": JOB, "name": "sweep", "state": "DONE", "packages": 3, "done": 3}
    return Progress(**(fields | said))  # type: ignore[arg-type]


def tell(server: CannedServer, *steps: Progress) -> None:
    """Tell how far the job is, step by step; the last stays."""
    left = list(steps)

    def respond(_: Asked) -> Answer:
        return Answer(msgspec.to_builtins(left.pop(0) if len(left) > 1 else left[0]))

    server.responders[f"/v1/jobs/{JOB}/progress"] = respond


def submitted(server: CannedServer) -> Any:
    (asked,) = [each for each in server.asked if (each.method, each.path) == ("POST", "/v1/jobs")]
    return asked.body


# --- run --------------------------------------------------------------------------------------------------------------


def test_a_job_is_sent_followed_and_summed_up(server: CannedServer, tmp_path: Path) -> None:
    stage = StageProgress(stage=1, name="simulate", packages=3, done=1, running=2)
    tell(
        server,
        progress(state="RUNNING", done=1, running=2, stages=(stage,)),
        progress(submitted_at=1.0, finished_at=63.0),
    )
    done = run("run")
    assert (done.exit_code, done.stdout) == (0, f"{JOB}: DONE after 1 min 2 s: 3 of 3 packages done\n")
    assert done.stderr == f"{JOB}: 3 packages\n"
    sent = submitted(server)
    assert (sent["folder"], sent["document"], sent["only_if_needed"]) == (str(tmp_path), "pilotage.yaml", True)
    assert sent["definition"]["job"] == "sweep"
    assert server.asked[0].authorization == "Bearer secret"


def test_options_are_sent_along(server: CannedServer) -> None:
    run("run", "--fresh", "--keep-failed")
    sent = submitted(server)
    assert (sent["fresh"], sent["keep_failed"]) == (True, True)


def test_a_document_in_another_folder_has_its_files_there(server: CannedServer, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "other.yaml").write_text(DOCUMENT)
    assert run("run", "inner/other.yaml").exit_code == 0
    sent = submitted(server)
    assert (sent["folder"], sent["document"]) == (str(tmp_path / "inner"), "other.yaml")


def test_a_faulty_document_is_shown_as_check_shows_it(server: CannedServer, tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT.replace("outputs", "outptus"))
    done = run("run")
    assert (done.exit_code, done.stderr) == (2, run("check").stderr)
    assert "unknown-field" in done.stderr
    assert not server.asked


def test_failures_end_in_exit_code_one_and_cards(server: CannedServer) -> None:
    card = FailureCard(package="1.2.1", reason="application-error", exit_status=3, exit_message="it failed\nlast words")
    tell(server, progress(done=2, failed=1, failures=(FailureGroup(count=1, card=card),)))
    done = run("run")
    assert done.exit_code == 1
    assert "1 package: application-error" in done.stdout
    assert "      | last words" in done.stdout
    assert f"pilotage logs {JOB}/1.2.1" in done.stdout
    assert f"pilotage retry --failed {JOB}" in done.stdout


def test_targets_that_were_not_made_end_in_exit_code_one(server: CannedServer) -> None:
    unmade = tuple(UnmadeTarget(target=f"{n}.dat", why="nobody has") for n in range(22))
    tell(server, progress(unmade=unmade))
    result = run("run")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "DONE without all targets" in lines[0]
    assert lines[1] == "0.dat was asked for and was not made: nobody has"
    assert lines[21:] == ["… and 2 more that were asked for and were not made"]


def test_with_json_there_is_one_object_and_no_progress(server: CannedServer) -> None:
    tell(server, progress(state="RUNNING", done=1), progress(done=2, failed=1))
    done = run("run", "--json")
    found = json.loads(done.stdout)
    assert (found["job"], found["state"], found["failed"], found["exit_code"]) == (JOB, "DONE", 1, 1)
    assert found["stuck"] == ""
    assert "packages done" not in done.stderr


def test_a_job_that_cannot_move_ends_with_the_reason(server: CannedServer) -> None:
    stuck = progress(state="WAITING", done=0, stuck="no site can run 1.1.1", next_step="ask for less")
    tell(server, stuck)
    done = run("run")
    assert done.exit_code == 1
    assert "nothing can move: no site can run 1.1.1\n  ask for less\n" in done.stdout


def test_a_job_that_only_looked_stuck_goes_on(server: CannedServer) -> None:
    tell(server, progress(state="WAITING", done=0, stuck="it seemed so"), progress(state="RUNNING"), progress())
    assert run("run").exit_code == 0


def test_a_held_job_is_stopped_and_resumable(server: CannedServer) -> None:
    tell(server, progress(state="WAITING", done=0, held=True, stuck="the job is held", next_step="release it"))
    assert run("run").exit_code == 3


def test_where_nothing_would_run_that_is_said(server: CannedServer) -> None:
    server.answer("/v1/jobs", {"job": "", "packages": 3, "adopted": 3}, status=201)
    done = run("run")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("sweep: nothing to do: all 3 packages are there already")
    assert json.loads(run("run", "--json").stdout)["done"] == 3


def test_what_was_begun_before_and_what_is_superseded_is_told(server: CannedServer) -> None:
    server.answer("/v1/jobs", {"job": JOB, "packages": 3, "resumed": True}, status=201)
    assert run("run").stderr == f"{JOB}: 3 packages; it was started before and continues\n"
    answer = {"job": JOB, "packages": 3, "adopted": 2, "superseded": ["old"], "run_again": {"old": "for all"}}
    server.answer("/v1/jobs", answer, status=201)
    said = run("run", "--slots", "2").stderr
    assert "old had not ended and is killed: its document runs again for all\n" in said
    assert f"{JOB}: 3 packages, 2 of them made by an earlier run\n" in said
    assert "its own slots apply" in said


def test_a_fresh_run_beside_one_that_is_not_over_names_the_ways_on(server: CannedServer) -> None:
    server.answer("/v1/jobs", {"job": JOB, "packages": 3, "superseded": ["old"]}, status=201)
    said = run("run", "--fresh").stderr
    assert "old had not ended and is killed: --fresh runs everything again\n" in said
    assert f"pilotage kill {JOB}, then pilotage retry --failed old\n" in said
    assert "the same command without --fresh\n" in said
    assert "has changed" not in said


def test_detached_it_ends_when_the_job_has_begun(server: CannedServer) -> None:
    done = run("run", "--detach")
    assert done.exit_code == 0
    assert f"pilotage attach {JOB}" in done.stderr
    assert f"/v1/jobs/{JOB}/progress" not in [asked.path for asked in server.asked]


def test_what_the_server_refuses_is_bad_input(server: CannedServer) -> None:
    server.refuse("/v1/jobs", 409, "not_ours", "sim-1.dat is there, and not ours", "move it away")
    done = run("run")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "sim-1.dat is there, and not ours" in done.stderr
    assert "move it away" in done.stderr


def test_a_server_that_is_away_for_a_moment_is_waited_for(server: CannedServer) -> None:
    answers = [Answer({"error": {"code": "busy", "message": "not now"}}, 503), Answer(msgspec.to_builtins(progress()))]
    server.responders[f"/v1/jobs/{JOB}/progress"] = lambda _: answers.pop(0) if len(answers) > 1 else answers[0]
    assert run("run").exit_code == 0


def test_a_service_that_only_keeps_the_book_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    (tmp_path / "pilotage.yaml").write_text(DOCUMENT)
    state = tmp_path / ".pilotage"
    state.mkdir()
    announcement = Announcement(url="http://127.0.0.1:9", pid=os.getpid(), token_file="", version="1", started_at=0.0)
    with announced(state, announcement):
        done = run("run")
    assert done.exit_code == 2
    assert "serves its book and runs no jobs" in done.stderr


# --- map --------------------------------------------------------------------------------------------------------------


def test_map_sends_a_job_without_a_document(server: CannedServer, tmp_path: Path) -> None:
    done = run("map", "simulate --seed {} --out {#}.dat", "7", "8", "--output", "{#}.dat")
    assert done.exit_code == 0
    sent = submitted(server)
    assert (sent["definition"]["job"], sent.get("document", "")) == ("simulate", "")


def test_map_takes_items_or_commands_from_lines(server: CannedServer, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("seven\n\neight\n")
    run("map", "echo", "--each-line", "lines.txt")
    (stage,) = submitted(server)["definition"]["stages"]
    assert stage["lines"][0]["each"]["values"] == ["seven", "eight"]
    server.asked.clear()
    (tmp_path / "lines.txt").write_text("echo a\necho b\n")
    run("map", "--each-line", "lines.txt")
    (stage,) = submitted(server)["definition"]["stages"]
    assert [line["packages"][0]["binaries"][0]["run"] for line in stage["lines"]] == [["echo", "a"], ["echo", "b"]]


def test_a_line_of_items_is_one_whatever_it_begins_with_and_among_commands_it_may_be_a_comment(
    server: CannedServer, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("# seven\n \necho eight\n  # nine\n")
    run("map", "echo", "--each-line", "lines.txt")
    (stage,) = submitted(server)["definition"]["stages"]
    assert stage["lines"][0]["each"]["values"] == ["# seven", "echo eight", "  # nine"]
    server.asked.clear()
    run("map", "--each-line", "lines.txt")
    (stage,) = submitted(server)["definition"]["stages"]
    assert [line["packages"][0]["binaries"][0]["run"] for line in stage["lines"]] == [["echo", "eight"]]


def test_map_of_an_empty_command_is_refused(server: CannedServer) -> None:
    done = run("map", "", "a")
    assert (done.exit_code, "the command is empty" in done.stderr) == (2, True)
    assert not [asked for asked in server.asked if asked.path == "/v1/jobs" and asked.method == "POST"]


@pytest.mark.parametrize("words", [[], ["echo"]])
def test_map_without_items_says_how_it_is_used(server: CannedServer, words: list[str]) -> None:
    done = run("map", *words)
    assert done.exit_code == 2
    assert "Name a command and its items" in done.stderr


# --- plan -------------------------------------------------------------------------------------------------------------


def planned(**said: Any) -> dict[str, Any]:
    stage = StagePlan(stage=1, name="simulate", packages=3, would_run=2, there=1, core_hours=0.5)
    why = (PlannedPackage(package="1.2.1", name="simulate-1", changed="argv"),)
    fields = {
        "job": "sweep", "packages": 3, "would_run": 2, "there": 1, "stages": (stage,), "listed": why,
        "changed": {"argv": 1, "input": 1}, "slots": 4, "core_hours": 0.5, "seconds": 900.0,
    }  # fmt: skip
    plain: dict[str, Any] = msgspec.to_builtins(RunPlan(**(fields | said)))  # type: ignore[arg-type]
    return plain


def test_a_plan_says_what_would_run_why_and_what_it_costs(server: CannedServer) -> None:
    server.answer("/v1/plan", planned())
    done = run("plan")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "sweep: 2 of 3 packages would run, 1 there already",
        "  stage  name      packages  would run  there  core-hours",
        "  1      simulate  3         2          1      0.5",
        "  0.5 core-hours, 15 min with 4 slots",
        "  why",
        "    1.2.1  simulate-1  argv",
        "    … and 1 more; in all 1 for argv, 1 for input",
    ]
    assert not [asked for asked in server.asked if asked.path != "/v1/plan"]


def test_a_plan_where_nothing_would_run_says_so(server: CannedServer) -> None:
    server.answer("/v1/plan", planned(would_run=0, there=3, listed=(), changed={}))
    assert run("plan").stdout == "sweep: nothing would run: 3 packages there already\n"
    assert json.loads(run("plan", "--json").stdout)["there"] == 3


def test_a_reason_that_all_share_is_told_once(server: CannedServer) -> None:
    server.answer("/v1/plan", planned(changed={"argv": 2}))
    assert run("plan").stdout.endswith("with 4 slots\n  why: argv\n")


def test_a_plan_of_what_nobody_knows_says_that(server: CannedServer) -> None:
    server.answer("/v1/plan", planned(core_hours=None, seconds=None))
    assert "the duration is unknown" in run("plan").stdout


# --- watch and attach -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["watch", "attach"])
def test_without_a_job_the_last_one_is_taken(server: CannedServer, command: str) -> None:
    server.answer(
        "/v1/jobs", {"jobs": [job_view(id="old", submitted_at=1.0), job_view(id=JOB, submitted_at=2.0)], "next": None}
    )
    done = run(command)
    assert (done.exit_code, done.stdout) == (0, f"{JOB}: DONE: 3 of 3 packages done\n")


@pytest.mark.parametrize("command", ["watch", "attach"])
def test_a_named_job_is_shown_and_its_exit_code_taken_over(server: CannedServer, command: str) -> None:
    tell(server, progress(done=2, failed=1))
    assert run(command, JOB).exit_code == 1
    assert json.loads(run(command, JOB, "--json").stdout)["failed"] == 1


def test_a_folder_without_jobs_says_so(server: CannedServer) -> None:
    server.answer("/v1/jobs", {"jobs": [], "next": None})
    done = run("watch")
    assert done.exit_code == 2
    assert "there is no job yet" in done.stderr
