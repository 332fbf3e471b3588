"""All sites of the selection: which exist, which are hibernated, and sums over all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from pilotage.engine.selection.black_holes import AllSites
from pilotage.engine.selection.candidates import CandidateSet, ChangeLog
from pilotage.engine.selection.filters import Requirements, SiteDescription
from pilotage.engine.selection.rolling import QueueTimes
from pilotage.engine.selection.sampling import weight_of_grade
from pilotage.engine.selection.site_profile import LearnedState, SiteProfile
from pilotage.engine.selection.status import Hibernated, Sleep, SleepQueue, SleepReason, WakeRule, Woken
from pilotage.model.settings.engine import SelectionSettings


class Sites:
    """The sites, by name and by index."""

    def __init__(self, settings: SelectionSettings, observed_queue_seconds: Sequence[float] = ()) -> None:
        """Start without sites; queue times of earlier runs set the initial throttle."""
        self.settings = settings
        self.profiles: list[SiteProfile | None] = []
        self.by_name: dict[str, SiteProfile] = {}
        self.asleep = SleepQueue()
        self.queue_times = QueueTimes(settings, observed_queue_seconds)
        self.everyone = AllSites()
        self.changes = ChangeLog()
        self.listener: Callable[[SiteProfile], None] | None = None  # called when a site changed, perhaps for the better
        self.trials: list[
            tuple[float, int]
        ] = []  # a heap of (end of the trial, index); a site on a second trial is in it twice
        self._weighted = settings.policy != "uniform"
        self._pools: dict[tuple[int, Requirements], CandidateSet] = {}
        self._sole: CandidateSet | None = None  # the only candidate set, if there is just one

    def add(self, description: SiteDescription) -> SiteProfile:
        """Add a site as a candidate; a known one gets a new description and keeps what was learned."""
        profile = self.by_name.get(description.name)
        if profile is not None:
            profile.describe(description)
        else:
            index = len(self.profiles)
            profile = SiteProfile(description, index=index, settings=self.settings, everyone=self.everyone)
            self.profiles.append(profile)
            self.by_name[profile.name] = profile
            self._count_sites()
        self.touch(profile)
        return profile

    def remove(self, profile: SiteProfile) -> None:
        """Remove a site; its index is never reused, so a site that comes back is last."""
        self._leave_queue(profile)
        self.queue_times.remove(profile.waits)
        profile.ends.remove()
        del self.by_name[profile.name]
        self.profiles[profile.index] = None
        self._count_sites()
        self.touch(profile)

    def restore(self, profile: SiteProfile, learned_state: LearnedState) -> None:
        """Restore what was learned of a site."""
        self._leave_queue(profile)
        self.queue_times.remove(profile.waits)
        profile.restore(learned_state)
        self.queue_times.add(profile.waits)
        if profile.sleep is not None:
            self.asleep.add(profile.index, profile.sleep.order)
        if profile.trial_until is not None:
            heappush(self.trials, (profile.trial_until, profile.index))
        self.touch(profile)

    def _count_sites(self) -> None:
        """A site is on trial only beside others: update that when sites come or go."""
        self.everyone.sites = len(self.by_name)
        self.changes.allow_for(len(self.profiles))
        if len(self.by_name) <= 2:
            for profile in self.by_name.values():
                self.touch(profile)

    def try_until(self, profile: SiteProfile, time: float) -> None:
        """Prove a site on trial at this time, unless something fails there before."""
        if not self.settings.trial_room:
            return
        profile.trial_until = time
        heappush(self.trials, (time, profile.index))

    def prove(self, profile: SiteProfile) -> None:
        """End the trial of a site."""
        profile.proved = True
        profile.trial_until = None
        self.touch(profile)

    def end_trials(self, now: float) -> float | None:
        """End the trials that are due; returns when the next one is."""
        trials = self.trials
        while trials:
            time, index = trials[0]
            profile = self.profiles[index]
            if profile is not None and profile.trial_until == time:
                if time > now:
                    return time
                self.prove(profile)
            heappop(trials)
        return None

    def touch(self, profile: SiteProfile) -> None:
        """Record a change of a site."""
        profile.well = False
        profile.rooms.clear()
        self._grade(profile)
        self.changes.note(profile)
        if self.listener is not None:
            self.listener(profile)

    def scored(self, profile: SiteProfile) -> None:
        """Its score changed: update weight and room if its grade changed."""
        grade, before = profile.score.grade, profile.grade
        if grade == before:
            return
        if grade >= 0 <= before and profile.piloted and all(map(profile.slots.get, profile.rooms)):
            self._grade(profile)  # with pilots, a TScore above 1 makes no more room
            pool = self._sole
            if pool is not None and pool.position == self.changes.end:
                pool.weigh(profile.index, profile.weight)
            else:
                self.changes.note(profile)
        else:
            self.touch(profile)

    def _grade(self, profile: SiteProfile) -> None:
        grade = profile.grade = profile.score.grade
        if self._weighted:
            profile.weight = weight_of_grade(grade)

    def use(self, profile: SiteProfile, shape: int) -> None:
        """One more of a shape is reserved or active."""
        used = profile.used[shape] = profile.used.get(shape, 0) + 1
        room = profile.rooms.get(shape)
        if room is not None:  # not cached for a site with a canary
            if used < room:
                return
            pool = self._sole
            if pool is not None and pool.shape == shape and pool.position == self.changes.end:
                pool.fill(profile.index)  # directly, as there is no other set to notify
                return
        elif profile.canary:
            profile.placed += 1
        self.changes.note(profile)

    def free(self, profile: SiteProfile, shape: int) -> bool:
        """One less of a shape; returns whether there is room again."""
        used = profile.used.get(shape, 0) - 1
        if used < 0:
            used = 0
        profile.used[shape] = used
        room = profile.rooms.get(shape)
        if room is not None:
            if used != room - 1:
                return False
            pool = self._sole
            if pool is not None and pool.shape == shape and pool.position == self.changes.end:
                pool.open(profile.index, profile.weight)
                return True
        elif profile.canary:
            profile.placed = max(0, profile.placed - 1)
        self.changes.note(profile)
        return True

    def hibernate(self, profile: SiteProfile, reason: SleepReason, message: str, *, at: float) -> Hibernated:
        """Hibernate a site: its score becomes 0, and it goes to the end of the queue."""
        self._leave_queue(profile)
        order = self.asleep.next_order
        profile.sleep = Sleep(reason=reason, message=message, since=at, order=order, others=profile.live)
        self.asleep.add(profile.index, order)
        profile.score.reset(0.0)
        profile.times += reason != "by-hand"
        profile.canary = False
        profile.placed = 0
        profile.trial_until = None  # attempts after it is woken start a new trial
        self.touch(profile)
        return Hibernated(site=profile.name, reason=reason, message=message, others=profile.live)

    def wake(self, profile: SiteProfile, rule: WakeRule, message: str, *, score: float, canary: bool) -> Woken:
        """Make a site a candidate again."""
        self._leave_queue(profile)
        profile.sleep = None
        profile.score.reset(score)
        profile.canary = canary
        profile.placed = 0
        self.touch(profile)
        return Woken(site=profile.name, rule=rule, message=message, score=score, canary=canary)

    def pool(self, requirements: Requirements, shape: int) -> CandidateSet:
        """The candidate set for these requirements, up to date."""
        found = self._pools.get((shape, requirements))
        if found is None:
            found = self._pools[shape, requirements] = CandidateSet(requirements, shape)
            self._count_pools()
        self.refresh(found)
        return found

    def refresh(self, pool: CandidateSet) -> None:
        """Bring a pool up to date."""
        pool.refresh(self.profiles, self.changes)

    def forget(self, requirements: Requirements, shape: int) -> None:
        """Drop an unused candidate set."""
        self._pools.pop((shape, requirements), None)
        self._count_pools()

    def _count_pools(self) -> None:
        self._sole = next(iter(self._pools.values())) if len(self._pools) == 1 else None

    def _leave_queue(self, profile: SiteProfile) -> None:
        if profile.sleep is not None:
            self.asleep.remove(profile.index, profile.sleep.order)
