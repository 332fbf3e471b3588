"""The batch systems at which the agent of a site has something: the one that its entry names, and those that it named before.

What was submitted to another one before the entry changed is looked at and ended there, for as long as anything of it is left.
One that does not answer any more holds up nobody: it is asked more and more seldom.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pilotage.agent.batch import Unknown
from pilotage.agent.site_memory import SUBMITTED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pilotage.agent.batch.desk import Desk, Listed
    from pilotage.agent.silence import Notice
    from pilotage.agent.site_memory import SiteMemory

AGAIN_SECONDS = (10.0, 600.0)


class _Former:
    """A batch system that the entry named before."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.again_at = -math.inf
        self.pause_seconds = AGAIN_SECONDS[0]


class SiteDesks:
    """The desk of the batch system that the entry names, and beside it those at which something is left; see `Desk`."""

    def __init__(
        self,
        current: Desk,
        *,
        memory: SiteMemory,
        others: Mapping[str, Callable[[], Desk]],
        say: Callable[[str], None],
    ) -> None:
        """Take the desk of the entry's system, and what makes one of each other that is known, by name."""
        self._current = current
        self._memory = memory
        self._others = others
        self._say = say
        self._formers: dict[str, _Former] = {}

    def submit_pilots(self, key: str, count: int = 1) -> list[str]:
        """Start pilots, where the entry says."""
        return self._current.submit_pilots(key, count)

    def submit_attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> str:
        """Start an agent for one attempt, where the entry says."""
        return self._current.submit_attempt(key, serves=serves, demand=demand)

    def cancel(self, *keys: str) -> None:
        """End things, each where it was submitted. Raises `Unknown`."""
        elsewhere = self._elsewhere()
        for name, desk in self._due():
            some = [key for key in keys if elsewhere.get(key) == name]
            if some:
                with self._tried(name):
                    desk.cancel(*some)
        here = [key for key in keys if key not in elsewhere]
        if here:
            self._current.cancel(*here)

    def listing(self, expected: Collection[str] = ()) -> dict[str, Listed]:
        """What is there, and what has ended. Raises `Unknown` where the entry's own system does not answer."""
        elsewhere = self._elsewhere()
        for name in {*elsewhere.values()} - self._formers.keys():
            self._formers[name] = _Former(self._others[name]())
        found: dict[str, Listed] = {}
        for name, desk in self._due():
            with self._tried(name):
                listed = desk.listing([key for key in expected if elsewhere.get(key) == name])
                found.update((key, seen) for key, seen in listed.items() if elsewhere.get(key) == name)
        found.update(self._current.listing([key for key in expected if key not in elsewhere]))
        return found

    def notice(self, unheard: Collection[str]) -> list[Notice]:
        """What somebody should know of things that have not spoken."""
        elsewhere = self._elsewhere()
        return self._current.notice([key for key in unheard if key not in elsewhere])

    def _elsewhere(self) -> dict[str, str]:
        """The batch system of what was submitted to another than the entry's, and has not ended, by key."""
        return {
            key: record.scheduler
            for key, record in self._memory.records.items()
            if record.state == SUBMITTED and record.scheduler in self._others
        }

    def _due(self) -> list[tuple[str, Desk]]:
        """The systems that the entry named before, at which something is left, and that are to be asked now."""
        left, now = {*self._elsewhere().values()}, time.monotonic()
        return [
            (name, former.desk) for name, former in self._formers.items() if name in left and now >= former.again_at
        ]

    @contextmanager
    def _tried(self, name: str) -> Iterator[None]:
        """Ask a system that is not the entry's any more; whether it answers is nobody else's matter."""
        former = self._formers[name]
        try:
            yield
        except Unknown as unknown:
            former.again_at = time.monotonic() + former.pause_seconds
            former.pause_seconds = min(2.0 * former.pause_seconds, AGAIN_SECONDS[1])
            self._say(f"{name}, which the entry named before, does not answer, and has something of ours: {unknown}")
        else:
            former.pause_seconds = AGAIN_SECONDS[0]
