"""Operations of people on jobs: accepted as decisions, or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.engine.decisions.attempts import replicas_max
from pilotage.engine.decisions.completion import judge
from pilotage.engine.decisions.job_lifecycle import kill
from pilotage.engine.decisions.lost_pilots import mark_lost
from pilotage.engine.engine_state import EngineState
from pilotage.engine.retry.policy import DROPPED, RESCHEDULED, lacked_input
from pilotage.engine.state.job_queries import is_over, is_stopped, live_attempts, lost_stages, packages_of, status_of
from pilotage.engine.state.jobs import FINAL, STATUS_NAMES, JobState, PackageStatus, template_of
from pilotage.engine.transitions.early_start import is_read_early
from pilotage.model.errors import did_you_mean
from pilotage.model.events import payloads
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.healing_payloads import ActivityReopened
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    Clear,
    Drop,
    DropFiles,
    Hold,
    HoldResults,
    Kill,
    Refused,
    RefusedCode,
    Release,
    Remake,
    Replicate,
    Reschedule,
    Restart,
    Restore,
)
from pilotage.model.states import RestartCause
from pilotage.model.texts import REPLICAS_MAX, after_a_stop, clipped

_CLEARED = "a cleared job must be restored from the book first"


class _Refusal(Exception):
    def __init__(self, code: RefusedCode, message: str, *, subject: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.refused = Refused(code=code, message=message, subject=subject, next_step=next_step)


def operate(state: EngineState, operation: AnyOperation) -> Accepted | Refused:
    """Carry out an operation as decisions, or refuse it. A refused operation has written nothing."""
    first = state.log.next_number
    try:
        job = state.jobs.by_id.get(operation.job)
        if job is None:
            hint = did_you_mean(operation.job, state.jobs.by_id) or _CLEARED
            raise _Refusal("unknown-job", f"no job is called {operation.job!r}", subject=operation.job, next_step=hint)
        match operation:
            case Kill():
                _kill(state, job, operation)
            case Hold():
                _hold(state, job, operation)
            case Release():
                _release(state, job, operation)
            case Drop():
                _drop(state, job, operation)
            case Restore():
                _restore(state, job, operation)
            case Restart():
                _restart(state, job, operation)
            case Reschedule():
                _reschedule(state, job, operation)
            case Replicate():
                _replicate(state, job, operation)
            case Clear():
                _clear(state, job, operation)
    except _Refusal as refusal:
        return refusal.refused
    return Accepted(operation=first, events=state.log.next_number - first)


def _package(job: JobState, dotted: str) -> int:
    place = parse_dotted(dotted)
    number = job.number((place.stage, place.line, place.number)) if place is not None else None
    if number is None:
        message = f"the job {job.id} has no package {dotted!r}"
        raise _Refusal("unknown-package", message, subject=dotted, next_step="packages are named stage.line.n, from 1")
    return number


def _line(job: JobState, stage: int, line: int) -> list[int]:
    numbers: list[int] = []
    while (number := job.number((stage, line, len(numbers) + 1))) is not None:
        numbers.append(number)
    if not numbers:
        raise _Refusal("unknown-line", f"the job {job.id} has no line {stage}.{line}", subject=f"{stage}.{line}")
    return numbers


def _refuse_if_over(job: JobState) -> None:
    if job.cancelled or job.aborted:
        how = "cancelled" if job.cancelled else "given up"
        raise _Refusal("job-over", f"the job {job.id} was {how}", subject=job.id, next_step="restart it first")


def _refuse_if_all_over(job: JobState) -> None:
    if not job.unfinished and not job.late:
        raise _Refusal("job-over", f"every package of the job {job.id} is over", subject=job.id)


def _kill(state: EngineState, job: JobState, operation: Kill) -> None:
    message = clipped(operation.message)
    if operation.package:
        number = _package(job, operation.package)
        _refuse_if_package_over(job, number, operation.package)
        state.log.write(payloads.CancelAccepted(message=message), job=job, number=number, epoch=job.epoch_of(number))
        return
    _refuse_if_over(job)
    if operation.stage:
        _kill_line(state, job, operation, message)
        return
    _refuse_if_all_over(job)
    kill(state, job, message)


def _kill_line(state: EngineState, job: JobState, operation: Kill, message: str) -> None:
    name = f"{operation.stage}.{operation.line}"
    left = [number for number in _line(job, operation.stage, operation.line) if not job.is_final(number)]
    if not left:
        raise _Refusal("line-over", f"every package of the line {name} is over", subject=name)
    for number in left:
        state.log.write(payloads.CancelAccepted(message=message), job=job, number=number, epoch=job.epoch_of(number))


def _refuse_if_package_over(job: JobState, number: int, dotted: str) -> None:
    if job.is_final(number):
        status = STATUS_NAMES[job.status[number]]
        raise _Refusal("package-over", f"{dotted} is over: {status}", subject=dotted, next_step="restart it")


def _hold(state: EngineState, job: JobState, operation: Hold) -> None:
    held = payloads.Held(operation=state.log.next_number, message=clipped(operation.message))
    if not operation.package:
        _refuse_if_over(job)
        if not isinstance(operation, HoldResults):
            _refuse_if_all_over(job)
        state.log.write(held, job=job)
        return
    number = _package(job, operation.package)
    _refuse_if_package_over(job, number, operation.package)
    state.log.write(held, job=job, number=number, epoch=job.epoch_of(number))


def _release(state: EngineState, job: JobState, operation: Release) -> None:
    released = payloads.Released(operation=state.log.next_number)
    if not operation.package:
        if not job.held:
            raise _Refusal("not-held", f"the job {job.id} is not held", subject=job.id)
        state.log.write(released, job=job)
        return
    number = _package(job, operation.package)
    work = job.work.get(number)
    if work is None or not work.held:
        raise _Refusal("not-held", f"{operation.package} is not held", subject=operation.package)
    state.log.write(released, job=job, number=number, epoch=job.epoch_of(number))


def _drop(state: EngineState, job: JobState, operation: Drop) -> None:
    _refuse_if_over(job)
    numbers = _line(job, operation.stage, operation.line)
    if not all((work := job.work.get(number)) is not None and work.dropped for number in numbers):
        if not operation.force:
            _refuse_if_read(job, numbers, operation)
        _drop_packages(state, job, numbers)
    elif not operation.remove_files:
        raise _Refusal("dropped", f"the line {operation.stage}.{operation.line} is dropped already", subject=job.id)
    if operation.remove_files:
        _order_removal(state, job, numbers, operation)


def _drop_packages(state: EngineState, job: JobState, numbers: list[int]) -> None:
    revision = state.log.next_number
    for number in numbers:
        work = job.work.get(number)
        for attempt in list(work.attempts.values()) if work is not None else ():
            mark_lost(state, attempt, reason=DROPPED, message="its line was dropped")
        dropped = payloads.Dropped(operation=revision)
        state.log.write(dropped, job=job, number=number, epoch=job.epoch_of(number))


def _order_removal(state: EngineState, job: JobState, numbers: list[int], operation: Drop) -> None:
    """Void the outputs of a line unless a package is reading them: once restored, the line makes them again.

    The last package of the line goes first, so that no consumer within the line can come back with voided inputs and win.
    """
    by, fileless = (operation.by, operation.fileless) if isinstance(operation, DropFiles) else ("", ())
    own = set(numbers)
    for number in reversed(numbers):
        dotted = job.dotted(number)
        if not job.granted[number] or dotted in fileless or next(readers(job, number, own), None) is not None:
            continue
        remade = payloads.Restarted(cause="remake", message=f"its input from {dotted} is removed")
        for consumer in job.consumers(number):
            if (work := job.work.get(consumer)) is not None and (work.attempts or work.candidates) and consumer in own:
                state.log.write(remade, job=job, number=consumer, epoch=job.epoch_of(consumer) + 1)
        ordered, epoch = payloads.RemovalOrdered(by=by), job.epoch_of(number)
        state.log.write(ordered, job=job, number=number, attempt=job.granted[number], epoch=epoch)
        voided = payloads.Restarted(cause="remake", message="its line was dropped, and its outputs are removed")
        state.log.write(voided, job=job, number=number, epoch=epoch + 1)


def readers(job: JobState, number: int, own: set[int]) -> Iterator[int]:
    """Packages outside a line that may be reading outputs of one of its packages."""
    for consumer in job.consumers(number):
        if consumer not in own and (work := job.work.get(consumer)) is not None and work.attempts:
            yield consumer


def _refuse_if_read(job: JobState, numbers: list[int], operation: Drop) -> None:
    """Refuse to drop a line if a package has read its outputs: results made from them stay."""
    own = set(numbers)
    options = "--force --remove-files" if operation.remove_files else "--force"
    line = f"{job.id} {operation.stage}.{operation.line}"
    hint = f"to leave it out for later packages anyway: pilotage drop {options} {line}"
    for number in numbers:
        if not job.granted[number]:
            continue
        for consumer in started_consumers(job, number, own):
            name = job.dotted(consumer)
            message = f"{name} has read the outputs of {job.dotted(number)}, and its results stay"
            raise _Refusal("files-read", message, subject=name, next_step=hint)
        for stage in (late.stage for late in job.plan.laid_out if number in late.packages):
            message = f"stage {stage} was expanded from the outputs of {job.dotted(number)}, and stays as it is"
            raise _Refusal("files-read", message, subject=f"stage {stage}", next_step=hint)


def _restore(state: EngineState, job: JobState, operation: Restore) -> None:
    _refuse_if_over(job)
    numbers = _line(job, operation.stage, operation.line)
    dropped = [number for number in numbers if (work := job.work.get(number)) is not None and work.dropped]
    if not dropped:
        raise _Refusal("not-dropped", f"the line {operation.stage}.{operation.line} is not dropped", subject=job.id)
    own = set(numbers)
    for number in dropped:
        for consumer in started_consumers(job, number, own):
            name = job.dotted(consumer)
            message = (
                f"{name} has started and can no longer read the outputs of line {operation.stage}.{operation.line}"
            )
            hint = (
                f"restart {name} and kill it, restore the line, then restart {name}"
                if job.is_final(consumer)
                else f"wait for {name}, or kill it"
            )
            raise _Refusal("consumer-started", message, subject=name, next_step=hint)
        for stage in (late.stage for late in job.plan.laid_out if number in late.packages):
            message = f"stage {stage} is expanded already; line {operation.stage}.{operation.line} cannot change it"
            raise _Refusal("stage-laid-out", message, subject=f"stage {stage}")
    revision = state.log.next_number
    for number in dropped:
        restored = payloads.Restored(operation=revision)
        state.log.write(restored, job=job, number=number, epoch=job.epoch_of(number))


def started_consumers(job: JobState, number: int, own: set[int]) -> Iterator[int]:
    """Packages outside a line that started or finished without the outputs of one of its packages."""
    for consumer in job.consumers(number):
        if consumer in own:
            continue
        work = job.work.get(consumer)
        # An attempt in the queue of a batch system has fixed its inputs, like one with a lease.
        if job.status[consumer] == PackageStatus.DONE or (work is not None and (work.attempts or work.candidates)):
            yield consumer


def _restart(state: EngineState, job: JobState, operation: Restart) -> None:
    if operation.activity:
        _restart_activity(state, job, operation)
        return
    if isinstance(operation, Remake):
        _refuse_if_not_missed(job, operation)
    if operation.package:
        number = _package(job, operation.package)
        if (status := status_of(job, number)) < FINAL:
            message = f"{operation.package} is not over: {STATUS_NAMES[status]}"
            raise _Refusal(
                "package-unfinished", message, subject=operation.package, next_step="reschedule it, or kill it"
            )
        if not isinstance(operation, Remake):
            _refuse_if_stopped(job, number, operation.package)
        _refuse_if_being_read(job, number, operation.package)
        needed = _needed(job, number, operation.package)
        _refuse_if_never_expanded(job, number, operation.package)
        numbers = [each for each in sorted(needed) if job.status[each] > PackageStatus.DONE] + [number]
        if job.cancelled or job.aborted:
            _cancel_others(state, job, {*needed, number}, f"only {operation.package} was restarted")
    else:
        numbers = [number for number in range(job.count) if job.status[number] > PackageStatus.DONE]
        numbers = [number for number in numbers if job.status[number] != PackageStatus.UPSTREAM]
        if not numbers and not job.cancelled and not job.aborted:
            raise _Refusal("nothing-failed", f"nothing of the job {job.id} failed or was cancelled", subject=job.id)
    cause: RestartCause = "remake" if isinstance(operation, Remake) else "by-hand"
    restarted = payloads.Restarted(cause=cause, message=clipped(operation.message))
    if job.cancelled or job.aborted or job.cleared:
        state.log.write(restarted, job=job, epoch=job.epoch + 1)
    if operation.package:
        _fence_readers(state, job, _package(job, operation.package), operation.package)
    else:
        for activity in sorted(job.activities.stopped):
            _reopen(state, job, activity, operation.message)
    for number in numbers:
        state.log.write(restarted, job=job, number=number, epoch=job.epoch_of(number) + 1)


def _restart_activity(state: EngineState, job: JobState, operation: Restart) -> None:
    """Open a stopped activity again, and restart those of its packages that were aborted."""
    activity, subject = operation.activity, f"activity {operation.activity}"
    if operation.package:
        message = f"{operation.package} is a package: name it, or an activity, not both"
        raise _Refusal("unknown-package", message, subject=operation.package)
    known = {template.activity for template in job.plan.templates}
    if activity not in known:
        message = f"the job {job.id} has no activity {activity!r}"
        raise _Refusal("unknown-activity", message, subject=subject, next_step=did_you_mean(activity, known))
    if activity not in job.activities.stopped:
        stopped = ", ".join(sorted(job.activities.stopped)) or "none is"
        message = f"the activity {activity} of the job {job.id} is not stopped (stopped: {stopped})"
        hint = f"retry what failed: pilotage retry --failed {job.id}"
        raise _Refusal("not-stopped", message, subject=subject, next_step=hint)
    _refuse_if_over(job)
    message = clipped(operation.message) or f"its activity {activity} was opened again"
    restarted = payloads.Restarted(cause="by-hand", message=message)
    if job.cleared:
        state.log.write(restarted, job=job, epoch=job.epoch + 1)
    _reopen(state, job, activity, operation.message)
    for number in packages_of(job, activity):
        if job.status[number] == PackageStatus.ABORTED:
            state.log.write(restarted, job=job, number=number, epoch=job.epoch_of(number) + 1)


def _reopen(state: EngineState, job: JobState, activity: str, message: str) -> None:
    reopened = ActivityReopened(activity=activity, operation=state.log.next_number, message=clipped(message))
    state.log.write(reopened, job=job, epoch=job.epoch)


def _refuse_if_stopped(job: JobState, number: int, dotted: str) -> None:
    if is_stopped(job, number):
        activity = template_of(job, number).activity
        message = f"the activity {activity} of {dotted} was stopped: {job.activities.stopped[activity].message}"
        raise _Refusal("activity-stopped", message, subject=dotted, next_step=after_a_stop(job.id, activity))


def _refuse_if_not_missed(job: JobState, operation: Remake) -> None:
    """Refuse to make outputs again unless they count as made, and their reader failed without them and still waits.

    Each time takes a failure of the reader, and these have a limit: nothing is made again for ever.
    """
    _refuse_if_over(job)
    if job.status[_package(job, operation.package)] != PackageStatus.DONE:
        raise _Refusal("package-unfinished", f"{operation.package} is not done", subject=operation.package)
    number = _package(job, operation.reader)
    work = job.work.get(number)
    if job.is_final(number) or work is None or work.dropped or not lacked_input(work.failures):
        raise _Refusal("not-running", f"{operation.reader} does not wait for an input", subject=operation.reader)


def _needed(job: JobState, number: int, dotted: str) -> set[int]:
    """The packages that must be done before one can run. Those that were cancelled with a killed job come back.

    Any other package that will not be done is an obstacle, and is named.
    """
    needed: set[int] = set()
    waiting = [number]
    while waiting:
        for producer in job.awaited(waiting.pop()):
            if producer in needed or job.satisfied[producer]:
                continue
            if job.is_dead(producer) and not (job.cancelled and job.status[producer] == PackageStatus.CANCELLED):
                name = job.dotted(producer)
                message = f"{dotted} needs the outputs of {name}, which is {STATUS_NAMES[job.status[producer]]}"
                raise _Refusal("producer-over", message, subject=name, next_step=f"restart {name}, or drop its line")
            needed.add(producer)
            waiting.append(producer)
    return needed


def _cancel_others(state: EngineState, job: JobState, kept: set[int], message: str) -> None:
    """Cancel the unfinished packages of a finished job one by one: the job continues without them."""
    cancelled = payloads.CancelAccepted(message=message)
    for number in range(job.count):
        if job.status[number] < PackageStatus.DROPPED and number not in kept:
            state.log.write(cancelled, job=job, number=number, epoch=job.epoch_of(number))


def _refuse_if_never_expanded(job: JobState, number: int, dotted: str) -> None:
    """Refuse to restart a package that waits for a stage which cannot be expanded."""
    stages = job.plan.late_waits.get(int(job.plan.template_of[number]), ())
    lost = lost_stages(job) if stages and job.failed_producers else {}
    for stage in stages:
        if stage in lost:
            name = job.dotted(lost[stage])
            message = f"{dotted} waits for stage {stage}, which depends on {name}"
            raise _Refusal("producer-over", message, subject=name, next_step=f"restart {name}, or drop its line")


def _refuse_if_being_read(job: JobState, number: int, dotted: str) -> None:
    """Refuse to void outputs that an attempt is reading; lost attempts do not count."""
    if job.status[number] != PackageStatus.DONE:
        return
    for consumer in job.consumers(number):
        work = job.work.get(consumer)
        if work is not None and any(not attempt.lost for attempt in work.attempts.values()):
            name = job.dotted(consumer)
            message = f"{name} is reading outputs of {dotted}"
            raise _Refusal("consumer-started", message, subject=name, next_step=f"wait for {name}, or kill it")


def _fence_readers(state: EngineState, job: JobState, number: int, dotted: str) -> None:
    """Start a new epoch of every consumer with lost attempts: their inputs are void, and none of them may come back and win."""
    if job.status[number] != PackageStatus.DONE:
        return
    remade = payloads.Restarted(cause="remake", message=f"its input from {dotted} is made again")
    for consumer in job.consumers(number):
        if (work := job.work.get(consumer)) is not None and work.attempts:
            state.log.write(remade, job=job, number=consumer, epoch=job.epoch_of(consumer) + 1)


def _clear(state: EngineState, job: JobState, operation: Clear) -> None:
    if job.cleared:
        raise _Refusal("cleared", f"the job {job.id} is cleared already", subject=job.id)
    if not is_over(job):
        raise _Refusal("job-unfinished", f"the job {job.id} is not over", subject=job.id, next_step="wait, or kill it")
    state.log.write(payloads.Cleared(by=operation.by), job=job, epoch=job.epoch)


def _reschedule(state: EngineState, job: JobState, operation: Reschedule) -> None:
    _refuse_if_over(job)
    number = _package(job, operation.package)
    _refuse_if_package_over(job, number, operation.package)
    work = job.work.get(number)
    known = work.attempts.values() if work is not None else ()
    attempts = [each for each in known if not each.lost]
    if not attempts:
        raise _Refusal("not-running", f"no attempt of {operation.package} is under way", subject=operation.package)
    message = clipped(operation.message) or "it was rescheduled by hand"
    for attempt in attempts:
        mark_lost(state, attempt, reason=RESCHEDULED, message=message)


def _replicate(state: EngineState, job: JobState, operation: Replicate) -> None:
    _refuse_if_over(job)
    number = _package(job, operation.package)
    _refuse_if_package_over(job, number, operation.package)
    if template_of(job, number).side_effects:
        message = f"{operation.package} has side effects and never runs twice at once"
        raise _Refusal("side-effects", message, subject=operation.package)
    work = job.work.get(number)
    if work is None or not any(attempt.trusted for attempt in work.attempts.values()):
        raise _Refusal("not-running", f"no attempt of {operation.package} is under way", subject=operation.package)
    if (reader := number if work.ties else is_read_early(job, number)) is not None:
        message = f"{job.dotted(reader)} started early and reads from one attempt alone"
        hint = "wait until that attempt is over"
        raise _Refusal("consumer-started", message, subject=operation.package, next_step=hint)
    found = judge(state, job, work)
    if found is not None and found.action == "give-up":
        message = f"{operation.package} may not have another attempt: {found.message}"
        hint = "its current attempt is the last one; if it fails, retry it with `pilotage retry`"
        raise _Refusal("spent", message, subject=operation.package, next_step=hint)
    most = replicas_max(state, job, number)
    if live_attempts(work) >= most:
        message = f"{live_attempts(work)} attempts of {operation.package} are active or wanted, and the limit is {most}"
        raise _Refusal("too-many", message, subject=operation.package)
    if work.replicas >= REPLICAS_MAX:
        message = f"{work.replicas:,} further attempts of {operation.package} were requested already"
        raise _Refusal("too-many", message, subject=operation.package)
    wanted = payloads.ReplicaWanted(replicas=work.replicas + 1)
    state.log.write(wanted, job=job, number=number, epoch=job.epoch_of(number))
