"""The dump format of a job, to move it between journals: lines of JSON, with a checksum in the last one.

1. `{"format": "pilotage-job", "version": 1, "job": ID, "schema": N}`
2. for each content that the job refers to, `{"content": SHA256, "base64": …}`
3. for each event, in the order of positions, `{"event": {…}, "received": SECONDS}`; the event as on the wire, and
   `"skewed": true` if it came from a wrong clock, `false` if it only looks so
4. `{"end": true, "contents": N, "events": N, "sha256": …}`, with the hash of all lines before it

Dumps of several jobs may follow each other in one file.

Services number their decisions in streams of the same name. If this book has other events under the numbers of a dumped
stream, the stream is loaded as `STREAM@JOB`: a job id is unique everywhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import IO, NamedTuple, Protocol

import msgspec

from pilotage.book.codec import Codec, Refusal
from pilotage.book.fold.replay import (
    KEPT_ALREADY,
    DumpedEvent,
    Identity,
    NotReplayed,
    Replay,
    identity_of,
    looks_skewed,
    wire_event,
)
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.rows import JobRow
from pilotage.book.rows.streams import Range, contains, ranges_of, received_ranges, size
from pilotage.model.events.events import JOB_ID, STREAM, Event
from pilotage.ports import DumpParts, FoundEvent, JournalError

FORMAT = "pilotage-job"
VERSION = 1

_SPOOLED_BYTES_MAX = 16 * 1024 * 1024


class DumpError(JournalError):
    """The file is not a complete dump of a job; nothing was loaded. Dump the job again, or copy the dump again."""


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    job: str
    schema: int


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    content: str
    base64: str


class _End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    end: bool
    contents: int
    events: int
    sha256: str


class _Start(msgspec.Struct, frozen=True):
    """Enough of a line to tell its kind."""

    event: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    end: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_END_BEGINS = b'{"end":'

_EVENTS_AT_ONCE = 500

_encode, _encode_lines = msgspec.json.Encoder().encode, msgspec.json.Encoder().encode_lines
_start = msgspec.json.Decoder(_Start)
_kept = msgspec.json.Decoder(DumpedEvent)


class StoredJob(NamedTuple):
    """What a journal reads for a dump: contents by their digests, and events in the order of positions."""

    contents: Iterator[tuple[str, bytes]]
    events: Iterator[DumpedEvent]


def dump_lines(job: str, stored: StoredJob, *, schema: int) -> Iterator[bytes]:
    """The lines of a dump, with line ends."""
    hashed = hashlib.sha256()
    counts = [0, 0]

    def line(value: msgspec.Struct) -> bytes:
        text = _encode(value) + b"\n"
        hashed.update(text)
        return text

    yield line(_header(job, schema))
    for sha256, content in stored.contents:
        counts[0] += 1
        yield line(_Content(content=sha256, base64=base64.b64encode(content).decode()))
    for event in stored.events:
        counts[1] += 1
        yield line(event)
    end = _End(end=True, contents=counts[0], events=counts[1], sha256=hashed.hexdigest())
    yield _encode(end) + b"\n"


def dump_parts(job: str, stored: StoredJob, *, schema: int) -> DumpParts:
    """The same as parts: events are encoded many at once, contents not at all."""

    def pieces() -> Iterator[bytes]:
        while some := list(islice(stored.events, _EVENTS_AT_ONCE)):
            yield _encode_lines(some)

    return DumpParts(_encode(_header(job, schema)) + b"\n", stored.contents, pieces())


def _header(job: str, schema: int) -> _Header:
    return _Header(format=FORMAT, version=VERSION, job=job, schema=schema)


def dumped(event: Event, *, received: float, skewed: bool) -> DumpedEvent:
    """An event of a dump, which says whether it is skewed only where that does not follow from its time."""
    is_stored = skewed or looks_skewed(event, received)
    return DumpedEvent(event=event, received=received, skewed=skewed if is_stored else msgspec.UNSET)


def dumped_event(found: FoundEvent) -> DumpedEvent:
    """A stored event as it is in a dump."""
    event = wire_event(found.row, job=found.job, source=found.source, stream=found.stream)
    return dumped(event, received=found.row.received, skewed=bool(found.row.skewed))


class LoadTarget(Protocol):
    """What loading a dump needs of a journal."""

    def job(self, job: str) -> JobRow | None:
        """A job, also a sealed or a purged one."""
        ...

    def put_content(self, content: bytes) -> str:
        """Store bytes and return their sha256."""
        ...

    def transaction(self) -> AbstractContextManager[Ledger]:
        """One durable transaction."""
        ...


def split_dumps(lines: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """The dumps in a file, each to be read to its end before the next."""
    whole = _whole_lines(lines)

    def one(first: bytes) -> Iterator[bytes]:
        line: bytes | None = first
        while line is not None:
            yield line
            if line.startswith(_END_BEGINS):
                return
            line = next(whole, None)

    for first in whole:
        yield one(first)


def check_lines(lines: Iterable[bytes]) -> str:
    """Check that a dump is complete, and return its job id. Raises `DumpError`."""
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES_MAX) as spool:
        return _Dump(spool, lines).job


def load_lines(journal: LoadTarget, lines: Iterable[bytes]) -> str:
    """Load a dumped job atomically, and return its id."""
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES_MAX) as spool:
        dump = _Dump(spool, lines)
        if journal.job(dump.job) is not None:
            raise _known(dump.job)
        for content in dump.contents():
            journal.put_content(content)
        with journal.transaction() as ledger:
            if list(ledger.jobs([dump.job])):
                raise _known(dump.job)
            dump.name_streams(ledger)
            # A later change of a tag must rank after those made elsewhere.
            ledger.advance(dump.seen_max)
            try:
                replay = Replay(ledger, comes=dump.has)
                for kept in dump.events():
                    replay.add(kept.event, received=kept.received, skewed=kept.is_skewed)
                replay.finish()
            except NotReplayed as fault:
                raise DumpError(f"the job cannot be loaded: {fault}", subject=f"job {dump.job}") from fault
    return dump.job


class _Dump:
    """A dump that was read once and found complete."""

    def __init__(self, spool: IO[bytes], lines: Iterable[bytes]) -> None:
        """Read every line and check it against the last."""
        self._spool = spool
        self._codec = Codec(limits=KEPT_ALREADY)
        self._numbers: dict[tuple[str, str], array[int]] = {}
        self._renamed: dict[tuple[str, str], str] = {}  # streams with another name here
        self._contents = self._events = 0
        self.job = ""
        self.seen_max = 0
        hashed = hashlib.sha256()
        end: _End | None = None
        for number, line in enumerate(_whole_lines(lines), 1):
            if end is not None:
                raise _broken(number, "there are more lines after the last one")
            end = self._read(number, line)
            if end is None:
                hashed.update(line)
                spool.write(line)
        if end is None:
            raise DumpError("the dump is truncated", next_step="copy it again: its last line is missing")
        counted = (self._contents, self._events, hashed.hexdigest())
        if not end.end or (end.contents, end.events, end.sha256) != counted:
            raise DumpError(
                "the dump is damaged",
                expected=f"{end.contents} contents, {end.events} events, sha256 {end.sha256}",
                got=f"{counted[0]} contents, {counted[1]} events, sha256 {counted[2]}",
                next_step="copy it again",
            )
        self._ranges: dict[tuple[str, str], list[Range]] = {
            name: ranges_of(numbers) for name, numbers in self._numbers.items()
        }
        if sum(size(ranges) for ranges in self._ranges.values()) != self._events:
            raise DumpError("an event occurs twice in the dump", subject=f"job {self.job}", next_step="dump it again")

    def _read(self, number: int, line: bytes) -> _End | None:
        try:
            if number == 1:
                self._header(msgspec.json.decode(line, type=_Header))
                return None
            start = _start.decode(line)
            if start.event is not msgspec.UNSET:
                self._event(number, _kept.decode(line).event)
            elif start.content is not msgspec.UNSET:
                _content(line)
                self._contents += 1
            else:
                return msgspec.json.decode(line, type=_End)
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error) as fault:
            raise _broken(number, str(fault)) from fault
        return None

    def _header(self, header: _Header) -> None:
        if header.format != FORMAT or header.version != VERSION or not JOB_ID.fullmatch(header.job):
            raise DumpError(
                "not a dump that this version can read",
                expected=f"format {FORMAT}, version {VERSION}",
                got=f"format {header.format[:40]}, version {header.version}, job {header.job[:64]!r}",
                next_step="load it with the pilotage that made it, or a newer one",
            )
        self.job = header.job

    def _event(self, number: int, event: Event) -> None:
        found = self._codec.check(event)
        if isinstance(found, Refusal):
            raise _broken(number, found.message)
        if event.job != self.job:
            raise _broken(number, f"an event of job {event.job}, in the dump of {self.job}")
        self._events += 1
        self.seen_max = max(self.seen_max, event.seen)
        self._numbers.setdefault((event.source, event.stream), array("q")).append(event.n)

    def has(self, identity: Identity) -> bool:
        """Tell whether an event is in the dump."""
        source, stream, n = identity
        return contains(self._ranges.get((source, stream), []), n)

    def name_streams(self, ledger: Ledger) -> None:
        """Rename streams whose numbers this book uses for other events; parked events of the job must be equal."""
        waiting = {identity_of(row) for row in ledger.parked(self.job)}
        taken = {(row.source, row.stream): received_ranges(row) for row in ledger.streams(self._ranges.keys())}
        for (source, stream), received in taken.items():
            numbers = self._numbers[source, stream]
            known = [n for n in numbers if contains(received, n) and (source, stream, n) not in waiting]
            if not known:
                continue
            if any((source, stream, n) in waiting for n in numbers):
                raise DumpError(
                    "the book has an event of the job with other content",
                    subject=f"job {self.job}",
                    got=f"{source} {stream} {known[0]}",
                    next_step="load the job into another book",
                )
            self._renamed[source, stream] = self._free_name(source, stream, ledger)

    def _free_name(self, source: str, stream: str, ledger: Ledger) -> str:
        """A name that no stream of this source has, here or in the dump."""
        name = f"{stream}@{self.job}"
        if not STREAM.fullmatch(name):  # too long
            name = f"{hashlib.sha256(stream.encode()).hexdigest()[:32]}@{self.job}"
        others = {*self._ranges, *((of, other) for (of, _), other in self._renamed.items())}
        free, tries = name, 1
        while (source, free) in others or list(ledger.streams([(source, free)])):
            tries += 1
            free = f"{name}.{tries}"
        return free

    def contents(self) -> Iterator[bytes]:
        """The contents, decoded."""
        return (_content(line) for line in self._lines() if _start.decode(line).content is not msgspec.UNSET)

    def events(self) -> Iterator[DumpedEvent]:
        """The events, with the stream names of this book."""
        named = self._named()
        return (named(_kept.decode(line)) for line in self._lines() if _start.decode(line).event is not msgspec.UNSET)

    def _named(self) -> Callable[[DumpedEvent], DumpedEvent]:
        renamed, replace = self._renamed, msgspec.structs.replace

        def named(kept: DumpedEvent) -> DumpedEvent:
            name = renamed.get((kept.event.source, kept.event.stream))
            return kept if name is None else replace(kept, event=replace(kept.event, stream=name))

        return named

    def _lines(self) -> Iterator[bytes]:
        self._spool.seek(0)
        next(iter(self._spool))
        return iter(self._spool)


def _content(line: bytes) -> bytes:
    found = msgspec.json.decode(line, type=_Content)
    content = base64.b64decode(found.base64, validate=True)
    if hashlib.sha256(content).hexdigest() != found.content:
        raise DumpError("a content of the dump does not match its hash", got=found.content[:64])
    return content


def _whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Split pieces of text into lines."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _known(job: str) -> DumpError:
    return DumpError(
        "a job of this id is known here already",
        subject=f"job {job}",
        next_step="load it into another book; an id is used once",
    )


def _broken(number: int, why: str) -> DumpError:
    return DumpError(f"line {number} of the dump is malformed: {why[:300]}", next_step="copy it again")
