"""What time it is."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """What time it is."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        ...
