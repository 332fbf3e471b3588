"""How much work a job is: what its packages take, how long it would need at the least, and how much of that is left.

From what packages of a kind took, once enough of them are done; before that from what the document estimates; where nobody
knows anything, from what others take. Nothing is counted when an event comes, but how long the first packages of each kind took.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pilotage.engine.jobs import JobState, QueueClass, Standing
from pilotage.engine.places import AttemptState
from pilotage.model.payloads import PhaseTimes
from pilotage.model.plan import JobPlan

Seconds = NDArray[np.float64]

LEARNED_MIN = 5
"""So many packages of a kind are believed more than the document."""
LEARNED_MAX = 256
"""After so many of a kind its mean is known."""
_SCANNED = (
    20_000  # packages that are looked through in a second at most, so that a large job costs no more than a small one
)
_DIFFERENCE = 1.1  # less than a tenth more or less is not worked out again
_NEW_SECONDS = 60.0  # what was over in a job that came no longer ago was adopted, and never its work


def learn(job: JobState, attempt: AttemptState, phases: tuple[PhaseTimes, ...], now: float) -> None:
    """A package is done: how long it took counts for its kind."""
    kind = job.kinds[attempt.number]
    known = job.took.get(kind)
    if known is None:
        known = job.took[kind] = [0.0, 0.0]
    elif known[0] >= LEARNED_MAX:
        return
    seconds = 0.0
    for each in phases:
        seconds += each.seconds
    known[0] += 1.0
    known[1] += seconds if phases else max(0.0, now - attempt.began_at)


def usual_seconds(queue: QueueClass) -> float:
    """How long a package of a class takes; 0 where nobody knows."""
    known = queue.job.took.get(queue.kind)
    if known is None or (known[0] < LEARNED_MIN and queue.run_seconds):
        return queue.run_seconds
    return known[1] / known[0]


def learned_seconds(queue: QueueClass) -> float:
    """How long packages of a class took, on average; 0 where few of them are done yet."""
    known = queue.job.took.get(queue.kind)
    return 0.0 if known is None or known[0] < LEARNED_MIN else known[1] / known[0]


def seconds_of(job: JobState) -> Seconds:
    """How long a package of each kind takes; nan where nobody knows."""
    found = np.array([each.run_seconds or np.nan for each in job.plan.templates], np.float64)
    for kind, (count, seconds) in job.took.items():
        if count >= LEARNED_MIN or np.isnan(found[kind]):
            found[kind] = max(seconds / count, 1e-3)
    return found


class Outline:
    """A plan as far as the time matters that it takes: kinds by their number, lines as sequences, stages after each other."""

    __slots__ = ("_chains", "_feeds", "counts")

    def __init__(self, plan: JobPlan) -> None:
        """Look through the plan once."""
        kinds = plan.template_of.astype(np.int64)
        self.counts = np.bincount(kinds, minlength=len(plan.templates)).astype(np.float64)
        layouts = sorted((each for each in plan.layouts.values() if each.count), key=lambda each: each.first)
        firsts = np.array([each.first for each in layouts], np.int64)
        # By stage, for each sort of its lines: the kinds of the packages in it, and how many of each.
        self._chains: list[list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = []
        for layout in layouts:
            lines = []
            for number, line in enumerate(layout.templates):
                if line.lines and line.packages:
                    start = layout.package(template=number, item=0, line=0, number=0)
                    found = np.unique(kinds[start : start + line.packages], return_counts=True)
                    lines.append((found[0], found[1]))
            self._chains.append(lines)
        pairs: set[tuple[int, int]] = set()
        for segment in plan.graph.segments:
            rows = segment.predecessors
            if not len(rows.others) or len(layouts) < 2:
                continue
            consumers = rows.first + np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
            fed = np.searchsorted(firsts, consumers, side="right") - 1
            feeding = np.searchsorted(firsts, rows.others, side="right") - 1
            joined = np.unique(feeding * len(layouts) + fed).tolist()
            pairs.update(divmod(each, len(layouts)) for each in joined)
        self._feeds = sorted((before, after) for before, after in pairs if before < after)

    def critical_seconds(self, seconds: Seconds) -> float:
        """How long the job takes at the least, however many slots there are: its longest way from line to line."""
        lasts = [
            max((float(counts @ seconds[kinds]) for kinds, counts in lines), default=0.0) for lines in self._chains
        ]
        begins = [0.0] * len(lasts)
        for before, after in self._feeds:  # in the order of what comes before, so that nothing is looked at too early
            begins[after] = max(begins[after], begins[before] + lasts[before])
        return max((start + length for start, length in zip(begins, lasts, strict=True)), default=0.0)


class Share:
    """What is expected of a job, or of all jobs of an owner that wait: as of the latest look."""

    __slots__ = ("alone_seconds", "area_seconds", "critical_seconds", "left_seconds", "since")

    def __init__(self, *, since: float) -> None:
        """Begin with nothing known but when it came."""
        self.since = since
        self.left_seconds = 0.0  # of one slot
        self.area_seconds = 0.0  # how long all slots that it could use would take for all of it
        self.critical_seconds = 0.0  # how long it takes however many slots there are
        self.alone_seconds = 1.0

    def join(self, other: Share) -> None:
        """Take another one in, as though the two were one."""
        self.since = min(self.since, other.since)
        self.left_seconds += other.left_seconds
        self.area_seconds += other.area_seconds
        self.critical_seconds = max(self.critical_seconds, other.critical_seconds)
        self.settle()

    def settle(self) -> None:
        """How long it would take alone follows from the rest."""
        self.alone_seconds = max(self.area_seconds, self.critical_seconds, 1e-3)

    def slowdown(self, now: float, have: float) -> float:
        """How many times as long as alone it is expected to take with the slots it has; one without any gets half a one."""
        return (max(0.0, now - self.since) + self.left_seconds / max(0.5, have)) / self.alone_seconds


class JobShare(Share):
    """What is expected of a job, and what was worked out for it: again only where enough has changed to make a difference."""

    __slots__ = (
        "_learned",
        "_left_seconds",
        "_outline",
        "_plan",
        "_scanned_at",
        "_seconds",
        "_spared",
        "_stale",
        "_taken_seconds",
        "_total_seconds",
        "_typical_seconds",
        "_unfinished",
        "look",
        "unstarted_since",
        "waiting_since",
    )

    def __init__(self, job: JobState, now: float) -> None:
        """Look at a job for the first time."""
        super().__init__(since=job.since)
        self.waiting_since = now  # nothing of it was bound since then, though something could have been
        self.unstarted_since = now  # nothing of it was started since then
        self.look = 0  # the latest at which it waited
        self._plan = job.plan
        self._outline = Outline(job.plan)
        self._seconds: Seconds = np.zeros(0)  # of a package of each kind; nan: nobody knows
        self._learned = -1.0  # packages that these were learned from
        self._typical_seconds = 0.0
        self._stale = True  # the rest does not follow from this any more
        self._scanned_at = -math.inf
        self._taken_seconds = 0.0  # what was taken for kinds of which nobody knows anything
        self._unfinished = 0  # packages that were not over
        self._left_seconds = 0.0  # of these, on one slot
        self._total_seconds = 0.0  # of all packages that are its work
        # The part of it that was over when it came.
        new = now < job.since + _NEW_SECONDS and job.count
        self._spared = 1.0 - job.unfinished / job.count if new else 0.0

    def typical_seconds(self, job: JobState) -> float:
        """How long its packages take on average, as far as anybody knows; 0 where nobody does."""
        learned = 0.0
        for count, _ in job.took.values():
            learned += count
        if self._plan is not job.plan:
            self._plan, self._outline, self._learned = job.plan, Outline(job.plan), -1.0
        if self._learned < 0.0 or learned > _DIFFERENCE * self._learned:
            self._learned, self._stale = learned, True
            self._seconds = seconds_of(job)
            sure = ~np.isnan(self._seconds)
            counts = self._outline.counts[sure]
            known = float(counts.sum())
            self._typical_seconds = float(counts @ self._seconds[sure]) / known if known else 0.0
        return self._typical_seconds

    def weigh(self, job: JobState, *, typical_seconds: float, slots: int, now: float) -> None:
        """Work out what is expected of it; `typical_seconds` is taken for packages of which nobody knows anything."""
        self.since = job.since
        unfinished = job.unfinished
        taken = self._typical_seconds or typical_seconds
        if self._stale or _differ(unfinished, self._unfinished) or _differ(taken, self._taken_seconds):
            self._stale = True
            if now >= self._scanned_at + job.count / _SCANNED:
                self._scan(job, taken)
                self._stale, self._scanned_at = False, now
                self._taken_seconds, self._unfinished = taken, unfinished
        self.left_seconds = self._left_seconds * unfinished / self._unfinished if self._unfinished else 0.0
        self.area_seconds = self._total_seconds / slots
        self.settle()

    def _scan(self, job: JobState, taken_seconds: float) -> None:
        seconds = np.where(np.isnan(self._seconds), taken_seconds, self._seconds)
        under_way = np.frombuffer(job.standing, np.uint8) < Standing.DROPPED
        left = np.bincount(job.plan.template_of[under_way].astype(np.int64), minlength=len(seconds))
        self._left_seconds = float(left @ seconds)
        self._total_seconds = float(self._outline.counts @ seconds) * (1.0 - self._spared)
        self.critical_seconds = self._outline.critical_seconds(seconds)


def _differ(one: float, other: float) -> bool:
    """Whether two amounts differ by more than what makes no difference."""
    return one > _DIFFERENCE * other or other > _DIFFERENCE * one
