"""What a service does by itself now and then: seal, clear and purge finished jobs as the settings say.

If it has grown meanwhile, it asks for large pages, too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import count

from pilotage.book.codec import Codec
from pilotage.book.join import Receipt
from pilotage.model.configuration import RetentionSettings
from pilotage.model.errors import PilotageError
from pilotage.model.events import Event
from pilotage.ports import Clock, Journal
from pilotage.service.keeper import Batch
from pilotage.service.large_pages import PROCESS
from pilotage.service.retention import Action, Retention
from pilotage.service.writer import Writer

log = logging.getLogger(__name__)


class Housekeeping:
    """A thread that applies retention, through the one writer like everybody else."""

    def __init__(
        self,
        journal: Journal,
        *,
        settings: RetentionSettings,
        writer: Writer,
        codec: Codec,
        clock: Clock,
        stream: str,
        done: Callable[[Action], None] | None = None,
    ) -> None:
        """Nothing runs before `start`. `stream` must be new: its events count from one. `done` is told of every deed."""
        self._done = done
        self._every_seconds = settings.every_seconds
        self._writer = writer
        self._codec = codec
        self._clock = clock
        numbers = count(1)
        self._retention = Retention(
            journal, settings=settings, keep=self._keep, identity=lambda: (stream, next(numbers))
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def _keep(self, events: Sequence[Event]) -> Receipt:
        checked, refused = self._codec.check_all(events)
        return self._writer.submit(Batch(checked, refused, own=True)).result()

    def start(self) -> None:
        """Begin, unless the settings say never."""
        if self._every_seconds > 0:
            self._thread.start()

    def stop(self) -> None:
        """End after the job that is being seen to."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_seconds):
            PROCESS.ask()
            try:
                applied = self._retention.apply(self._clock.now(), enough=self._stop.is_set)
                if self._done is not None:
                    for action in applied.actions:
                        self._done(action)
            except PilotageError as fault:
                log.warning("finished jobs were not seen to, and will be next time: %s", fault)
            except Exception:
                log.exception("finished jobs were not seen to, and will be next time")
