"""Finds the programs of PostgreSQL, and installs them on a machine where that is ours to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.engines.debian import apt_get, nobody_installing, one_at_a_time
from tests.engines.errors import EngineError

VERSION_MIN = 15
DEBIAN_FOLDER = Path("/usr/lib/postgresql")
# Debian's packages make and start a server when they are installed, unless told not to.
NO_CLUSTER = Path("/etc/postgresql-common/createcluster.d/pilotage-tests.conf")
NO_CLUSTER_TEXT = "create_main_cluster = false\nstart_conf = 'manual'\n"


def postgres_programs() -> Path:
    """The folder of `initdb`, `pg_ctl` and `postgres`, installed first when they are missing and we are root."""
    with nobody_installing():
        found = find_programs()
    if found is None:
        with one_at_a_time():
            # Another worker may have installed it while this one waited.
            found = find_programs()
            if found is None:
                _install()
                found = find_programs()
    if found is None:
        raise EngineError(f"PostgreSQL was installed, but no version {VERSION_MIN} or newer is on this machine")
    return found


def find_programs(*, debian: Path = DEBIAN_FOLDER, search: str | None = None) -> Path | None:
    """The newest PostgreSQL on this machine that is new enough: Debian's places first, then the PATH."""
    places = sorted(
        (int(folder.name), folder / "bin") for folder in debian.glob("*") if re.fullmatch(r"[0-9]+", folder.name)
    )
    for version, programs in reversed(places):
        if version >= VERSION_MIN and _complete(programs):
            return programs
    on_path = shutil.which("pg_ctl", path=search)
    if on_path and _complete(programs := Path(on_path).resolve().parent) and _version(programs) >= VERSION_MIN:
        return programs
    return None


def _complete(programs: Path) -> bool:
    return all((programs / name).is_file() for name in ("initdb", "pg_ctl", "postgres"))


def _version(programs: Path) -> int:
    told = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\) ([0-9]+)", told)
    return int(found[1]) if found else 0


def _install() -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise EngineError(
            f"these tests start a PostgreSQL server, and this machine has none of version {VERSION_MIN} or newer: "
            "install it (on Debian: apt-get install postgresql), no server need run"
        )
    made = not NO_CLUSTER.exists()
    NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
    NO_CLUSTER.write_text(NO_CLUSTER_TEXT)
    try:
        apt_get("update", "-qq")
        apt_get("install", "-qq", "-y", "--no-install-recommends", "postgresql")
    finally:
        if made:
            NO_CLUSTER.unlink(missing_ok=True)
