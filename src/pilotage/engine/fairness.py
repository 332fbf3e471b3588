"""Who goes first among jobs and users of equal priority: whoever is expected to be slowed down most.

The expected slowdown of a job is (time since it was submitted + time that is left with the slots it has) / (time that it
would take alone, with all slots it could use). That of a user is the same of all his jobs that wait, taken together, so that
one who submits his work in many jobs gets no more than one who submits it in one. What changes slowly is worked out at most
once a second for the jobs that wait; the slots that a job has are counted when it is asked for. Nothing of this is in the book: an
engine that takes over works it out again, from when jobs came and what is left of them, and learns anew how long packages take.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal

from pilotage.engine.fairness_work import JobShare, Share
from pilotage.engine.fits import is_bound
from pilotage.engine.jobs import JobState, QueueClass, Standing
from pilotage.engine.openings import Placement
from pilotage.engine.settings import EngineSettings
from pilotage.engine.state.clock import EngineClock
from pilotage.engine.state.queues import ReadyQueues
from pilotage.engine.state.tables import JobTable

EVERY_SECONDS = (1.0, 30.0)
"""What is expected of jobs is worked out after a tenth of what a package takes, but not sooner and not later than this."""
UNKNOWN_SECONDS = 60.0
"""A package is taken to last so long where nobody knows anything of any."""
_RESERVED, _LIVE = Standing.RESERVED, Standing.LIVE

Key = tuple[int, int, float, float, int]
Counted = Literal["bound", "running"]


class Fairness:
    """Puts jobs into an order, as the settings have it."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        clock: EngineClock,
        jobs: JobTable,
        queues: ReadyQueues,
        placement: Placement,
    ) -> None:
        """Look at the jobs of an engine."""
        self.shares: dict[JobState, JobShare] = {}  # what is expected of jobs, once others wait beside them
        self._settings, self._clock, self._jobs, self._queues, self._placement = (
            settings,
            clock,
            jobs,
            queues,
            placement,
        )
        self.by_slowdown = settings.fairness == "slowdown"
        self._looks = 0
        self._looked_at = -math.inf
        self._owners: dict[str, Share] = {}
        self._typical_seconds = UNKNOWN_SECONDS
        self._crowding = 1.0  # how many are reserved or under way for each slot

    # --- who goes first -----------------------------------------------------------------------------------------------

    def ordered(self, queues: Iterable[QueueClass], *, counted: Counted = "bound") -> list[QueueClass]:
        """Classes in the order in which they go, by what is bound, or by what runs."""
        found = list(queues)
        if len(found) < 2:
            return found
        keys = self.keys(dict.fromkeys(queue.job for queue in found), counted=counted)
        found.sort(key=lambda queue: (keys[queue.job], queue.rank_in_job))
        return found

    def keys(self, jobs: Collection[JobState], *, counted: Counted = "bound") -> dict[JobState, Key]:
        """The keys of some jobs, which can be compared: none of them is met in between."""
        if not self.by_slowdown:
            return {job: (-job.plan.priority, 0, 0.0, 0.0, job.order) for job in jobs}
        self.meet(jobs)
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
        """As `key`, for many jobs that all were met: what their owners have is looked at once."""
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

    def meet(self, jobs: Collection[JobState]) -> None:
        """Jobs may have come since the latest look."""
        if self.by_slowdown:
            for job in sorted((job for job in jobs if job not in self.shares), key=lambda job: job.order):
                self._meet(job)

    def key(self, job: JobState) -> Key:
        """Who goes first among jobs: by priority, then who got nothing for too long, then the user, then the job."""
        since = (self.shares.get(job) or self._meet(job)).waiting_since
        return self._key(job, since, job.counts[_RESERVED] + job.counts[_LIVE], 0)

    def is_overdue(self, job: JobState) -> bool:
        """Whether nothing of a job was started for so long that room is made for it.

        Every other time: what runs there may take very long, and the others shall not wait for it longer than this.
        """
        share = self.shares.get(job)
        if not self.by_slowdown or share is None:
            return False
        patience = self._settings.fairness_patience_seconds
        return patience > 0.0 and int((self._clock.now - share.unstarted_since) / patience) % 2 == 1

    def _key(self, job: JobState, since: float, have: int, reserved: int) -> Key:
        """The same for a job that has so many slots; so many of those of its owner are only reserved."""
        now = self._clock.now
        share = self.shares.get(job) or self._meet(job)
        if now >= since + self._settings.fairness_patience_seconds:
            return (-job.plan.priority, 0, since, 0.0, job.order)
        together = self._owners.get(job.owner) or self._add_owner(job, share)
        owner = together.slowdown(now, self._jobs.busy_by_owner.get(job.owner, 0) - reserved)
        return (-job.plan.priority, 1, -owner, -share.slowdown(now, have), job.order)

    def note_bound(self, job: JobState) -> None:
        """A package of a job was given to a site."""
        if (share := self.shares.get(job)) is not None:
            share.waiting_since = self._clock.now

    def note_started(self, job: JobState) -> None:
        """An attempt of a job was made."""
        if (share := self.shares.get(job)) is not None:
            share.unstarted_since = self._clock.now

    def forget(self, job: JobState) -> None:
        """A job is gone."""
        self.shares.pop(job, None)

    # --- what is expected ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Work out what is expected of every job that waits, unless that was done just now."""
        least, most = EVERY_SECONDS
        if self._clock.now < self._looked_at + min(most, max(least, 0.1 * self._typical_seconds)):
            return
        self._looked_at = self._clock.now
        self._looks += 1
        waiting: dict[JobState, list[QueueClass]] = {}
        reserved = (queue for each in self._queues.at.values() for queue in each.reserved)
        for queue in dict.fromkeys((*self._queues.ready, *self._queues.waiting, *reserved)):
            waiting.setdefault(queue.job, []).append(queue)
        self._weigh(waiting)

    def _weigh(self, waiting: dict[JobState, list[QueueClass]]) -> None:
        known: list[float] = []
        shares: list[tuple[JobState, JobShare, int]] = []
        slots: dict[int, int] = {}
        for job, queues in waiting.items():
            share = self.shares.get(job)
            if share is None:
                share = self.shares[job] = JobShare(job, self._clock.now)
            elif share.look < self._looks - 1:
                share.waiting_since = share.unstarted_since = self._clock.now  # it had nothing to be bound before
            share.look = self._looks
            if seconds := share.typical_seconds(job):
                known.append(seconds)
            shares.append((job, share, max(self._slots(queue, slots) for queue in queues)))
        if known:
            self._typical_seconds = math.fsum(known) / len(known)
        most = max((each[2] for each in shares), default=1)
        self._crowding = max(1.0, sum(self._jobs.busy_by_owner.values()) / max(1, most))
        self._owners = {}
        for job, share, count in shares:
            self._weigh_one(job, share, count)
            if (together := self._owners.get(job.owner)) is None:
                self._add_owner(job, share)
            else:
                together.join(share)

    def _meet(self, job: JobState) -> JobShare:
        """A job came since the latest look: it is weighed by itself, and its owner with it."""
        share = self.shares[job] = JobShare(job, self._clock.now)
        share.look = self._looks
        share.typical_seconds(job)
        self._weigh_one(job, share, max((self._slots(each, {}) for each in job.classes.values()), default=1))
        if (together := self._owners.get(job.owner)) is None:
            self._add_owner(job, share)
        else:
            together.join(share)
        return share

    def _add_owner(self, job: JobState, share: JobShare) -> Share:
        together = self._owners[job.owner] = Share(since=share.since)
        together.join(share)
        return together

    def _weigh_one(self, job: JobState, share: JobShare, slots: int) -> None:
        share.weigh(job, typical_seconds=self._typical_seconds, slots=slots, now=self._clock.now)
        share.left_seconds *= self._crowding

    def _slots(self, queue: QueueClass, known: dict[int, int]) -> int:
        """How many slots there are that a class could use; at least one."""
        pool = queue.pool or self._placement.pool(queue)
        found = known.get(id(pool))
        if found is None:
            shape = queue.shape
            found = 0
            for site in self._placement.possible_sites(queue):
                if site.known and not site.asleep:
                    found += site.place.room(shape).limit if is_bound(site, queue) else site.slots[shape]
            found = known[id(pool)] = max(1, found)
        return found

    # --- what is told -------------------------------------------------------------------------------------------------

    def ahead(self, job: JobState) -> tuple[int, JobState] | None:
        """How many jobs with something ready go before a job, and the first of them."""
        others = dict.fromkeys(queue.job for queue in (*self._queues.ready, *self._queues.waiting))
        others.pop(job, None)
        keys = self.keys((*others, job))
        before = [other for other in others if keys[other] < keys[job]]
        return (len(before), min(before, key=keys.__getitem__)) if before else None

    def why_before(self, other: JobState, job: JobState) -> str:
        """Why another job goes before a job, for people."""
        if other.plan.priority != job.plan.priority:
            return f"its priority is {other.plan.priority}, that of this job {job.plan.priority}"
        if not self.by_slowdown:
            return "it came first"
        (_, patient, *_), (_, _, owner, own, _) = self.key(other), self.key(job)
        if not patient:
            return "nothing of it was started for long"
        _, _, its_owner, its_own, _ = self.key(other)
        if its_owner != owner:
            told = f"the jobs of {other.owner} are expected to take {-its_owner:.1f} times as long as alone"
            return f"{told}, those of {job.owner} {-owner:.1f} times"
        return f"it is expected to take {-its_own:.1f} times as long as alone, this job {-own:.1f} times"
