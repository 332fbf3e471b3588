"""The logs of attempts: the beginning and the end of what each printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pilotage.model.exchange.exchange import LogText


class AttemptLogs(Protocol):
    """What attempts printed, until their job is purged. Losing it loses no state."""

    def put(self, logs: Sequence[LogText]) -> None:
        """Keep logs; what was kept of the same attempt and stream before is replaced."""
        ...

    def read(self, job: str, package: str) -> list[LogText]:
        """The logs of every attempt of a package, in order."""
        ...

    def forget(self, job: str) -> None:
        """Remove the logs of a job that is purged."""
        ...

    def close(self) -> None:
        """Close it."""
        ...
