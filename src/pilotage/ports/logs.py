"""Logs of attempts: the beginning and the end of what each printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pilotage.model.exchange.exchange import LogText


class AttemptLogs(Protocol):
    """Stores what attempts printed, until their job is purged. Losing it loses no state."""

    def put(self, logs: Sequence[LogText]) -> None:
        """Store logs, replacing earlier ones of the same attempt and stream."""
        ...

    def read(self, job: str, package: str) -> list[LogText]:
        """The logs of all attempts of a package, in order."""
        ...

    def read_job(self, job: str) -> Iterator[LogText]:
        """The logs of all attempts of a job, by package, in order; a few at a time."""
        ...

    def forget(self, job: str) -> None:
        """Delete the logs of a purged job."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...
