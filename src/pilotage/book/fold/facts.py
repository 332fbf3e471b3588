"""Adds events to facts: one function per event type, each setting the registers that the event speaks of.

A register is set only by an event with a greater key than the last one, so that order, repetition and delay of the same
events do not change the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pilotage.book.rows.activities import ActivityStanding, with_activity
from pilotage.book.rows.forecasts import JobForecast, written_forecast
from pilotage.book.rows.healing import JobHealing, written_healing
from pilotage.book.rows.registers import Register, holds, holds_too, takes
from pilotage.book.rows.rows import AttemptFacts, JobRow, Keys, KnowledgeRow, NodeRow, PackageFacts, PilotRow, StoredKey
from pilotage.model.events import file_payloads, payloads
from pilotage.model.events.events import Event
from pilotage.model.events.healing_payloads import ActivityReopened, ActivityStopped, HealingLearned, IncidentsLearned

_json = msgspec.json.Encoder()
_tags = msgspec.json.Decoder(dict[str, tuple[str, tuple[int, int, int, int, str]]])


# --- attempts -------------------------------------------------------------------------------------------------------


def on_attempt_created(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.AttemptCreated, position: int
) -> None:
    """An attempt at a site was created; with a lease it runs from now on."""
    if holds(row.keys, Register.CREATED, key):
        row.created_at = event.time
        row.site = data.site
        row.lease_seconds = data.lease_seconds
        row.replaces, row.replica, row.drop_revision = data.replaces, int(data.replica), data.drop_revision
        row.memory_bytes, row.wall_seconds = data.memory_bytes, data.wall_seconds
        row.remaining_seconds = data.remaining_seconds
        row.early = {each.package: each.attempt for each in data.early}
        row.group = data.group
    if data.pilot is not None and holds_too(row.keys, Register.PILOT, key, first=Register.CREATED):
        row.pilot = data.pilot


def on_attempt_queued(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.AttemptQueued, position: int
) -> None:
    """It is in a queue, or offered to pilots."""
    if holds(row.keys, Register.QUEUED, key):
        row.queued_at = event.time
        row.native_id = data.native_id


def on_attempt_started(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.AttemptStarted, position: int
) -> None:
    """It holds a lease."""
    if holds(row.keys, Register.STARTED, key):
        row.started_at = event.time
    if data.node is not None and holds_too(row.keys, Register.NODE, key, first=Register.STARTED):
        row.node = data.node
    if data.pilot is not None and holds_too(row.keys, Register.PILOT, key, first=Register.STARTED):
        row.pilot = data.pilot


def on_attempt_suspected(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.AttemptSuspected, position: int
) -> None:
    """Its lease has expired."""
    if holds(row.keys, Register.SUSPECTED, key):
        row.suspected_at, row.recovered_at, row.lost_at, row.lost_reason = event.time, None, None, None


def on_attempt_recovered(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.AttemptRecovered, position: int
) -> None:
    """Its lease holds again."""
    if holds(row.keys, Register.SUSPECTED, key):
        row.suspected_at, row.recovered_at, row.lost_at, row.lost_reason = None, event.time, None, None


def on_attempt_lost(row: AttemptFacts, key: StoredKey, event: Event, data: payloads.AttemptLost, position: int) -> None:
    """It is given up as lost."""
    if holds(row.keys, Register.SUSPECTED, key):
        row.suspected_at, row.recovered_at, row.lost_at, row.lost_reason = None, None, event.time, data.reason


def on_phase_entered(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.PhaseEntered, position: int
) -> None:
    """It entered a long phase."""
    if holds(row.keys, Register.PHASE, key):
        row.phase = data.phase
        row.phase_at = event.time


def on_outputs_staged(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.OutputsStaged, position: int
) -> None:
    """Its outputs are staged."""
    if holds(row.keys, Register.STAGED, key):
        row.staged_at = event.time
        row.staged_position = position


def on_attempt_finished(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.AttemptFinished, position: int
) -> None:
    """It has ended; for a short attempt the staged outputs come with the same event."""
    if holds(row.keys, Register.FINISHED, key):
        row.finished_at = event.time
        row.exit_code = data.exit_code.value
        # A comparison is much cheaper than an assignment, and most attempts succeed.
        if data.exit_message or row.exit_message:
            row.exit_message = data.exit_message or None
        if row.reason != data.reason:
            row.reason = data.reason
        if row.exit_status != data.exit_status:
            row.exit_status = data.exit_status
        if row.signal != data.signal:
            row.signal = data.signal
        if row.peak_memory_bytes != data.peak_memory_bytes:
            row.peak_memory_bytes = data.peak_memory_bytes
        row.peak_memory_below_bytes = data.peak_memory_below_bytes
        row.cpu_seconds = data.cpu_seconds
        row.cpu_user_seconds = data.cpu_user_seconds
        row.cpu_system_seconds = data.cpu_system_seconds
        if row.read_bytes != data.read_bytes:
            row.read_bytes = data.read_bytes
        if row.written_bytes != data.written_bytes:
            row.written_bytes = data.written_bytes
        row.finished_position = position
    if data.manifest is not None and holds_too(row.keys, Register.STAGED, key, first=Register.FINISHED):
        row.staged_at = event.time
        row.staged_position = position
    if data.node is not None and holds_too(row.keys, Register.NODE, key, first=Register.FINISHED):
        row.node = data.node


def on_commit_granted(
    row: AttemptFacts, key: StoredKey, event: Event, data: payloads.CommitGranted, position: int
) -> None:
    """Its outputs are those of the package."""
    if holds(row.keys, Register.GRANTED, key):
        row.granted_at = event.time


def on_outputs_stored(
    row: AttemptFacts, key: StoredKey, event: Event, data: file_payloads.OutputsStored, position: int
) -> None:
    """Its outputs were copied to stores; where a copy failed, this is told again after the next try."""
    if holds(row.keys, Register.STORED, key):
        row.stored_at, row.copies, row.failed_copies = event.time, len(data.copies), len(data.failed)


def on_outputs_disposed(
    row: AttemptFacts, key: StoredKey, event: Event, data: file_payloads.OutputsDisposed, position: int
) -> None:
    """Nobody needs its deletable outputs any more."""
    if holds(row.keys, Register.DISPOSED, key):
        row.disposed_at = event.time


# --- packages -------------------------------------------------------------------------------------------------------


_OF_AN_EPOCH = (
    Register.BOUND, Register.CANCELLED, Register.ABORTED, Register.CLEARED, Register.OPENED, Register.REPLICAS,
)  # fmt: skip


def open_epoch(row: PackageFacts, epoch: int) -> bool:
    """Tell whether facts of an epoch count; a higher epoch resets those of the earlier ones."""
    if epoch == row.epoch:
        return True
    if epoch < row.epoch:
        return False
    row.epoch = epoch
    row.bound_site = row.bound_at = row.cancelled_at = row.aborted_at = row.cleared_at = row.opened_at = None
    row.cause = row.cause_message = row.upstream = row.cleared_by = None
    row.replicas = 0
    for register in _OF_AN_EPOCH:
        row.keys.pop(register, None)
    return True


def on_package_registered(row: PackageFacts, key: StoredKey, event: Event, data: payloads.PackageRegistered) -> None:
    """The package exists, whatever the shape of its job says."""
    if takes(row.keys, Register.REGISTERED, key):
        row.registered_at = event.time
        row.registered_activity = data.activity


def on_bound(row: PackageFacts, key: StoredKey, event: Event, data: payloads.Bound) -> None:
    """Reserved for a site."""
    if takes(row.keys, Register.BOUND, key):
        row.bound_site, row.bound_at = data.site, event.time


def on_unbound(row: PackageFacts, key: StoredKey, event: Event, data: payloads.Unbound) -> None:
    """The reservation was released."""
    if takes(row.keys, Register.BOUND, key):
        row.bound_site = row.bound_at = None


def on_cancel_accepted(row: PackageFacts, key: StoredKey, event: Event, data: payloads.CancelAccepted) -> None:
    """Cancelled."""
    if takes(row.keys, Register.CANCELLED, key):
        row.cancelled_at = event.time


def on_aborted(row: PackageFacts, key: StoredKey, event: Event, data: payloads.Aborted) -> None:
    """Aborted."""
    if takes(row.keys, Register.ABORTED, key):
        row.aborted_at, row.cause = event.time, data.cause
        row.cause_message, row.upstream = data.message or None, data.upstream


def on_cleared(row: PackageFacts, key: StoredKey, event: Event, data: payloads.Cleared) -> None:
    """Its outputs were handed over, or removed."""
    if takes(row.keys, Register.CLEARED, key):
        row.cleared_at, row.cleared_by = event.time, data.by


def on_restarted(row: PackageFacts, key: StoredKey, event: Event, data: payloads.Restarted) -> None:
    """A new epoch."""
    if takes(row.keys, Register.OPENED, key):
        row.opened_at = event.time


def on_replica_wanted(row: PackageFacts, key: StoredKey, event: Event, data: payloads.ReplicaWanted) -> None:
    """So many attempts are to run beside the first one."""
    if takes(row.keys, Register.REPLICAS, key):
        row.replicas = data.replicas


def on_held(row: PackageFacts, key: StoredKey, event: Event, data: payloads.Held | payloads.Released) -> None:
    """Held or released: the operation with the higher number counts, in any epoch."""
    if takes(row.keys, Register.HOLD, (data.operation, *key[1:])):
        row.held, row.hold_set_at = int(isinstance(data, payloads.Held)), event.time


def on_dropped(row: PackageFacts, key: StoredKey, event: Event, data: payloads.Dropped | payloads.Restored) -> None:
    """Dropped or restored, also by operation number."""
    if takes(row.keys, Register.DROP, (data.operation, *key[1:])):
        row.dropped = int(isinstance(data, payloads.Dropped))


def on_tagged(tags: dict[str, tuple[str, StoredKey]], key: StoredKey, name: str, value: str) -> bool:
    """Set a tag of a job or a package; returns whether this value counts."""
    before = tags.get(name)
    if before is not None and before[1] >= key:
        return False
    tags[name] = (value, key)
    return True


def tags_of(tags: Mapping[str, tuple[str, StoredKey]]) -> dict[str, str]:
    """The values of tags, without their keys."""
    return {name: tags[name][0] for name in sorted(tags)}


def read_tags(text: str) -> dict[str, tuple[str, StoredKey]]:
    """Decode the stored tags of a job."""
    return _tags.decode(text)


# --- jobs -----------------------------------------------------------------------------------------------------------


def open_job_epoch(row: JobRow, keys: Keys, epoch: int) -> bool:
    """Like `open_epoch`, for a job; its acceptance holds for every epoch."""
    if epoch == row.epoch:
        return True
    if epoch < row.epoch:
        return False
    row.epoch = epoch
    row.cancelled_at = row.aborted_at = row.cleared_at = row.opened_at = None
    row.cause = row.cause_message = row.cleared_by = None
    for register in (Register.CANCELLED, Register.ABORTED, Register.CLEARED, Register.OPENED):
        keys.pop(register, None)
    return True


def on_job_held(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.Held | payloads.Released) -> None:
    """Like `on_held`, for a job."""
    if takes(keys, Register.HOLD, (data.operation, *key[1:])):
        row.held = int(isinstance(data, payloads.Held))


def on_forecast(
    row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.ForecastMade | payloads.ForecastScored
) -> None:
    """The end of the job was forecast; or it is over, and no forecast holds any more."""
    if takes(keys, Register.FORECAST, key):
        if isinstance(data, payloads.ForecastMade):
            row.forecast = written_forecast(JobForecast(made_at=event.time, made=data))
        else:
            row.forecast = ""


def on_healing_learned(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: HealingLearned) -> None:
    """Healing recorded what it knows of the job."""
    if takes(keys, Register.HEALING, key):
        row.healing = written_healing(JobHealing(learned_at=event.time, learned=data))


def on_activity(
    row: JobRow, keys: Keys, key: StoredKey, event: Event, data: ActivityStopped | ActivityReopened
) -> None:
    """An activity was stopped or opened again: of each activity, the operation with the highest number counts."""
    stopped = isinstance(data, ActivityStopped)
    standing = ActivityStanding(
        stopped=stopped,
        at=event.time,
        operation=data.operation,
        failed_attempts=data.failed_attempts if isinstance(data, ActivityStopped) else 0,
        failed_packages=data.failed_packages if isinstance(data, ActivityStopped) else 0,
        message=data.message,
    )
    row.activities = with_activity(row.activities, data.activity, standing, (data.operation, *key[1:]))


def on_job_registered(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.JobRegistered) -> None:
    """A job exists."""
    if takes(keys, Register.REGISTERED, key):
        row.name = data.name
        row.parent = data.parent
        row.submitted_at = event.time
        row.definition = data.definition
        row.expander_version = data.expander_version
        row.growth = _text(data.growth)
        row.lists = _text(dict(sorted(data.lists.items())))
    if takes(keys, Register.OWNER, key):
        row.owner = data.owner


def on_job_accepted(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.JobAccepted) -> None:
    """The job was accepted: its packages wait."""
    if takes(keys, Register.ACCEPTED, key):
        row.accepted_at = event.time


def on_owner_set(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.OwnerSet) -> None:
    """The job has another owner."""
    if takes(keys, Register.OWNER, key):
        row.owner = data.owner


def on_access_set(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.AccessSet) -> None:
    """The job has another access list."""
    if takes(keys, Register.ACCESS, key):
        row.access = _text(data.rules)


def on_job_cancelled(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.CancelAccepted) -> None:
    """The whole job is cancelled."""
    if takes(keys, Register.CANCELLED, key):
        row.cancelled_at = event.time


def on_job_aborted(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.Aborted) -> None:
    """The whole job was aborted."""
    if takes(keys, Register.ABORTED, key):
        row.aborted_at, row.cause, row.cause_message = event.time, data.cause, data.message or None


def on_job_cleared(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.Cleared) -> None:
    """All outputs were handed over, or expired."""
    if takes(keys, Register.CLEARED, key):
        row.cleared_at, row.cleared_by = event.time, data.by


def on_job_restarted(row: JobRow, keys: Keys, key: StoredKey, event: Event, data: payloads.Restarted) -> None:
    """The job goes on in a new epoch."""
    if takes(keys, Register.OPENED, key):
        row.opened_at = event.time


_RUNS = (
    payloads.AttemptStarted,
    payloads.AttemptSuspected,
    payloads.AttemptRecovered,
    payloads.PhaseEntered,
    payloads.OutputsStaged,
    payloads.AttemptFinished,
    payloads.CommitGranted,
)


def on_anything_run(row: JobRow, event: Event, data: payloads.Payload) -> None:
    """Set when the job first ran, if the event shows that an attempt ran; called only for an earlier time."""
    if isinstance(data, _RUNS) or (isinstance(data, payloads.AttemptCreated) and data.lease_seconds is not None):
        row.started_at = event.time


# --- pilots, nodes, sites -------------------------------------------------------------------------------------------


def on_pilot(row: PilotRow, keys: Keys, key: StoredKey, event: Event, data: payloads.Payload) -> None:
    """A pilot was requested, started, or ended."""
    if isinstance(data, payloads.PilotEnded):
        if takes(keys, Register.ENDED, key):
            row.ended_at, row.reason, row.stderr = event.time, data.reason, data.stderr or None
        return
    if isinstance(data, payloads.PilotRequested):
        _on_requested(row, keys, key, event, data)
    elif not isinstance(data, payloads.PilotStarted):
        return
    elif takes(keys, Register.SPOKE, key):
        row.started_at, row.node, row.request = event.time, data.node, data.request
    if takes(keys, Register.PILOT, key):
        row.site, row.slots = data.site, data.slots


def _on_requested(row: PilotRow, keys: Keys, key: StoredKey, event: Event, data: payloads.PilotRequested) -> None:
    """A pilot is requested, and requested again with its native id once it is submitted."""
    if data.native_id is None:
        if takes(keys, Register.REQUESTED, key):
            row.requested_at = event.time
    elif takes(keys, Register.SUBMITTED, key):
        row.submitted_at, row.native_id = event.time, data.native_id
        if Register.REQUESTED not in keys:
            row.requested_at = event.time


def on_node_described(row: NodeRow, keys: Keys, key: StoredKey, event: Event, data: payloads.NodeDescribed) -> None:
    """An agent described its computer."""
    if takes(keys, Register.DESCRIBED, key):
        row.site = data.site or event.site
        row.cores, row.memory_bytes, row.system = data.cores, data.memory_bytes, data.system
        row.software = _text(dict(sorted(data.software.items())))
        row.environment = _text(dict(sorted(data.environment.items())))
        row.os_release, row.kernel, row.cpu_model, row.libc = data.os_release, data.kernel, data.cpu_model, data.libc


def on_incidents_learned(row: KnowledgeRow, keys: Keys, key: StoredKey, event: Event, data: IncidentsLearned) -> None:
    """The engine recorded the history of incidents of all jobs."""
    if takes(keys, Register.LEARNED, key):
        row.at, row.learned = event.time, data.learned


def _text(value: object) -> str:
    return _json.encode(value).decode()
