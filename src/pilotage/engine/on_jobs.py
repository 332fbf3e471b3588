"""What events about jobs and packages mean to the engine: one function for each."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.growth import revive_waiting
from pilotage.engine.jobs import JobState, Standing
from pilotage.engine.readiness import lay_out, move, reconsider, reopen, satisfy, unsatisfy
from pilotage.engine.slots import let_go
from pilotage.model import payloads
from pilotage.model.events import Event


def on_job_registered(state: EngineState, job: JobState | None, event: Event, data: payloads.JobRegistered) -> None:
    """A job exists; one without a plan is somebody else's, and is not for this engine."""
    plans = state.jobs.plans.get(event.job or "")
    if job is not None or not plans or event.job is None:
        return
    since = event.time - (state.clock.wall_time - state.clock.now)  # the clock may have been set meanwhile
    job = JobState(event.job, owner=data.owner, plan=plans.popleft(), order=state.jobs.next_order(), since=since)
    state.jobs.by_id[job.id] = job


def on_job_accepted(state: EngineState, job: JobState | None, event: Event, data: payloads.JobAccepted) -> None:
    """Its packages may be worked on."""
    if job is not None and not job.accepted:
        job.accepted = True
        lay_out(state, job)


def on_stage_expanded(state: EngineState, job: JobState | None, event: Event, data: payloads.StageExpanded) -> None:
    """A late stage is known: its packages are there, and nobody waits for its list any more."""
    plans = state.jobs.plans.get(event.job or "")
    if job is None or data.stage not in job.late or not plans:
        return
    job.take_plan(plans.popleft())
    lay_out(state, job)
    # What it brought may wait for packages that were given up before.
    state.pending.to_abort_consumers.extend((job, number) for number in range(job.count) if job.is_dead(number))


def on_held(state: EngineState, job: JobState | None, event: Event, data: payloads.Held | payloads.Released) -> None:
    """Nothing of the job is started until it is released."""
    if job is None:
        return
    held, job.held = job.held, isinstance(data, payloads.Held)
    job.held_why = data.message if isinstance(data, payloads.Held) else ""
    at = event.time - (state.clock.wall_time - state.clock.now)
    if job.held:
        if not held:
            job.held_since = at
        release_all(state, job)
    else:
        job.released_at = at
        if held:  # before it was opened again it was not waited for anyway
            job.since += max(0.0, at - max(job.since, job.held_since))
    reopen(state, job)


def release_all(state: EngineState, job: JobState) -> None:
    """Give every reservation of a job back; its packages are ready as before."""
    for number, work in list(job.work.items()):
        if work.bound is not None:
            move(state, job, number, Standing.READY)


def on_package_held(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.Held | payloads.Released
) -> None:
    """No further attempt of the package until it is released."""
    work = job.work_of(number)
    work.held = isinstance(data, payloads.Held)
    if work.refused and not work.held:
        work.refused = ""
        state.pending.to_commit.append((job, number))
    reconsider(state, job, number)
    job.forget_idle(number)


def on_job_cancelled(state: EngineState, job: JobState | None, event: Event, data: payloads.CancelAccepted) -> None:
    """Nothing of the job is started or granted any more."""
    if job is not None and event.epoch == job.epoch:
        job.cancelled = True
        release_all(state, job)
        reopen(state, job)


def on_job_aborted(state: EngineState, job: JobState | None, event: Event, data: payloads.Aborted) -> None:
    """The rest of the job was given up."""
    if job is not None and event.epoch == job.epoch:
        job.aborted = True
        release_all(state, job)
        reopen(state, job)


def on_job_restarted(state: EngineState, job: JobState | None, event: Event, data: payloads.Restarted) -> None:
    """The job goes on: what was not over is worked on again."""
    if job is not None and event.epoch > job.epoch:
        job.epoch = event.epoch
        job.cancelled = job.aborted = job.cleared = False
        job.since = event.time - (state.clock.wall_time - state.clock.now)
        reopen(state, job)
        state.pending.to_expand[job] = None
        # Nobody looked at those who wait for what was given up meanwhile.
        state.pending.to_abort_consumers.extend((job, number) for number in range(job.count) if job.is_dead(number))
        state.pending.to_commit.extend((job, number) for number, work in job.work.items() if work.candidates)
        state.pending.to_judge.update(((job, number), None) for number, work in job.work.items() if work.failures)


def on_package_cancelled(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.CancelAccepted
) -> None:
    """The package will not be done in this epoch."""
    end_package(state, job, number, event, Standing.CANCELLED)


def on_package_aborted(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Aborted) -> None:
    """The package was given up in this epoch."""
    standing = Standing.UPSTREAM if data.cause == "upstream" else Standing.ABORTED
    if end_package(state, job, number, event, standing):
        job.note_cause(number, data.cause)
        if job.failures_max and standing == Standing.ABORTED:
            state.pending.failing_jobs[job] = None


def on_job_cleared(state: EngineState, job: JobState | None, event: Event, data: payloads.Cleared) -> None:
    """Its outputs were handed over, or removed: it goes as soon as it is over."""
    if job is not None and event.epoch == job.epoch:
        job.cleared = True
        state.jobs.retirable[job] = None


def on_package_cleared(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Cleared) -> None:
    """The same for one package, which is over with that; a job goes with its last."""
    if event.epoch != job.epoch_of(number):
        return
    if not job.is_final(number):
        end_package(state, job, number, event, Standing.CANCELLED)
    job.cleared_packages.add(number)
    state.jobs.retirable[job] = None


def end_package(state: EngineState, job: JobState, number: int, event: Event, standing: int) -> bool:
    """Nothing more is done of a package in this epoch; whether that is new."""
    if event.epoch != job.epoch_of(number) or job.is_final(number):
        return False
    move(state, job, number, standing)
    forget_epoch(state, job, number)
    state.pending.to_abort_consumers.append((job, number))
    return True


def forget_epoch(state: EngineState, job: JobState, number: int) -> None:
    """Nothing more comes of the attempts of the epoch: their pilots are told to stop them."""
    work = job.work.get(number)
    if work is None:
        return
    if not (work.attempts or work.bound or work.held or work.dropped):
        del job.work[number]  # nothing of it is to be remembered
        return
    if work.attempts:
        for attempt in list(work.attempts.values()):
            let_go(state, attempt)
    work.forget()
    work.refused = ""
    work.verdict = work.queue = None
    work.delayed_until = 0.0
    work.replicas = work.replicated = 0
    work.races = False
    job.forget_idle(number)


def on_package_restarted(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.Restarted
) -> None:
    """A new epoch of the package begins: what earlier ones made does not count, and nothing of them may win."""
    if event.epoch <= job.epoch_of(number):
        return
    if job.standing[number] in (Standing.READY, Standing.RESERVED):
        # Its history says in which queue it is: it must leave that before it is forgotten.
        move(state, job, number, Standing.BLOCKED)
    forget_epoch(state, job, number)
    fed_late = number in job.dead_feeders
    job.epochs[number] = event.epoch
    job.granted[number] = 0
    job.cleared_packages.discard(number)
    if number in job.enders:
        del job.enders[number]
        state.pending.to_expand[job] = None
    if number in job.failed_for_good:
        job.count_for_good(number, -1)
    move(state, job, number, Standing.BLOCKED)
    work = job.work.get(number)
    if work is None or not work.dropped:
        unsatisfy(state, job, number)
    reconsider(state, job, number)
    _revive(state, job, number, fed_late=fed_late)
    _meet_the_dead(state, job, number)
    if job.dead_feeders:
        job.given_up = {}  # it may wait for a stage that was given up before
        state.pending.to_expand[job] = None


def _revive(state: EngineState, job: JobState, number: int, *, fed_late: bool) -> None:
    for other in job.awaiting(number):
        if job.standing[other] == Standing.UPSTREAM:
            state.pending.to_revive[job, other] = None
    if fed_late:
        job.given_up = {}  # those who wait for its stages have hope again, and may lose it again
        revive_waiting(state, job)
        state.pending.to_expand[job] = None


def on_dropped(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Dropped) -> None:
    """The package is left out: nobody waits for it, and nothing of it is started or granted. Its attempts were lost before."""
    job.drop_revision = max(job.drop_revision, data.operation)
    job.work_of(number).dropped = data.operation
    fed_late = number in job.dead_feeders
    reconsider(state, job, number)
    satisfy(state, job, number)
    _revive(state, job, number, fed_late=fed_late)


def on_restored(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Restored) -> None:
    """The package is back."""
    job.drop_revision = max(job.drop_revision, data.operation)
    work = job.work_of(number)
    work.dropped = 0
    if not job.granted[number]:
        unsatisfy(state, job, number)
    if work.candidates:
        state.pending.to_commit.append((job, number))
    if work.failures or work.attempts:
        state.pending.to_judge[job, number] = None  # what failed while it was dropped was not judged
    reconsider(state, job, number)
    _meet_the_dead(state, job, number)
    if job.is_dead(number):
        if job.feeds_late[number]:
            job.dead_feeders.add(number)
        state.pending.to_abort_consumers.append((job, number))
    job.forget_idle(number)


def _meet_the_dead(state: EngineState, job: JobState, number: int) -> None:
    """Who waits again may wait for somebody who died meanwhile: they are looked at once more."""
    if not job.is_final(number):
        state.pending.to_abort_consumers.extend((job, other) for other in job.awaited(number) if job.is_dead(other))


def on_replica_wanted(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.ReplicaWanted
) -> None:
    """Further attempts are to run beside the one that does."""
    if event.epoch == job.epoch_of(number) and not job.is_final(number):
        work = job.work_of(number)
        work.replicas = data.replicas
        work.races |= data.cause == "queue"
        reconsider(state, job, number)
