"""Checks records that others made, uploaded or imported: nothing that a record says of its job is believed unchecked."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.model.records import JobRecord
from pilotage.provenance.assembly import NotADump, verify
from pilotage.provenance.history import History, UnreadableRecord, history_of


def verify_foreign(record: JobRecord, read_part: Callable[[str], bytes]) -> History:
    """The history of a record. Raises `NotADump` unless its parts are the whole life of the job, and tell of it what the record does."""
    verify(record, read_part)
    try:
        history = history_of(record, read_part)
        next(history.packages(), None)
    except (UnreadableRecord, RecursionError) as fault:
        raise NotADump(f"the record cannot be understood: {fault}", subject=f"job {record.job}") from None
    job = history.job
    told = (job.owner, job.name, job.state, job.tags, job.submitted_at, job.ended_at)
    if told != (record.owner, record.name, record.state, record.tags, record.submitted_at, record.ended_at):
        raise NotADump("the record says of the job what its life log does not", subject=f"job {record.job}")
    return history
