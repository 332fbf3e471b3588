"""What is at a site under our name and nobody waits for: it was to be ended, and whoever was to do it did not come to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from pilotage.engine.engine import Engine

STRAY_SECONDS = 60.0
"""What nobody knows for so long is ended: what has just come to its end is still there for a moment."""

Unknown = Callable[[Collection[str]], Collection[str]]
"""Those of some keys that nobody knows."""


class Strays:
    """Remembers since when nobody has known what is there; one thread at a time may use it."""

    def __init__(self, unknown: Unknown, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take who knows what should be there."""
        self._unknown = unknown
        self._clock = clock
        self._since: dict[str, float] = {}

    def among(self, keys: Collection[str]) -> list[str]:
        """Those of what is there now that are to be ended."""
        now = self._clock()
        self._since = {key: self._since.get(key, now) for key in (self._unknown(keys) if keys else ())}
        return [key for key, since in self._since.items() if now >= since + STRAY_SECONDS]


def unknown_at(site: str, keys: Collection[str], engine: Engine) -> list[str]:
    """Those of some keys under which nothing is wanted at a site, and nothing is known to be at work there."""
    state = engine.state.sites.by_name.get(site)
    if state is None:
        return []
    known = (state.requests, state.bound, state.by_request, engine.state.abandoned.pilots_by_request)
    return [key for key in keys if not any(key in each for each in known)]


def none_unknown(_: Collection[str]) -> Collection[str]:
    """Where nobody can tell, everything counts as known."""
    return ()
