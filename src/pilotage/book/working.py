"""The working set of one batch: the rows it touches, loaded once, with what they counted as before."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from pilotage.book import statistics, tally
from pilotage.book.ledger import Ledger, PackageKey
from pilotage.book.rows import Counted, JobRow, Keys, PackageFacts, PackageRow, StageRow, keys_of
from pilotage.book.settle import default_state
from pilotage.book.shapes import Shape, shape_of

UNKNOWN_SHAPE = '{"items":0}'


class WorkedPackage:
    """A package that is being joined, and what it counted as before."""

    __slots__ = ("before", "facts", "job", "new", "observed", "row", "shaped_before")

    def __init__(self, row: PackageRow, job: JobRow, *, new: bool) -> None:
        """Note what the row counted as."""
        self.row = row
        self.facts = facts = row.facts
        self.job = job
        self.new = new
        if new:
            self.shaped_before = 0
            self.before: tally.Standing | None = None
            self.observed: statistics.Tries | None = None
        else:
            self.shaped_before = facts.shaped
            self.before = row.counted or tally.standing(facts)
            self.observed = row.observed or statistics.observed(facts)


class StageWork:
    """A stage whose histogram may change; packages that nothing was heard of are taken out and put back at the end."""

    __slots__ = ("_shape", "job", "keys", "moves", "new", "row")

    def __init__(self, row: StageRow, job: JobRow, *, job_before: JobRow, new: bool) -> None:
        """Take the untouched packages out of the histograms of the stage and of its job, where they were counted."""
        self.row = row
        self.job = job
        self.new = new
        self.keys: Keys = keys_of(row)
        self.moves: dict[tuple[tally.Standing | None, tally.Standing | None], int] = {}
        self._shape: Shape | None = None
        self.count((default_state(job_before), 0, 0, 0), -tally.untouched(row))

    @property
    def shape(self) -> Shape:
        """The packages the stage has."""
        if self._shape is None:
            self._shape = shape_of(self.row.shape, stage=self.row.stage)
        return self._shape

    def count(self, what: tally.Standing, by: int) -> None:
        """Count packages in the stage and in its job."""
        tally.count(self.row, what, by)
        tally.count(self.job, what, by)

    def expect(self, text: str) -> None:
        """Give the stage another shape."""
        before, late_before = self.row.expected, self.row.late
        self.row.shape, self._shape = text, None
        shape = self.shape
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
        self.count((default_state(self.job), 0, 0, 0), tally.untouched(self.row))


class Working:
    """Everything that one batch touches."""

    def __init__(self, ledger: Ledger, jobs: dict[str, JobRow]) -> None:
        """Begin with the jobs."""
        self._ledger = ledger
        self._jobs = {row.job_id: row for row in jobs.values()}
        self._jobs_before = {row.job_id: msgspec.structs.replace(row) for row in jobs.values()}
        self.packages: dict[PackageKey, WorkedPackage] = {}
        self.stages: dict[tuple[int, int], StageWork] = {}
        self.all_stages: set[int] = set()

    def load_packages(self, keys: Iterable[PackageKey]) -> None:
        """Load packages with all their attempts, and their stages; what has no row is made."""
        packages, jobs = self.packages, self._jobs
        wanted = [key for key in keys if key not in packages]
        if not wanted:
            return
        self.load_stages({(key[0], key[1]) for key in wanted})
        self._add(self._ledger.packages(wanted))
        for key in wanted:
            if key not in packages:
                job_id, stage, line, number = key
                row = PackageRow(job_id, stage, line, number, PackageFacts())
                packages[key] = WorkedPackage(row, jobs[job_id], new=True)

    def load_rows(self, rows: Iterable[PackageRow]) -> None:
        """Take rows in that were found otherwise, unless they are here."""
        here = self.packages
        fresh = [row for row in rows if (row.job_id, row.stage, row.line, row.number) not in here]
        self.load_stages({(row.job_id, row.stage) for row in fresh})
        self._add(fresh)

    def _add(self, rows: Iterable[PackageRow]) -> None:
        for row in rows:
            work = WorkedPackage(row, self._jobs[row.job_id], new=False)
            self.packages[row.job_id, row.stage, row.line, row.number] = work

    def load_stages(self, keys: Collection[tuple[int, int]]) -> None:
        """Load stages; those that nobody told of are made, without a shape."""
        wanted = keys - self.stages.keys()
        if not wanted:
            return
        for row in self._ledger.stages(wanted):
            self.stages[row.job_id, row.stage] = self._stage(row)
        for key in wanted - self.stages.keys():
            row = StageRow(job_id=key[0], stage=key[1], shape=UNKNOWN_SHAPE)
            self.stages[key] = self._stage(row, new=True)

    def _stage(self, row: StageRow, *, new: bool = False) -> StageWork:
        return StageWork(row, self._jobs[row.job_id], job_before=self._jobs_before[row.job_id], new=new)

    def load_stages_of(self, job_id: int) -> None:
        """Load every stage of a job."""
        if job_id in self.all_stages:
            return
        self.all_stages.add(job_id)
        for row in self._ledger.stages_of(job_id):
            if (row.job_id, row.stage) not in self.stages:
                self.stages[row.job_id, row.stage] = self._stage(row)
