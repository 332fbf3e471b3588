"""A state folder that is deleted under an unfinished job: nothing lives on without it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pilotage.service.announcement import find_service
from tests.kit.real_runs import place_in, processes_with, wait_until

DOCUMENT = """
pilotage: 1
job: endless
stages:
  - each: {n: 1..8}
    shell: "touch $PILOTAGE_FOLDER/begun; sleep 600"
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_service_whose_state_folder_was_deleted_ends_with_its_agents(tmp_path: Path) -> None:
    with place_in(tmp_path) as place:
        place.document(DOCUMENT)
        place.run("run", "--slots", "2", "--detach")
        wait_until((tmp_path / "begun").exists, "the first package")
        found = find_service(place.state)
        assert found is not None
        log = (place.state / "service.log").open()
        shutil.rmtree(place.state, ignore_errors=True)  # what is made in between stays
        shutil.rmtree(place.state, ignore_errors=True)
        wait_until(lambda: not is_there(found.pid), "the end of the service")
        wait_until(lambda: not processes_with(str(place.state)), "the end of its agents and of what they ran")
        with log:
            said = log.read()
        assert "service.json was removed, or another service took it over" in said
