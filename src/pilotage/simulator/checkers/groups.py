"""Checks attempts that share a batch job: alike, no more than allowed, and begun by its agents one after another."""

from __future__ import annotations

from pilotage.model.events.payloads import AttemptLost
from pilotage.model.resources import Demand
from pilotage.simulator.checkers.records import AttemptTrace, JobTrace, PackageTrace, Record, Rules

GROUPS = "groups"


class _BatchJob:
    __slots__ = ("attempts", "demand", "job", "site")

    def __init__(self, site: str, job: JobTrace, demand: Demand | None) -> None:
        self.site = site
        self.job = job
        self.demand = demand
        self.attempts: list[tuple[PackageTrace, AttemptTrace]] = []


class Groups:
    """The batch jobs that several attempts share, by key."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._most = rules.group_packages_max
        self._batch_jobs: dict[str, _BatchJob] = {}

    def on_created(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """A new attempt may share a batch job with equal ones, while nothing in it has begun, up to the limit."""
        if not attempt.group:
            return
        template = package.template
        demand = template.demand if template is not None else None
        found = self._batch_jobs.setdefault(attempt.group, _BatchJob(attempt.site, package.job, demand))
        found.attempts.append((package, attempt))
        why = ""
        if attempt.leased:
            why = "and has a pilot"
        elif (found.site, found.demand) != (attempt.site, demand) or found.job is not package.job:
            why = "with attempts of another site, job or demand"
        elif template is not None and template.side_effects:
            why = "and its package has side effects"
        elif any(each.leased for _, each in found.attempts):
            why = "after one in it had begun"
        elif 0 < self._most < len(found.attempts):
            why = f"as number {len(found.attempts)}, and {self._most} may"
        if why:
            raise self._record.broken(
                GROUPS, f"attempt {attempt.number} shares the batch job {attempt.group} {why}", package
            )

    def on_started(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """An attempt begins only in its own batch job, only if it was not taken back, and only when the one before it is over there."""
        found = self._batch_jobs.get(attempt.group)
        if found is None:
            return
        why = ""
        if (attempt.pilot or "").rpartition(".")[0] != attempt.group:
            why = f"was begun by {attempt.pilot}, which is no agent of its batch job"
        elif attempt.reason == "regrouped":
            why = "was begun after it was taken back from its batch job"
        elif any(each is not attempt and self._runs(other, each, attempt.pilot) for other, each in found.attempts):
            why = f"was begun by {attempt.pilot}, which runs another one"
        if why:
            raise self._record.broken(GROUPS, f"attempt {attempt.number} {why}", package)

    def _runs(self, package: PackageTrace, attempt: AttemptTrace, pilot: str | None) -> bool:
        """Whether a pilot is believed to run an attempt."""
        over = attempt.finished or attempt.staged or attempt.lost or attempt.epoch != package.epoch or package.state
        return attempt.pilot == pilot and attempt.leased and not over

    def on_lost(self, package: PackageTrace, attempt: AttemptTrace, data: AttemptLost) -> None:
        """Only an attempt that shares a batch job and has not begun is taken back from it."""
        if data.reason == "regrouped" and (not attempt.group or attempt.leased):
            message = f"attempt {attempt.number} was taken back from its batch job after it had begun"
            raise self._record.broken(GROUPS, message, package)
