"""How much work a job is: what its packages take, how long it would need at the least, and how much of that is left.

From what packages of a kind took, once enough of them are done; before that from what the document estimates; where nobody
knows anything, from what others take. Nothing is counted when an event comes, but how long the first packages of each kind took.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pilotage.engine.jobs import JobState
from pilotage.engine.parts import AttemptState, Standing
from pilotage.model.payloads import PhaseTimes
from pilotage.model.plan import JobPlan

Seconds = NDArray[np.float64]

LEARNED_MIN = 5
"""So many packages of a kind are believed more than the document."""
LEARNED_MAX = 256
"""After so many of a kind its mean is known."""
_SCANNED = 20_000  # packages that are looked through in a second at most, so that a large job costs no more than a small one
_NEW_SECONDS = 60.0  # what was over in a job that came no longer ago was adopted, and never its work


def learn(job: JobState, attempt: AttemptState, *, phases: tuple[PhaseTimes, ...], now: float) -> None:
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


def seconds_of(job: JobState) -> tuple[Seconds, bool]:
    """How long a package of each kind takes, nan where nobody knows; and whether anything is known."""
    found = np.array([each.run_seconds or np.nan for each in job.plan.templates], np.float64)
    for kind, (count, seconds) in job.took.items():
        if count >= LEARNED_MIN or np.isnan(found[kind]):
            found[kind] = max(seconds / count, 1e-3)
    return found, bool(len(found)) and not bool(np.isnan(found).all())


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
        return (max(0.0, now - self.since) + self.left_seconds / (have if have > 0.5 else 0.5)) / self.alone_seconds


class JobShare(Share):
    """What is expected of a job, and what was worked out for it."""

    __slots__ = (
        "_known",
        "_learned",
        "_left",
        "_plan",
        "_scanned_at",
        "_seconds",
        "_unfinished",
        "look",
        "outline",
        "spared",
        "waiting_since",
    )

    def __init__(self, job: JobState, now: float) -> None:
        """Look at a job for the first time."""
        super().__init__(since=job.since)
        self.waiting_since = now  # nothing of it was bound since then, though something could have been
        self.look = 0  # the latest at which it waited
        self._plan: JobPlan | None = None
        self._learned = -1.0
        self._seconds: Seconds = np.zeros(0)
        self._known = False
        self._scanned_at = -np.inf
        self._unfinished = 0
        self._left = self._seconds  # packages that are not over, by kind
        self.outline = Outline(job.plan)
        self.spared = 0.0  # the part of it that was over when it came
        if now < job.since + _NEW_SECONDS and job.count:
            self.spared = 1.0 - job.unfinished / job.count

    def typical_seconds(self, job: JobState) -> float:
        """How long its packages take on average, as far as anybody knows; 0 where nobody does."""
        learned = sum(each[0] for each in job.took.values())
        if self._plan is not job.plan:
            if self._plan is not None:
                self.outline = Outline(job.plan)
            self._plan, self._scanned_at, self._learned = job.plan, -np.inf, -1.0
        if learned != self._learned:
            self._learned = learned
            self._seconds, self._known = seconds_of(job)
        if not self._known:
            return 0.0
        sure = ~np.isnan(self._seconds)
        counts = self.outline.counts[sure]
        return float(counts @ self._seconds[sure] / max(1.0, counts.sum()))

    def weigh(self, job: JobState, *, typical_seconds: float, slots: int, now: float) -> None:
        """Work out what is expected of it; `typical_seconds` is taken for packages of which nobody knows anything."""
        self.since = job.since
        seconds = np.where(np.isnan(self._seconds), typical_seconds, self._seconds)
        unfinished = job.unfinished
        if now >= self._scanned_at + max(1.0, job.count / _SCANNED):
            under_way = np.frombuffer(job.standing, np.uint8) < Standing.DROPPED
            kinds = job.plan.template_of[under_way].astype(np.int64)
            self._left = np.bincount(kinds, minlength=len(seconds)).astype(np.float64)
            self._scanned_at, self._unfinished = now, unfinished
        left = float(self._left @ seconds)
        self.left_seconds = left * unfinished / self._unfinished if self._unfinished else 0.0
        self.area_seconds = float(self.outline.counts @ seconds) * (1.0 - self.spared) / max(1, slots)
        self.critical_seconds = self.outline.critical_seconds(seconds)
        self.settle()
