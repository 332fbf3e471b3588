"""Treatments of incidents: planned first, so that the decision names them, and carried out after it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from pilotage.engine.decisions.attempts import replicas_max
from pilotage.engine.decisions.lost_pilots import mark_lost
from pilotage.engine.decisions.stopped_activities import hopeless, stop_activity, what_failed
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.copying import CopyElsewhere, copies_elsewhere, order_copy
from pilotage.engine.healing.job_health import ActivityHealth, JobHealth
from pilotage.engine.healing.phase_times import PHASE_NUMBERS
from pilotage.engine.healing.replication import LatePackage, Surroundings, Treatment
from pilotage.engine.placement import is_bound
from pilotage.engine.retry.policy import HEALED
from pilotage.engine.state.job_queries import is_spent, live_attempts
from pilotage.engine.state.jobs import ActivePackage, JobState, PackageStatus, QueueClass, template_of
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.engine.transitions.early_start import is_read_early
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.forecast.latency import LatencyDistribution
from pilotage.model.events import payloads
from pilotage.model.events.healing_payloads import Treated
from pilotage.model.texts import REPLICAS_MAX, clipped

_SITES_MAX = 64  # that are compared for a copy
_FILES_MAX = 100  # that are brought from other caches at once
_BEFORE_APPLICATION = (PHASE_NUMBERS["setup"], PHASE_NUMBERS["inputs"])


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be done, as the decision records it, and how it is done; it is given the number of the decision."""

    treated: Treated
    carry_out: Callable[[EngineState, int], None]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What is done about an incident, and why not more."""

    actions: tuple[Action, ...] = ()
    message: str = ""


# --- replication ----------------------------------------------------------------------------------------------------


def surroundings_of(state: EngineState, job: JobState, activity: ActivityHealth) -> Surroundings:
    """What one more attempt of an activity would meet."""
    waiting = sum(job.counts[status] for status in (PackageStatus.READY, PackageStatus.RESERVED, PackageStatus.DELAYED))
    seconds = activity.times.whole.mean
    rest = waiting * seconds / max(1, activity.running)
    queue = next((each for each in job.classes.values() if _is_of(each, activity)), None)
    sites = state.placement.possible_sites(queue)[:_SITES_MAX] if queue is not None else []
    latencies = [
        _latency(state, site, queue, seconds)
        for site in sites
        if queue is not None and site.known and not site.asleep and not site.removed
    ]
    return Surroundings(latency_seconds=min(latencies, default=0.0), rest_seconds=rest)


def _is_of(queue: QueueClass, activity: ActivityHealth) -> bool:
    return queue.job.plan.templates[queue.kind].activity == activity.name


def _latency(state: EngineState, site: SiteState, queue: QueueClass, seconds: float) -> float:
    """How long a copy waits at a site until it starts."""
    slots = site.slots.get(queue.shape, 0)
    if not is_bound(site, queue) and slots:
        free = slots - site.used.get(queue.shape, 0)
        return 0.0 if free > 0 else seconds / slots  # it goes first: it gets the next slot that is free
    known = state.latencies.known(site, now=state.clock.wall_time)
    return _median_seconds(known.latency) if known is not None else 0.0


def _median_seconds(latency: LatencyDistribution) -> float:
    """The median latency of those that start."""
    started = latency.started
    at = int(np.searchsorted(started.values, 0.5 * started.last_value))
    return float(started.times_seconds[min(at, len(started.times_seconds) - 1)])


def replicate_late(
    state: EngineState, health: JobHealth, activity: ActivityHealth, packages: Iterable[LatePackage]
) -> Done:
    """Add copies of late packages, and abort attempts that another one has left behind, within the budget of waste."""
    job, healing = health.job, state.healing
    surroundings = surroundings_of(state, job, activity)
    late = list(packages)
    planned = healing.policy.treatments(activity.times, late, surroundings)
    treated = {each.number for each in planned}
    for package in late:
        if package.number not in treated:
            _look_again(state, job, activity, package.number)
    _forget_commitments(health)
    budget = health.allowance(healing.settings.waste_max, state.clock.wall_time)
    actions: list[Action] = []
    refused: dict[str, int] = {}
    for each in planned:
        actions += [_abort(job, each, attempt) for attempt in each.abort]
        if not each.replicate:
            continue
        work = job.work[each.number]
        if (stuck := _to_reschedule(state, job, work)) is not None:
            spent = state.clock.wall_time - stuck.began_at
            if spent <= budget:
                budget -= spent
                actions.append(_reschedule(job, stuck, each))
                continue
        cost = surroundings.latency_seconds + activity.times.whole.median  # of whichever loses, once there are two
        why = why_no_replica(state, job, work)
        if not why and cost > budget:
            why = f"the budget of waste is used up ({100 * health.waste(state.clock.wall_time):.0f} % so far)"
        if why:
            refused[why] = refused.get(why, 0) + 1
            continue
        budget -= cost
        actions.append(_replicate(health, each, cost))
    message = "; ".join(f"{count} not replicated: {why}" for why, count in sorted(refused.items()))
    return Done(actions=tuple(actions), message=message)


def _look_again(state: EngineState, job: JobState, activity: ActivityHealth, number: int) -> None:
    work = job.work.get(number)
    for attempt in work.attempts.values() if work is not None else ():
        if attempt in activity.late:
            activity.not_late(attempt, state.healing.policy)


def _forget_commitments(health: JobHealth) -> None:
    """What was wasted on packages without a copy of healing that runs or waits is counted already."""
    job = health.job
    for number in list(health.committed):
        work = job.work.get(number)
        live = work is not None and (
            work.replicas > work.replicated
            or any(each.raced_at < math.inf and each.counted for each in work.attempts.values())
        )
        if not live:
            del health.committed[number]


def why_no_replica(state: EngineState, job: JobState, work: ActivePackage) -> str:
    """Why a package may not have one more attempt; empty if it may."""
    number = work.number
    if work.held or work.dropped or not job.open:
        return "held"
    if template_of(job, number).side_effects:
        return "it has side effects and never runs twice at once"
    if work.ties or is_read_early(job, number) is not None:
        return "another package reads its outputs while they grow"
    if is_spent(work):
        return "its failures allow no further attempt"
    most = replicas_max(state, job, number)
    if live_attempts(work) >= most or work.replicas >= REPLICAS_MAX:
        live = live_attempts(work)
        return f"{live} {'attempt is' if live == 1 else 'attempts are'} live, and the limit is {most}"
    queue = queue_of(state, job, number)
    if not any(site.known and not site.asleep for site in state.placement.possible_sites(queue)):
        return "no site can run it now"
    return ""


def _replicate(health: JobHealth, treatment: Treatment, cost: float) -> Action:
    job, number = health.job, treatment.number

    def carry_out(state: EngineState, decision: int) -> None:
        work = job.work.get(number)
        if work is None or why_no_replica(state, job, work):
            return
        health.committed[number] = cost
        wanted = payloads.ReplicaWanted(replicas=work.replicas + 1, cause="healing", decision=decision)
        state.log.write(wanted, job=job, number=number, epoch=job.epoch_of(number))

    treated = Treated(treatment="replicate", package=job.dotted(number), message=treatment.why)
    return Action(treated=treated, carry_out=carry_out)


def _to_reschedule(state: EngineState, job: JobState, work: ActivePackage) -> AttemptState | None:
    """The late attempt of a package that may have only one, if its application has not begun: it starts anew elsewhere."""
    live = [each for each in work.attempts.values() if not each.lost]
    alone = len(live) == 1 and replicas_max(state, job, work.number) == 1
    if not alone or live[0].phase not in _BEFORE_APPLICATION or template_of(job, work.number).side_effects:
        return None
    if work.held or work.dropped or not job.open or work.ties or is_read_early(job, work.number) is not None:
        return None
    queue = queue_of(state, job, work.number)
    elsewhere = any(
        site is not live[0].site and site.known and not site.asleep for site in state.placement.possible_sites(queue)
    )
    return live[0] if elsewhere else None


def _reschedule(job: JobState, attempt: AttemptState, treatment: Treatment) -> Action:
    message = f"{treatment.why}; it may have one attempt at a time"

    def carry_out(state: EngineState, decision: int) -> None:
        attempt.raced_at = attempt.began_at  # what it took is wasted by healing
        mark_lost(state, attempt, reason=HEALED, message=message, decision=decision)

    treated = Treated(
        treatment="reschedule",
        package=job.dotted(treatment.number),
        attempt=attempt.ref.attempt,
        site=attempt.site.name,
        message=message,
    )
    return Action(treated=treated, carry_out=carry_out)


def _abort(job: JobState, treatment: Treatment, number: int) -> Action:
    attempt = job.work[treatment.number].attempts[number]
    message = "another attempt of its package is further, and is expected to take far less time"

    def carry_out(state: EngineState, decision: int) -> None:
        mark_lost(state, attempt, reason=HEALED, message=message, decision=decision)

    treated = Treated(
        treatment="abort-replica",
        package=job.dotted(treatment.number),
        attempt=number,
        site=attempt.site.name,
        message=message,
    )
    return Action(treated=treated, carry_out=carry_out)


# --- activities that cannot succeed ---------------------------------------------------------------------------------


def stop_failing(state: EngineState, health: JobHealth, activity: ActivityHealth) -> Done:
    """Stop an activity that cannot succeed.

    A failure that reaches the bound does the same at once; later, what kept it from that may be over without a failure.
    """
    job, name = health.job, activity.name
    if name in job.activities.stopped:
        return Done()
    if not state.settings.incidents.failing_attempts_max:
        return Done(message=f"{name} is not stopped: healing.failing_attempts_max is 0")
    failures = job.activities.most_equal(name)
    if failures is None:
        return Done(
            message=f"{name} is not stopped: attempts of it succeeded, did not fail by themselves, or were not tried since it was opened again"
        )
    if hopeless(state, job, name) is None:
        bound = state.settings.incidents.failing_attempts_max
        message = f"{name} is not stopped: {failures.attempts} attempts failed alike, and the bound is {bound}"
        return Done(message=message if failures.attempts < bound else f"{name} is not stopped: others may succeed")

    def carry_out(state: EngineState, decision: int) -> None:
        stop_activity(state, job, name, failures, decision=decision)

    treated = Treated(treatment="stop-activity", message=clipped(what_failed(name, failures)))
    return Done(actions=(Action(treated=treated, carry_out=carry_out),))


# --- files ----------------------------------------------------------------------------------------------------------


def bring_copies(state: EngineState, job: JobState, store: str) -> Done:
    """Bring files that a store does not give from the caches of other sites."""
    actions: list[Action] = []
    nowhere = 0
    for each in copies_elsewhere(state, job, store):
        if each.source is None:
            nowhere += 1
        elif len(actions) < _FILES_MAX:
            actions.append(_bring(each))
    message = f"{nowhere} not copied: no other site has them" if nowhere else ""
    return Done(actions=tuple(actions), message=message)


def _bring(copy: CopyElsewhere) -> Action:
    def carry_out(state: EngineState, decision: int) -> None:
        order_copy(state, copy, decision=decision)

    message = clipped(f"{copy.locator} from the cache of {copy.source}")
    return Action(treated=Treated(treatment="copy-file", site=copy.site, message=message), carry_out=carry_out)
