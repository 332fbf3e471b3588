"""What commands do where no service runs: they say so and end, and start one only where something is to go on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.app.service.background import end_agents
from pilotage.service.announcement import find_service
from tests.kit.real_runs import Place, place_in, wait_until

# The package says that it runs, and waits for a file.
WAITING = """\
pilotage: 1
job: waiting
stages:
  - shell: |
      echo begun
      echo x > $PILOTAGE_FOLDER/started
      until test -e $PILOTAGE_FOLDER/go; do sleep 0.05; done
      echo {word} > out.txt
    outputs: [out.txt]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as made:
        made.document(WAITING.format(word="made"))
        yield made


def begun(place: Place) -> subprocess.Popen[str]:
    process = place.begin("run", "--slots", "1")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("waiting-")  # it knows its job
    wait_until((place.folder / "started").exists, "the package to run")
    return process


@pytest.fixture
def stopped(place: Place) -> Place:
    """A folder with a job that was stopped."""
    process = begun(place)
    process.send_signal(signal.SIGINT)
    place.ended(process, code=3)
    return place


@pytest.fixture
def over(place: Place) -> Place:
    """A folder with a job that is over, and without a service."""
    (place.folder / "go").touch()
    place.run("run")
    end_agents(place.state)  # first: they have somebody to tell
    place.run("serve", "--stop")
    return place


def test_a_stopped_job_does_not_go_on_by_being_looked_at_and_that_is_said(stopped: Place) -> None:
    assert "no service runs it; continue it with: pilotage attach waiting-" in stopped.run("outputs", "waiting").stderr
    quiet = stopped.run("logs", "waiting", "--stderr")
    assert (quiet.stdout, "no log was written yet, or it was not kept" in quiet.stderr) == ("", True)
    followed = stopped.run("logs", "waiting", "--follow", code=3)
    assert "begun\n" in followed.stdout
    assert (
        "no service runs here, so no more output will come; continue the job with: pilotage attach waiting-"
        in followed.stderr
    )
    for words in ([], ["--follow"]):
        refused = stopped.run("logs", "waiting", "--attempt", "9", *words, code=2)
        assert "there is no attempt 9: the last one is 1" in refused.stderr
    assert find_service(stopped.state) is None


def test_attach_starts_nothing_for_a_job_that_is_over_or_unknown(over: Place) -> None:
    assert "no such job" in over.run("attach", "nope", code=2).stderr
    assert "DONE" in over.run("attach", "waiting").stdout
    assert over.told("attach")["state"] == "DONE"
    assert find_service(over.state) is None


def test_attach_in_a_folder_without_state_leaves_it_as_it_is(tmp_path: Path) -> None:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as place:
        assert place.told("attach", code=2)["error"]["code"] == "no_server"
    assert not list(tmp_path.iterdir())


def test_attach_below_goes_on_where_the_job_is(stopped: Place) -> None:
    (stopped.folder / "go").touch()
    (stopped.folder / "below").mkdir()
    with place_in(stopped.folder / "below", environment={"HOME": str(stopped.folder)}) as below:
        below.run("attach", "waiting")
    assert (stopped.folder / "out.txt").read_text() == "made\n"
    assert not list((stopped.folder / "below").iterdir())


def test_no_url_is_told_that_nobody_serves(over: Place) -> None:
    told = over.told("outputs", "waiting/1.1.1")
    assert told["standard_output"] == {"size_bytes": 6}
    assert over.told("status")["job"]["url"].startswith("http://127.0.0.1:")


def test_a_job_is_tagged_and_looked_for_by_its_name(over: Place) -> None:
    over.run("serve", "--background", "--port", "0")
    job = over.told("status")["job"]["id"]
    assert "not registered" not in over.run("tag", "waiting", "study=A", "--now").stderr
    assert over.told("status", job)["job"]["tags"] == {"study": "A"}
    assert f"the newest job named waiting is {job}" in over.run("query", "job=waiting").stderr
    assert "newest" not in over.run("query", f"job={job} and state=RUNNING").stderr


def test_a_run_whose_state_folder_is_removed_says_so_and_starts_nothing(place: Place) -> None:
    process = begun(place)
    shutil.rmtree(place.state)
    said = place.ended(process, code=2).stderr
    assert "the state folder of the job was removed while it ran" in said
    assert not place.state.exists()


def test_a_run_that_was_superseded_in_another_terminal_says_by_what(place: Place) -> None:
    process = begun(place)
    place.document(WAITING.format(word="else"))
    job = json.loads(place.run("run", "--detach", "--json").stdout)["job"]
    told = place.ended(process, code=1).stdout
    assert f"killed: superseded by {job}: its document was submitted again with another content\n" in told
    assert "retry" not in told
    (place.folder / "go").touch()
    place.run("attach", job)
    assert (place.folder / "out.txt").read_text() == "else\n"
