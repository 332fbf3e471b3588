"""All sites together: who is there, who sleeps, and what is summed over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from pilotage.engine.selection.black_holes import AllSites
from pilotage.engine.selection.candidates import CandidateSet, Changes
from pilotage.engine.selection.filters import Asked, SiteDescription
from pilotage.engine.selection.rolling import QueueTimes
from pilotage.engine.selection.sampling import weight_of_grade
from pilotage.engine.selection.site_profile import LearnedState, SiteProfile
from pilotage.engine.selection.status import Hibernated, Sleep, SleepQueue, SleepReason, WakeRule, Woken
from pilotage.model.settings.engine import SelectionSettings


class Sites:
    """The sites, by name and by index."""

    def __init__(self, settings: SelectionSettings, observed_queue_seconds: Sequence[float] = ()) -> None:
        """Begin with none; queue times of earlier runs give the throttle its first value."""
        self.settings = settings
        self.places: list[SiteProfile | None] = []
        self.by_name: dict[str, SiteProfile] = {}
        self.asleep = SleepQueue()
        self.queue_times = QueueTimes(settings, observed_queue_seconds)
        self.everyone = AllSites()
        self.changes = Changes()
        self.listener: Callable[[SiteProfile], None] | None = (
            None  # is told where something changed that may be for the better
        )
        self.trials: list[tuple[float, int]] = []  # a heap: until when, and the index; who is tried anew is in it twice
        self._weighted = settings.policy != "uniform"
        self._pools: dict[tuple[int, Asked], CandidateSet] = {}
        self._sole: CandidateSet | None = None  # the only one there is

    def add(self, description: SiteDescription) -> SiteProfile:
        """One more site, a candidate; one that is there is described anew and keeps what was learned of it."""
        place = self.by_name.get(description.name)
        if place is not None:
            place.describe(description)
        else:
            index = len(self.places)
            place = SiteProfile(description, index=index, settings=self.settings, everyone=self.everyone)
            self.places.append(place)
            self.by_name[place.name] = place
            self._count_sites()
        self.touch(place)
        return place

    def remove(self, place: SiteProfile) -> None:
        """One less; its index is never given to another, so whoever comes back stands at the end."""
        self._leave_queue(place)
        self.queue_times.remove(place.waits)
        place.ends.remove()
        del self.by_name[place.name]
        self.places[place.index] = None
        self._count_sites()
        self.touch(place)

    def restore(self, place: SiteProfile, learned_state: LearnedState) -> None:
        """Know of a site what was learned of it before."""
        self._leave_queue(place)
        self.queue_times.remove(place.waits)
        place.restore(learned_state)
        self.queue_times.add(place.waits)
        if place.sleep is not None:
            self.asleep.add(place.index, place.sleep.order)
        if place.trial_until is not None:
            heappush(self.trials, (place.trial_until, place.index))
        self.touch(place)

    def _count_sites(self) -> None:
        """A site that is alone is not on trial: with another it is, and without it no more."""
        self.everyone.sites = len(self.by_name)
        self.changes.allow_for(len(self.places))
        if len(self.by_name) <= 2:
            for place in self.by_name.values():
                self.touch(place)

    def try_until(self, place: SiteProfile, time: float) -> None:
        """A site that is not proved is, when nothing fails there until a time."""
        if not self.settings.trial_room:
            return
        place.trial_until = time
        heappush(self.trials, (time, place.index))

    def prove(self, place: SiteProfile) -> None:
        """The trial of a site is over."""
        place.proved = True
        place.trial_until = None
        self.touch(place)

    def end_trials(self, now: float) -> float | None:
        """End the trials whose time has come; when the next one does."""
        trials = self.trials
        while trials:
            time, index = trials[0]
            place = self.places[index]
            if place is not None and place.trial_until == time:
                if time > now:
                    return time
                self.prove(place)
            heappop(trials)
        return None

    def touch(self, place: SiteProfile) -> None:
        """Something happened there."""
        place.well = False
        place.rooms.clear()
        self._grade(place)
        self.changes.note(place)
        if self.listener is not None:
            self.listener(place)

    def scored(self, place: SiteProfile) -> None:
        """Its score changed: that matters where its grade has, from which its weight and its room follow."""
        grade, before = place.score.grade, place.grade
        if grade == before:
            return
        if grade >= 0 <= before and place.piloted and all(map(place.slots.get, place.rooms)):
            self._grade(place)  # with pilots no TScore above 1 makes more room
            pool = self._sole
            if pool is not None and pool.position == self.changes.end:
                pool.weigh(place.index, place.weight)
            else:
                self.changes.note(place)
        else:
            self.touch(place)

    def _grade(self, place: SiteProfile) -> None:
        grade = place.grade = place.score.grade
        if self._weighted:
            place.weight = weight_of_grade(grade)

    def use(self, place: SiteProfile, shape: int) -> None:
        """One more of a shape is reserved or under way."""
        used = place.used[shape] = place.used.get(shape, 0) + 1
        room = place.rooms.get(shape)
        if room is not None:  # it is not kept for who has a canary
            if used < room:
                return
            pool = self._sole
            if pool is not None and pool.shape == shape and pool.position == self.changes.end:
                pool.fill(place.index)  # at once, because there is nobody else to tell
                return
        elif place.canary:
            place.placed += 1
        self.changes.note(place)

    def free(self, place: SiteProfile, shape: int) -> bool:
        """One less; whether there is room again."""
        used = place.used.get(shape, 0) - 1
        if used < 0:
            used = 0
        place.used[shape] = used
        room = place.rooms.get(shape)
        if room is not None:
            if used != room - 1:
                return False
            pool = self._sole
            if pool is not None and pool.shape == shape and pool.position == self.changes.end:
                pool.open(place.index, place.weight)
                return True
        elif place.canary:
            place.placed = max(0, place.placed - 1)
        self.changes.note(place)
        return True

    def hibernate(self, place: SiteProfile, reason: SleepReason, message: str, *, at: float) -> Hibernated:
        """Put a site to sleep: its score is 0, and it stands at the end of the queue."""
        self._leave_queue(place)
        order = self.asleep.next_order
        place.sleep = Sleep(reason=reason, message=message, since=at, order=order, others=place.live)
        self.asleep.add(place.index, order)
        place.score.reset(0.0)
        place.times += reason != "by-hand"
        place.canary = False
        place.placed = 0
        place.trial_until = None  # what begins after it was woken tells
        self.touch(place)
        return Hibernated(site=place.name, reason=reason, message=message, others=place.live)

    def wake(self, place: SiteProfile, rule: WakeRule, message: str, *, score: float, canary: bool) -> Woken:
        """Make a site a candidate again."""
        self._leave_queue(place)
        place.sleep = None
        place.score.reset(score)
        place.canary = canary
        place.placed = 0
        self.touch(place)
        return Woken(site=place.name, rule=rule, message=message, score=score, canary=canary)

    def pool(self, asked: Asked, shape: int) -> CandidateSet:
        """The sites for what is asked, up to date."""
        found = self._pools.get((shape, asked))
        if found is None:
            found = self._pools[shape, asked] = CandidateSet(asked, shape)
            self._count_pools()
        self.refresh(found)
        return found

    def refresh(self, pool: CandidateSet) -> None:
        """Bring a pool up to date."""
        pool.refresh(self.places, self.changes)

    def forget(self, asked: Asked, shape: int) -> None:
        """Nobody asks for this any more."""
        self._pools.pop((shape, asked), None)
        self._count_pools()

    def _count_pools(self) -> None:
        self._sole = next(iter(self._pools.values())) if len(self._pools) == 1 else None

    def _leave_queue(self, place: SiteProfile) -> None:
        if place.sleep is not None:
            self.asleep.remove(place.index, place.sleep.order)
