"""What people ask for: accepted as decisions, or refused with what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.engine.decisions.attempts import replicas_max
from pilotage.engine.decisions.completion import judge
from pilotage.engine.decisions.job_lifecycle import kill
from pilotage.engine.decisions.lost_pilots import mark_lost
from pilotage.engine.engine_state import EngineState
from pilotage.engine.retry.policy import DROPPED, RESCHEDULED
from pilotage.engine.state.job_queries import is_over, live_attempts, lost_stages, status_of
from pilotage.engine.state.jobs import FINAL, STATUS_NAMES, JobState, PackageStatus, template_of
from pilotage.model.errors import did_you_mean
from pilotage.model.events import payloads
from pilotage.model.events.events import parse_dotted
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
    Replicate,
    Reschedule,
    Restart,
    Restore,
)
from pilotage.model.texts import REPLICAS_MAX, clipped

_AWAY = "a job that was cleared must be brought back from the book first"


class _Refusal(Exception):
    def __init__(self, code: RefusedCode, message: str, *, subject: str = "", next_step: str = "") -> None:
        super().__init__(message)
        self.told = Refused(code=code, message=message, subject=subject, next_step=next_step)


def operate(state: EngineState, operation: AnyOperation) -> Accepted | Refused:
    """Do what was asked, as decisions, or say why not. Nothing is half done: what is refused has written nothing."""
    first = state.log.next_number
    try:
        job = state.jobs.by_id.get(operation.job)
        if job is None:
            hint = did_you_mean(operation.job, state.jobs.by_id) or _AWAY
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
        return refusal.told
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


def _not_over(job: JobState) -> None:
    if job.cancelled or job.aborted:
        how = "cancelled" if job.cancelled else "given up"
        raise _Refusal("job-over", f"the job {job.id} was {how}", subject=job.id, next_step="restart it first")


def _something_left(job: JobState) -> None:
    if not job.unfinished and not job.late:
        raise _Refusal("job-over", f"everything of the job {job.id} is over", subject=job.id)


def _kill(state: EngineState, job: JobState, operation: Kill) -> None:
    message = clipped(operation.message)
    if operation.package:
        number = _package(job, operation.package)
        _unfinished(job, number, operation.package)
        state.log.write(payloads.CancelAccepted(message=message), job=job, number=number, epoch=job.epoch_of(number))
        return
    _not_over(job)
    if operation.stage:
        _kill_line(state, job, operation, message)
        return
    _something_left(job)
    kill(state, job, message)


def _kill_line(state: EngineState, job: JobState, operation: Kill, message: str) -> None:
    name = f"{operation.stage}.{operation.line}"
    left = [number for number in _line(job, operation.stage, operation.line) if not job.is_final(number)]
    if not left:
        raise _Refusal("line-over", f"everything of the line {name} is over", subject=name)
    for number in left:
        state.log.write(payloads.CancelAccepted(message=message), job=job, number=number, epoch=job.epoch_of(number))


def _unfinished(job: JobState, number: int, dotted: str) -> None:
    if job.is_final(number):
        status = STATUS_NAMES[job.status[number]]
        raise _Refusal("package-over", f"{dotted} is over: {status}", subject=dotted, next_step="restart it")


def _hold(state: EngineState, job: JobState, operation: Hold) -> None:
    held = payloads.Held(operation=state.log.next_number, message=clipped(operation.message))
    if not operation.package:
        _not_over(job)
        if not isinstance(operation, HoldResults):
            _something_left(job)
        state.log.write(held, job=job)
        return
    number = _package(job, operation.package)
    _unfinished(job, number, operation.package)
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
    _not_over(job)
    numbers = _line(job, operation.stage, operation.line)
    if not all((work := job.work.get(number)) is not None and work.dropped for number in numbers):
        if not operation.force:
            _nobody_read(job, numbers, operation)
        _leave_out(state, job, numbers)
    elif not operation.remove_files:
        raise _Refusal("dropped", f"the line {operation.stage}.{operation.line} is dropped already", subject=job.id)
    if operation.remove_files:
        _order_removal(state, job, numbers, operation)


def _leave_out(state: EngineState, job: JobState, numbers: list[int]) -> None:
    revision = state.log.next_number
    for number in numbers:
        work = job.work.get(number)
        for attempt in list(work.attempts.values()) if work is not None else ():
            mark_lost(state, attempt, reason=DROPPED, message="its line was dropped")
        dropped = payloads.Dropped(operation=revision)
        state.log.write(dropped, job=job, number=number, epoch=job.epoch_of(number))


def _order_removal(state: EngineState, job: JobState, numbers: list[int], operation: Drop) -> None:
    """What a line made counts no longer, unless somebody is reading it: taken back in, the line makes it anew.

    The last of the line goes first: who took something of an earlier one in it must not come back and win.
    """
    by, fileless = (operation.by, operation.fileless) if isinstance(operation, DropFiles) else ("", ())
    own = set(numbers)
    for number in reversed(numbers):
        dotted = job.dotted(number)
        if not job.granted[number] or dotted in fileless or next(readers(job, number, own), None) is not None:
            continue
        remade = payloads.Restarted(cause="remake", message=f"what it takes from {dotted} is removed")
        for consumer in job.consumers(number):
            if (work := job.work.get(consumer)) is not None and (work.attempts or work.candidates) and consumer in own:
                state.log.write(remade, job=job, number=consumer, epoch=job.epoch_of(consumer) + 1)
        ordered, epoch = payloads.RemovalOrdered(by=by), job.epoch_of(number)
        state.log.write(ordered, job=job, number=number, attempt=job.granted[number], epoch=epoch)
        voided = payloads.Restarted(cause="remake", message="its line was dropped, and what it made is removed")
        state.log.write(voided, job=job, number=number, epoch=epoch + 1)


def readers(job: JobState, number: int, own: set[int]) -> Iterator[int]:
    """The packages outside a line of which an attempt may be reading what one of it made."""
    for consumer in job.consumers(number):
        if consumer not in own and (work := job.work.get(consumer)) is not None and work.attempts:
            yield consumer


def _nobody_read(job: JobState, numbers: list[int], operation: Drop) -> None:
    """Refuse to drop a line of which somebody has read what it made: what was made of that stays, whatever is dropped."""
    own = set(numbers)
    options = "--force --remove-files" if operation.remove_files else "--force"
    line = f"{job.id} {operation.stage}.{operation.line}"
    hint = f"to leave it out for those that come all the same: pilotage drop {options} {line}"
    for number in numbers:
        if not job.granted[number]:
            continue
        for consumer in started_consumers(job, number, own):
            name = job.dotted(consumer)
            message = f"{name} has read what {job.dotted(number)} made, and what it makes of that stays"
            raise _Refusal("files-read", message, subject=name, next_step=hint)
        for stage in (late.stage for late in job.plan.laid_out if number in late.packages):
            message = f"stage {stage} was laid out with what {job.dotted(number)} made, and stays so"
            raise _Refusal("files-read", message, subject=f"stage {stage}", next_step=hint)


def _restore(state: EngineState, job: JobState, operation: Restore) -> None:
    _not_over(job)
    numbers = _line(job, operation.stage, operation.line)
    dropped = [number for number in numbers if (work := job.work.get(number)) is not None and work.dropped]
    if not dropped:
        raise _Refusal("not-dropped", f"the line {operation.stage}.{operation.line} is not dropped", subject=job.id)
    own = set(numbers)
    for number in dropped:
        for consumer in started_consumers(job, number, own):
            name = job.dotted(consumer)
            message = f"{name} has begun, and what the line {operation.stage}.{operation.line} makes cannot be given to it now"
            hint = (
                f"restart {name} and kill it, restore the line, then restart {name}"
                if job.is_final(consumer)
                else f"wait for {name}, or kill it"
            )
            raise _Refusal("consumer-started", message, subject=name, next_step=hint)
        for stage in (late.stage for late in job.plan.laid_out if number in late.packages):
            message = f"stage {stage} is laid out, and what the line {operation.stage}.{operation.line} makes cannot change it"
            raise _Refusal("stage-laid-out", message, subject=f"stage {stage}")
    revision = state.log.next_number
    for number in dropped:
        restored = payloads.Restored(operation=revision)
        state.log.write(restored, job=job, number=number, epoch=job.epoch_of(number))


def started_consumers(job: JobState, number: int, own: set[int]) -> Iterator[int]:
    """The packages outside a line that took what they wait for without one, and have begun or are done."""
    for consumer in job.consumers(number):
        if consumer in own:
            continue
        work = job.work.get(consumer)
        # An attempt in its batch system's queue has pinned its inputs as one that holds a lease has.
        if job.status[consumer] == PackageStatus.DONE or (work is not None and (work.attempts or work.candidates)):
            yield consumer


def _restart(state: EngineState, job: JobState, operation: Restart) -> None:
    if operation.package:
        number = _package(job, operation.package)
        if (status := status_of(job, number)) < FINAL:
            message = f"{operation.package} is not over: {STATUS_NAMES[status]}"
            raise _Refusal(
                "package-unfinished", message, subject=operation.package, next_step="reschedule it, or kill it"
            )
        _unread(job, number, operation.package)
        needed = _needed(job, number, operation.package)
        _known_one_day(job, number, operation.package)
        numbers = [each for each in sorted(needed) if job.status[each] > PackageStatus.DONE] + [number]
        if job.cancelled or job.aborted:
            _cancel_others(state, job, {*needed, number}, f"only {operation.package} was begun anew")
    else:
        numbers = [number for number in range(job.count) if job.status[number] > PackageStatus.DONE]
        numbers = [number for number in numbers if job.status[number] != PackageStatus.UPSTREAM]
        if not numbers and not job.cancelled and not job.aborted:
            raise _Refusal("nothing-failed", f"nothing of the job {job.id} failed or was cancelled", subject=job.id)
    restarted = payloads.Restarted(cause="by-hand", message=clipped(operation.message))
    if job.cancelled or job.aborted or job.cleared:
        state.log.write(restarted, job=job, epoch=job.epoch + 1)
    if operation.package:
        _fence_readers(state, job, _package(job, operation.package), operation.package)
    for number in numbers:
        state.log.write(restarted, job=job, number=number, epoch=job.epoch_of(number) + 1)


def _needed(job: JobState, number: int, dotted: str) -> set[int]:
    """The packages that must be done before one can run. Those that went with a job that was killed come back with it.

    Whatever else will make nothing is in its way, and is named.
    """
    needed: set[int] = set()
    waiting = [number]
    while waiting:
        for producer in job.awaited(waiting.pop()):
            if producer in needed or job.satisfied[producer]:
                continue
            if job.is_dead(producer) and not (job.cancelled and job.status[producer] == PackageStatus.CANCELLED):
                name = job.dotted(producer)
                message = f"{dotted} needs what {name} makes, which is {STATUS_NAMES[job.status[producer]]}"
                raise _Refusal("producer-over", message, subject=name, next_step=f"restart {name}, or drop its line")
            needed.add(producer)
            waiting.append(producer)
    return needed


def _cancel_others(state: EngineState, job: JobState, kept: set[int], message: str) -> None:
    """Cancel, one by one, what is not over of a job that is over as a whole: the job goes on, and they do not."""
    cancelled = payloads.CancelAccepted(message=message)
    for number in range(job.count):
        if job.status[number] < PackageStatus.DROPPED and number not in kept:
            state.log.write(cancelled, job=job, number=number, epoch=job.epoch_of(number))


def _known_one_day(job: JobState, number: int, dotted: str) -> None:
    """Refuse to begin what waits for a stage that will never be known as things stand."""
    stages = job.plan.late_waits.get(int(job.plan.template_of[number]), ())
    lost = lost_stages(job) if stages and job.dead_feeders else {}
    for stage in stages:
        if stage in lost:
            name = job.dotted(lost[stage])
            message = f"{dotted} waits for stage {stage}, which is made of what {name} makes"
            raise _Refusal("producer-over", message, subject=name, next_step=f"restart {name}, or drop its line")


def _unread(job: JobState, number: int, dotted: str) -> None:
    """Refuse to void outputs that somebody reads; what was lost is waited for by nobody, and reads for nobody."""
    if job.status[number] != PackageStatus.DONE:
        return
    for consumer in job.consumers(number):
        work = job.work.get(consumer)
        if work is not None and any(not attempt.lost for attempt in work.attempts.values()):
            name = job.dotted(consumer)
            message = f"{name} is reading what {dotted} made"
            raise _Refusal("consumer-started", message, subject=name, next_step=f"wait for {name}, or kill it")


def _fence_readers(state: EngineState, job: JobState, number: int, dotted: str) -> None:
    """Open an epoch of every consumer with lost attempts: what they took is void, and none of them may come back and win."""
    if job.status[number] != PackageStatus.DONE:
        return
    remade = payloads.Restarted(cause="remake", message=f"what it takes from {dotted} is made anew")
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
    _not_over(job)
    number = _package(job, operation.package)
    _unfinished(job, number, operation.package)
    work = job.work.get(number)
    known = work.attempts.values() if work is not None else ()
    attempts = [each for each in known if not each.lost]
    if not attempts:
        raise _Refusal("not-running", f"no attempt of {operation.package} is under way", subject=operation.package)
    message = clipped(operation.message) or "it was rescheduled by hand"
    for attempt in attempts:
        mark_lost(state, attempt, reason=RESCHEDULED, message=message)


def _replicate(state: EngineState, job: JobState, operation: Replicate) -> None:
    _not_over(job)
    number = _package(job, operation.package)
    _unfinished(job, number, operation.package)
    if template_of(job, number).side_effects:
        message = f"{operation.package} acts on the outside and is never run twice at once"
        raise _Refusal("side-effects", message, subject=operation.package)
    work = job.work.get(number)
    if work is None or not any(attempt.trusted for attempt in work.attempts.values()):
        raise _Refusal("not-running", f"no attempt of {operation.package} is under way", subject=operation.package)
    found = judge(state, job, work)
    if found is not None and found.action == "give-up":
        message = f"{operation.package} may not be tried once more: {found.message}"
        hint = "what runs of it is its last attempt; should that fail, retry it with `pilotage retry`"
        raise _Refusal("spent", message, subject=operation.package, next_step=hint)
    most = replicas_max(state, job, number)
    if live_attempts(work) >= most:
        message = f"{live_attempts(work)} attempts of {operation.package} are under way or wanted, and {most} may be"
        raise _Refusal("too-many", message, subject=operation.package)
    if work.replicas >= REPLICAS_MAX:
        message = f"{work.replicas:,} further attempts of {operation.package} were asked for already"
        raise _Refusal("too-many", message, subject=operation.package)
    wanted = payloads.ReplicaWanted(replicas=work.replicas + 1)
    state.log.write(wanted, job=job, number=number, epoch=job.epoch_of(number))
