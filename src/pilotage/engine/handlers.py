"""Which function folds which event, and what is decided in which order: the tables of the engine."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.engine import on_attempts, on_jobs, on_pilots
from pilotage.engine.behaviour import on_site_described, on_site_stands
from pilotage.engine.decision_log import Fold, Folds
from pilotage.engine.dispatch import bind, pull
from pilotage.engine.ending import look_at_end, see_to_ends, stop_what_fails
from pilotage.engine.engine_state import EngineState
from pilotage.engine.forsaken import end_requests
from pilotage.engine.growth import grow_jobs
from pilotage.engine.provisioning import request_pilots
from pilotage.engine.settling import answer_failures, give_up_consumers, grant_what_succeeded, revive_consumers
from pilotage.engine.standings import see_to_sites
from pilotage.engine.waking import wake, watch_waiting
from pilotage.model import payloads
from pilotage.model.payloads import Payload

_OTHER: dict[type[Payload], Fold] = {
    payloads.PilotRequested: on_pilots.on_pilot_requested,
    payloads.PilotStarted: on_pilots.on_pilot_started,
    payloads.PilotEnded: on_pilots.on_pilot_ended,
    payloads.SiteDescribed: on_site_described,
    payloads.SiteHibernated: on_site_stands,
    payloads.SiteWoken: on_site_stands,
    payloads.SiteStanding: on_site_stands,
}
_JOB: dict[type[Payload], Fold] = {
    payloads.JobRegistered: on_jobs.on_job_registered,
    payloads.JobAccepted: on_jobs.on_job_accepted,
    payloads.StageExpanded: on_jobs.on_stage_expanded,
    payloads.Held: on_jobs.on_held,
    payloads.Released: on_jobs.on_held,
    payloads.CancelAccepted: on_jobs.on_job_cancelled,
    payloads.Aborted: on_jobs.on_job_aborted,
    payloads.Cleared: on_jobs.on_job_cleared,
    payloads.Restarted: on_jobs.on_job_restarted,
}
_PACKAGE: dict[type[Payload], Fold] = {
    payloads.Held: on_jobs.on_package_held,
    payloads.Released: on_jobs.on_package_held,
    payloads.CancelAccepted: on_jobs.on_package_cancelled,
    payloads.Aborted: on_jobs.on_package_aborted,
    payloads.Cleared: on_jobs.on_package_cleared,
    payloads.Restarted: on_jobs.on_package_restarted,
    payloads.Dropped: on_jobs.on_dropped,
    payloads.Restored: on_jobs.on_restored,
    payloads.ReplicaWanted: on_jobs.on_replica_wanted,
    payloads.AttemptCreated: on_attempts.on_attempt_created,
    payloads.AttemptQueued: on_attempts.on_attempt_queued,
    payloads.AttemptStarted: on_attempts.on_attempt_started,
    payloads.AttemptSuspected: on_attempts.on_attempt_suspected,
    payloads.AttemptRecovered: on_attempts.on_attempt_recovered,
    payloads.AttemptLost: on_attempts.on_attempt_lost,
    payloads.PhaseEntered: on_attempts.on_phase_entered,
    payloads.OutputsStaged: on_attempts.on_outputs_staged,
    payloads.AttemptFinished: on_attempts.on_attempt_finished,
    payloads.CommitGranted: on_attempts.on_commit_granted,
}

FOLDS = Folds(package=_PACKAGE, job=_JOB, other=_OTHER, after=look_at_end)

DECISIONS: tuple[Callable[[EngineState], None], ...] = (
    # Each leaves nothing behind for those before it, but where `decide` goes round once more.
    wake,
    on_pilots.bury,
    end_requests,
    grant_what_succeeded,
    answer_failures,
    stop_what_fails,
    see_to_ends,
    give_up_consumers,
    revive_consumers,
    grow_jobs,
    see_to_sites,
    bind,
    pull,
    request_pilots,
    watch_waiting,
)
