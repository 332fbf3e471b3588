"""Restores the core from the book: every unfinished job, expanded, with all decisions about it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pilotage.book.codec import Codec
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.rows import INCIDENTS, CachedFileRow, JobRow, PilotRow, StreamRow
from pilotage.book.rows.streams import highest_of, received_ranges, size, stream_row
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.past_pilots import EndedPilots, ended_pilots
from pilotage.engine.restore import JobSnapshot, Snapshot, holds_in, next_number
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
FILES_AT_ONCE = 10_000


def start_from(
    journal: Journal,
    jobs: ActiveJobs,
    *,
    sites: Sequence[Site],
    settings: EngineSettings,
    codec: Codec,
    now: float,
) -> Core:
    """The core restored from the book. Jobs without a definition belong to another scheduler and are only recorded."""
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
        cached_files=cached_files(journal),
        incidents=incidents_of(journal),
        next_n=next_number(decided),
        position=journal.position(),
    )
    live = {row.pilot for row in pilots if row.ended_at is None}  # others when their agents connect
    streams = [row for row in journal.streams("agent") if row.stream in live]
    return start_core(snapshot, sites=sites, settings=settings, now=now, codec=codec, streams=streams)


def incidents_of(journal: Journal) -> str:
    """The history of incidents, as last recorded."""
    known = journal.knowledge(INCIDENTS)
    return known.learned if known is not None else ""


def cached_files(journal: Journal) -> Iterator[CachedFileRow]:
    """Every file in the cache of a site."""
    for site in journal.sites():
        after = ""
        while rows := journal.cached_files(site.site, after=after, limit=FILES_AT_ONCE):
            yield from rows
            after = rows[-1].digest


def fill_stream_gaps(journal: Journal, streams: Sequence[StreamRow]) -> None:
    """Mark all numbers below the highest of the decision stream as received: none is used again.

    Loaded jobs leave gaps in it, and a stream with gaps makes every batch more expensive.
    """
    for row in streams:
        if row.stream == ENGINE_STREAM and (missing := (last := highest_of(row)) - size(received_ranges(row))):
            with journal.transaction() as ledger:
                ledger.write(Changes(streams=[stream_row(row, [(1, last)])], forgotten=missing))


def snapshot_of(journal: Journal, jobs: ActiveJobs, job: str) -> tuple[JobSnapshot, EndedPilots] | None:
    """A job that the engine has released, as stored in the book, and the pilots known to have ended."""
    row, at_work = journal.job(job), jobs.get(job)
    if row is None or at_work is None:
        return None
    return _snapshot(journal, row, at_work.plan), ended_pilots(_pilots(journal))


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


# Shutdown: the engine's last decisions are carried out while agents are still answered.

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
WITHDRAW_SECONDS = 8.0
"""How long to wait for site agents, which must fetch cancellations: about as long as they wait between exchanges."""


def stop_requesting_pilots(driver: Driver) -> None:
    """Record the status of sites, and cancel queued pilots; does not wait for a book that hangs."""
    if not driver.alive:
        return
    try:
        driver.tell(lambda token: Stopping(token=token)).result(STOP_SECONDS)
        driver.ask(lambda _: None).result(STOP_SECONDS)  # by then all sites have their orders
    except (NotRunning, TimeoutError):
        log.warning("the engine did not answer; queued pilot jobs were not cancelled")


class Shutdown:
    """The first part of a shutdown, while agents are still answered; done once, however often it is called."""

    def __init__(self, driver: Driver, workers: SiteWorkers) -> None:
        self._driver = driver
        self._workers = workers
        self._begun = False

    def down(self, *, patience_seconds: float = WITHDRAW_SECONDS) -> None:
        """Cancel queued pilots, and wait a short time until site agents have fetched the cancellations."""
        if self._begun:
            return
        self._begun = True
        if self._driver.alive:
            stop_requesting_pilots(self._driver)
            self._workers.withdraw(patience_seconds=patience_seconds)
