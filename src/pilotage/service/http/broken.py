"""A service whose engine or writer has ended must not stay: it could only say that it does nothing, and keep its folder.

It ends in good order, and by force where that takes too long: all that was acknowledged is in the book, and the next service
goes on from it. Why it ended is in its log, and in a file of its folder until the next one answers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from pilotage.model.errors import PilotageError
from pilotage.model.exit_codes import ExitCode
from pilotage.service.http.listener import Listener
from pilotage.service.http.services import Services
from pilotage.service.http.watching import watched

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
END_SECONDS = 40.0
"""How long it may take to end in good order: longer than requests under way, and calls at sites, are waited for."""


class ServiceBroken(PilotageError):
    """The service ended by itself: what runs jobs, or writes the book, had ended. Start it again; its log says more."""

    exit_code = ExitCode.STOPPED
    retryable = True


def broken_by(services: Services) -> str:
    """Why a service that has been started does nothing any more; empty while all is well."""
    if services.running is not None and services.running.jobs.broken:
        return services.running.jobs.broken
    if why := services.writer.broken or services.journal.lost:
        return why
    return "" if services.writer.alive else "what writes the book has ended"


def end_when_broken(
    listener: Listener,
    why: Callable[[], str],
    *,
    note: Callable[[str], None],
    leave: Callable[[int], object] = os._exit,
    look_seconds: float = LOOK_SECONDS,
    end_seconds: float = END_SECONDS,
) -> Callable[[], None]:
    """Watch from a thread, and end the listener when there is a reason; what is returned ends the watching.

    The reason is noted before anything else: whoever finds the service gone looks for it.
    """

    def watch(over: threading.Event) -> None:
        while not over.wait(look_seconds):
            # While it starts, and once somebody else ends it, nothing needs to be alive.
            if listener.started and not listener.should_exit and (reason := why()):
                log.error("the service ends, since it can do nothing any more: %s", reason)
                with suppress(OSError):  # a full disk may be the reason
                    note(reason)
                listener.broken = reason
                listener.should_exit = True
                if not over.wait(end_seconds):
                    log.error("it did not end in good order within %g s: it leaves", end_seconds)
                    leave(ExitCode.STOPPED)
                return

    return watched(watch, name="broken")
