"""The doctor before each fault for real: it names the hop that is broken, and what to do about it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.debian import ensure_package
from tests.engines.errors import EngineError
from tests.kit.pythons import pythons
from tests.kit.real_runs import Mounts, Place, own_mounts, place_in

OLD_PYTHONS = (8, 9, 10)
AN_HOUR = "+3600s"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with own_mounts() as mounts, place_in(tmp_path, mounts=mounts, environment={"PILOTAGE_SERVICE_PORT": "0"}) as place:
        yield place


def found(place: Place, hop: str, *, code: int = 1) -> dict[str, Any]:
    """What the doctor says of a hop; there must be a next step where something is wrong."""
    told = {each["hop"]: each for each in place.told("doctor", code=code)["findings"]}[hop]
    assert told["verdict"] == "ok" or told["next_step"]
    return dict(told)


def mounts_of(place: Place) -> Mounts:
    assert place.mounts is not None
    return place.mounts


def test_a_healthy_folder_is_well(place: Place) -> None:
    assert found(place, "state folder", code=0)["verdict"] == "ok"


def test_a_disk_without_space_is_named(place: Place) -> None:
    mounts_of(place).small(place.state, "1m")
    told = found(place, "state folder: space")
    assert (told["verdict"], "are free, and a job needs 64 MiB or more" in told["message"]) == ("bad", True)
    (place.seen(place.state) / "ballast").write_bytes(bytes(1 << 20))
    told = found(place, "state folder")
    assert (told["verdict"], "no space left on device" in told["message"]) == ("bad", True)


def test_a_folder_that_cannot_be_written_is_named(place: Place) -> None:
    mounts_of(place).mount("--bind", str(place.folder), str(place.folder))
    mounts_of(place).mount("-o", "remount,bind,ro", str(place.folder))
    told = found(place, "state folder")
    assert (told["verdict"], "read-only file system" in told["message"]) == ("bad", True)


def test_a_disk_that_starts_no_programs_is_named(place: Place) -> None:
    mounts_of(place).small(place.state, "256m")
    mounts_of(place).mount("-o", "remount,noexec", str(place.state))
    told = found(place, "state folder: programs")
    assert (told["verdict"], "noexec" in told["message"]) == ("bad", True)


def test_a_port_that_is_taken_is_named(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place.environment["PILOTAGE_SERVICE_PORT"] = str(port)
        told = found(place, "port")
    assert (told["verdict"], f"127.0.0.1:{port}" in told["message"]) == ("bad", True)
    assert "address already in use" in told["message"]


def test_a_clock_that_differs_from_the_file_system_is_named(place: Place) -> None:
    try:
        library = next(iter(ensure_package("libfaketime", files="/usr/lib/*/faketime/libfaketime.so.1")))
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    # The program lives an hour ahead; what the file system says is left as it is.
    place.environment |= {"LD_PRELOAD": str(library), "FAKETIME": AN_HOUR, "NO_FAKE_STAT": "1"}
    told = found(place, "state folder: clock")
    del place.environment["LD_PRELOAD"]
    assert (told["verdict"], "behind this computer" in told["message"]) == ("bad", True)
    assert 3500 < float(told["message"].split(" is ")[1].split(" s ")[0]) < 3700


# One that says it is old is on every computer.
PRETENDS = "import runpy, sys; sys.version_info = (3, 9, 1); runpy.run_module('pilotage', run_name='__main__')"


@pytest.mark.parametrize(
    "words", [*([each, "-m", "pilotage"] for each in pythons(OLD_PYTHONS)), [sys.executable, "-c", PRETENDS]], ids=str
)
def test_a_python_that_is_too_old_is_told_so_in_words(root: Path, tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run(
        [*words, "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "is too old: 3.11 or later is needed" in done.stderr
    assert "Traceback" not in done.stderr
