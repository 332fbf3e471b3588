"""A service whose engine has died for a reason from outside: it ends by itself, says why, and the next one goes on."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from pilotage.service.announcement import find_service, why_ended
from tests.kit.real_runs import Place, place_in, wait_until

DOCUMENT = """
pilotage: 1
job: steps
stages:
  - each: {n: 1..4}
    shell: "touch $PILOTAGE_FOLDER/begun-{n}; while ! [ -e $PILOTAGE_FOLDER/go ]; do sleep 0.1; done; echo {n} > out-{n}.txt"
    outputs: ["out-{n}.txt"]
"""
ENDS_SECONDS = 60.0


def rename(place: Path, before: str, after: str) -> None:
    """What somebody does to a book who should not: its table is gone, or back."""
    with closing(sqlite3.connect(place / "book.sqlite", timeout=30)) as book:
        book.execute(f"ALTER TABLE {before} RENAME TO {after}")
        book.commit()


def break_service(place: Place) -> None:
    """Have the engine of a place end: it cannot write what it decides."""
    rename(place.state, "counters", "counters_elsewhere")
    (place.folder / "go").touch()
    begun = time.monotonic()
    wait_until(lambda: find_service(place.state) is None, "the end of the service")
    assert time.monotonic() - begun < ENDS_SECONDS
    rename(place.state, "counters_elsewhere", "counters")


def test_a_service_whose_engine_died_ends_says_why_and_the_run_goes_on(tmp_path: Path) -> None:
    with place_in(tmp_path) as place:
        place.document(DOCUMENT)
        place.run("run", "--slots", "2", "--detach")
        wait_until((tmp_path / "begun-1").exists, "the first package")
        break_service(place)
        log = (place.state / "service.log").read_text()
        assert "the engine stops" in log
        assert "the service stops, because it can no longer work: " in log
        assert "no such table" in why_ended(place.state)
        told = place.run("status")
        assert "the service stopped by itself: " in told.stdout
        assert "no such table" in told.stdout
        assert "pilotage attach" in told.stdout
        assert place.run("attach").returncode == 0
        assert sorted(path.name for path in tmp_path.glob("out-*")) == [f"out-{n}.txt" for n in range(1, 5)]
        assert why_ended(place.state) == ""
