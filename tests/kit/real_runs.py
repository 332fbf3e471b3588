"""The installed program, run in a folder: plainly, or among file systems of the test's own, which nobody else sees."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.processes import started_at
from pilotage.app.service.background import LOCK_FILE, end_agents, is_held, stop_service
from pilotage.model.settings.settings import JournalSettings, Settings
from pilotage.service.announcement import find_service
from tests.kit import waiting
from tests.kit.command_line import can_be_typed, typed
from tests.kit.process_batch import signal_tree

PROGRAM = Path(sys.executable).with_name("pilotage")
SECONDS_MAX = 90
UMASK = "022"

_AS_ROOT_THERE = [] if os.geteuid() == 0 else ["--map-root-user"]
_INTO = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
_IN_FOLDER = 'cd "$1" && umask "$2" && shift 2 && exec "$@"'


def end_service(state: Path) -> None:
    """End the service of a state folder as `pilotage serve --stop` does, without a program that is started for it."""
    stop_service(Settings(journal=JournalSettings(url=f"sqlite:{state}")))


def end_all(state: Path) -> None:
    """End the agents and the service of a state folder, whichever of them are left."""
    if find_service(state) is not None:
        end_agents(state)  # first: they have somebody to tell
        end_service(state)
    # Whoever was asked for meanwhile, or has lost its service, would try for long to tell it of its end.
    for record in (state / "pilots").glob("*.json"):
        wait_until(partial(_is_killed, record), f"the end of the agent of {record}")
    wait_until(lambda: not is_held(state / LOCK_FILE), "the end of a service that was about to end by itself")


def _is_killed(record: Path) -> bool:
    """Kill the agent of a record with everything that it runs, if it lives; whether it is gone."""
    with suppress(OSError, ValueError):
        said = json.loads(record.read_bytes())
        if is_held(record) and started_at(said["pid"]) == said["started"]:
            signal_tree(said["pid"], signal.SIGKILL)
    return not is_held(record)


class Mounts:
    """A mount namespace of a test's own: what is mounted in it is seen only by what is started in it, and goes with that."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Take the process that keeps it."""
        self._process = process
        self.prefix = ["nsenter", "--target", str(process.pid), "--mount", *_INTO]

    def mount(self, *words: str) -> None:
        """Call `mount` in there."""
        subprocess.run([*self.prefix, "mount", *words], check=True, capture_output=True)

    def small(self, folder: Path, size: str) -> None:
        """Mount a file system of a size on a folder, which is made; or change the size of the one that is there."""
        inside = self.seen(folder)
        if inside.is_dir() and inside.stat().st_dev != inside.parent.stat().st_dev:
            self.mount("-o", f"remount,size={size}", str(folder))
            return
        for missing in [each for each in (*reversed(inside.parents), inside) if not each.is_dir()]:
            missing.mkdir(mode=0o700)  # it may be a state folder, or within one
        self.mount("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder))

    def seen(self, path: Path) -> Path:
        """A path of there, as it is reached from here."""
        return Path(f"/proc/{self._process.pid}/root{path}")


@contextmanager
def own_mounts() -> Iterator[Mounts]:
    """A mount namespace as long as the block runs; the test is skipped where the system allows none."""
    process = subprocess.Popen(
        ["unshare", "--mount", *_AS_ROOT_THERE, "sh", "-c", "echo ready; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"ready\n":
            said = process.communicate()[1].decode("utf-8", "replace").strip()
            pytest.skip(f"privilege: no mount namespace of one's own here: {said}")
        mounts = Mounts(process)
        tried = subprocess.run(
            [*mounts.prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            pytest.skip(f"privilege: no file system of one's own here: {tried.stderr.strip()}")
        subprocess.run([*mounts.prefix, "umount", "/mnt"], check=True)
        yield mounts
    finally:
        process.communicate()


class Place:
    """A folder and how the program is called in it."""

    def __init__(
        self, folder: Path, *, mounts: Mounts | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Take the folder, which must be there; `environment` is added to what every call gets."""
        if not PROGRAM.exists():
            pytest.skip("the program pilotage: install the project into this environment")
        self.folder = folder
        self.umask = UMASK
        self._begun: list[subprocess.Popen[str]] = []
        self.state = folder / ".pilotage"
        self.mounts = mounts
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
        self.environment = kept | {"NO_COLOR": "1", "COLUMNS": "100"} | dict(environment or {})

    def state_at(self, state: Path) -> None:
        """Keep the state in another folder from now on."""
        self.state = state
        self.environment["PILOTAGE_JOURNAL_URL"] = f"sqlite:{state}"

    def seen(self, path: Path | str) -> Path:
        """A path, below the folder where it is not absolute, as it is reached from here."""
        return (self.mounts.seen if self.mounts is not None else Path)(self.folder / path)

    def document(self, text: str) -> None:
        """Write the document of the folder."""
        self.seen("pilotage.yaml").write_text(text)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program."""
        prefix = self.mounts.prefix if self.mounts is not None else []
        process = subprocess.Popen(
            [*prefix, "sh", "-c", _IN_FOLDER, "sh", str(self.folder), self.umask, str(PROGRAM), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._begun.append(process)
        return process

    def ended(self, process: subprocess.Popen[str], *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Wait for its end, which must have this exit code."""
        try:
            stdout, stderr = process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            pytest.fail(f"it did not end:\n{stdout}{stderr}{self.log()}")
        assert "Traceback" not in stderr
        assert process.returncode == code, (stdout, stderr, self.log())
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the program to its end: in this process where that comes to the same, and costs less."""
        plain = self.mounts is None and self.umask == UMASK
        if not plain or not can_be_typed(arguments, self.environment):
            return self.ended(self.begin(*arguments), code=code)
        done = typed(arguments, folder=self.folder, environment=self.environment)
        assert done.returncode == code, (done.stdout, done.stderr, self.log())
        return done

    def told(self, *arguments: str, code: int = 0) -> Any:
        """What the program tells other programs."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def log(self) -> str:
        """The end of what its service logged."""
        file = self.seen(self.state / "service.log")
        return file.read_text()[-4000:] if file.exists() else ""

    def close(self) -> None:
        """End the service and the agents that were started here, after whoever would start them again."""
        for process in self._begun:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self._begun.clear()
        end_all(self.seen(self.state))


@contextmanager
def place_in(
    folder: Path, *, mounts: Mounts | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Place]:
    """A folder to run the program in; nothing of it runs any more after the block."""
    place = Place(folder, mounts=mounts, environment=environment)
    try:
        yield place
    finally:
        place.close()


def wait_until(holds: Callable[[], object], what: str, *, seconds: float = SECONDS_MAX) -> None:
    """Wait for something to become true; the test fails with `what` where it does not."""
    waiting.wait_until(holds, lambda: f"waited {seconds:g} s for: {what}", seconds=seconds)


def own_seconds() -> str:
    """Seconds to sleep, many, by which what a test began is known from whatever else runs here."""
    return str(10**9 + secrets.randbelow(10**9))


def processes_with(*words: str) -> list[int]:
    """The processes whose command line or environment has these words; at least one of them is the test's own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            except OSError:
                continue
            if all(word.encode() in text for word in words):
                found.append(int(entry.name))
    return found


def size_bytes(folder: Path) -> int:
    """How much a folder holds."""
    return sum(path.lstat().st_size for path in folder.rglob("*"))
