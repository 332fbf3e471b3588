"""What is queued at a site for long is queued elsewhere as well, and the first to start ends the others.

In pilot mode there is no need for it: a reservation that no pilot pulls is given back (`releasing.release_unfit`).
"""

from __future__ import annotations

from pilotage.engine.classes import queue_of
from pilotage.engine.engine_state import EngineState
from pilotage.engine.histories import OUTRUN
from pilotage.engine.jobs import FINAL, JobState, PackageWork, template_of
from pilotage.engine.on_pilots import lose
from pilotage.engine.places import AttemptState
from pilotage.engine.timers import Due
from pilotage.model import payloads


def watch_race(state: EngineState, attempt: AttemptState) -> None:
    """Look at a bound attempt when it is queued for so long that another may be made."""
    if state.settings.selection.replication_limit:
        after = attempt.created_at + state.selection.replicate_after_seconds(attempt.site.name) - state.clock.wall_time
        state.clock.timers.at(state.clock.now + max(1.0, after), Due.REPLICA, attempt.key)


def race(state: EngineState, attempt: AttemptState) -> None:
    """Have one more attempt made elsewhere where one is queued for long, unless that would be too many, or nowhere."""
    job = state.jobs.by_id[attempt.ref.job]
    work = job.work.get(attempt.number)
    if work is None or not attempt.counted or attempt.leased or job.standing[attempt.number] >= FINAL:
        return
    if template_of(job, attempt.number).side_effects:
        return  # never twice at once
    after = state.selection.replicate_after_seconds(attempt.site.name)
    if state.clock.wall_time - attempt.created_at >= after and _may_race(state, job, work):
        wanted = payloads.ReplicaWanted(replicas=work.replicas + 1, cause="queue")
        state.log.write(wanted, job=job, number=attempt.number, epoch=attempt.epoch)
    state.clock.timers.at(state.clock.now + after, Due.REPLICA, attempt.key)


def live_attempts(work: PackageWork) -> int:
    """Attempts of a package that somebody waits for, and further ones that are wanted."""
    return sum(not each.lost for each in work.attempts.values()) + max(0, work.replicas - work.replicated)


def replicas_max(state: EngineState, job: JobState, number: int) -> int:
    """How many live attempts a package may have: as its document says, else as the settings do."""
    own = template_of(job, number).replicas_max
    return state.settings.selection.max_replicas if own is None else own


def _may_race(state: EngineState, job: JobState, work: PackageWork) -> bool:
    if work.held or work.dropped or not job.open or any(each.leased for each in work.attempts.values()):
        return False
    if work.replicas > work.replicated or work.failures:
        return False  # one is on its way; or what failed must be answered first
    most = replicas_max(state, job, work.number)
    if not state.selection.may_replicate(queue_replicas=work.replicas, live=live_attempts(work), most=most):
        return False
    there = {each.site for each in work.attempts.values()}
    queue = queue_of(state, job, work.number)
    return any(site not in there and not site.asleep for site in state.placement.possible_sites(queue))


def end_race(state: EngineState, job: JobState, started: AttemptState) -> None:
    """The first to start ends the others that are still queued."""
    work = job.work.get(started.number)
    if work is None or not work.races:
        return
    others = [each for each in work.attempts.values() if each is not started and not each.leased and not each.lost]
    waited = [(each.site.name, state.clock.wall_time - each.created_at) for each in others]
    queued = started.began_at - started.created_at
    state.pending.site_changes += state.selection.replica_won(queued, others=waited, at=state.clock.wall_time)
    for each in others:
        lose(state, each, reason=OUTRUN, message=f"attempt {started.ref.attempt} at {started.site.name} began first")
