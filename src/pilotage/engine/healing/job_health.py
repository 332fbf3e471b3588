"""What healing knows of one job: the times of its activities, its running attempts by when to look at them, and its waste."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from urllib.parse import urlsplit

import msgspec

from pilotage.engine.healing.phase_times import PhaseSamples
from pilotage.engine.healing.replication import ReplicationPolicy
from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import AttemptState
from pilotage.model.events.healing_payloads import ActivityPhases, HealingLearned, PhaseMedian
from pilotage.model.events.payloads import PhaseTimes

ACTIVITIES_MAX = 64
"""Activities whose medians are recorded: those with the most finished packages."""
_RESCHEDULED = 0.9  # once times have fallen to this share, the attempts that run are to be looked at sooner
_ENDS_MAX = 256  # ends of attempts that count fully; with more, all earlier ones count half
_MICROSECONDS = 1e6
NOTES_MAX = 200
"""As many attempts that left their slots are noted before they are counted, so that a cycle never has to count many."""
_serial = count()


class ActivityHealth:
    """The packages of a job that run the same software."""

    __slots__ = (
        "_told", "_told_total", "ends", "failures", "grouped", "just_told", "late", "name", "running", "running_most", "slots", "slots_at",
        "times", "young",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        """Nothing of it has run."""
        self.name = name
        self.times = PhaseSamples()
        self.ends = 0.0  # of attempts
        self.failures = 0.0  # of these, of packages that have not succeeded since
        self.running = 0  # attempts with a lease
        self.grouped = 1  # packages that share a batch job, as last recorded
        self.running_most = 0  # at once, so far
        self.slots = (0.0, 0.0)  # expected and present ones for it, as last counted
        self.slots_at = -math.inf
        # Attempts that run, by when to look at them: those that have told of no phase in the order in which they began, the
        # others in a heap. One that is over is met once more, and forgotten.
        self.young: deque[AttemptState] = deque()
        self.just_told: list[AttemptState] = []  # since the last cycle
        self._told: list[tuple[float, int, AttemptState]] = []
        self._told_total = 0.0  # the longest sum of medians that their times of a look were made with
        self.late: dict[AttemptState, None] = {}  # looked at in each cycle

    def failed(self) -> None:
        """An attempt failed."""
        self._count_ends(1)
        self.failures += 1.0

    def finished(self, packages: Sequence[Sequence[PhaseTimes]]) -> None:
        """Packages succeeded, with such phases."""
        self.times.add_all(packages)
        self._count_ends(len(packages))

    def _count_ends(self, count: int) -> None:
        """As often as it is done one by one, whatever is counted at once."""
        while count > 0:
            if self.ends >= _ENDS_MAX:
                self.ends *= 0.5
                self.failures *= 0.5
            step = min(count, max(1, math.ceil(_ENDS_MAX - self.ends)))
            self.ends += step
            count -= step

    def cured(self, failures: int) -> None:
        """A package succeeded after so many failures."""
        self.failures = max(0.0, self.failures - failures)

    def forget_ended(self) -> None:
        """Let go of attempts that are over before the next cycle meets them, once they are most of those that it would meet."""
        if len(self.young) > 2 * self.running + NOTES_MAX:
            self.young = deque(attempt for attempt in self.young if is_running(attempt) and attempt.phase < 0)

    def due(self, policy: ReplicationPolicy, now: float) -> None:
        """Put the attempts into `late` that are to be looked at now (wall-clock time)."""
        times, young = self.times, self.young
        after = policy.look_after(times, phase=None, before=0.0)
        while young and young[0].began_at + after <= now:
            attempt = young.popleft()
            if is_running(attempt) and attempt.phase < 0:
                self.late[attempt] = None
        if times.total < _RESCHEDULED * self._told_total:
            known, self._told, self._told_total = self._told, [], 0.0
            for _, _, attempt in known:
                self._push(attempt, policy)
        told, self.just_told = self.just_told, []
        for attempt in told:
            self._push(attempt, policy)
        while self._told and self._told[0][0] <= now:
            attempt = heapq.heappop(self._told)[2]
            if is_running(attempt):
                self.late[attempt] = None
        for attempt in [each for each in self.late if not is_running(each)]:
            del self.late[attempt]

    def due_at(self, policy: ReplicationPolicy) -> float:
        """When the next attempt is to be looked at: at once while one is late; infinite without any."""
        if self.late:
            return -math.inf
        young = self.young
        while young and not (is_running(young[0]) and young[0].phase < 0):
            young.popleft()
        at = young[0].began_at + policy.look_after(self.times, phase=None, before=0.0) if young else math.inf
        return min(at, self._told[0][0] if self._told else math.inf)

    def not_late(self, attempt: AttemptState, policy: ReplicationPolicy) -> None:
        """Look at an attempt again when it is due."""
        self.late.pop(attempt, None)
        self._push(attempt, policy)

    def oldest(self) -> AttemptState | None:
        """The attempt that has run longest of those that told of no phase."""
        return self.young[0] if self.young else None

    def _push(self, attempt: AttemptState, policy: ReplicationPolicy) -> None:
        if not is_running(attempt):
            return
        if attempt.phase < 0:
            after, since = policy.look_after(self.times, phase=None, before=0.0), attempt.began_at
        else:
            before, since = attempt.phase_at - attempt.began_at, attempt.phase_at
            after = policy.look_after(self.times, phase=attempt.phase, before=before)
        self._told_total = max(self._told_total, self.times.total)
        heapq.heappush(self._told, (since + after, next(_serial), attempt))


def is_running(attempt: AttemptState) -> bool:
    """Whether an attempt is believed to run."""
    return attempt.counted and attempt.leased and not attempt.suspect and not attempt.lost


def store_of(locator: str) -> str:
    """The store of a file: scheme and host, or bucket; without a scheme, files of this network."""
    parts = urlsplit(locator)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else f"{parts.scheme or 'file'}:"


class JobHealth:
    """The activities of a job, what was seen and done last, and how much slot time healing has cost."""

    __slots__ = (
        "_by_kind", "_gone_microseconds", "_raced_microseconds", "_restored", "_running_since", "activities", "begun", "changed",
        "committed", "cycle_at", "degrees", "failed_copies", "found_something", "gone", "job", "last_at", "present",
        "record_at", "records", "running", "seen", "seen_at",
    )  # fmt: skip

    def __init__(self, job: JobState) -> None:
        """A job of which nothing has run."""
        self.job = job
        self.activities: dict[str, ActivityHealth] = {}
        self._by_kind: list[ActivityHealth] = []
        self.running = 0
        # Attempts that took a slot or left one since somebody last looked: counting many at once costs little.
        self.begun: list[AttemptState] = []
        self.gone: list[tuple[AttemptState, float, bool]] = []  # when, and whether it succeeded
        # Sums in whole microseconds are the same in any order, so it does not matter when somebody looks.
        self._running_since = 0  # the sum of the times at which the running attempts began
        self._gone_microseconds = 0  # of the attempts that ended
        self._raced_microseconds = 0  # of these, without a grant, while they raced another attempt that healing made
        # Both, as recorded by an earlier engine: it may have wasted more since, so nothing of that may still be wasted.
        self._restored = (0.0, 0.0)
        self.changed = False  # something happened since the last cycle
        self.last_at = -math.inf  # the last cycle, in engine time
        self.cycle_at = math.inf  # the timer of the next one
        self.present: dict[tuple[str, str], float] = {}  # incidents of level 2 and more, since when
        self.degrees: dict[tuple[str, str], float] = {}  # of each incident, as last added to its history
        self.committed: dict[int, float] = {}  # packages with a copy of healing that is not over → its expected waste
        self.failed_copies: dict[str, int] = {}  # by store: copies of outputs that failed since one succeeded
        # Incidents as last written, and why no more was done.
        self.seen: tuple[frozenset[tuple[str, str]], str] = (frozenset(), "")
        self.seen_at = -math.inf
        self.record_at = -math.inf
        self.records = 0
        self.found_something = False  # since the job was last over

    def of_kind(self, kind: int) -> ActivityHealth:
        """The activity of a kind of packages."""
        try:
            return self._by_kind[kind]
        except IndexError:  # stages have been expanded since
            for template in self.job.plan.templates[len(self._by_kind) :]:
                self._by_kind.append(self.of_activity(template.activity))
            return self._by_kind[kind]

    def of_activity(self, name: str) -> ActivityHealth:
        """An activity by its name."""
        found = self.activities.get(name)
        if found is None:
            found = self.activities[name] = ActivityHealth(name)
        return found

    def catch_up(self) -> None:
        """Count what was noted."""
        if self.begun:
            if self.begun[0].key:
                self._note_most()
            self._count_begun()
        if self.gone:
            self._count_gone()

    def _note_most(self) -> None:
        """Note how many attempts with batch jobs of their own ran at once."""
        changes: dict[ActivityHealth, list[tuple[float, int]]] = {}
        for attempt in self.begun:
            changes.setdefault(self.of_kind(self.job.kinds[attempt.number]), []).append((attempt.began_at, 1))
        for attempt, at, _ in self.gone:
            changes.setdefault(self.of_kind(self.job.kinds[attempt.number]), []).append((at, -1))
        for activity, times in changes.items():
            running = activity.running
            for _, by in sorted(times):
                running += by
                activity.running_most = max(activity.running_most, running)

    def _count_begun(self) -> None:
        begun, self.begun = self.begun, []
        self.running += len(begun)
        self._running_since += sum([int(attempt.began_at * _MICROSECONDS) for attempt in begun])
        for activity, attempts in self._by_activity(begun):
            activity.running += len(attempts)
            activity.young.extend(attempts)

    def _count_gone(self) -> None:
        gone, self.gone = self.gone, []
        self.running -= len(gone)
        since = took = 0
        attempts = []
        for attempt, at, succeeded in gone:
            began_at, now = int(attempt.began_at * _MICROSECONDS), int(at * _MICROSECONDS)
            since += began_at
            if now > began_at:
                took += now - began_at
            if not succeeded and attempt.raced_at < at and now > began_at:  # the clock may have been set back
                self._raced_microseconds += now - max(int(attempt.raced_at * _MICROSECONDS), began_at)
            attempts.append(attempt)
        self._running_since -= since
        self._gone_microseconds += took
        for activity, those in self._by_activity(attempts):
            activity.running -= len(those)
            activity.forget_ended()
            activity.finished([attempt.phases for attempt in those if attempt.phases])

    def _by_activity(self, attempts: list[AttemptState]) -> Iterable[tuple[ActivityHealth, list[AttemptState]]]:
        """Attempts by their activity, in their order."""
        last = self.of_kind(len(self.job.plan.templates) - 1)  # then all kinds are known
        if len(self.activities) == 1:
            return ((last, attempts),)  # the usual case
        kinds = self.job.kinds
        found: dict[ActivityHealth, list[AttemptState]] = {}
        for attempt in attempts:
            found.setdefault(self.of_kind(kinds[attempt.number]), []).append(attempt)
        return found.items()

    @property
    def slot_seconds(self) -> float:
        """Slot time of the attempts that ended."""
        return self._restored[0] + self._gone_microseconds / _MICROSECONDS

    @property
    def healing_seconds(self) -> float:
        """Of it, that of attempts without a grant, while they raced another attempt that healing made."""
        return self._restored[1] + self._raced_microseconds / _MICROSECONDS

    def all_slot_seconds(self, now: float) -> float:
        """Slot time of all attempts so far."""
        return self.slot_seconds + max(0.0, self.running * now - self._running_since / _MICROSECONDS)

    def allowance(self, waste_max: float, now: float) -> float:
        """The slot time that healing may still waste; what is under way counts at least as it was expected to."""
        slot_seconds, healing_seconds = self._restored
        allowed = waste_max * (self.all_slot_seconds(now) - slot_seconds)
        under_way = math.fsum(max(cost, self._lost_so_far(number, now)) for number, cost in self.committed.items())
        return allowed - (self.healing_seconds - healing_seconds) - under_way

    def _lost_so_far(self, number: int, now: float) -> float:
        """What all but one of the attempts of a package have taken since they race each other."""
        work = self.job.work.get(number)
        attempts = work.attempts.values() if work is not None else ()
        raced = [now - max(each.raced_at, each.began_at) for each in attempts if is_running(each)]
        return math.fsum(each for each in raced if each > 0.0) - max(0.0, min(raced, default=0.0))

    def waste(self, now: float) -> float:
        """The share of slot time that healing has cost: of attempts without a grant, from when it made them or their rival.

        What an attempt took before it had a rival would have been spent anyway.
        """
        total = self.all_slot_seconds(now)
        return self.healing_seconds / total if total > 0.0 else 0.0

    def learned(self) -> HealingLearned:
        """What is known, for the book."""
        known = sorted(self.activities.values(), key=lambda each: (-each.times.count, each.name))[:ACTIVITIES_MAX]
        return HealingLearned(
            activities=tuple(
                ActivityPhases(
                    activity=each.name,
                    count=each.times.count,
                    medians=tuple(
                        PhaseMedian(phase=phase, seconds=round(seconds, 6))
                        for phase, seconds in each.times.named_medians()
                    ),
                )
                for each in known
                if each.times.count
            ),
            slot_seconds=round(self.slot_seconds, 3),
            healing_seconds=round(self.healing_seconds, 3),
        )

    def learned_at_end(self, now: float) -> HealingLearned:
        """The same once the job is over: attempts that still run have lost against others."""
        racing = math.fsum(
            max(0.0, now - max(attempt.raced_at, attempt.began_at))
            for work in self.job.work.values()
            for attempt in work.attempts.values()
            if is_running(attempt)
        )
        return msgspec.structs.replace(
            self.learned(),
            slot_seconds=round(self.all_slot_seconds(now), 3),
            healing_seconds=round(self.healing_seconds + racing, 3),
        )

    def restore(self, learned: HealingLearned) -> None:
        """Continue from what an earlier engine recorded."""
        for each in learned.activities:
            medians = {median.phase: median.seconds for median in each.medians}
            self.of_activity(each.activity).times.restore(each.count, medians)
        self._restored = (learned.slot_seconds, learned.healing_seconds)
        self.records, self.found_something = max(1, self.records), True

    def trusted(self, finished_min: int) -> Iterator[ActivityHealth]:
        """The activities of which enough packages have finished for their medians to be trusted."""
        return (each for each in self.activities.values() if each.times.count >= finished_min)
