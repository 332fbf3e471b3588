"""Programs that tests need, installed from Debian's packages on a machine where that is ours to do."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.engines.errors import EngineError

INSTALL_SECONDS_MAX = 240
# Where servers are that no user's PATH names.
_SEARCH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def ensure_programs(programs: Collection[str], *, packages: Collection[str]) -> dict[str, str]:
    """The paths of programs by their names, installed first where one is missing and we are root."""
    with nobody_installing():
        found = _found(programs)
    if len(found) < len(programs):
        with one_at_a_time():
            # Another worker may have installed them while this one waited.
            if len(_found(programs)) < len(programs):
                _install(programs, packages)
        found = _found(programs)
    missing = sorted(set(programs) - set(found))
    if missing:
        raise EngineError(f"{', '.join(packages)} were installed, and have no {', '.join(missing)}")
    return found


def ensure_package(package: str, *, files: str) -> list[Path]:
    """The files of a package by their pattern, installed first where there is none and we are root."""
    with nobody_installing():
        found = sorted(Path("/").glob(files.lstrip("/")))
    if not found:
        with one_at_a_time():
            _install([], [package])
        found = sorted(Path("/").glob(files.lstrip("/")))
    if not found:
        raise EngineError(f"{package} was installed, and has no {files}")
    return found


def _found(programs: Collection[str]) -> dict[str, str]:
    places = {name: shutil.which(name, path=_SEARCH) for name in programs}
    return {name: place for name, place in places.items() if place is not None}


def _install(programs: Collection[str], packages: Collection[str]) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        wanted = ", ".join(sorted(set(programs) - set(_found(programs))) or packages)
        raise EngineError(f"these tests need {wanted}: install them (on Debian: apt-get install {' '.join(packages)})")
    apt_get("update", "-qq")
    with _nothing_started():
        apt_get("install", "-qq", "-y", "--no-install-recommends", *packages)


@contextlib.contextmanager
def _nothing_started() -> Iterator[None]:
    """Packages of servers start them when they are installed, unless this program says no."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for other workers that install something, or look."""
    with _lock(fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def nobody_installing() -> Iterator[None]:
    """Look while no other worker installs anything: a program is there before its package is set up, users and all."""
    with _lock(fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def _lock(kind: int) -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / f"pilotage-tests-install-{os.geteuid()}.lock").open("a") as lock:
        fcntl.flock(lock, kind)
        yield


def apt_get(*arguments: str) -> None:
    """Call apt-get, which waits for others; raises `EngineError` with what it says."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-o", f"DPkg::Lock::Timeout={INSTALL_SECONDS_MAX}", *arguments]
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise EngineError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
