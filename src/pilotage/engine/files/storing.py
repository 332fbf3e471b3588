"""Outputs that go to stores are copied there and verified before their package is granted: done implies stored."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.jobs import ActivePackage, JobState
from pilotage.engine.transitions.readiness import count_busy, reconsider
from pilotage.model.events import file_payloads, payloads
from pilotage.model.events.events import Event, parse_dotted
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import StoreOutputs
from pilotage.model.exchange.reports import OutputsCopied
from pilotage.model.texts import clipped

_FAILED_SHOWN_MAX = 5


def candidate_of(work: ActivePackage) -> int:
    """The candidate to be granted: the one whose outputs are stored, or being stored, or else the first."""
    for chosen in (work.stored, work.storing):
        if chosen in work.candidates:
            return chosen
    return min(work.candidates)


def await_copies(state: EngineState, job: JobState, work: ActivePackage, attempt: int) -> bool:
    """Whether the grant of a candidate must wait until its outputs are in their stores; requests the copies once."""
    if work.stored == attempt:
        return False
    if not work.refused and work.storing != attempt:
        work.storing = attempt
        ref = AttemptRef(job.id, job.dotted(work.number), attempt)
        state.log.effects.append(StoreOutputs(ref=ref))
        count_busy(state, job, work.number)
    return True


def on_outputs_copied(state: EngineState, report: OutputsCopied) -> None:
    """Record which copies are in their stores; if one failed, the package is held until a person releases it."""
    ref = report.ref
    job, place = state.jobs.by_id.get(ref.job), parse_dotted(ref.package)
    number = job.number((place.stage, place.line, place.number)) if job is not None and place is not None else None
    work = job.work.get(number) if job is not None and number is not None else None
    if job is None or number is None or work is None or work.storing != ref.attempt or job.is_final(number):
        return
    epoch = job.epoch_of(number)
    stored = file_payloads.OutputsStored(copies=report.copies, failed=report.failed)
    state.log.write(stored, job=job, number=number, attempt=ref.attempt, epoch=epoch)
    if report.failed and not work.held:
        held = payloads.Held(operation=state.log.next_number, message=work.refused)
        state.log.write(held, job=job, number=number, epoch=epoch)


def on_outputs_stored(
    state: EngineState, job: JobState, number: int, event: Event, data: file_payloads.OutputsStored
) -> None:
    """The outputs of a candidate are in their stores, or some copies failed."""
    work = job.work.get(number)
    if work is None or event.epoch != job.epoch_of(number) or event.attempt not in work.candidates:
        return
    work.storing = 0
    if state.healing.enabled:
        state.healing.copied(job, data)
    if data.failed:
        work.refused = why_not_stored(data)
    else:
        work.stored = event.attempt or 0
        state.pending.to_commit.append((job, number))
    reconsider(state, job, number)


def why_not_stored(data: file_payloads.OutputsStored) -> str:
    """Which copies failed, and why."""
    shown = [
        f"{each.name} to {each.locator} ({each.reason}{': ' + each.message if each.message else ''})"
        for each in data.failed[:_FAILED_SHOWN_MAX]
    ]
    more = f" and {len(data.failed) - _FAILED_SHOWN_MAX} more" if len(data.failed) > _FAILED_SHOWN_MAX else ""
    there = f"; {len(data.copies)} copies are there" if data.copies else ""
    return clipped(f"its outputs could not be stored: {', '.join(shown)}{more}{there}")
