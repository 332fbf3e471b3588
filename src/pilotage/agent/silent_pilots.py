"""Tells of things that run and have not spoken: after a while, with what they printed so far; not at each look."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

SILENT_SECONDS = 30.0
"""What runs for so long without a word is told of."""
AGAIN_SECONDS = 60.0
"""What one printed is read again after so long."""
READ_MAX = 5  # of which it is read at all: many that are silent together say the same
NOTICES_MAX = 100


class Notice(NamedTuple):
    """Something that is there, and of which somebody should know."""

    key: str
    state: str  # `running`, and it has not spoken for a while; or `held`: it will not begin by itself
    words: str = ""  # the last that it printed, or what its batch system says


class _Silent(NamedTuple):
    since: float
    read_at: float = float("-inf")
    words: str = ""


class Silence:
    """Remembers since when things run without a word, and what they printed; one thread at a time may use it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing."""
        self._clock = clock
        self._silent: dict[str, _Silent] = {}

    def notice(self, running: Collection[str], read: Callable[[Collection[str]], Mapping[str, str]]) -> list[Notice]:
        """Of what runs and has not spoken, all that did so for a while; what it printed is had from `read` now and then."""
        now = self._clock()
        self._silent = {key: self._silent.get(key, _Silent(now)) for key in running}
        long = [key for key, known in self._silent.items() if now >= known.since + SILENT_SECONDS]
        due = [key for key in long[:READ_MAX] if now >= self._silent[key].read_at + AGAIN_SECONDS]
        said = read(due) if due else {}
        for key in due:
            known = self._silent[key]
            self._silent[key] = _Silent(known.since, now, said.get(key, "") or known.words)
        return [Notice(key, "running", self._silent[key].words) for key in long[:NOTICES_MAX]]
