"""Statistics of the flow of work: entries into each state, and times between any two states, by site and activity.

Each attempt counts at its own site. A package without an attempt counts at its site, or at no site, and so do all
packages of a job when it is submitted and accepted.

Each observation belongs to a slice of time, 10 seconds wide for the last minute and 5 minutes wide for the last day. A
slice has counts in logarithmic bins, so that slices can be added and a quantile is known to within 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pilotage.book.rows.derived_states import running_since
from pilotage.book.rows.fast_rows import Lives
from pilotage.book.rows.ledger import Ledger, Observed
from pilotage.book.rows.rows import JobRow, PackageFacts, StatisticRow
from pilotage.book.rows.shapes import Shape
from pilotage.book.rows.sketches import (
    BINS,
    COARSE_SECONDS,
    ENTRY,
    FINE_SECONDS,
    NEVER,
    SMALLEST,
    Sketch,
    add,
    added,
    bin_of,
    middle_of,
    read_sketch,
    stored,
    unpacked,
)
from pilotage.model.states import State

KEPT_SECONDS = {FINE_SECONDS: 130, COARSE_SECONDS: 25 * 3600}
WINDOWS: dict[str, int] = {"1m": 60, "1h": 3600, "1d": 86_400}

_STATES = tuple(State)
_WORTH_AN_ARRAY = 32  # from here on arrays are faster than loops

Milestones = tuple[float, ...]
"""When a package entered each state, in the order of `State`; NEVER if it did not."""
Try = tuple[Milestones, str, str]
"""The milestones of a package, its site and its activity."""
_NOTHING: Milestones = (NEVER,) * len(_STATES)
_NO_END = (NEVER, NEVER, NEVER)
_NO_MORE = (NEVER, *_NO_END)  # not granted either


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """The time between two states over a window."""

    count: int
    mean_seconds: float
    median_seconds: float
    p95_seconds: float


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The flow at a site in an activity over a window: entries into states, and times between them."""

    window: str
    site: str
    activity: str
    entries: dict[str, int]
    per_second: dict[str, float]
    intervals: dict[str, Interval]  # by "WAITING-RUNNING"


Tries = dict[int, Try]
"""The counted parts of a package: each of its attempts at its site, or, under 0, a package without one."""


def observed(row: PackageFacts) -> Tries:
    """The counts that a package has contributed so far."""
    submitted, waiting = row.counted_with or (NEVER, NEVER)
    ends = (row.aborted_at or NEVER, row.cancelled_at or NEVER, row.cleared_at or NEVER)
    found: Tries = {}
    for number, attempt in row.attempts.items():
        here = attempt.epoch == row.epoch
        aborted, cancelled, cleared = ends if number == row.attempt else _NO_END
        times = (
            submitted if here else NEVER,
            waiting if here else NEVER,
            attempt.created_at or NEVER,
            attempt.queued_at or NEVER,
            running_since(attempt) or NEVER,
            attempt.granted_at or NEVER,
            aborted,
            cancelled,
            cleared,
        )
        found[number] = (times, attempt.site or "", row.activity)
    if row.attempt is None:
        found[0] = (
            (submitted, waiting, row.bound_at or NEVER, NEVER, NEVER, NEVER, *ends), row.site or "", row.activity,
        )  # fmt: skip
    return found


def observe_now(row: PackageFacts, job: JobRow) -> Tries:
    """The counts of a package from now on; stored with it, since its job may be corrected later."""
    row.counted_with = (job.submitted_at or NEVER, row.opened_at or job.accepted_at or NEVER)
    return observed(row)


class Observations:
    """The contribution of one batch to the statistics; corrections subtract earlier counts."""

    __slots__ = ("_groups", "_known", "_known_at", "_pending", "_slices", "_times")

    def __init__(self) -> None:
        self._slices: dict[tuple[int, str, str], Sketch] = {}
        self._groups: dict[tuple[str, str], int] = {}
        self._pending: list[int] = []  # the group of each changed attempt,
        self._times: list[float] = []  # and its milestones;
        self._known_at: list[int] = []  # which of them were counted before,
        self._known: list[float] = []  # and with which milestones

    def observe_all(self, *, before: Tries | None, after: Tries) -> None:
        """Note a changed package: its attempts as counted before, and as they are now."""
        if not before:
            for now in after.values():
                self.observe(before=None, after=now)
            return
        for number, now in after.items():
            was = before.get(number)
            if was != now:
                self.observe(before=was, after=now)
        for number, was in before.items():
            if number not in after:
                self._count(_NOTHING, was, -1)

    def enter(self, state: State, *, at: float, activity: str, count: int, since: float | None = None) -> None:
        """Note that packages entered a state together, without a site; `since` is when they were SUBMITTED."""
        sketch = self._sketch(int(at) // FINE_SECONDS, "", activity)
        later = _STATES.index(state)
        code = (ENTRY * 16 + later) * BINS
        sketch.counts[code] = sketch.counts.get(code, 0) + count
        if since is not None:
            code = later * BINS + bin_of(at - since)
            sketch.counts[code] = sketch.counts.get(code, 0) + count
            sketch.sums[later] = sketch.sums.get(later, 0.0) + count * max(0.0, at - since)

    def observe(self, *, before: Try | None, after: Try) -> None:
        """Note a changed attempt: milestones, site and activity as counted before, and as they are now."""
        times, site, activity = after
        known = None
        if before is not None:
            if before[1] == site and before[2] == activity:
                known = before[0]
            else:
                # It was counted at another site or activity: subtract it there.
                self._count(_NOTHING, before, -1)
        group = self._groups.get((site, activity))
        if group is None:
            group = self._groups[site, activity] = len(self._groups)
        if known is not None:
            self._known_at.append(len(self._pending))
            self._known.extend(known)
        self._pending.append(group)
        self._times.extend(times)

    def observe_lives(self, lives: Lives, *, known: tuple[float, float]) -> None:
        """Note short lives that began or ended; `known` is when their job was submitted and accepted."""
        names = lives.groups
        if len(lives.began) + len(lives.granted) >= _WORTH_AN_ARRAY:
            from pilotage.book.statistics.counting import count_lives  # only a busy book needs it

            for number, group, counts, sums in count_lives(lives, known):
                key = (number, *names[group])
                if key in self._slices:
                    add(self._slices[key], counts, sums)
                else:
                    self._slices[key] = Sketch(counts, sums)
            return
        for at, group in zip(lives.began, lives.began_in, strict=True):
            self._count(_NOTHING, ((*known, at, NEVER, at, *_NO_MORE), *names[group]), 1)
        for at, since, group in zip(lives.granted, lives.granted_since, lives.granted_in, strict=True):
            begun = (*known, since, NEVER, since)
            self._count((*begun, *_NO_MORE), ((*begun, at, *_NO_END), *names[group]), 1)

    def _count_pending(self) -> None:
        names = list(self._groups)
        if len(self._pending) >= _WORTH_AN_ARRAY:
            from pilotage.book.statistics.counting import count_together  # only a busy book needs it

            found = count_together(self._pending, self._times, known_at=self._known_at, known=self._known)
            for number, group, counts, sums in found:
                add(self._sketch(number, *names[group]), counts, sums)
            return
        known = {at: tuple(self._known[each * 9 : each * 9 + 9]) for each, at in enumerate(self._known_at)}
        for at, group in enumerate(self._pending):
            times = tuple(self._times[at * 9 : at * 9 + 9])
            counted = known.get(at, _NOTHING)
            if any(old not in (new, NEVER) for old, new in zip(counted, times, strict=True)):
                # A time was corrected: subtract its earlier count, and count everything again.
                self._count(_NOTHING, (counted, *names[group]), -1)
                counted = _NOTHING
            self._count(counted, (times, *names[group]), 1)

    def _count(self, counted: Milestones, what: Try, by: int) -> None:
        """Count every pair of known times of which at least one is new."""
        times, site, activity = what
        for later in range(2, 9):
            at = times[later]
            if at == NEVER:
                continue
            is_new = counted[later] == NEVER
            if not is_new and all(counted[at] != NEVER for at in range(later) if times[at] != NEVER):
                continue
            sketch = self._sketch(int(at) // FINE_SECONDS, site, activity)
            counts, sums = sketch.counts, sketch.sums
            if is_new:
                code = (ENTRY * 16 + later) * BINS
                counts[code] = counts.get(code, 0) + by
            for earlier in range(later):
                since = times[earlier]
                if since == NEVER or not (is_new or counted[earlier] == NEVER):
                    continue
                pair = earlier * 16 + later
                seconds = at - since
                code = pair * BINS + bin_of(seconds)
                if seconds >= SMALLEST:
                    sums[pair] = sums.get(pair, 0.0) + by * seconds
                counts[code] = counts.get(code, 0) + by

    def _sketch(self, number: int, site: str, activity: str) -> Sketch:
        key = (number, site, activity)
        found = self._slices.get(key)
        if found is None:
            found = self._slices[key] = Sketch({}, {})
        return found

    def observed(self, *, now: float) -> Observed:
        """The additions to each slice; those too old for every window are left out."""
        self._count_pending()
        found: Observed = {}
        for (fine, site, activity), sketch in self._slices.items():
            for width in (FINE_SECONDS, COARSE_SECONDS):
                number = fine * FINE_SECONDS // width
                if (number + 1) * width > now - KEPT_SECONDS[width]:
                    found.setdefault((width, number, site, activity), []).append(sketch)
        return found


def statistic_rows(ledger: Ledger, observed: Observed) -> list[StatisticRow]:
    """The slices of the book with the observations added."""
    if not observed:
        return []
    before = {
        (row.width_seconds, row.slice, row.site, row.activity): unpacked(row.sketch)
        for row in ledger.statistics(observed.keys())
    }
    return [
        StatisticRow(
            width_seconds=key[0],
            slice=key[1],
            site=key[2],
            activity=key[3],
            sketch=stored(before.get(key), sketches),
        )
        for key, sketches in observed.items()
    ]


def prepare() -> None:
    """Load the array code before it is needed."""
    import pilotage.book.statistics.counting  # noqa: F401 # only loaded here


def observe_job(observations: Observations, job: JobRow, *, before: Sequence[object], shapes: Iterable[Shape]) -> None:
    """Count the packages of a job that was just submitted or accepted; `before` has the times known before."""
    submitted = job.submitted_at if before[0] is None else None
    accepted = job.accepted_at if before[1] is None else None
    if submitted is None and accepted is None:
        return
    for shape in shapes:
        for activity, count in shape.activities():
            if submitted is not None:
                observations.enter(State.SUBMITTED, at=submitted, activity=activity, count=count)
            if accepted is not None:
                since = job.submitted_at
                observations.enter(State.WAITING, at=accepted, activity=activity, count=count, since=since)


def slices_of(window: str, *, now: float) -> tuple[int, range]:
    """The width and the numbers of the slices of a window that ends now."""
    seconds = WINDOWS[window]
    width = FINE_SECONDS if seconds <= KEPT_SECONDS[FINE_SECONDS] else COARSE_SECONDS
    last = int(now) // width
    return width, range(last - seconds // width + 1, last + 1)


def flows(rows: Iterable[StatisticRow], *, window: str) -> list[Flow]:
    """The flows in the slices of a window, by site and activity."""
    grouped: dict[tuple[str, str], list[Sketch]] = {}
    for row in rows:
        grouped.setdefault((row.site, row.activity), []).append(read_sketch(row.sketch))
    return [
        _flow(added(None, sketches), window=window, site=site, activity=activity)
        for (site, activity), sketches in sorted(grouped.items())
    ]


def _flow(sketch: Sketch, *, window: str, site: str, activity: str) -> Flow:
    entries: dict[str, int] = {}
    bins: dict[int, dict[int, int]] = {}
    for code, count in sketch.counts.items():
        pair, number = divmod(code, BINS)
        if count <= 0:
            continue
        if pair // 16 == ENTRY:
            entries[_STATES[pair % 16].value] = count
        else:
            bins.setdefault(pair, {})[number] = count
    intervals = {
        f"{_STATES[pair // 16].value}-{_STATES[pair % 16].value}": _interval(counts, sketch.sums.get(pair, 0.0))
        for pair, counts in sorted(bins.items())
    }
    seconds = WINDOWS[window]
    return Flow(
        window=window,
        site=site,
        activity=activity,
        entries=dict(sorted(entries.items())),
        per_second={state: count / seconds for state, count in sorted(entries.items())},
        intervals=intervals,
    )


def _interval(counts: Mapping[int, int], total_seconds: float) -> Interval:
    count = sum(counts.values())
    return Interval(
        count=count,
        mean_seconds=total_seconds / count,
        median_seconds=_quantile(counts, count, 0.5),
        p95_seconds=_quantile(counts, count, 0.95),
    )


def _quantile(counts: Mapping[int, int], count: int, share: float) -> float:
    rank = max(1, math.ceil(share * count))
    passed = 0
    for number in sorted(counts):
        passed += counts[number]
        if passed >= rank:
            return middle_of(number)
    return 0.0
