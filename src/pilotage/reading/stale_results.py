"""Finished packages whose inputs were made again with other contents, as the book says."""

from __future__ import annotations

import msgspec

from pilotage.book.query import parse
from pilotage.book.rows.rows import JobRow
from pilotage.model.events.file_payloads import InputsRemade, RemadeInput
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import Journal

_EVENTS_AT_ONCE = 1000
_REMADE = parse("type = InputsRemade")
_remade = msgspec.json.Decoder(InputsRemade).decode


def remade_inputs(journal: Journal, job: JobRow, place: PackageId | None, *, granted: int) -> tuple[RemadeInput, ...]:
    """The inputs that the granted attempt of a package read with other contents than they have now."""
    found: tuple[RemadeInput, ...] = ()
    after, more = 0, True
    while more:
        page = journal.find_events(_REMADE, after=after, limit=_EVENTS_AT_ONCE, job=job, place=place)
        for event in (each.row for each in page.items):
            after = event.position
            data = _remade(event.data)
            if data.granted == granted:
                found = data.files
        more = page.more
        after = page.scanned_to if page.scanned_to is not None else after
    return found
