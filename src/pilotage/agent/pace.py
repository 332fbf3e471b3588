"""How long attempts took lately, and so how many had better wait here for the slots: none of which a slot elsewhere could do."""

from __future__ import annotations

AHEAD_SECONDS = 0.5  # as much work waits here as the slots do in this time: a long attempt had better wait elsewhere
AHEAD_FACTOR = 8  # of few that are over little is known, and few come sooner: so many for each of them wait at most
_LATEST_PART = 0.2  # of the figure is what the latest one took
_SECONDS_MIN = 1e-4


class Pace:
    """What is known of the attempts of a pilot; guarded by whoever shares it."""

    __slots__ = ("_known", "_seconds")

    def __init__(self) -> None:
        """Begin with none."""
        self.forget()

    def forget(self) -> None:
        """What comes next may be something else."""
        self._seconds = 0.0
        self._known = 0  # how many are over

    def note(self, seconds: float) -> None:
        """One more is over, after so long."""
        self._seconds = seconds if not self._known else self._seconds + _LATEST_PART * (seconds - self._seconds)
        self._known += 1

    def ahead(self, slots: int) -> int:
        """How many attempts may wait for so many slots; where none is over yet, as many as there are slots."""
        if not self._known:
            return slots
        return min(int(slots * AHEAD_SECONDS / max(self._seconds, _SECONDS_MIN)), AHEAD_FACTOR * self._known)
