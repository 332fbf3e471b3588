"""What happens at sites, as the engine tells it, and what follows: a site falls asleep or wakes, a pilot is to be drained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilotage.engine.selection.black_holes import Cause
from pilotage.engine.selection.rolling import microseconds
from pilotage.engine.selection.scores import Operation
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.selection.sites import Sites
from pilotage.engine.selection.status import Change, Drained
from pilotage.model.exchange.reports import Trouble
from pilotage.model.settings.engine import SelectionSettings

_BY_FAR = 2.0  # so many times the failures that it would have had elsewhere are a site's own
_SOME = 0.5  # of an end: evidence fades


class Observations:
    """One method for each thing that can happen. What is told of a site that is not known changes nothing."""

    def __init__(
        self, settings: SelectionSettings | None = None, *, observed_queue_seconds: Sequence[float] = ()
    ) -> None:
        """Begin without sites; queue times of earlier runs give the throttle its first value."""
        self.settings = settings or SelectionSettings()
        self._sites = self.sites = Sites(self.settings, observed_queue_seconds)
        self.samples = self.settings.policy == "thompson"  # nobody else asks for evidence by activity
        self._draws_once = self.settings.policy in ("weighted-random", "uniform")
        self._at, self._moment = 0.0, 0  # the time of a step, also in microseconds: most of it begins then

    # --- operations that are scored -------------------------------------------------------------------------------------

    def submission_began(self, site: str) -> None:
        """Something is being submitted to its batch system."""
        self.operation_began(site, "submission")

    def submission_ended(self, site: str, *, seconds: float | None, trouble: Trouble | None = None) -> None:
        """It was, or was not; `seconds` it took, where that is known."""
        place = self.operation_ended(site, "submission", trouble)
        if place is not None and place.sleep is None and seconds is not None and trouble is None:
            place.score.submitted(seconds)
            self._sites.scored(place)

    def operation_dropped(self, site: str, operation: Operation) -> None:
        """Nobody will hear how an operation ended, or its end is nobody's merit or fault."""
        if (place := self._sites.by_name.get(site)) is not None:
            place.score.dropped(operation)
            self._sites.scored(place)

    def operation_began(self, site: str, operation: Operation) -> None:
        """One of any kind begins: its load is taken."""
        if (place := self._sites.by_name.get(site)) is not None:
            place.score.began(operation)
            self._sites.scored(place)

    def operation_ended(self, site: str, operation: Operation, trouble: Trouble | None = None) -> SiteProfile | None:
        """It is over: its load is returned, and its end scored, unless its site sleeps: with that its score begins anew."""
        place = self._sites.by_name.get(site)
        if place is not None and place.sleep is not None:
            place.score.dropped(operation)
            self._sites.scored(place)
        elif place is not None:
            place.score.ended(operation, trouble)
            self._sites.scored(place)
        return place

    def operations_completed(self, site: str, count: int) -> None:
        """So many were heard of only when they were over, and ended well: there was no load that weighed meanwhile."""
        place = self._sites.by_name.get(site)
        if place is not None and place.sleep is None:
            for _ in range(count):
                place.score.succeeded()
            self._sites.scored(place)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _moment_of(self, at: float) -> int:
        self._at, self._moment = at, microseconds(at)
        return self._moment

    def created_at(self, place: SiteProfile, at: float, activity: str) -> None:
        """An attempt was handed over to a site."""
        place.live += 1
        if self.samples:
            place.arms.of(activity).began(self._moment_of(at))

    def started_at(self, place: SiteProfile, at: float, activity: str) -> None:
        """It was handed over and takes a slot at once, as with pilots: `created_at` and `began_at` in one."""
        place.live += 1
        moment = self._moment if at == self._at else self._moment_of(at)
        if self.samples:
            arms = place.arms
            (arms.latest if arms.latest_name == activity else arms.of(activity)).began(moment)
        place.ends.began(moment)
        if not place.well and not place.proved and place.trial_until is None and place.sleep is None:
            self._sites.try_until(place, at + self.settings.trial_seconds)

    def began_at(self, place: SiteProfile, at: float, queued_seconds: float | None = None) -> None:
        """It takes a slot; how long it was in the queue of the site, where it was in one of its own."""
        place.ends.began(self._moment_of(at))
        if not place.proved and place.trial_until is None and place.sleep is None:
            self._sites.try_until(place, at + self.settings.trial_seconds)
        if queued_seconds is not None:
            self._sites.queue_times.observe(place.waits, queued_seconds)

    def ended_at(
        self,
        place: SiteProfile,
        cause: Cause,
        at: float,
        created_at: float,
        began_at: float | None,
        queued_seconds: float | None,
        activity: str,
        pilot: str,
        node: str,
    ) -> list[Change]:
        """It is over, or nobody waits for it: told once for each that was created, with the times that were told of it then."""
        if place.live:
            place.live -= 1
        if began_at is not None:
            place.ends.left(began_at)
        succeeded = cause == "success"
        if self.samples:
            arm = place.arms.of(activity)
            arm.left(created_at)
            if cause != "nobody":
                half_life = self.settings.thompson_half_life_seconds
                arm.ended(at, at - created_at, succeeded=succeeded, half_life=half_life)
        if cause == "nobody":
            return []
        changes = self._draining(place, cause, pilot=pilot, node=node)
        if succeeded and place.canary:
            place.ends.clear()  # what it did before it slept is held against it no longer
            place.canary = False
            self._sites.touch(place)
        if began_at is not None:
            place.ends.ended(at - began_at, failed=not succeeded, activity=activity)
        if succeeded:
            return changes + self._succeeded(place, at=at, queued_seconds=queued_seconds)
        return changes + self._failed(place, cause, activity, at=at)

    def went_well(self, place: SiteProfile, began_at: float, at: float, activity: str) -> bool:
        """One of `started_at` succeeded, as most do; False, and nothing is done, where `ended_at` must be told."""
        if not place.well:
            place.well = place.is_well  # for the next one
            return False
        if place.live:
            place.live -= 1
        moment = round(began_at * 1e6)
        if self.samples:
            arms = place.arms
            arm = arms.latest if arms.latest_name == activity else arms.of(activity)
            arm.succeeded(began_at, moment, at, self.settings.thompson_half_life_seconds)
        place.ends.succeeded(moment, at - began_at)
        score = place.score
        score.succeeded()
        if score.known_grade is None:
            self._sites.scored(place)
        return True

    def succeeded_late(self, site: str, *, at: float) -> list[Change]:
        """An attempt of which the end was told already, because nobody waited for it any more, did succeed."""
        if (place := self._sites.by_name.get(site)) is None:
            return []
        return self._succeeded(place, at=at, queued_seconds=None)

    def _succeeded(self, place: SiteProfile, *, at: float, queued_seconds: float | None) -> list[Change]:
        place.times = 0
        if not place.proved:
            self._sites.prove(place)
        too_long = self._too_long(queued_seconds)
        if place.sleep is None:
            place.score.succeeded()
            self._sites.scored(place)
            return [self._sites.hibernate(place, "long-queue", too_long, at=at)] if too_long else []
        if place.sleep.reason == "by-hand" or too_long:
            return []
        score = self.settings.recovered_score
        message = "it finished another of its attempts"
        return [self._sites.wake(place, "finished-another", message, score=score, canary=False)]

    def _failed(self, place: SiteProfile, cause: Cause, activity: str, *, at: float) -> list[Change]:
        if place.sleep is not None:
            return []
        others = f"{place.live} others are there" if place.live else "nothing else is there"
        if cause == "platform":
            message = f"an attempt failed by the fault of the platform; {others}"
            return [self._sites.hibernate(place, "platform-failure", message, at=at)]
        if self.settings.freeze_on == "any-failure":
            return [self._sites.hibernate(place, "attempt-failed", f"an attempt failed; {others}", at=at)]
        if hole := place.ends.black_hole(at, self.settings, lambda each: self._fails_elsewhere(place, each, at)):
            return [self._sites.hibernate(place, "black-hole", hole, at=at)]
        place.canary = False
        if self._does_worse(place, activity, at):
            place.score.failed()
        self._sites.touch(place)
        if not place.proved:
            self._sites.try_until(place, at + self.settings.trial_seconds)
        return []

    def _does_worse(self, place: SiteProfile, activity: str, at: float) -> bool:
        """Whether more of an activity fails at a site than at the others, by far: else it is the program's fault, and costs no site.

        Where nothing of it has succeeded elsewhere, another site does better at most if something of it runs there and has
        not failed, while it failed here more than once.
        """
        well = failed = other_well = other_failed = 0.0
        others_run = False
        for each in self._sites.by_name.values():
            good, bad, runs = self._figures(each, activity, at)
            if each is place:
                well, failed = good, bad
            else:
                other_well, other_failed, others_run = other_well + good, other_failed + bad, others_run or runs
        if other_well < _SOME:
            return failed > 1.0 + _SOME and other_failed < _SOME and others_run
        expected = (well + failed) * other_failed / (other_well + other_failed)
        return failed > _BY_FAR * expected + _SOME

    def _fails_elsewhere(self, place: SiteProfile, activity: str, at: float) -> float:
        """How much of an activity fails at every other site that has tried it, from 0 to 1; 0 where none has.

        The site where the least of it fails tells, so that two black holes do not excuse each other beside a site that works.
        """
        least: float | None = None
        for each in self._sites.by_name.values():
            good, bad, runs = self._figures(each, activity, at) if each is not place else (0.0, 0.0, False)
            if bad < _SOME and (runs or good >= _SOME):
                return 0.0
            if bad >= _SOME:
                least = min(bad / (good + bad), 1.0 if least is None else least)
        return least or 0.0

    def _figures(self, place: SiteProfile, activity: str, at: float) -> tuple[float, float, bool]:
        """How much of an activity ended well at a site, how much failed, and whether some of it is under way."""
        if self.samples:
            arm = place.arms.look(activity)
            good, bad, _ = arm.figures(at, self.settings.thompson_half_life_seconds)
            return good, bad, arm.underway > 0
        tally = place.ends.own()  # what there is of all activities together
        return tally.ends - tally.failures, tally.failures, tally.running > 0

    def _draining(self, place: SiteProfile, cause: Cause, *, pilot: str, node: str) -> list[Change]:
        found: list[Change] = []
        if not (pilot or node) or (cause == "success" and not place.failing):
            return found
        streak = f"{self.settings.black_hole_streak} attempts in a row failed there by the fault of the platform"
        if place.pilots.ended(pilot, cause):
            found.append(Drained(site=place.name, kind="pilot", name=pilot, message=streak))
        if place.nodes.ended(node, cause):
            found.append(Drained(site=place.name, kind="node", name=node, message=streak))
        return found

    def pilot_gone(self, site: str, pilot: str) -> None:
        """What was counted against a pilot is forgotten with it."""
        if (place := self._sites.by_name.get(site)) is not None:
            place.pilots.forget(pilot)

    # --- queues -------------------------------------------------------------------------------------------------------

    @property
    def queue_throttle_seconds(self) -> float:
        """The queueTimeThrottle, as it is now."""
        return self._sites.queue_times.throttle_seconds

    def _too_long(self, queued_seconds: float | None) -> str:
        if queued_seconds is None or queued_seconds <= (throttle := self.queue_throttle_seconds):
            return ""
        return f"it queued for {queued_seconds:.0f} s, and more than {throttle:.0f} s is too long"

    def pilot_began(self, site: str, *, queued_seconds: float) -> list[Change]:
        """A pilot came out of the queue of a site; one that slept because of its queue has slots now."""
        place = self._sites.by_name.get(site)
        if place is None:
            return []
        self._sites.queue_times.observe(place.waits, queued_seconds)
        if place.sleep is None or place.sleep.reason != "long-queue":
            return []
        score = self.settings.recovered_score
        return [self._sites.wake(place, "pilot-began", "a pilot came out of its queue", score=score, canary=False)]

    def still_queued(self, site: str, *, queued_seconds: float, at: float) -> list[Change]:
        """Something is in the queue of a site for so long (1b for what never begins)."""
        place = self._sites.by_name.get(site)
        too_long = self._too_long(queued_seconds)
        if place is None or place.sleep is not None or not too_long:
            return []
        return [self._sites.hibernate(place, "long-queue", too_long, at=at)]

    def replica_won(self, queued_seconds: float, *, others: Iterable[tuple[str, float]], at: float) -> list[Change]:
        """A replica began after so long; `others` are the sites that had not begun theirs, and how long those waited."""
        changes: list[Change] = []
        for site, waited in others:
            place = self._sites.by_name.get(site)
            if place is None or waited <= queued_seconds:
                continue  # replicas are not launched together: who waited for less time has lost nothing
            if place.sleep is None:
                place.score.outqueued()
                self._sites.touch(place)
            changes += self.still_queued(site, queued_seconds=waited, at=at)
        return changes

    def replicate_after_seconds(self, site: str) -> float:
        """After how long in the queue of a site another attempt may be made elsewhere."""
        place = self._sites.by_name.get(site)
        median = place.median_wait_seconds if place is not None else None
        return max(self.settings.replication_min_queue_seconds, self.settings.replication_medians * (median or 0.0))

    def may_replicate(self, *, queue_replicas: int, live: int, most: int | None = None) -> bool:
        """Whether a package with so many queue replicas and so many live attempts, of `most`, may have one more."""
        most = self.settings.max_replicas if most is None else most
        return queue_replicas < self.settings.replication_limit and live < most

    def died_at_start(self, site: str, *, count: int, message: str, at: float, what: str) -> list[Change]:
        """So many pilots in a row did not come, and `what` became of them: none is started there until it is woken."""
        place = self._sites.by_name.get(site)
        if place is None or place.sleep is not None:
            return []
        told = f"{count} {what}{': ' + message if message else ''}"
        return [self._sites.hibernate(place, "dead-starts", told, at=at)]

    # --- probes and people ----------------------------------------------------------------------------------------------

    def probe_told(
        self, site: str, *, passed: bool, at: float, score: float | None = None, message: str = ""
    ) -> list[Change]:
        """A probe ran; `score` is what it thinks of a site at which nothing was tried yet."""
        place = self._sites.by_name.get(site)
        if place is None or (place.sleep is not None and place.sleep.reason == "by-hand"):
            return []
        if not passed:
            told = message or "a probe failed"
            return [] if place.sleep else [self._sites.hibernate(place, "probe-failed", told, at=at)]
        if place.sleep is not None:
            earned = self.settings.woken_score if score is None else score
            return [self._sites.wake(place, "probe-passed", message or "a probe passed", score=earned, canary=True)]
        if score is not None and not place.live and not place.ends.latest:
            place.score.reset(score)
            self._sites.touch(place)
        return []

    def hibernate(self, site: str, *, at: float, message: str = "") -> list[Change]:
        """Somebody puts a site to sleep, until somebody wakes it."""
        place = self._sites.by_name.get(site)
        if place is None or (place.sleep is not None and place.sleep.reason == "by-hand"):
            return []
        return [self._sites.hibernate(place, "by-hand", message or "somebody put it to sleep", at=at)]

    def wake(self, site: str, *, message: str = "") -> list[Change]:
        """Somebody wakes a site; it gets one canary first."""
        place = self._sites.by_name.get(site)
        if place is None or place.sleep is None:
            return []
        place.times = 0
        place.nodes.restore({})  # whoever wakes it has looked at them
        score = self.settings.woken_score
        return [self._sites.wake(place, "by-hand", message or "somebody woke it", score=score, canary=True)]

    def clear(self, site: str) -> bool:
        """Somebody says that what is held against a site that does not sleep counts no more; whether there was anything."""
        place = self._sites.by_name.get(site)
        if place is None or place.sleep is not None:
            return False
        held = place.score.earned < self.settings.woken_score or bool(place.nodes.counts())
        if held:
            place.times = 0
            place.nodes.restore({})
            place.ends.clear()
            place.score.reset(max(place.score.earned, self.settings.woken_score))
            self._sites.touch(place)
        return held
