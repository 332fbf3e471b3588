"""Cycles of healing: analyses the incidents of a job, draws one, treats it, and records what was seen and done."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from pilotage.engine.decisions.grouping import grain_degrees, ungroup
from pilotage.engine.decisions.treatments import (
    Done,
    bring_copies,
    replicate_late,
    stop_failing,
    surroundings_of,
)
from pilotage.engine.engine_state import EngineState
from pilotage.engine.healing import incidents as analysis
from pilotage.engine.healing.healing import Drawn
from pilotage.engine.healing.job_health import ActivityHealth, JobHealth
from pilotage.engine.healing.replication import LatePackage
from pilotage.engine.selection.sampling import Draws, mixed
from pilotage.engine.state.job_queries import is_over
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.model.events.healing_payloads import HealingDecided, Incident, IncidentKind, IncidentsLearned
from pilotage.model.texts import clipped

_INCIDENTS_MAX = 64  # of a cycle: the worst
_TREATED_MAX = 100  # that are listed; further ones are counted
_FAILING_MIN = 5  # recent ends of attempts at a site before their failures say anything of it
_JOBS_MAX = 200  # whose slowdowns are compared
_SITES_MAX = 200  # whose failures are counted


class Found(NamedTuple):
    """An incident, with what its treatment needs."""

    incident: Incident
    activity: ActivityHealth | None = None
    packages: tuple[LatePackage, ...] = ()


def heal_jobs(state: EngineState) -> None:
    """Run the cycles that are due."""
    due = state.pending.to_heal
    while due:
        job = next(iter(due))
        del due[job]
        if (health := state.healing.known(job.id)) is not None:
            _run_cycle(state, job, health)


def _run_cycle(state: EngineState, job: JobState, health: JobHealth) -> None:
    health.cycle_at, health.last_at, health.changed = math.inf, state.clock.now, False
    if job.cancelled or job.aborted or is_over(job):
        return  # a restart sets the next timer
    if job.open:
        found = _analysed(state, job, health)
        state.healing.observe(health, [each.incident for each in found])
        _treat(state, job, health, found)
        _record(state, job, health)
    state.healing.schedule_next(health)


# --- analysis -------------------------------------------------------------------------------------------------------


def _analysed(state: EngineState, job: JobState, health: JobHealth) -> list[Found]:
    """The incidents of a job, the worst first."""
    healing, now = state.healing, state.clock.wall_time
    found: list[Found] = []
    for activity in health.trusted(healing.settings.finished_min):
        activity.due(healing.policy, now)
        packages = analysis.late_packages(health, activity, now) if activity.late else []
        if packages:
            met = surroundings_of(state, job, activity)
            degree = max(healing.policy.degree(activity.times, each, met) for each in packages)
        else:
            degree = analysis.not_blocked(health, activity, now)
        blocked = healing.incident(health, "blocked-activity", activity.name, degree)
        found.append(Found(blocked, activity, tuple(packages)))
    for activity in health.activities.values():
        kinds: tuple[tuple[IncidentKind, float], ...] = (
            ("low-efficiency", analysis.low_efficiency(activity)),
            ("failing-activity", analysis.failing_activity(activity)),
        )
        for kind, degree in kinds:
            if degree > 0.0:
                found.append(Found(healing.incident(health, kind, activity.name, degree), activity))
    for store, degree in analysis.unavailable_inputs(job, state.files.caches).items() if job.files is not None else ():
        found.append(Found(healing.incident(health, "input-unavailable", store, degree)))
    for store, degree in analysis.unavailable_outputs(health).items() if health.failed_copies else ():
        found.append(Found(healing.incident(health, "output-unavailable", store, degree)))
    for kind, activity, degree in grain_degrees(state, health) if state.settings.group_packages_max > 1 else ():
        found.append(Found(healing.incident(health, kind, activity.name, degree), activity))
    found += [Found(each) for each in _bad_sites(state, job, health)]
    if len(state.fairness.shares) > 1 and job in state.fairness.shares:
        degree = analysis.unfair_sharing(_slowdowns(state))
        found.append(Found(healing.incident(health, "unfair-sharing", "", degree)))
    found.sort(
        key=lambda each: (-each.incident.level, -each.incident.degree, each.incident.kind, each.incident.subject)
    )
    return found[:_INCIDENTS_MAX]


def _bad_sites(state: EngineState, job: JobState, health: JobHealth) -> list[Incident]:
    """The sites that fail, by the failures that the site selection counts, or since it hibernates them.

    They are those for one class of packages of the job: most jobs have only one.
    """
    queue = next(iter(job.classes.values()), None)
    found = []
    for site in islice(state.placement.possible_sites(queue), _SITES_MAX) if queue is not None else ():
        tally = site.profile.ends.tally()
        degree = tally.failures / tally.ends if tally.ends >= _FAILING_MIN else 0.0
        if site.profile.sleep is not None and site.profile.sleep.reason != "by-hand":
            degree = 1.0
        if degree > 0.0:
            found.append(state.healing.incident(health, "bad-site", site.name, degree))
    return found


def _slowdowns(state: EngineState) -> list[float]:
    """The expected slowdowns of the jobs that wait."""
    now = state.clock.now
    return [
        share.slowdown(now, job.counts[PackageStatus.LIVE])
        for job, share in islice(state.fairness.shares.items(), _JOBS_MAX)
        if job.open
    ]


# --- planning and execution -----------------------------------------------------------------------------------------


def _treat(state: EngineState, job: JobState, health: JobHealth, found: list[Found]) -> None:
    """Draw an incident, treat it, and record that if anything was done or the incidents have changed."""
    healing, decision = state.healing, state.log.next_number
    incidents = [each.incident for each in found if each.incident.needs_treatment]
    # Cycles in which nothing is done write no decision: the time makes their draws different.
    moment = mixed(round(1000.0 * state.clock.wall_time))
    drawn = healing.draw(incidents, Draws(state.settings.seed ^ moment, decision))
    done = Done()
    if drawn is not None:
        treated = next(each for each in found if each.incident is incidents[drawn.treated])
        if (treatment := _TREATMENTS.get(treated.incident.kind)) is not None:
            done = treatment(state, health, treated)
    if not done.actions and not _is_news(state, health, done.message):
        return
    health.found_something = True
    health.seen, health.seen_at = (frozenset(health.present), done.message), state.clock.now
    state.log.write(_decided(incidents, drawn, done), job=job, epoch=job.epoch)
    for action in done.actions:
        action.carry_out(state, decision)


def _is_news(state: EngineState, health: JobHealth, message: str) -> bool:
    """Whether incidents are worth an event although nothing is done: others than in the last one, which was not just now."""
    if (frozenset(health.present), message) == health.seen:
        return False
    return state.clock.now >= health.seen_at + state.healing.settings.cycle_seconds


def _decided(incidents: list[Incident], drawn: Drawn | None, done: Done) -> HealingDecided:
    treated = [each.treated for each in done.actions]
    return HealingDecided(
        incidents=tuple(incidents),
        drawn=0 if drawn is None else drawn.incident + 1,
        instead=0 if drawn is None or drawn.rule is None else drawn.treated + 1,
        confidence=0.0 if drawn is None or drawn.rule is None else round(drawn.rule.confidence, 4),
        treated=tuple(treated[:_TREATED_MAX]),
        more=max(0, len(treated) - _TREATED_MAX),
        message=clipped(done.message),
    )


def _treat_blocked(state: EngineState, health: JobHealth, found: Found) -> Done:
    assert found.activity is not None
    return replicate_late(state, health, found.activity, found.packages)


def _treat_failing(state: EngineState, health: JobHealth, found: Found) -> Done:
    assert found.activity is not None
    return stop_failing(state, health, found.activity)


def _treat_unavailable(state: EngineState, health: JobHealth, found: Found) -> Done:
    return bring_copies(state, health.job, found.incident.subject)


def _treat_coarse(state: EngineState, health: JobHealth, found: Found) -> Done:
    assert found.activity is not None
    return ungroup(state, health, found.activity)


_TREATMENTS: dict[str, Callable[[EngineState, JobHealth, Found], Done]] = {
    "blocked-activity": _treat_blocked,
    "failing-activity": _treat_failing,
    "input-unavailable": _treat_unavailable,
    "too-coarse": _treat_coarse,
}
"""What is done about each kind of incident. The others are shown; a grain that is too fine is acted on where packages are bound."""


def record_at_end(state: EngineState, job: JobState) -> None:
    """Record what healing knows of a job that is over, if it has found anything in it."""
    health = state.healing.known(job.id)
    if health is not None and health.found_something:
        health.found_something = False
        learned = health.learned_at_end(state.clock.wall_time)
        state.log.write(learned, job=job, epoch=job.epoch)


def _record(state: EngineState, job: JobState, health: JobHealth) -> None:
    """Record what is known, from time to time."""
    if (learned := state.healing.record_due(health)) is not None:
        state.log.write(learned, job=job, epoch=job.epoch)
    if text := state.healing.knowledge_due():
        state.log.write(IncidentsLearned(learned=text))
