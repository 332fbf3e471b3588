"""Late stages: laid out when everything they are made of is there, given up when it never will be."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.jobs import JobState, LateState, Standing
from pilotage.engine.timers import Due
from pilotage.model import payloads
from pilotage.model.effects import ExpandStage


def grow_jobs(state: EngineState) -> None:
    """Ask for the expansion of what can be expanded; give up what waits for a stage that cannot."""
    while state.pending.to_expand:
        job = next(iter(state.pending.to_expand))
        del state.pending.to_expand[job]
        if not job.late or job.cancelled or job.aborted or job.enders:
            continue
        for late in list(job.late.values()):
            if not late.pending and not any(stage in job.late for stage in late.stages):
                _ask(state, job, late)
        if job.dead_feeders:
            _give_up(state, job)


def _ask(state: EngineState, job: JobState, late: LateState) -> None:
    wait = state.settings.submit_again_seconds
    if late.asked_at is None or state.clock.now >= late.asked_at + wait:
        late.asked_at = state.clock.now
        state.log.effects.append(ExpandStage(job=job.id, stage=late.stage, revision=late.revision))
        state.clock.timers.at(state.clock.now + wait, Due.EXPANSION, job.id)


def lost_stages(job: JobState) -> dict[int, int]:
    """The late stages that will never be laid out as things stand, each with a package that is to blame."""
    lost: dict[int, int] = {}
    for number in sorted(job.dead_feeders):
        for late in job.late.values():
            if late.stage not in lost and late.holds(number):
                lost[late.stage] = number
    while lost:
        further = [each for each in job.late.values() if each.stage not in lost and set(each.stages) & set(lost)]
        if not further:
            break
        for each in further:
            lost[each.stage] = next(lost[stage] for stage in each.stages if stage in lost)
    return lost


def ends(job: JobState) -> bool:
    """Whether everything is over but what runs last: every other package, and no stage is still to come."""
    if job.others:
        return False
    if not job.late or job.enders:  # what a package has ended grows no more
        return True
    lost = lost_stages(job) if job.dead_feeders else {}
    return all(stage in lost for stage in job.late)


def _give_up(state: EngineState, job: JobState) -> None:
    """A late stage with a dead producer is never laid out: those who wait for it are given up, and in the end the job."""
    lost = lost_stages(job)
    if lost != job.given_up:
        job.given_up = lost
        _give_up_all_waiting(state, job, lost)
    if lost and not job.unfinished and all(stage in lost for stage in job.late):
        cause = job.dotted(next(iter(lost.values())))
        message = f"stages that are made of what {cause} makes will never be known"
        state.log.write(payloads.Aborted(cause="upstream", message=message, upstream=cause), job=job, epoch=job.epoch)


def _give_up_all_waiting(state: EngineState, job: JobState, lost: dict[int, int]) -> None:
    for template, stages in job.plan.late_waits.items():
        blamed = next((lost[stage] for stage in stages if stage in lost), None)
        if blamed is not None:
            _give_up_waiting(state, job, template, blamed)


def _give_up_waiting(state: EngineState, job: JobState, template: int, producer: int) -> None:
    cause = job.dotted(producer)
    for number in (job.plan.template_of == template).nonzero()[0].tolist():
        if not job.is_final(number) and job.standing[number] != Standing.DROPPED:
            aborted = payloads.Aborted(cause="upstream", message=f"waits for {cause}", upstream=cause)
            state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))


def revive_waiting(state: EngineState, job: JobState) -> None:
    """Look again at packages that were given up because of a stage that may have a future again."""
    for template in job.plan.late_waits:
        for number in (job.plan.template_of == template).nonzero()[0].tolist():
            if job.standing[number] == Standing.UPSTREAM:
                state.pending.to_revive[job, number] = None
