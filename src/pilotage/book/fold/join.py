"""Joins a batch of events with the book: loads their rows, sets registers, derives states, and writes each row once.

Neither the order within a batch nor its boundaries matter, except for positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from pilotage.book.codec import Checked, Codec, Refusal
from pilotage.book.fold import facts
from pilotage.book.fold.fast_path import EventsByPackage, ShortLives, StageWork, known_of, short_lives, tell_of_lives
from pilotage.book.fold.finals import leave_out, put_back
from pilotage.book.fold.handlers import (
    ANY_EPOCH_HANDLERS,
    ATTEMPT_HANDLERS,
    JOB_EPOCH_HANDLERS,
    JOB_HANDLERS,
    PACKAGE_HANDLERS,
    ResourceRows,
)
from pilotage.book.fold.intake import Intake
from pilotage.book.rows import shapes
from pilotage.book.rows.derived_states import RUNNING, settle, settle_job
from pilotage.book.rows.fast_rows import whole_row
from pilotage.book.rows.ledger import Changes, Ledger, PackageKey, begun_packages
from pilotage.book.rows.registers import Register, takes
from pilotage.book.rows.rows import (
    AttemptFacts,
    JobRow,
    Keys,
    PackageFacts,
    PackageRow,
    StageRow,
    StoredKey,
    TagRow,
    keys_of,
    packed,
)
from pilotage.book.statistics import statistics
from pilotage.book.statistics.statistics import Observations, observe_job, observe_now
from pilotage.model.events import payloads
from pilotage.model.events.events import SOURCE_RANKS, Event
from pilotage.model.settings.engine import SKEW_SECONDS

# The working set of one batch: the rows it touches, loaded once, with their earlier counts.

UNKNOWN_SHAPE = '{"items":0}'


class WorkedPackage:
    """A package in a join, and its earlier counts."""

    __slots__ = ("before", "facts", "job", "new", "observed", "row", "shaped_before")

    def __init__(self, row: PackageRow, job: JobRow, *, new: bool) -> None:
        """Note how the row counted before."""
        self.row = row
        self.facts = facts = row.facts
        self.job = job
        self.new = new
        if new:
            self.shaped_before = 0
            self.before: shapes.CountedAs | None = None
            self.observed: statistics.Tries | None = None
        else:
            self.shaped_before = facts.shaped
            self.before = row.counted or shapes.counted_as(facts)
            self.observed = row.observed or statistics.observed(facts)


class WorkingSet:
    """All rows that one batch touches."""

    def __init__(self, ledger: Ledger, jobs: dict[str, JobRow], short: ShortLives) -> None:
        """Start with the jobs, and the short lives."""
        self._ledger = ledger
        self.short = short
        self.jobs = {row.job_id: row for row in jobs.values()}
        self._jobs_before = {row.job_id: msgspec.structs.replace(row) for row in jobs.values()}
        self.packages: dict[PackageKey, WorkedPackage] = {}
        self.stages: dict[tuple[int, int], StageWork] = {}
        self.all_stages: set[int] = set()

    def load_packages(self, events_by_package: EventsByPackage) -> None:
        """Load packages of loaded stages, with all their attempts; makes missing rows.

        `events_by_package` numbers the events of each. Short lives are joined here completely.
        """
        packages, stages, short = self.packages, self.stages, self.short
        others = short.end(events_by_package, begun_packages(self._ledger), stages)
        if not others:
            return
        rows = list(self._ledger.packages(others))
        if rows:
            put_back(self._ledger, rows)
            self._add(rows)
            others = {key: events for key, events in others.items() if key not in packages}
        for key in short.begin(others, stages):
            packages[key] = WorkedPackage(PackageRow(*key, PackageFacts()), self.jobs[key[0]], new=True)

    def load_rows(self, rows: Iterable[PackageRow]) -> None:
        """Add rows that were found otherwise, unless they are loaded."""
        here = self.packages
        fresh = [row for row in rows if (row.job_id, row.stage, row.line, row.number) not in here]
        self.load_stages({(row.job_id, row.stage) for row in fresh})
        self._add(fresh)

    def _add(self, rows: Iterable[PackageRow]) -> None:
        for row in rows:
            work = WorkedPackage(row, self.jobs[row.job_id], new=False)
            self.packages[row.job_id, row.stage, row.line, row.number] = work

    def load_stages(self, keys: Collection[tuple[int, int]]) -> None:
        """Load stages; makes unknown ones, without a shape."""
        wanted = keys - self.stages.keys()
        if not wanted:
            return
        for row in self._ledger.stages(wanted):
            self.stages[row.job_id, row.stage] = self._stage(row)
        for key in wanted - self.stages.keys():
            row = StageRow(job_id=key[0], stage=key[1], shape=UNKNOWN_SHAPE)
            self.stages[key] = self._stage(row, new=True)

    def _stage(self, row: StageRow, *, new: bool = False) -> StageWork:
        return StageWork(row, self.jobs[row.job_id], job_before=self._jobs_before[row.job_id], new=new)

    def load_stages_of(self, job_id: int) -> None:
        """Load every stage of a job."""
        if job_id in self.all_stages:
            return
        self.all_stages.add(job_id)
        for row in self._ledger.stages_of(job_id):
            if (row.job_id, row.stage) not in self.stages:
                self.stages[row.job_id, row.stage] = self._stage(row)


_encode = msgspec.json.Encoder().encode

_ENDS = (payloads.CancelAccepted, payloads.Aborted)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a batch. Every event that is not refused is stored."""

    position: int
    kept: int
    repeated: int
    parked: int
    refused: list[Refusal]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A package or a job that a batch changed, for notices: its earlier state, and its rows now."""

    job: JobRow
    package: PackageRow | None
    state_before: str | None


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to write, the receipt to return once they are durable, and the changes."""

    changes: Changes
    receipt: Receipt
    moved: Callable[[], Iterator[Change]]
    longer: Callable[[], Iterator[Change]]  # packages with changed rows, except short lives


def join(
    ledger: Ledger,
    checked: Sequence[Checked],
    *,
    received: float,
    codec: Codec,
    skew_seconds: float = SKEW_SECONDS,
    skewed: Collection[tuple[str, str]] = (),
    observations: Observations | None = None,
) -> Joined:
    """Join a batch with the book; reads the ledger, and writes nothing yet. Statistics are added to `observations`.

    `skewed` are the (source, stream) of senders with a wrong clock.
    """
    if observations is None:
        observations = Observations()
    intake = Intake(ledger, checked, received=received, codec=codec, skew_seconds=skew_seconds, skewed=skewed)
    return Join(ledger, intake, observations, received=received).result()


class Join:
    """The join of one batch."""

    def __init__(
        self,
        ledger: Ledger,
        intake: Intake,
        observations: Observations,
        *,
        received: float,
    ) -> None:
        """Load the rows that a sorted batch touches."""
        self._ledger = ledger
        self._observations = observations
        self._received = received
        self._intake = intake
        self._jobs = intake.jobs
        self._job_keys: dict[int, Keys] = {row.job_id: keys_of(row) for row in self._jobs.values()}
        new = set(self._intake.unparked)
        self._jobs_before = {
            row.job_id: (row.state, _standing_facts(row)) for row in self._jobs.values() if row.job not in new
        }
        apart = [intake.fresh[at] for at in intake.apart]
        stages = _stages_of(intake.touched)
        ids = {job_id for job_id, _ in stages}
        self._touched_jobs = {row.job for row in self._jobs.values() if row.job_id in ids}
        self._touched_jobs |= {one.event.job for one in apart if one.event.job is not None}
        self._reshaped: set[tuple[int, int]] = set()
        self._tags: dict[tuple[int, int, int, int, str], TagRow] = {}
        self._changes = Changes(received=received, events=intake.rows, plain_events=intake.plain)
        self._jobs_with_events: set[int] = set()
        self._job_tags: dict[int, dict[str, tuple[str, StoredKey]]] = {}
        # An event about a job itself may affect all its packages: then no life is short.
        any_of_jobs = any(one.event.job is not None for one in apart)
        fresh = intake.fresh if not any_of_jobs else ()
        self._short = ShortLives(fresh, first=intake.first)
        self._working = WorkingSet(ledger, self._jobs, self._short)
        self._working.load_stages(stages)
        self._working.load_packages(intake.touched)
        self._resource_rows = ResourceRows(ledger, [*apart, *self._describing()])

    def _describing(self) -> Iterator[Checked]:
        """Events of packages that also describe a node: their lives are not short."""
        fresh, events_of = self._intake.fresh, self._intake.events_of
        events = (fresh[at] for key in self._working.packages for at in events_of(key))
        return (one for one in events if isinstance(one.data, payloads.NodeDescribed))

    def result(self) -> Joined:
        """Join all events and derive the states of the touched rows."""
        self._join_all()
        self._settle(self._observations)
        intake, changes = self._intake, self._changes
        changes.streams, changes.counted_on = intake.hearing.result()
        changes.forgotten = intake.hearing.forgotten
        changes.parked = intake.parked
        changes.unparked = intake.unparked
        changes.begun_packages = self._short.begun
        changes.lived_packages = self._short.lived
        changes.ended_packages = self._short.ended
        changes.tags = list(self._tags.values())
        self._resource_rows.tell(changes)
        receipt = Receipt(
            position=intake.position,
            kept=len(intake.fresh),
            repeated=intake.repeated,
            parked=intake.parked_now,
            refused=intake.refused,
        )
        return Joined(changes=changes, receipt=receipt, moved=self._moved_ones, longer=self._longer_ones)

    def _join_all(self) -> None:
        """Add the facts of every event, except those of short lives, which are done."""
        fresh, first, events_of = self._intake.fresh, self._intake.first, self._intake.events_of
        for key, work in self._working.packages.items():
            for at in events_of(key):
                self._join_package(fresh[at], key, work, first + at)
        for at in self._intake.apart:
            self._join_apart(fresh[at])

    def _join_package(self, one: Checked, package: PackageKey, work: WorkedPackage, position: int) -> None:
        """Add the facts of an event about a package, or an attempt at one."""
        event, data, job, row = one.event, one.data, work.job, work.facts
        time, epoch, number = event.time, event.epoch, event.attempt
        key = (epoch, event.seen, SOURCE_RANKS[event.source], event.n, event.stream)
        if time > job.updated_at:
            job.updated_at = time
        if time > row.updated_at:
            row.updated_at = time
        row.positions.append(position)
        kind = type(data)
        handler = ATTEMPT_HANDLERS.get(kind)
        if handler is None or number is None:
            self._on_package(event, data, key, job, package, row)
            return
        attempt = row.attempts.get(number)
        if attempt is None:
            attempt = row.attempts[number] = AttemptFacts(epoch=epoch)
        if epoch == attempt.epoch or self._in_epoch(row, attempt, event):
            handler(row.attempts[number], key, event, data, position)
        if epoch != row.epoch:
            facts.open_epoch(row, epoch)
        if job.started_at is None or time < job.started_at:
            facts.on_anything_run(job, event, data)
        if kind is payloads.CommitGranted and (job.finished_at is None or time > job.finished_at):
            job.finished_at = time

    def _join_apart(self, one: Checked) -> None:
        """Add the facts of an event without a package."""
        event = one.event
        key = (event.epoch, event.seen, SOURCE_RANKS[event.source], event.n, event.stream)
        job = self._jobs[event.job] if event.job is not None else None
        if job is None:
            self._resource_rows.on_other(one, key)
        else:
            job.updated_at = max(job.updated_at, event.time)
            self._on_job(event, one.data, key, job)

    def _in_epoch(self, row: PackageFacts, attempt: AttemptFacts, event: Event) -> bool:
        """Tell whether an event belongs to an attempt's epoch; a number from a lower epoch starts anew."""
        attempt.reused = 1
        if event.epoch < attempt.epoch:
            return False
        assert event.attempt is not None
        row.attempts[event.attempt] = AttemptFacts(epoch=event.epoch, reused=1)
        return True

    def _on_package(
        self, event: Event, data: payloads.Payload, key: StoredKey, job: JobRow, package: PackageKey, row: PackageFacts
    ) -> None:
        kind = type(data)
        if (handler := PACKAGE_HANDLERS.get(kind)) is not None:
            if facts.open_epoch(row, event.epoch):
                handler(row, key, event, data)
            if kind in _ENDS:
                job.finished_at = event.time if job.finished_at is None else max(job.finished_at, event.time)
        elif (handler := ANY_EPOCH_HANDLERS.get(kind)) is not None:
            handler(row, key, event, data)
        elif isinstance(data, payloads.Tagged):
            if facts.on_tagged(row.tags, key, data.name, data.value):
                self._tag(package, data.name, data.value)
        elif isinstance(data, payloads.NodeDescribed):
            self._resource_rows.on_node(event, key, data)

    def _on_job(self, event: Event, data: payloads.Payload, key: StoredKey, job: JobRow) -> None:
        keys = self._job_keys.setdefault(job.job_id, {})
        self._jobs_with_events.add(job.job_id)
        kind = type(data)
        if (handler := JOB_EPOCH_HANDLERS.get(kind)) is not None:
            if facts.open_job_epoch(job, keys, event.epoch):
                handler(job, keys, key, event, data)
        elif (handler := JOB_HANDLERS.get(kind)) is not None:
            handler(job, keys, key, event, data)
        if isinstance(data, payloads.Tagged):
            self._tag_job(job, key, data.name, data.value)
        elif isinstance(data, payloads.JobRegistered):
            for name, value in data.tags.items():
                self._tag_job(job, key, name, value)
            self._working.load_stages({(job.job_id, stage) for stage in range(1, len(data.stages) + 1)})
            job.stages = max(job.stages, len(data.stages))
            for stage, shape in enumerate(data.stages, 1):
                self._reshape(job, stage, shape, key)
        elif isinstance(data, payloads.StageExpanded):
            self._working.load_stages({(job.job_id, data.stage)})
            job.stages = max(job.stages, data.stage)
            self._reshape(job, data.stage, data.shape, key)

    def _reshape(self, job: JobRow, stage: int, shape: payloads.StageShape, key: StoredKey) -> None:
        work = self._working.stages[job.job_id, stage]
        if takes(work.keys, Register.SHAPE, key):
            work.expect(_encode(shape).decode())
            self._reshaped.add((job.job_id, stage))

    def _tag_job(self, job: JobRow, key: StoredKey, name: str, value: str) -> None:
        tags = self._job_tags.get(job.job_id)
        if tags is None:
            tags = self._job_tags[job.job_id] = facts.read_tags(job.tags)
        if facts.on_tagged(tags, key, name, value):
            self._tag((job.job_id, 0, 0, 0), name, value)

    def _tag(self, package: PackageKey, name: str, value: str) -> None:
        self._tags[*package, name] = TagRow(*package, name, value)

    def _settle(self, observations: Observations) -> None:
        self._reach_further()
        self._settle_packages(observations)
        for stage in self._working.stages.values():
            stage.close()
            if stage.is_rumour:
                continue
            stage.row.keys = packed(stage.keys)
            self._changes.stages.append(stage.row)
        for job, lives in short_lives(self._working.stages.values()):
            tell_of_lives(job, lives)
            observations.observe_lives(lives, known=known_of(job))
        for name in sorted(self._touched_jobs):
            job = self._jobs[name]
            settle_job(job)
            if (tags := self._job_tags.get(job.job_id)) is not None:
                job.tags = _encode(dict(sorted(tags.items()))).decode()
            job.heard_at = max(job.heard_at, self._received)
            job.keys = packed(self._job_keys.get(job.job_id, {}))
            self._changes.jobs.append(job)
        for name in self._touched_jobs:
            job = self._jobs[name]
            known = self._jobs_before.get(job.job_id)
            shapes = (stage.shape for stage in self._working.stages.values() if stage.job is job)
            observe_job(observations, job, before=known[1] if known is not None else (None, None), shapes=shapes)
        self._changes.observed = observations.observed(now=self._received)

    def _moved_ones(self) -> Iterator[Change]:
        """The changes, made lazily: first the subjects of events in their order, then rows that follow from them."""
        packages, touched = self._working.packages, self._intake.touched
        begun, lived, ended = self._short.begun, self._short.lived, self._short.ended
        for key in touched:
            if (work := packages.get(key)) is not None:
                yield _change(work)
                continue
            life = ended.get(key) or lived.get(key) or begun[key]
            row, before = whole_row(key, life), RUNNING if key in ended else None
            yield Change(job=self._working.jobs[key[0]], package=row, state_before=before)
        for key, work in packages.items():
            if key not in touched and (work.before is None or work.before[0] != work.facts.state):
                yield _change(work)
        for name in sorted(self._touched_jobs):
            job = self._jobs[name]
            known = self._jobs_before.get(job.job_id)
            if known is None or known[0] != job.state or job.job_id in self._jobs_with_events:
                yield Change(job=job, package=None, state_before=known[0] if known is not None else None)

    def _longer_ones(self) -> Iterator[Change]:
        return map(_change, self._working.packages.values())

    def _reach_further(self) -> None:
        """Load rows without events whose state follows from their job or stage."""
        for name in self._touched_jobs:
            job = self._jobs[name]
            before = self._jobs_before.get(job.job_id)
            if before is not None and before[1] != _standing_facts(job):
                self._working.load_stages_of(job.job_id)
                self._working.load_rows(self._ledger.idle_packages(job.job_id))
        for job_id, stage in self._reshaped:
            self._working.load_rows(self._ledger.packages_of(job_id, stage=stage))

    def _settle_packages(self, observations: Observations) -> None:
        """Derive the state of every loaded package, in one flat loop, since it runs for many."""
        stages, reshaped, changed = self._working.stages, self._reshaped, self._changes.packages.append
        for (job_id, number, line, place), work in self._working.packages.items():
            row, job = work.facts, work.job
            stage = stages[job_id, number]
            if work.new or not row.shaped or (reshaped and (job_id, number) in reshaped):
                activity = stage.shape.activity(line, place) if stage.row.expected else None
                row.shaped = int(activity is not None)
                row.activity = activity if activity is not None else row.registered_activity
            settle(row, job)
            after = shapes.counted_as(row)
            if after != work.before:
                move = (work.before, after)
                stage.moves[move] = stage.moves.get(move, 0) + 1
            if row.shaped != work.shaped_before:
                stage.touch(row.shaped - work.shaped_before)
            observation = observe_now(row, job)
            if observation != work.observed:
                observations.observe_all(before=work.observed, after=observation)
            work.row.counted, work.row.observed = after, observation
            leave_out(row)
            changed(work.row)


def _stages_of(packages: Iterable[PackageKey]) -> set[tuple[int, int]]:
    job_id = stage = 0
    found: set[tuple[int, int]] = set()
    for key in packages:
        if key[1] != stage or key[0] != job_id:  # mostly runs of one stage
            job_id, stage = key[:2]
            found.add((job_id, stage))
    return found


def _change(work: WorkedPackage) -> Change:
    return Change(job=work.job, package=work.row, state_before=work.before[0] if work.before is not None else None)


def _standing_facts(job: JobRow) -> tuple[float | str | None, ...]:
    """The facts of a job that determine the state of packages without facts of their own."""
    return job.submitted_at, job.accepted_at, job.cancelled_at, job.aborted_at, job.cause, job.cause_message, job.epoch
