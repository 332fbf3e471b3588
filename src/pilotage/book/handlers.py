"""Which function joins which event: one row per type, grouped by what the event is about and whether its epoch counts."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.book import facts
from pilotage.model import payloads

ATTEMPT_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    payloads.AttemptCreated: facts.on_attempt_created,
    payloads.AttemptQueued: facts.on_attempt_queued,
    payloads.AttemptStarted: facts.on_attempt_started,
    payloads.AttemptSuspected: facts.on_attempt_suspected,
    payloads.AttemptRecovered: facts.on_attempt_recovered,
    payloads.AttemptLost: facts.on_attempt_lost,
    payloads.PhaseEntered: facts.on_phase_entered,
    payloads.OutputsStaged: facts.on_outputs_staged,
    payloads.AttemptFinished: facts.on_attempt_finished,
    payloads.CommitGranted: facts.on_commit_granted,
}
PACKAGE_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    # These count in their epoch only.
    payloads.Bound: facts.on_bound,
    payloads.Unbound: facts.on_unbound,
    payloads.CancelAccepted: facts.on_cancel_accepted,
    payloads.Aborted: facts.on_aborted,
    payloads.Cleared: facts.on_cleared,
    payloads.Restarted: facts.on_restarted,
    payloads.ReplicaWanted: facts.on_replica_wanted,
}
STANDING_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    # These hold whatever the epoch.
    payloads.PackageRegistered: facts.on_package_registered,
    payloads.Held: facts.on_held,
    payloads.Released: facts.on_held,
    payloads.Dropped: facts.on_dropped,
    payloads.Restored: facts.on_dropped,
}
JOB_EPOCH_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    payloads.CancelAccepted: facts.on_job_cancelled,
    payloads.Aborted: facts.on_job_aborted,
    payloads.Cleared: facts.on_job_cleared,
    payloads.Restarted: facts.on_job_restarted,
}
JOB_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    payloads.JobRegistered: facts.on_job_registered,
    payloads.JobAccepted: facts.on_job_accepted,
    payloads.OwnerSet: facts.on_owner_set,
    payloads.AccessSet: facts.on_access_set,
    payloads.Held: facts.on_job_held,
    payloads.Released: facts.on_job_held,
}
