"""Checks inputs: no attempt starts before its producers are granted, and none reads anything but granted outputs.

The inputs of an attempt are fixed at its creation: producers that were dropped by then do not exist for it, even if they are
restored later. A grant that a later epoch replaced before the reader was created is stale.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NoReturn

from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.jobs.graph import EdgeKind
from pilotage.simulator.checkers.records import AttemptTrace, JobTrace, PackageTrace, Record

READS = "reads"
RESTORES = "restores"
_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)
_AWAITED = int(EdgeKind.AWAITED)


class Inputs:
    """Checks what consumers read from producers."""

    def __init__(self, record: Record) -> None:
        """Share the record of the other checkers."""
        self._record = record

    def on_created(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        """An attempt was recorded: all its producers must be granted or dropped."""
        job = package.job
        fail = self._failing(READS, package)
        if job.plan is None or package.number is None:
            fail(f"attempt {attempt.number} is of a package that is in no plan")
        for number, kinds in job.producers(package.number):
            producer = job.by_number.get(number)
            dropped = producer is not None and producer.dropped
            if producer is not None and producer.drops and producer.dropped_at(attempt.revision) != dropped:
                fail(
                    f"attempt {attempt.number} has drop revision {attempt.revision}, and its producer "
                    f"{producer.place} was {'dropped' if dropped else 'restored'} after that and before it"
                )
            if kinds & _AWAITED and not dropped and (producer is None or not producer.granted):
                fail(f"attempt {attempt.number} was created before its producer {job.name_of(number)} was granted")
        template = int(job.plan.template_of[package.number])
        for stage in job.plan.late_waits.get(template, ()):
            if stage not in job.expanded:
                fail(f"attempt {attempt.number} was created before stage {stage}, which it waits for, was expanded")

    def on_assigned(self, package: PackageTrace, attempt: AttemptTrace, assignment: Assignment) -> None:
        """An agent got its list of inputs: it must be complete and contain nothing else."""
        fail = self._failing(READS, package)
        if assignment.drop_revision != attempt.revision:
            fail(f"assigned with drop revision {assignment.drop_revision}, created with {attempt.revision}")
        job = package.job
        given = {source.package: source.attempt for source in assignment.inputs}
        growing = {source.package: source.attempt for source in assignment.early}
        if not growing.items() <= attempt.early.items():
            fail(f"assigned to read early from {growing}, created to read from {attempt.early}")
        if package.number is None:
            return
        for number, kinds in job.producers(package.number):
            producer = job.by_number.get(number)
            if not kinds & _FILES:
                continue
            if producer is not None and producer.dropped_at(attempt.revision):
                continue
            if (producer.place if producer is not None else "") not in (given | growing):
                fail(f"attempt {attempt.number} was assigned without the files of {job.name_of(number)}")
        for place, number in given.items():
            self._check_source(package, attempt, place=place, number=number, verb="assigned")

    def on_read(self, reader: AttemptRef, source: AttemptRef) -> None:
        """An attempt read the files that another one staged."""
        job = self._record.job(reader.job)
        package = job.package(reader.package)
        attempt = package.attempts.get(reader.attempt)
        fail = self._failing(READS, package)
        if attempt is None:
            fail(f"attempt {reader.attempt} reads, and was never durably created")
        if source.job != reader.job:
            fail(f"attempt {reader.attempt} reads files of the job {source.job}")
        self._check_source(package, attempt, place=source.package, number=source.attempt, verb="read")

    def _check_source(
        self, package: PackageTrace, attempt: AttemptTrace, *, place: str, number: int, verb: str
    ) -> None:
        job = package.job
        producer = job.packages.get(place)
        what = f"attempt {attempt.number} was to take" if verb == "assigned" else f"attempt {attempt.number} took"
        fail = self._failing(READS, package)
        if producer is None or package.number is None or not self._feeds(producer, package):
            fail(f"{what} files of {place}, which is no producer of it")
        if producer.dropped_at(attempt.revision):
            fail(f"{what} files of {place}, which was dropped when it was created")
        known = latest = 0
        for position, granted in producer.grants:
            if granted == number:
                known = position
            if position < attempt.created:
                latest = position
        if not known:
            fail(f"{what} files of attempt {number} of {place}, which was never granted")
        if known < latest:
            fail(f"{what} files of attempt {number} of {place}; a later epoch was granted before it was created")

    def on_expanded(self, job: JobTrace, data: payloads.StageExpanded, *, epoch: int) -> None:
        """A late stage was expanded: from everything that it lists, once per epoch."""
        late = job.late.get(data.stage)
        if late is None:
            raise self._record.broken_job(READS, f"stage {data.stage} was expanded late, and is not late", job)
        if job.expanded.get(data.stage, 0) >= epoch:
            raise self._record.broken_job(READS, f"stage {data.stage} was expanded twice in epoch {epoch}", job)
        for number in late.packages:
            producer = job.by_number.get(number)
            if producer is None or not (producer.granted or producer.dropped):
                name = job.name_of(number)
                raise self._record.broken_job(
                    READS, f"stage {data.stage} was expanded before its producer {name} was granted or dropped", job
                )
        for stage in late.stages:
            if stage not in job.expanded:
                raise self._record.broken_job(READS, f"stage {data.stage} was expanded before stage {stage}", job)
        job.expanded[data.stage] = epoch

    def on_restored(self, package: PackageTrace, *, dropped_position: int) -> None:
        """A dropped package is restored: none of its consumers may have started without it."""
        job = package.job
        if job.plan is None or package.number is None:
            return
        for number in job.plan.graph.successors(package.number).tolist():
            consumer = job.by_number.get(number)
            if consumer is None:
                continue
            for attempt in consumer.attempts.values():
                if attempt.created < dropped_position or attempt.epoch != consumer.epoch:
                    continue
                # A failed attempt, or one of a package that was aborted in this epoch, no longer matters.
                if attempt.finished not in ("", "SUCCESS") or consumer.ended in ("ABORTED", "CANCELLED"):
                    continue
                if attempt.leased:
                    self._failing(RESTORES, package)(
                        f"restored after attempt {attempt.number} of its consumer {consumer.place} held a lease without it"
                    )
                attempt.stale = True  # the engine decides whether its success still counts

    def _feeds(self, producer: PackageTrace, consumer: PackageTrace) -> bool:
        plan = consumer.job.plan
        if plan is None or producer.number is None or consumer.number is None:
            return False
        for segment in plan.graph.segments:
            rows = segment.predecessors
            start, end = rows.span(consumer.number)
            found = bisect_left(rows.others, producer.number, start, end)  # rows are sorted
            if found < end and rows.others[found] == producer.number:
                return True
        return False

    def _failing(self, checker: str, package: PackageTrace) -> Callable[[str], NoReturn]:
        def fail(message: str) -> NoReturn:
            raise self._record.broken(checker, message, package)

        return fail
