"""Events of a SQLite book by their positions: all of them, those of a job, or those of a package.

Events have no index by package, nor by job but for those about the job itself. A package's row knows the positions of its
events; those of a job are found through its rows where they are few, and by reading on from its first event otherwise.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pilotage.adapters.journals.queries import SQLITE, Compiler, bounds
from pilotage.adapters.journals.sqlite_schema import PACKAGE_PLACES
from pilotage.book.query import Query, Target
from pilotage.book.rows import EventRow, read_facts
from pilotage.book.tables import TABLE_BY_ROW
from pilotage.model.layout import PackageId
from pilotage.ports import FoundEvent, Page

FEW_PACKAGES = 2_000
"""Rows of a job that are gone through for the positions of its events; events of a larger job are dense in the book."""

_sql = Compiler(SQLITE, Target.EVENTS)
_COLUMNS = TABLE_BY_ROW[EventRow].columns
_WANTED = ", ".join(f"e.{column}" for column in _COLUMNS)
_JOINED = "LEFT JOIN jobs AS j ON j.job_id = e.job_id LEFT JOIN streams AS s ON s.stream_id = e.stream_id"

_OWN_POSITIONS = (
    "SELECT e.position FROM events AS e WHERE e.stage = 0 AND e.job_id IS NOT NULL AND e.job_id = ? AND e.position > ?"
)
_POSITIONS = (
    "SELECT x.value AS position FROM package_facts AS p, json_each(p.facts, '$.positions') AS x"
    f" WHERE p.job_id = ? AND x.value > ? UNION ALL {_OWN_POSITIONS}"
)
_numbers = msgspec.json.Decoder(list[int]).decode


class EventReader:
    """One page of the events that a query asks for, from one book."""

    def __init__(self, book: sqlite3.Connection, query: Query, *, after: int, limit: int, scanned_max: int) -> None:
        """Read on after a position."""
        self._book = book
        self._fits = _sql.filter(query)
        self._after, self._last = bounds(query, after=after)
        self._limit = limit
        self._scanned_max = scanned_max

    def between(self) -> Page[FoundEvent]:
        """Events of the live book, by position alone; those of jobs that are sealed are found by naming the job."""
        return self._page(self._scan("(e.job_id IS NULL OR j.place = 'live')"))

    def of_package(self, job_id: int, place: PackageId) -> Page[FoundEvent]:
        """Events about one package."""
        found = self._book.execute(
            "SELECT facts FROM package_facts WHERE (job_id, stage, line, number) = (?, ?, ?, ?)",
            (job_id, place.stage, place.line, place.number),
        ).fetchone()
        return self._page(self._at(read_facts(found[0]).positions if found else []))

    def of_job(self, job_id: int) -> Page[FoundEvent]:
        """Events about a job and its packages."""
        if not self._is_dense(job_id):
            positions = self._book.execute(_POSITIONS, (job_id, self._after, job_id, self._after))
            return self._page(self._at([position for (position,) in positions]))
        # A job is registered before anything else of it is stored.
        first = self._book.execute(
            "SELECT min(position) FROM events WHERE stage = 0 AND job_id IS NOT NULL AND job_id = ?", (job_id,)
        ).fetchone()[0]
        self._after = max(self._after, (first or 1) - 1)
        return self._page(self._scan("e.job_id = ?", job_id))

    def _is_dense(self, job_id: int) -> bool:
        (place,) = self._book.execute("SELECT place FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if place == "sealed":
            return True  # this is the job's own file, in which nothing else is
        rows = self._book.execute(
            "SELECT 1 FROM package_facts WHERE job_id = ? LIMIT ?", (job_id, FEW_PACKAGES + 1)
        ).fetchall()
        return len(rows) > FEW_PACKAGES

    def _scan(self, where: str, *values: Any) -> Iterable[tuple[int, int]]:
        """Every position after one, and whether the event there is one of those that are wanted."""
        last = self._last if self._last is not None else 2**63 - 1
        return self._book.execute(
            f"SELECT e.position, ({where}) AND ({self._fits.text}) FROM events AS e {_JOINED}"
            " WHERE e.position > ? AND e.position <= ? ORDER BY e.position",
            (*values, *self._fits.parameters, self._after, last),
        )

    def _at(self, positions: Sequence[int]) -> Iterable[tuple[int, int]]:
        """The same, for some positions."""
        statement = f"SELECT e.position, {self._fits.text} FROM events AS e {_JOINED} WHERE e.position = ?"
        for position in sorted(positions):
            if position > self._after and (self._last is None or position <= self._last):
                yield from self._book.execute(statement, (*self._fits.parameters, position)).fetchall()

    def _page(self, rows: Iterable[tuple[int, int]]) -> Page[FoundEvent]:
        found: list[int] = []
        more, scanned = False, 0
        for number, (position, fits) in enumerate(rows, 1):
            if fits and len(found) == self._limit:
                more, scanned = True, found[-1]
                break
            if fits:
                found.append(position)
            if number >= self._scanned_max:
                more, scanned = True, position
                break
        items = [self._event(position) for position in found]
        return Page(items=items, more=more, scanned_to=scanned if more else None)

    def _event(self, position: int) -> FoundEvent:
        statement = f"SELECT {_WANTED}, j.job, s.source, s.stream FROM events AS e {_JOINED} WHERE e.position = ?"
        *columns, job, source, stream = self._book.execute(statement, (position,)).fetchone()
        row = EventRow(**dict(zip(_COLUMNS, columns, strict=True)))
        return FoundEvent(job=job, source=source, stream=stream, row=row)


Place = tuple[int, int, int]
"""Stage, line and number of a package."""


def own_positions(book: sqlite3.Connection, job_id: int) -> list[int]:
    """Where the events about a job itself are."""
    return [position for (position,) in book.execute(_OWN_POSITIONS, (job_id, 0))]


def package_positions(
    book: sqlite3.Connection, job_id: int, *, after: Place, limit: int
) -> tuple[list[int], Place | None]:
    """Where the events of some packages of a job are, in the order of place after one; and the last of them, if any."""
    found = book.execute(
        f"SELECT stage, line, number, facts -> '$.positions' FROM package_facts INDEXED BY {PACKAGE_PLACES}"
        " WHERE job_id = ? AND (stage, line, number) > (?, ?, ?) ORDER BY stage, line, number LIMIT ?",
        (job_id, *after, limit),
    ).fetchall()
    positions = [each for *_, text in found for each in (_numbers(text) if text else ())]
    return positions, found[-1][:3] if found else None


def events_at(book: sqlite3.Connection, positions: Sequence[int]) -> list[FoundEvent]:
    """The events at some positions, in the order of these."""
    statement = f"SELECT {_WANTED}, j.job, s.source, s.stream FROM events AS e {_JOINED} WHERE e.position = ?"
    events = []
    for position in positions:
        for *columns, job, source, stream in book.execute(statement, (position,)):
            row = EventRow(**dict(zip(_COLUMNS, columns, strict=True)))
            events.append(FoundEvent(job=job, source=source, stream=stream, row=row))
    return events


def merged_pages(pages: Sequence[Page[FoundEvent]], *, limit: int) -> Page[FoundEvent]:
    """Pages of several jobs as one, as far as all of them were read."""
    if len(pages) == 1:
        return pages[0]
    items = sorted((found for page in pages for found in page.items), key=lambda found: found.row.position)
    ends = [page.scanned_to for page in pages if page.more]
    if ends:
        items = [found for found in items if found.row.position <= min(ends)]
    if len(items) > limit:
        return Page(items=items[:limit], more=True, scanned_to=items[limit - 1].row.position)
    return Page(items=items, more=bool(ends), scanned_to=min(ends, default=None))
