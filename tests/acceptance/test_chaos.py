"""Three hundred packages that misbehave at first come through a storm in which service and agents are killed all the time.

`CHAOS_PACKAGES`, `CHAOS_KILLS` and `CHAOS_SEED` make it longer, harder, or another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.chaos import PROGRAM, Job, Storm, environment

PACKAGES = int(os.environ.get("CHAOS_PACKAGES", "300"))
KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
SECONDS_MAX = 60.0 + PACKAGES * 0.5 + KILLS * 6.0


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    storm = Storm(tmp_path, chance=random.Random(SEED))
    yield storm
    storm.end()


def tell(text: str) -> None:
    """Say what happened, for who reads why it failed."""
    sys.stdout.write(f"{text}\n")


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(PROGRAM), *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


@pytest.mark.timeout(2 * SECONDS_MAX)
def test_a_job_comes_through_a_storm_with_one_grant_and_one_result_for_each_package(storm: Storm) -> None:
    folder = storm.folder
    job = Job(folder, packages=PACKAGES, chance=random.Random(SEED))
    before = {path.name for path in folder.iterdir()}
    storm.begin_service()
    storm.await_service()
    name = run(folder, "submit").strip()
    began = time.monotonic()
    storm.rage(kills=KILLS, seconds=SECONDS_MAX)
    (folder / "calm").touch()
    raged = time.monotonic()
    run(folder, "attach", name)
    ended = time.monotonic()
    tell(f"seed {SEED}: {dict(storm.kills)}, {len(storm.spooled)} events seen on disks of agents")
    tell(f"a storm of {raged - began:.1f} s, and {ended - raged:.1f} s until all was done")

    # Nothing is left over, and nobody had to clear up.
    storm.wait_for(lambda: not storm.processes(), seconds=60, what=f"no process is left: {storm.processes()}")
    storm.wait_for(lambda: not storm.left_over(), seconds=60, what="no file is left in the state folder")
    storm.stop_service()
    assert storm.left_over() == []
    assert "Traceback" not in (folder / "service.log").read_text()

    # Every fault took place, and every result is there once, as it must be.
    assert {path.name for path in (folder / "tried").iterdir()} == job.misbehaving
    results = job.results()
    expected = {*before, *results, "calm", "service.log", ".pilotage"}
    assert {path.name for path in folder.iterdir()} == expected
    assert {result: (folder / result).read_text() for result in results} == results

    with closing(sqlite3.connect(folder / ".pilotage" / "book.sqlite")) as book:
        check_grants(book, folder, job)
        check_streams(book, storm)
    run(folder, "book", "check")


def check_grants(book: sqlite3.Connection, folder: Path, job: Job) -> None:
    """Exactly one grant for each package, to an attempt whose manifest is what was published."""
    grants = book.execute("SELECT stage, line, number, attempt FROM events WHERE type = 'CommitGranted'").fetchall()
    assert len(grants) == len({grant[:3] for grant in grants}) == job.packages
    told: dict[Any, Any] = {}
    reasons: Counter[str] = Counter()
    for *ref, data in book.execute(
        "SELECT stage, line, number, attempt, data FROM events WHERE type = 'AttemptFinished'"
    ):
        end = json.loads(data)
        reasons[end.get("reason", "success")] += 1
        if end.get("manifest"):
            told[tuple(ref)] = end["manifest"]
    tell(f"ends of attempts: {dict(reasons)}")
    published = [file for grant in grants for file in told[grant]]
    assert sorted(file["name"] for file in published) == sorted(job.results())
    for file in published:
        content = (folder / file["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size_bytes"], file["sha256"])


def check_streams(book: sqlite3.Connection, storm: Storm) -> None:
    """What agents had on their disks is in the book, and no stream has a hole."""
    streams = book.execute("SELECT stream_id, stream, watermark, ahead FROM streams WHERE source = 'agent'").fetchall()
    kept = {
        (stream, n, kind)
        for stream, n, kind in book.execute("SELECT stream, n, type FROM events JOIN streams USING (stream_id)")
    }
    for stream_id, stream, watermark, ahead in streams:
        numbers = [n for (n,) in book.execute("SELECT n FROM events WHERE stream_id = ? ORDER BY n", (stream_id,))]
        assert numbers == list(range(1, watermark + 1)), f"{stream}: {ahead}"
    assert {tuple(each) for each in storm.spooled} <= kept
    assert book.execute("SELECT count(*) FROM parked").fetchone() == (0,)
