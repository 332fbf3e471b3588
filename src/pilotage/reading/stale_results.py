"""Finished packages whose inputs were made again with other contents, as the book says."""

from __future__ import annotations

from collections.abc import Iterator

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
    for _, data in _told(journal, job, place):
        if data.granted == granted:
            found = data.files
    return found


def packages_with_remade_inputs(journal: Journal, job: JobRow) -> dict[PackageId, InputsRemade]:
    """The packages of a job whose results the book calls stale, and what it says of them last."""
    last = dict(_told(journal, job, None))
    return {place: last[place] for place in sorted(last) if last[place].files}


def _told(journal: Journal, job: JobRow, place: PackageId | None) -> Iterator[tuple[PackageId, InputsRemade]]:
    """What the book says of one package, or of all, in its order."""
    after, more = 0, True
    while more:
        page = journal.find_events(_REMADE, after=after, limit=_EVENTS_AT_ONCE, job=job, place=place)
        for event in (each.row for each in page.items):
            after = event.position
            assert event.stage is not None
            assert event.line is not None
            assert event.number is not None
            yield PackageId(event.stage, event.line, event.number), _remade(event.data)
        more = page.more
        after = page.scanned_to if page.scanned_to is not None else after
