"""The healing of jobs: what is known of each, of incidents in general, and when to look at a job again.

Monitoring are the methods that folds call; analysis and planning are here and in the other modules of this folder. Decisions
(`pilotage.engine.decisions.healing`) run the cycles and carry out what was planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pilotage.engine.healing import levels
from pilotage.engine.healing.association import AssociationRules, Beginning, Rule
from pilotage.engine.healing.job_health import NOTES_MAX, JobHealth, store_of
from pilotage.engine.healing.levels import DegreeHistory
from pilotage.engine.healing.phase_times import PHASE_NUMBERS
from pilotage.engine.healing.replication import (
    NoReplication,
    PaperReplication,
    PredictiveReplication,
    ReplicationPolicy,
)
from pilotage.engine.selection.sampling import Draws
from pilotage.engine.state.clock import Due, EngineClock
from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import AttemptState
from pilotage.engine.state.tables import JobTable
from pilotage.model.events.file_payloads import OutputsStored
from pilotage.model.events.healing_payloads import HealingLearned, Incident, IncidentKind
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.settings.engine import EngineSettings

RECORD_SECONDS = 900.0
"""Shortest time between two records of what is known; it doubles with each, up to an hour: every record stays in the book."""
RECORD_SECONDS_MAX = 3600.0

_SAME_DEGREE = 0.02  # a degree that changes less says nothing new


class LearnedIncidents(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of incidents in general, as stored."""

    histories: dict[str, levels.Learned] = {}
    beginnings: tuple[Beginning, ...] = ()


_decode = msgspec.json.Decoder(LearnedIncidents).decode
_encode = msgspec.json.Encoder().encode


class Drawn(NamedTuple):
    """The incident that was drawn, and the one to treat: another one if a rule says that it is the cause."""

    incident: int  # its place among the incidents
    treated: int  # the place of the one to treat
    rule: Rule | None = None  # why another one is treated


class Healing:
    """Knows the health of all jobs."""

    __slots__ = (
        "_clock", "_cycle_seconds", "_histories", "_interval_seconds", "_jobs", "_learned_at", "_records", "_rules", "_table",
        "enabled", "policy", "settings",
    )  # fmt: skip

    def __init__(self, settings: EngineSettings, *, clock: EngineClock, jobs: JobTable) -> None:
        """Start without a history."""
        self.settings = settings.incidents
        self.enabled = settings.healing != "off"
        self.policy = policy_of(settings)
        self._clock, self._table = clock, jobs
        self._interval_seconds = settings.interval_seconds
        self._cycle_seconds = settings.incidents.cycle_seconds
        self._jobs: dict[str, JobHealth] = {}
        self._histories: dict[str, DegreeHistory] = {}
        self._rules = AssociationRules()
        self._learned_at = -math.inf
        self._records = 0

    # --- monitoring ---------------------------------------------------------------------------------------------------

    def of(self, job: str) -> JobHealth:
        """The health of a job of the engine."""
        found = self._jobs.get(job)
        if found is None:
            found = self._jobs[job] = JobHealth(self._table.by_id[job])
            found.last_at = found.record_at = self._clock.now
            if self._learned_at < 0.0:
                self._learned_at = self._clock.now
        found.catch_up()
        return found

    def known(self, job: str) -> JobHealth | None:
        """The same, if anything of the job has run."""
        found = self._jobs.get(job)
        if found is not None:
            found.catch_up()
        return found

    def is_recorded_at_end(self, job: str) -> bool:
        """Whether something was found in a job, which is recorded when it is over."""
        found = self._jobs.get(job)
        return found is not None and found.found_something

    def forget(self, job: str) -> None:
        """A job leaves the engine."""
        self._jobs.pop(job, None)

    def began(self, attempt: AttemptState) -> None:
        """An attempt with a lease takes a slot."""
        # This and the next one are called for each attempt.
        health = self._jobs.get(attempt.ref.job) or self.of(attempt.ref.job)
        health.begun.append(attempt)
        if not health.changed:
            self._changed(health)

    def left(self, attempt: AttemptState, *, succeeded: bool) -> None:
        """An attempt with a lease leaves its slot."""
        health = self._jobs.get(attempt.ref.job) or self.of(attempt.ref.job)
        health.gone.append((attempt, self._clock.wall_time, succeeded))
        if len(health.gone) >= NOTES_MAX:
            health.catch_up()
        if not health.changed:
            self._changed(health)

    def phase_entered(self, attempt: AttemptState, phase: str, at: float) -> None:
        """An attempt told of a long phase that began at a wall-clock time."""
        number = PHASE_NUMBERS.get(phase)
        if number is None or number < attempt.phase:
            return
        attempt.phase, attempt.phase_at = number, max(at, attempt.began_at)
        health = self.of(attempt.ref.job)
        health.of_kind(health.job.kinds[attempt.number]).just_told.append(attempt)
        self._changed(health)

    def finished(self, attempt: AttemptState, phases: tuple[PhaseTimes, ...]) -> None:
        """An attempt succeeded that has no slot any more; the phases of others count once they have left theirs."""
        health = self.of(attempt.ref.job)
        health.of_kind(health.job.kinds[attempt.number]).finished([phases])

    def failed(self, attempt: AttemptState) -> None:
        """An attempt failed or was lost, and that counts as a failure."""
        health = self.of(attempt.ref.job)
        health.of_kind(health.job.kinds[attempt.number]).failed()

    def cured(self, job: JobState, number: int, failures: int) -> None:
        """A package succeeded after failures."""
        health = self.of(job.id)
        health.of_kind(job.kinds[number]).cured(failures)

    def input_failed(self, job: JobState) -> None:
        """A file that packages of a job wait for could not be brought."""
        self._changed(self.of(job.id))

    def copied(self, job: JobState, stored: OutputsStored) -> None:
        """Outputs were copied to stores, or could not be."""
        failures = self.of(job.id).failed_copies
        for copied in stored.copies:
            failures.pop(store_of(copied.locator), None)
        for each in stored.failed:
            store = store_of(each.locator)
            failures[store] = failures.get(store, 0) + 1

    def _changed(self, health: JobHealth) -> None:
        health.changed = True
        at = health.last_at + self._interval_seconds
        if at < health.cycle_at:
            self.schedule(health, at)

    def schedule(self, health: JobHealth, at: float) -> None:
        """Run the next cycle of a job at a time, or now."""
        health.cycle_at = max(at, self._clock.now)
        self._clock.timers.at(health.cycle_at, Due.HEALING, health.job.id)

    def schedule_next(self, health: JobHealth) -> None:
        """After a cycle: run the next one when an attempt is due, or after the usual time."""
        now = self._clock.now
        offset = now - self._clock.wall_time
        due = min((each.due_at(self.policy) for each in health.trusted(self.settings.finished_min)), default=math.inf)
        soonest = now + self._interval_seconds
        self.schedule(health, min(now + self._cycle_seconds, max(soonest, due + offset)))

    # --- analysis -----------------------------------------------------------------------------------------------------

    def history(self, kind: str) -> DegreeHistory:
        """The degrees of a kind of incident, in all jobs."""
        found = self._histories.get(kind)
        if found is None:
            found = self._histories[kind] = DegreeHistory()
        return found

    def incident(self, health: JobHealth, kind: IncidentKind, subject: str, degree: float) -> Incident:
        """An incident with its level; its degree is added to the history if it has changed."""
        history = self.history(kind)
        degree = min(1.0, max(0.0, degree))
        before = health.degrees.get((kind, subject))
        if before is None or abs(degree - before) > _SAME_DEGREE:
            health.degrees[kind, subject] = degree
            history.add(degree)
        return Incident(kind=kind, subject=subject, degree=round(degree, 6), level=history.level(degree))

    def observe(self, health: JobHealth, incidents: Sequence[Incident]) -> None:
        """Note which incidents began since the last cycle of a job, and which are over."""
        at, before = self._clock.wall_time, health.present
        now = {(each.kind, each.subject): each for each in incidents if each.needs_treatment}
        for (kind, subject), since in before.items():
            if (kind, subject) not in now:
                self.history(kind).ended(max(0.0, at - since))
        self._rules.observe((kind for kind, subject in now if (kind, subject) not in before), job=health.job.id, at=at)
        health.present = {key: before.get(key, at) for key in now}

    # --- planning -----------------------------------------------------------------------------------------------------

    def draw(self, incidents: Sequence[Incident], draws: Draws) -> Drawn | None:
        """Spin the wheel: each incident of level 2 or more has a slice as large as its degree. None without any."""
        wheel = [place for place, each in enumerate(incidents) if each.needs_treatment and each.degree > 0.0]
        total = math.fsum(incidents[place].degree for place in wheel)
        if not wheel:
            return None
        left, drawn = draws.uniform() * total, wheel[-1]
        for place in wheel:
            left -= incidents[place].degree
            if left < 0.0:
                drawn = place
                break
        for rule in self._rules.causes(incidents[drawn].kind):
            causes = [place for place in wheel if incidents[place].kind == rule.first and place != drawn]
            if causes:
                if draws.uniform() < rule.confidence:
                    return Drawn(drawn, max(causes, key=lambda place: incidents[place].degree), rule)
                break
        return Drawn(drawn, drawn)

    # --- knowledge ----------------------------------------------------------------------------------------------------

    def record_due(self, health: JobHealth) -> HealingLearned | None:
        """What is known of a job, if it is time to record it."""
        if not self._is_due(health.record_at, health.records):
            return None
        health.record_at, health.records, health.found_something = self._clock.now, health.records + 1, True
        return health.learned()

    def knowledge_due(self) -> str:
        """What is known of incidents, encoded, if it is time to record it; else empty."""
        if not any(each.degrees for each in self._histories.values()):
            return ""
        if not self._is_due(self._learned_at, self._records):
            return ""
        self._learned_at, self._records = self._clock.now, self._records + 1
        return self.knowledge()

    def knowledge(self) -> str:
        """What is known of incidents, encoded."""
        histories = {kind: each.learned() for kind, each in sorted(self._histories.items())}
        return _encode(LearnedIncidents(histories=histories, beginnings=self._rules.beginnings)).decode()

    def restore(self, learned: str) -> None:
        """Continue from what was recorded of incidents; what cannot be read is as if there was none."""
        try:
            found = _decode(learned)
        except msgspec.DecodeError:
            return
        self._histories = {kind: DegreeHistory(each.degrees, each.seconds) for kind, each in found.histories.items()}
        self._rules = AssociationRules(found.beginnings)

    def _is_due(self, at: float, records: int) -> bool:
        return self._clock.now >= at + min(RECORD_SECONDS * 2.0 ** min(records, 8), RECORD_SECONDS_MAX)


def policy_of(settings: EngineSettings) -> ReplicationPolicy:
    """The policy of copies that the settings ask for."""
    if settings.healing == "paper":
        return PaperReplication(settings.incidents.threshold)
    return PredictiveReplication() if settings.healing == "predictive" else NoReplication()
