"""A core from the book: every job that is not over for good, as it is laid out, with what was decided about it."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.book.codec import Codec
from pilotage.book.ledger import Changes
from pilotage.book.ranges import heard_by, highest_of, size, stream_row
from pilotage.book.rows import JobRow, PilotRow, StreamRow
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.holds import holds_in
from pilotage.engine.restore import JobSnapshot, Snapshot, next_number, surely_gone
from pilotage.engine.settings import EngineSettings
from pilotage.model.plan import JobPlan
from pilotage.model.site import Site
from pilotage.ports import Journal
from pilotage.service.core import Core, start_core
from pilotage.service.running.at_work import JobsAtWork

_PILOTS_AT_ONCE = 10_000


def start_from(
    journal: Journal,
    jobs: JobsAtWork,
    *,
    sites: Sequence[Site],
    settings: EngineSettings,
    codec: Codec,
    now: float,
) -> Core:
    """The core that the book describes. A job without a definition is somebody else's, who only keeps book on it here."""
    snapshots = []
    for row in journal.live_jobs():
        at_work = jobs.get(row.job)
        if at_work is not None:
            snapshots.append(_snapshot(journal, row, at_work.plan))
    decided = list(journal.streams("service"))
    close_holes(journal, decided)
    pilots = _pilots(journal)
    snapshot = Snapshot(
        jobs=snapshots,
        pilots=pilots,
        sites=journal.sites(),
        next_n=next_number(decided),
        position=journal.position(),
    )
    live = {row.pilot for row in pilots if row.ended_at is None}  # the others are recalled when they speak
    streams = [row for row in journal.streams("agent") if row.stream in live]
    return start_core(snapshot, sites=sites, settings=settings, now=now, codec=codec, streams=streams)


def close_holes(journal: Journal, streams: Sequence[StreamRow]) -> None:
    """Count all numbers below the highest of the stream of decisions as heard: none of them is given to a decision any more.

    Jobs that were loaded leave holes there, and a stream with holes costs more with every batch.
    """
    for row in streams:
        if row.stream == ENGINE_STREAM and (missing := (last := highest_of(row)) - size(heard_by(row))):
            with journal.transaction() as ledger:
                ledger.write(Changes(streams=[stream_row(row, [(1, last)])], forgotten=missing))


def snapshot_of(journal: Journal, jobs: JobsAtWork, job: str) -> tuple[JobSnapshot, frozenset[str]] | None:
    """A job that the engine has let go of, as the book has it, and the pilots that are known to be over."""
    row, at_work = journal.job(job), jobs.get(job)
    if row is None or at_work is None:
        return None
    return _snapshot(journal, row, at_work.plan), frozenset(surely_gone(_pilots(journal)))


def _snapshot(journal: Journal, row: JobRow, plan: JobPlan) -> JobSnapshot:
    return JobSnapshot(
        row=row,
        plan=plan,
        finals=journal.finals(row),
        unfinished=journal.unfinished(row),
        holds=holds_in(row, journal.own_events),
    )


def _pilots(journal: Journal) -> list[PilotRow]:
    found: list[PilotRow] = []
    while page := journal.pilots(after=found[-1].pilot if found else "", limit=_PILOTS_AT_ONCE):
        found += page
    return found
