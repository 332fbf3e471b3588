"""Joins short lives: packages whose only events are the start, the end and the grant of one successful attempt.

Most packages are like that, and their row follows directly from these two or three events: each register is set once,
without competition, and only one state is possible. So the row is made at once, without comparing registers, adding
facts one by one, and deriving the state. A package with any other event, before, between or after, takes the general
path, which gives the same row. A property test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from sys import intern

from pilotage.book.codec import Checked
from pilotage.book.rows import shapes
from pilotage.book.rows.derived_states import DONE, RUNNING, default_state
from pilotage.book.rows.fast_rows import BegunLife, EndedLife, Lives
from pilotage.book.rows.ledger import PackageKey
from pilotage.book.rows.rows import JobRow, Keys, StageRow, StateHistogram, keys_of
from pilotage.book.rows.shapes import Shape, shape_of
from pilotage.book.rows.sketches import NEVER
from pilotage.model.events.events import SOURCE_RANKS
from pilotage.model.events.payloads import AttemptCreated, AttemptFinished, CommitGranted
from pilotage.model.states import ExitCodeGasw

# A stage while a batch is joined: its shape, and the histograms of the stage and its job.

_RUNS: shapes.CountedAs = (RUNNING, 0, 1, 0)
_DONE: shapes.CountedAs = (DONE, 0, 1, 1)


class StageWork:
    """A stage whose histogram may change; packages without events are taken out and put back at the end."""

    __slots__ = ("began", "granted", "job", "keys", "known", "moves", "new", "row", "shape")

    def __init__(self, row: StageRow, job: JobRow, *, job_before: JobRow, new: bool) -> None:
        """Take the packages without events out of the histograms of the stage and of its job."""
        self.row = row
        self.job = job
        self.new = new
        self.keys: Keys = keys_of(row)
        self.moves: dict[tuple[shapes.CountedAs | None, shapes.CountedAs | None], int] = {}
        self.known = known_of(job)
        self.began: list[BegunLife | EndedLife] = []  # the short lives of this stage that began in this batch,
        self.granted: list[EndedLife] = []  # and those that ended in it
        self.shape: Shape = shape_of(row.shape, stage=row.stage)
        self.count((default_state(job_before), 0, 0, 0), -shapes.untouched(row))

    def count(self, what: shapes.CountedAs, by: int) -> None:
        """Count packages in the stage and in its job."""
        shapes.count(self.row, what, by)
        shapes.count(self.job, what, by)

    def expect(self, text: str) -> None:
        """Set another shape."""
        before, late_before = self.row.expected, self.row.late
        self.row.shape = text
        shape = self.shape = shape_of(text, stage=self.row.stage)
        self.row.expected, self.row.late = shape.count, int(shape.late)
        self.job.expected += shape.count - before
        self.job.late += self.row.late - late_before

    def touch(self, by: int) -> None:
        """Count a package of the shape as having events."""
        self.row.touched += by
        self.job.touched += by

    @property
    def is_rumour(self) -> bool:
        """Tell whether the stage is not known to exist: it has no shape, and no package that counts."""
        return (
            self.new and not self.keys and not any(getattr(self.row, name) for name in StateHistogram.__struct_fields__)
        )

    def close(self) -> None:
        """Count the changed packages, and those without events in the state of the job."""
        for (before, after), count in self.moves.items():
            if before is not None:
                self.count(before, -count)
            if after is not None:
                self.count(after, count)
        self.moves.clear()
        if self.began or self.granted:
            self.count(_RUNS, len(self.began) - len(self.granted))
            self.count(_DONE, len(self.granted))
            self.touch(len(self.began))
        self.count((default_state(self.job), 0, 0, 0), shapes.untouched(self.row))


def known_of(job: JobRow) -> tuple[float, float]:
    """When a job was submitted and accepted, for statistics; a batch with short lives does not change that."""
    return job.submitted_at or NEVER, job.accepted_at or NEVER


def short_lives(stages: Iterable[StageWork]) -> Iterator[tuple[JobRow, Lives]]:
    """The short lives of each job, collected from its stages."""
    jobs: dict[int, tuple[JobRow, list[BegunLife | EndedLife], list[EndedLife]]] = {}
    for stage in stages:
        if stage.began or stage.granted:
            _, began, granted = jobs.setdefault(stage.row.job_id, (stage.job, [], []))
            began += stage.began
            granted += stage.granted
    return ((job, Lives(began, granted)) for job, began, granted in jobs.values())


def tell_of_lives(job: JobRow, lives: Lives) -> None:
    """Update a job's times by short lives: last event, first run, last end."""
    began, finished, granted = lives.began, lives.finished, lives.granted
    times = [*began, *finished, *granted]
    first, last = min(times), max(times)
    job.updated_at = max(job.updated_at, last)
    job.started_at = first if job.started_at is None else min(job.started_at, first)
    if granted:
        last = max(granted)
        job.finished_at = last if job.finished_at is None else max(job.finished_at, last)


_SUCCESS = ExitCodeGasw.SUCCESS

EventsByPackage = Mapping[PackageKey, int | list[int]]
"""For each package, the number of its fresh event, or their numbers."""
Others = dict[PackageKey, int | list[int]]
Stages = Mapping[tuple[int, int], StageWork]


class ShortLives:
    """The short lives of one batch, as far as they have come.

    This code runs for most packages, so it takes as few steps as possible.
    """

    __slots__ = ("_first", "_fresh", "begun", "ended", "lived")

    def __init__(self, fresh: Sequence[Checked], *, first: int) -> None:
        """Take the fresh events, stored from the position `first` on; without any, no life counts as short."""
        self._fresh = fresh
        self._first = first
        self.begun: dict[PackageKey, BegunLife] = {}  # packages without a row, whose life has not ended
        self.lived: dict[PackageKey, EndedLife] = {}  # packages without a row, whose whole life is in this batch
        self.ended: dict[PackageKey, EndedLife] = {}  # packages with a row, whose life has ended in this batch

    def end(self, events_by_package: EventsByPackage, begun: Mapping[PackageKey, BegunLife], stages: Stages) -> Others:
        """Join the two events that end a begun short life; returns the packages with other events."""
        if not self._fresh:
            return dict(events_by_package)
        others: Others = {}
        ended, end = self.ended, self._end
        job_id = stage_number = 0
        stage: StageWork | None = None
        for key, events in events_by_package.items():
            if isinstance(events, int) or len(events) != 2 or (before := begun.get(key)) is None:
                others[key] = events
                continue
            if stage is None or key[1] != stage_number or key[0] != job_id:  # mostly runs of one stage
                job_id, stage_number = key[:2]
                stage = stages[job_id, stage_number]
            life = end(before, events[0], events[1]) if before.counted_with == stage.known else None
            if life is None:
                others[key] = events
            else:
                ended[key] = life
                stage.granted.append(life)
        return others

    def begin(self, events_by_package: EventsByPackage, stages: Stages) -> Others:
        """Join events of packages without a row that are a short life or its beginning; returns the other packages."""
        if not self._fresh:
            return dict(events_by_package)
        others: Others = {}
        fresh, first, begun, lived, ranks = self._fresh, self._first, self.begun, self.lived, SOURCE_RANKS
        job_id = stage_number = 0
        stage: StageWork | None = None
        for key, events in events_by_package.items():
            at = events if isinstance(events, int) else events[0]
            one = fresh[at]
            event, data = one.event, one.data
            if (
                type(data) is not AttemptCreated
                or event.epoch != 1
                or not event.time  # statistics treat 0 as unknown
                or data.lease_seconds is None
                or data.replaces is not None
                or data.replica
                or data.memory_bytes is not None
                or data.wall_seconds is not None
                or data.drop_revision
                or data.early
                or data.group is not None
            ):  # it does not begin with a lease, or is otherwise unusual
                others[key] = events
                continue
            if stage is None or key[1] != stage_number or key[0] != job_id:  # mostly runs of one stage
                job_id, stage_number = key[:2]
                stage = stages[job_id, stage_number]
            activity, number, site, pilot = stage.shape.activity(key[2], key[3]), event.attempt, data.site, data.pilot
            if activity is None or number is None:
                others[key] = events
                continue
            if at is events:  # share equal strings among cached lives
                site, pilot = intern(site), pilot if pilot is None else intern(pilot)
            life = BegunLife(
                number, site, activity, pilot, data.lease_seconds, data.remaining_seconds, event.time, first + at,
                stage.known, event.seen, ranks[event.source], event.n, event.stream,
            )  # fmt: skip
            if isinstance(events, int):
                begun[key] = life
                stage.began.append(life)
                continue
            over = self._end(life, events[1], events[2]) if len(events) == 3 else None
            if over is None:
                others[key] = events
            else:
                lived[key] = over
                stage.began.append(over)
                stage.granted.append(over)
        return others

    def _end(self, before: BegunLife, last: int, granted: int) -> EndedLife | None:
        """A life with the end and the grant of its attempt; None if the two events are not that."""
        first, number, end, grant = self._first, before.attempt, self._fresh[last], self._fresh[granted]
        data, event, grant_event = end.data, end.event, grant.event
        if (
            type(data) is not AttemptFinished
            or type(grant.data) is not CommitGranted
            or event.attempt != number
            or grant_event.attempt != number
            or event.epoch != 1
            or grant_event.epoch != 1
            or data.exit_code is not _SUCCESS
            or data.exit_message
            or data.reason is not None
            or data.signal is not None
            or not grant_event.time
        ):
            return None
        return EndedLife(
            number, before.site, before.activity, before.pilot, before.lease_seconds, before.remaining_seconds,
            before.created_at, before.position, before.counted_with, data.node, data.manifest is not None, event.time,
            first + last, grant_event.time, first + granted, data.exit_status, data.peak_memory_bytes,
            data.peak_memory_below_bytes, data.cpu_seconds, data.cpu_user_seconds, data.cpu_system_seconds,
            data.read_bytes, data.written_bytes,
        )  # fmt: skip
