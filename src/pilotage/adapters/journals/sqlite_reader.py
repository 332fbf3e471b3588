"""Reading a SQLite book: every question on a snapshot of its own, from any thread, without ever holding up the writer.

A job that was sealed is read from its own file; whoever asks need not know.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pilotage.adapters.journals import sealed_copy
from pilotage.adapters.journals.dump import dump_lines
from pilotage.adapters.journals.queries import named_jobs, serving_clause
from pilotage.adapters.journals.sqlite_events import (
    EventReader,
    Place,
    events_at,
    merged_pages,
    own_positions,
    package_positions,
)
from pilotage.adapters.journals.sqlite_packages import (
    PackageKey,
    Shelf,
    count_live_packages,
    count_packages_of_job,
    live_packages,
    packages_of_job,
    shelf_of,
)
from pilotage.adapters.journals.sqlite_places import SqlitePlaces, jobs_named, select
from pilotage.adapters.journals.sqlite_schema import LIVE, PACKAGE_PLACES, SCHEMA_VERSION, SEALED
from pilotage.adapters.journals.sqlite_sources import Candidate, job_sources, jobs_sql, merged
from pilotage.book import tally
from pilotage.book.finals import FINAL_ORDER, SURELY_OVER, FinalPackage, is_over, read_finals
from pilotage.book.query import Query, Target
from pilotage.book.rows import (
    Counted,
    EventRow,
    JobRow,
    NodeRow,
    PackageRow,
    PilotRow,
    SiteRow,
    StageRow,
    StatisticRow,
    StreamRow,
    TagRow,
    read_facts,
)
from pilotage.model.layout import PackageId
from pilotage.ports import FoundEvent, FoundPackage, JournalError, Page

SCANNED_MAX = 20_000
"""Rows that are read for one page; where too few of them fit, the page is short and the next one goes on from there."""

_JOBS_AT_ONCE = 500
_EVENTS_AT_ONCE = _PACKAGES_AT_ONCE = 500  # of a dump
_FINAL = f"state IN ({', '.join(repr(state) for state in FINAL_ORDER)})"
_MAY_GO_ON = f"state NOT IN ({', '.join(repr(state) for state in SURELY_OVER)})"


class SqliteReader(SqlitePlaces):
    """The reading side of a book in a folder; the writing side is `SqliteJournal`."""

    def __init__(self, folder: Path, *, indexed: frozenset[str], scanned_max: int = SCANNED_MAX) -> None:
        """Read the book of a folder that has the indexes of some attributes."""
        super().__init__(folder)
        self._indexed = indexed
        self._scanned_max = scanned_max

    # --- one thing ---

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
        """A package of which something was heard."""
        key = (job.job_id, place.stage, place.line, place.number)
        with self.book_of(job.job_id) as book:
            if book is None:
                return None
            statement = "SELECT facts FROM package_facts WHERE (job_id, stage, line, number) = (?, ?, ?, ?)"
            found = book.execute(statement, key).fetchone()
        return PackageRow(*key, read_facts(found[0])) if found else None

    def line_counts(self, job: JobRow, *, stage: int, line: int) -> Counted:
        """The histogram of the packages of a line that have a row."""
        counts = Counted()
        with self.book_of(job.job_id) as book:
            statement = "SELECT facts FROM package_facts WHERE job_id = ? AND stage = ? AND line = ?"
            for (text,) in book.execute(statement, (job.job_id, stage, line)) if book else ():
                facts = read_facts(text)
                standing = tally.standing(facts)
                if standing is not None:
                    tally.count(counts, standing, 1)
                counts.touched += facts.shaped
        return counts

    def dump(self, job: str) -> Iterator[bytes]:
        """Everything known of a job at one moment, as lines of JSON; whoever writes the book goes on."""
        last, row = self.position(), self.job(job)
        if row is None:
            raise JournalError("no such job is known here", subject=f"job {job}")
        with self.book_of(row.job_id) as book:
            if book is None:
                raise JournalError("the job was purged: nothing of it is left to dump", subject=f"job {job}")
            hashes = sealed_copy.used_contents(book, row.job_id)
            positions = array("q", own_positions(book, row.job_id))
        positions = self._with_packages(row, positions, last=last)
        found = ((sha256, self.content(sha256)) for sha256 in hashes)
        contents = ((sha256, content) for sha256, content in found if content is not None)
        events = self._in_slices(row, positions)
        yield from dump_lines(job, schema=SCHEMA_VERSION, contents=contents, events=events)

    def _with_packages(self, row: JobRow, positions: array[int], *, last: int) -> array[int]:
        """Where all events of a job were by a position, in their order: what comes while its packages are read is left out."""
        after: Place | None = (0, 0, 0)
        while after is not None:
            with self._there(row) as book:
                some, after = package_positions(book, row.job_id, after=after, limit=_PACKAGES_AT_ONCE)
            positions.extend(some)
        return array("q", sorted(each for each in positions if each <= last))

    @contextmanager
    def _there(self, row: JobRow) -> Iterator[sqlite3.Connection]:
        """The book that has a job now: it may be sealed or brought back while it is read in slices."""
        with self.book_of(row.job_id) as book:
            if book is None:
                raise JournalError("the job was purged while it was dumped", subject=f"job {row.job}")
            yield book

    def _in_slices(self, row: JobRow, positions: Sequence[int]) -> Iterator[FoundEvent]:
        """Events of a job, some at once: whoever takes them may be slow, and nobody who reads may hold up the writer's log.

        An event never changes; its job may be sealed or brought back meanwhile, and is looked for each time.
        """
        for start in range(0, len(positions), _EVENTS_AT_ONCE):
            with self._there(row) as book:
                events = events_at(book, positions[start : start + _EVENTS_AT_ONCE])
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
        """Packages that have a row, in the order in which jobs were registered and of their places, after one."""
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
        """Where the packages are that a query may be true of; a job that is named is read wherever it is."""
        names = (job.job,) if job is not None else named_jobs(query)
        if names is not None:
            with self.live() as book:
                return [self._packages_of(query, jobs_named(book, names), after=_key_after(book, after))]
        book = stack.enter_context(self.live())
        return live_packages(Shelf(book=book, indexed=self._indexed), query, after=_key_after(book, after))

    def _packages_of(self, query: Query, jobs: Sequence[JobRow], *, after: PackageKey) -> Iterator[Candidate]:
        """Packages of one job after another; each is opened only when those before it are read to their end."""
        for row in jobs:
            if row.job_id >= after[0]:
                with self.book_of(row.job_id) as book:
                    if book is not None:
                        shelf = shelf_of(book, row.job_id, indexed=self._indexed)
                        yield from packages_of_job(shelf, query, row.job_id, job=row.job, after=after)

    def _page(
        self, candidates: Iterator[Candidate], *, limit: int, fits: int
    ) -> tuple[list[Candidate], bool, Candidate]:
        """The candidates that fit, whether there may be more, and the one to go on after."""
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
        """Events in the order of their positions, after one; of one job or package where it is given."""
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
        """How many jobs there are."""
        serving_clause(query, Target.JOBS, indexed=self._indexed)
        fits = jobs_sql.filter(query)
        with self.live() as book:
            statement = f"SELECT count(*) FROM jobs AS j WHERE {fits.text}"
            return int(book.execute(statement, fits.parameters).fetchone()[0])

    def count_packages(self, query: Query, *, job: JobRow | None = None) -> int:
        """How many packages that have a row there are."""
        names = (job.job,) if job is not None else named_jobs(query)
        if names is None:
            with self.live() as book:
                return count_live_packages(Shelf(book=book, indexed=self._indexed), query)
        with self.live() as book:
            jobs = jobs_named(book, names)
        total = 0
        for row in jobs:
            with self.book_of(row.job_id) as book_of_job:
                if book_of_job is not None:
                    shelf = shelf_of(book_of_job, row.job_id, indexed=self._indexed)
                    total += count_packages_of_job(shelf, query, row.job_id)
        return total

    def count_sealed(self) -> int:
        """How many jobs are sealed."""
        with self.live() as book:
            statement = f"SELECT count(*) FROM jobs INDEXED BY jobs_sealed WHERE {SEALED}"
            return int(book.execute(statement).fetchone()[0])

    # --- for an engine that starts ---

    def live_jobs(self) -> list[JobRow]:
        """The jobs of the live book that are not cleared, in the order in which they were registered."""
        with self.live() as book:
            return list(select(book, JobRow, f"WHERE {LIVE} AND state <> 'CLEARED' ORDER BY job_id"))

    def own_events(self, job: JobRow) -> list[EventRow]:
        """The events about a job itself, and not about its packages, in the order of their positions."""
        where = "WHERE stage = 0 AND job_id IS NOT NULL AND job_id = ? ORDER BY position"  # as their index is limited
        with self.book_of(job.job_id) as book:
            return list(select(book, EventRow, where, (job.job_id,))) if book else []

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """The packages of a job that are over by facts of their own, in the order of place."""
        return read_finals(self._in_place(job, _FINAL))

    def unfinished(self, job: JobRow) -> Iterator[PackageRow]:
        """The other packages of a job that have a row, in the order of place."""
        for stage, line, number, _, text in self._in_place(job, _MAY_GO_ON):
            facts = read_facts(text)
            if not is_over(facts):
                yield PackageRow(job.job_id, stage, line, number, facts)

    def _in_place(self, job: JobRow, where: str) -> Iterator[tuple[int, int, int, str, str]]:
        """Packages of a job in the order of their key: no other index is asked, so that nothing is sorted."""
        with self.book_of(job.job_id) as book:
            if book is not None:
                yield from book.execute(
                    f"SELECT stage, line, number, state, facts FROM package_facts INDEXED BY {PACKAGE_PLACES}"
                    f" WHERE job_id = ? AND {where} ORDER BY stage, line, number",
                    (job.job_id,),
                )

    def stream(self, source: str, stream: str) -> StreamRow | None:
        """What was heard of one stream, if anything was."""
        with self.live() as book:
            return next(iter(select(book, StreamRow, "WHERE source = ? AND stream = ?", (source, stream))), None)

    def streams(self, source: str) -> Iterator[StreamRow]:
        """What was heard of every stream of a source, by name."""
        with self.live() as book:
            yield from select(book, StreamRow, "WHERE source = ? ORDER BY stream", (source,))

    # --- other rows ---

    def statistics(self, *, width_seconds: int, slices: range) -> list[StatisticRow]:
        """The slices of statistics that exist in a range."""
        with self.live() as book:
            where = "WHERE width_seconds = ? AND slice >= ? AND slice < ? ORDER BY slice, site, activity"
            return list(select(book, StatisticRow, where, (width_seconds, slices.start, slices.stop)))

    def pilot(self, name: str) -> PilotRow | None:
        """One pilot, or what was asked for under that name, if there ever was one."""
        with self.live() as book:
            return next(iter(select(book, PilotRow, "WHERE pilot = ?", (name,))), None)

    def pilots(self, *, after: str, limit: int) -> list[PilotRow]:
        """Pilots by name."""
        with self.live() as book:
            return list(select(book, PilotRow, "WHERE pilot > ? ORDER BY pilot LIMIT ?", (after, limit)))

    def latest_pilots(self, site: str, *, limit: int) -> list[PilotRow]:
        """The pilots of a site of which something was heard last, the latest first."""
        with self.live() as book:
            return list(select(book, PilotRow, "WHERE site = ? ORDER BY updated_at DESC, pilot LIMIT ?", (site, limit)))

    def nodes(self, *, after: str, limit: int) -> list[NodeRow]:
        """Nodes by name."""
        with self.live() as book:
            return list(select(book, NodeRow, "WHERE node > ? ORDER BY node LIMIT ?", (after, limit)))

    def sites(self) -> list[SiteRow]:
        """All sites."""
        with self.live() as book:
            return list(select(book, SiteRow, "ORDER BY site"))

    def tags(self, job: JobRow, *, after: tuple[int, int, int, str], limit: int) -> list[TagRow]:
        """The tags of a job and its packages, in the order of place and name, after one."""
        where = "WHERE job_id = ? AND (stage, line, number, name) > (?, ?, ?, ?) ORDER BY stage, line, number, name"
        with self.book_of(job.job_id) as book:
            return list(select(book, TagRow, f"{where} LIMIT ?", (job.job_id, *after, limit))) if book else []

    def forgotten(self) -> int:
        """How many events were heard that are kept no more: those of purged jobs, and parked ones that were dropped."""
        with self.live() as book:
            return int(book.execute("SELECT value FROM counters WHERE name = 'forgotten'").fetchone()[0])

    def mislabelled(self, job: JobRow) -> list[PackageId]:
        """The packages of a job whose columns are not what their facts say."""
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
        """The numbers of jobs that events are about and that have no row."""
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
