"""What attempts have staged, each under a key of its own, and who read what: the physical truth about files."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.model.exchange import AttemptRef
from pilotage.simulator.clock import Schedule

OnRead = Callable[[AttemptRef, AttemptRef, float], None]
"""Told of each read: the reader, what was read, and when."""


class Store:
    """Staged outputs. Nothing is ever overwritten by another attempt; for a time they may be out of reach."""

    def __init__(self, schedule: Schedule, *, on_read: OnRead | None = None, remembers: bool = True) -> None:
        """Take the clock, and who is told of reads; large benches have it remember no list of them."""
        self._schedule = schedule
        self._staged: dict[str, dict[str, int]] = {}  # by job and package: its attempts that staged, one bit each
        self._back_at: dict[AttemptRef, float] = {}
        self._on_read = on_read
        self._remembers = remembers
        self.reads: list[tuple[AttemptRef, AttemptRef]] = []

    def stage(self, ref: AttemptRef) -> None:
        """Keep what an attempt made."""
        staged = self._staged.get(ref.job)
        if staged is None:
            staged = self._staged[ref.job] = {}
        own = 1 << ref.attempt
        if (before := staged.setdefault(ref.package, own)) != own:
            staged[ref.package] = before | own

    def has(self, ref: AttemptRef) -> bool:
        """Whether the files of an attempt are there and within reach."""
        staged = self._staged.get(ref.job)
        if staged is None or not staged.get(ref.package, 0) >> ref.attempt & 1:
            return False
        back_at = self._back_at.get(ref) if self._back_at else None
        if back_at is None:
            return True
        if self._schedule.now < back_at:
            return False
        del self._back_at[ref]
        return True

    def read(self, ref: AttemptRef, reader: AttemptRef) -> bool:
        """Let an attempt read the files of another; False where they are not there. A vain read is remembered too."""
        if self._remembers:
            self.reads.append((reader, ref))
        if self._on_read is not None:
            self._on_read(reader, ref, self._schedule.now)
        if self._back_at:
            return self.has(ref)
        staged = self._staged.get(ref.job)
        return staged is not None and bool(staged.get(ref.package, 0) >> ref.attempt & 1)

    def vanish(self, ref: AttemptRef, until: float) -> None:
        """Put the files of an attempt out of reach until a time."""
        self._back_at[ref] = max(until, self._back_at.get(ref, 0.0))
