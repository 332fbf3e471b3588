"""A service that was started for a run ends by itself when there is nothing to run and nobody asks any more."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pilotage.engine.engine import Engine
from pilotage.engine.jobs import JobState, Standing
from pilotage.model.errors import PilotageError
from pilotage.service.http.listener import Listener
from pilotage.service.http.running import Running
from pilotage.service.http.watching import watched

log = logging.getLogger(__name__)

LOOKS = 10
"""So often within its patience it looks whether there is anything to do."""


def end_when_idle(listener: Listener, running: Running, *, idle_seconds: float) -> Callable[[], None]:
    """Watch from a thread, and end the listener when its time has come; what is returned ends the watching."""

    def watch(over: threading.Event) -> None:
        busy_at = time.monotonic()
        while not over.wait(idle_seconds / LOOKS):
            now = time.monotonic()
            try:
                works = not listener.started or running.jobs.ask(has_work).result()
            except PilotageError:
                return  # it is about to end anyway
            if works or running.asked.under_way:
                busy_at = now
            if now - max(busy_at, running.asked.last_at) >= idle_seconds:
                log.warning("nothing to do and nobody asks: the service ends")
                listener.should_exit = True
                return

    return watched(watch, name="idling")


def has_work(engine: Engine) -> bool:
    """Whether anything is left to be done: also what is held, which somebody may release."""
    return any(_goes_on(job) for job in engine.state.jobs.by_id.values())


def _goes_on(job: JobState) -> bool:
    if job.cancelled or job.aborted:
        return job.counts[Standing.LIVE] > 0  # its agents are still to be told
    return job.unfinished > 0 or bool(job.late)
