"""Creates and submits attempts, and replicates those that stay in a queue for too long."""

from __future__ import annotations

import math

import msgspec

from pilotage.engine.decisions.lost_pilots import mark_lost
from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import remaining
from pilotage.engine.retry.policy import OUTRUN
from pilotage.engine.selection.candidates import SelectionSnapshot
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import live_attempts, ref_of_key
from pilotage.engine.state.jobs import FINAL, ActivePackage, JobState, template_of
from pilotage.engine.state.sites import AttemptState, BatchGroup, PilotState, SiteState, made_contact
from pilotage.engine.transitions.early_start import is_read_early, ties_now
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.engine.transitions.site_observations import submitting, watch_queue
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import SubmitAttempt
from pilotage.model.resources import Demand

# If a bound attempt stays queued for long, a replica is queued at another site; the first one to start cancels the rest.
#
# Pilot mode needs none of this: a reservation that no pilot pulls is released (`readiness.release_unfit`).


def watch_for_replica(state: EngineState, attempt: AttemptState) -> None:
    """Set a timer for a bound attempt: if it is still queued then, it may get a replica."""
    if state.settings.selection.replication_limit:
        after = attempt.created_at + state.selection.replicate_after_seconds(attempt.site.name) - state.clock.wall_time
        state.clock.timers.at(state.clock.now + max(1.0, after), Due.REPLICA, attempt.key)


def replicate(state: EngineState, attempt: AttemptState) -> None:
    """Ask for a replica of an attempt that is queued for long, unless the limit is reached or no other site can run it."""
    job = state.jobs.by_id[attempt.ref.job]
    work = job.work.get(attempt.number)
    if work is None or not attempt.counted or attempt.leased or job.status[attempt.number] >= FINAL:
        return
    if template_of(job, attempt.number).side_effects:
        return  # never two at once
    after = state.selection.replicate_after_seconds(attempt.site.name)
    queued = not attempt.group or not made_contact(attempt.site, attempt.group)  # else it waits for its turn
    if queued and state.clock.wall_time - attempt.created_at >= after and _may_replicate(state, job, work):
        wanted = payloads.ReplicaWanted(replicas=work.replicas + 1, cause="queue")
        state.log.write(wanted, job=job, number=attempt.number, epoch=attempt.epoch)
    state.clock.timers.at(state.clock.now + after, Due.REPLICA, attempt.key)


def replicas_max(state: EngineState, job: JobState, number: int) -> int:
    """How many live attempts a package may have: set in its document, else in the settings."""
    own = template_of(job, number).replicas_max
    return state.settings.selection.max_replicas if own is None else own


def _may_replicate(state: EngineState, job: JobState, work: ActivePackage) -> bool:
    if work.held or work.dropped or not job.open or any(each.leased for each in work.attempts.values()):
        return False
    if work.ties or is_read_early(job, work.number) is not None:
        return False
    if work.replicas > work.replicated or work.failures:
        return False  # one is already wanted; or its failures must be judged first
    most = replicas_max(state, job, work.number)
    if not state.selection.may_replicate(queue_replicas=work.replicas, live=live_attempts(work), most=most):
        return False
    there = {each.site for each in work.attempts.values()}
    queue = queue_of(state, job, work.number)
    return any(site not in there and not site.asleep for site in state.placement.possible_sites(queue))


def cancel_queued_replicas(state: EngineState, job: JobState, started: AttemptState) -> None:
    """Cancel the replicas that are still queued, because one has started."""
    work = job.work.get(started.number)
    if work is None or not work.races:
        return
    others = [each for each in work.attempts.values() if each is not started and not each.leased and not each.lost]
    waited = [(each.site.name, state.clock.wall_time - each.created_at) for each in others]
    queued = started.began_at - started.created_at
    if not started.follows:
        state.pending.site_changes += state.selection.replica_won(queued, others=waited, at=state.clock.wall_time)
    for each in others:
        mark_lost(
            state, each, reason=OUTRUN, message=f"attempt {started.ref.attempt} at {started.site.name} began first"
        )


def remove_if_full(site: SiteState, pilot: PilotState) -> None:
    """Remove a full pilot from the list of pilots that wait for work."""
    if pilot.free.cores_hundredths <= 0 and (not pilot.backlog or pilot.in_backlog() >= pilot.backlog):
        site.waiting.pop(pilot.name, None)


def create(
    state: EngineState,
    job: JobState,
    number: int,
    demand: Demand,
    site: SiteState,
    pilot: PilotState | None,
    choice: SelectionSnapshot | None,
    *,
    group: str = "",
) -> None:
    """Create an attempt: with a lease for a pilot, or without one for the batch system of the site.

    One in a `group` is not submitted: see `submit`.
    """
    work = job.work.get(number)
    declared = job.plan.templates[job.kinds[number]].demand
    beside = work.attempts if work is not None else None
    if (
        pilot is not None
        and pilot.ends_at is None
        and demand is declared
        and not beside
        and not (work is not None and work.early)
    ):  # the usual case
        created, text = pilot.created(state.lease_seconds, job.drop_revision)
    else:
        created, text = _created(state, job, work, demand, site, pilot, declared, group), None
    attempt = job.last_attempt[number] + 1
    if state.fairness.shares:
        state.fairness.note_started(job)
    epoch = job.epoch_of(number) if job.epochs else 1
    state.log.write_of(created, job, number, attempt, epoch, text)
    begun = (work or job.work[number]).attempts[attempt]
    begun.choice = choice
    if pilot is not None:
        if work is not None and work.races:
            cancel_queued_replicas(state, job, begun)  # an attempt with a lease has started
        return
    state.queues.just_submitted.append(begun)
    if not group:
        submit(state, begun)
        watch_queue(state, begun.key, begun.created_at)


def _created(
    state: EngineState,
    job: JobState,
    work: ActivePackage | None,
    demand: Demand,
    site: SiteState,
    pilot: PilotState | None,
    declared: Demand,
    group: str,
) -> payloads.AttemptCreated:
    """The payload of a new attempt: what it replaces or runs beside, and its resources where they differ from the declared ones."""
    over: list[int] = []
    replica = False
    if work is not None and work.attempts:
        over = [n for n, attempt in work.attempts.items() if attempt.lost]
        replica = work.replicas > work.replicated and any(each.trusted for each in work.attempts.values())
    return payloads.AttemptCreated(
        site=site.name,
        pilot=pilot.name if pilot is not None else None,
        lease_seconds=state.lease_seconds if pilot is not None else None,
        replaces=over[-1] if over else None,
        replica=replica,
        memory_bytes=demand.memory_bytes if demand.memory_bytes != declared.memory_bytes else None,
        wall_seconds=demand.wall_seconds if demand.wall_seconds != declared.wall_seconds else None,
        remaining_seconds=remaining(site, pilot, demand, state.clock.now),
        drop_revision=job.drop_revision,
        early=_early_inputs(job, work),
        group=group or None,
    )


def _early_inputs(job: JobState, work: ActivePackage | None) -> tuple[payloads.EarlyInput, ...]:
    """The running attempts beside which an attempt starts early."""
    if work is None or work.early is None:
        return ()
    ties = ties_now(job, work.number)
    return tuple(payloads.EarlyInput(package=job.dotted(other), attempt=tried) for other, tried in ties)


def submit(state: EngineState, attempt: AttemptState) -> None:
    """Submit a bound attempt, or the batch job that it shares, and set a timer to ask again if no report comes."""
    site, key = attempt.site, attempt.batch_key
    ref, demand = attempt.ref, attempt.demand
    if (group := site.groups.get(attempt.group)) is not None:
        ref, demand = ref_of_key(key) or ref, _of_all(group, longest_seconds=site.site.wall_seconds)
    state.log.effects.append(SubmitAttempt(site=site.name, key=key, ref=ref, demand=demand))
    submitting(state, site, attempt)
    state.clock.timers.at(state.clock.now + state.settings.submit_again_seconds, Due.REQUEST, key)


def _of_all(group: BatchGroup, *, longest_seconds: float) -> Demand:
    """The demand of a batch job that runs several attempts one after another: the sum of their wall times, if they say one."""
    demand = next(iter(group.members)).demand
    seconds = [each.demand.wall_seconds for each in group.members]
    wall_seconds = math.fsum(seconds) if all(seconds) else 0.0
    if longest_seconds > 0.0:
        wall_seconds = min(wall_seconds, longest_seconds)
    return msgspec.structs.replace(demand, wall_seconds=wall_seconds)
