"""What is not, or not any more, in the book: jobs and packages that were asked for."""

from __future__ import annotations

from pilotage.book.rows import JobRow
from pilotage.model.errors import PilotageError


class UnknownJob(PilotageError):
    """No such job was ever registered here."""


class UnknownPackage(PilotageError):
    """The job has no such package."""


class JobPurged(PilotageError):
    """The job existed, and everything about it was deleted when its time was over; the message says when."""

    def __init__(self, job: JobRow) -> None:
        """Say which, and when."""
        self.purged_at = job.purged_at
        super().__init__(
            "this job was purged: its events and packages are gone, and lists have what is left of it",
            subject=f"job {job.job}",
            next_step="a dump of it, if one was made, can be loaded into another book: pilotage book load --journal sqlite:DIR",
        )
