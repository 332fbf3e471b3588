"""A ledger of plain dictionaries: the simplest store for the join of the book.

Every row is found by its key, never by scanning a table. Rows are copied when read, as from a database, so that a change
without a write leaves no trace. A finished package is stored as the text that a database would store, compressed together with
others: it takes a fraction of the memory, and is rarely read again. A short life is stored as the values of its events, and
its text is made on demand.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from pilotage.book.fold.finals import FINAL_ORDER, SURELY_OVER, FinalPackage, is_over, read_finals
from pilotage.book.rows import rows
from pilotage.book.rows.derived_states import DONE, RUNNING
from pilotage.book.rows.fast_rows import BegunLife, EndedLife, text_of
from pilotage.book.rows.ledger import CachedStreams, Changes, EventLookup, Observed, OfStreams, PackageKey
from pilotage.book.rows.rows import (
    EventRow,
    JobRow,
    NodeRow,
    PackageRow,
    ParkedRow,
    PilotRow,
    SiteRow,
    StageRow,
    StatisticRow,
    StreamRow,
    read_facts,
    written_facts,
)
from pilotage.book.rows.sketches import Sketch, added, packed, read_sketch
from pilotage.book.rows.streams import NO_RANGES
from pilotage.book.rows.tables import TABLE_BY_ROW, TABLES
from pilotage.book.statistics import statistics
from pilotage.model.events.events import SOURCE_RANKS

# Data of finished packages, which is rarely read again, stored compactly in groups of some dozens.
#
# Texts are compressed: being so similar, little is left of each. Short lives, the usual case, are packed as their values,
# which takes a fraction of the time.

TOGETHER = 32
_LEVEL = 1  # higher levels take longer, and gain little
_UNPACKED_MAX = 64


class CompressedTexts:
    """Texts of one line each, by number. A text is never removed."""

    __slots__ = ("_blocks", "_open", "_unpacked")

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: list[bytes] = []
        self._open: list[str] = []  # too few to be compressed yet
        self._unpacked: dict[int, list[str]] = {}  # recently read

    def put(self, text: str) -> int:
        """Store a text; returns its number."""
        number = len(self._blocks) * TOGETHER + len(self._open)
        self._open.append(text)
        if len(self._open) == TOGETHER:
            self._blocks.append(zlib.compress("\n".join(self._open).encode(), _LEVEL))
            self._open.clear()
        return number

    def text(self, number: int) -> str:
        """A stored text."""
        block, place = divmod(number, TOGETHER)
        if block == len(self._blocks):
            return self._open[place]
        texts = self._unpacked.get(block)
        if texts is None:
            if len(self._unpacked) >= _UNPACKED_MAX:
                del self._unpacked[next(iter(self._unpacked))]
            texts = self._unpacked[block] = zlib.decompress(self._blocks[block]).decode().split("\n")
        return texts[place]


_lives = msgspec.msgpack.Decoder(list[EndedLife])
_encode = msgspec.msgpack.Encoder().encode


class PackedLives:
    """Ended short lives, by number. None is ever removed."""

    __slots__ = ("_blocks", "_open", "_unpacked")

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: list[bytes] = []
        self._open: list[EndedLife] = []  # too few to be packed yet
        self._unpacked: dict[int, list[EndedLife]] = {}  # recently read

    def put(self, lives: Iterable[EndedLife]) -> int:
        """Store lives; returns the number of the first, and the others follow."""
        number = len(self._blocks) * TOGETHER + len(self._open)
        found = [*self._open, *lives]
        full = len(found) - len(found) % TOGETHER
        self._blocks += [_encode(found[at : at + TOGETHER]) for at in range(0, full, TOGETHER)]
        self._open = found[full:]
        return number

    def life(self, number: int) -> EndedLife:
        """A stored life."""
        block, place = divmod(number, TOGETHER)
        if block == len(self._blocks):
            return self._open[place]
        lives = self._unpacked.get(block)
        if lives is None:
            if len(self._unpacked) >= _UNPACKED_MAX:
                del self._unpacked[next(iter(self._unpacked))]
            lives = self._unpacked[block] = _lives.decode(self._blocks[block])
        return lives[place]


# The streams of a book in memory: their rows, and the counters of those that only count on.


class StreamTable:
    """Streams by source and name. The position in a row may be older than the counter here."""

    __slots__ = ("_ids", "_last_numbers", "_rows")

    def __init__(self, rows: dict[tuple[Any, ...], StreamRow]) -> None:
        """Manage these rows, which are still empty."""
        self._rows = rows
        self._ids: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}
        self._last_numbers: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}

    def known(self, names: Collection[tuple[str, str]]) -> list[StreamRow]:
        """The known ones among some (source, stream)."""
        ids, rows = self._ids, self._rows
        return [self.read(rows[ids[source][stream],]) for source, stream in names if stream in ids[source]]

    def cached(self) -> CachedStreams:
        """All of them."""
        return CachedStreams(self._ids, self._last_numbers)

    def read(self, row: StreamRow) -> StreamRow:
        """A copy of a row for the caller."""
        return replace(row, watermark=self._last_numbers[row.source].get(row.stream, row.watermark))

    def write(self, rows: Iterable[StreamRow], counted_on: OfStreams) -> None:
        """Replace rows by key, and advance the streams that only counted on."""
        for source, counted in counted_on.items():
            self._last_numbers[source] |= counted
        for row in rows:
            self._rows[row.stream_id,] = row
            self._ids[row.source][row.stream] = row.stream_id
            last_numbers = self._last_numbers[row.source]
            if row.ahead == NO_RANGES:
                last_numbers[row.stream] = row.watermark
            else:
                last_numbers.pop(row.stream, None)


AnyRow = TypeVar("AnyRow", bound=rows.Row)
Key = tuple[Any, ...]
Place = int
"""A line and a number within it, of nine digits at most."""
Kept = PackageRow | BegunLife | int
"""A stored package: its row, or the beginning of its short life; or, once it is over, its state and the number of the text of its
facts, as one number. A negative number is that of an ended short life, counted down from -1.
"""

_LINE = 2**30 + 1025
"""The distance between addresses of neighbouring lines: odd, so that a dictionary spreads them."""
_STATES = len(FINAL_ORDER)
_STATE_NUMBERS = {state: number for number, state in enumerate(FINAL_ORDER)}
_exhaust = deque[object](maxlen=0).extend  # consumes an iterator and keeps nothing


def _key_reader(columns: tuple[str, ...]) -> Callable[[rows.Row], Key]:
    read = attrgetter(*columns)
    return read if len(columns) > 1 else lambda row: (read(row),)


_KEYS: dict[type[rows.Row], Callable[[rows.Row], Key]] = {table.row: _key_reader(table.key) for table in TABLES}


class MemoryLedger:
    """Every table as a dictionary from its key to a row, and indexes for the keys of some rows."""

    def __init__(self) -> None:
        """Start with an empty book."""
        self.tables: dict[str, dict[Key, Any]] = {table.name: {} for table in TABLES}
        self._stages: dict[int, dict[int, dict[Place, Kept]]] = {}  # job_id → stage → packages
        self._over = CompressedTexts()
        self._ended = PackedLives()
        self._begun: dict[PackageKey, BegunLife] = {}  # unfinished short lives
        self._streams = StreamTable(self.tables["streams"])
        self._job_ids: dict[str, int] = {}
        self._positions: dict[tuple[int, int], int] = {}  # of the event with a number in a stream
        self._parked: dict[str, dict[Key, ParkedRow]] = {}  # by job
        self._slices: dict[int, dict[int, dict[Key, None]]] = {width: {} for width in statistics.KEPT_SECONDS}
        self._readers: dict[type[rows.Row], Callable[[Key, Any], rows.Row]] = {
            EventRow: lambda _, values: _event(values),
            StatisticRow: _statistic,
            StreamRow: lambda _, row: self._streams.read(row),
        }  # makes a row from what is stored in its place
        self._last = {"stream_id": 0, "job_id": 0}
        self._position = 0

    def streams(self, names: Collection[tuple[str, str]]) -> Iterable[StreamRow]:
        """The known streams among some (source, stream)."""
        return self._streams.known(names)

    def cached_streams(self) -> CachedStreams | None:
        """All streams."""
        return self._streams.cached()

    def jobs(self, jobs: Collection[str]) -> Iterable[JobRow]:
        """The known jobs among some ids."""
        ids, table = self._job_ids, self.tables["jobs"]
        return [replace(table[ids[job],]) for job in jobs if job in ids]

    def stages(self, keys: Collection[tuple[int, int]]) -> Iterable[StageRow]:
        """The known stages among some (job_id, stage)."""
        return self._some(StageRow, keys)

    def stages_of(self, job_id: int) -> list[StageRow]:
        """Every stage of a job."""
        known = max((job.stages for job in self._some(JobRow, [(job_id,)])), default=0)
        numbers = {*range(1, known + 1), *self._stages.get(job_id, ())}
        return self._some(StageRow, [(job_id, number) for number in sorted(numbers)])

    def packages(self, keys: Collection[PackageKey]) -> Iterable[PackageRow]:
        """The packages with a row among some."""
        found: list[PackageRow] = []
        begun, where, packages = self._begun, (0, 0), {}
        for key in keys:
            job_id, stage, line, number = key
            if stage != where[1] or job_id != where[0]:  # many in a row are of one stage
                where, packages = (job_id, stage), self._stages.get(job_id, {}).get(stage, {})
            kept = packages.get(line * _LINE + number)
            if kept is not None or (kept := begun.get(key)) is not None:
                found.append(self._package(key, kept))
        return found

    def begun_packages(self) -> Mapping[PackageKey, BegunLife]:
        """Packages with an unfinished short life."""
        return self._begun

    def packages_of(self, job_id: int, *, stage: int) -> list[PackageRow]:
        """Every package of a stage with a row."""
        return [self._package(key, kept) for key, kept in self._kept(job_id) if key[1] == stage]

    def idle_packages(self, job_id: int) -> list[PackageRow]:
        """The packages of a job with a row, no final fact, and no queued or running attempt."""
        found = []
        for key, kept in self._kept(job_id):
            if _state(kept) in _MOVED_BY_THEMSELVES:
                continue
            row = self._package(key, kept)
            if row.facts.cancelled_at is None and row.facts.aborted_at is None:
                found.append(row)
        return found

    def finals(self, job_id: int) -> Iterator[FinalPackage]:
        """The packages of a job with a final fact of their own, by address."""
        kept, text = self._in_place(job_id), self._text
        return read_finals((*key[1:], _state(one), text(one)) for key, one in kept if isinstance(one, int))

    def unfinished(self, job_id: int) -> Iterator[PackageRow]:
        """The other packages of a job with a row, by address."""
        for key, one in self._in_place(job_id):
            if isinstance(one, int) and _state(one) in SURELY_OVER:
                continue
            row = self._package(key, one)
            if not is_over(row.facts):
                yield PackageRow(*key, row.facts)

    def states(self, job_id: int) -> Iterator[tuple[PackageKey, str]]:
        """The state of every package of a job with a row, by address."""
        for key, one in self._in_place(job_id):
            yield key, _state(one)

    def _in_place(self, job_id: int) -> Iterator[tuple[PackageKey, Kept]]:
        return iter(sorted(self._kept(job_id), key=itemgetter(0)))

    def _kept(self, job_id: int) -> Iterator[tuple[PackageKey, Kept]]:
        """Every stored package of a job."""
        for stage, packages in self._stages.get(job_id, {}).items():
            for place, kept in packages.items():
                yield (job_id, stage, *divmod(place, _LINE)), kept
        yield from ((key, life) for key, life in self._begun.items() if key[0] == job_id)

    def _package(self, key: PackageKey, kept: Kept) -> PackageRow:
        """A row for the caller: mutable parts are copied, and nothing else."""
        if not isinstance(kept, PackageRow):
            return PackageRow(*key, read_facts(self._text(kept)))
        facts = kept.facts
        own = replace(
            facts,
            attempts={number: replace(one, keys=one.keys.copy()) for number, one in facts.attempts.items()},
            positions=facts.positions.copy(),
            tags=facts.tags.copy(),
            keys=facts.keys.copy(),
        )
        return PackageRow(*key, own, kept.counted, kept.observed)

    def _text(self, kept: BegunLife | int) -> str:
        """The facts of a package that is not stored as a row."""
        if not isinstance(kept, int):
            return text_of(kept)
        return text_of(self._ended.life(-1 - kept)) if kept < 0 else self._over.text(kept // _STATES)

    def pilots(self, names: Collection[str]) -> Iterable[PilotRow]:
        """The known pilots among some."""
        return self._some(PilotRow, [(name,) for name in names])

    def nodes(self, names: Collection[str]) -> Iterable[NodeRow]:
        """The known nodes among some."""
        return self._some(NodeRow, [(name,) for name in names])

    def sites(self, names: Collection[str]) -> Iterable[SiteRow]:
        """The known sites among some."""
        return self._some(SiteRow, [(name,) for name in names])

    def stored(self, wanted: Collection[EventLookup]) -> Iterable[EventRow | ParkedRow]:
        """The stored events among some, including parked ones."""
        for one in wanted:
            identity = (one.stream_id, one.n)
            if (parked := self.tables["parked"].get(identity)) is not None:
                yield replace(parked)
            position = self._positions.get(identity)
            if position is None:
                continue
            event = _event(self.tables["events"][position,])
            about = (event.job_id, event.stage, event.line, event.number) if event.stage else None
            if about == one.package:
                yield event

    def parked(self, job: str) -> list[ParkedRow]:
        """The events that wait for the registration of a job."""
        return [replace(row) for row in self._parked.get(job, {}).values()]

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> Iterable[StatisticRow]:
        """The existing slices of statistics among some (width_seconds, slice, site, activity)."""
        return self._some(StatisticRow, keys)

    def next_stream_id(self) -> int:
        """The number of a new stream."""
        return self._next("stream_id")

    def next_job_id(self) -> int:
        """The number of a new job; never used before."""
        return self._next("job_id")

    def position(self) -> int:
        """The position of the last event."""
        return self._position

    def advance(self, position: int) -> None:
        """Continue from a position, if the last one is lower."""
        self._position = max(self._position, position)

    def write(self, changes: Changes) -> None:
        """Replace all rows by key."""
        self._write_events(changes)
        self._write_packages(changes.packages)
        self._write_short(changes)
        self._streams.write(changes.streams, changes.counted_on)
        for job in changes.jobs:
            self._job_ids[job.job] = job.job_id
        for group in (
            changes.jobs, changes.stages, changes.pilots, changes.nodes, changes.sites, changes.cached_files, changes.tags,
            changes.knowledge, changes.statistics,
        ):  # fmt: skip
            self._keep(group)
        for name in changes.unparked:
            for gone in self._parked.pop(name, ()):
                del self.tables["parked"][gone]
        for parked in changes.parked:
            identity = (parked.stream_id, parked.n)
            assert identity not in self.tables["parked"], "an event is parked once"
            self.tables["parked"][identity] = self._parked.setdefault(parked.job, {})[identity] = replace(parked)
        if changes.observed:
            self._add_statistics(changes.observed, now=changes.received)

    def _write_packages(self, changed: Sequence[PackageRow]) -> None:
        put, buffer, numbers, begun = self._over.put, bytearray(), _STATE_NUMBERS, self._begun
        for package in changed:
            facts = package.facts
            if begun:
                begun.pop((package.job_id, package.stage, package.line, package.number), None)
            stage = self._stages.setdefault(package.job_id, {}).setdefault(package.stage, {})
            # The join has finished with its rows: they need not be copied when written.
            kept: Kept = package
            if (state := numbers.get(facts.state)) is not None:
                kept = put(written_facts(facts, buffer)) * _STATES + state
            stage[package.line * _LINE + package.number] = kept

    def _write_short(self, changes: Changes) -> None:
        """Store short lives as they come; one that has only begun is just remembered."""
        begun = self._begun
        begun |= changes.begun_packages
        where, packages = (0, 0), {}
        for ended in (changes.lived_packages, changes.ended_packages):
            kept = -self._ended.put(ended.values())
            for key in ended:
                job_id, stage, line, number = key
                if stage != where[1] or job_id != where[0]:  # many in a row are of one stage
                    where, packages = (job_id, stage), self._stages.setdefault(job_id, {}).setdefault(stage, {})
                kept -= 1
                packages[line * _LINE + number] = kept
        _exhaust(map(begun.pop, changes.ended_packages, repeat(None)))

    def _write_events(self, changes: Changes) -> None:
        table = self.tables["events"]
        for values in changes.all_events():
            position, stream_id, n = values[:3]
            assert position == self._position + 1, "positions count on by one"
            assert (stream_id, n) not in self._positions, "an event is stored once"
            self._positions[stream_id, n] = self._position = position
            table[position,] = values  # most are never read again: a row is made on demand

    def find_rows(
        self,
        row: type[AnyRow],
        *,
        having: Mapping[str, str | int],
        after: tuple[str | int, ...] = (),
        limit: int | None = None,
    ) -> list[AnyRow]:
        """Rows with these values, in the order of the table's key; after a whole key, if one is given."""
        table = self._table(row)
        found = [table[key] for key in sorted(table) if key > after and _has(table[key], having)]
        return [replace(one) for one in found[:limit]]

    def rows_by_keys(
        self, row: type[AnyRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[AnyRow]:
        """The existing rows among some keys, given as values of some columns; in any order."""
        if by == TABLE_BY_ROW[row].key:
            return self._some(row, keys)
        read = _key_reader(by)
        return [replace(one) for one in self._table(row).values() if read(one) in keys]

    def put_rows(self, changed: Sequence[rows.Row]) -> None:
        """Replace rows of one table by key."""
        self._keep([replace(one) for one in changed])
        self._streams.write([replace(one) for one in changed if isinstance(one, StreamRow)], {})

    def _keep(self, changed: Sequence[rows.Row]) -> None:
        """As `put_rows`, for rows that will not change any more."""
        if changed:
            kind = type(changed[0])
            table, key_of = self.tables[TABLE_BY_ROW[kind].name], _KEYS[kind]
            for one in changed:
                table[key_of(one)] = one if not isinstance(one, StatisticRow) else read_sketch(one.sketch)

    def remove_rows(
        self, row: type[rows.Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...] = ()
    ) -> None:
        """Remove the rows with these values; only up to and including a whole key, if one is given."""
        table = self.tables[TABLE_BY_ROW[row].name]
        for key in [key for key in table if (not through or key <= through) and _has(table[key], having)]:
            del table[key]

    def _add_statistics(self, observed: Observed, *, now: float) -> None:
        """Add to slices in place, and remove those that are too old; they are packed when read."""
        table = self.tables["statistics"]
        for key, sketches in observed.items():
            before = table.get(key)
            total = added(before, sketches)
            if before is None:
                table[key] = total
                self._slices[key[0]].setdefault(key[1], {})[key] = None
        for width, slices in self._slices.items():
            oldest = int(now - statistics.KEPT_SECONDS[width]) // width
            for number in [number for number in slices if number < oldest]:
                for key in slices.pop(number):
                    table.pop(key, None)

    def _table(self, kind: type[AnyRow]) -> dict[Key, AnyRow]:
        table = self.tables[TABLE_BY_ROW[kind].name]
        read = self._readers.get(kind)
        return {key: cast("AnyRow", read(key, kept)) for key, kept in table.items()} if read is not None else table

    def _some(self, kind: type[AnyRow], keys: Collection[Key]) -> list[AnyRow]:
        table = self.tables[TABLE_BY_ROW[kind].name]
        read = self._readers.get(kind)
        if read is not None:
            return [cast("AnyRow", read(key, table[key])) for key in keys if key in table]
        return [replace(table[key]) for key in keys if key in table]

    def _next(self, counter: str) -> int:
        self._last[counter] += 1
        return self._last[counter]


_MOVED_BY_THEMSELVES = frozenset({"SCHEDULED", "RUNNING", "DONE", "CLEARED"})
"""States of packages that do not depend on their job."""


def _event(values: tuple[Any, ...]) -> EventRow:
    return EventRow(**dict(zip(EventRow.__struct_fields__, values, strict=True)))


def _statistic(key: Key, sketch: Sketch) -> StatisticRow:
    return StatisticRow(width_seconds=key[0], slice=key[1], site=key[2], activity=key[3], sketch=packed(sketch))


def _has(row: rows.Row, having: Mapping[str, str | int]) -> bool:
    return all(getattr(row, column) == value for column, value in having.items())


def _state(kept: Kept) -> str:
    if isinstance(kept, int):
        return FINAL_ORDER[kept % _STATES] if kept >= 0 else DONE
    return RUNNING if isinstance(kept, BegunLife) else kept.facts.state
