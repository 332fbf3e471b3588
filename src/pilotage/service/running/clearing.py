"""A finished job is cleared: its owner has the outputs, or their time is over. The engine has no part in it."""

from __future__ import annotations

import secrets

import msgspec

from pilotage.book.codec import Checked, Codec
from pilotage.model import payloads
from pilotage.model.events import Event
from pilotage.model.operations import Accepted, Refused, RefusedCode
from pilotage.model.outcomes import ClearedBy
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import Clock, Journal
from pilotage.service.keeper import Batch
from pilotage.service.running.errors import OperationRefused
from pilotage.service.writer import Writer


def clear_job(job: str, by: ClearedBy, *, journal: Journal, writer: Writer, codec: Codec, clock: Clock) -> Accepted:
    """Record it; returns when that is durable. Done again, it changes nothing. Raises `OperationRefused`."""
    row = journal.job(job)
    if row is None or row.state not in FINAL_NAMES:
        told = "no such job is here" if row is None else f"the job {job} is not over: {row.state}"
        code: RefusedCode = "unknown-job" if row is None else "job-unfinished"
        raise OperationRefused(Refused(code=code, message=told, subject=job, next_step="wait for its end, or kill it"))
    if row.cleared_at is not None:
        return Accepted(operation=0, events=0)
    # A stream of its own: nobody else counts in it.
    event = Event(
        source="service",
        stream=f"clear-{secrets.token_hex(6)}",
        n=1,
        type="Cleared",
        time=clock.now(),
        epoch=row.epoch,
        seen=journal.position(),
        job=job,
        data=msgspec.Raw(msgspec.json.encode(payloads.Cleared(by=by))),
    )
    checked = codec.check(event)
    assert isinstance(checked, Checked)
    writer.submit(Batch([checked], own=True)).result()
    return Accepted(operation=0, events=1)
