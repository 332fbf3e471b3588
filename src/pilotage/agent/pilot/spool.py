"""The spool of a pilot: its events in order, written to disk before they are sent, until the service acknowledges them.

Each pilot of a state folder has two small files: `PILOT.lock`, which names its owner and which the pilot and its
supervisor keep locked as long as either lives, and `PILOT.events`, with the lines of `durable_files`. A free lock means
that the pilot is dead; the process that finds it delivers its events.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import deque
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.durable_files import FILE_MODE, FOLDER_MODE, line_of, sync_folder, write_all
from pilotage.agent.service_clock import ServiceClock, both_clocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pilotage.agent.pilot.backlog import HeldAttempt

LOCK_SUFFIX = ".lock"
EVENTS_SUFFIX = ".events"
TOKEN_SUFFIX = ".token"  # of the file with its renewed token
DRAFT_SUFFIX = ".new"  # of a lock file before its rename
REWRITE_BYTES = 4 << 20
EVENTS_MAX = 2000  # in one exchange
LOGS_MAX_BYTES = 8 << 20
_END = "AttemptFinished"

# The fastest way to format these numbers.
_PHASE = '{"phase":"%s","started_at":%.6f,"seconds":%.6f}'
_FILE = '{"name":%s,"size_bytes":%d,"sha256":%s}'
_PLAIN: dict[type, Callable[[Any], str]] = {str: _quoted, int: int.__repr__, float: "%.6f".__mod__}

encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_end(payload: dict[str, Any]) -> bytes:
    """Encode the payload of an attempt's end: formatted by hand, in a third of the time, since every attempt has one.

    The names are those of the payload's fields, so need no escaping; times have six decimals.
    """
    parts = []
    for name, value in payload.items():
        plain = _PLAIN.get(type(value))
        if plain is not None:
            parts.append(f'"{name}":{plain(value)}')
        elif name == "phases":
            phases = [_PHASE % (each["phase"], each["started_at"], each["seconds"]) for each in value]
            parts.append(f'"phases":[{",".join(phases)}]')
        elif name == "manifest" and "exit_status" in payload:  # an adopted manifest is returned as received
            files = [_FILE % (_quoted(each["name"]), each["size_bytes"], _quoted(each["sha256"])) for each in value]
            parts.append(f'"manifest":[{",".join(files)}]')
        else:
            parts.append(f'"{name}":{encode(value)}')
    return f"{{{','.join(parts)}}}".encode()


class SpooledEvent(NamedTuple):
    """An encoded event, and the logs to send with it."""

    n: int
    text: bytes
    logs: list[bytes]


class _UnencodedEvent(NamedTuple):
    """An event that is not encoded yet: `about` is its attempt, None for an event of the pilot."""

    n: int
    seen: int
    kind: str
    about: HeldAttempt | None
    payload: dict[str, Any]
    at: float
    logs: Sequence[dict[str, Any]]


class Owner(NamedTuple):
    """The owner of a spool, as its lock file names it."""

    pilot: str
    site: str
    request: str


def claim(folder: Path, owner: Owner) -> int:
    """Lock the name of a pilot in a spool folder; the descriptor holds the lock, also over a fork.

    The lock file appears already locked: the lock of a living pilot is never seen free.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    draft = folder / f".{owner.pilot}{DRAFT_SUFFIX}"
    while True:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:  # another process took it for that of a dead pilot
                os.close(descriptor)
                continue
            write_all(descriptor, encode(owner._asdict()).encode())
            draft.rename(folder / f"{owner.pilot}{LOCK_SUFFIX}")
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        return descriptor


def release(folder: Path, pilot: str) -> None:
    """Remove the files of a pilot whose events are all delivered, the lock last."""
    for suffix in (EVENTS_SUFFIX, f"{EVENTS_SUFFIX}.new", TOKEN_SUFFIX, LOCK_SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{pilot}{suffix}").unlink()


class PilotSpool:
    """The events of one pilot, and the ends of attempts that it can still report again.

    `write` belongs to the exchanging thread; for the rest the caller holds the lock of the pilot.
    """

    def __init__(self, folder: Path, pilot: str, *, remembered_max: int = 256) -> None:
        """Begin the stream of a pilot that has claimed its name."""
        self._folder = folder
        self._pilot = pilot
        self._file = folder / f"{pilot}{EVENTS_SUFFIX}"
        self._head = b'{"source":"agent","stream":%b,"n":' % encode(pilot).encode()
        self._about_pilot = b'"pilot":%b' % encode(pilot).encode()
        self._remembered_max = remembered_max
        self._n = 0
        self._happened: list[_UnencodedEvent] = []  # encoded together, which is faster than one by one
        self._events: deque[SpooledEvent] = deque()  # not acknowledged yet
        self._unwritten: list[SpooledEvent] = []
        self._written = 0  # the number of the last event in the file
        self._ends: dict[tuple[str, str, int], SpooledEvent | None] = {}  # None: not encoded yet
        self._descriptor = -1
        self._size_bytes = 0
        self._last = b""
        self.seen = 0  # the book's position in the last reply
        self._service_clock = ServiceClock()

    @property
    def pending(self) -> bool:
        """Tell whether there are unacknowledged events."""
        return bool(self._events or self._happened)

    @property
    def unsent(self) -> int:
        """Number of events not sent yet."""
        return len(self._unwritten) + len(self._happened)

    def hear(self, reply: dict[str, Any]) -> None:
        """Take the position, the service's time and the acknowledgement from a reply."""
        self.seen = max(self.seen, int(reply.get("position", 0)))
        self._service_clock.hear(reply.get("time"))
        self.acknowledge(int(reply.get("acknowledged", 0)))

    def clocks(self) -> bytes:
        """The book's position and both clocks, for an exchange."""
        return b'"seen":%d,"service_time":%.3f,"time":%.3f' % (self.seen, *both_clocks(self._service_clock))

    def tell(self, kind: str, payload: dict[str, Any], *, at: float) -> None:
        """Add an event of the pilot itself."""
        self._add(kind, None, payload, at, ())

    def tell_of(
        self, held: HeldAttempt, kind: str, payload: dict[str, Any], *, at: float, logs: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Add an event of an attempt; its end is remembered. The payload must not change any more."""
        self._add(kind, held, payload, at, logs)
        if kind == _END:
            self._ends[held.ref] = None

    def _add(
        self, kind: str, about: HeldAttempt | None, payload: dict[str, Any], at: float, logs: Sequence[dict[str, Any]]
    ) -> None:
        self._n += 1
        self._happened.append(_UnencodedEvent(self._n, self.seen, kind, about, payload, at, logs))

    def _write_out(self) -> None:
        """Encode the new events."""
        happened, self._happened = self._happened, []
        for n, seen, kind, held, payload, at, logs in happened:
            about = self._about_pilot
            if held is not None:
                epoch = held.assignment.get("epoch", 1)
                about = held.ref_text[1:-1] + (b',"epoch":%d' % epoch if epoch != 1 else b"")
            text = b'%b%d,"seen":%d,"type":"%b","time":%.6f,%b,"data":%b}' % (
                self._head, n, seen, kind.encode(), at, about, encode_end(payload),
            )  # fmt: skip
            event = SpooledEvent(n, text, [log_text(held, each) for each in logs] if held is not None and logs else [])
            self._events.append(event)
            self._unwritten.append(event)
            if held is not None and kind == _END:
                self._ends[held.ref] = event

    def tell_again(self, ref: tuple[str, str, int]) -> bool:
        """Report the end of an attempt once more; False if it is unknown."""
        if ref not in self._ends:
            return False  # the usual case: new work does not wait for encoding
        self._write_out()
        end = self._ends[ref]
        assert end is not None
        if all(event.n != end.n for event in self._events):
            self._events.appendleft(end)  # it was acknowledged, so it is older than all unacknowledged ones
        return True

    def batch(self) -> tuple[list[bytes], list[bytes]]:
        """The events for the next exchange, oldest first, and their logs."""
        self._write_out()
        events: list[bytes] = []
        logs: list[bytes] = []
        size_bytes = 0
        for event in self._events:
            size_bytes += sum(map(len, event.logs))
            if len(events) == EVENTS_MAX or (events and size_bytes > LOGS_MAX_BYTES):
                break
            events.append(event.text)
            logs += event.logs
        return events, logs

    def acknowledge(self, n: int) -> None:
        """Drop acknowledged events, and all but the last ends among them."""
        events = self._events
        while events and events[0].n <= n:
            events.popleft()
        ends = self._ends
        while len(ends) > self._remembered_max:
            oldest = next(iter(ends))
            end = ends[oldest]
            if end is None or end.n > n:
                break
            del ends[oldest]

    def take_unwritten(self) -> list[SpooledEvent]:
        """Take the events that are not on disk yet; the caller writes them."""
        self._write_out()
        unwritten, self._unwritten = self._unwritten, []
        return unwritten

    def write(self, events: list[SpooledEvent]) -> None:
        """Write events to disk and sync; raises `OSError` and leaves the file unchanged if that fails."""
        if not events:
            return
        if self._descriptor < 0:
            self._open()
        lines = b"".join([line_of(event.text) for event in events])
        try:
            write_all(self._descriptor, lines)
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._size_bytes)
            raise
        self._size_bytes += len(lines)
        self._written, self._last = events[-1].n, events[-1].text

    def _open(self) -> None:
        self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        sync_folder(self._folder)

    @property
    def overgrown(self) -> bool:
        """Tell whether most of the file is acknowledged events."""
        return self._size_bytes > REWRITE_BYTES

    def kept(self) -> list[bytes]:
        """The lines that must stay in the file: unacknowledged events, and always the last, for its number."""
        return [event.text for event in self._events if event.n < self._written] + [self._last]

    def rewrite(self, texts: list[bytes]) -> None:
        """Replace an overgrown file by a shorter one."""
        new = self._file.with_name(f"{self._file.name}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            lines = b"".join(map(line_of, texts))
            write_all(descriptor, lines)
            os.fdatasync(descriptor)
            new.replace(self._file)
        except OSError:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._size_bytes = descriptor, len(lines)

    def close(self) -> None:
        """Close the file, which stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def log_text(held: HeldAttempt, log: dict[str, Any]) -> bytes:
    """Encode a log with its attempt."""
    return b'{"ref":%b,%b' % (held.ref_text, encode(log).encode()[1:])
