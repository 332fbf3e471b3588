"""The local computer as a site: a pilot is a process of its own, which outlives the service that started it.

Each key has a record, `pilots/KEY.json`, and the pilot's standard error, `pilots/KEY.err`. The pilot and its supervisor
keep the record locked as long as either lives: the lock, not a process number, shows that it runs. The record is handed
over open and locked, so that a running pilot is never without a record.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from pilotage.adapters.closed_folders import make_closed
from pilotage.adapters.sites.zipapp import content_digest, hold_to
from pilotage.agent.pilot.spool import DRAFT_SUFFIX, LOCK_SUFFIX
from pilotage.agent.processes import end_descendants, started_at, sweep
from pilotage.agent.resources import Resources, attempt_options, pilot_options
from pilotage.agent.silent_pilots import SilentPilots
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed
from pilotage.model.resources import AMOUNT_UNKNOWN, NAMES, Amounts, Capacity, Demand
from pilotage.model.sites.entry import SiteEntry, site_of
from pilotage.ports import SeenAtSite, SiteContext, SiteUnreachable, SubmissionRefused

GRACE_SECONDS = 10.0
OVERDUE_SECONDS = 5.0  # a pilot that outlives its grace period by so long is killed
STDERR_CHARACTERS_MAX = 2000
_RECORD_DESCRIPTOR = 3
_SUFFIX = ".json"
_left: set[int] = set()  # children of closed sites: the next site that looks reaps them
_left_guard = threading.Lock()


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the agents of this computer: folders, service address and resources."""

    site: str
    state: Path
    agent: Path  # the archive
    server: str
    announcement: Path | None = None
    token_file: Path | None = None
    capacity: Capacity = Capacity()
    backlog: int = 256
    idle_seconds: float = 300.0
    outlive_seconds: float = 21_600.0  # how long a pilot works on without its service
    deserted_seconds: float = 10.0  # how long it waits without work: starting another one here is quick
    grace_seconds: float = GRACE_SECONDS
    wall_seconds: float = 0.0
    look_seconds: float = 0.5  # it costs next to nothing
    interpreter: str = sys.executable


class LocalSite:
    """Starts agents as processes on this computer; see `SiteAccess`."""

    def __init__(self, settings: LocalSettings) -> None:
        """Take the settings; agents of an earlier process are found by their records."""
        self._settings = settings
        self._folder = settings.state / "pilots"
        self._guard = threading.Lock()
        self._children: set[int] = set()  # started by this process, which must reap them
        self._settling = 0  # the process that delivers events of dead pilots
        self._cancelled: dict[str, float] = {}  # time of cancellation, by key
        self._silent_pilots = SilentPilots()
        self._agent_digest = content_digest(settings.agent)  # checked before each start

    @property
    def look_seconds(self) -> float:
        """Seconds between two listings."""
        return self._settings.look_seconds

    def submit_pilots(self, key: str, *, count: int = 1) -> list[str]:
        """Start pilots with consecutive keys, unless they exist; returns their process ids."""
        if count == 1:
            return [self._submit_pilot(key)]
        from pilotage.agent.batch import element_key

        started: list[str] = []
        for offset in range(count):
            follower = element_key(key, offset)
            if follower is None:
                raise ValueError(f"the key of several pilots must end in a number, not {key!r}")
            try:
                started.append(self._submit_pilot(follower))
            except SubmissionRefused:
                if not started:
                    raise
                break  # the others are requested again, and refused then
        return started

    def _submit_pilot(self, key: str) -> str:
        settings = self._settings
        options = pilot_options(_resources_of(settings.capacity))
        return self._submit(key, [*options, f"--backlog={settings.backlog}", f"--idle={settings.idle_seconds}"])

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        """Start an agent for one attempt, unless it exists; returns its process id."""
        options = attempt_options(_resources_of(demand))
        return self._submit(key, [*options, f"--serves={ref.job}:{ref.package}:{ref.attempt}"])

    def _submit(self, key: str, options: Sequence[str]) -> str:
        with self._guard:
            record = self._record(key)
            try:
                make_closed(self._folder)
                known = _read(record)
                if known is not None:
                    return str(known.get("pid", ""))
                return str(self._start(key, record, options))
            except OSError as error:
                raise SubmissionRefused(
                    f"cannot start an agent: {error}",
                    reason="platform-failure",
                    subject=self._settings.site,
                    next_step="check for free space on the disk and free entries in the process table",
                ) from error

    def _start(self, key: str, record: Path, options: Sequence[str]) -> int:
        hold_to(self._settings.agent, self._agent_digest)
        draft = record.with_name(f".{record.name}.new")
        draft.unlink(missing_ok=True)
        opened = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 10)  # not the number that the agent expects
        os.close(opened)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            errors = str(record.with_suffix(".err"))
            append = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            words = self._words(key, options)
            draft.rename(record)
            pid = os.posix_spawn(
                words[0],
                words,
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, errors, append, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    (os.POSIX_SPAWN_DUP2, descriptor, _RECORD_DESCRIPTOR),
                ],
                setsid=True,
            )
            self._children.add(pid)
            content = msgspec.json.encode({"pid": pid, "started": started_at(pid)})
            if os.fstat(descriptor).st_size == 0:  # otherwise the agent was faster, and wrote more
                os.pwrite(descriptor, content, 0)
            return pid
        except OSError:
            record.unlink(missing_ok=True)
            draft.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _words(self, key: str, options: Sequence[str]) -> list[str]:
        settings = self._settings
        words = [*self._agent("pilot"), f"--request={key}", f"--site={settings.site}"]
        if settings.wall_seconds:
            words.append(f"--wall={settings.wall_seconds}")
        words += [f"--outlive={settings.outlive_seconds}", f"--deserted={settings.deserted_seconds}"]
        words += [f"--untold={settings.deserted_seconds}"]  # the next service reads the spool, which is on this disk
        words.append(f"--grace={settings.grace_seconds}")
        return [*words, f"--record={_RECORD_DESCRIPTOR}", *options]

    def _agent(self, command: str) -> list[str]:
        settings = self._settings
        # Isolated and without site packages: the user's environment cannot change the agent, and it starts faster.
        words = [settings.interpreter, "-I", "-S", str(settings.agent), command]
        words += [f"--server={settings.server}", f"--state={settings.state}"]
        if settings.announcement is not None:
            words.append(f"--announcement={settings.announcement}")
        if settings.token_file is not None:
            words.append(f"--token-file={settings.token_file}")
        return words

    def cancel(self, *keys: str) -> None:
        """Send SIGTERM to the agents of these keys; a later listing kills those that do not end."""
        with self._guard:
            for key in keys:
                record = self._record(key)
                known = _read(record)
                if known is not None and not _is_free(record):
                    self._cancelled.setdefault(key, time.monotonic())
                    _signal(known, signal.SIGTERM)

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        """All running agents, and those that ended since the last listing, by key; ended ones are listed once."""
        found = {}
        with self._guard:
            self._reap()
            try:
                names = sorted(entry.name for entry in self._folder.iterdir()) if self._folder.is_dir() else []
            except OSError as error:
                raise SiteUnreachable(f"cannot list agents: {error}", subject=self._settings.site) from error
            for name in names:
                if name.endswith(_SUFFIX) and not name.startswith("."):
                    key = unquote(name.removesuffix(_SUFFIX))
                    status = self._look(key, self._folder / name)
                    if status is not None:
                        found[key] = status
            self._settle()
        return found

    def notice(self, unheard: Collection[str]) -> list[Noticed]:
        """Silent agents, with the end of their output."""
        with self._guard:
            running = [key for key in unheard if not _is_free(self._record(key))]
            found = self._silent_pilots.notice(running, self._written)
        return msgspec.convert([each._asdict() for each in found], list[Noticed])

    def _written(self, keys: Collection[str]) -> dict[str, str]:
        return {key: _last_lines(self._record(key).with_suffix(".err")) for key in keys}

    def _record(self, key: str) -> Path:
        return self._folder / f"{quote(key, safe=':@')}{_SUFFIX}"

    def _look(self, key: str, record: Path) -> SeenAtSite | None:
        free = _is_free(record)
        known = _read(record)
        if known is None:
            return None
        native_id = str(known.get("pid", ""))
        if not free:
            cancelled_at = self._cancelled.get(key)
            if (
                cancelled_at is not None
                and time.monotonic() > cancelled_at + self._settings.grace_seconds + OVERDUE_SECONDS
            ):
                self._kill(known)
            return SeenAtSite(native_id=native_id)
        self._cancelled.pop(key, None)
        errors = record.with_suffix(".err")
        status = SeenAtSite(
            native_id=native_id,
            ended=True,
            reason=str(known.get("ended") or ("killed" if "pilot" in known else "failed")),
            stderr=_last_lines(errors),
        )
        errors.unlink(missing_ok=True)
        record.unlink(missing_ok=True)
        return status

    def _settle(self) -> None:
        """Start a process that cleans up after dead pilots and delivers their events, if there are any.

        A dead pilot may have no record: a service that saw its end, and died before it reported it, has removed it.
        """
        spool = self._settings.state / "spool"
        locks = (*spool.glob(f"*{LOCK_SUFFIX}"), *spool.glob(f".*{DRAFT_SUFFIX}"))
        if self._settling in self._children or not any(map(_is_free, locks)):
            return
        words = self._agent("settle")
        with contextlib.suppress(OSError):  # the next listing tries again
            self._settling = os.posix_spawn(words[0], words, _environment(), setsid=True)
            self._children.add(self._settling)

    def _kill(self, known: dict[str, Any]) -> None:
        """Kill a pilot that ignored SIGTERM: its agent first, so that the supervisor cleans up, then the rest."""
        pid = known.get("pid")
        if isinstance(pid, int) and known.get("started") and started_at(pid) == known["started"]:
            end_descendants(pid)
            _signal(known, signal.SIGKILL)
        if known.get("pilot"):
            sweep({str(known["pilot"])})

    def _reap(self) -> None:
        _take_ends(self._children)
        with _left_guard:
            _take_ends(_left)

    def close(self) -> None:
        """Close the site; agents go on."""
        with self._guard:
            self._reap()
            with _left_guard:
                _left.update(self._children)
            self._children.clear()


def _take_ends(children: set[int]) -> None:
    """Reap the children that have ended."""
    for pid in list(children):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended = pid
        if ended:
            children.discard(pid)


def _resources_of(known: Amounts) -> Resources:
    """The resources of an agent; 0 for unknown ones, which it measures itself."""
    return Resources(**{name: 0 if (each := getattr(known, name)) == AMOUNT_UNKNOWN else each for name in NAMES})


def _environment() -> dict[str, str]:
    """Our environment without our settings, for an agent."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}


def _read(record: Path) -> dict[str, Any] | None:
    """The content of a record; None if it does not exist."""
    try:
        content = msgspec.json.decode(record.read_bytes() or b"{}")
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_free(record: Path) -> bool:
    """Tell whether a record is not locked."""
    try:
        descriptor = os.open(record, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _signal(known: dict[str, Any], number: int) -> None:
    """Send a signal to the process of a record, if its number was not reused."""
    pid = known.get("pid")
    if isinstance(pid, int) and known.get("started") and started_at(pid) == known["started"]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _last_lines(file: Path) -> str:
    try:
        return (
            file.read_bytes()[-2 * STDERR_CHARACTERS_MAX :].decode("utf-8", "replace")[-STDERR_CHARACTERS_MAX:].strip()
        )
    except OSError:
        return ""


def local_access(entry: SiteEntry, around: SiteContext) -> LocalSite:
    """A site of the kind `local`: this computer under another name."""
    return LocalSite(
        LocalSettings(
            site=entry.name,
            state=Path(around.folder),
            agent=Path(around.agent()),
            server=around.socket,
            announcement=Path(around.announcement),
            token_file=Path(around.token_file),
            capacity=site_of(entry).capacity,
            idle_seconds=entry.idle_seconds,
            wall_seconds=entry.wall_time_seconds or 0.0,
        )
    )
