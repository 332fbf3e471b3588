"""Early start: a package follows a file that another one is still writing, at the same site."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in, wait_until

# Each writes a line when the test lets it, and the first attempt of the producer may be told to fail.
PRODUCER = """\
import os, pathlib, sys, time
there = pathlib.Path(os.environ["PILOTAGE_FOLDER"])
attempt = os.environ["PILOTAGE_ATTEMPT"]
with open("grown.dat", "a") as file:
    for number in range(1, 4):
        while not (there / f"go-{attempt}-{number}").exists():
            time.sleep(0.02)
        if (there / f"fail-{attempt}").exists():
            sys.exit(3)
        file.write(f"line {number}\\n")
        file.flush()
"""
FOLLOWER = """\
import json, os, pathlib, time
there = pathlib.Path(os.environ["PILOTAGE_FOLDER"])
known = 0
while True:
    said = json.loads(pathlib.Path("grown.dat.pilotage").read_text())
    with open("grown.dat", "rb") as file:
        lines = file.read(said["bytes"]).count(b"\\n")
    for number in range(known + 1, lines + 1):
        (there / f"seen-{os.environ['PILOTAGE_ATTEMPT']}-{number}").write_text(json.dumps(said))
    known = lines
    if said["final"]:
        break
    time.sleep(0.02)
with open("counted.txt", "w") as file:
    file.write(f"{known} lines, {said['bytes']} bytes, {said['sha256']}\\n")
"""
DOCUMENT = """\
pilotage: 1
job: early
stages:
  - name: make
    run: python3 producer.py
    outputs: [grown.dat]
    retry: {attempts_max: 3}
  - name: count
    lines:
      - early_start: true
        packages:
          - run: python3 follower.py
            inputs: [grown.dat]
            outputs: ["*.txt"]
"""
LINES = "line 1\nline 2\nline 3\n"
COUNTED = f"3 lines, {len(LINES)} bytes, {sha256(LINES.encode()).hexdigest()}\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as made:
        (tmp_path / "producer.py").write_text(PRODUCER)
        (tmp_path / "follower.py").write_text(FOLLOWER)
        made.document(DOCUMENT)
        yield made


def let(place: Place, attempt: int, *lines: int) -> None:
    """Let an attempt of the producer write these lines."""
    for line in lines:
        (place.folder / f"go-{attempt}-{line}").touch()


def seen(place: Place, attempt: int, line: int) -> dict[str, object]:
    """What an attempt of the follower was told when it saw a line, which is waited for."""
    marker = place.folder / f"seen-{attempt}-{line}"
    wait_until(lambda: marker.exists() and marker.read_text(), f"line {line} at attempt {attempt}: {place.log()}")
    said: dict[str, object] = json.loads(marker.read_text())
    return said


def begun(place: Place, *more: str) -> subprocess.Popen[str]:
    return place.begin("run", "--slots", "2", *more)


def test_a_package_follows_what_another_one_writes_and_ends_after_it(place: Place) -> None:
    process = begun(place)
    let(place, 1, 1)
    assert seen(place, 1, 1) == {"bytes": 7, "final": False}
    assert not (place.folder / "counted.txt").exists()
    let(place, 1, 2)
    assert seen(place, 1, 2) == {"bytes": 14, "final": False}
    let(place, 1, 3)
    done = place.ended(process)
    assert (place.folder / "grown.dat").read_text() == LINES
    assert (place.folder / "counted.txt").read_text() == COUNTED
    assert "left behind" not in done.stdout + done.stderr


def test_one_that_read_from_an_attempt_that_failed_is_discarded_and_runs_again(place: Place) -> None:
    process = begun(place)
    let(place, 1, 1)
    seen(place, 1, 1)
    (place.folder / "fail-1").touch()
    let(place, 1, 2)
    let(place, 2, 1)
    seen(place, 2, 1)  # the second attempts of both
    let(place, 2, 2, 3)
    place.ended(process)
    assert (place.folder / "counted.txt").read_text() == COUNTED
    [job] = place.told("query", "--jobs", "all")["jobs"]
    assert job["state"] == "DONE"


def test_a_package_that_starts_when_its_input_is_complete_is_told_so(place: Place) -> None:
    let(place, 1, 1, 2, 3)
    place.ended(place.begin("run", "--slots", "1"))
    assert (place.folder / "counted.txt").read_text() == COUNTED
    said = json.loads((place.folder / "seen-1-3").read_text())
    assert said["final"] is True
