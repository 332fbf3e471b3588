"""The working set of one batch: the rows it touches, loaded once, with what they counted as before."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from pilotage.book import statistics, tally
from pilotage.book.ledger import Ledger, PackageKey
from pilotage.book.left_out import put_back
from pilotage.book.rows import JobRow, PackageFacts, PackageRow, StageRow
from pilotage.book.short import ShortLives, Told
from pilotage.book.stage_work import StageWork

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


class Working:
    """Everything that one batch touches."""

    def __init__(self, ledger: Ledger, jobs: dict[str, JobRow], short: ShortLives) -> None:
        """Begin with the jobs, and with those who know a short life when they see one."""
        self._ledger = ledger
        self.short = short
        self.jobs = {row.job_id: row for row in jobs.values()}
        self._jobs_before = {row.job_id: msgspec.structs.replace(row) for row in jobs.values()}
        self.packages: dict[PackageKey, WorkedPackage] = {}
        self.stages: dict[tuple[int, int], StageWork] = {}
        self.all_stages: set[int] = set()

    def load_packages(self, told: Told) -> None:
        """Load packages of stages that are here, with all their attempts; what has no row is made.

        `told` numbers the events about each. Where these are a short life, nothing is left to be done for it.
        """
        packages, stages, short = self.packages, self.stages, self.short
        others = short.end(told, self._ledger.begun_packages(), stages)
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
        """Take rows in that were found otherwise, unless they are here."""
        here = self.packages
        fresh = [row for row in rows if (row.job_id, row.stage, row.line, row.number) not in here]
        self.load_stages({(row.job_id, row.stage) for row in fresh})
        self._add(fresh)

    def _add(self, rows: Iterable[PackageRow]) -> None:
        for row in rows:
            work = WorkedPackage(row, self.jobs[row.job_id], new=False)
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
        return StageWork(row, self.jobs[row.job_id], job_before=self._jobs_before[row.job_id], new=new)

    def load_stages_of(self, job_id: int) -> None:
        """Load every stage of a job."""
        if job_id in self.all_stages:
            return
        self.all_stages.add(job_id)
        for row in self._ledger.stages_of(job_id):
            if (row.job_id, row.stage) not in self.stages:
                self.stages[row.job_id, row.stage] = self._stage(row)
