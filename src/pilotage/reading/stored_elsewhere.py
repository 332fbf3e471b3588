"""Copies of outputs that are in another store than they were to be, as the book says."""

from __future__ import annotations

import msgspec

from pilotage.book.query import parse
from pilotage.book.rows.rows import JobRow
from pilotage.model.events.file_payloads import OutputsStored, StoredCopy
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import Journal

_EVENTS_AT_ONCE = 1000
_STORED = parse("type = OutputsStored")
_stored = msgspec.json.Decoder(OutputsStored).decode


def copies_elsewhere(journal: Journal, job: JobRow, place: PackageId, *, attempt: int) -> tuple[StoredCopy, ...]:
    """The copies of the outputs of an attempt that another store took than the one in which they were to be."""
    found: tuple[StoredCopy, ...] = ()
    after, more = 0, True
    while more:
        page = journal.find_events(_STORED, after=after, limit=_EVENTS_AT_ONCE, job=job, place=place)
        for event in (each.row for each in page.items):
            after = event.position
            if event.attempt == attempt:
                found = tuple(each for each in _stored(event.data).copies if each.instead_of)
        more = page.more
        after = page.scanned_to if page.scanned_to is not None else after
    return found
