"""The interface of a journal's transaction that the join of a batch needs, and the changes to write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from pilotage.book.codec import Checked
from pilotage.book.rows import rows
from pilotage.book.rows.fast_rows import BegunLife, EndedLife
from pilotage.book.rows.sketches import Sketch

AnyRow = TypeVar("AnyRow", bound=rows.Row)

PackageKey = tuple[int, int, int, int]
"""job_id, stage, line, number"""
OfStreams = Mapping[str, Mapping[str, int]]
"""A number for each stream, by source and name."""
Observed = dict[tuple[int, int, str, str], list[Sketch]]
"""Additions to slices of statistics, by width_seconds, slice, site and activity."""


USUAL: dict[str, int | None] = {"version": 1, "skewed": 0, "epoch": 1, "pilot": None, "site": None}
"""Default values of these columns, which most events about packages have."""
PLAIN_COLUMNS = tuple(column for column in rows.EventRow.__struct_fields__ if column not in {*USUAL, "received"})
"""The other columns of such an event, without those of its batch."""
_USUAL_VALUES = tuple(USUAL.values())
_in_order: Callable[[tuple[Any, ...]], tuple[Any, ...]] = itemgetter(
    *((*PLAIN_COLUMNS, "received", *USUAL).index(column) for column in rows.EventRow.__struct_fields__)
)
_TYPE = rows.EventRow.__struct_fields__.index("type")
_encode = msgspec.json.Encoder().encode


class PlainEvents:
    """The events of a batch about packages with default values, as column values or as rows."""

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
        """Take the fresh events of a batch, with positions from `first` on, except those at the positions `but`."""
        self._fresh = fresh
        self._first = first
        self._but = but
        self._stream_ids = stream_ids
        self._job_ids = job_ids

    @property
    def last_position(self) -> int:
        """The position of the last event of the batch; 0 if it has none."""
        return self._first + len(self._fresh) - 1 if self._fresh else 0

    def values(self, types: Collection[str] = ()) -> list[Any]:
        """The values of `PLAIN_COLUMNS` of all these events, or of some types, one after another.

        It makes no row per event, which would only be taken apart again.
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


class CachedStreams(NamedTuple):
    """All streams, read-only."""

    ids: OfStreams
    last_numbers: OfStreams  # the last number, for streams without gaps


class EventLookup(NamedTuple):
    """An event that may be stored: its identity, and its package, if any."""

    stream_id: int
    n: int
    package: PackageKey | None


class Changes(msgspec.Struct, kw_only=True):
    """All rows that a batch adds or changes; each at most once."""

    received: float = 0.0
    events: list[tuple[Any, ...]] = []  # as the columns of EventRow
    plain_events: PlainEvents = PlainEvents()  # those with default values
    streams: list[rows.StreamRow] = []
    counted_on: OfStreams = {}  # new last numbers of streams from `cached_streams` without gaps
    jobs: list[rows.JobRow] = []
    stages: list[rows.StageRow] = []
    packages: list[rows.PackageRow] = []
    begun_packages: dict[PackageKey, BegunLife] = {}  # new short lives: begun,
    lived_packages: dict[PackageKey, EndedLife] = {}  # or begun and ended in this batch;
    ended_packages: dict[PackageKey, EndedLife] = {}  # and those with a row, which lacks only their end
    pilots: list[rows.PilotRow] = []
    nodes: list[rows.NodeRow] = []
    sites: list[rows.SiteRow] = []
    cached_files: list[rows.CachedFileRow] = []
    knowledge: list[rows.KnowledgeRow] = []
    tags: list[rows.TagRow] = []
    parked: list[rows.ParkedRow] = []
    unparked: list[str] = []  # jobs whose parked events are among `events` now
    statistics: list[rows.StatisticRow] = []
    observed: Observed = {}  # additions to rows of statistics, which need not be read for it
    forgotten: int = 0  # numbers of `streams` that count as received, without a stored event

    @property
    def last_position(self) -> int:
        """The position of the last event of the batch; 0 if it has none."""
        return max(self.events[-1][0] if self.events else 0, self.plain_events.last_position)

    def all_events(self, types: Collection[str] = ()) -> list[tuple[Any, ...]]:
        """All events as the columns of EventRow, in the order of their positions; only of some types, if given."""
        values, common = self.plain_events.values(types), (self.received, *_USUAL_VALUES)
        plain = zip(*[iter(values)] * len(PLAIN_COLUMNS), strict=True)
        others = self.events if not types else [event for event in self.events if event[_TYPE] in types]
        return sorted([*(_in_order(event + common) for event in plain), *others])


class Ledger(Protocol):
    """An open transaction of the one writer."""

    def streams(self, names: Collection[tuple[str, str]]) -> Iterable[rows.StreamRow]:
        """The known streams among some (source, stream)."""
        ...

    def jobs(self, jobs: Collection[str]) -> Iterable[rows.JobRow]:
        """The known jobs among some ids."""
        ...

    def stages(self, keys: Collection[tuple[int, int]]) -> Iterable[rows.StageRow]:
        """The known stages among some (job_id, stage)."""
        ...

    def stages_of(self, job_id: int) -> list[rows.StageRow]:
        """Every stage of a job."""
        ...

    def packages(self, keys: Collection[PackageKey]) -> Iterable[rows.PackageRow]:
        """The packages among some that have a row."""
        ...

    def packages_of(self, job_id: int, *, stage: int) -> list[rows.PackageRow]:
        """The packages of a stage that have a row."""
        ...

    def idle_packages(self, job_id: int) -> list[rows.PackageRow]:
        """The packages of a job with a row, without a final fact, and without a queued or running attempt."""
        ...

    def pilots(self, names: Collection[str]) -> Iterable[rows.PilotRow]:
        """The known pilots among some."""
        ...

    def nodes(self, names: Collection[str]) -> Iterable[rows.NodeRow]:
        """The known nodes among some."""
        ...

    def sites(self, names: Collection[str]) -> Iterable[rows.SiteRow]:
        """The known sites among some."""
        ...

    def stored(self, wanted: Collection[EventLookup]) -> Iterable[rows.EventRow | rows.ParkedRow]:
        """The stored events among some, parked ones too."""
        ...

    def parked(self, job: str) -> list[rows.ParkedRow]:
        """The parked events of an unregistered job."""
        ...

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> Iterable[rows.StatisticRow]:
        """The existing slices of statistics among some (width_seconds, slice, site, activity)."""
        ...

    def next_stream_id(self) -> int:
        """An unused stream id."""
        ...

    def next_job_id(self) -> int:
        """An unused job id."""
        ...

    def position(self) -> int:
        """The position of the last event."""
        ...

    def advance(self, position: int) -> None:
        """Raise the last position to this one, if it is lower: loaded events have seen one as high elsewhere."""
        ...

    def write(self, changes: Changes) -> None:
        """Insert or replace all rows by key, and add observations to existing statistics."""
        ...

    # --- rows of notifications, which are not part of a batch's changes: any table of `book.rows.tables`, by its row ---

    def find_rows(
        self,
        row: type[AnyRow],
        *,
        having: Mapping[str, str | int],
        after: tuple[str | int, ...] = (),
        limit: int | None = None,
    ) -> list[AnyRow]:
        """Rows with these values, in the order of the table's key; after a whole key, if given."""
        ...

    def rows_by_keys(
        self, row: type[AnyRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[AnyRow]:
        """The rows among some keys, given as values of some columns; in any order."""
        ...

    def put_rows(self, changed: Sequence[rows.Row]) -> None:
        """Insert or replace rows of one table by key."""
        ...

    def remove_rows(
        self, row: type[rows.Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...] = ()
    ) -> None:
        """Remove the rows with these values; only up to and including a whole key, if given."""
        ...


# Optional caches of a ledger between transactions, under these names, which make joins faster. Without them the
# protocol's methods give the same rows.


def cached_streams(ledger: Ledger) -> CachedStreams | None:
    """All streams, if a ledger has them in memory; None: use `Ledger.streams`."""
    offered: Callable[[], CachedStreams | None] | None = getattr(ledger, "cached_streams", None)
    return offered() if offered is not None else None


def begun_packages(ledger: Ledger) -> Mapping[PackageKey, BegunLife]:
    """The begun short lives that a ledger has cached; for other packages use `Ledger.packages`."""
    offered: Callable[[], Mapping[PackageKey, BegunLife]] | None = getattr(ledger, "begun_packages", None)
    return offered() if offered is not None else {}
