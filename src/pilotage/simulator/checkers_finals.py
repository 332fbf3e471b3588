"""Doubts the ends of jobs: what runs last waits for all the others, and a status that ends a job ends it.

A final package begins when every other package of its job has ended or was dropped. After an exit status that its template
says to end the job on, nothing of the job begins but final packages and what somebody has opened or restored since.
"""

from __future__ import annotations

from pilotage.model import payloads
from pilotage.model.outcomes import ExitCodeGasw
from pilotage.simulator.checkers_traces import AttemptTrace, JobTrace, PackageTrace, Record

FINALS = "finals"


class Finals:
    """Which jobs were ended by a package, and when packages were opened again."""

    def __init__(self, record: Record) -> None:
        """Share what the other checkers know."""
        self._record = record
        self._ended: dict[str, tuple[int, PackageTrace]] = {}  # by job: since which position, and by whom
        self._opened: dict[tuple[str, str], int] = {}  # by job and place: the position

    def on_created(self, package: PackageTrace, attempt: int) -> None:
        """An attempt begins."""
        template, job = package.template, package.job
        if template is not None and template.final:
            self._check_last(job, package, attempt)
            return
        since, by = self._ended.get(job.name, (0, package))
        opened = self._opened.get((job.name, package.place), 0)
        if package.drops:
            opened = max(opened, max(package.drops)[1])
        if since > opened:
            message = f"attempt {attempt} was created after {by.place} had ended the job"
            raise self._record.broken(FINALS, message, package)

    def _check_last(self, job: JobTrace, package: PackageTrace, attempt: int) -> None:
        plan = job.plan
        for number in range(plan.count) if plan is not None else ():
            other = job.by_number.get(number)
            if plan is None or plan.templates[int(plan.template_of[number])].final:
                continue
            if other is None or not (other.state or other.dropped):
                message = f"attempt {attempt} of what runs last was created before {job.name_of(number)} was over"
                raise self._record.broken(FINALS, message, package)

    def on_finished(self, package: PackageTrace, attempt: AttemptTrace, data: payloads.AttemptFinished) -> None:
        """An attempt failed; told before the trace knows of it."""
        status = self._status(package)
        if not status or data.exit_status != status or attempt.finished or attempt.staged:
            return
        stopped = data.exit_code == ExitCodeGasw.EXECUTION_CANCELED and data.reason is None
        if not stopped and attempt.epoch == package.epoch and not package.state and not package.dropped:
            self._ended.setdefault(package.job.name, (self._record.position, package))

    def on_granted(self, package: PackageTrace) -> None:
        """An attempt succeeded."""
        if self._status(package) == 0:
            self._ended[package.job.name] = (self._record.position, package)

    def on_opened(self, package: PackageTrace) -> None:
        """A new epoch of a package; where that is the one that had ended the job, it goes on."""
        self._opened[package.job.name, package.place] = self._record.position
        ended = self._ended.get(package.job.name)
        if ended is not None and ended[1] is package:
            del self._ended[package.job.name]

    def _status(self, package: PackageTrace) -> int | None:
        template = package.template
        if template is None or template.abort_on is None or template.final:
            return None
        return template.abort_on.exit_code
