"""A real service on a book of a test: in this process for single requests, or as a process of its own to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.model.settings.settings import ServiceSettings, Settings
from pilotage.ports import Journal
from pilotage.reading.access import Access, Principal, digest_of, local_principal
from pilotage.service.announcement import Announcement
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.listener import Listener, bind, url_of
from pilotage.service.http.services import Services

TOKEN = "a-token-for-tests-only"
START_SECONDS = 60.0


class WallClock:
    """The time of this machine."""

    def now(self) -> float:
        return time.time()


def event(n: int, kind: str, data: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An event as it travels, of the source `service` unless said otherwise."""
    plain = {"source": "service", "stream": "test", "n": n, "type": kind, "time": 1_700_000_000.0 + n}
    return {**plain, "data": dict(data or {}), **more}


def registered(n: int, job: str, *, owner: str = "ann", **more: Any) -> dict[str, Any]:
    """The registration of a job of one stage: two lines of two packages, of the activities `reco` and `merge`."""
    stages = [{"items": 2, "templates": [{"lines": 1, "activities": ["reco", "merge"]}]}]
    return event(n, "JobRegistered", {"owner": owner, "name": f"name-{job}", "stages": stages}, job=job, **more)


def access_of(principals: Mapping[str, Principal] | None = None) -> Access:
    """Principals by their tokens; without any, one local user who may do everything."""
    known = principals if principals is not None else {TOKEN: local_principal("ann")}
    return Access({digest_of(token): principal for token, principal in known.items()})


@contextmanager
def sqlite_journal(folder: Path) -> Iterator[Journal]:
    """The SQLite journal of a folder, closed at the end."""
    journal = SqliteJournal(folder)
    try:
        yield journal
    finally:
        journal.close()


@contextmanager
def listening(services: Services) -> Iterator[str]:
    """A service that listens in a thread of this process; its base URL."""
    bound = bind("127.0.0.1", 0)
    started = threading.Event()
    listener = Listener(make_dispatcher(services), bound=bound, started=started.set, stopping=services.commits.stop)
    thread = threading.Thread(target=listener.listen)
    thread.start()
    try:
        assert started.wait(START_SECONDS)
        yield url_of(bound)
    finally:
        listener.should_exit = True
        thread.join()
        bound.close()


class ServedBook:
    """A service that runs as a process of its own on the SQLite book of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(self.ended()[1])
        self.url = msgspec.json.decode(line, type=Announcement).url
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self.ended()

    def terminate(self) -> tuple[int, str]:
        """Ask it to stop; its exit code and what it wrote to stderr."""
        self._process.terminate()
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for its end."""
        _, stderr = self._process.communicate(timeout=START_SECONDS)
        return self._process.returncode, stderr.decode()


@contextmanager
def served_book(folder: Path) -> Iterator[ServedBook]:
    """A service as a process of its own, which has ended when the block does."""
    served = ServedBook(folder)
    try:
        yield served
    finally:
        if served._process.poll() is None:
            served.kill()


class Nursery:
    """A process that has imported everything and forks services on one folder and port: a restart costs next to nothing."""

    def __init__(self, folder: Path, *, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(folder), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._service = 0

    def start(self) -> None:
        """Start a service; it answers when this returns."""
        self._say(b"start\n")
        self._service = msgspec.json.decode(self._heard(), type=Announcement).pid

    def kill(self) -> None:
        """Kill the service with no warning; it is gone when this returns."""
        os.kill(self._service, signal.SIGKILL)
        self._service = 0
        assert int(self._heard()) == -signal.SIGKILL

    def terminate(self) -> None:
        """Ask the service to stop, which it does in good order."""
        os.kill(self._service, signal.SIGTERM)
        self._service = 0
        assert int(self._heard()) == 0

    def close(self) -> None:
        """End the nursery, and a service that a failed test left behind."""
        if self._service:
            os.kill(self._service, signal.SIGKILL)
        self._process.communicate(timeout=START_SECONDS)

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _heard(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def nursery(folder: Path, *, port: int) -> Iterator[Nursery]:
    """A nursery that has ended, with all its services, when the block does."""
    made = Nursery(folder, port=port)
    try:
        yield made
    finally:
        made.close()


def serve_folder(folder: Path, *, port: int) -> None:
    """Serve the book of a folder, and say where."""
    from pilotage.service.server import serve

    serve(
        settings=Settings(service=ServiceSettings(port=port)),
        state_folder=folder,
        open_journal=lambda: SqliteJournal(folder),
        access=access_of(),
        token_file=folder / "token",
        clock=WallClock(),
        started=lambda announcement: _tell(msgspec.json.encode(announcement).decode()),
    )


def fork_services(folder: Path, *, port: int) -> None:
    """Fork a service for each line that comes in, and tell how it ended."""
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            serve_folder(folder, port=port)
            os._exit(0)
        _tell(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        fork_services(Path(sys.argv[1]), port=int(sys.argv[2]))
    else:
        serve_folder(Path(sys.argv[1]), port=0)
