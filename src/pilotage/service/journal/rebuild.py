"""Checks whether the rows of a book follow from its events, and corrects them.

All events are folded again into a temporary journal. Events of purged jobs and dropped parked events cannot be folded:
streams that received them, and nodes they described, are left as they are.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from pilotage.book.fold.finals import are_left_out, put_back
from pilotage.book.fold.replay import NotReplayed, Replay, identity_of, wire_event
from pilotage.book.query import EVERYTHING, Target, parse
from pilotage.book.rows.registers import Register
from pilotage.book.rows.rows import (
    CachedFileRow,
    JobRow,
    Keys,
    KnowledgeRow,
    NodeRow,
    PackageFacts,
    PackageRow,
    ParkedRow,
    PilotRow,
    Row,
    SiteRow,
    StageRow,
    StreamRow,
    TagRow,
    keys_of,
    packed,
)
from pilotage.book.rows.streams import Range, contains, ranges_of, received_ranges, size, stream_row, united
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.model.jobs.layout import PackageId
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import FoundEvent, Journal, JournalError

# Folds a book again from its events alone, into a temporary journal: what every row should be.

EVENTS_AT_ONCE = 5_000
ROWS_AT_ONCE = 1_000
_TRANSACTION_EVENTS = 50_000

AnyRow = TypeVar("AnyRow", bound=Row)


class Refolded:
    """The temporary journal, and the position in the book of each of its events."""

    def __init__(self, journal: Journal, scratch: Journal) -> None:
        """Fold every event of a journal again, the live ones together and each sealed job by itself."""
        self.scratch = scratch
        self.events = 0
        self._firsts: list[int] = []  # of each run: its first position in the temporary journal …
        self._originals: list[int] = []  # … and in the book
        self._runs: list[tuple[int, int]] = []  # both, in the order of the book, made on demand
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
                f"the event at position {row.position} cannot be folded again: {fault}",
                next_step="restore the book from a backup",
            ) from fault
        self.events += 1
        if not self._firsts or row.position != self.position(self.events - 1) + 1:
            self._firsts.append(self.events)
            self._originals.append(row.position)

    def position(self, position: int) -> int:
        """The position in the book of a position in the temporary journal."""
        run = bisect.bisect_right(self._firsts, position) - 1
        return self._originals[run] + position - self._firsts[run]

    def _position_here(self, position: int) -> int:
        """The reverse."""
        if len(self._runs) != len(self._firsts):
            self._runs = sorted(zip(self._originals, self._firsts, strict=True))
        original, first = self._runs[bisect.bisect_right(self._runs, position, key=lambda run: run[0]) - 1]
        return first + position - original

    def job(self, stored: JobRow) -> JobRow:
        """What the row of a job should be; its storage and number do not follow from events."""
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
        """Write all keys into a row, as in rows written before keys could be omitted."""
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
        raise JournalError(f"the events cannot be folded again: {fault}") from fault


def live_events(journal: Journal) -> Iterator[FoundEvent]:
    """Every event of the live book, by position only: uses no derived rows."""
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
    """Every job, by id."""
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


SHOWN_MAX = 20
"""Differences that a report lists; further ones are only counted."""
Both = TypeVar("Both")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One row that does not follow from the events."""

    table: str
    key: str
    what: str  # missing, not from any event, or the columns that differ


class BookCheck(msgspec.Struct, kw_only=True):
    """The result of a check; empty for a consistent book."""

    events: int = 0
    counts: dict[str, int] = {}
    first: list[Difference] = []

    @property
    def sound(self) -> bool:
        """Whether every row follows from the events."""
        return not self.counts

    def note(self, difference: Difference) -> None:
        """Count a difference, and keep it if it is one of the first."""
        self.counts[difference.table] = self.counts.get(difference.table, 0) + 1
        if len(self.first) < SHOWN_MAX:
            self.first.append(difference)


def check(journal: Journal, scratch: Journal) -> BookCheck:
    """Fold the book again into an empty journal, and compare every row."""
    return _Comparison(journal, scratch).run(mend=False)


def rebuild(journal: Journal, scratch: Journal) -> BookCheck:
    """The same, and correct differences, job by job, each in one transaction; returns what was found.

    A job whose row is lost cannot be restored: events have only its number. Check again to see what is left.
    """
    return _Comparison(journal, scratch).run(mend=True)


class _Comparison:
    """One pass over a book and its fold."""

    def __init__(self, journal: Journal, scratch: Journal) -> None:
        self._journal = journal
        self._refolded = Refolded(journal, scratch)
        self._scratch = scratch
        self._forgotten = journal.forgotten()
        self._verdict = BookCheck(events=self._refolded.events, counts={}, first=[])

    def run(self, *, mend: bool) -> BookCheck:
        for job_id in self._journal.orphans():
            self._note("jobs", f"job_id {job_id}", "missing, and with it the id of the job")
        for job in all_jobs(self._journal):
            if job.place != "purged":
                differences = sum(self._verdict.counts.values())
                self._compare_job(job)
                if mend and sum(self._verdict.counts.values()) > differences:
                    self._mend_job(job)
        self._whole_table(PilotRow, lambda row: row.pilot, mend=mend)
        self._whole_table(NodeRow, lambda row: row.node, mend=mend)
        self._whole_table(SiteRow, lambda row: row.site, mend=mend)
        self._whole_table(CachedFileRow, lambda row: f"{row.site} {row.locator}", mend=mend)
        self._whole_table(KnowledgeRow, lambda row: row.name, mend=mend)
        self._streams(mend=mend)
        return self._verdict

    def _note(self, table: str, key: str, what: str) -> None:
        self._verdict.note(Difference(table=table, key=key, what=what))

    # --- jobs ---

    def _compare_job(self, job: JobRow) -> None:
        self._compare("jobs", job.job, job, self._refolded.job(job))
        self._side_by_side("stages", job, self._journal.stages(job), self._stages(job), _stage_key)
        packages = map(_comparable, all_packages(self._journal, job))
        self._side_by_side("packages", job, packages, map(_comparable, self._refolded.packages(job)), _package_key)
        for place in self._journal.mislabelled(job):
            self._note("packages", f"{job.job} {place.dotted}", "its state or site contradicts its facts")
        self._side_by_side("tags", job, self._tags_of(self._journal, job), self._tags(job), _tag_key)

    def _mend_job(self, job: JobRow) -> None:
        if job.place == "sealed":
            self._journal.unseal([job.job])
        right = msgspec.structs.replace(self._refolded.job(job), place="live")
        self._journal.replace_job(
            right, stages=self._stages(job), packages=self._refolded.packages(job), tags=self._tags(job)
        )
        if job.place == "sealed" and right.state in FINAL_NAMES:
            self._journal.seal(job.job)

    def _stages(self, job: JobRow) -> Iterator[StageRow]:
        found = self._scratch.job(job.job)
        rows = self._scratch.stages(found) if found is not None else []
        return (msgspec.structs.replace(row, job_id=job.job_id) for row in rows)

    def _tags(self, job: JobRow) -> Iterator[TagRow]:
        found = self._scratch.job(job.job)
        rows = self._tags_of(self._scratch, found) if found is not None else iter(())
        return (msgspec.structs.replace(row, job_id=job.job_id) for row in rows)

    def _tags_of(self, journal: Journal, job: JobRow) -> Iterator[TagRow]:
        after = (-1, 0, 0, "")
        while rows := journal.tags(job, after=after, limit=ROWS_AT_ONCE):
            yield from rows
            after = _tag_key(rows[-1])

    def _side_by_side(
        self, table: str, job: JobRow, stored: Iterable[Both], right: Iterable[Both], key: Callable[[Both], Any]
    ) -> None:
        """Compare two sequences sorted by key, without holding either in memory."""
        ours, theirs = iter(stored), iter(right)
        one, other = next(ours, None), next(theirs, None)
        while one is not None or other is not None:
            if other is None or (one is not None and key(one) < key(other)):
                assert one is not None
                self._note(table, f"{job.job} {key(one)}", "not from any event")
                one = next(ours, None)
            elif one is None or key(other) < key(one):
                self._note(table, f"{job.job} {key(other)}", "missing")
                other = next(theirs, None)
            else:
                self._compare(table, f"{job.job} {key(one)}", one, other)
                one, other = next(ours, None), next(theirs, None)

    def _compare(self, table: str, key: str, stored: Any, right: Any) -> None:
        if isinstance(stored, PackageRow):
            # Statistics depend on when they were counted, not on the events alone.
            right.facts.counted_with = stored.facts.counted_with
            if are_left_out(right.facts) and not are_left_out(stored.facts):
                self._refolded.put_keys_back(right)
        if stored != right:
            self._note(table, key, f"differs in {', '.join(_differing(stored, right))}")

    # --- the rest ---

    def _whole_table(self, row: type[AnyRow], key: Callable[[AnyRow], str], *, mend: bool) -> None:
        table = TABLE_BY_ROW[row].name
        stored = {key(each): each for each in all_rows(self._journal, row)}
        right = {key(each): each for each in all_rows(self._scratch, row)}
        if self._forgotten and row is NodeRow:
            right = {**stored, **{name: _later(stored.get(name), each) for name, each in right.items()}}
        if row is PilotRow:
            # Rows of ended pilots leave the book with retention; their events stay.
            right = {
                name: _as_written(stored.get(name), each)
                for name, each in right.items()
                if name in stored or not _has_ended(each)
            }
        if stored == right:
            return
        for name in sorted(stored.keys() | right.keys()):
            if name not in right:
                self._note(table, name, "not from any event")
            elif name not in stored:
                self._note(table, name, "missing")
            else:
                self._compare(table, name, stored[name], right[name])
        if mend:
            self._put(row, list(right.values()))

    def _streams(self, *, mend: bool) -> None:
        waiting: dict[tuple[str, str], list[int]] = {}
        for parked in all_rows(self._journal, ParkedRow):
            source, stream, n = identity_of(parked)
            waiting.setdefault((source, stream), []).append(n)
        stored = all_rows(self._journal, StreamRow)
        received = {(row.source, row.stream): received_ranges(row) for row in stored}
        kept = {(row.source, row.stream): received_ranges(row) for row in all_rows(self._scratch, StreamRow)}
        right = {name: united([*kept.get(name, []), *ranges_of(waiting.get(name, []))]) for name in received}
        if self._forgotten:
            # Only the number of deleted events is known, not which ones: their streams are left as they are.
            self._count_received(received, right)
            right = {name: united([*ranges, *received[name]]) for name, ranges in right.items()}
        mended = []
        for row in stored:
            name = (row.source, row.stream)
            mended.append(stream_row(row, right[name]))
            if received[name] != right[name]:
                self._note("streams", " ".join(name), _unlike(received[name], right[name]))
        if mend and mended != stored:
            self._put(StreamRow, mended)

    def _count_received(
        self, received: dict[tuple[str, str], list[Range]], kept: dict[tuple[str, str], list[Range]]
    ) -> None:
        counted = sum(size(ranges) for ranges in received.values())
        expected = sum(size(ranges) for ranges in kept.values()) + self._forgotten
        if counted != expected:
            self._note("streams", "all", f"have received {counted:,} events; {expected:,} are stored or were deleted")

    def _put(self, row: type[Row], rows: list[Any]) -> None:
        with self._journal.transaction() as ledger:
            ledger.remove_rows(row, having={})
            ledger.put_rows(rows)


def _later(stored: Any, right: Any) -> Any:
    """The later of two rows of a node that a deleted event may have described."""
    if stored is None:
        return right
    of_stored, of_right = (keys_of(row).get(Register.DESCRIBED) for row in (stored, right))
    if of_stored is None or (of_right is not None and of_stored < of_right):
        return right
    if of_stored == of_right:
        return msgspec.structs.replace(right, updated_at=max(stored.updated_at, right.updated_at))
    return stored


def _has_ended(pilot: Any) -> bool:
    return pilot.ended_at is not None


def _as_written(stored: Any, right: Any) -> Any:
    """The row of a pilot as the version of the book wrote it that folded its events: before 5, the last request counted."""
    if stored is None or right.submitted_at is None or Register.SUBMITTED in keys_of(stored):
        return right
    return msgspec.structs.replace(
        right, requested_at=right.submitted_at, submitted_at=None, keys=packed(_before_five(keys_of(right)))
    )


def _before_five(keys: Keys) -> Keys:
    """The keys of a pilot's row where one register held the request and the native id."""
    held = {name: key for name, key in keys.items() if name != Register.SUBMITTED}
    return {**held, Register.REQUESTED: max(keys[Register.SUBMITTED], keys.get(Register.REQUESTED, (0, 0, 0, 0, "")))}


def _unlike(received: list[Range], right: list[Range]) -> str:
    missing = next((first for first, _ in right if not contains(received, first)), None)
    return f"has not received {missing}, which is stored" if missing is not None else "has received unknown events"


def _differing(stored: Any, right: Any, *, prefix: str = "") -> Iterator[str]:
    for name in stored.__struct_fields__:
        one, other = getattr(stored, name), getattr(right, name)
        if one == other:
            continue
        if isinstance(one, msgspec.Struct) and isinstance(other, msgspec.Struct):
            yield from _differing(one, other, prefix=f"{name}.")
        else:
            yield prefix + name


def _comparable(row: PackageRow) -> PackageRow:
    """A package row without the time at which statistics counted it."""
    return msgspec.structs.replace(row, facts=msgspec.structs.replace(row.facts, counted_with=None))


def _stage_key(row: StageRow) -> int:
    return row.stage


def _package_key(row: PackageRow) -> tuple[int, int, int]:
    return row.stage, row.line, row.number


def _tag_key(row: TagRow) -> tuple[int, int, int, str]:
    return row.stage, row.line, row.number, row.name
