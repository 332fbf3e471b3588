"""The packages of one job, whether anything was heard of them or not, in the order of their places.

A package of which nothing was heard has no row: the shape of its stage tells of it, and it stands where its job puts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from pilotage.book import tally
from pilotage.book.query import EVERYTHING, Query, matches
from pilotage.book.rows import JobRow, PackageFacts
from pilotage.book.settle import settle
from pilotage.book.shapes import shape_of
from pilotage.model.layout import PackageId
from pilotage.ports import FoundPackage, Journal, Page

LOOKS_MAX = 20_000
"""Packages without a row that are looked at for one page; the next one goes on from there."""

_ROWS_AT_ONCE = 1000


class ShownPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a job; without facts nothing was heard of it."""

    job: JobRow
    place: PackageId
    activity: str
    facts: PackageFacts | None = None


def place_of(found: FoundPackage) -> PackageId:
    """Where a found package stands in its job."""
    return PackageId(found.row.stage, found.row.line, found.row.number)


def shown(found: FoundPackage, job: JobRow) -> ShownPackage:
    """A found package, with the row of its job."""
    return ShownPackage(job=job, place=place_of(found), activity=found.row.facts.activity, facts=found.row.facts)


def package_of(journal: Journal, job: JobRow, place: PackageId) -> ShownPackage | None:
    """One package of a job, or None where the job has none there."""
    row = journal.package(job, place)
    if row is not None:
        return ShownPackage(job=job, place=place, activity=row.facts.activity, facts=row.facts)
    for stage in journal.stages(job):
        if stage.stage == place.stage:
            activity = shape_of(stage.shape, stage=stage.stage).activity(place.line, place.number)
            return ShownPackage(job=job, place=place, activity=activity) if activity is not None else None
    return None


def packages_of(
    journal: Journal, job: JobRow, query: Query, *, after: PackageId | None, limit: int
) -> Page[ShownPackage]:
    """Packages of a job that a query asks for, after one; relative times of the query are resolved already."""
    behind = None if after is None else (job.job, after)
    heard = journal.find_packages(query, after=behind, limit=limit, job=job)
    unheard = _Unheard(journal, job, query, after=after, rows_at_once=limit)
    items = [shown(found, job) for found in heard.items]
    items += islice(unheard, limit + 1)
    items.sort(key=lambda each: each.place)
    # Up to here both sides are known; what is beyond may not be all there is.
    horizons = [unheard.looked_to] if unheard.looked_to is not None else []
    if heard.more:
        horizons.append(heard.scanned_to[1] if heard.scanned_to is not None else place_of(heard.items[-1]))
    horizon = min(horizons, default=None)
    known = items if horizon is None else [each for each in items if each.place <= horizon]
    if len(known) > limit:
        return Page(items=known[:limit], more=True)
    return Page(items=known, more=horizon is not None, scanned_to=horizon)


class _Unheard:
    """The packages of a job that have no row and fit a query, in order; after some looks it ends and says how far it came."""

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
            if not tally.untouched(stage) or (self._after is not None and self._after.stage > stage.stage):
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
            return self._matches(place, activity)
        fits = self._fits.get(activity)
        if fits is None:
            fits = self._fits[activity] = self._matches(place, activity)
        return fits

    def _matches(self, place: PackageId, activity: str) -> bool:
        job, facts = self._job, PackageFacts()
        settle(facts, job)
        attributes: dict[str, object] = {
            "job": job.job,
            "name": job.name,
            "parent": job.parent,
            "owner": job.owner,
            "package": place.dotted,
            "activity": activity or None,
            "state": facts.state,
            "submitted": job.submitted_at,
            "entered": facts.entered_at,
            "attempts": 0,
            "held": False,
            "dropped": False,
            "tags": {},
        }
        return matches(self._query, attributes)
