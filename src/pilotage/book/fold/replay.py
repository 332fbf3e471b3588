"""Joins stored events again, in the order of their positions: to load a dumped job, or to rebuild a book.

Gaps in streams are not checked: only some jobs of a stream may be replayed, which leaves more gaps than a live stream
may have.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Any, cast

import msgspec

from pilotage.book.codec import Checked, Codec, Limits, Refusal
from pilotage.book.fold.intake import read_parked
from pilotage.book.fold.join import join
from pilotage.book.rows.ledger import AnyRow, Changes, Ledger
from pilotage.book.rows.rows import EventRow, ParkedRow, StreamRow
from pilotage.book.rows.streams import ranges_of, received_ranges, size, stream_row, united
from pilotage.model.events.events import Event, Source
from pilotage.model.jobs.layout import PackageId
from pilotage.model.settings.engine import SKEW_SECONDS

GROUP_EVENTS = 5_000
"""Fewer than the gaps that a stream may have, so that no group has more."""

Identity = tuple[str, str, int]
"""Source, stream and number."""

KEPT_ALREADY = Limits(event_bytes_max=2**40, tag_bytes_max=2**40, line_breaks_in_names=True)
"""Limits for events that were accepted before: none."""


class DumpedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An event in the dump of a job: when it was received, and whether its sender's clock was found wrong then."""

    event: Event
    received: float
    skewed: bool | msgspec.UnsetType = msgspec.UNSET  # if missing, the event's time decides

    @property
    def is_skewed(self) -> bool:
        """Whether its sender's clock was found wrong."""
        return looks_skewed(self.event, self.received) if self.skewed is msgspec.UNSET else self.skewed


def looks_skewed(event: Event, received: float) -> bool:
    """Tell whether an event's time is flagged by default."""
    return event.time > received + SKEW_SECONDS


class NotReplayed(Exception):
    """An event could not be replayed; the message says which and why."""


class Replay:
    """Replays events within one transaction. Statistics are not updated: the events are old, or from elsewhere."""

    def __init__(
        self, ledger: Ledger, *, codec: Codec | None = None, comes: Callable[[Identity], bool] | None = None
    ) -> None:
        """Take a ledger; `comes` tells which events are still to be added, and need not be unparked."""
        self._ledger = _ReplayLedger(ledger, comes=comes)
        self._codec = codec if codec is not None else Codec(limits=KEPT_ALREADY)
        self._group: list[Checked] = []
        self._received = 0.0
        self._skewed = False

    def add(self, event: Event, *, received: float, skewed: bool) -> None:
        """Replay an event, with the time it was received, and whether its sender's clock was found wrong then."""
        found = self._codec.check(event, len(self._group))
        if isinstance(found, Refusal):
            raise NotReplayed(f"{event.source} {event.stream} {event.n}: {found.message}")
        # A batch puts registrations first: one that was within a batch starts another.
        another = (received, skewed) != (self._received, self._skewed)
        if another or event.type == "JobRegistered" or len(self._group) >= GROUP_EVENTS:
            self._join()
            self._received, self._skewed = received, skewed
        self._group.append(found)

    def _join(self) -> None:
        if not self._group:
            return
        skewed = {(one.event.source, one.event.stream) for one in self._group} if self._skewed else ()
        ledger = cast("Ledger", self._ledger)
        # Events flagged as skewed stay so, and no others, whatever the setting is now.
        joined = join(ledger, self._group, received=self._received, codec=self._codec, skew_seconds=inf, skewed=skewed)
        if joined.receipt.refused or joined.receipt.repeated or joined.receipt.parked:
            why = (
                joined.receipt.refused[0].message
                if joined.receipt.refused
                else "an event came twice, or before its job"
            )
            raise NotReplayed(why)
        for one in self._group:
            self._ledger.note_received(one.event)
        self._ledger.write(joined.changes)
        self._group.clear()

    def finish(self) -> int:
        """Replay the remaining events and write the streams; returns the last position."""
        self._join()
        return self._ledger.finish()


class _ReplayLedger:
    """A ledger with empty streams, whose received numbers are written at the end."""

    def __init__(self, ledger: Ledger, *, comes: Callable[[Identity], bool] | None) -> None:
        self._ledger = ledger
        self._comes = comes
        self._rows: dict[tuple[str, str], StreamRow] = {}
        self._numbers: dict[tuple[str, str], array[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def streams(self, names: Collection[tuple[str, str]]) -> list[StreamRow]:
        missing = set(names) - self._rows.keys()
        if missing:
            self._rows |= {(row.source, row.stream): row for row in self._ledger.streams(missing)}
        known = [self._rows[name] for name in names if name in self._rows]
        return [StreamRow(stream_id=row.stream_id, source=row.source, stream=row.stream) for row in known]

    def cached_streams(self) -> None:
        return None

    def rows_by_keys(
        self, row: type[AnyRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[AnyRow]:
        if row is not StreamRow or by != ("stream_id",):
            return self._ledger.rows_by_keys(row, by=by, keys=keys)
        # New streams are not written yet.
        here = {(each.stream_id,): each for each in self._rows.values()}
        others = self._ledger.rows_by_keys(row, by=by, keys=[key for key in keys if key not in here])
        return [*(cast("AnyRow", here[key]) for key in keys if key in here), *others]

    def parked(self, job: str) -> list[ParkedRow]:
        rows = self._ledger.parked(job)
        if self._comes is None:
            return rows
        return [row for row in rows if not self._comes(identity_of(row))]

    def note_received(self, event: Event) -> None:
        self._numbers.setdefault((event.source, event.stream), array("q")).append(event.n)

    def write(self, changes: Changes) -> None:
        for row in changes.streams:
            new = StreamRow(stream_id=row.stream_id, source=row.source, stream=row.stream)
            self._rows.setdefault((row.source, row.stream), new)
        changes.streams = []
        changes.observed = {}
        changes.forgotten = 0
        self._ledger.write(changes)

    def finish(self) -> int:
        rows = []
        for name, numbers in self._numbers.items():
            ranges = ranges_of(numbers)
            if size(ranges) != len(numbers):
                raise NotReplayed(f"an event of {' '.join(name)} came twice")
            rows.append(stream_row(self._rows[name], united([*received_ranges(self._rows[name]), *ranges])))
        self._ledger.write(Changes(streams=rows))
        return self._ledger.position()


def wire_event(row: EventRow, *, job: str | None, source: str, stream: str) -> Event:
    """A stored event as it was received."""
    return Event(
        source=cast("Source", source),
        stream=stream,
        n=row.n,
        type=row.type,
        time=row.time,
        job=job,
        package=PackageId(row.stage, row.line, row.number).dotted if row.stage else None,
        attempt=row.attempt or None,
        pilot=row.pilot,
        site=row.site,
        epoch=row.epoch,
        seen=row.seen,
        version=row.version,
        data=msgspec.Raw(row.data.encode()),
    )


def identity_of(row: ParkedRow) -> Identity:
    """The identity of a parked event."""
    event = read_parked(row.event)
    return event.source, event.stream, event.n
