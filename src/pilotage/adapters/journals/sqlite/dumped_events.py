"""Reads the events of a job for its dump, from the live book or from the file of a sealed job."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from pilotage.adapters.journals.dump import dumped
from pilotage.book.fold.replay import DumpedEvent
from pilotage.book.rows.rows import JobRow
from pilotage.model.events.events import Event

_DUMPED = (
    "SELECT e.stream_id, e.n, e.type, e.time,"
    " CASE WHEN e.stage THEN e.stage || '.' || e.line || '.' || e.number END, nullif(e.attempt, 0), e.pilot, e.site,"
    " e.epoch, e.seen, e.version, CAST(e.data AS BLOB), e.received, e.skewed FROM"
)


def events_at(book: sqlite3.Connection, job: str, positions: Sequence[int]) -> Iterator[DumpedEvent]:
    """The events of a job at some positions, in that order."""
    wanted = f"{_DUMPED} json_each(?) AS w CROSS JOIN events AS e ON e.position = w.value ORDER BY w.id"
    return _dumped(book, job, book.execute(wanted, (msgspec.json.encode(list(positions)).decode(),)))


def sealed_events(book: sqlite3.Connection, job: JobRow) -> Iterator[DumpedEvent]:
    """Every event in the file of a sealed job, in order."""
    # NOT INDEXED: in the file of a sealed job all events are the job's.
    wanted = f"{_DUMPED} events AS e NOT INDEXED WHERE e.job_id = ? ORDER BY e.position"
    return _dumped(book, job.job, book.execute(wanted, (job.job_id,)))


def _dumped(book: sqlite3.Connection, job: str, found: Iterable[tuple[Any, ...]]) -> Iterator[DumpedEvent]:
    streams: dict[int, tuple[Any, Any]] = {}
    for stream_id, n, kind, time, package, attempt, pilot, site, epoch, seen, version, data, received, skewed in found:
        if stream_id not in streams:
            named = book.execute("SELECT source, stream FROM streams WHERE stream_id = ?", (stream_id,))
            streams[stream_id] = named.fetchone()
        event = Event(
            *streams[stream_id],
            n,
            kind,
            time,
            job,
            package,
            attempt,
            pilot,
            site,
            epoch,
            seen,
            version,
            msgspec.Raw(data),
        )
        if skewed or time > received:
            yield dumped(event, received=received, skewed=bool(skewed))
        else:  # nearly all
            yield DumpedEvent(event=event, received=received)
