"""Fair share: orders jobs and users of equal priority by their expected slowdown, largest first.

The expected slowdown of a job is (time since its submission + remaining time with its current slots) / (time it would take
alone, with all slots it could use). The slowdown of a user is that of all waiting jobs of the user together, so that
splitting work into many jobs gains nothing. Slowly changing parts are computed at most once a second, for waiting jobs only;
the slots of a job are counted on each call. Nothing of this is in the book: a new engine computes it again from submission
times and remaining packages, and learns run times anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pilotage.engine.placement import Placement, is_bound
from pilotage.engine.state.clock import EngineClock
from pilotage.engine.state.job_queries import Seconds, seconds_of
from pilotage.engine.state.jobs import JobState, PackageStatus, QueueClass
from pilotage.engine.state.queues import ReadyQueues
from pilotage.engine.state.tables import JobTable
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.settings.engine import EngineSettings

# The work of a job: the run times of its packages, its critical path, and how much is left.
#
# Run times come from finished packages of a kind once there are enough; before that from the estimates in the document;
# otherwise from other packages. An event only adds to the run times of the first packages of each kind.

_SCANNED = 20_000  # packages inspected per second at most, so that a large job costs no more than a small one
_DIFFERENCE = 1.1  # smaller changes (less than a tenth) are not recomputed
_NEW_SECONDS = 60.0  # packages that were over in a job younger than this were adopted, and are not its work


class PlanTimes:
    """The structure of a plan that determines its run time: kinds by number, lines as sequences, dependencies of stages."""

    __slots__ = ("_chains", "_feeds", "counts")

    def __init__(self, plan: JobPlan) -> None:
        """Scan the plan once."""
        kinds = plan.template_of.astype(np.int64)
        self.counts = np.bincount(kinds, minlength=len(plan.templates)).astype(np.float64)
        layouts = sorted((each for each in plan.layouts.values() if each.count), key=lambda each: each.first)
        firsts = np.array([each.first for each in layouts], np.int64)
        # By stage, for each sort of lines: the kinds of its packages, and how many of each.
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
        """The critical path of the job: how long it takes with any number of slots."""
        lasts = [
            max((float(counts @ seconds[kinds]) for kinds, counts in lines), default=0.0) for lines in self._chains
        ]
        begins = [0.0] * len(lasts)
        for before, after in self._feeds:  # sorted by the earlier one, so that its time is final when it is used
            begins[after] = max(begins[after], begins[before] + lasts[before])
        return max((start + length for start, length in zip(begins, lasts, strict=True)), default=0.0)


class Share:
    """The expectation for a job, or for all waiting jobs of an owner, at the last refresh."""

    __slots__ = ("alone_seconds", "area_seconds", "critical_seconds", "left_seconds", "since")

    def __init__(self, *, since: float) -> None:
        """Start with nothing known but the arrival time."""
        self.since = since
        self.left_seconds = 0.0  # on one slot
        self.area_seconds = 0.0  # with all slots that it could use
        self.critical_seconds = 0.0  # with any number of slots
        self.alone_seconds = 1.0

    def join(self, other: Share) -> None:
        """Add another share to this one."""
        self.since = min(self.since, other.since)
        self.left_seconds += other.left_seconds
        self.area_seconds += other.area_seconds
        self.critical_seconds = max(self.critical_seconds, other.critical_seconds)
        self.update_alone()

    def update_alone(self) -> None:
        """Recompute how long it would take alone."""
        self.alone_seconds = max(self.area_seconds, self.critical_seconds, 1e-3)

    def slowdown(self, now: float, have: float) -> float:
        """Expected time with its slots, divided by the time alone; without a slot it counts as having half of one."""
        return (max(0.0, now - self.since) + self.left_seconds / max(0.5, have)) / self.alone_seconds


class JobShare(Share):
    """The expectation for a job, with cached results that are recomputed only after a significant change."""

    __slots__ = (
        "_assumed_seconds",
        "_learned",
        "_left_seconds",
        "_outline",
        "_plan",
        "_scanned_at",
        "_seconds",
        "_spared",
        "_stale",
        "_total_seconds",
        "_typical_seconds",
        "_unfinished",
        "refreshed_in",
        "unstarted_since",
        "waiting_since",
    )

    def __init__(self, job: JobState, now: float) -> None:
        """Start with a job that is seen for the first time."""
        super().__init__(since=job.since)
        self.waiting_since = now  # since when nothing of it was bound, though something was ready
        self.unstarted_since = now  # since when no attempt of it was started
        self.refreshed_in = 0  # the last refresh at which it waited
        self._plan = job.plan
        self._outline = PlanTimes(job.plan)
        self._seconds: Seconds = np.zeros(0)  # of a package of each kind; nan: unknown
        self._learned = -1.0  # number of packages that these are learned from
        self._typical_seconds = 0.0
        self._stale = True  # the values below must be recomputed
        self._scanned_at = -math.inf
        self._assumed_seconds = 0.0  # the value used for kinds with unknown run time
        self._unfinished = 0  # packages that were not over
        self._left_seconds = 0.0  # of these, on one slot
        self._total_seconds = 0.0  # of all packages that are its work
        # The part of it that was over when it arrived.
        new = now < job.since + _NEW_SECONDS and job.count
        self._spared = 1.0 - job.unfinished / job.count if new else 0.0

    def typical_seconds(self, job: JobState) -> float:
        """The average run time of its packages, as far as known; 0 if unknown."""
        learned = job.run_times.observed
        if self._plan is not job.plan:
            self._plan, self._outline, self._learned = job.plan, PlanTimes(job.plan), -1.0
        if self._learned < 0.0 or learned > _DIFFERENCE * self._learned:
            self._learned, self._stale = learned, True
            self._seconds = seconds_of(job)
            sure = ~np.isnan(self._seconds)
            counts = self._outline.counts[sure]
            known = float(counts.sum())
            self._typical_seconds = float(counts @ self._seconds[sure]) / known if known else 0.0
        return self._typical_seconds

    def estimate(self, job: JobState, *, typical_seconds: float, slots: int, now: float) -> None:
        """Recompute the expectation; `typical_seconds` stands in for unknown run times."""
        self.since = job.since
        unfinished = job.unfinished
        taken = self._typical_seconds or typical_seconds
        if self._stale or _differ(unfinished, self._unfinished) or _differ(taken, self._assumed_seconds):
            self._stale = True
            if now >= self._scanned_at + job.count / _SCANNED:
                self._scan(job, taken)
                self._stale, self._scanned_at = False, now
                self._assumed_seconds, self._unfinished = taken, unfinished
        self.left_seconds = self._left_seconds * unfinished / self._unfinished if self._unfinished else 0.0
        self.area_seconds = self._total_seconds / slots
        self.update_alone()

    def _scan(self, job: JobState, taken_seconds: float) -> None:
        seconds = np.where(np.isnan(self._seconds), taken_seconds, self._seconds)
        under_way = np.frombuffer(job.status, np.uint8) < PackageStatus.DROPPED
        left = np.bincount(job.plan.template_of[under_way].astype(np.int64), minlength=len(seconds))
        self._left_seconds = float(left @ seconds)
        self._total_seconds = float(self._outline.counts @ seconds) * (1.0 - self._spared)
        self.critical_seconds = self._outline.critical_seconds(seconds)


def _differ(one: float, other: float) -> bool:
    """Whether two amounts differ significantly."""
    return one > _DIFFERENCE * other or other > _DIFFERENCE * one


EVERY_SECONDS = (1.0, 30.0)
"""Expectations are refreshed after a tenth of a typical run time, but within these bounds."""
UNKNOWN_SECONDS = 60.0
"""Run time of a package if nothing is known of any."""
_RESERVED, _LIVE = PackageStatus.RESERVED, PackageStatus.LIVE

Key = tuple[int, int, float, float, int]
Counted = Literal["bound", "running"]


class Fairness:
    """Orders jobs according to the settings."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        clock: EngineClock,
        jobs: JobTable,
        queues: ReadyQueues,
        placement: Placement,
    ) -> None:
        """Order the jobs of an engine."""
        self.shares: dict[JobState, JobShare] = {}  # expectations, once several jobs wait
        self._settings, self._clock, self._jobs, self._queues, self._placement = (
            settings,
            clock,
            jobs,
            queues,
            placement,
        )
        self.by_slowdown = settings.fairness == "slowdown"
        self._refreshes = 0
        self._looked_at = -math.inf
        self._owners: dict[str, Share] = {}
        self._typical_seconds = UNKNOWN_SECONDS
        self._crowding = 1.0  # reserved and running packages for each slot

    # --- order --------------------------------------------------------------------------------------------------------

    def ordered(self, queues: Iterable[QueueClass], *, counted: Counted = "bound") -> list[QueueClass]:
        """Sort classes into the order in which they are served, by bound or by running packages."""
        found = list(queues)
        if len(found) < 2:
            return found
        keys = self.keys(dict.fromkeys(queue.job for queue in found), counted=counted)
        found.sort(key=lambda queue: (keys[queue.job], queue.rank_in_job))
        return found

    def keys(self, jobs: Collection[JobState], *, counted: Counted = "bound") -> dict[JobState, Key]:
        """Comparable keys of some jobs: no job is added in between."""
        if not self.by_slowdown:
            return {job: (-job.plan.priority, 0, 0.0, 0.0, job.order) for job in jobs}
        self.add_jobs(jobs)
        if counted == "bound":
            return self._bound_keys(jobs)
        reserved: dict[str, int] = {}
        for job in jobs:
            reserved[job.owner] = reserved.get(job.owner, 0) + job.counts[_RESERVED]
        found = {}
        for job in jobs:
            found[job] = self._key(job, self.shares[job].unstarted_since, job.counts[_LIVE], reserved[job.owner])
        return found

    def _bound_keys(self, jobs: Iterable[JobState]) -> dict[JobState, Key]:
        """As `key`, for many jobs that were all added: the totals of their owners are computed once."""
        found: dict[JobState, Key] = {}
        now, patience = self._clock.now, self._settings.fairness_patience_seconds
        slowed: dict[str, float] = {}
        shares = self.shares
        for job in jobs:
            share, owner, counts = shares[job], job.owner, job.counts
            if now >= share.waiting_since + patience:
                found[job] = self._key(job, share.waiting_since, 0, 0)
                continue
            if owner not in slowed:
                together = self._owners.get(owner) or self._add_owner(job, share)
                slowed[owner] = together.slowdown(now, self._jobs.busy_by_owner.get(owner, 0))
            own = share.slowdown(now, counts[_RESERVED] + counts[_LIVE])
            found[job] = (-job.plan.priority, 1, -slowed[owner], -own, job.order)
        return found

    def add_jobs(self, jobs: Collection[JobState]) -> None:
        """Add jobs that arrived since the last refresh."""
        if self.by_slowdown:
            for job in sorted((job for job in jobs if job not in self.shares), key=lambda job: job.order):
                self._add_job(job)

    def key(self, job: JobState) -> Key:
        """Sort key of a job: priority, then jobs without progress for too long, then the user, then the job."""
        since = (self.shares.get(job) or self._add_job(job)).waiting_since
        return self._key(job, since, job.counts[_RESERVED] + job.counts[_LIVE], 0)

    def is_overdue(self, job: JobState) -> bool:
        """Whether no attempt of a job was started for so long that room is kept free for it.

        Only every other period: the running attempts there may take very long, and other jobs must not wait longer than this.
        """
        share = self.shares.get(job)
        if not self.by_slowdown or share is None:
            return False
        patience = self._settings.fairness_patience_seconds
        return patience > 0.0 and int((self._clock.now - share.unstarted_since) / patience) % 2 == 1

    def _key(self, job: JobState, since: float, have: int, reserved: int) -> Key:
        """The key of a job with this many slots; `reserved` of its owner's are reserved only."""
        now = self._clock.now
        share = self.shares.get(job) or self._add_job(job)
        if now >= since + self._settings.fairness_patience_seconds:
            return (-job.plan.priority, 0, since, 0.0, job.order)
        together = self._owners.get(job.owner) or self._add_owner(job, share)
        owner = together.slowdown(now, self._jobs.busy_by_owner.get(job.owner, 0) - reserved)
        return (-job.plan.priority, 1, -owner, -share.slowdown(now, have), job.order)

    def note_bound(self, job: JobState) -> None:
        """A package of a job was bound to a site."""
        if (share := self.shares.get(job)) is not None:
            share.waiting_since = self._clock.now

    def note_started(self, job: JobState) -> None:
        """An attempt of a job was created."""
        if (share := self.shares.get(job)) is not None:
            share.unstarted_since = self._clock.now

    def forget(self, job: JobState) -> None:
        """Drop the share of a retired job."""
        self.shares.pop(job, None)

    # --- expectation --------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Recompute the expectation of every waiting job, unless that was done a moment ago."""
        least, most = EVERY_SECONDS
        if self._clock.now < self._looked_at + min(most, max(least, 0.1 * self._typical_seconds)):
            return
        self._looked_at = self._clock.now
        self._refreshes += 1
        waiting: dict[JobState, list[QueueClass]] = {}
        reserved = (queue for each in self._queues.at.values() for queue in each.reserved)
        for queue in dict.fromkeys((*self._queues.ready, *self._queues.waiting, *reserved)):
            waiting.setdefault(queue.job, []).append(queue)
        self._estimate_all(waiting)

    def _estimate_all(self, waiting: dict[JobState, list[QueueClass]]) -> None:
        known: list[float] = []
        shares: list[tuple[JobState, JobShare, int]] = []
        slots: dict[int, int] = {}
        for job, queues in waiting.items():
            share = self.shares.get(job)
            if share is None:
                share = self.shares[job] = JobShare(job, self._clock.now)
            elif share.refreshed_in < self._refreshes - 1:
                share.waiting_since = share.unstarted_since = self._clock.now  # before, it had nothing to bind
            share.refreshed_in = self._refreshes
            if seconds := share.typical_seconds(job):
                known.append(seconds)
            shares.append((job, share, max(self._slots(queue, slots) for queue in queues)))
        if known:
            self._typical_seconds = math.fsum(known) / len(known)
        most = max((each[2] for each in shares), default=1)
        self._crowding = max(1.0, sum(self._jobs.busy_by_owner.values()) / max(1, most))
        self._owners = {}
        for job, share, count in shares:
            self._estimate_one(job, share, count)
            if (together := self._owners.get(job.owner)) is None:
                self._add_owner(job, share)
            else:
                together.join(share)

    def _add_job(self, job: JobState) -> JobShare:
        """Estimate a job that arrived since the last refresh, and update its owner."""
        share = self.shares[job] = JobShare(job, self._clock.now)
        share.refreshed_in = self._refreshes
        share.typical_seconds(job)
        self._estimate_one(job, share, max((self._slots(each, {}) for each in job.classes.values()), default=1))
        if (together := self._owners.get(job.owner)) is None:
            self._add_owner(job, share)
        else:
            together.join(share)
        return share

    def _add_owner(self, job: JobState, share: JobShare) -> Share:
        together = self._owners[job.owner] = Share(since=share.since)
        together.join(share)
        return together

    def _estimate_one(self, job: JobState, share: JobShare, slots: int) -> None:
        share.estimate(job, typical_seconds=self._typical_seconds, slots=slots, now=self._clock.now)
        share.left_seconds *= self._crowding

    def _slots(self, queue: QueueClass, known: dict[int, int]) -> int:
        """How many slots a class could use; at least one."""
        pool = queue.pool or self._placement.pool(queue)
        found = known.get(id(pool))
        if found is None:
            shape = queue.shape
            found = 0
            for site in self._placement.possible_sites(queue):
                if site.known and not site.asleep:
                    found += site.profile.room(shape).limit if is_bound(site, queue) else site.slots[shape]
            found = known[id(pool)] = max(1, found)
        return found

    # --- explanation --------------------------------------------------------------------------------------------------

    def ahead(self, job: JobState) -> tuple[int, JobState] | None:
        """How many jobs with ready packages go before a job, and the first of them."""
        others = dict.fromkeys(queue.job for queue in (*self._queues.ready, *self._queues.waiting))
        others.pop(job, None)
        keys = self.keys((*others, job))
        before = [other for other in others if keys[other] < keys[job]]
        return (len(before), min(before, key=keys.__getitem__)) if before else None

    def why_before(self, other: JobState, job: JobState) -> str:
        """Why another job goes first, for people."""
        if other.plan.priority != job.plan.priority:
            return f"its priority is {other.plan.priority}, that of this job {job.plan.priority}"
        if not self.by_slowdown:
            return "it was submitted first"
        (_, patient, *_), (_, _, owner, own, _) = self.key(other), self.key(job)
        if not patient:
            return "none of its packages was started for a long time"
        _, _, its_owner, its_own, _ = self.key(other)
        if its_owner != owner:
            theirs = f"the jobs of {other.owner} have an expected slowdown of {-its_owner:.1f}"
            return f"{theirs}, those of {job.owner} one of {-owner:.1f}"
        return f"its expected slowdown is {-its_own:.1f}, that of this job {-own:.1f}"
