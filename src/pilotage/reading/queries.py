"""Queries to the book on behalf of a principal, who sees only what they may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NoReturn, TypeVar

import msgspec

from pilotage.book.query import (
    EVERYTHING,
    Clause,
    Condition,
    Cursor,
    CursorError,
    Named,
    Operator,
    Query,
    Target,
    decode_cursor,
    encode_cursor,
    parse,
    resolve,
)
from pilotage.book.rows.rows import JobRow, NodeRow, PackageFacts, PilotRow, SiteRow, StageRow, StateHistogram
from pilotage.book.statistics import statistics
from pilotage.model.answers import HealedStep, HealingHistory
from pilotage.model.errors import PilotageError, near_name
from pilotage.model.events.events import COUNTER_MAX, JOB_ID, parse_dotted
from pilotage.model.events.file_payloads import InputsRemade, RemadeInput, StoredCopy
from pilotage.model.jobs.layout import PackageId
from pilotage.model.settings.engine import Healing, HealingSettings
from pilotage.model.settings.settings import QuerySettings
from pilotage.model.texts import offset_minutes
from pilotage.ports import Clock, FoundEvent, FoundPackage, Journal, Page
from pilotage.reading.access import ANY_OWNER, READ, Principal, Right, may, require, require_scope
from pilotage.reading.healing import healed_steps, healing_history
from pilotage.reading.latencies import PILOTS_READ_MAX, SiteLatencyView, site_latency
from pilotage.reading.packages import (
    LinePlace,
    ShownPackage,
    count_of,
    line_of,
    line_place,
    named_job,
    names_jobs,
    package_of,
    packages_of,
    place_of,
    shown,
)
from pilotage.reading.stale_results import packages_with_remade_inputs, remade_inputs
from pilotage.reading.stored_elsewhere import copies_elsewhere

# Errors for jobs and packages that are not, or no longer, in the book.


class UnknownJob(PilotageError):
    """No job of this id was ever registered here."""


class UnknownPackage(PilotageError):
    """The job has no such package."""


class JobPurged(PilotageError):
    """The job was purged when its retention time was over; the message says when."""

    def __init__(self, job: JobRow) -> None:
        """Say which job, and when."""
        self.purged_at = job.purged_at
        super().__init__(
            "this job was purged: its events and packages are gone, and only its row is left in lists",
            subject=f"job {job.job}",
            next_step="a dump of it, if one was made, can be loaded into another book: pilotage book load --journal sqlite:DIR",
        )


class _Template(msgspec.Struct, frozen=True):
    activities: tuple[str, ...] = ()


class _Shape(msgspec.Struct, frozen=True):
    templates: tuple[_Template, ...] = ()


_shape = msgspec.json.Decoder(_Shape)
_environment = msgspec.json.Decoder(dict[str, str])

UTC_OFFSET = "utc_offset"
"""The offset of a node's clocks from UTC in the environment that its pilot describes."""
Item = TypeVar("Item")
Key = TypeVar("Key")

LOOKS_MAX = 10
"""Pages read for one answer when the principal may read few of the rows; the cursor continues after them."""

_NEAR_ROWS = 50
_ANY_PLACE = PackageId(1, 1, 1)

FindPackage = Callable[[JobRow, str], PackageId | None]
"""Finds the package of a given name in a job."""


class ResultPage(msgspec.Struct, Generic[Item], frozen=True):
    """One page of an answer, and the cursor of the next one if there may be more."""

    items: list[Item]
    next: str | None


class ResolvedQuery(msgspec.Struct, frozen=True):
    """A query, checked and resolved, with the key to continue after."""

    query: Query
    resolved: Query
    now: float
    key: tuple[str | int | float, ...]


class BookReader:
    """Queries a journal. Any thread may use it."""

    def __init__(
        self, journal: Journal, *, clock: Clock, settings: QuerySettings, find: FindPackage | None = None
    ) -> None:
        """Read a journal; without `find`, packages cannot be found by name."""
        self._journal = journal
        self._find = find
        self._clock = clock
        self._settings = settings

    def position(self, principal: Principal) -> int:
        """The position of the last event."""
        if principal.package is None:  # a running package records with it what it has seen
            require_scope(principal, READ)
        return self._journal.position()

    def job(self, principal: Principal, job: str) -> JobRow:
        """A job that the principal may read; raises `UnknownJob` or `JobPurged`."""
        require_scope(principal, READ)
        return self._job(principal, job)

    def job_to_change(self, principal: Principal, job: str, right: Right) -> JobRow:
        """A job that the principal has a right on; raises `UnknownJob` or `JobPurged`, `Forbidden` if they may only read."""
        row = self._job(principal, job)
        require(principal, right, row)
        return row

    def _job(self, principal: Principal, job: str) -> JobRow:
        row = self._journal.job(job) if JOB_ID.fullmatch(job) else None
        # A job that the principal may not read is answered like one that does not exist, so that its id is not
        # revealed.
        if row is None or not may(principal, "read", row):
            self._unknown(principal, job)
        if row.place == "purged":
            raise JobPurged(row)
        return row

    def stages(self, job: JobRow, *, after: int, limit: int) -> tuple[list[StageRow], bool]:
        """The stages of a job after the given one, and whether more follow."""
        rows = [row for row in self._journal.stages(job) if row.stage > after]
        size = self._size(limit)
        return rows[:size], len(rows) > size

    def line(self, job: JobRow, text: str) -> tuple[LinePlace, StateHistogram]:
        """A line of a job, by `stage.line`, and its histogram; raises `UnknownPackage`."""
        place = line_place(text)
        counts = line_of(self._journal, job, place) if place is not None else None
        if place is None or counts is None:
            raise UnknownPackage(
                "this job has no such line", subject=f"job {job.job}", expected="stage.line, such as 1.2", got=text[:40]
            )
        return place, counts

    def jobs(self, principal: Principal, text: str, *, cursor: str | None, limit: int) -> ResultPage[JobRow]:
        """Jobs that match a query."""
        asked = self._asked(principal, text, target=Target.JOBS, cursor=cursor)
        after = _job_key(asked)
        size = self._size(limit)

        def fetch(key: str | None) -> Page[JobRow]:
            return self._journal.find_jobs(asked.resolved, after=key, limit=size)

        rows, last = _collected(
            fetch, after, key=lambda row: row.job, wanted=lambda row: may(principal, "read", row), size=size
        )
        return ResultPage(rows, _cursor(asked, Target.JOBS, (last,) if last is not None else None))

    def packages(self, principal: Principal, text: str, *, cursor: str | None, limit: int) -> ResultPage[ShownPackage]:
        """Packages of any job that match a query; those without events only if the query names their job."""
        asked = self._asked(principal, text, target=Target.PACKAGES, cursor=cursor)
        job = named_job(self._journal, asked.resolved)
        if job is not None:
            return self._packages_of(job, asked, limit=limit) if may(principal, "read", job) else ResultPage([], None)
        after = _package_key(asked)
        size = self._size(limit)
        jobs = _Jobs(self._journal, principal)

        def fetch(key: tuple[str, PackageId] | None) -> Page[FoundPackage]:
            return self._journal.find_packages(asked.resolved, after=key, limit=size)

        rows, last = _collected(
            fetch,
            after,
            key=lambda found: (found.job, place_of(found)),
            wanted=lambda found: jobs.readable(found.job),
            size=size,
        )
        items = [shown(found, jobs.row(found.job)) for found in rows]
        return ResultPage(items, _cursor(asked, Target.PACKAGES, _package_parts(last)))

    def packages_of(self, job: JobRow, text: str, *, cursor: str | None, limit: int) -> ResultPage[ShownPackage]:
        """Packages of a job that match a query, including those without events."""
        asked = self._resolved(text, target=Target.PACKAGES, cursor=cursor, named=self._named_in(job))
        return self._packages_of(job, asked, limit=limit)

    def _packages_of(self, job: JobRow, asked: ResolvedQuery, *, limit: int) -> ResultPage[ShownPackage]:
        after = _package_key(asked)
        size = self._size(limit)
        page = packages_of(
            self._journal, job, asked.resolved, after=after[1] if after is not None else None, limit=size
        )
        last = None
        if page.more:
            last = page.scanned_to if page.scanned_to is not None else page.items[-1].place
        key = None if last is None else (job.job, last)
        return ResultPage(list(page.items), _cursor(asked, Target.PACKAGES, _package_parts(key)))

    def package(self, job: JobRow, place: PackageId) -> ShownPackage:
        """One package of a job; raises `UnknownPackage`."""
        found = package_of(self._journal, job, place)
        if found is None:
            raise UnknownPackage(
                f"job {job.job} has no such package",
                subject=f"package {place.dotted}",
                next_step=f"list what there is: pilotage query job={job.job}",
            )
        return found

    def events(self, principal: Principal, text: str, *, cursor: str | None, limit: int) -> ResultPage[FoundEvent]:
        """Events that match a query; everyone may read those that belong to no job."""
        asked = self._asked(principal, text, target=Target.EVENTS, cursor=cursor)
        after = _position_key(asked)
        size = self._size(limit)
        jobs = _Jobs(self._journal, principal)

        def fetch(key: int | None) -> Page[FoundEvent]:
            return self._journal.find_events(asked.resolved, after=key or 0, limit=size)

        rows, last = _collected(
            fetch,
            after,
            key=lambda found: found.row.position,
            wanted=lambda found: found.job is None or jobs.readable(found.job),
            size=size,
        )
        return ResultPage(rows, _cursor(asked, Target.EVENTS, (last,) if last is not None else None))

    def job_events(
        self, job: JobRow, text: str, *, after: int, limit: int, place: PackageId | None = None
    ) -> Page[FoundEvent]:
        """Events of a job or of one of its packages, after a position."""
        query = parse(text, target=Target.EVENTS, named=self._named_in(job)) if text else EVERYTHING
        resolved = resolve(query, now=self._clock.now())
        return self._journal.find_events(resolved, after=after, limit=self._size(limit), job=job, place=place)

    def end_of(self, package: ShownPackage, attempt: int) -> FoundEvent | None:
        """The event that ended an attempt; None if it has not ended, or the event is no longer stored."""
        facts = package.facts.attempts.get(attempt) if package.facts is not None else None
        if facts is None or facts.finished_position is None:
            return None
        at, place = facts.finished_position, package.place
        page = self._journal.find_events(EVERYTHING, after=at - 1, limit=1, job=package.job, place=place)
        return page.items[0] if page.items and page.items[0].row.position == at else None

    def stale_inputs(self, package: ShownPackage) -> tuple[RemadeInput, ...]:
        """The inputs of a finished package that were made again with other contents since; none: its results are not stale."""
        facts = package.facts
        if facts is None or facts.attempt is None or facts.state not in ("DONE", "CLEARED"):
            return ()
        return remade_inputs(self._journal, package.job, package.place, granted=facts.attempt)

    def copies_elsewhere(self, package: ShownPackage) -> tuple[StoredCopy, ...]:
        """The copies of the outputs of a package that another store took than the one in which they were to be."""
        facts = package.facts
        last = facts.attempts.get(facts.attempt or 0) if facts is not None else None
        if facts is None or last is None or not last.copies:
            return ()
        return copies_elsewhere(self._journal, package.job, package.place, attempt=facts.attempt or 0)

    def stale_results(self, job: JobRow) -> dict[PackageId, InputsRemade]:
        """The finished packages of a job whose inputs were made again with other contents since."""
        found = packages_with_remade_inputs(self._journal, job)
        return {
            place: data
            for place, data in found.items()
            if (facts := self.package(job, place).facts) is not None
            and facts.attempt == data.granted
            and facts.state in ("DONE", "CLEARED")
        }

    def healed_steps(self, package: ShownPackage) -> tuple[HealedStep, ...]:
        """What healing did to a package."""
        return healed_steps(self._journal, package)

    def healing(
        self, job: JobRow, *, healing: Healing, settings: HealingSettings, before: int, limit: int
    ) -> HealingHistory:
        """The last decisions of healing about a job, the newest last."""
        size = self._size(limit)
        return healing_history(self._journal, job, healing=healing, settings=settings, before=before, limit=size)

    def outcome_events(self, job: JobRow, place: PackageId, positions: frozenset[int]) -> Iterator[FoundEvent]:
        """The events of a package at some positions."""
        after, last = min(positions, default=0) - 1, max(positions, default=-1)
        while after < last:
            page = self._journal.find_events(EVERYTHING, after=after, limit=1000, job=job, place=place)
            for found in page.items:
                after = found.row.position
                if after in positions:
                    yield found
            if not page.more:
                return
            after = page.scanned_to if page.scanned_to is not None else after

    def count_jobs(self, principal: Principal, text: str) -> int:
        """Count the jobs that match a query; only the principal's own, unless they may act for everyone."""
        query = self._own(principal, self._asked(principal, text, target=Target.JOBS, cursor=None).resolved)
        return self._journal.count_jobs(query)

    def count_packages(self, principal: Principal, text: str, *, job: JobRow | None = None) -> int:
        """Count the packages that match a query: all of a job, or those with events of the principal's own jobs."""
        require_scope(principal, READ)
        named = self._named(principal) if job is None else self._named_in(job)
        query = self._resolved(text, target=Target.PACKAGES, cursor=None, named=named).resolved
        job = job if job is not None else named_job(self._journal, query)
        if job is not None:
            return count_of(self._journal, job, query) if may(principal, "read", job) else 0
        return self._journal.count_packages(self._own(principal, query))

    def unsearched_jobs(self, text: str) -> int:
        """How many sealed jobs a query for packages leaves out: all, unless it names jobs."""
        named = text != "" and names_jobs(parse(text, target=Target.PACKAGES, named=lambda *_: _ANY_PLACE))
        return 0 if named else self._journal.count_sealed()

    def flows(
        self, principal: Principal, *, window: str, site: str | None, activity: str | None
    ) -> list[statistics.Flow]:
        """Flow of packages by site and activity, or for one of each; activities of other users' jobs are left out."""
        require_scope(principal, READ)
        width, slices = statistics.slices_of(window, now=self._clock.now())
        rows = [
            row
            for row in self._journal.statistics(width_seconds=width, slices=slices)
            if site in (None, row.site) and activity in (None, row.activity)
        ]
        if ANY_OWNER not in principal.scopes and any(row.activity for row in rows):
            known = self._activities(principal)
            rows = [row for row in rows if not row.activity or row.activity in known]
        return statistics.flows(rows, window=window)

    def _activities(self, principal: Principal) -> set[str]:
        """The activities of jobs that a principal may read; only the first jobs are searched."""
        found: set[str] = set()
        cursor: str | None = None
        for _ in range(LOOKS_MAX):
            page = self.jobs(principal, "", cursor=cursor, limit=self._settings.page_rows_max)
            for job in page.items:
                for stage in self._journal.stages(job):
                    found.update(name for each in _shape.decode(stage.shape).templates for name in each.activities)
            cursor = page.next
            if cursor is None:
                break
        return found

    def pilots(self, principal: Principal, *, after: str, limit: int) -> ResultPage[PilotRow]:
        """Pilots by name, after the given one; the last name of a page is the cursor of the next."""
        require_scope(principal, READ)
        size = self._size(limit)
        rows = self._journal.pilots(after=after, limit=size)
        return ResultPage(rows, rows[-1].pilot if len(rows) == size else None)

    def utc_offset(self, facts: PackageFacts | None) -> str:
        """The offset from UTC of the clocks of a package's node, as a pilot last described it: `+02:00`; empty if unknown.

        Until an attempt has ended, its node is that of its pilot.
        """
        if facts is None:
            return ""
        node, attempt = facts.node, facts.attempts.get(facts.attempt or 0)
        if node is None and attempt is not None and attempt.pilot is not None:
            pilot = self._journal.pilot(attempt.pilot)
            node = pilot.node if pilot is not None else None
        row = self._journal.node(node) if node is not None else None
        offset = _environment.decode(row.environment).get(UTC_OFFSET, "") if row is not None else ""
        return offset if offset_minutes(offset) is not None else ""

    def nodes(self, principal: Principal, *, after: str, limit: int) -> ResultPage[NodeRow]:
        """Nodes by name, after the given one; the last name of a page is the cursor of the next."""
        require_scope(principal, READ)
        size = self._size(limit)
        rows = self._journal.nodes(after=after, limit=size)
        return ResultPage(rows, rows[-1].node if len(rows) == size else None)

    def sites(self, principal: Principal) -> list[SiteRow]:
        """All sites."""
        require_scope(principal, READ)
        return self._journal.sites()

    def site_latency(self, principal: Principal, site: str) -> SiteLatencyView | None:
        """The latency of the next pilots of a site; None if the book does not know the site."""
        require_scope(principal, READ)
        row = next((row for row in self._journal.sites() if row.site == site), None)
        if row is None:
            return None
        pilots = self._journal.latest_pilots(site, limit=PILOTS_READ_MAX)
        return site_latency(row, pilots, site=site, user=principal.user, now=self._clock.now())

    def _asked(self, principal: Principal, text: str, *, target: Target, cursor: str | None) -> ResolvedQuery:
        require_scope(principal, READ)
        return self._resolved(text, target=target, cursor=cursor, named=self._named(principal))

    def _named(self, principal: Principal) -> Named:
        """Finds packages by name, in jobs that the principal may read."""

        def named(job: str, name: str) -> PackageId | None:
            if not job:
                return None
            row = self._journal.job(job) if JOB_ID.fullmatch(job) else None
            if row is None or not may(principal, "read", row):
                return _ANY_PLACE  # a job that the principal may not read matches nothing
            return self._find(row, name) if self._find is not None else None

        return named

    def _named_in(self, job: JobRow) -> Named:
        """Finds packages of one job by name."""
        return lambda _, name: self._find(job, name) if self._find is not None else None

    def _resolved(self, text: str, *, target: Target, cursor: str | None, named: Named) -> ResolvedQuery:
        query = parse(text, target=target, named=named) if text else EVERYTHING
        found = decode_cursor(cursor, query, target) if cursor else Cursor(key=(), now=self._clock.now())
        return ResolvedQuery(query, resolve(query, now=found.now), found.now, found.key)

    def _size(self, limit: int) -> int:
        return min(limit or self._settings.page_rows, self._settings.page_rows_max)

    def _own(self, principal: Principal, query: Query) -> Query:
        if ANY_OWNER in principal.scopes:
            return query
        own: Clause = (Condition(attribute="owner", operator=Operator.EQUAL, values=(principal.user,)),)
        return Query((*query.clauses, own))

    def _unknown(self, principal: Principal, job: str) -> NoReturn:
        """Raise `UnknownJob`, suggesting ids that begin alike, or jobs of that name."""
        names: list[str] = []
        if JOB_ID.fullmatch(job):
            called = (Condition(attribute="name", operator=Operator.EQUAL, values=(job,)),)
            pages = [
                self._journal.find_jobs(Query((called,)), after=None, limit=_NEAR_ROWS),
                self._journal.find_jobs(EVERYTHING, after=job[: len(job) // 2] or None, limit=_NEAR_ROWS),
            ]
            same_name, alike = ([row.job for row in page.items if may(principal, "read", row)] for page in pages)
            names = same_name[:3] or [near for near in [near_name(job, alike)] if near]
        hint = f"did you mean {' or '.join(names)}?" if names else "list what there is: pilotage query --jobs all"
        raise UnknownJob("there is no such job here", subject=f"job {job[:64]}", next_step=hint)


class _Jobs:
    """The jobs of one answer, each looked up once."""

    def __init__(self, journal: Journal, principal: Principal) -> None:
        self._journal = journal
        self._principal = principal
        self._rows: dict[str, JobRow] = {}

    def row(self, job: str) -> JobRow:
        row = self._rows.get(job)
        if row is None:
            # A job purged since its package was found is shown without a name.
            row = self._rows[job] = self._journal.job(job) or JobRow(job_id=0, job=job)
        return row

    def readable(self, job: str) -> bool:
        return ANY_OWNER in self._principal.scopes or may(self._principal, "read", self.row(job))


def package_place(text: str) -> PackageId:
    """The place that `stage.line.n` names; raises `UnknownPackage`."""
    place = parse_dotted(text)
    if place is None:
        raise UnknownPackage(
            "there is no such package", subject=f"package {text[:64]}", expected="stage.line.n, such as 1.2.1"
        )
    return place


def _collected(
    fetch: Callable[[Key | None], Page[Item]],
    after: Key | None,
    *,
    key: Callable[[Item], Key],
    wanted: Callable[[Item], bool],
    size: int,
) -> tuple[list[Item], Key | None]:
    """Enough matching items, and the key to continue after; None if nothing follows."""
    kept: list[Item] = []
    for _ in range(LOOKS_MAX):
        page = fetch(after)
        for number, item in enumerate(page.items, 1):
            after = key(item)
            if wanted(item):
                kept.append(item)
                if len(kept) == size:
                    return kept, after if page.more or number < len(page.items) else None
        if not page.more:
            return kept, None
        if page.scanned_to is not None:
            after = page.scanned_to
    return kept, after


def _cursor(asked: ResolvedQuery, target: Target, key: tuple[str | int, ...] | None) -> str | None:
    return None if key is None else encode_cursor(asked.query, target, Cursor(key=key, now=asked.now))


def _package_parts(key: tuple[str, PackageId] | None) -> tuple[str | int, ...] | None:
    return None if key is None else (key[0], key[1].stage, key[1].line, key[1].number)


def _job_key(asked: ResolvedQuery) -> str | None:
    match asked.key:
        case ():
            return None
        case (str(job),):
            return job
    raise _forged()


def _package_key(asked: ResolvedQuery) -> tuple[str, PackageId] | None:
    match asked.key:
        case ():
            return None
        case (str(job), int(stage), int(line), int(number)) if all(
            0 <= part <= 999_999_999 for part in (stage, line, number)
        ):
            return job, PackageId(stage, line, number)
    raise _forged()


def _position_key(asked: ResolvedQuery) -> int | None:
    match asked.key:
        case ():
            return None
        case (int(position),) if 0 <= position <= COUNTER_MAX:
            return position
    raise _forged()


def _forged() -> CursorError:
    return CursorError("the cursor cannot be used: it was not made here", next_step="ask again without a cursor")
