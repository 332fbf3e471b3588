"""Waiting for news of a job: woken by the commits of the writer, never by asking again and again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Listener:
    """One who waits for news of a job, on the event loop they listen from."""

    def __init__(self) -> None:
        """Begin to listen on the running loop."""
        self.loop = asyncio.get_running_loop()
        self.heard = asyncio.Event()

    async def news(self, *, wait_seconds: float) -> bool:
        """Wait until something may be new; False where the time is over."""
        try:
            await asyncio.wait_for(self.heard.wait(), wait_seconds)
        except TimeoutError:
            return False
        self.heard.clear()
        return True


class Bell:
    """Rung by the writer for the jobs of each commit; wakes those who listen for one of them."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._guard = threading.Lock()
        self._listeners: dict[str, set[Listener]] = {}
        self.stopped = False

    @contextmanager
    def listen(self, job: str) -> Iterator[Listener]:
        """Listen for a job. Begin before you look: then nothing falls between looking and waiting."""
        listener = Listener()
        with self._guard:
            self._listeners.setdefault(job, set()).add(listener)
        try:
            yield listener
        finally:
            with self._guard:
                others = self._listeners[job]
                others.discard(listener)
                if not others:
                    del self._listeners[job]

    def ring(self, jobs: Iterable[str]) -> None:
        """Wake who listens for one of these jobs; from any thread, after the commit."""
        # Who is not here yet looks after the commit, and sees it.
        if not self._listeners:
            return
        with self._guard:
            woken = [listener for job in set(jobs) for listener in self._listeners.get(job, ())]
        _wake(woken)

    def stop(self) -> None:
        """Wake everybody for good: the service stops."""
        self.stopped = True
        with self._guard:
            woken = [listener for listeners in self._listeners.values() for listener in listeners]
        _wake(woken)


def _wake(listeners: Iterable[Listener]) -> None:
    for listener in listeners:
        listener.loop.call_soon_threadsafe(listener.heard.set)
