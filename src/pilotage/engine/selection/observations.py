"""Records what happens at sites and what follows: hibernate or wake a site, drain a pilot."""

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

_BY_FAR = 2.0  # this many times the failures expected elsewhere are the site's own fault
_SOME = 0.5  # of an end: evidence fades


class Observations:
    """One method for each observation. Those about unknown sites are ignored."""

    def __init__(
        self, settings: SelectionSettings | None = None, *, observed_queue_seconds: Sequence[float] = ()
    ) -> None:
        """Start without sites; queue times of earlier runs set the initial throttle."""
        self.settings = settings or SelectionSettings()
        self._sites = self.sites = Sites(self.settings, observed_queue_seconds)
        self.samples = self.settings.policy == "thompson"  # other policies do not use evidence by activity
        self._draws_once = self.settings.policy in ("weighted-random", "uniform")
        self._at, self._moment = 0.0, 0  # the time of a step, also in microseconds: most observations share it

    # --- scored operations ----------------------------------------------------------------------------------------------

    def submission_began(self, site: str) -> None:
        """A submission to the batch system started."""
        self.operation_began(site, "submission")

    def submission_ended(self, site: str, *, seconds: float | None, trouble: Trouble | None = None) -> None:
        """A submission ended after `seconds`, if known, or failed."""
        profile = self.operation_ended(site, "submission", trouble)
        if profile is not None and profile.sleep is None and seconds is not None and trouble is None:
            profile.score.submitted(seconds)
            self._sites.scored(profile)

    def operation_dropped(self, site: str, operation: Operation) -> None:
        """The end of an operation will not be known, or deserves no score."""
        if (profile := self._sites.by_name.get(site)) is not None:
            profile.score.dropped(operation)
            self._sites.scored(profile)

    def operation_began(self, site: str, operation: Operation) -> None:
        """An operation of any kind starts: add its load."""
        if (profile := self._sites.by_name.get(site)) is not None:
            profile.score.began(operation)
            self._sites.scored(profile)

    def operation_ended(self, site: str, operation: Operation, trouble: Trouble | None = None) -> SiteProfile | None:
        """An operation ended: return its load and score it, unless its site is hibernated, since its score starts anew then."""
        profile = self._sites.by_name.get(site)
        if profile is not None and profile.sleep is not None:
            profile.score.dropped(operation)
            self._sites.scored(profile)
        elif profile is not None:
            profile.score.ended(operation, trouble)
            self._sites.scored(profile)
        return profile

    def operations_completed(self, site: str, count: int) -> None:
        """Score operations that are known only after their successful end: they carried no load."""
        profile = self._sites.by_name.get(site)
        if profile is not None and profile.sleep is None:
            for _ in range(count):
                profile.score.succeeded()
            self._sites.scored(profile)

    def operation_failed(self, site: str) -> None:
        """Score an operation that is known only after it failed: it carried no load."""
        profile = self._sites.by_name.get(site)
        if profile is not None and profile.sleep is None:
            profile.score.failed()
            self._sites.scored(profile)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _moment_of(self, at: float) -> int:
        self._at, self._moment = at, microseconds(at)
        return self._moment

    def created_at(self, profile: SiteProfile, at: float, activity: str) -> None:
        """An attempt was handed over to a site."""
        profile.live += 1
        if self.samples:
            profile.arms.of(activity).began(self._moment_of(at))

    def started_at(self, profile: SiteProfile, at: float, activity: str) -> None:
        """An attempt was handed over and started at once, as with pilots: `created_at` and `began_at` in one."""
        profile.live += 1
        moment = self._moment if at == self._at else self._moment_of(at)
        if self.samples:
            arms = profile.arms
            (arms.latest if arms.latest_name == activity else arms.of(activity)).began(moment)
        profile.ends.began(moment)
        if not profile.well and not profile.proved and profile.trial_until is None and profile.sleep is None:
            self._sites.try_until(profile, at + self.settings.trial_seconds)

    def began_at(self, profile: SiteProfile, at: float, queued_seconds: float | None = None) -> None:
        """An attempt occupies a slot; `queued_seconds` if it had a batch job of its own."""
        profile.ends.began(self._moment_of(at))
        if not profile.proved and profile.trial_until is None and profile.sleep is None:
            self._sites.try_until(profile, at + self.settings.trial_seconds)
        if queued_seconds is not None:
            self._sites.queue_times.observe(profile.waits, queued_seconds)

    def ended_at(
        self,
        profile: SiteProfile,
        cause: Cause,
        at: float,
        created_at: float,
        began_at: float | None,
        queued_seconds: float | None,
        activity: str,
        pilot: str,
        node: str,
    ) -> list[Change]:
        """An attempt is over or given up; called once for each created attempt, with the times recorded before."""
        if profile.live:
            profile.live -= 1
        if began_at is not None:
            profile.ends.left(began_at)
        succeeded = cause == "success"
        if self.samples:
            arm = profile.arms.of(activity)
            arm.left(created_at)
            if cause != "neutral":
                half_life = self.settings.thompson_half_life_seconds
                arm.ended(at, at - created_at, succeeded=succeeded, half_life=half_life)
        if cause == "neutral":
            return []
        changes = self._draining(profile, cause, pilot=pilot, node=node)
        if succeeded and profile.canary:
            profile.ends.clear()  # its past before hibernation no longer counts
            profile.canary = False
            self._sites.touch(profile)
        if began_at is not None:
            profile.ends.ended(at - began_at, failed=not succeeded, activity=activity)
        if succeeded:
            return changes + self._succeeded(profile, at=at, queued_seconds=queued_seconds)
        return changes + self._failed(profile, cause, activity, at=at)

    def record_success(self, profile: SiteProfile, began_at: float, at: float, activity: str) -> bool:
        """Record the success of an attempt of `started_at`, the usual case; False, with no effect, if `ended_at` must be called."""
        if not profile.well:
            profile.well = profile.is_well  # for the next one
            return False
        if profile.live:
            profile.live -= 1
        moment = round(began_at * 1e6)
        if self.samples:
            arms = profile.arms
            arm = arms.latest if arms.latest_name == activity else arms.of(activity)
            arm.succeeded(began_at, moment, at, self.settings.thompson_half_life_seconds)
        profile.ends.succeeded(moment, at - began_at)
        score = profile.score
        score.succeeded()
        if score.known_grade is None:
            self._sites.scored(profile)
        return True

    def succeeded_late(self, site: str, *, at: float) -> list[Change]:
        """An attempt that was given up has succeeded after all."""
        if (profile := self._sites.by_name.get(site)) is None:
            return []
        return self._succeeded(profile, at=at, queued_seconds=None)

    def _succeeded(self, profile: SiteProfile, *, at: float, queued_seconds: float | None) -> list[Change]:
        profile.times = 0
        if not profile.proved:
            self._sites.prove(profile)
        too_long = self._too_long(queued_seconds)
        if profile.sleep is None:
            profile.score.succeeded()
            self._sites.scored(profile)
            return [self._sites.hibernate(profile, "long-queue", too_long, at=at)] if too_long else []
        if profile.sleep.reason == "by-hand" or too_long:
            return []
        score = self.settings.recovered_score
        message = "it finished another of its attempts"
        return [self._sites.wake(profile, "finished-another", message, score=score, canary=False)]

    def _failed(self, profile: SiteProfile, cause: Cause, activity: str, *, at: float) -> list[Change]:
        if profile.sleep is not None:
            return []
        others = f"{profile.live} others are there" if profile.live else "nothing else is there"
        if cause == "platform":
            message = f"an attempt failed because of the platform; {others}"
            return [self._sites.hibernate(profile, "platform-failure", message, at=at)]
        if self.settings.freeze_on == "any-failure":
            return [self._sites.hibernate(profile, "attempt-failed", f"an attempt failed; {others}", at=at)]
        if hole := profile.ends.black_hole(at, self.settings, lambda each: self._fails_elsewhere(profile, each, at)):
            return [self._sites.hibernate(profile, "black-hole", hole, at=at)]
        profile.canary = False
        if self._does_worse(profile, activity, at):
            profile.score.failed()
        self._sites.touch(profile)
        if not profile.proved:
            self._sites.try_until(profile, at + self.settings.trial_seconds)
        return []

    def _does_worse(self, profile: SiteProfile, activity: str, at: float) -> bool:
        """Whether far more of an activity fails at a site than at the others: else the program is at fault, and no site is blamed.

        If nothing of it has succeeded elsewhere, another site does better only if it runs some of it without a failure, while
        it failed here more than once.
        """
        well = failed = other_well = other_failed = 0.0
        others_run = False
        for each in self._sites.by_name.values():
            good, bad, runs = self._figures(each, activity, at)
            if each is profile:
                well, failed = good, bad
            else:
                other_well, other_failed, others_run = other_well + good, other_failed + bad, others_run or runs
        if other_well < _SOME:
            return failed > 1.0 + _SOME and other_failed < _SOME and others_run
        expected = (well + failed) * other_failed / (other_well + other_failed)
        return failed > _BY_FAR * expected + _SOME

    def _fails_elsewhere(self, profile: SiteProfile, activity: str, at: float) -> float:
        """The share of an activity that fails at every other site that has tried it, from 0 to 1; 0 if none has.

        The site with the lowest share counts, so that two black holes do not excuse each other beside a working site.
        """
        least: float | None = None
        for each in self._sites.by_name.values():
            good, bad, runs = self._figures(each, activity, at) if each is not profile else (0.0, 0.0, False)
            if bad < _SOME and (runs or good >= _SOME):
                return 0.0
            if bad >= _SOME:
                least = min(bad / (good + bad), 1.0 if least is None else least)
        return least or 0.0

    def _figures(self, profile: SiteProfile, activity: str, at: float) -> tuple[float, float, bool]:
        """How many attempts of an activity succeeded and failed at a site, and whether some are active."""
        if self.samples:
            arm = profile.arms.peek(activity)
            good, bad, _ = arm.figures(at, self.settings.thompson_half_life_seconds)
            return good, bad, arm.underway > 0
        tally = profile.ends.tally()  # totals of all activities
        return tally.ends - tally.failures, tally.failures, tally.running > 0

    def _draining(self, profile: SiteProfile, cause: Cause, *, pilot: str, node: str) -> list[Change]:
        found: list[Change] = []
        if not (pilot or node) or (cause == "success" and not profile.failing):
            return found
        streak = f"{self.settings.black_hole_streak} attempts in a row failed there because of the platform"
        if profile.pilots.ended(pilot, cause):
            found.append(Drained(site=profile.name, kind="pilot", name=pilot, message=streak))
        if profile.nodes.ended(node, cause):
            found.append(Drained(site=profile.name, kind="node", name=node, message=streak))
        return found

    def pilot_gone(self, site: str, pilot: str) -> None:
        """Forget the failure count of a pilot that is gone."""
        if (profile := self._sites.by_name.get(site)) is not None:
            profile.pilots.forget(pilot)

    # --- queues -------------------------------------------------------------------------------------------------------

    @property
    def queue_throttle_seconds(self) -> float:
        """The current queueTimeThrottle."""
        return self._sites.queue_times.throttle_seconds

    def _too_long(self, queued_seconds: float | None) -> str:
        if queued_seconds is None or queued_seconds <= (throttle := self.queue_throttle_seconds):
            return ""
        return f"it queued for {queued_seconds:.0f} s; the limit is {throttle:.0f} s"

    def pilot_began(self, site: str, *, queued_seconds: float) -> list[Change]:
        """A pilot started after queueing; a site that was hibernated because of its queue has slots now."""
        profile = self._sites.by_name.get(site)
        if profile is None:
            return []
        self._sites.queue_times.observe(profile.waits, queued_seconds)
        if profile.sleep is None or profile.sleep.reason != "long-queue":
            return []
        score = self.settings.recovered_score
        return [self._sites.wake(profile, "pilot-began", "a queued pilot started", score=score, canary=False)]

    def still_queued(self, site: str, *, queued_seconds: float, at: float) -> list[Change]:
        """A batch job is queued at a site for this long (condition 1b for jobs that never start)."""
        profile = self._sites.by_name.get(site)
        too_long = self._too_long(queued_seconds)
        if profile is None or profile.sleep is not None or not too_long:
            return []
        return [self._sites.hibernate(profile, "long-queue", too_long, at=at)]

    def replica_won(self, queued_seconds: float, *, others: Iterable[tuple[str, float]], at: float) -> list[Change]:
        """A replica started after queueing this long; `others` are the sites with queued replicas, and how long those waited."""
        changes: list[Change] = []
        for site, waited in others:
            profile = self._sites.by_name.get(site)
            if profile is None or waited <= queued_seconds:
                continue  # replicas are not submitted together: a shorter wait is no defeat
            if profile.sleep is None:
                profile.score.outqueued()
                self._sites.touch(profile)
            changes += self.still_queued(site, queued_seconds=waited, at=at)
        return changes

    def replicate_after_seconds(self, site: str) -> float:
        """After how long in the queue of a site a replica may be created elsewhere."""
        profile = self._sites.by_name.get(site)
        median = profile.median_wait_seconds if profile is not None else None
        return max(self.settings.replication_min_queue_seconds, self.settings.replication_medians * (median or 0.0))

    def may_replicate(self, *, queue_replicas: int, live: int, most: int | None = None) -> bool:
        """Whether a package with these queue replicas and live attempts, of at most `most`, may have one more."""
        most = self.settings.max_replicas if most is None else most
        return queue_replicas < self.settings.replication_limit and live < most

    def died_at_start(self, site: str, *, count: int, message: str, at: float, what: str) -> list[Change]:
        """Hibernate a site where `count` pilots in a row did not start; `what` says why."""
        profile = self._sites.by_name.get(site)
        if profile is None or profile.sleep is not None:
            return []
        reason = f"{count} {what}{': ' + message if message else ''}"
        return [self._sites.hibernate(profile, "dead-starts", reason, at=at)]

    # --- probes and operations by hand ------------------------------------------------------------------------------------

    def probe_finished(
        self, site: str, *, passed: bool, at: float, score: float | None = None, message: str = ""
    ) -> list[Change]:
        """Record the result of a probe; `score` is for a site that was never tried."""
        profile = self._sites.by_name.get(site)
        if profile is None or (profile.sleep is not None and profile.sleep.reason == "by-hand"):
            return []
        if not passed:
            reason = message or "a probe failed"
            return [] if profile.sleep else [self._sites.hibernate(profile, "probe-failed", reason, at=at)]
        if profile.sleep is not None:
            earned = self.settings.woken_score if score is None else score
            return [self._sites.wake(profile, "probe-passed", message or "a probe passed", score=earned, canary=True)]
        if score is not None and not profile.live and not profile.ends.latest:
            profile.score.reset(score)
            self._sites.touch(profile)
        return []

    def hibernate(self, site: str, *, at: float, message: str = "") -> list[Change]:
        """Hibernate a site by hand, until a person wakes it."""
        profile = self._sites.by_name.get(site)
        if profile is None or (profile.sleep is not None and profile.sleep.reason == "by-hand"):
            return []
        return [self._sites.hibernate(profile, "by-hand", message or "hibernated by hand", at=at)]

    def wake(self, site: str, *, message: str = "") -> list[Change]:
        """Wake a site by hand; it gets one canary first."""
        profile = self._sites.by_name.get(site)
        if profile is None or profile.sleep is None:
            return []
        profile.times = 0
        profile.nodes.restore({})  # the person who wakes it has checked them
        score = self.settings.woken_score
        return [self._sites.wake(profile, "by-hand", message or "woken by hand", score=score, canary=True)]

    def clear(self, site: str) -> bool:
        """Clear what counts against a site that is not hibernated; returns whether there was anything."""
        profile = self._sites.by_name.get(site)
        if profile is None or profile.sleep is not None:
            return False
        held = profile.score.earned < self.settings.woken_score or bool(profile.nodes.counts())
        if held:
            profile.times = 0
            profile.nodes.restore({})
            profile.ends.clear()
            profile.score.reset(max(profile.score.earned, self.settings.woken_score))
            self._sites.touch(profile)
        return held
