"""A core from the book: every job that is not over for good, as it is laid out, with what was decided about it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pilotage.book.codec import Codec
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.rows import JobRow, PilotRow, StreamRow
from pilotage.book.rows.streams import heard_by, highest_of, size, stream_row
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.restore import JobSnapshot, Snapshot, ended_pilots, holds_in, next_number
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.ports import Journal
from pilotage.service.core import Core, start_core
from pilotage.service.errors import NotRunning
from pilotage.service.jobs.active_jobs import ActiveJobs
from pilotage.service.jobs.driver import Driver
from pilotage.service.messages import Stopping

if TYPE_CHECKING:
    from pilotage.service.sites.pool import SiteWorkers

_PILOTS_AT_ONCE = 10_000


def start_from(
    journal: Journal,
    jobs: ActiveJobs,
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
    fill_stream_gaps(journal, decided)
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


def fill_stream_gaps(journal: Journal, streams: Sequence[StreamRow]) -> None:
    """Count all numbers below the highest of the stream of decisions as heard: none of them is given to a decision any more.

    Jobs that were loaded leave holes there, and a stream with holes costs more with every batch.
    """
    for row in streams:
        if row.stream == ENGINE_STREAM and (missing := (last := highest_of(row)) - size(heard_by(row))):
            with journal.transaction() as ledger:
                ledger.write(Changes(streams=[stream_row(row, [(1, last)])], forgotten=missing))


def snapshot_of(journal: Journal, jobs: ActiveJobs, job: str) -> tuple[JobSnapshot, frozenset[str]] | None:
    """A job that the engine has let go of, as the book has it, and the pilots that are known to be over."""
    row, at_work = journal.job(job), jobs.get(job)
    if row is None or at_work is None:
        return None
    return _snapshot(journal, row, at_work.plan), frozenset(ended_pilots(_pilots(journal)))


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


# The end of a service in good order: what the engine has to say last is said while somebody can still carry it out.

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
WITHDRAW_SECONDS = 8.0
"""How long the agents of sites are waited for, which are to hear what must leave their queues: about as long as they wait."""


def stop_requesting_pilots(driver: Driver) -> None:
    """Have it written down how sites stand, and pilots withdrawn that have not come; a book that hangs is not awaited."""
    if not driver.alive:
        return
    try:
        driver.tell(lambda token: Stopping(token=token)).result(STOP_SECONDS)
        driver.ask(lambda _: None).result(STOP_SECONDS)  # by then all sites have been told what to do
    except (NotRunning, TimeoutError):
        log.warning("the engine does not answer: pilots that have not come are not withdrawn")


class Shutdown:
    """The first part of an end, while agents are still answered; it is done once, whoever asks for it."""

    def __init__(self, driver: Driver, workers: SiteWorkers) -> None:
        """Take what is to end."""
        self._driver = driver
        self._workers = workers
        self._begun = False

    def down(self, *, patience_seconds: float = WITHDRAW_SECONDS) -> None:
        """Have pilots withdrawn that have not come, and wait until the agents of sites have heard of it, but not for long."""
        if self._begun:
            return
        self._begun = True
        if self._driver.alive:
            stop_requesting_pilots(self._driver)
            self._workers.withdraw(patience_seconds=patience_seconds)
