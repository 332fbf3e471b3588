"""Deletable outputs go after their last consumer; a package that needs them again has exactly their producers run again."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.jobs import JobState, PackageStatus, template_of
from pilotage.model.events import file_payloads, payloads

_DISPOSED = file_payloads.OutputsDisposed()  # it carries no data


def dispose_outputs(state: EngineState) -> None:
    """Dispose of deletable outputs whose consumers are all done or dropped."""
    while state.files.to_dispose:
        job, number = state.files.to_dispose.popitem()[0]
        if _is_of_no_use(job, number):
            epoch, attempt = job.epoch_of(number), job.granted[number]
            state.log.write(_DISPOSED, job=job, number=number, attempt=attempt, epoch=epoch)


def _is_of_no_use(job: JobState, number: int) -> bool:
    if not job.disposed or job.disposed[number] or job.status[number] != PackageStatus.DONE:
        return False
    if not template_of(job, number).disposes_outputs or job.late:
        return False  # a stage that is not expanded may read them
    consumers = job.consumers(number)
    # Outputs that nobody reads are results: they stay until the job is cleared.
    return bool(consumers) and all(job.satisfied[consumer] for consumer in consumers)


def remake_disposed(state: EngineState) -> None:
    """Run the producers of packages again that need outputs which were disposed of, and in turn their producers."""
    while state.files.to_remake:
        job, number = state.files.to_remake.popitem()[0]
        if job.is_final(number) or job.status[number] == PackageStatus.DROPPED:
            continue
        name = job.dotted(number)
        for producer in job.producers(number):
            if job.disposed[producer] and job.status[producer] == PackageStatus.DONE:
                remade = payloads.Restarted(cause="remake", message=f"{name} needs its outputs, which were disposed of")
                state.log.write(remade, job=job, number=producer, epoch=job.epoch_of(producer) + 1)
