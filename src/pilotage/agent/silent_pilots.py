"""Reports batch jobs that run without contacting the service, with their output so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

SILENT_SECONDS = 30.0
"""A batch job that runs so long without contact is reported."""
AGAIN_SECONDS = 60.0
"""Its output is read again after so long."""
READ_MAX = 5  # outputs to read: many pilots that are silent together have the same cause
NOTICES_MAX = 100


class BatchJobNotice(NamedTuple):
    """A batch job that needs attention."""

    key: str
    state: str  # `running`: silent for a while; `held`: will not start by itself
    words: str = ""  # the last lines of its output, or the reason from the batch system


class _Silent(NamedTuple):
    since: float
    read_at: float = float("-inf")
    words: str = ""


class SilentPilots:
    """Remembers since when batch jobs run without contact, and their output; for one thread at a time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: dict[str, _Silent] = {}

    def notice(
        self, running: Collection[str], read: Callable[[Collection[str]], Mapping[str, str]]
    ) -> list[BatchJobNotice]:
        """Report running jobs that have been silent for a while; `read` fetches their output now and then."""
        now = self._clock()
        self._silent = {key: self._silent.get(key, _Silent(now)) for key in running}
        long = [key for key, known in self._silent.items() if now >= known.since + SILENT_SECONDS]
        due = [key for key in long[:READ_MAX] if now >= self._silent[key].read_at + AGAIN_SECONDS]
        outputs = read(due) if due else {}
        for key in due:
            known = self._silent[key]
            self._silent[key] = _Silent(known.since, now, outputs.get(key, "") or known.words)
        return [BatchJobNotice(key, "running", self._silent[key].words) for key in long[:NOTICES_MAX]]
