"""Activities that cannot succeed: they are stopped after a number of equal failures, and opened again by a person.

That so many attempts failed in the same way and none succeeded proves little while others still run that got further. So an
activity is stopped only if

- as many attempts of it failed in the same way as the settings say, of several packages, for a reason of the application;
- they are more than those that run now;
- for each attempt that has run far longer than they did, as many more have failed;
- they failed at two sites, if two could run them, unless there are many more.
"""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.activities import PACKAGES_MIN, EqualFailures
from pilotage.engine.state.job_queries import packages_of
from pilotage.engine.state.jobs import JobState, PackageStatus, template_of
from pilotage.model.events import payloads
from pilotage.model.events.healing_payloads import ActivityStopped
from pilotage.model.resources import slots_for
from pilotage.model.texts import clipped, words_of_failure

_FURTHER = 2.0  # an attempt that has run so many times as long as the longest failure may succeed
_ONE_SITE = 5  # times the bound: that many stop it although only one site was tried


def stop_failing_activities(state: EngineState) -> None:
    """Stop the activities that have failed too often without a success."""
    while state.pending.failing_activities:
        job, activity = next(iter(state.pending.failing_activities))
        del state.pending.failing_activities[job, activity]
        if (failures := hopeless(state, job, activity)) is not None:
            stop_activity(state, job, activity, failures)


def hopeless(state: EngineState, job: JobState, activity: str) -> EqualFailures | None:
    """The equal failures that show that an activity cannot succeed; None if it may, is stopped, or has nothing left to stop."""
    bound, found = state.settings.incidents.failing_attempts_max, job.activities.most_equal(activity)
    if not bound or found is None or found.attempts < bound or len(found.packages) < PACKAGES_MIN:
        return None
    if job.cancelled or job.aborted or activity in job.activities.stopped:
        return None
    running, further = _running(state, job, activity, _FURTHER * found.longest_seconds)
    # Each further failure is one attempt less that runs: no earlier than half way is it worth to look again.
    more = max((running - found.attempts) // 2, (bound * (1 + further) - found.attempts) // (1 + bound))
    found.ask_at = found.attempts + max(1, more)
    if found.attempts <= running or found.attempts < bound * (1 + further):
        return None
    if len(found.sites) < 2 and found.attempts < _ONE_SITE * bound and _sites(state, job, activity) > 1:
        return None
    left = any(job.status[number] < PackageStatus.DROPPED for number in packages_of(job, activity))
    return found if left else None


def _running(state: EngineState, job: JobState, activity: str, seconds: float) -> tuple[int, int]:
    """How many attempts of an activity run, and how many of them for longer than some time; not those in a backlog."""
    now, began = state.clock.wall_time, dict[str, list[float]]()
    slots: dict[str, int] = {}
    for number, work in job.work.items():
        if not work.attempts or template_of(job, number).activity != activity:
            continue
        for attempt in work.attempts.values():
            if not (attempt.leased and attempt.trusted):
                continue
            pilot = state.pilots.by_name.get(attempt.pilot)
            if attempt.pilot not in slots:
                fit = slots_for(attempt.demand, pilot.capacity) if pilot is not None else 1
                slots[attempt.pilot] = max(1, fit)
            began.setdefault(attempt.pilot, []).append(attempt.began_at)
    running = [at for pilot, times in began.items() for at in sorted(times)[: slots[pilot]]]
    return len(running), sum(now - at > seconds for at in running)


def _sites(state: EngineState, job: JobState, activity: str) -> int:
    """How many sites could run the packages of an activity now."""
    sites = {
        site.name
        for queue in job.classes.values()
        if job.plan.templates[queue.kind].activity == activity
        for site in state.placement.possible_sites(queue)
        if site.known and not site.asleep
    }
    return len(sites)


def what_failed(activity: str, failures: EqualFailures) -> str:
    """How often attempts of an activity failed, and how."""
    sample = failures.sample
    status = f" {sample.exit_status}" if sample.exit_status is not None else ""
    how = f"{sample.reason}{status}{words_of_failure(sample.message)}"
    return f"{failures.attempts} attempts of {len(failures.packages)} packages of {activity} failed alike ({how}), and none succeeded"


def stop_activity(
    state: EngineState, job: JobState, activity: str, failures: EqualFailures, *, decision: int = 0
) -> None:
    """Stop an activity; its packages are aborted in the same step."""
    stopped = ActivityStopped(
        activity=activity,
        operation=state.log.next_number,
        failed_packages=len(failures.packages),
        failed_attempts=failures.attempts,
        decision=decision,
        message=clipped(what_failed(activity, failures)),
    )
    state.log.write(stopped, job=job, epoch=job.epoch)


def abort_stopped(state: EngineState) -> None:
    """Abort the unfinished packages of stopped activities, also those that came back or were not known yet."""
    while state.pending.to_stop:
        job = next(iter(state.pending.to_stop))
        del state.pending.to_stop[job]
        if job.cancelled or job.aborted:
            continue
        for activity, stopped in job.activities.stopped.items():
            message = clipped(f"its activity {activity} was stopped: {stopped.message}")
            aborted = payloads.Aborted(cause="activity-stopped", message=message)
            for number in packages_of(job, activity):
                if job.status[number] < PackageStatus.DROPPED:
                    state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))
