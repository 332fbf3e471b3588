"""Derives the states of packages and jobs, and when they entered them, from facts.

It depends on no order, clock or storage; derived values are stored beside their facts.

A later fact implies the earlier ones (a started attempt was queued, even if that event is missing); implied events are
listed in `inferred`. Only facts of the highest epoch count.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.book.rows.registers import Register, created_by
from pilotage.book.rows.rows import AttemptFacts, JobRow, PackageFacts, StateHistogram
from pilotage.model.states import ExitCodeGasw, State

_SUCCESS = ExitCodeGasw.SUCCESS.value

# State names as plain strings: these functions run for every event.
SUBMITTED, WAITING, READY, SCHEDULED, RUNNING, DONE, ABORTED, CANCELLED, CLEARED = (state.value for state in State)
COUNTERS: dict[str, str] = {state.value: state.value.lower() for state in State}


def default_state(job: JobRow) -> str:
    """The state of a package without events, or without anything of its own to wait for."""
    if job.cancelled_at is not None:
        return CANCELLED
    if job.aborted_at is not None:
        return ABORTED
    return WAITING if job.accepted_at is not None or job.epoch > 1 else SUBMITTED


def running_since(attempt: AttemptFacts) -> float | None:
    """Since when an attempt runs, by any fact that implies it."""
    if attempt.started_at is not None:
        return attempt.started_at
    if attempt.lease_seconds is not None:
        return attempt.created_at
    for time in (attempt.phase_at, attempt.suspected_at, attempt.recovered_at, attempt.staged_at):
        if time is not None:
            return time
    return None


def settle(row: PackageFacts, job: JobRow) -> None:
    """Derive all values of a package from its facts, its attempts and its job."""
    if row.aborted_at is None:
        row.cause = row.cause_message = None  # derived again below if it follows from the job
    if len(row.attempts) == 1:
        [(number, attempt)] = row.attempts.items()
        if attempt.epoch == row.epoch:
            settle_single(row, number, attempt, job)
            return
    settle_all(row, job)


def settle_single(row: PackageFacts, number: int, attempt: AttemptFacts, job: JobRow) -> None:
    """Like `settle_all`, for a package with one attempt, as most have: this runs for every event."""
    created, queued, granted = attempt.created_at, attempt.queued_at, attempt.granted_at
    running = attempt.started_at
    if running is None:
        running = created if attempt.lease_seconds is not None else running_since(attempt)
    row.started = 1 if running is not None or granted is not None or attempt.finished_at is not None else 0
    row.ready_at = created if row.bound_at is None else _earliest(row.bound_at, created)
    row.scheduled_at, row.running_at, row.done_at = queued, running, granted
    row.attempt, row.site, row.node = number, attempt.site, attempt.node
    row.exit_code, row.exit_message, row.reason = attempt.exit_code, attempt.exit_message, attempt.reason
    if attempt.lost_at is not None:
        row.reason = _reason(attempt)
    if row.cancelled_at is None and row.aborted_at is None and row.cleared_at is None:
        row.conflict = attempt.reused
        if granted is not None:
            row.state, row.entered_at = DONE, granted
        elif running is not None and attempt.finished_at is None and attempt.lost_at is None:
            row.state, row.entered_at = RUNNING, running
        else:
            _state(row, row.attempts, job)
    else:
        ends = (granted is not None) + (row.cancelled_at is not None) + (row.aborted_at is not None)
        row.conflict = int(ends > 1 or attempt.reused)
        _state(row, row.attempts, job)
    started = attempt.started_at is not None or attempt.lease_seconds is not None
    observed = created is not None and started and (granted is None or attempt.finished_at is not None)
    row.inferred = "" if observed else _inferred(row.attempts)


def settle_all(row: PackageFacts, job: JobRow) -> None:
    """Derive all values of a package with any number of attempts, in any epochs."""
    epoch = row.epoch
    row.started = 0
    shown: AttemptFacts | None = None
    number = granted = 0
    current: dict[int, AttemptFacts] = {}
    ready, scheduled, running = row.bound_at, None, None
    for n, attempt in row.attempts.items():
        since = running_since(attempt)
        if since is not None or attempt.finished_at is not None or attempt.granted_at is not None:
            row.started = 1
        if attempt.epoch != epoch:
            continue
        current[n] = attempt
        ready = _earliest(ready, attempt.created_at)
        scheduled = _earliest(scheduled, attempt.queued_at)
        running = _earliest(running, since)
        wins = attempt.granted_at is not None
        granted += wins
        # The granted attempt counts, or else the last; of two granted ones the later, and `conflict` is set.
        if shown is None or (wins, n) > (shown.granted_at is not None, number):
            shown, number = attempt, n
    row.ready_at, row.scheduled_at, row.running_at = ready, scheduled, running
    if shown is None:
        row.attempt = row.exit_code = row.exit_message = row.reason = row.node = row.done_at = None
        row.site = row.bound_site
    else:
        row.attempt, row.site, row.node, row.done_at = number, shown.site, shown.node, shown.granted_at
        row.exit_code, row.exit_message, row.reason = shown.exit_code, shown.exit_message, _reason(shown)
    ends = granted + (row.cancelled_at is not None) + (row.aborted_at is not None)
    row.conflict = int(ends > 1 or any(attempt.reused for attempt in current.values()))
    _state(row, current, job)
    row.inferred = _inferred(current) if current else ""


def _reason(attempt: AttemptFacts) -> str | None:
    """Why an attempt failed: the reason of its end, or of its loss if it has no end."""
    over = attempt.finished_at is not None or attempt.granted_at is not None
    return attempt.reason if over or attempt.lost_at is None else attempt.lost_reason


def _earliest(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _state(row: PackageFacts, current: Mapping[int, AttemptFacts], job: JobRow) -> None:
    if row.cleared_at is not None:
        row.state, row.entered_at = CLEARED, row.cleared_at
    elif row.done_at is not None:
        row.state, row.entered_at = DONE, row.done_at
    elif row.cancelled_at is not None:
        row.state, row.entered_at = CANCELLED, row.cancelled_at
    elif row.aborted_at is not None:
        row.state, row.entered_at = ABORTED, row.aborted_at
    elif current and (live := _live(current)) is not None:
        row.state, row.entered_at = live
    else:
        row.state, row.entered_at = _idle(row, current, job)


def _live(current: Mapping[int, AttemptFacts]) -> tuple[str, float | None] | None:
    """The most advanced state of the attempts that have not ended, and since when."""
    replaced = {attempt.replaces for attempt in current.values()} if len(current) > 1 else ()
    best = 0
    since: float | None = None
    time: float | None
    for number, attempt in current.items():
        if attempt.finished_at is not None:
            if attempt.exit_code != _SUCCESS:
                continue
            level, time = 3, running_since(attempt) or attempt.finished_at  # only a grant makes it DONE
        elif number in replaced or attempt.lost_at is not None:
            continue
        elif (time := running_since(attempt)) is not None:
            level = 3
        elif attempt.queued_at is not None:
            level, time = 2, attempt.queued_at
        else:
            level, time = 1, attempt.created_at
        if level > best:
            best, since = level, time
        elif level == best:
            since = _earliest(since, time)
    return ((READY, SCHEDULED, RUNNING)[best - 1], since) if best else None


def _idle(row: PackageFacts, current: Mapping[int, AttemptFacts], job: JobRow) -> tuple[str, float | None]:
    if job.cancelled_at is not None:
        return CANCELLED, job.cancelled_at
    if job.aborted_at is not None:
        row.cause, row.cause_message = job.cause, job.cause_message
        return ABORTED, job.aborted_at
    if row.bound_at is not None and not _used(row, current):
        return READY, row.bound_at
    if current:
        ends = [a.finished_at if a.finished_at is not None else a.lost_at for a in current.values()]
        return WAITING, max((end for end in ends if end is not None), default=None)
    if row.opened_at is not None:
        return WAITING, row.opened_at
    if job.accepted_at is not None:
        return WAITING, job.accepted_at
    # A package with such facts was accepted, even if that event is missing.
    moved = row.epoch > 1 or job.epoch > 1 or row.attempts or Register.BOUND in row.keys
    return (WAITING, None) if moved else (SUBMITTED, job.submitted_at)


def _used(row: PackageFacts, current: Mapping[int, AttemptFacts]) -> bool:
    """Tell whether an attempt was created after the reservation, and used it up."""
    bound = row.keys[Register.BOUND]
    return any((created_by(attempt) or bound) > bound for attempt in current.values())


def _inferred(current: Mapping[int, AttemptFacts]) -> str:
    missing = set()
    for attempt in current.values():
        if attempt.created_at is None:
            missing.add("AttemptCreated")
        over = attempt.finished_at is not None or attempt.granted_at is not None
        beyond = over or attempt.phase_at is not None or attempt.staged_at is not None
        if beyond and attempt.started_at is None and attempt.lease_seconds is None:
            missing.add("AttemptStarted")
        if attempt.granted_at is not None and attempt.finished_at is None:
            missing.add("AttemptFinished")
    return " ".join(sorted(missing)) if missing else ""


def compound_state(counts: StateHistogram, *, job: JobRow, late: int) -> str:
    """The state of a line, a stage or a job from the histogram of its packages: the first rule that holds.

    `late` is the number of its stages that are not expanded yet.
    """
    if counts.running:
        return RUNNING
    started = counts.started > 0
    over = job.cancelled_at is not None or job.aborted_at is not None
    if job.accepted_at is None and job.epoch == 1 and not started and not over and not _moved(counts):
        return SUBMITTED
    movable = counts.submitted + counts.waiting + counts.ready + counts.scheduled + (0 if over else late)
    known = movable + counts.done + counts.aborted + counts.cancelled + counts.cleared + counts.dropped
    if movable or (not known and not over and job.cleared_at is None):
        return RUNNING if started else WAITING
    if job.cancelled_at is not None:
        return CANCELLED
    if job.cleared_at is not None or (counts.cleared and not counts.done + counts.aborted + counts.cancelled):
        return CLEARED
    return DONE if counts.succeeded else ABORTED


def _moved(counts: StateHistogram) -> int:
    """Number of packages beyond SUBMITTED: if any, the job was accepted, even if that event is missing."""
    ended = counts.done + counts.aborted + counts.cancelled + counts.cleared
    return counts.waiting + counts.ready + counts.scheduled + ended


def settle_job(row: JobRow) -> None:
    """Derive the state of a job, when it entered it, and its failed count."""
    row.failed = row.aborted + row.cancelled
    row.state = compound_state(row, job=row, late=row.late)
    match row.state:
        case "SUBMITTED":
            row.entered_at = row.submitted_at
        case "WAITING":
            row.entered_at = _latest(row.accepted_at, row.opened_at)
        case "RUNNING":
            row.entered_at = row.started_at
        case "CANCELLED":
            row.entered_at = _latest(row.cancelled_at, row.finished_at)
        case "CLEARED":
            row.entered_at = row.cleared_at if row.cleared_at is not None else row.finished_at
        case _:
            row.entered_at = _latest(row.finished_at, row.aborted_at)


def _latest(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
