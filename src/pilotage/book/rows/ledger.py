"""What the join of a batch needs of a store, within one transaction, and what it gives back to be written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from pilotage.book.codec import Checked
from pilotage.book.rows import rows
from pilotage.book.rows.fast_rows import Begun, Ended
from pilotage.book.rows.sketches import Sketch

AnyRow = TypeVar("AnyRow", bound=rows.Row)

PackageKey = tuple[int, int, int, int]
"""job_id, stage, line, number"""
OfStreams = Mapping[str, Mapping[str, int]]
"""A number for each stream, by its source and its name."""
Observed = dict[tuple[int, int, str, str], list[Sketch]]
"""What is added to slices of statistics, by their width_seconds, slice, site and activity."""


USUAL: dict[str, int | None] = {"version": 1, "skewed": 0, "epoch": 1, "pilot": None, "site": None}
"""What most events about packages have in these columns, which need not be said of each."""
PLAIN_COLUMNS = tuple(column for column in rows.EventRow.__struct_fields__ if column not in {*USUAL, "received"})
"""The columns of such an event that are its own, and not those of its batch."""
_USUAL_VALUES = tuple(USUAL.values())
_in_order: Callable[[tuple[Any, ...]], tuple[Any, ...]] = itemgetter(
    *((*PLAIN_COLUMNS, "received", *USUAL).index(column) for column in rows.EventRow.__struct_fields__)
)
_TYPE = rows.EventRow.__struct_fields__.index("type")
_encode = msgspec.json.Encoder().encode


class PlainEvents:
    """The events of a batch that are about packages and have the usual values, of which rows are made for those who store rows."""

    __slots__ = ("_but", "_first", "_fresh", "_job_ids", "_stream_ids")

    def __init__(
        self,
        fresh: Sequence[Checked] = (),
        *,
        first: int = 0,
        but: Collection[int] = (),
        stream_ids: Mapping[str, Mapping[str, int]] = {},
        job_ids: Mapping[str | None, int] = {},
    ) -> None:
        """Take the fresh events of a batch, with positions from `first` on, `but` for others at some positions."""
        self._fresh = fresh
        self._first = first
        self._but = but
        self._stream_ids = stream_ids
        self._job_ids = job_ids

    @property
    def last_position(self) -> int:
        """The position of the last event of the batch; 0 where it has none."""
        return self._first + len(self._fresh) - 1 if self._fresh else 0

    def values(self, types: Collection[str] = ()) -> list[Any]:
        """The values of `PLAIN_COLUMNS` of each, or each of some types, one after another.

        A row for each would be made to be taken apart.
        """
        values: list[Any] = []
        store, encode, job_ids, stream_ids, but = values.extend, _encode, self._job_ids, self._stream_ids, self._but
        for position, one in enumerate(self._fresh, self._first):
            event, place = one.event, one.place
            if place is None or (but and position in but) or (types and event.type not in types):
                continue
            stage, line, number = place
            store((
                position, stream_ids[event.source][event.stream], event.n, event.type, event.time, event.seen,
                job_ids[event.job], stage, line, number, event.attempt or 0, encode(event.data).decode(),
            ))  # fmt: skip
        return values


class StreamsAtHand(NamedTuple):
    """Every stream there is, for one who only looks."""

    ids: OfStreams
    heard: OfStreams  # how far, of those of which nothing was heard out of turn


class Sought(NamedTuple):
    """An event that may be stored: its identity, and the package it would be about if any."""

    stream_id: int
    n: int
    package: PackageKey | None


class Changes(msgspec.Struct, kw_only=True):
    """Every row that a batch adds or changes; each at most once."""

    received: float = 0.0
    events: list[tuple[Any, ...]] = []  # in the order of the columns of EventRow
    plain_events: PlainEvents = PlainEvents()  # those that have the usual values
    streams: list[rows.StreamRow] = []
    counted_on: OfStreams = {}  # how far those were heard that the ledger had at hand, and that only counted on
    jobs: list[rows.JobRow] = []
    stages: list[rows.StageRow] = []
    packages: list[rows.PackageRow] = []
    begun_packages: dict[PackageKey, Begun] = {}  # those whose life is short, of which there is no row yet: begun,
    lived_packages: dict[PackageKey, Ended] = {}  # or lived within the batch;
    ended_packages: dict[PackageKey, Ended] = {}  # and those that have a row, in which only their end is missing
    pilots: list[rows.PilotRow] = []
    nodes: list[rows.NodeRow] = []
    sites: list[rows.SiteRow] = []
    tags: list[rows.TagRow] = []
    parked: list[rows.ParkedRow] = []
    unparked: list[str] = []  # jobs whose parked events are among `events` now
    statistics: list[rows.StatisticRow] = []
    observed: Observed = {}  # what is to be added to rows of statistics, whatever they are: nobody else reads those
    forgotten: int = 0  # numbers of `streams` that count as heard, and of which nothing is kept

    @property
    def last_position(self) -> int:
        """The position of the last event of the batch; 0 where it has none."""
        return max(self.events[-1][0] if self.events else 0, self.plain_events.last_position)

    def all_events(self, types: Collection[str] = ()) -> list[tuple[Any, ...]]:
        """Events in the order of the columns of EventRow and of their positions; only of some types, if they are given."""
        values, common = self.plain_events.values(types), (self.received, *_USUAL_VALUES)
        plain = zip(*[iter(values)] * len(PLAIN_COLUMNS), strict=True)
        others = self.events if not types else [event for event in self.events if event[_TYPE] in types]
        return sorted([*(_in_order(event + common) for event in plain), *others])


class Ledger(Protocol):
    """One open transaction of the one writer."""

    def streams(self, names: Collection[tuple[str, str]]) -> Iterable[rows.StreamRow]:
        """The streams that are known among some (source, stream)."""
        ...

    def jobs(self, jobs: Collection[str]) -> Iterable[rows.JobRow]:
        """The jobs that are known among some ids."""
        ...

    def stages(self, keys: Collection[tuple[int, int]]) -> Iterable[rows.StageRow]:
        """The stages that are known among some (job_id, stage)."""
        ...

    def stages_of(self, job_id: int) -> list[rows.StageRow]:
        """Every stage of a job."""
        ...

    def packages(self, keys: Collection[PackageKey]) -> Iterable[rows.PackageRow]:
        """The packages that have a row among some."""
        ...

    def packages_of(self, job_id: int, *, stage: int) -> list[rows.PackageRow]:
        """Every package of a stage that has a row."""
        ...

    def idle_packages(self, job_id: int) -> list[rows.PackageRow]:
        """The packages of a job that have a row, no final fact, and no attempt in a queue or running."""
        ...

    def pilots(self, names: Collection[str]) -> Iterable[rows.PilotRow]:
        """The pilots that are known among some."""
        ...

    def nodes(self, names: Collection[str]) -> Iterable[rows.NodeRow]:
        """The nodes that are known among some."""
        ...

    def sites(self, names: Collection[str]) -> Iterable[rows.SiteRow]:
        """The sites that are known among some."""
        ...

    def stored(self, wanted: Collection[Sought]) -> Iterable[rows.EventRow | rows.ParkedRow]:
        """The events that are stored among some, those that are parked too."""
        ...

    def parked(self, job: str) -> list[rows.ParkedRow]:
        """The events that wait for a job to be registered."""
        ...

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> Iterable[rows.StatisticRow]:
        """The slices of statistics that exist among some (width_seconds, slice, site, activity)."""
        ...

    def next_stream_id(self) -> int:
        """A number that no stream has."""
        ...

    def next_job_id(self) -> int:
        """A number that no job ever had."""
        ...

    def position(self) -> int:
        """The position of the last event."""
        ...

    def advance(self, position: int) -> None:
        """Go on from a position, if the last one is lower: events that come have seen one as high elsewhere."""
        ...

    def write(self, changes: Changes) -> None:
        """Put all rows in place of those with the same keys, and add what was observed to those that there are."""
        ...

    # --- rows of notifications, which are no part of a batch's changes: any table of `book.tables`, by its row ---

    def find_rows(
        self,
        row: type[AnyRow],
        *,
        having: Mapping[str, str | int],
        after: tuple[str | int, ...] = (),
        limit: int | None = None,
    ) -> list[AnyRow]:
        """Rows with these values, in the order of the table's key; behind a whole key, where one is given."""
        ...

    def rows_by_keys(
        self, row: type[AnyRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[AnyRow]:
        """The rows that there are among some keys, given as the values of some columns; in any order."""
        ...

    def put_rows(self, changed: Sequence[rows.Row]) -> None:
        """Put rows of one table in place of those with the same keys."""
        ...

    def remove_rows(
        self, row: type[rows.Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...] = ()
    ) -> None:
        """Remove the rows with these values; of those only up to a whole key and with it, where one is given."""
        ...


# What a ledger may remember between transactions and offer under these names, so that a batch is joined sooner. No ledger
# needs it: what is not offered here is asked for by the protocol, and comes to the same rows.


def streams_at_hand(ledger: Ledger) -> StreamsAtHand | None:
    """All streams, where a ledger has them in memory; None: they are asked for by name (`Ledger.streams`)."""
    offered: Callable[[], StreamsAtHand | None] | None = getattr(ledger, "streams_at_hand", None)
    return offered() if offered is not None else None


def begun_packages(ledger: Ledger) -> Mapping[PackageKey, Begun]:
    """The begun short lives that a ledger remembers; any other package is asked for by its key (`Ledger.packages`)."""
    offered: Callable[[], Mapping[PackageKey, Begun]] | None = getattr(ledger, "begun_packages", None)
    return offered() if offered is not None else {}
