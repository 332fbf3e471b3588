"""A service that is killed as it starts, or whose small files are removed: the command that waits goes on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pilotage.service.announcement import find_service
from tests.kit.real_runs import Place, place_in, processes_with, wait_until

STAMPED = re.compile(r"20[0-9-]{8}T[0-9:.]{12}Z (INFO|WARNING) pilotage[a-z_.]*: ")
DOCUMENT = """\
pilotage: 1
job: waits
stages:
  - shell: |
      touch $PILOTAGE_FOLDER/started
      until test -e $PILOTAGE_FOLDER/go; do sleep 0.05; done
      echo made > made.txt
    outputs: [made.txt]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as made:
        made.document(DOCUMENT)
        yield made


def test_a_service_that_is_killed_before_it_answers_is_started_again(place: Place) -> None:
    (place.folder / "go").touch()
    process = place.begin("run")
    killed: list[int] = []

    def is_killed() -> bool:
        for pid in processes_with("serve", f"PILOTAGE_JOURNAL_URL=sqlite:{place.state}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return bool(killed)

    wait_until(is_killed, "a service to kill")
    place.ended(process)
    assert (place.folder / "made.txt").exists()


def test_a_removed_announcement_and_a_removed_token_come_back_and_the_run_goes_on(place: Place) -> None:
    process = place.begin("run")
    wait_until((place.folder / "started").exists, "the package")
    before = find_service(place.state)
    assert before is not None
    (place.state / "service.json").unlink()
    wait_until(lambda: find_service(place.state) == before, "the announcement")
    token = (place.state / "token").read_text()
    (place.state / "token").unlink()
    wait_until((place.state / "token").exists, "the token")
    assert (place.state / "token").read_text() != token  # who removes it wants another
    os.kill(before.pid, signal.SIGHUP)  # no service ends by it
    wait_until(lambda: "SIGHUP" in place.log(), "word of the hang-up")
    assert "RUNNING" in place.run("status").stdout
    (place.folder / "go").touch()
    assert "DONE" in place.ended(process).stdout
    assert "was removed, and is written again" in place.log()
    assert all(STAMPED.match(line) for line in place.log().splitlines())
