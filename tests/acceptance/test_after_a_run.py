"""What a folder answers when its service has ended: its book is read, nothing is started, and nothing of it goes on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.locations import FOLDER
from pilotage.app.service.background import end_agents
from pilotage.service.announcement import find_service
from tests.kit.real_runs import Place, place_in, wait_until

FRAGILE = """\
pilotage: 1
job: fragile
stages:
  - each: {n: 1..3}
    shell: |
      echo working on {n}
      test {n} != 2 && echo {n} > {n}.out
    outputs: ["{n}.out"]
"""

# The first waits for a line, so that the others do not begin.
GATED = """\
pilotage: 1
job: gated
stages:
  - each: {n: 1..3}
    shell: |
      echo {n} > $PILOTAGE_FOLDER/started-{n}
      read line < $PILOTAGE_FOLDER/go
"""

# Inputs, outputs, logs and captured contents: whatever could leave a file behind for each package.
MANY = """\
pilotage: 1
job: many
stages:
  - each: {{n: 1..{count}}}
    shell: echo told; cp given.txt {{n}}.out
    inputs: [given.txt]
    outputs: ["{{n}}.out"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as place:
        yield place


@pytest.fixture
def ended(place: Place) -> Place:
    """A folder with a job that ran, and whose service has ended."""
    place.document(FRAGILE)
    place.run("run", code=1)
    place.run("serve", "--stop")
    return place


def test_everything_that_was_told_is_told_from_the_book(ended: Place) -> None:
    job = ended.told("status")["job"]["id"]
    assert ended.run("status", job).stdout.startswith(f"{job}: DONE (1 failed)\n")
    assert "working on 2" in ended.run("logs", f"{job}/1.2.1").stdout
    assert "it was given up" in ended.run("explain", f"{job}/1.2.1").stdout
    assert [each["name"] for each in ended.told("outputs", f"{job}/1.1.1")["outputs"]] == ["1.out"]
    found = ended.told("query", f"job={job} and state=ABORTED")
    assert [each["id"] for each in found["packages"]] == ["1.2.1"]
    assert ended.told("events", job)["events"][0]["type"] == "JobRegistered"
    assert ended.told("statistics")["flows"]
    assert ended.told("watch", job, code=1)["failed"] == 1
    # Also from a folder below, and without the token of the folder: it is shown to nobody.
    (ended.folder / "below").mkdir()
    with place_in(ended.folder / "below", environment={"HOME": str(ended.folder)}) as below:
        assert below.told("status")["job"]["id"] == job
    assert find_service(ended.state) is None


def test_what_a_command_prints_does_not_depend_on_the_process_in_which_it_runs(ended: Place) -> None:
    failed = "fragile/1.2.1"
    for words in (["check"], ["plan"], ["status"], ["logs", failed], ["explain", failed], ["events", failed, "--json"]):
        own, here = ended.ended(ended.begin(*words)), ended.run(*words)
        assert (here.stdout, here.stderr) == (own.stdout, own.stderr)


def test_a_job_is_named_by_its_id_its_name_or_not_at_all(ended: Place) -> None:
    first = ended.told("status", "fragile")["job"]["id"]
    (ended.folder / "pilotage.yaml").write_text(FRAGILE.replace("!= 2", "!= 3"))
    second = ended.told("run", code=1)["job"]
    assert second != first
    for word in ("fragile", None):
        assert ended.told("status", *([word] if word else []))["job"]["id"] == second
    assert ended.told("status", "fragile/001/003/001")["package"]["job"] == second
    assert ended.told("logs", "1.3.1")["job"] == second
    assert ended.run("kill", "fragile", code=2).stderr.startswith(f"error: every package of the job {second} is over")
    assert "no such job" in ended.run("status", "fragil", code=2).stderr


def test_results_are_handed_over_and_a_cleared_job_says_what_it_is(ended: Place) -> None:
    said = ended.run("outputs", "fragile", code=1).stderr
    assert "1 package failed, so outputs are missing" in said
    assert "the job is CLEARED" in said
    told = ended.told("outputs", "fragile", "--to", str(ended.folder / "mine"), code=1)
    assert (told["problems"], told["failed"], told["cleared"]) == (0, 1, True)
    assert (ended.folder / "mine" / "1.out").read_text() == "1\n"
    assert ended.told("status")["job"]["state"] == "CLEARED"
    ended.run("serve", "--background", "--port", "0")
    refused = ended.run("kill", "fragile", code=2).stderr
    assert "has ended: CLEARED, its outputs were handed over" in refused
    assert "pilotage retry --failed fragile-" in refused


def test_retry_starts_the_service_again_and_the_same_command_says_what_is_missing(ended: Place) -> None:
    job = ended.told("status")["job"]["id"]
    refused = ended.told("kill", job, code=3)["error"]
    assert (refused["code"], "does not run" in refused["message"]) == ("server_unreachable", True)
    assert "pilotage serve --background" in refused["hint"]
    assert ended.told("retry", "--failed", "fragile")["done"][0]["subject"] == job
    assert ended.told("watch", job, code=1)["failed"] == 1
    assert find_service(ended.state) is not None


def test_nothing_is_started_for_a_job_that_is_not_there(ended: Place) -> None:
    for words in (["restart", "nosuch"], ["retry", "nosuch/1.1.1"], ["release", "nosuch", "--where", "all"]):
        assert "no such job" in ended.run(*words, code=2).stderr
    refused = ended.told("restart", "nosuch", "other", code=2)["refused"]
    assert [each["code"] for each in refused] == ["unknown_job"] * 2
    assert find_service(ended.state) is None


def test_to_look_at_a_job_that_is_not_over_does_not_go_on_with_it(place: Place) -> None:
    place.document(GATED)
    os.mkfifo(place.folder / "go")
    job = place.told("run", "--slots", "1", "--detach")["job"]
    wait_until(lambda: list(place.folder.glob("started-*")), "the first package to run")
    place.run("serve", "--stop")
    end_agents(place.state)
    told = place.told("status")["progress"]
    assert (told["stuck"], told["next_step"]) == ("no service runs here", f"continue it with: pilotage attach {job}")
    assert f"next: continue it with: pilotage attach {job}" in place.run("status").stdout
    waiting = place.told("explain", f"{job}/1.3.1")
    assert [why["code"] for why in waiting["reasons"]] == ["no-service"]
    assert place.told("watch", code=3)["error"]["code"] == "server_unreachable"
    nothing = {"job": job, "files": [], "problems": 0, "cleared": False, "failed": 0, "cancelled": 0, "next_step": ""}
    assert place.told("outputs", job) == nothing
    assert find_service(place.state) is None
    assert not list((place.state / "scratch").iterdir())


def test_ctrl_c_in_one_of_two_terminals_stops_nothing_and_in_the_last_one_does(place: Place) -> None:
    place.document(GATED)
    os.mkfifo(place.folder / "go")
    first = place.begin("run", "--slots", "1", "--json")
    wait_until(lambda: list(place.folder.glob("started-*")), "the first package to run")
    second = place.begin("run", "--json")
    assert second.stderr is not None
    assert "it was started before and continues" in second.stderr.readline()
    second.send_signal(signal.SIGINT)
    left = place.ended(second, code=3)
    assert "another terminal shows it, too" in left.stderr
    assert json.loads(left.stdout)["error"]["code"] == "stopped"
    assert find_service(place.state) is not None
    first.send_signal(signal.SIGINT)
    stopped = place.ended(first, code=3)
    assert "the same command continues" in stopped.stderr
    assert json.loads(stopped.stdout)["job"] == json.loads(left.stdout)["job"]
    assert find_service(place.state) is None


def test_a_folder_without_state_says_so_and_stays_as_it_is(place: Place) -> None:
    for words in (["status"], ["query", "all"], ["outputs", "sweep"], ["retry", "--failed", "sweep"]):
        told = place.told(*words, code=2)
        assert told["error"]["code"] == "no_server"
    assert not list(place.folder.iterdir())


@pytest.mark.slow
def test_a_hundred_times_as_many_packages_leave_as_many_files_in_the_state_folder(tmp_path: Path) -> None:
    counts = {}
    for count in (20, 2000):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "given.txt").write_text("given\n")
        with place_in(folder, environment={"HOME": str(tmp_path)}) as place:
            place.document(MANY.format(count=count))
            assert json.loads(place.run("run", "--json").stdout)["done"] == count
            counts[count] = len(list(place.state.rglob("*")))
            # What is sealed has one file for each job, whatever it had.
            job = place.told("outputs", "many")["job"]
            end_agents(place.state)  # first: they have somebody to tell
            place.run("serve", "--stop")
            place.run("book", "seal", job)
            assert len(list((place.state / FOLDER).iterdir())) == 1
            assert len(list(place.state.rglob("*"))) <= counts[count]
            assert place.told("logs", f"{job}/1.{count}.1")["logs"][0]["head"] == "told\n"
    assert counts[2000] <= counts[20] + 2  # what SQLite keeps beside a book may be there, or not
    assert counts[2000] < 100
