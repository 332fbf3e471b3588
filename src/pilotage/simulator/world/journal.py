"""The journal of the simulator: the production join over a ledger in memory, and a disk that can lose what was not synced.

Batches wait until they are synced. A crash forgets those that wait, but for a beginning of them that may have reached the
disk, each batch whole or not at all. What is durable stays, and whatever starts again starts from it.
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
from pilotage.book.rows.rows import EventRow, JobRow, PackageRow, PilotRow, SiteRow, StageRow, StreamRow
from pilotage.book.rows.shapes import shape_of
from pilotage.book.statistics.statistics import Observations, Tries
from pilotage.model.jobs.layout import PackageId
from pilotage.model.states import State
from pilotage.ports import JournalError, JournalFull
from pilotage.simulator.world.ledger import MemoryLedger

REFOLDED_AT_ONCE = 1_000


class Fenced(JournalError):
    """Somebody else is the writer by now: nothing of the batch was kept, and who sent it must stop."""


Identity = tuple[str, str, int]
"""Source, stream and number."""


class BookStates(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything stands: jobs by id, and packages by the id of their job and their dotted place.

    Packages are all those that the book knows of, whether anything was heard of them or not.
    """

    jobs: dict[str, str]
    packages: dict[tuple[str, str], str]


class SimulatedJournal:
    """One book. What is asked of it is answered from what is durable."""

    def __init__(self, chance: random.Random) -> None:
        """Begin with an empty book; `chance` decides how much of a torn tail survives."""
        self.full = False  # while it is, nothing can be synced
        self.generation = 0  # of the one who may write: whoever began last
        self.repeated = 0  # events that were appended again after they had been kept
        self.parked = 0  # events that came before their job was registered
        self._chance = chance
        self._codec = Codec()
        self._ledger = MemoryLedger()
        self._unsynced: list[tuple[Sequence[Checked], float, Sequence[tuple[str, str]]]] = []
        self._events: list[Checked] = []
        self._waiting: dict[Identity, Checked] = {}  # parked

    # --- writing ---

    def take_over(self) -> None:
        """Let another become the writer: nobody who was one before can write from now on."""
        self.generation += 1

    def append_late(self, events: Sequence[Checked], now: float, *, generation: int) -> None:
        """Write a batch of a service that may have lost its lock without knowing. Raises `Fenced` where it has."""
        if generation != self.generation:
            raise Fenced("another service writes this book", subject="the simulated journal")
        self.append(events, now)

    def append(self, events: Sequence[Checked], now: float, *, skewed: Sequence[tuple[str, str]] = ()) -> None:
        """Write a batch; it is durable after the next sync. `skewed` are the streams whose agents have wrong clocks."""
        self._unsynced.append((events, now, skewed))

    def sync(self) -> int:
        """Make everything durable that was appended, and return the position of the last event.

        Raises `JournalFull` where there is no room: nothing of it is durable then, and all of it waits for another
        sync, or a crash.
        """
        if self.full:
            raise JournalFull("no room left to write", subject="the simulated journal")
        while self._unsynced:
            events, now, skewed = self._unsynced[0]
            self._keep(events, now, skewed)
            del self._unsynced[0]
        return self.position()

    def crash(self, *, torn: bool) -> int:
        """Forget what was not synced; where the tail is torn, a beginning of it survives. How many batches did."""
        torn = torn and bool(self._unsynced) and not self.full
        survivors = self._chance.randint(1, len(self._unsynced)) if torn else 0
        for events, now, skewed in self._unsynced[:survivors]:
            self._keep(events, now, skewed)
        self._unsynced.clear()
        return survivors

    def _keep(self, events: Sequence[Checked], now: float, skewed: Sequence[tuple[str, str]]) -> None:
        for one in events:
            # What agents say was read before it was heard; what is decided here was never read by anybody.
            if one.event.source == "service" and isinstance(unreadable := self._codec.check(one.event), Refusal):
                raise JournalError(f"nobody can read what was decided: {unreadable.message}", subject=one.event.type)
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
        """Of a batch with repeats, or with events that wait for their job, note what was kept."""
        streams = {row.stream_id: (row.source, row.stream) for row in self._ledger.find_rows(StreamRow, having={})}
        known = {_identity(one): one for one in events} | self._waiting
        for _, stream_id, n, *_ in changes.all_events():
            identity = (*streams[stream_id], n)
            self._waiting.pop(identity, None)
            self._events.append(known[identity])
        for row in changes.parked:
            identity = (*streams[row.stream_id], row.n)
            self._waiting[identity] = known[identity]

    # --- what is durable ---

    def events(self) -> Sequence[Checked]:
        """Every durable event once, in the order in which they were kept; the list that grows, and not a copy of it."""
        return self._events

    def position(self) -> int:
        """The position of the last event."""
        return self._ledger.position()

    def states(self) -> BookStates:
        """Where everything stands."""
        return _states(self._ledger)

    def refold(self, shuffled: Sequence[int]) -> BookStates:
        """Where everything stands for a new book that hears of the durable events in another order."""
        if sorted(shuffled) != list(range(len(self._events))):
            raise ValueError(f"an order of {len(self._events)} events names each of them once, from 0")
        ledger = _Anew()
        for start in range(0, len(shuffled), REFOLDED_AT_ONCE):
            events = [self._events[index] for index in shuffled[start : start + REFOLDED_AT_ONCE]]
            joined = join(ledger, events, received=0.0, codec=self._codec, observations=_UNOBSERVED)
            if joined.receipt.refused:
                raise JournalError(f"another order is refused: {joined.receipt.refused[0].message}")
            ledger.write(joined.changes)
        return _states(ledger)

    # --- as the port has it, for a core that starts ---

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
        """A package of which something was heard."""
        key = (job.job_id, place.stage, place.line, place.number)
        return next((PackageRow(*key, row.facts) for row in self._ledger.packages([key])), None)

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """The packages of a job that are over by facts of their own, in the order of place.

        What ended only with its job is not among them: it is among the unfinished ones, if it has a row.
        """
        return self._ledger.finals(job.job_id)

    def unfinished(self, job: JobRow) -> Iterator[PackageRow]:
        """The other packages of a job that have a row, in the order of place."""
        return self._ledger.unfinished(job.job_id)

    def streams(self, source: str) -> Iterator[StreamRow]:
        """What was heard of every stream of a source, by name."""
        found = self._ledger.find_rows(StreamRow, having={"source": source})
        return iter(sorted(found, key=lambda row: row.stream))

    def stream(self, source: str, stream: str) -> StreamRow | None:
        """What was heard of one stream, if anything was."""
        return next(iter(self._ledger.streams([(source, stream)])), None)

    def own_events(self, job: JobRow) -> list[EventRow]:
        """The events about a job itself, and not about its packages, in the order of their positions."""
        return self._ledger.find_rows(EventRow, having={"job_id": job.job_id, "stage": 0})

    def pilot(self, name: str) -> PilotRow | None:
        """One pilot, or what was asked for under that name, if there ever was one."""
        return next(iter(self._ledger.find_rows(PilotRow, having={"pilot": name})), None)

    def pilots(self, *, after: str, limit: int) -> list[PilotRow]:
        """Pilots by name."""
        return self._ledger.find_rows(PilotRow, having={}, after=(after,), limit=limit)

    def sites(self) -> list[SiteRow]:
        """All sites."""
        return self._ledger.find_rows(SiteRow, having={})


class _Unobserved(Observations):
    """Statistics that nobody asks for: in virtual time they would cost more than all the rest of the join."""

    __slots__ = ()

    def observe_all(self, *, before: Tries | None, after: Tries) -> None:
        pass

    def observe_lives(self, lives: Lives, *, known: tuple[float, float]) -> None:
        pass

    def enter(self, state: State, *, at: float, activity: str, count: int, since: float | None = None) -> None:
        pass

    def observed(self, *, now: float) -> Observed:
        return {}


_UNOBSERVED = _Unobserved()


class _Anew(MemoryLedger):
    """A ledger to fold into, whose streams are not asked what they heard.

    In any order a stream has more holes than anybody who counts would leave.
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
        untold = default_state(job)
        for stage in ledger.stages_of(job.job_id):
            for place in shape_of(stage.shape, stage=stage.stage).after(None):
                packages[job.job, place.dotted] = untold
        for (_, number, line, at), state in ledger.states(job.job_id):
            packages[job.job, f"{number}.{line}.{at}"] = state
    return BookStates(jobs=jobs, packages=packages)


def _identity(one: Checked) -> Identity:
    return one.event.source, one.event.stream, one.event.n


def _named(events: Sequence[Checked], index: int) -> str:
    event = next((one.event for one in events if one.index == index), None)
    return f"{event.source} {event.stream} {event.n} ({event.type})" if event is not None else f"event {index}"
