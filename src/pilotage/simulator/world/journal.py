"""The journal of the simulator: the production join over a ledger in memory, on a disk that can lose unsynced data.

Batches wait until they are synced. A crash loses the waiting ones, except a prefix that may have reached the disk, each batch
whole or not at all. Durable data stays, and every restart begins from it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

import msgspec

from pilotage.book.codec import Checked, Codec, Refusal
from pilotage.book.fold.finals import FinalPackage
from pilotage.book.fold.join import join
from pilotage.book.rows.derived_states import default_state
from pilotage.book.rows.fast_rows import Lives
from pilotage.book.rows.ledger import Changes, Observed
from pilotage.book.rows.rows import (
    CachedFileRow,
    EventRow,
    JobRow,
    KnowledgeRow,
    PackageRow,
    PilotRow,
    SiteRow,
    StageRow,
    StreamRow,
)
from pilotage.book.rows.shapes import shape_of
from pilotage.book.statistics.statistics import Observations, Tries
from pilotage.model.jobs.layout import PackageId
from pilotage.model.states import State
from pilotage.ports import JournalError, JournalFull
from pilotage.simulator.world.ledger import MemoryLedger

REFOLDED_AT_ONCE = 1_000


class Fenced(JournalError):
    """Another process is the writer by now: the batch was refused, and its sender must stop."""


Identity = tuple[str, str, int]
"""Source, stream and number."""


class BookStates(msgspec.Struct, frozen=True, kw_only=True):
    """The states of everything: jobs by id, and packages by job id and address.

    Contains all packages that the book knows, whether or not they have events.
    """

    jobs: dict[str, str]
    packages: dict[tuple[str, str], str]


class SimulatedJournal:
    """One book. Queries are answered from durable data."""

    def __init__(self, chance: random.Random) -> None:
        """Start with an empty book; `chance` decides how much of a torn tail survives."""
        self.full = False  # while set, nothing can be synced
        self.generation = 0  # of the current writer, the last one that started
        self.repeated = 0  # events appended again after they were stored
        self.parked = 0  # events before the registration of their job
        self._chance = chance
        self._codec = Codec()
        self._ledger = MemoryLedger()
        self._unsynced: list[tuple[Sequence[Checked], float, Sequence[tuple[str, str]]]] = []
        self._events: list[Checked] = []
        self._waiting: dict[Identity, Checked] = {}  # parked

    # --- writing ---

    def take_over(self) -> None:
        """Make another process the writer: no earlier one can write from now on."""
        self.generation += 1

    def append_late(self, events: Sequence[Checked], now: float, *, generation: int) -> None:
        """Write a batch of a service that may have lost its lock unnoticed. Raises `Fenced` if it has."""
        if generation != self.generation:
            raise Fenced("another service writes this book", subject="the simulated journal")
        self.append(events, now)

    def append(self, events: Sequence[Checked], now: float, *, skewed: Sequence[tuple[str, str]] = ()) -> None:
        """Write a batch; it is durable after the next sync. `skewed` lists the streams of agents with wrong clocks."""
        self._unsynced.append((events, now, skewed))

    def sync(self) -> int:
        """Make all appended events durable, and return the position of the last one.

        Raises `JournalFull` without space: then nothing of it is durable, and all of it waits for another sync, or a crash.
        """
        if self.full:
            raise JournalFull("no room left to write", subject="the simulated journal")
        while self._unsynced:
            events, now, skewed = self._unsynced[0]
            self._keep(events, now, skewed)
            del self._unsynced[0]
        return self.position()

    def crash(self, *, torn: bool) -> int:
        """Lose unsynced batches; with a torn tail, a prefix survives. Returns how many batches did."""
        torn = torn and bool(self._unsynced) and not self.full
        survivors = self._chance.randint(1, len(self._unsynced)) if torn else 0
        for events, now, skewed in self._unsynced[:survivors]:
            self._keep(events, now, skewed)
        self._unsynced.clear()
        return survivors

    def _keep(self, events: Sequence[Checked], now: float, skewed: Sequence[tuple[str, str]]) -> None:
        for one in events:
            # Events of agents were decoded when they arrived; decisions made here were not.
            if one.event.source == "service" and isinstance(unreadable := self._codec.check(one.event), Refusal):
                raise JournalError(f"a decision cannot be decoded: {unreadable.message}", subject=one.event.type)
        joined = join(self._ledger, events, received=now, codec=self._codec, skewed=skewed, observations=_UNOBSERVED)
        receipt = joined.receipt
        if receipt.refused:
            first = receipt.refused[0]
            raise JournalError(f"the book refused an event: {first.message}", subject=_named(events, first.index))
        self._ledger.write(joined.changes)
        if receipt.kept == len(events) and not receipt.repeated and not receipt.parked:
            self._events.extend(events)
        else:
            self.repeated += receipt.repeated
            self.parked += receipt.parked
            self._note_some(events, joined.changes)

    def _note_some(self, events: Sequence[Checked], changes: Changes) -> None:
        """Record what was kept of a batch with repeated or parked events."""
        streams = {row.stream_id: (row.source, row.stream) for row in self._ledger.find_rows(StreamRow, having={})}
        known = {_identity(one): one for one in events} | self._waiting
        for _, stream_id, n, *_ in changes.all_events():
            identity = (*streams[stream_id], n)
            self._waiting.pop(identity, None)
            self._events.append(known[identity])
        for row in changes.parked:
            identity = (*streams[row.stream_id], row.n)
            self._waiting[identity] = known[identity]

    # --- durable data ---

    def events(self) -> Sequence[Checked]:
        """Every durable event once, in order; the growing list itself, not a copy."""
        return self._events

    def position(self) -> int:
        """The position of the last event."""
        return self._ledger.position()

    def states(self) -> BookStates:
        """The states of everything."""
        return _states(self._ledger)

    def refold(self, shuffled: Sequence[int]) -> BookStates:
        """The states in a new book that gets the durable events in another order."""
        if sorted(shuffled) != list(range(len(self._events))):
            raise ValueError(f"an order of {len(self._events)} events names each of them once, from 0")
        ledger = _RefoldLedger()
        for start in range(0, len(shuffled), REFOLDED_AT_ONCE):
            events = [self._events[index] for index in shuffled[start : start + REFOLDED_AT_ONCE]]
            joined = join(ledger, events, received=0.0, codec=self._codec, observations=_UNOBSERVED)
            if joined.receipt.refused:
                raise JournalError(f"another order is refused: {joined.receipt.refused[0].message}")
            ledger.write(joined.changes)
        return _states(ledger)

    # --- the port, for a core that starts ---

    def job(self, job: str) -> JobRow | None:
        """A job."""
        return next(iter(self._ledger.jobs([job])), None)

    def live_jobs(self) -> list[JobRow]:
        """The jobs that are not cleared, in the order in which they were registered."""
        return [row for row in self._ledger.find_rows(JobRow, having={"place": "live"}) if row.state != "CLEARED"]

    def stages(self, job: JobRow) -> list[StageRow]:
        """The stages of a job, in order."""
        return self._ledger.stages_of(job.job_id)

    def package(self, job: JobRow, place: PackageId) -> PackageRow | None:
        """A package with a row."""
        key = (job.job_id, place.stage, place.line, place.number)
        return next((PackageRow(*key, row.facts) for row in self._ledger.packages([key])), None)

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """The packages of a job with a final fact of their own, by address.

        Packages that ended only with their job are among the unfinished ones, if they have a row.
        """
        return self._ledger.finals(job.job_id)

    def unfinished(self, job: JobRow) -> Iterator[PackageRow]:
        """The other packages of a job with a row, by address."""
        return self._ledger.unfinished(job.job_id)

    def streams(self, source: str) -> Iterator[StreamRow]:
        """The rows of all streams of a source, by name."""
        found = self._ledger.find_rows(StreamRow, having={"source": source})
        return iter(sorted(found, key=lambda row: row.stream))

    def stream(self, source: str, stream: str) -> StreamRow | None:
        """The row of one stream, if any."""
        return next(iter(self._ledger.streams([(source, stream)])), None)

    def own_events(self, job: JobRow) -> list[EventRow]:
        """The events about a job itself, not about its packages, by position."""
        return self._ledger.find_rows(EventRow, having={"job_id": job.job_id, "stage": 0})

    def pilot(self, name: str) -> PilotRow | None:
        """A pilot, or a request of that name, if there ever was one."""
        return next(iter(self._ledger.find_rows(PilotRow, having={"pilot": name})), None)

    def pilots(self, *, after: str, limit: int) -> list[PilotRow]:
        """Pilots by name."""
        return self._ledger.find_rows(PilotRow, having={}, after=(after,), limit=limit)

    def sites(self) -> list[SiteRow]:
        """All sites."""
        return self._ledger.find_rows(SiteRow, having={})

    def knowledge(self, name: str) -> KnowledgeRow | None:
        """What the service learned from all jobs."""
        return next(iter(self._ledger.find_rows(KnowledgeRow, having={"name": name})), None)

    def cached_files(self, site: str, *, after: str, limit: int) -> list[CachedFileRow]:
        """Files of the cache of a site, by digest."""
        found = sorted(self._ledger.find_rows(CachedFileRow, having={"site": site}), key=lambda row: row.digest)
        return [row for row in found if row.digest > after][:limit]


class _NoStatistics(Observations):
    """Disables statistics: in virtual time they would cost more than all the rest of the join."""

    __slots__ = ()

    def observe_all(self, *, before: Tries | None, after: Tries) -> None:
        pass

    def observe_lives(self, lives: Lives, *, known: tuple[float, float]) -> None:
        pass

    def enter(self, state: State, *, at: float, activity: str, count: int, since: float | None = None) -> None:
        pass

    def observed(self, *, now: float) -> Observed:
        return {}


_UNOBSERVED = _NoStatistics()


class _RefoldLedger(MemoryLedger):
    """A ledger for refolding, which returns no streams.

    In a shuffled order a stream has more gaps than any counting sender would leave.
    """

    def streams(self, names: Collection[tuple[str, str]]) -> list[StreamRow]:
        known = super().streams(names)
        return [StreamRow(stream_id=row.stream_id, source=row.source, stream=row.stream) for row in known]

    def cached_streams(self) -> None:
        return None


def _states(ledger: MemoryLedger) -> BookStates:
    jobs: dict[str, str] = {}
    packages: dict[tuple[str, str], str] = {}
    for job in sorted(ledger.find_rows(JobRow, having={}), key=lambda row: row.job):
        jobs[job.job] = job.state
        default = default_state(job)
        for stage in ledger.stages_of(job.job_id):
            for place in shape_of(stage.shape, stage=stage.stage).after(None):
                packages[job.job, place.dotted] = default
        for (_, number, line, at), state in ledger.states(job.job_id):
            packages[job.job, f"{number}.{line}.{at}"] = state
    return BookStates(jobs=jobs, packages=packages)


def _identity(one: Checked) -> Identity:
    return one.event.source, one.event.stream, one.event.n


def _named(events: Sequence[Checked], index: int) -> str:
    event = next((one.event for one in events if one.index == index), None)
    return f"{event.source} {event.stream} {event.n} ({event.type})" if event is not None else f"event {index}"
