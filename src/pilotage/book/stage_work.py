"""A stage while a batch is joined: its shape, and its histogram and that of its job, which change with its packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pilotage.book import tally
from pilotage.book.bins import NEVER
from pilotage.book.lives import Lives
from pilotage.book.rows import Counted, JobRow, Keys, StageRow, keys_of
from pilotage.book.settle import DONE, RUNNING, default_state
from pilotage.book.shapes import Shape, shape_of
from pilotage.book.short_rows import Begun, Ended

_RUNS: tally.Standing = (RUNNING, 0, 1, 0)
_DONE: tally.Standing = (DONE, 0, 1, 1)


class StageWork:
    """A stage whose histogram may change; packages that nothing was heard of are taken out and put back at the end."""

    __slots__ = ("began", "granted", "job", "keys", "known", "moves", "new", "row", "shape")

    def __init__(self, row: StageRow, job: JobRow, *, job_before: JobRow, new: bool) -> None:
        """Take the untouched packages out of the histograms of the stage and of its job, where they were counted."""
        self.row = row
        self.job = job
        self.new = new
        self.keys: Keys = keys_of(row)
        self.moves: dict[tuple[tally.Standing | None, tally.Standing | None], int] = {}
        self.known = known_of(job)
        self.began: list[Begun | Ended] = []  # the short lives of this stage that did in this batch,
        self.granted: list[Ended] = []  # and those that ended in it
        self.shape: Shape = shape_of(row.shape, stage=row.stage)  # the packages it has
        self.count((default_state(job_before), 0, 0, 0), -tally.untouched(row))

    def count(self, what: tally.Standing, by: int) -> None:
        """Count packages in the stage and in its job."""
        tally.count(self.row, what, by)
        tally.count(self.job, what, by)

    def expect(self, text: str) -> None:
        """Give the stage another shape."""
        before, late_before = self.row.expected, self.row.late
        self.row.shape = text
        shape = self.shape = shape_of(text, stage=self.row.stage)
        self.row.expected, self.row.late = shape.count, int(shape.late)
        self.job.expected += shape.count - before
        self.job.late += self.row.late - late_before

    def touch(self, by: int) -> None:
        """Count a package of the shape as heard of."""
        self.row.touched += by
        self.job.touched += by

    @property
    def is_rumour(self) -> bool:
        """Whether nothing is known of it: no shape, and no package that counts."""
        return self.new and not self.keys and not any(getattr(self.row, name) for name in Counted.__struct_fields__)

    def close(self) -> None:
        """Count the packages that moved, and put the untouched ones where the job says they stand."""
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
        self.count((default_state(self.job), 0, 0, 0), tally.untouched(self.row))


def known_of(job: JobRow) -> tuple[float, float]:
    """When a job was submitted and accepted, as statistics take it; no batch with short lives changes that."""
    return job.submitted_at or NEVER, job.accepted_at or NEVER


def short_lives(stages: Iterable[StageWork]) -> Iterator[tuple[JobRow, Lives]]:
    """The short lives of each job, gathered from its stages."""
    jobs: dict[int, tuple[JobRow, list[Begun | Ended], list[Ended]]] = {}
    for stage in stages:
        if stage.began or stage.granted:
            _, began, granted = jobs.setdefault(stage.row.job_id, (stage.job, [], []))
            began += stage.began
            granted += stage.granted
    return ((job, Lives(began, granted)) for job, began, granted in jobs.values())


def tell_of_lives(job: JobRow, lives: Lives) -> None:
    """Tell a job of short lives: when it was heard of, when it first ran and when it last ended something."""
    began, finished, granted = lives.began, lives.finished, lives.granted
    told = [*began, *finished, *granted]
    first, last = min(told), max(told)
    job.updated_at = max(job.updated_at, last)
    job.started_at = first if job.started_at is None else min(job.started_at, first)
    if granted:
        last = max(granted)
        job.finished_at = last if job.finished_at is None else max(job.finished_at, last)
