"""The one writer: batches of many requests go into the book together, in one durable transaction, and each is answered.

A commit to disk costs as much for one event as for thousands. Whatever was queued while the last one was on its way
is joined in the next; nobody is answered before it is durable.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

import msgspec

from pilotage.book.join import Receipt
from pilotage.model.errors import PilotageError
from pilotage.ports import JournalError, JournalFull, JournalLost, JournalUnavailable
from pilotage.service.keeper import Batch, Keeper, OwnRefused

log = logging.getLogger(__name__)

GROUP_EVENTS = 5000
QUEUE_EVENTS_MAX = 100_000

Committed = Callable[[Iterable[str]], None]
"""Told, in the writer's thread, of which jobs something new is durable; a job may be named more than once."""


class WriterBusy(PilotageError):
    """More events wait to be written than may wait. Nothing of the batch was kept; try again in a moment."""

    retryable = True


class WriterStopped(PilotageError):
    """The service is stopping. Nothing of the batch was kept; try again when it is back."""

    retryable = True


class _Request(msgspec.Struct, frozen=True):
    batch: Batch
    answer: Future[Receipt]


class Writer:
    """One thread that writes what others submit."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        committed: Committed | None = None,
        group_events: int = GROUP_EVENTS,
        queue_events_max: int = QUEUE_EVENTS_MAX,
    ) -> None:
        """Take the keeper, and who is told of commits; nothing runs before `start`."""
        self._keeper = keeper
        self._committed = committed
        self._group_events = group_events
        self._queue_events_max = queue_events_max
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._change = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._queued_events = 0
        self._stopped = False
        self.broken = ""
        """Why nothing may be written any more: the book is another's by now, or refused what we decided. Empty while all is well."""
        self.trouble = ""  # why the last write failed, in words; empty where it did not

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether what is submitted will be written."""
        return self._thread.is_alive() and not self._stopped

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Queue a batch; the future has its receipt once it is durable, or the error that kept it out."""
        events = len(batch.checked)
        request = _Request(batch, Future())
        with self._change:
            if self._stopped or (self._thread.ident is not None and not self._thread.is_alive()):
                raise WriterStopped("the service is stopping", next_step="send the same again when it is back")
            if self._queued_events and self._queued_events + events > self._queue_events_max:
                raise WriterBusy(
                    "too many events wait to be written",
                    expected=f"at most {self._queue_events_max:,}",
                    next_step="send the same again in a moment",
                )
            self._queue.append(request)
            self._queued_events += events
            self._change.notify()
        return request.answer

    def stop(self) -> None:
        """Take nothing more, write what is queued, and end."""
        with self._change:
            self._stopped = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while group := self._next_group():
            # From here on nobody can take a request back; who did so before is not written.
            wanted = [request for request in group if request.answer.set_running_or_notify_cancel()]
            if wanted:
                self._write(wanted)

    def _next_group(self) -> list[_Request]:
        """Wait for what to write next; empty when nothing more will come."""
        group: list[_Request] = []
        events = 0
        with self._change:
            self._change.wait_for(lambda: self._queue or self._stopped)
            while self._queue and (not group or events + len(self._queue[0].batch.checked) <= self._group_events):
                request = self._queue.popleft()
                events += len(request.batch.checked)
                group.append(request)
            self._queued_events -= events
        return group

    def _write(self, group: Sequence[_Request]) -> None:
        try:
            receipts = self._keeper.keep_together([request.batch for request in group])
        except JournalError as fault:
            self.trouble = f"the book cannot be written: {_words(fault)}"
            if len(group) > 1 and not isinstance(fault, JournalFull):
                # It may be about one job of one batch: the others must not wait for that.
                for request in group:
                    self._write([request])
                return
            if isinstance(fault, OwnRefused | JournalLost):
                self.broken = str(fault)  # before anybody hears of it
            for request in group:
                request.answer.set_exception(fault)
        except Exception as fault:
            log.exception("a group of %d batches could not be joined", len(group))
            if len(group) == 1:
                group[0].answer.set_exception(fault)
                return
            # One of them breaks the join: the others must not fail with it.
            for request in group:
                self._write([request])
        else:
            self.trouble = ""
            self._tell(group)
            for request, receipt in zip(group, receipts, strict=True):
                request.answer.set_result(receipt)

    def _tell(self, group: Sequence[_Request]) -> None:
        if self._committed is None:
            return
        try:
            self._committed(_jobs(group))
        except Exception:
            # What was committed stands and is acknowledged; whoever is not told now asks again later.
            log.exception("nobody was told of %d batches", len(group))


def _words(fault: JournalError) -> str:
    """Why a write failed, in words that anybody may hear: the log has the others."""
    if isinstance(fault, JournalFull):
        return "there is no room left"
    if isinstance(fault, JournalUnavailable):
        return "it does not answer"
    return "it cannot be used as it is, and the log of the service says why"


def _jobs(group: Sequence[_Request]) -> Iterator[str]:
    return (one.event.job for request in group for one in request.batch.checked if one.event.job is not None)
