"""A workplace of an agent in a test's own folder, and short ways to run attempts in it."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pilotage.agent.attempt.attempt import AttemptRunner, Outcome
from pilotage.agent.attempt.files import MARK_FILE
from pilotage.agent.attempt.workplace import Workplace
from pilotage.model.events.payloads import AttemptFinished
from pilotage.model.exchange.exchange import Assignment, AttemptRef, LogText, Work

DEADLINE_SECONDS = 60.0
MARK = "a mark of this service"


class FolderFetch:
    """A server that is a folder: `content/SHA`, `files/NAME`, `cached/NAME`, and what is staged through it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.brought: list[Mapping[str, int]] = []  # what was asked for together

    def bring(self, sizes: Mapping[str, int]) -> None:
        self.brought.append(sizes)

    def content(self, sha256: str) -> str:
        path = self._folder / "content" / sha256
        if not path.exists():
            raise OSError(f"no content {sha256}")
        return str(path)

    def put_content(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        (self._folder / "content").mkdir(parents=True, exist_ok=True)
        path = self._folder / "content" / sha256
        path.write_bytes(content)
        path.chmod(0o555)
        return sha256

    def cached(self, name: str, sha256: str) -> str | None:
        path = self._folder / "cached" / name
        return str(path) if path.exists() else None

    def cached_here(self, name: str) -> str | None:
        return None

    def file(self, job: str, name: str) -> str | None:
        path = self._folder / "files" / name
        if not path.exists():
            return None
        copy = self._folder / "fetched"
        copy.write_bytes(path.read_bytes())
        return str(copy)

    def stage(self, ref: Mapping[str, object], number: int, path: str) -> None:
        staged = self._folder / "staged" / f"{ref['package']}-{ref['attempt']}-{number}"
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(Path(path).read_bytes())


class Place:
    """A job's folder, a slot, and what became of the last attempt in it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.root = folder
        self.folder = folder / "job"
        self.folder.mkdir()
        self.staged = folder / "staged"
        self.fetch = FolderFetch(folder / "server")
        pilot = f"p.{os.getpid()}"  # marks of its own: another process of the tests ends what carries the same
        defaults: dict[str, Any] = {"grace_seconds": 0.2, "look_seconds": 0.02, "node": "here", "pilot": pilot}
        self.workplace = Workplace(scratch=str(folder / "scratch"), **{**defaults, **settings})
        self.runner = AttemptRunner(self.workplace, 1)
        self.phases: list[str] = []
        self.attempt = 0

    def run(self, *argv: str, binary: Mapping[str, Any] | None = None, **said: Any) -> Outcome:
        """Run one command; `demand` goes into the assignment, `token` is shown to it, the rest goes into the work."""
        binaries = said.pop("binaries", [{"argv": list(argv), **(binary or {})}])
        return self.run_work({"binaries": binaries, **said})

    def shell(self, script: str, **said: Any) -> Outcome:
        """Run a script of a shell."""
        return self.run("/bin/sh", "-c", script, **said)

    def run_work(self, said: dict[str, Any]) -> Outcome:
        self.attempt += 1
        said = dict(said)
        demand, token = said.pop("demand", {}), said.pop("token", "")
        assignment = {"ref": {"job": "j1", "package": "1.1.1", "attempt": self.attempt}, "demand": demand}
        work = {
            "path": "r/001/001/001", "name": "r", "index": 0, "folder": str(self.folder), "staged": str(self.staged),
            **self.marks(), **said,
        }  # fmt: skip
        msgspec.convert(assignment, Assignment, strict=True)
        msgspec.convert(work, Work, strict=True)
        outcome = self.runner.run(
            assignment, work, on_phase=lambda phase, _: self.phases.append(phase), fetch=self.fetch, token=token
        )
        # What is told must be what the book takes.
        msgspec.convert(outcome.payload, AttemptFinished, strict=True)
        ref = AttemptRef("j1", "1.1.1", self.attempt)
        for log in outcome.logs:
            msgspec.convert({**log, "ref": msgspec.to_builtins(ref)}, LogText, strict=True)
        return outcome

    def marks(self) -> dict[str, str]:
        """Mark the folders, where the job's is there, as a service does; what a work says of it."""
        for each in (self.folder / ".pilotage-staged", self.staged):
            if self.folder.is_dir():
                each.mkdir(exist_ok=True)
                (each / MARK_FILE).write_text(MARK)
        return {"mark": MARK, "folder_mark": f".pilotage-staged/{MARK_FILE}"}

    def staged_names(self) -> list[str]:
        """The names of the files that are staged."""
        return sorted(each.name for each in self.staged.iterdir() if each.name != MARK_FILE)

    def scratch_is_empty(self) -> bool:
        """Whether nothing of an attempt is left in the slot's folder."""
        return not any(each for folder in (self.root / "scratch").glob("slot-1") for each in folder.iterdir())

    def outputs(self, outcome: Outcome) -> dict[str, bytes]:
        """The staged files of an attempt, by their names."""
        files = {}
        for number, each in enumerate(outcome.payload["manifest"]):
            content = (self.staged / f"1.1.1-{self.attempt}-{number}").read_bytes()
            assert hashlib.sha256(content).hexdigest() == each["sha256"]
            assert len(content) == each["size_bytes"]
            files[each["name"]] = content
        return files

    def close(self) -> None:
        self.runner.close()
        self.workplace.close()


@contextmanager
def place_in(folder: Path, **settings: Any) -> Iterator[Place]:
    """A place that is closed at the end."""
    place = Place(folder, **settings)
    try:
        yield place
    finally:
        place.close()


def log_of(outcome: Outcome, stream: str = "stdout") -> str:
    """What an attempt wrote to a stream."""
    return next((log["head"] + log.get("tail", "") for log in outcome.logs if log["stream"] == stream), "")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does, up to a deadline."""
    until = time.monotonic() + DEADLINE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        pause.wait(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process lives; one that nobody has buried yet does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def pids_of(files: Sequence[Path]) -> list[int]:
    """The process ids that commands wrote down."""
    return [int(file.read_text()) for file in files]


def open_descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_for_program(pid: int, name: str) -> None:
    """Wait until a process has become a program and rests: in between, its memory and environment are of neither."""

    def rests() -> bool:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return Path(f"/proc/{pid}/comm").read_text().strip() == name and state == "S"

    wait_until(rests)
