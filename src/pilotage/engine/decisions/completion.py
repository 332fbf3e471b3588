"""After an attempt ends: commit it, retry it, or abort its consumers."""

from __future__ import annotations

import msgspec

from pilotage.engine.decisions.job_lifecycle import end_by_failure, end_others, ends_the_job
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.eviction import release_inputs
from pilotage.engine.files.keeping import retain_outputs
from pilotage.engine.files.storing import await_copies, candidate_of
from pilotage.engine.retry.policy import UNHEARD, Failure, Verdict, failure_of, verdict
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import is_stopped, is_under_way, lost_stages
from pilotage.engine.state.jobs import FINAL, ActivePackage, JobState, PackageStatus, template_of
from pilotage.engine.state.sites import AttemptState
from pilotage.engine.transitions.early_start import grantable, lost_input
from pilotage.engine.transitions.queue_classes import class_for
from pilotage.engine.transitions.readiness import move, reconsider
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.texts import clipped

_GRANTED = payloads.CommitGranted()  # it carries no data


def grant_succeeded(state: EngineState) -> None:
    """Grant one attempt for each package and epoch: the only commit point."""
    grants = state.pending.to_commit
    while grants:
        job, number = grants.popleft()
        work = job.work.get(number)
        if work is None or work.dropped or job.cancelled or job.aborted or job.status[number] >= FINAL:
            continue
        candidates = grantable(job, work) if work.ties else work.candidates
        if not candidates:
            continue
        first = candidates[0] if len(candidates) == 1 else min(candidates)
        if job.stores and template_of(job, number).stores_outputs:
            first = candidate_of(work)
        if state.output_guard.contested and _is_refused(state, job, work, first):
            continue
        if job.stores and template_of(job, number).stores_outputs and await_copies(state, job, work, first):
            continue
        epoch = job.epoch_of(number) if job.epochs else 1
        made_at = work.made_at
        state.log.write_of(_GRANTED, job, number, first, epoch)
        if made_at:
            retain_outputs(state, job, number, first, made_at=made_at)
        if job.files is not None or job.plan.releases is not None:
            release_inputs(state, job, number)
        if job.special and ends_the_job(job, number, 0):
            end_others(state, job, number, 0)


def discard_untied(state: EngineState) -> None:
    """Begin a new epoch of each package that started early and whose input is void: nothing of it counts, nor as a failure."""
    while state.pending.to_untie:
        job, number = next(iter(state.pending.to_untie))
        del state.pending.to_untie[job, number]
        work = job.work.get(number)
        if work is None or not work.ties or job.cancelled or job.aborted or job.is_final(number):
            continue
        if (lost := lost_input(job, work)) is not None:
            producer, tried, why = lost
            message = f"attempt {tried} of {job.dotted(producer)}, whose outputs it read while they grew, {why}"
            early = payloads.EarlyInput(package=job.dotted(producer), attempt=tried)
            restarted = payloads.Restarted(cause="remake", message=message, lost_input=early)
            state.log.write(restarted, job=job, number=number, epoch=job.epoch_of(number) + 1)
        elif work.candidates:
            state.pending.to_commit.append((job, number))


def _is_refused(state: EngineState, job: JobState, work: ActivePackage, attempt: int) -> bool:
    """Whether the outputs of an attempt must not be published now: its package is held, and checked again on release."""
    if job.id not in state.output_guard.contested:
        return False
    number = work.number
    work.refused = state.output_guard.refusal(AttemptRef(job.id, job.dotted(number), attempt))
    if work.refused and not work.held:
        held = payloads.Held(operation=state.log.next_number, message=clipped(work.refused))
        state.log.write(held, job=job, number=number, epoch=job.epoch_of(number))
    reconsider(state, job, number)
    return bool(work.refused)


def apply_retry_rules(state: EngineState) -> None:
    """Apply the retry rules to each failed package. Equal histories give equal decisions."""
    while state.pending.to_judge:
        job, number = next(iter(state.pending.to_judge))
        del state.pending.to_judge[job, number]
        work = job.work.get(number)
        if work is None or job.is_final(number):
            continue
        if job.special and end_by_failure(state, job, work):
            continue
        answer = work.verdict = judge(state, job, work)
        if answer is None or work.dropped or job.cancelled or job.aborted or is_under_way(work):
            _requeue(state, job, work)
            continue
        _carry_out(state, job, work, answer)


def judge(state: EngineState, job: JobState, work: ActivePackage) -> Verdict | None:
    """The verdict on the failures of a package so far; None without failures."""
    failures = dict(work.failures)
    for number, attempt in work.attempts.items():
        if not attempt.trusted and (loss := _loss(attempt)) is not None:
            failures[number] = loss
    if not failures:
        return None
    template = template_of(job, work.number)
    history = [failures[number] for number in sorted(failures)]
    return verdict(history, retry=template.retry, demand=template.demand, settings=state.settings.restart)


def _loss(attempt: AttemptState) -> Failure | None:
    return failure_of(
        attempt.ref.attempt,
        site=attempt.site.name,
        demand=attempt.demand,
        remaining_seconds=attempt.remaining_seconds,
        lost_reason=attempt.lost_reason or UNHEARD,
    )


def _carry_out(state: EngineState, job: JobState, work: ActivePackage, answer: Verdict) -> None:
    number = work.number
    if answer.action != "give-up" and (why := _impossible(state, job, work)):
        answer = msgspec.structs.replace(answer, action="give-up", cause="retries-exhausted", message=why)
    match answer.action:
        case "give-up":
            aborted = payloads.Aborted(cause=answer.cause or "retries-exhausted", message=answer.message)
            state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))
            return
        case "hold-job" if not job.held:
            state.log.write(payloads.Held(operation=state.log.next_number, message=answer.message), job=job)
        case "park" if not work.held:
            held = payloads.Held(operation=state.log.next_number, message=answer.message)
            state.log.write(held, job=job, number=number, epoch=job.epoch_of(number))
    if answer.delay_seconds:
        work.delayed_until = state.clock.now + answer.delay_seconds
        state.clock.timers.at(work.delayed_until, Due.RESTART, job.id, number)
    _requeue(state, job, work)


def _impossible(state: EngineState, job: JobState, work: ActivePackage) -> str:
    """Why no site can run the package with what it needs after its failures; empty if one can."""
    queue, placement = class_for(state, job, work), state.placement
    if queue is None or not state.sites.by_name or placement.possible_sites(queue):
        return ""
    if placement.forget_estimate(queue) and placement.possible_sites(queue):
        return ""  # it was tried despite its estimate, and may be again
    asked = (
        f"{queue.demand.memory_bytes:,} bytes of memory" if queue.demand.memory_bytes else "the resources it asks for"
    )
    if queue.more_wall_than:
        asked += f" and more than {queue.more_wall_than:.0f} s"
    return f"after its failures it needs {asked}, which no site offers"


def _requeue(state: EngineState, job: JobState, work: ActivePackage) -> None:
    """Put a package into the queue that its history calls for."""
    number = work.number
    if job.status[number] in (PackageStatus.READY, PackageStatus.RESERVED) and work.queue is not class_for(
        state, job, work
    ):
        move(state, job, number, PackageStatus.BLOCKED)
    reconsider(state, job, number)
    job.forget_idle(number)


def abort_consumers(state: EngineState) -> None:
    """Abort the consumers of a package that will never be done, transitively."""
    while state.pending.to_abort_consumers:
        job, number = state.pending.to_abort_consumers.popleft()
        if not job.is_dead(number) or job.cancelled:
            continue
        cause = job.dotted(number)
        for other in job.awaiting(number):
            if not job.is_final(other) and job.status[other] != PackageStatus.DROPPED:
                aborted = payloads.Aborted(cause="upstream", message=f"waits for {cause}", upstream=cause)
                state.log.write(aborted, job=job, number=other, epoch=job.epoch_of(other))
        if job.feeds_late[number]:
            state.pending.to_expand[job] = None


def revive_consumers(state: EngineState) -> None:
    """Restart packages that were aborted because of a producer, once none of their producers is aborted."""
    while state.pending.to_revive:
        job, number = next(iter(state.pending.to_revive))
        del state.pending.to_revive[job, number]
        if job.status[number] != PackageStatus.UPSTREAM or job.cancelled or is_stopped(job, number):
            continue
        if any(job.is_dead(other) for other in job.awaited(number)) or _has_failed_producer(job, number):
            continue
        restarted = payloads.Restarted(cause="revived", message="a producer was restarted or dropped")
        state.log.write(restarted, job=job, number=number, epoch=job.epoch_of(number) + 1)


def _has_failed_producer(job: JobState, number: int) -> bool:
    stages = job.plan.late_waits.get(int(job.plan.template_of[number]), ()) if job.failed_producers else ()
    return bool(stages) and not lost_stages(job).keys().isdisjoint(stages)
