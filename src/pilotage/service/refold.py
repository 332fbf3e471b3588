"""A book folded anew from its events alone, into a scratch journal: what every row should be."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from pilotage.book.left_out import put_back
from pilotage.book.query import EVERYTHING, Target, parse
from pilotage.book.replay import NotReplayed, Replay, wire_event
from pilotage.book.rows import JobRow, PackageFacts, PackageRow, Row
from pilotage.model.layout import PackageId
from pilotage.ports import FoundEvent, Journal, JournalError

EVENTS_AT_ONCE = 5_000
ROWS_AT_ONCE = 1_000
_TRANSACTION_EVENTS = 50_000

AnyRow = TypeVar("AnyRow", bound=Row)


class Refolded:
    """The scratch journal, and where each of its events stands in the book it came from."""

    def __init__(self, journal: Journal, scratch: Journal) -> None:
        """Join every event of a journal again, the live ones in one go and each sealed job by itself."""
        self.scratch = scratch
        self.events = 0
        self._firsts: list[int] = []  # of each run: its first position in the scratch journal …
        self._originals: list[int] = []  # … and in the book
        self._runs: list[tuple[int, int]] = []  # both, in the order of the book, once somebody asks for it
        self._take(live_events(journal))
        for job in all_jobs(journal):
            if job.place == "sealed":
                self._take(job_events(journal, job))

    def _take(self, events: Iterator[FoundEvent]) -> None:
        found = next(events, None)
        while found is not None:
            with self.scratch.transaction() as ledger:
                replay = Replay(ledger)
                taken = 0
                while found is not None and taken < _TRANSACTION_EVENTS:
                    self._add(replay, found)
                    taken += 1
                    found = next(events, None)
                _finish(replay)

    def _add(self, replay: Replay, found: FoundEvent) -> None:
        row = found.row
        try:
            event = wire_event(row, job=found.job, source=found.source, stream=found.stream)
            replay.add(event, received=row.received, skewed=bool(row.skewed))
        except NotReplayed as fault:
            raise JournalError(
                f"the event at position {row.position} cannot be joined again: {fault}",
                next_step="bring the book back from a copy",
            ) from fault
        self.events += 1
        if not self._firsts or row.position != self.position(self.events - 1) + 1:
            self._firsts.append(self.events)
            self._originals.append(row.position)

    def position(self, position: int) -> int:
        """The position in the book of what stands at a position in the scratch journal."""
        run = bisect.bisect_right(self._firsts, position) - 1
        return self._originals[run] + position - self._firsts[run]

    def _position_here(self, position: int) -> int:
        """The other way round."""
        if len(self._runs) != len(self._firsts):
            self._runs = sorted(zip(self._originals, self._firsts, strict=True))
        original, first = self._runs[bisect.bisect_right(self._runs, position, key=lambda run: run[0]) - 1]
        return first + position - original

    def job(self, stored: JobRow) -> JobRow:
        """What the row of a job should be; where it is kept, and under which number, the events do not say."""
        found = self.scratch.job(stored.job)
        if found is None:
            raise JournalError("no event says that this job exists", subject=f"job {stored.job}")
        return msgspec.structs.replace(found, job_id=stored.job_id, place=stored.place, purged_at=stored.purged_at)

    def packages(self, stored: JobRow) -> Iterator[PackageRow]:
        """What the rows of its packages should be, in order."""
        found = self.scratch.job(stored.job)
        for row in all_packages(self.scratch, found) if found is not None else ():
            yield msgspec.structs.replace(row, job_id=stored.job_id, facts=self._facts(row.facts))

    def put_keys_back(self, row: PackageRow) -> None:
        """Have a row say its keys too, as one does that was written when none were left out."""
        positions = [self._position_here(position) for position in row.facts.positions]
        # The attempts are the same ones.
        here = msgspec.structs.replace(row, facts=msgspec.structs.replace(row.facts, positions=positions))
        with self.scratch.transaction() as ledger:
            put_back(ledger, [here])

    def _facts(self, facts: PackageFacts) -> PackageFacts:
        facts.positions = [self.position(position) for position in facts.positions]
        for attempt in facts.attempts.values():
            if attempt.staged_position is not None:
                attempt.staged_position = self.position(attempt.staged_position)
            if attempt.finished_position is not None:
                attempt.finished_position = self.position(attempt.finished_position)
        return facts


def _finish(replay: Replay) -> None:
    try:
        replay.finish()
    except NotReplayed as fault:
        raise JournalError(f"the events cannot be joined again: {fault}") from fault


def live_events(journal: Journal) -> Iterator[FoundEvent]:
    """Every event of the live book, by position alone: nothing that was derived from them is asked."""
    query = parse("position>0", target=Target.EVENTS)
    after, more = 0, True
    while more:
        page = journal.find_events(query, after=after, limit=EVENTS_AT_ONCE)
        yield from page.items
        more = page.more
        if more:
            after = page.scanned_to if page.scanned_to is not None else page.items[-1].row.position


def job_events(journal: Journal, job: JobRow) -> Iterator[FoundEvent]:
    """Every event of a job."""
    after, more = 0, True
    while more:
        page = journal.find_events(EVERYTHING, after=after, limit=EVENTS_AT_ONCE, job=job)
        yield from page.items
        more = page.more
        if more:
            after = page.scanned_to if page.scanned_to is not None else page.items[-1].row.position


def all_jobs(journal: Journal) -> Iterator[JobRow]:
    """Every job, in the order of ids."""
    after: str | None = None
    more = True
    while more:
        page = journal.find_jobs(EVERYTHING, after=after, limit=ROWS_AT_ONCE)
        yield from page.items
        more = page.more
        if more:
            after = page.scanned_to if page.scanned_to is not None else page.items[-1].job


def all_packages(journal: Journal, job: JobRow) -> Iterator[PackageRow]:
    """Every package of a job that has a row, in order."""
    after: tuple[str, PackageId] | None = None
    more = True
    while more:
        page = journal.find_packages(EVERYTHING, after=after, limit=ROWS_AT_ONCE, job=job)
        for found in page.items:
            yield found.row
        more = page.more
        if more:
            last = page.items[-1].row if page.items else None
            place = PackageId(last.stage, last.line, last.number) if last is not None else None
            after = page.scanned_to if page.scanned_to is not None else (job.job, place) if place else after


def all_rows(journal: Journal, row: type[AnyRow]) -> list[AnyRow]:
    """Every row of a small table."""
    with journal.transaction() as ledger:
        return ledger.find_rows(row, having={})
