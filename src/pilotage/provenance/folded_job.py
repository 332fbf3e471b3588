"""The rows of one job, folded again in memory from its life log, with the fold of the book.

Rows of packages are stored as the text that a database would store, and events in compressed blocks: a package of a large job
takes some hundred bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, cast

import msgspec

from pilotage.book.fold.replay import DumpedEvent, NotReplayed, Replay
from pilotage.book.rows import rows
from pilotage.book.rows.fast_rows import text_of
from pilotage.book.rows.ledger import AnyRow, Changes, EventLookup, Ledger, PackageKey
from pilotage.book.rows.rows import (
    EventRow,
    JobRow,
    NodeRow,
    PackageFacts,
    PackageRow,
    ParkedRow,
    StageRow,
    StreamRow,
    read_facts,
    written_facts,
)
from pilotage.book.rows.shapes import is_known, shape_of
from pilotage.model.jobs.layout import PackageId
from pilotage.model.records import JobRecord
from pilotage.ports.records import RecordStoreError

_BLOCK_EVENTS = 64
_UNPACKED_MAX = 32

_event_line = msgspec.json.Decoder(DumpedEvent)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
_MOVED_BY_THEMSELVES = frozenset({"SCHEDULED", "RUNNING", "DONE", "CLEARED"})


class UnreadableRecord(RecordStoreError):
    """The parts of a record are whole, but its life log or its definition cannot be understood."""


class FoldedJob:
    """The rows of a job: what the book would show of it."""

    def __init__(self, record: JobRecord, lines: Iterable[bytes]) -> None:
        """Fold the events of a life log, without its first line. Raises `UnreadableRecord`."""
        self._ledger = _JobLedger()
        replay = Replay(cast("Ledger", self._ledger))
        try:
            for line in lines:
                found = _event_line.decode(line)
                replay.add(found.event, received=found.received, skewed=found.is_skewed)
            replay.finish()
        except (msgspec.DecodeError, NotReplayed) as fault:
            raise UnreadableRecord(f"the life log cannot be folded: {fault}", subject=f"job {record.job}") from fault
        row = self._ledger.job_rows.get(record.job)
        if row is None:
            raise UnreadableRecord("the life log does not register the job", subject=f"job {record.job}")
        self.row: JobRow = row

    @property
    def stages(self) -> list[StageRow]:
        """The stages of the job, in order."""
        return self._ledger.stages_of(self.row.job_id)

    def extra_places(self) -> list[PackageId]:
        """The places of packages that are not in the shape of the job, in order."""
        shapes = {row.stage: shape_of(row.shape, stage=row.stage) for row in self.stages}
        found = (
            key[1:]
            for key, text in self._ledger.facts.items()
            if (key[1] not in shapes or shapes[key[1]].activity(key[2], key[3]) is None) and is_known(read_facts(text))
        )
        return [PackageId(*place) for place in sorted(found)]

    def facts(self, place: PackageId) -> PackageFacts | None:
        """The facts of a package; None if it has no events."""
        text = self._ledger.facts.get((self.row.job_id, place.stage, place.line, place.number))
        return read_facts(text) if text is not None else None

    def data(self, position: int) -> bytes:
        """The payload of the event at a position."""
        return cast("str", self._ledger.events.values(position)[-1]).encode()

    def data_of(self, kind: str) -> Iterator[bytes]:
        """The payloads of all events of one type, in order."""
        for values in self._ledger.events:
            if values[_TYPE] == kind:
                yield cast("str", values[-1]).encode()


_TYPE = EventRow.__struct_fields__.index("type")


class _Events:
    """Events by position, which counts from 1, as the columns of their rows."""

    def __init__(self) -> None:
        self.count = 0
        self._blocks: list[bytes] = []
        self._open: list[tuple[Any, ...]] = []
        self._unpacked: dict[int, list[tuple[Any, ...]]] = {}

    def add(self, values: tuple[Any, ...]) -> None:
        self.count += 1
        assert values[0] == self.count, "positions count on by one"
        self._open.append(values)
        if len(self._open) == _BLOCK_EVENTS:
            self._blocks.append(zlib.compress(_encode(self._open), 1))
            self._open = []

    def values(self, position: int) -> tuple[Any, ...]:
        block, offset = divmod(position - 1, _BLOCK_EVENTS)
        if block == len(self._blocks):
            return self._open[offset]
        found = self._unpacked.get(block)
        if found is None:
            if len(self._unpacked) >= _UNPACKED_MAX:
                del self._unpacked[next(iter(self._unpacked))]
            found = self._unpacked[block] = _decode(zlib.decompress(self._blocks[block]))
        return found[offset]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for block in self._blocks:
            yield from _decode(zlib.decompress(block))
        yield from self._open


class _JobLedger:
    """The transaction of the fold: what the join of one job's events reads and writes."""

    def __init__(self) -> None:
        self.job_rows: dict[str, JobRow] = {}
        self.facts: dict[PackageKey, str] = {}
        self.events = _Events()
        self._stages: dict[tuple[int, int], StageRow] = {}
        self._nodes: dict[str, NodeRow] = {}
        self._streams: dict[tuple[str, str], StreamRow] = {}
        self._last_stream = 0

    def streams(self, names: Collection[tuple[str, str]]) -> list[StreamRow]:
        return [self._streams[name] for name in names if name in self._streams]

    def jobs(self, jobs: Collection[str]) -> list[JobRow]:
        return [msgspec.structs.replace(self.job_rows[job]) for job in jobs if job in self.job_rows]

    def stages(self, keys: Collection[tuple[int, int]]) -> list[StageRow]:
        return [msgspec.structs.replace(self._stages[key]) for key in keys if key in self._stages]

    def stages_of(self, job_id: int) -> list[StageRow]:
        return self.stages(sorted(key for key in self._stages if key[0] == job_id))

    def packages(self, keys: Collection[PackageKey]) -> list[PackageRow]:
        return [self._package(key) for key in keys if key in self.facts]

    def packages_of(self, job_id: int, *, stage: int) -> list[PackageRow]:
        return [self._package(key) for key in self.facts if key[:2] == (job_id, stage)]

    def idle_packages(self, job_id: int) -> list[PackageRow]:
        found = (self._package(key) for key in self.facts if key[0] == job_id)
        return [row for row in found if _is_idle(row.facts)]

    def _package(self, key: PackageKey) -> PackageRow:
        return PackageRow(*key, read_facts(self.facts[key]))

    def nodes(self, names: Collection[str]) -> list[NodeRow]:
        return [self._nodes[name] for name in names if name in self._nodes]

    def pilots(self, names: Collection[str]) -> list[rows.PilotRow]:
        return []  # events of a job alone are folded

    def sites(self, names: Collection[str]) -> list[rows.SiteRow]:
        return []

    def stored(self, wanted: Collection[EventLookup]) -> list[EventRow]:
        return []  # an event that comes twice is refused by the replay

    def parked(self, job: str) -> list[ParkedRow]:
        return []

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> list[rows.StatisticRow]:
        return []

    def next_stream_id(self) -> int:
        self._last_stream += 1
        return self._last_stream

    def next_job_id(self) -> int:
        return len(self.job_rows) + 1

    def position(self) -> int:
        return self.events.count

    def write(self, changes: Changes) -> None:
        for values in changes.all_events():
            self.events.add(values)
        buffer = bytearray()
        for row in changes.packages:
            self.facts[row.job_id, row.stage, row.line, row.number] = written_facts(row.facts, buffer)
        for lives in (changes.begun_packages, changes.lived_packages, changes.ended_packages):
            self.facts.update((key, text_of(life)) for key, life in lives.items())
        self.job_rows.update((row.job, row) for row in changes.jobs)
        self._stages.update(((row.job_id, row.stage), row) for row in changes.stages)
        self._nodes.update((row.node, row) for row in changes.nodes)
        self._streams.update(((row.source, row.stream), row) for row in changes.streams)

    def rows_by_keys(
        self, row: type[AnyRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[AnyRow]:
        """Events by position: the join reads the keys of ended attempts from them."""
        if row is not EventRow or by != ("position",):
            return []
        columns = EventRow.__struct_fields__
        return [
            cast("AnyRow", EventRow(**dict(zip(columns, self.events.values(position), strict=True))))
            for (position,) in keys
        ]


def _is_idle(facts: PackageFacts) -> bool:
    return facts.state not in _MOVED_BY_THEMSELVES and facts.cancelled_at is None and facts.aborted_at is None
