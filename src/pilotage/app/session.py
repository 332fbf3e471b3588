"""The service that runs the jobs of a folder: the one that is there, or one that is started for them in the background.

It starts while the document is read: what takes longest begins first. A service that was started for a run is marked so,
and ends with it; one that somebody started by hand is only asked.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.journals.network_folders import network_kind
from pilotage.adapters.settings_files import STATE_FOLDER, load_settings, state_folder
from pilotage.agent.sweeping import started_at
from pilotage.app.background import START_SECONDS, start_in_background, stop_service
from pilotage.app.book import state_folders
from pilotage.client import Server, ServerRefused, ServerUnreachable
from pilotage.client.finding import Address, address_in
from pilotage.client.jobs import Jobs
from pilotage.client.server import ANSWER_SECONDS, Parameters, path_of
from pilotage.model.configuration import Settings
from pilotage.model.errors import PilotageError
from pilotage.model.operations import Hold, Release
from pilotage.service.announcement import SERVICE_FILE, Announcement, find_service

MARK_FILE = "embedded.json"
"""In the state folder: which service was started for a run, and not by hand."""
STOPPED_FILE = "stopped.json"
"""In the state folder: which job is held because its run was stopped, and for no other reason."""
STOP_SECONDS = 15.0
"""How long a service that is to end is waited for; in good order it takes less than one."""
STOPPED = "its run was stopped; the same command goes on with it"
IDLE_SECONDS = 600
"""A service that was started for a run ends by itself after so long with nothing to do and nobody who asks."""
LOCK_FILE = "book.lock"
"""In the state folder: locked by whoever writes the book, also before it answers."""
AGENTS_SECONDS = 20.0
LOOK_SECONDS = 0.02
INSIDE_VARIABLE = "PILOTAGE_SCRATCH"
"""Set for the programs of a package: what they run is no business of the service that runs them."""


class _Mark(msgspec.Struct, frozen=True):
    pid: int


class _Stopped(msgspec.Struct, frozen=True):
    job: str


class _Pilot(msgspec.Struct, frozen=True):
    pid: int
    started: Any  # by the clock of the system, which tells a process from a later one of the same number


class OnlyTheBook(PilotageError):
    """The service of the folder runs nothing: stop it, and run again."""


class Session:
    """The service of one folder, from its finding or starting to its end."""

    def __init__(self, folder: Path, *, slots: int | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Look for a service; where none runs, begin to start one, and do not wait for it."""
        self.folder = folder
        self._environment = os.environ if environment is None else environment
        self._slots = slots
        self._starting: threading.Thread | None = None
        self._failure: Exception | None = None
        self.state = self._running_folder()
        self.started = self.state is None
        if self.state is None:
            self.state = state_folder(self._load_settings(folder), folder=folder).absolute()
            self._starting = threading.Thread(target=self._start, name="start-service", daemon=True)
            self._starting.start()

    @property
    def was_there(self) -> bool:
        """Whether the service was there before, with its own slots."""
        return not self.started

    @property
    def network(self) -> str:
        """The kind of the network file system that the state folder is on; nothing where it is on none."""
        assert self.state is not None
        return network_kind(self.state)

    def server(self, *, answer_seconds: float = ANSWER_SECONDS) -> Server:
        """A connection, once the service answers; one that has died is started again. Raises what kept it from it."""
        self._await_start()
        address = self._address()
        if address is None or not address.runs:
            self._restart()
            address = self._address()
        if address is None or not address.runs:
            raise ServerUnreachable("the service of this folder does not run", subject=str(self.state))
        self._refuse_book_only()
        return Server(
            address.url,
            token=address.token_source(),
            start_hint="see its log: service.log",
            answer_seconds=answer_seconds,
        )

    def is_embedded(self) -> bool:
        """Whether the service was started for a run, this one or another, and may be ended with it."""
        assert self.state is not None
        found = find_service(self.state)
        try:
            mark = msgspec.json.decode((self.state / MARK_FILE).read_bytes(), type=_Mark)
        except (OSError, msgspec.DecodeError):
            return False
        return found is not None and found.pid == mark.pid

    def _was_embedded(self) -> bool:
        """Whether the service that was here last, by what it said of itself, was started for a run."""
        assert self.state is not None
        try:
            mark = msgspec.json.decode((self.state / MARK_FILE).read_bytes(), type=_Mark)
            last = msgspec.json.decode((self.state / SERVICE_FILE).read_bytes(), type=Announcement)
        except (OSError, msgspec.DecodeError):
            return False
        return last.pid == mark.pid

    def stop(self, job: str = "") -> bool:
        """End the service in good order, and the agents that it started; everything can go on later. Whether all ended.

        A job is held first: then nothing of it is started while its agents end, and they can still say what became of
        their work, so that it goes on at once when it is asked for again. A service that does not answer is not waited
        for longer than this takes otherwise.
        """
        with suppress(PilotageError):
            self._await_start()
        assert self.state is not None
        if job:
            with suppress(PilotageError), self.server(answer_seconds=STOP_SECONDS) as server:
                Jobs(server).operate(Hold(job=job, message=STOPPED))
                _write_whole(self.state / STOPPED_FILE, msgspec.json.encode(_Stopped(job)))
            end_agents(self.state)
        with suppress(PilotageError):  # it has ended by itself, or does not end, which is looked at below
            stop_service(self._settings(), patience_seconds=STOP_SECONDS)
        return end_agents(self.state) and find_service(self.state) is None

    def has_other_work(self, job: str = "") -> bool:
        """Whether the service has jobs beside this one that are not over."""
        asked: Parameters = {"query": "state in (SUBMITTED, WAITING, READY, SCHEDULED, RUNNING)", "limit": 2}
        assert self.state is not None
        try:
            with self.server(answer_seconds=STOP_SECONDS) as server:
                return any(each["id"] != job for each in server.get(path_of("jobs"), asked)["jobs"])
        except PilotageError:
            # Who lives and does not answer may have any work, unless it was started for this run alone.
            return find_service(self.state) is not None and not self.started

    def give_up(self) -> None:
        """Nothing will be run: a service that was started for it ends, unless another command found it meanwhile."""
        if self.started and not self.has_other_work():
            self.stop()

    def go_on(self, job: str) -> None:
        """Release a job that was held only because its run was stopped."""
        assert self.state is not None
        file = self.state / STOPPED_FILE
        try:
            stopped = msgspec.json.decode(file.read_bytes(), type=_Stopped)
        except (OSError, msgspec.DecodeError):
            return
        if stopped.job == job:
            with self.server() as server, suppress(ServerRefused):
                Jobs(server).operate(Release(job=job))
            file.unlink(missing_ok=True)

    # --- finding ---

    def _running_folder(self) -> Path | None:
        """The state folder of a service that runs here or above."""
        for folder in _state_paths(self.folder, self._environment):
            address = address_in(folder)
            if address is not None and address.runs:
                return folder
        return None

    def _address(self) -> Address | None:
        assert self.state is not None
        return address_in(self.state)

    def _refuse_book_only(self) -> None:
        assert self.state is not None
        found = find_service(self.state)
        if found is not None and not found.socket:
            raise OnlyTheBook(
                "the service of this folder keeps the book, and runs nothing",
                subject=str(self.state),
                next_step="stop it with `pilotage serve --stop`, and run again",
            )

    # --- starting ---

    def _load_settings(self, folder: Path) -> Settings:
        return load_settings(environment=self._environment, folder=folder, flags={})

    def _home(self) -> Path:
        """The folder in which the service is, or would be, started: this one, or that of the service that was found."""
        assert self.state is not None
        return self.state.parent if not self.started and self.state.name == STATE_FOLDER else self.folder

    def _settings(self) -> Settings:
        """The settings by which the service is started, and found again."""
        return self._load_settings(self._home())

    def _start(self) -> None:
        words = ["--port", "0", "--until-idle", str(IDLE_SECONDS)]
        if self._slots is not None:
            words += ["--slots", str(self._slots)]
        try:
            self._mark(start_in_background(self._settings(), words, folder=self._home()))
        except Exception as failure:  # noqa: BLE001 # raised again by who waits for it
            self._failure = failure

    def _mark(self, announcement: Announcement) -> None:
        assert self.state is not None
        _write_whole(self.state / MARK_FILE, msgspec.json.encode(_Mark(announcement.pid)))

    def _await_start(self) -> None:
        thread = self._starting
        if thread is None:
            return
        self._make_agent()
        while thread.is_alive():
            thread.join(timeout=1.0)  # with a time, so that a signal is heard
        self._starting = None
        self._raise_failure()

    def _make_agent(self) -> None:
        """Make the agent's archive, which the service would make: it has enough to do, and this process only waits."""
        from pilotage.adapters.sites.zipapp import build
        from pilotage.model.version import VERSION

        assert self.state is not None
        with suppress(OSError):  # the service says what is wrong with its folder
            build(self.state / f"agent-{VERSION}.pyz")

    def _somebody_else_started(self) -> bool:
        """Whether another command starts a service here at the same moment; returns when that answers, or is gone."""
        assert self.state is not None
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if find_service(self.state) is not None:
                self.started = False
                return True
            if not _is_held(self.state / LOCK_FILE):
                return False
            time.sleep(LOOK_SECONDS)
        return False

    def _restart(self) -> None:
        """Start the service again that was started for a run, this one or another, and is gone."""
        if not self.started and not self._was_embedded():
            return
        self._failure = None
        self._start()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise what kept the service from starting, unless it was another command that started one."""
        if self._failure is not None and not self._somebody_else_started():
            raise self._failure


def running_service(folder: Path, *, environment: Mapping[str, str] | None = None) -> Server | None:
    """A connection to the service that runs the jobs of a folder, if one does; none is started."""
    for path in _state_paths(folder, os.environ if environment is None else environment):
        address, found = address_in(path), find_service(path)
        if address is not None and address.runs and found is not None and found.socket:
            return address.server()
    return None


def _state_paths(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The state folders that concern a folder, its own first; of a package's program, its own only."""
    for found in state_folders(environment=environment, folder=folder):
        yield found.path
        if INSIDE_VARIABLE in environment:
            return


def _write_whole(file: Path, content: bytes) -> None:
    """Write a small file so that nobody sees half of it."""
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(file)


def end_agents(state: Path) -> bool:
    """End the agents of this computer that the service of a folder left behind; each ends what it runs. Whether all did."""
    left = sorted((state / "pilots").glob("*.json"))
    for record in left:
        _terminate(record)
    until = time.monotonic() + AGENTS_SECONDS
    while any(map(_is_held, left)):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _terminate(record: Path) -> None:
    """Tell the agent of a record to end, if it lives and its process is still the one that was started."""
    with suppress(OSError, msgspec.DecodeError):
        pilot = msgspec.json.decode(record.read_bytes(), type=_Pilot)
        if _is_held(record) and started_at(pilot.pid) == pilot.started:
            os.kill(pilot.pid, signal.SIGTERM)


def _is_held(record: Path) -> bool:
    """Whether somebody holds the lock of a file: an agent that of its record, as long as it lives."""
    try:
        with record.open("rb") as stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
