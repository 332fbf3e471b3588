"""Reads a SQLite book: each query on a snapshot of its own, from any thread, without blocking the writer.

A sealed job is read from its own file; the caller need not know.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.journals.dump import StoredJob, dump_lines, dump_parts
from pilotage.adapters.journals.queries import SQLITE, Compiler, bounds, named_jobs, serving_clause
from pilotage.adapters.journals.sqlite import locations
from pilotage.adapters.journals.sqlite.dumped_events import events_at, sealed_events
from pilotage.adapters.journals.sqlite.locations import SqliteLocations, jobs_named, select
from pilotage.adapters.journals.sqlite.package_queries import (
    Candidate,
    IndexedBook,
    PackageKey,
    count_live_packages,
    count_packages_of_job,
    indexed_book_of,
    job_sources,
    jobs_sql,
    live_packages,
    merged,
    packages_of_job,
)
from pilotage.adapters.journals.sqlite.schema import LIVE, PACKAGE_PLACES, SCHEMA_VERSION, SEALED
from pilotage.book.fold.finals import FINAL_ORDER, SURELY_OVER, FinalPackage, is_over, read_finals
from pilotage.book.fold.replay import DumpedEvent
from pilotage.book.query import Query, Target
from pilotage.book.rows import shapes
from pilotage.book.rows.rows import (
    CachedFileRow,
    EventRow,
    JobRow,
    KnowledgeRow,
    NodeRow,
    PackageRow,
    PilotRow,
    SiteRow,
    StageRow,
    StateHistogram,
    StatisticRow,
    StreamRow,
    TagRow,
    read_facts,
)
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import DumpParts, FoundEvent, FoundPackage, JournalError, Page

# Reads events by position: all of them, those of a job, or those of a package.
#
# Events have no index by package, nor by job except for those about the job itself. A package's row has the positions of
# its events; those of a small job are found through its rows, those of a large one by a scan from its first event.

FEW_PACKAGES = 2_000
"""Up to so many packages of a job are read for the positions of its events; a larger job is dense in the book."""

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
    """Reads one page of events for a query, from one book."""

    def __init__(self, book: sqlite3.Connection, query: Query, *, after: int, limit: int, scanned_max: int) -> None:
        """Start after a position."""
        self._book = book
        self._fits = _sql.filter(query)
        self._after, self._last = bounds(query, after=after)
        self._limit = limit
        self._scanned_max = scanned_max

    def between(self) -> Page[FoundEvent]:
        """Events of the live book, by position; those of sealed jobs are found only by naming the job."""
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
        # A job's registration is its first stored event.
        first = self._book.execute(
            "SELECT min(position) FROM events WHERE stage = 0 AND job_id IS NOT NULL AND job_id = ?", (job_id,)
        ).fetchone()[0]
        self._after = max(self._after, (first or 1) - 1)
        return self._page(self._scan("e.job_id = ?", job_id))

    def _is_dense(self, job_id: int) -> bool:
        (place,) = self._book.execute("SELECT place FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if place == "sealed":
            return True  # the job's own file contains nothing else
        rows = self._book.execute(
            "SELECT 1 FROM package_facts WHERE job_id = ? LIMIT ?", (job_id, FEW_PACKAGES + 1)
        ).fetchall()
        return len(rows) > FEW_PACKAGES

    def _scan(self, where: str, *values: Any) -> Iterable[tuple[int, int]]:
        """All positions after one, and whether the event there matches."""
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


PackagePlace = tuple[int, int, int]
"""Stage, line and number of a package."""


def own_positions(book: sqlite3.Connection, job_id: int) -> list[int]:
    """The positions of events about a job itself."""
    return [position for (position,) in book.execute(_OWN_POSITIONS, (job_id, 0))]


def package_positions(
    book: sqlite3.Connection, job_id: int, *, after: PackagePlace, limit: int
) -> tuple[list[int], PackagePlace | None]:
    """The positions of events of some packages of a job, in the order of place after one; and where more may follow."""
    found = book.execute(
        f"SELECT stage, line, number, facts -> '$.positions' FROM package_facts INDEXED BY {PACKAGE_PLACES}"
        " WHERE job_id = ? AND (stage, line, number) > (?, ?, ?) ORDER BY stage, line, number LIMIT ?",
        (job_id, *after, limit),
    ).fetchall()
    positions = [each for *_, text in found for each in (_numbers(text) if text else ())]
    return positions, found[-1][:3] if len(found) == limit else None


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


SCANNED_MAX = 20_000
"""Rows to read for one page; if too few of them match, the page is short and the next one goes on from there."""

_JOBS_AT_ONCE = 500
_EVENTS_AT_ONCE = _PACKAGES_AT_ONCE = 500  # in a dump
_FINAL = f"state IN ({', '.join(repr(state) for state in FINAL_ORDER)})"
_MAY_GO_ON = f"state NOT IN ({', '.join(repr(state) for state in SURELY_OVER)})"


class SqliteReader(SqliteLocations):
    """The reading side of a book in a folder; the writing side is `SqliteJournal`."""

    def __init__(self, folder: Path, *, indexed: frozenset[str], scanned_max: int = SCANNED_MAX) -> None:
        """Take the folder, and the attributes that its book has indexes for."""
        super().__init__(folder)
        self._indexed = indexed
        self._scanned_max = scanned_max

    # --- single rows ---

    def position(self) -> int:
        """The position of the last event."""
        with self.live() as book:
            return int(book.execute("SELECT value FROM counters WHERE name = 'position'").fetchone()[0])

    def job(self, job: str) -> JobRow | None:
        """A job, also a sealed or a purged one."""
        with self.live() as book:
            return next(iter(jobs_named(book, [job])), None)

    def stages(self, job: JobRow) -> list[StageRow]:
        """The stages of a job, in order."""
        with self.book_of(job.job_id) as book:
            return list(select(book, StageRow, "WHERE job_id = ? ORDER BY stage", (job.job_id,))) if book else []

    def package(self, job: JobRow, place: PackageId) -> PackageRow | None:
        """A package, if it has a row."""
        key = (job.job_id, place.stage, place.line, place.number)
        with self.book_of(job.job_id) as book:
            if book is None:
                return None
            statement = "SELECT facts FROM package_facts WHERE (job_id, stage, line, number) = (?, ?, ?, ?)"
            found = book.execute(statement, key).fetchone()
        return PackageRow(*key, read_facts(found[0])) if found else None

    def line_counts(self, job: JobRow, *, stage: int, line: int) -> StateHistogram:
        """The histogram of the packages of a line that have a row."""
        counts = StateHistogram()
        with self.book_of(job.job_id) as book:
            statement = "SELECT facts FROM package_facts WHERE job_id = ? AND stage = ? AND line = ?"
            for (text,) in book.execute(statement, (job.job_id, stage, line)) if book else ():
                facts = read_facts(text)
                standing = shapes.counted_as(facts)
                if standing is not None:
                    shapes.count(counts, standing, 1)
                counts.touched += facts.shaped
        return counts

    def dump(self, job: str) -> Iterator[bytes]:
        """Everything about a job at one moment, as lines of JSON; the writer goes on meanwhile."""
        row = self.job(job)
        if row is None:
            raise JournalError("no such job", subject=f"job {job}")
        with self._stored(row) as stored:
            yield from dump_lines(job, stored, schema=SCHEMA_VERSION)

    @contextmanager
    def dump_parts(self, job: JobRow) -> Iterator[DumpParts]:
        """The same before it is encoded as one text."""
        with self._stored(job) as stored:
            yield dump_parts(job.job, stored, schema=SCHEMA_VERSION)

    @contextmanager
    def _stored(self, row: JobRow) -> Iterator[StoredJob]:
        with ExitStack() as stack:
            sealed: sqlite3.Connection | None = None
            if row.place == "sealed":
                with suppress(FileNotFoundError):  # it may have been unsealed since
                    sealed = stack.enter_context(self._sealed(row.job))
            yield self._stored_live(row) if sealed is None else self._stored_sealed(sealed, row)

    def _stored_live(self, row: JobRow) -> StoredJob:
        last = self.position()
        with self.book_of(row.job_id) as book:
            if book is None:
                raise JournalError("the job was purged: there is nothing left to dump", subject=f"job {row.job}")
            hashes = locations.used_contents(book, row.job_id)
            positions = array("q", own_positions(book, row.job_id))
        positions = self._with_packages(row, positions, last=last)
        found = ((sha256, self.content(sha256)) for sha256 in hashes)
        contents = ((sha256, content) for sha256, content in found if content is not None)
        return StoredJob(contents, self._in_slices(row, positions))

    def _stored_sealed(self, book: sqlite3.Connection, row: JobRow) -> StoredJob:
        """In one read: nobody waits for the file of a sealed job, and it has no other events."""
        hashes = locations.used_contents(book, row.job_id)
        found = ((sha256, locations.content_in(book, sha256) or self.content(sha256)) for sha256 in hashes)
        contents = ((sha256, content) for sha256, content in found if content is not None)
        return StoredJob(contents, sealed_events(book, row))

    def _with_packages(self, row: JobRow, positions: array[int], *, last: int) -> array[int]:
        """The positions of all events of a job up to one, sorted; later events are left out."""
        after: PackagePlace | None = (0, 0, 0)
        while after is not None:
            with self._there(row) as book:
                some, after = package_positions(book, row.job_id, after=after, limit=_PACKAGES_AT_ONCE)
            positions.extend(some)
        return array("q", sorted(each for each in positions if each <= last))

    @contextmanager
    def _there(self, row: JobRow) -> Iterator[sqlite3.Connection]:
        """The book with a job now: it may be sealed or unsealed while it is read in slices."""
        with self.book_of(row.job_id) as book:
            if book is None:
                raise JournalError("the job was purged while it was dumped", subject=f"job {row.job}")
            yield book

    def _in_slices(self, row: JobRow, positions: Sequence[int]) -> Iterator[DumpedEvent]:
        """Events of a job in slices: the caller may be slow, and a long snapshot would make the writer's WAL grow.

        Events never change; their job may be sealed or unsealed meanwhile, and is looked up each time.
        """
        for start in range(0, len(positions), _EVENTS_AT_ONCE):
            with self._there(row) as book:
                events = list(events_at(book, row.job, positions[start : start + _EVENTS_AT_ONCE]))
            yield from events

    # --- pages ---

    def find_jobs(self, query: Query, *, after: str | None, limit: int) -> Page[JobRow]:
        """Jobs in the order of their ids, after one."""
        clause = serving_clause(query, Target.JOBS, indexed=self._indexed)
        with self.live() as book:
            sources = job_sources(book, query, clause, after=after or "")
            with merged(sources, key=1) as candidates:
                found, more, last = self._page(candidates, limit=limit, fits=2)
            ids = [candidate[1] for candidate in found]
            rows = {row.job_id: row for row in _by_ids(book, ids)}
        return Page(items=[rows[job_id] for job_id in ids], more=more, scanned_to=last[0] if more else None)

    def find_packages(
        self, query: Query, *, after: tuple[str, PackageId] | None, limit: int, job: JobRow | None = None
    ) -> Page[FoundPackage]:
        """Packages that have a row, in the order of registration and place, after one."""
        with ExitStack() as stack:
            sources = self._package_sources(stack, query, job=job, after=after)
            candidates = stack.enter_context(merged(sources, key=4))
            found, more, last = self._page(candidates, limit=limit, fits=6)
        items = [
            FoundPackage(job=job, owner=owner, row=PackageRow(job_id, stage, line, number, read_facts(facts)))
            for job_id, stage, line, number, job, owner, facts in found
        ]
        return Page(items=items, more=more, scanned_to=(last[4], PackageId(*last[1:4])) if more else None)

    def _package_sources(
        self, stack: ExitStack, query: Query, *, job: JobRow | None, after: tuple[str, PackageId] | None
    ) -> list[Iterator[Candidate]]:
        """The sources of packages for a query; a named job is read from wherever it is stored."""
        names = (job.job,) if job is not None else named_jobs(query)
        if names is not None:
            with self.live() as book:
                return [self._packages_of(query, jobs_named(book, names), after=_key_after(book, after))]
        book = stack.enter_context(self.live())
        return live_packages(IndexedBook(book=book, indexed=self._indexed), query, after=_key_after(book, after))

    def _packages_of(self, query: Query, jobs: Sequence[JobRow], *, after: PackageKey) -> Iterator[Candidate]:
        """Packages of one job after another; each is opened only after the one before is exhausted."""
        for row in jobs:
            if row.job_id >= after[0]:
                with self.book_of(row.job_id) as book:
                    if book is not None:
                        store = indexed_book_of(book, row.job_id, indexed=self._indexed)
                        yield from packages_of_job(store, query, row.job_id, job=row.job, after=after)

    def _page(
        self, candidates: Iterator[Candidate], *, limit: int, fits: int
    ) -> tuple[list[Candidate], bool, Candidate]:
        """The matching candidates, whether there may be more, and the one to continue after."""
        found: list[Candidate] = []
        last: Candidate = ()
        for number, candidate in enumerate(candidates, 1):
            if candidate[fits]:
                if len(found) == limit:
                    return found, True, found[-1]
                found.append(candidate)
            last = candidate
            if number >= self._scanned_max:
                return found, True, last
        return found, False, last

    def find_events(
        self,
        query: Query,
        *,
        after: int,
        limit: int,
        job: JobRow | None = None,
        place: PackageId | None = None,
    ) -> Page[FoundEvent]:
        """Events in the order of their positions, after one; of one job or package if given."""
        names = (job.job,) if job is not None else named_jobs(query)
        if names is None:
            serving_clause(query, Target.EVENTS, indexed=self._indexed)
            with self.live() as book:
                return EventReader(book, query, after=after, limit=limit, scanned_max=self._scanned_max).between()
        with self.live() as book:
            jobs = jobs_named(book, names)
        pages = [self._events_of(query, row, place, after=after, limit=limit) for row in jobs]
        return merged_pages(pages, limit=limit)

    def _events_of(
        self, query: Query, job: JobRow, place: PackageId | None, *, after: int, limit: int
    ) -> Page[FoundEvent]:
        with self.book_of(job.job_id) as book:
            if book is None:
                return Page(items=[], more=False)
            reader = EventReader(book, query, after=after, limit=limit, scanned_max=self._scanned_max)
            return reader.of_job(job.job_id) if place is None else reader.of_package(job.job_id, place)

    # --- counts ---

    def count_jobs(self, query: Query) -> int:
        """Number of jobs that match."""
        serving_clause(query, Target.JOBS, indexed=self._indexed)
        fits = jobs_sql.filter(query)
        with self.live() as book:
            statement = f"SELECT count(*) FROM jobs AS j WHERE {fits.text}"
            return int(book.execute(statement, fits.parameters).fetchone()[0])

    def count_packages(self, query: Query, *, job: JobRow | None = None) -> int:
        """Number of packages with a row that match."""
        names = (job.job,) if job is not None else named_jobs(query)
        if names is None:
            with self.live() as book:
                return count_live_packages(IndexedBook(book=book, indexed=self._indexed), query)
        with self.live() as book:
            jobs = jobs_named(book, names)
        total = 0
        for row in jobs:
            with self.book_of(row.job_id) as book_of_job:
                if book_of_job is not None:
                    store = indexed_book_of(book_of_job, row.job_id, indexed=self._indexed)
                    total += count_packages_of_job(store, query, row.job_id)
        return total

    def count_sealed(self) -> int:
        """Number of sealed jobs."""
        with self.live() as book:
            statement = f"SELECT count(*) FROM jobs INDEXED BY jobs_sealed WHERE {SEALED}"
            return int(book.execute(statement).fetchone()[0])

    # --- for the engine's start ---

    def live_jobs(self) -> list[JobRow]:
        """The jobs of the live book that are not cleared, in the order of registration."""
        with self.live() as book:
            return list(select(book, JobRow, f"WHERE {LIVE} AND state <> 'CLEARED' ORDER BY job_id"))

    def own_events(self, job: JobRow) -> list[EventRow]:
        """The events about a job itself, not about its packages, in the order of their positions."""
        where = "WHERE stage = 0 AND job_id IS NOT NULL AND job_id = ? ORDER BY position"  # matches the partial index
        with self.book_of(job.job_id) as book:
            return list(select(book, EventRow, where, (job.job_id,))) if book else []

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """The packages of a job that have ended by facts of their own, in the order of place."""
        return read_finals(self._in_place(job, _FINAL))

    def unfinished(self, job: JobRow) -> Iterator[PackageRow]:
        """The other packages of a job that have a row, in the order of place."""
        for stage, line, number, _, text in self._in_place(job, _MAY_GO_ON):
            facts = read_facts(text)
            if not is_over(facts):
                yield PackageRow(job.job_id, stage, line, number, facts)

    def _in_place(self, job: JobRow, where: str) -> Iterator[tuple[int, int, int, str, str]]:
        """Packages of a job in the order of their key, by that index, so that nothing is sorted."""
        with self.book_of(job.job_id) as book:
            if book is not None:
                yield from book.execute(
                    f"SELECT stage, line, number, state, facts FROM package_facts INDEXED BY {PACKAGE_PLACES}"
                    f" WHERE job_id = ? AND {where} ORDER BY stage, line, number",
                    (job.job_id,),
                )

    def stream(self, source: str, stream: str) -> StreamRow | None:
        """A stream, if it is known."""
        with self.live() as book:
            return next(iter(select(book, StreamRow, "WHERE source = ? AND stream = ?", (source, stream))), None)

    def streams(self, source: str) -> Iterator[StreamRow]:
        """All streams of a source, by name."""
        with self.live() as book:
            yield from select(book, StreamRow, "WHERE source = ? ORDER BY stream", (source,))

    # --- other rows ---

    def statistics(self, *, width_seconds: int, slices: range) -> list[StatisticRow]:
        """The existing slices of statistics in a range."""
        with self.live() as book:
            where = "WHERE width_seconds = ? AND slice >= ? AND slice < ? ORDER BY slice, site, activity"
            return list(select(book, StatisticRow, where, (width_seconds, slices.start, slices.stop)))

    def pilot(self, name: str) -> PilotRow | None:
        """A pilot, or its request, if known."""
        with self.live() as book:
            return next(iter(select(book, PilotRow, "WHERE pilot = ?", (name,))), None)

    def pilots(self, *, after: str, limit: int) -> list[PilotRow]:
        """Pilots by name."""
        with self.live() as book:
            return list(select(book, PilotRow, "WHERE pilot > ? ORDER BY pilot LIMIT ?", (after, limit)))

    def latest_pilots(self, site: str, *, limit: int) -> list[PilotRow]:
        """The most recently updated pilots of a site, the latest first."""
        with self.live() as book:
            return list(select(book, PilotRow, "WHERE site = ? ORDER BY updated_at DESC, pilot LIMIT ?", (site, limit)))

    def node(self, name: str) -> NodeRow | None:
        """A node, if known."""
        with self.live() as book:
            return next(iter(select(book, NodeRow, "WHERE node = ?", (name,))), None)

    def nodes_named(self, names: Collection[str]) -> list[NodeRow]:
        """The known ones among some nodes, by name."""
        wanted = msgspec.json.encode(list(names)).decode()
        with self.live() as book:
            return list(
                select(book, NodeRow, "WHERE node IN (SELECT value FROM json_each(?)) ORDER BY node", (wanted,))
            )

    def nodes(self, *, after: str, limit: int) -> list[NodeRow]:
        """Nodes by name."""
        with self.live() as book:
            return list(select(book, NodeRow, "WHERE node > ? ORDER BY node LIMIT ?", (after, limit)))

    def sites(self) -> list[SiteRow]:
        """All sites."""
        with self.live() as book:
            return list(select(book, SiteRow, "ORDER BY site"))

    def cached_files(self, site: str, *, after: str, limit: int) -> list[CachedFileRow]:
        """Files of the cache of a site, by digest."""
        with self.live() as book:
            which = "WHERE site = ? AND digest > ? ORDER BY digest LIMIT ?"
            return list(select(book, CachedFileRow, which, (site, after, limit)))

    def knowledge(self, name: str) -> KnowledgeRow | None:
        """What the service learned from all jobs, by its name."""
        with self.live() as book:
            return next(iter(select(book, KnowledgeRow, "WHERE name = ?", (name,))), None)

    def tags(self, job: JobRow, *, after: tuple[int, int, int, str], limit: int) -> list[TagRow]:
        """The tags of a job and its packages, in the order of place and name, after one."""
        where = "WHERE job_id = ? AND (stage, line, number, name) > (?, ?, ?, ?) ORDER BY stage, line, number, name"
        with self.book_of(job.job_id) as book:
            return list(select(book, TagRow, f"{where} LIMIT ?", (job.job_id, *after, limit))) if book else []

    def forgotten(self) -> int:
        """Number of events that were received and deleted: those of purged jobs, and dropped parked ones."""
        with self.live() as book:
            return int(book.execute("SELECT value FROM counters WHERE name = 'forgotten'").fetchone()[0])

    def mislabelled(self, job: JobRow) -> list[PackageId]:
        """The packages of a job whose columns differ from their facts."""
        with self.book_of(job.job_id) as book:
            if book is None:
                return []
            found = book.execute(
                "SELECT stage, line, number FROM package_facts WHERE job_id = ?"
                " AND (state IS NOT facts ->> 'state' OR site IS NOT facts ->> 'site') ORDER BY stage, line, number",
                (job.job_id,),
            )
            return [PackageId(*place) for place in found]

    def orphans(self) -> list[int]:
        """Ids of jobs that have events but no row."""
        with self.live() as book:
            found = book.execute(
                "SELECT DISTINCT e.job_id FROM events AS e WHERE e.job_id IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.job_id = e.job_id)"
            )
            return [job_id for (job_id,) in found]


def _by_ids(book: sqlite3.Connection, ids: Sequence[int]) -> Iterator[JobRow]:
    for start in range(0, len(ids), _JOBS_AT_ONCE):
        some = ids[start : start + _JOBS_AT_ONCE]
        yield from select(book, JobRow, f"WHERE job_id IN ({', '.join('?' * len(some))})", some)


def _key_after(book: sqlite3.Connection, after: tuple[str, PackageId] | None) -> PackageKey:
    if after is None:
        return (0, 0, 0, 0)
    found = book.execute("SELECT job_id FROM jobs WHERE job = ?", (after[0],)).fetchone()
    return (found[0] if found else 0, after[1].stage, after[1].line, after[1].number)
