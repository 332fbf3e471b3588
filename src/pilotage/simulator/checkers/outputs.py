"""Checks outputs in stores and on purpose deleted ones: what is granted is stored, and what is deleted nobody needs.

The truth is what really lies in the stores, whatever was reported.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.book.codec import Checked
from pilotage.model.events import file_payloads, payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.graph import EdgeKind
from pilotage.simulator.checkers.records import ABORTED, CANCELLED, DONE, JobTrace, PackageTrace, Record, Rules

COPIES = "copies"
DISPOSAL = "disposal"
_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)


class Outputs:
    """The copies of outputs, and which outputs were disposed of."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._wanted = rules.copies
        self._copies: dict[str, tuple[AttemptRef, str]] = {}  # in the stores, by locator: of whom, and the checksum
        self._stored: dict[AttemptRef, file_payloads.OutputsStored] = {}  # by the events
        self._staged: dict[AttemptRef, tuple[payloads.OutputFile, ...]] = {}
        self._disposed: dict[tuple[str, str], int] = {}  # by job and address: the attempt

    def on_written(self, checked: Checked) -> None:
        """Check a durable event, after its attempt and package were noted."""
        event, data = checked.event, checked.data
        if event.package is None or event.job is None:
            return
        package = self._record.job(event.job).package(event.package)
        ref = AttemptRef(event.job, event.package, event.attempt or 0)
        match data:
            case payloads.AttemptCreated():
                self._on_created(package, attempt=ref.attempt)
            case payloads.OutputsStaged():
                self._staged.setdefault(ref, data.manifest)
            case payloads.AttemptFinished() if data.manifest:
                self._staged.setdefault(ref, data.manifest)
            case file_payloads.OutputsStored():
                self._stored[ref] = data
            case payloads.CommitGranted():
                self._on_granted(package, ref)
            case file_payloads.OutputsDisposed():
                self._on_disposed(package, ref)
            case _:
                pass

    def on_copied(self, ref: AttemptRef, *, locator: str, sha256: str) -> None:
        """A copy of an output of an attempt is in a store, in the place of an earlier one."""
        self._copies[locator] = (ref, sha256)

    def check_finished(self) -> None:
        """What was deletable is gone once all its readers are done."""
        for job in self._record.jobs.values():
            for package in list(job.packages.values()):
                if package.state == DONE and not package.dropped and self._is_due(package):
                    message = "is done, and so are all that read its deletable outputs, which are still there"
                    raise self._record.broken(DISPOSAL, message, package)

    def _on_granted(self, package: PackageTrace, ref: AttemptRef) -> None:
        if package.template is None or not package.template.stores_outputs:
            return
        wanted = self._wanted.get(ref.job, 0)
        if not wanted:
            return
        told = self._stored.get(ref)
        if told is None or told.failed:
            what = "no copies of its outputs were verified" if told is None else "a copy of its outputs had failed"
            raise self._record.broken(COPIES, f"attempt {ref.attempt} was granted, and {what}", package)
        for output in self._staged.get(ref, ()):
            told_at = {each.locator for each in told.copies if each.name == output.name}
            right = [at for at in told_at if self._copies.get(at, (None, ""))[1] == output.sha256]
            if len(right) < wanted:
                message = (
                    f"attempt {ref.attempt} was granted, and {len(right)} of {wanted} copies of {output.name} exist"
                )
                raise self._record.broken(COPIES, message, package)

    def _on_disposed(self, package: PackageTrace, ref: AttemptRef) -> None:
        if package.template is None or not package.template.disposes_outputs:
            raise self._record.broken(DISPOSAL, "its outputs were disposed of, and none of them is deletable", package)
        if self._disposed.get((ref.job, ref.package)) == ref.attempt:
            raise self._record.broken(DISPOSAL, f"the outputs of attempt {ref.attempt} were disposed of twice", package)
        for consumer, place in self._readers(package):
            if package.job.cancelled or package.job.aborted:
                break
            if consumer is None or not (consumer.state or consumer.dropped):
                message = f"the outputs of attempt {ref.attempt} were disposed of, and {place} may still read them"
                raise self._record.broken(DISPOSAL, message, package)
        if (stage := self._listed_by(package)) is not None:
            message = (
                f"the outputs of attempt {ref.attempt} were disposed of, and stage {stage} has not listed them yet"
            )
            raise self._record.broken(DISPOSAL, message, package)
        self._disposed[ref.job, ref.package] = ref.attempt

    def _on_created(self, package: PackageTrace, *, attempt: int) -> None:
        """An attempt begins only if the outputs that it reads exist."""
        job = package.job
        for number, kinds in job.producers(package.number) if package.number is not None else ():
            producer = job.by_number.get(number)
            if not kinds & _FILES or producer is None or producer.dropped or not producer.granted:
                continue
            if self._disposed.get((job.name, producer.place)) == producer.granted:
                message = f"attempt {attempt} was created, and the outputs of {producer.place} were disposed of"
                raise self._record.broken(DISPOSAL, message, package)

    def _is_due(self, package: PackageTrace) -> bool:
        """Whether the outputs of a package should be gone and are not."""
        if package.template is None or not package.template.disposes_outputs:
            return False
        if self._disposed.get((package.job.name, package.place)) == package.granted:
            return False
        readers = list(self._readers(package))
        done = all(each is not None and (each.state == DONE or each.dropped) for each, _ in readers)
        return bool(readers) and done and self._unlisted(package.job) is None

    def _readers(self, package: PackageTrace) -> Iterator[tuple[PackageTrace | None, str]]:
        """The packages that read the outputs of a package."""
        job = package.job
        if job.plan is None or package.number is None:
            return
        for number in job.plan.graph.successors(package.number).tolist():
            if any(producer == package.number and kinds & _FILES for producer, kinds in job.producers(number)):
                yield job.by_number.get(number), job.name_of(number)

    def _listed_by(self, package: PackageTrace) -> int | None:
        """A late stage that lists the outputs of a package and may still be expanded."""
        job = package.job
        if job.plan is None or job.cancelled or job.aborted:
            return None
        for late in job.plan.late:
            if package.number not in late.packages or late.stage in job.expanded:
                continue
            producers = [job.by_number.get(number) for number in late.packages]
            if not any(each is not None and each.state in (ABORTED, CANCELLED) for each in producers):
                return late.stage
        return None

    def _unlisted(self, job: JobTrace) -> int | None:
        """A late stage that is not expanded."""
        return next((stage for stage in job.late if stage not in job.expanded), None)
