"""Runs the timers that are due."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.engine.decisions.attempts import replicate, submit, watch_for_replica
from pilotage.engine.decisions.lost_pilots import check_lease
from pilotage.engine.decisions.provisioning import submit_pilot
from pilotage.engine.decisions.site_status import end_probe
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.prefetch import retry_fetches
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import attempts_of, bound_attempt
from pilotage.engine.state.jobs import JobState, PackageStatus, QueueClass
from pilotage.engine.state.sites import made_contact
from pilotage.engine.transitions.forecast_timers import is_due
from pilotage.engine.transitions.occupancy import cancel_abandoned
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.engine.transitions.readiness import reconsider, release_unfit
from pilotage.engine.transitions.site_observations import check_queue, record_latencies, write_site_record
from pilotage.model.events import payloads


def run_due_timers(state: EngineState) -> None:
    """Handle every timer that is due."""
    while (found := state.clock.timers.pop(state.clock.now)) is not None:
        due, name, number = found
        if (handler := _DUE.get(due)) is not None:  # the other timers only wake the engine
            handler(state, name, number)


def _release_unfit(state: EngineState, name: str) -> None:
    if (site := state.sites.by_name.get(name)) is not None:
        release_unfit(state, site)


def _replicate_queued(state: EngineState, key: str) -> None:
    if (attempt := bound_attempt(state.jobs, key)) is not None:
        replicate(state, attempt)


def _choose_again(state: EngineState) -> None:
    state.placement.retry_due()


def _expand_again(state: EngineState, name: str) -> None:
    if (job := state.jobs.by_id.get(name)) is not None:
        state.pending.to_expand[job] = None


def _restart(state: EngineState, name: str, number: int) -> None:
    job = state.jobs.by_id.get(name)
    work = job.work.get(number) if job is not None else None
    if job is not None and work is not None and 0 < work.delayed_until <= state.clock.now:
        work.delayed_until = 0.0
        reconsider(state, job, number)


def _submit_again(state: EngineState, key: str) -> None:
    """Submit again if no report came; the key keeps the batch system from starting it twice."""
    request = state.pilots.requests.get(key)
    if request is not None:
        if not request.native_id and not request.contacted:
            submit_pilot(state, request.site, key)
        return
    waiting = attempts_of(key, jobs=state.jobs, sites=state.sites.by_name.values())
    if waiting and not any(each.leased or each.queued or each.lost or each.follows for each in waiting):
        submit(state, waiting[0])


def _check_queue(state: EngineState, key: str) -> None:
    """A submission is old enough to be too long in the queue of its site."""
    request = state.pilots.requests.get(key)
    if request is not None:
        if not request.contacted:
            check_queue(state, request.site, key, request.requested_at)
        return
    waiting = attempts_of(key, jobs=state.jobs, sites=state.sites.by_name.values())
    if waiting and waiting[0].counted and not made_contact(waiting[0].site, key):
        check_queue(state, waiting[0].site, key, waiting[0].created_at)


# --- waiting limits -------------------------------------------------------------------------------------------------


def watch_waiting(state: EngineState) -> None:
    """Set timers for classes and attempts whose waiting time is limited."""
    while state.queues.just_submitted:
        watch_for_replica(state, state.queues.just_submitted.pop())
    limit = state.settings.waiting_seconds_max
    if limit:
        for queue in (*state.queues.ready, *state.queues.waiting):
            if not queue.watched:
                queue.watched = True
                state.clock.timers.at(state.clock.now + limit, Due.WAITING, queue.job.id, queue.index)


def _check_waiting(state: EngineState, name: str, index: int) -> None:
    """Give up packages that were ready for too long without a site; set the timer for the next one."""
    job = state.jobs.by_id.get(name)
    queue = next((each for each in job.classes.values() if each.index == index), None) if job is not None else None
    if job is None or queue is None:
        return  # it was retired meanwhile
    queue.watched = False
    limit = state.settings.waiting_seconds_max
    if not job.open:
        if queue.ready:
            queue.watched = True
            state.clock.timers.at(state.clock.now + limit, Due.WAITING, name, index)
        return
    while queue.queue:
        number, since = queue.queue.first()
        since = max(since, job.released_at, job.ready_since.get(number, 0.0))
        counts = job.status[number] == PackageStatus.READY and queue_of(state, job, number) is queue
        if counts and state.clock.now < since + limit:
            queue.watched = True
            state.clock.timers.at(since + limit, Due.WAITING, name, index)
            return
        queue.queue.pop()
        if counts:
            _give_up(state, job, queue, number, state.clock.now - since)


def _give_up(state: EngineState, job: JobState, queue: QueueClass, number: int, seconds: float) -> None:
    message = f"ready for {seconds:.0f} s, and no site had room for {queue.demand.cores_hundredths / 100:g} cores"
    aborted = payloads.Aborted(cause="waited-too-long", message=message)
    state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))


def _forecast(state: EngineState, name: str) -> None:
    if (job := state.jobs.by_id.get(name)) is not None and is_due(state, job):
        job.forecast_due = 0.0
        state.pending.to_forecast[job] = None


def _heal(state: EngineState, name: str) -> None:
    job, health = state.jobs.by_id.get(name), state.healing.known(name)
    if job is not None and health is not None and health.cycle_at <= state.clock.now:
        state.pending.to_heal[job] = None


_DUE: dict[int, Callable[[EngineState, str, int], None]] = {
    Due.LEASE: lambda state, name, _: check_lease(state, name),
    Due.RESTART: _restart,
    Due.UNFIT: lambda state, name, _: _release_unfit(state, name),
    Due.REQUEST: lambda state, name, _: _submit_again(state, name),
    Due.EXPANSION: lambda state, name, _: _expand_again(state, name),
    Due.WAITING: _check_waiting,
    Due.ACTING: lambda state, name, _: cancel_abandoned(state, name),
    Due.CHOICE: lambda state, _, __: _choose_again(state),
    Due.SITE_RECORD: lambda state, name, _: write_site_record(state, name),
    Due.LATENCIES: lambda state, name, _: record_latencies(state, name),
    Due.REPLICA: lambda state, name, _: _replicate_queued(state, name),
    Due.PROBE: lambda state, name, _: end_probe(state, name),
    Due.FORECAST: lambda state, name, _: _forecast(state, name),
    Due.FETCH: lambda state, name, _: retry_fetches(state, name),
    Due.HEALING: lambda state, name, _: _heal(state, name),
    Due.QUEUED: lambda state, name, _: _check_queue(state, name),
}
