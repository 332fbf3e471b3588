"""The packages of one job in the order of their places, including those without any event.

A package without events has no row: its stage's shape describes it, and its state follows from its job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

import msgspec

from pilotage.book.notices.subscriptions import package_attributes
from pilotage.book.query import EVERYTHING, Condition, Operator, Query, matches
from pilotage.book.rows import shapes
from pilotage.book.rows.derived_states import default_state, settle
from pilotage.book.rows.rows import JobRow, PackageFacts, StateHistogram
from pilotage.book.rows.shapes import shape_of
from pilotage.model.events.events import parse_dotted
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import FoundPackage, Journal, Page

LOOKS_MAX = 20_000
"""Packages without a row that are examined for one page; the next page continues from there."""

_ROWS_AT_ONCE = 1000
_NOWHERE = PackageId(0, 0, 0)  # a place that no query names


class ShownPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a job; `facts` is None if it has no events."""

    job: JobRow
    place: PackageId
    activity: str
    facts: PackageFacts | None = None


def place_of(found: FoundPackage) -> PackageId:
    """The place of a found package in its job."""
    return PackageId(found.row.stage, found.row.line, found.row.number)


def shown(found: FoundPackage, job: JobRow) -> ShownPackage:
    """A found package, with the row of its job."""
    return ShownPackage(job=job, place=place_of(found), activity=found.row.facts.activity, facts=found.row.facts)


def names_jobs(query: Query) -> bool:
    """Whether a query names jobs; only then are sealed ones searched."""
    return any(
        all(condition.attribute == "job" and not condition.operator.denies for condition in clause)
        for clause in query.clauses
    )


def named_job(journal: Journal, query: Query) -> JobRow | None:
    """The one job that a query names with a clause of its own, `job=ID`; or None."""
    for clause in query.clauses:
        if len(clause) == 1 and clause[0].attribute == "job" and clause[0].operator is Operator.EQUAL:
            return journal.job(str(clause[0].values[0]))
    return None


def package_of(journal: Journal, job: JobRow, place: PackageId) -> ShownPackage | None:
    """One package of a job; None if the job has none at that place."""
    row = journal.package(job, place)
    if row is not None:
        return ShownPackage(job=job, place=place, activity=row.facts.activity, facts=row.facts)
    for stage in journal.stages(job):
        if stage.stage == place.stage:
            activity = shape_of(stage.shape, stage=stage.stage).activity(place.line, place.number)
            return ShownPackage(job=job, place=place, activity=activity) if activity is not None else None
    return None


LinePlace = tuple[int, int]
"""The stage and the number of a line."""

_LINE = re.compile(r"([1-9][0-9]{0,8})\.([1-9][0-9]{0,8})")


def line_place(text: str) -> LinePlace | None:
    """The line that `stage.line` names, or None."""
    found = _LINE.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def line_of(journal: Journal, job: JobRow, place: LinePlace) -> StateHistogram | None:
    """The histogram of a line, including its packages without events; None if the job has no such line."""
    counts = journal.line_counts(job, stage=place[0], line=place[1])
    for row in journal.stages(job):
        if row.stage == place[0]:
            counts.expected = shape_of(row.shape, stage=row.stage).line_length(place[1])
    shapes.count(counts, (default_state(job), 0, 0, 0), shapes.untouched(counts))
    return counts if shapes.total(counts) or counts.dropped else None


def packages_of(
    journal: Journal, job: JobRow, query: Query, *, after: PackageId | None, limit: int
) -> Page[ShownPackage]:
    """Packages of a job that match a query, after the given one; relative times in it are already resolved."""
    behind = None if after is None else (job.job, after)
    with_events = journal.find_packages(query, after=behind, limit=limit, job=job)
    unheard = _Unheard(journal, job, query, after=after, rows_at_once=limit)
    items = [shown(found, job) for found in with_events.items]
    items += islice(unheard, limit + 1)
    items.sort(key=lambda each: each.place)
    # Up to here both sides are complete; beyond it one of them may lack packages.
    horizons = [unheard.looked_to] if unheard.looked_to is not None else []
    if with_events.more:
        horizons.append(
            with_events.scanned_to[1] if with_events.scanned_to is not None else place_of(with_events.items[-1])
        )
    horizon = min(horizons, default=None)
    known = items if horizon is None else [each for each in items if each.place <= horizon]
    if len(known) > limit:
        return Page(items=known[:limit], more=True)
    return Page(items=known, more=horizon is not None, scanned_to=horizon)


def count_of(journal: Journal, job: JobRow, query: Query) -> int:
    """Count the packages of a job that match a query; those without events are counted without examining each."""
    return journal.count_packages(query, job=job) + _count_unheard(journal, job, query)


def _count_unheard(journal: Journal, job: JobRow, query: Query) -> int:
    asked = {each.attribute for each in query.conditions}
    if asked.isdisjoint(("activity", "package")) and not _asked_for(job, query, _NOWHERE, ""):
        return 0  # they do not differ in anything that the query asks for
    stages = [stage for stage in journal.stages(job) if shapes.untouched(stage)]
    if not stages:
        return 0
    expected: Counter[str] = Counter()
    for stage in stages:
        shape = shape_of(stage.shape, stage=stage.stage).shape
        for template in shape.templates:
            for activity in template.activities:
                expected[activity] += shape.items * template.lines
    fitting = {activity for activity in expected if _asked_for(job, query, _NOWHERE, activity)}
    untouched = sum(shapes.untouched(stage) for stage in stages)
    if len(fitting) in (0, len(expected)):
        total = untouched if fitting else 0
    else:
        # A package without an activity matches no query by activity, so the other clauses count it.
        counted = fitting if "" not in fitting else expected.keys() - fitting
        with_events = journal.count_packages(_with_activities(counted), job=job)
        unheard = min(max(sum(expected[activity] for activity in counted) - with_events, 0), untouched)
        total = unheard if counted is fitting else untouched - unheard
    # A clause may apply only to a package that the query names: examine each of those by itself.
    for place in _named_places(query):
        found = package_of(journal, job, place)
        if found is not None and found.facts is None:
            total += _asked_for(job, query, place, found.activity) - (found.activity in fitting)
    return total


def _with_activities(activities: Collection[str]) -> Query:
    condition = Condition(attribute="activity", operator=Operator.IN, values=tuple(sorted(activities)))
    return Query(((condition,),))


def _named_places(query: Query) -> set[PackageId]:
    named = (value for each in query.conditions if each.attribute == "package" for value in each.values)
    return {place for value in named if (place := parse_dotted(str(value))) is not None}


def _asked_for(job: JobRow, query: Query, place: PackageId, activity: str) -> bool:
    facts = PackageFacts(activity=activity)
    settle(facts, job)
    return matches(query, package_attributes(job, place, facts))


class _Unheard:
    """The packages of a job that have no row and match a query; stops after some, and says how far it came."""

    def __init__(
        self, journal: Journal, job: JobRow, query: Query, *, after: PackageId | None, rows_at_once: int
    ) -> None:
        self._journal = journal
        self._job = job
        self._query = query
        self._after = after
        self._rows_at_once = rows_at_once
        self.looked_to: PackageId | None = None
        self._fits: dict[str, bool] = {}
        self._by_place = any(condition.attribute == "package" for condition in query.conditions)

    def __iter__(self) -> Iterator[ShownPackage]:
        looks = 0
        for stage in self._journal.stages(self._job):
            if not shapes.untouched(stage) or (self._after is not None and self._after.stage > stage.stage):
                continue
            shape = shape_of(stage.shape, stage=stage.stage)
            begin = self._after if self._after is not None and self._after.stage == stage.stage else None
            touched = self._touched(begin or PackageId(stage.stage, 0, 0))
            next_touched = next(touched, None)
            for place in shape.after(begin):
                looks += 1
                if looks > LOOKS_MAX:
                    return
                while next_touched is not None and next_touched < place:
                    next_touched = next(touched, None)
                activity = shape.activity(place.line, place.number) or ""
                if place != next_touched and self._is_asked_for(place, activity):
                    yield ShownPackage(job=self._job, place=place, activity=activity)
                self.looked_to = place
        self.looked_to = None

    def _touched(self, after: PackageId) -> Iterator[PackageId]:
        rows = self._rows_at_once
        while True:
            page = self._journal.find_packages(EVERYTHING, after=(self._job.job, after), limit=rows, job=self._job)
            rows = _ROWS_AT_ONCE
            for found in page.items:
                after = place_of(found)
                yield after
            if not page.more:
                return
            after = page.scanned_to[1] if page.scanned_to is not None else after

    def _is_asked_for(self, place: PackageId, activity: str) -> bool:
        if not self._query.clauses:
            return True
        if self._by_place:
            return _asked_for(self._job, self._query, place, activity)
        fits = self._fits.get(activity)
        if fits is None:
            fits = self._fits[activity] = _asked_for(self._job, self._query, place, activity)
        return fits
