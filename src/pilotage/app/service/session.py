"""Finds the service that runs the jobs of a folder, or starts one in the background.

The start begins while the document is read: the slowest part first, and nothing is imported before that can wait. A
service started for a run is marked so, and ends with it; one started by hand is only used.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.journals.network_folders import network_kind
from pilotage.adapters.settings.settings_files import STATE_FOLDER, load_settings, state_folder
from pilotage.app.service.background import (
    LOCK_FILE,
    START_SECONDS,
    KilledAtStart,
    RestartLimit,
    StartingService,
    begin_in_background,
    end_agents,
    is_held,
    stop_service,
)
from pilotage.app.state_folder import state_folders
from pilotage.client.errors import ServerRefused, ServerUnreachable
from pilotage.client.finding import Address, address_in
from pilotage.model.errors import PilotageError
from pilotage.model.settings.settings import Settings
from pilotage.service.announcement import SERVICE_FILE, Announcement, find_service

if TYPE_CHECKING:
    from pilotage.client.jobs import Jobs
    from pilotage.client.server import Server


# Which commands use the service of a folder, and which job each shows: locks, which end with their processes.
#
# They are byte ranges of one file, however many jobs there are. A command that leaves first releases its lock and then
# tries to get an exclusive one: of several that leave at once, one finds that it was the last.

FOLLOWED_FILE = "followed.lock"
"""In the state folder: locked by each command that runs or shows a job and would stop it with Ctrl-C."""
LEAVING_SECONDS = 40.0
"""How long to wait at most for a command that stops the service."""
LOOK_SECONDS = 0.02
_SERVICE = 0  # the byte of the service; those of jobs come after it


class CommandLocks:
    """The commands at one state folder, as one of them sees the others."""

    def __init__(self, state: Path) -> None:
        """Take the state folder, which need not exist yet."""
        self._file = state / FOLLOWED_FILE
        self._descriptor: int | None = None  # open until this process ends, unless it is closed

    def use(self) -> None:
        """Mark this command as using the service; waits for a command that is stopping it."""
        until = time.monotonic() + LEAVING_SECONDS
        while not self._locked(_SERVICE, fcntl.LOCK_SH) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def show(self, job: str) -> None:
        """Mark this command as showing a job."""
        self._locked(_place_of(job), fcntl.LOCK_SH)

    def others_show(self, job: str) -> bool:
        """Whether another command shows a job, after this one stopped showing it."""
        return self._left_to_others(_place_of(job))

    def others_use(self) -> bool:
        """Whether another command uses the service, after this one stopped; if none does, new ones wait for its end."""
        return self._left_to_others(_SERVICE)

    def close(self) -> None:
        """Release all locks."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _left_to_others(self, place: int) -> bool:
        with suppress(OSError):
            if self._descriptor is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place)
        return not self._locked(place, fcntl.LOCK_EX)

    def _locked(self, place: int, kind: int) -> bool:
        """Lock a byte; whether it was free. On a file system without locks it always is."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(self._descriptor, kind | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # either means that the lock is taken
            return self._descriptor is None
        except OSError:
            return True
        return True


def _place_of(job: str) -> int:
    from hashlib import sha256

    return 1 + int.from_bytes(sha256(job.encode()).digest()[:6], "big")


# The services of a folder: in its own state folder, or in one above.

INSIDE_VARIABLE = "PILOTAGE_SCRATCH"
"""Set for the programs of a package: commands in it do not use the service that runs it."""


def nearest_address(folder: Path) -> Address | None:
    """The service of a folder or above it: one that runs, else the nearest stopped one; None if there never was one."""
    found = None
    for path in state_paths(folder, os.environ):
        address = address_in(path)
        if address is not None and address.runs:
            return address
        found = found or address
    return found


def running_service(
    folder: Path, *, environment: Mapping[str, str] | None = None, answer_seconds: float | None = None
) -> Server | None:
    """A connection to the running service of a folder, or None; starts nothing."""
    for path in state_paths(folder, os.environ if environment is None else environment):
        address, found = address_in(path), find_service(path)
        if address is not None and address.runs and found is not None and found.socket:
            return address.server(answer_seconds=answer_seconds)
    return None


def state_paths(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The state folders for a folder, its own first; in a program of a package, only its own."""
    for found in state_folders(environment=environment, folder=folder):
        yield found.path
        if INSIDE_VARIABLE in environment:
            return


MARK_FILE = "embedded.json"
"""In the state folder: which service was started for a run, and not by hand."""
STOP_SECONDS = 15.0
"""How long to wait for a service to end; an orderly shutdown takes less than a second."""
STOPPED = "its run was stopped; go on with it: pilotage attach"
"""In the book: why a job is held, if for no other reason."""
IDLE_SECONDS = 600
"""How long a service started for a run stays idle before it stops."""
KILLED_MAX = 5
"""How often to start a service again that is killed before it answers."""


class _Mark(msgspec.Struct, frozen=True):
    pid: int


class OnlyTheBook(PilotageError):
    """The service of the folder does not run jobs: stop it, and run again."""


class Session:
    """The service of one folder, from finding or starting it to its end."""

    def __init__(
        self,
        folder: Path,
        *,
        slots: int | None = None,
        sites: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Look for a service; if none runs, begin to start one, without waiting."""
        self.folder = folder
        self._environment = os.environ if environment is None else environment
        self._slots = slots
        self._sites = sites
        self._starting: threading.Thread | None = None
        self._failure: Exception | None = None
        self._answered = self._is_new = False
        self._broken = RestartLimit()
        self.state = self._running_folder()
        self.started = self.state is None
        if self.state is None:
            self.state = state_folder(self._load_settings(folder), folder=folder).absolute()
            self._is_new = not self.state.exists()
            # Started by this thread, which would otherwise compete with another one for the processor.
            self._starting = threading.Thread(
                target=self._await_answer, args=(self._begin(),), name="start-service", daemon=True
            )
            self._starting.start()
        self._followers = CommandLocks(self.state)

    @property
    def was_there(self) -> bool:
        """Whether the service ran before, with its own slots."""
        return not self.started

    @property
    def network(self) -> str:
        """The kind of network file system of the state folder; empty for a local one."""
        assert self.state is not None
        return network_kind(self.state)

    def server(self, *, answer_seconds: float | None = None) -> Server:
        """A connection, once the service answers; a dead service is started again. Raises why it does not start."""
        from pilotage.client.server import ANSWER_SECONDS, Server

        self._await_start()
        assert self.state is not None
        address = address_in(self.state)
        if address is None or not address.runs:
            self._restart()
            address = address_in(self.state)
        if address is None or not address.runs:
            raise ServerUnreachable("the service of this folder does not run", subject=str(self.state))
        self._refuse_book_only()
        self._answered = True
        return Server(
            address.url,
            token=address.token_source(),
            start_hint="see its log: service.log",
            answer_seconds=ANSWER_SECONDS if answer_seconds is None else answer_seconds,
            ca_file=address.ca_file,
        )

    def join(self) -> None:
        """Mark this command as using the service until the process ends: no other command stops it.

        For a service that was just started, it makes the agent's archive meanwhile.
        """
        if self.was_there:
            self._followers.use()
        else:
            self._make_agent()

    def follow(self, job: str) -> None:
        """Mark this command as showing a job until the process ends: another one does not stop the job."""
        self._followers.use()
        self._followers.show(job)

    def is_followed_elsewhere(self, job: str) -> bool:
        """Whether another command shows a job, now that this one leaves it."""
        return self._followers.others_show(job)

    def is_shared(self, job: str = "") -> bool:
        """Whether other commands use the service, now that this one leaves it, or it has other jobs."""
        return self._followers.others_use() or self.has_other_work(job)

    def is_embedded(self) -> bool:
        """Whether the service was started for this or another run, and may be stopped with it."""
        assert self.state is not None
        found = find_service(self.state)
        try:
            mark = msgspec.json.decode((self.state / MARK_FILE).read_bytes(), type=_Mark)
        except (OSError, msgspec.DecodeError):
            return False
        return found is not None and found.pid == mark.pid

    def _was_embedded(self) -> bool:
        """Whether the last service here, by its own mark, was started for a run."""
        assert self.state is not None
        try:
            mark = msgspec.json.decode((self.state / MARK_FILE).read_bytes(), type=_Mark)
            last = msgspec.json.decode((self.state / SERVICE_FILE).read_bytes(), type=Announcement)
        except (OSError, msgspec.DecodeError):
            return False
        return last.pid == mark.pid

    def hold(self, job: str) -> None:
        """Hold a job whose run is stopped; one that is held already keeps its reason.

        Then nothing new starts while its agents end, and they can still report their work, so that it resumes at once
        later. Does not wait for a service that does not answer.
        """
        from pilotage.model.exchange.operations import Hold

        with suppress(PilotageError), self.server(answer_seconds=STOP_SECONDS) as server:
            jobs = _jobs(server)
            if not jobs.job(job)["held"]:
                jobs.operate(Hold(job=job, message=STOPPED))

    def end_attempts(self, job: str) -> bool:
        """End the running attempts of a held job; they run again when it resumes. Whether the service accepted it."""
        from pilotage.model.exchange.operations import OperationOn

        try:
            with self.server(answer_seconds=STOP_SECONDS) as server:
                under_way = "state in (SCHEDULED, RUNNING)"
                _jobs(server).operate_on(OperationOn(operation="reschedule", where=under_way, job=job))
        except PilotageError:
            return False
        return True

    def stop(self) -> bool:
        """Stop the agents that the service started, and the service; everything can resume later. Whether all ended."""
        with suppress(PilotageError):
            self._await_start()
        assert self.state is not None
        end_agents(self.state)  # first, so that they can report to it
        with suppress(PilotageError):  # it has ended by itself, or does not end, which is checked below
            stop_service(self._settings(), patience_seconds=STOP_SECONDS)
        return end_agents(self.state) and find_service(self.state) is None

    def has_other_work(self, job: str = "") -> bool:
        """Whether the service has other unfinished jobs; a held one counts while something of it runs."""
        assert self.state is not None
        try:
            with self.server(answer_seconds=STOP_SECONDS) as server:
                jobs = _jobs(server)
                return any(
                    not other["held"] or jobs.progress(other["id"]).running > 0
                    for other in jobs.unfinished()
                    if other["id"] != job
                )
        except PilotageError:
            # A live service that does not answer may have any work, unless it was started for this run only.
            return find_service(self.state) is not None and not self.started

    def give_up(self) -> None:
        """Nothing will run: stop a service started for it, unless another command uses it meanwhile.

        A state folder made for it goes, too, if it contains nothing of use. A service that failed to start is not
        started again for this, and its log stays.
        """
        if self.started and self._failure is None and not self.is_shared() and self.stop() and self._is_new:
            assert self.state is not None
            remove_unused(self.state)
        self._followers.close()

    def go_on(self, job: str) -> None:
        """Release a job that is held only because its run was stopped."""
        from pilotage.model.exchange.operations import Release

        with self.server() as server, suppress(ServerRefused):
            jobs = _jobs(server)
            if jobs.job(job)["held"] and jobs.held_for(job) == STOPPED:
                jobs.operate(Release(job=job))

    # --- finding ---

    def _running_folder(self) -> Path | None:
        """The state folder of a service that runs here or above."""
        for folder in state_paths(self.folder, self._environment):
            address = address_in(folder)
            if address is not None and address.runs:
                return folder
        return None

    def _refuse_book_only(self) -> None:
        assert self.state is not None
        found = find_service(self.state)
        if found is not None and not found.socket:
            raise OnlyTheBook(
                "the service of this folder serves its book and runs no jobs",
                subject=str(self.state),
                next_step="stop it with `pilotage serve --stop`, and run again",
            )

    # --- starting ---

    def _load_settings(self, folder: Path) -> Settings:
        return load_settings(environment=self._environment, folder=folder, flags={})

    def _home(self) -> Path:
        """The folder in which the service is or would be started: this one, or that of the running service."""
        assert self.state is not None
        return self.state.parent if not self.started and self.state.name == STATE_FOLDER else self.folder

    def _settings(self) -> Settings:
        """The settings with which the service is started, and found again."""
        return self._load_settings(self._home())

    def _begin(self) -> StartingService | None:
        words = ["--port", "0", "--until-idle", str(IDLE_SECONDS)]
        if self._slots is not None:
            words += ["--slots", str(self._slots)]
        if self._sites:
            words += ["--sites", self._sites]
        try:
            return begin_in_background(self._settings(), words, folder=self._home())
        except Exception as failure:  # noqa: BLE001 # raised again in the thread that waits for it
            self._failure = failure
            return None

    def _await_answer(self, begun: StartingService | None) -> None:
        killed = 0
        while begun is not None:
            try:
                self._mark(begun.wait())
                return
            except KilledAtStart as failure:
                killed += 1
                if killed > KILLED_MAX:
                    self._failure = failure
                    return
                begun = self._begin()
            except Exception as failure:  # noqa: BLE001 # raised again in the thread that waits for it
                self._failure = failure
                return

    def _mark(self, announcement: Announcement) -> None:
        assert self.state is not None
        _write_whole(self.state / MARK_FILE, msgspec.json.encode(_Mark(announcement.pid)))

    def _await_start(self) -> None:
        thread = self._starting
        if thread is None:
            return
        while thread.is_alive():
            thread.join(timeout=1.0)  # with a time, so that a signal is heard
        self._starting = None
        self._raise_failure()

    def _make_agent(self) -> None:
        """Make the agent's archive in place of the service, which is busy while a user waits."""
        from pilotage.adapters.sites.zipapp import build_in

        assert self.state is not None
        with suppress(OSError):  # the service reports what is wrong with its folder
            build_in(self.state)

    def _somebody_else_started(self) -> bool:
        """Whether another command is starting a service here; returns when that answers, or is gone."""
        assert self.state is not None
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if find_service(self.state) is not None:
                self.started = False
                return True
            if not is_held(self.state / LOCK_FILE):
                return False
            time.sleep(LOOK_SECONDS)
        return False

    def _restart(self) -> None:
        """Restart a service that was started for a run and is gone; not without its book."""
        assert self.state is not None
        if not (self.state / SERVICE_FILE).exists():
            was_ours = self.started
            if self._somebody_else_started():  # it is alive, and has announced itself again
                self.started = was_ours
                return
            if self._answered and not self._has_book():
                raise JobGone(str(self.state))
        # A missing folder was removed with an unused service, just when it was found.
        if not self.started and self.state.exists() and not self._was_embedded():
            return
        self._broken.refuse(self.state)
        self._failure = None
        self._await_answer(self._begin())
        self._raise_failure()

    def _has_book(self) -> bool:
        """Whether the book of the service is still in place."""
        from pilotage.adapters.journals.sqlite.locations import BOOK

        assert self.state is not None
        if self._settings().journal.address.kind != "sqlite":
            return self.state.exists()
        return (self.state / BOOK).exists()

    def _raise_failure(self) -> None:
        """Raise the reason why the service did not start, unless another command started one."""
        if self._failure is not None and not self._somebody_else_started():
            raise self._failure


def _jobs(server: Server) -> Jobs:
    from pilotage.client.jobs import Jobs

    return Jobs(server)


def started_server(address: Address) -> Server:
    """The service of an address, for running something: a stopped one of a state folder is started as for a run."""
    from pilotage.app.service.offline import ran_jobs

    state = Path(address.origin)
    if address.runs or not address.origin or not state.is_dir() or not ran_jobs(state):
        return address.server()
    home = home_of(state)
    settings = load_settings(environment=os.environ, folder=home, flags={})
    if state_folder(settings, folder=home).absolute() != state:
        return address.server()  # the settings it was started with are unknown here
    return Session(home).server()


def home_of(state: Path) -> Path:
    """The folder in which the service of a state folder is started."""
    return state.parent if state.name == STATE_FOLDER else Path.cwd()


def _write_whole(file: Path, content: bytes) -> None:
    """Write a small file so that it appears whole."""
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(file)


# Removes a state folder that was made in vain, with the service started in it.

_SECONDS = 2.0


def remove_unused(state: Path) -> None:
    """Remove the state folder of a service that has ended, unless another process uses it."""
    until = time.monotonic() + _SECONDS
    while is_held(state / LOCK_FILE):  # its last event is written, and its process ends
        if time.monotonic() > until:
            return
        time.sleep(LOOK_SECONDS)
    from pilotage.adapters.journals.sqlite import journal

    journal.remove_unused(state)


class JobGone(PilotageError):
    """A job is gone: its state folder was removed, with everything known of it."""

    def __init__(self, subject: str) -> None:
        """Name the folder, or the job."""
        super().__init__(
            "the state folder of the job was removed while it ran: nothing is known of it any longer",
            subject=subject,
            next_step="its outputs exist, but pilotage does not know them any longer: move them away, and run again",
        )
