"""Writes the book: checks batches of events, folds them, and acknowledges what is durable."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future

import msgspec

from pilotage.book.codec import Checked, Codec, Refusal
from pilotage.book.fold.intake import JobsSealed
from pilotage.book.fold.join import Joined, Receipt, join
from pilotage.book.rows.ledger import Ledger
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import Event
from pilotage.model.settings.engine import SKEW_SECONDS
from pilotage.ports import Clock, Journal, JournalError, JournalFull, JournalLost, JournalUnavailable, SealedLost
from pilotage.service.process import ThreadYielding

Afterwards = Callable[[Joined, Ledger], None]
"""A further action in the transaction of a batch, such as queueing notices."""


class OwnRefused(JournalError):
    """The book refuses a decision of this service: another service wrote it, or the book was replaced.

    Nothing of the batch was stored. The service stops; started again, it resumes from the book.
    """


class Batch(msgspec.Struct, frozen=True):
    """The well-formed events of one request, and the refusals of the others."""

    checked: Sequence[Checked]
    refused: Sequence[Refusal] = ()
    skewed: Collection[tuple[str, str]] = ()  # (source, stream) of senders whose clock is proven wrong
    own: bool = False  # decisions of this service: all of them are stored, or the service must stop


class BatchCommitter:
    """Stores batches of events in a journal, one at a time. The caller serializes threads."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        codec: Codec | None = None,
        within: Sequence[Afterwards] = (),
        skew_seconds: float = SKEW_SECONDS,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self.codec = codec if codec is not None else Codec()
        self._within = tuple(within)
        self._skew_seconds = skew_seconds
        self._yielding = ThreadYielding()

    def take(self, events: Sequence[Event]) -> Receipt:
        """Store events given as objects."""
        checked, refused = self.codec.check_all(events)
        return self.keep(checked, refused)

    def take_batch(self, body: bytes) -> Receipt:
        """Store a batch as received over the wire."""
        checked, refused, _ = self.codec.read_batch(body)
        return self.keep(checked, refused)

    def keep(self, checked: Sequence[Checked], refused: Sequence[Refusal] = ()) -> Receipt:
        """Store well-formed events; when this returns, all that is not refused is durable."""
        [receipt] = self.commit_together([Batch(checked, refused)])
        return receipt

    def commit_together(self, batches: Sequence[Batch]) -> list[Receipt]:
        """Store batches in one transaction, each with its own receipt. All are stored, or none.

        Raises `OwnRefused` if the book refuses a decision of this service.
        """
        while True:
            try:
                receipts = self._keep_together(batches)
            except JobsSealed as sealed:
                for job in sealed.jobs:
                    try:
                        self._journal.unseal([job])
                    except SealedLost as lost:
                        if any(batch.own and _is_about(batch, job) for batch in batches):
                            raise
                        # A job whose file is lost must not block everyone else's events.
                        batches = [_without(batch, job, str(lost)) for batch in batches]
            else:
                return [_with_refused(receipt, batch.refused) for receipt, batch in zip(receipts, batches, strict=True)]

    def _keep_together(self, batches: Sequence[Batch]) -> list[Receipt]:
        receipts: list[Receipt] = []
        with self._journal.transaction() as ledger:
            for batch in batches:
                now = self._clock.now()
                joined = join(
                    ledger,
                    batch.checked,
                    received=now,
                    codec=self.codec,
                    skew_seconds=self._skew_seconds,
                    skewed=batch.skewed,
                )
                if batch.own and joined.receipt.refused:
                    raise _own_refused(batch, joined.receipt.refused)
                self._yielding.yield_thread()
                ledger.write(joined.changes)
                self._yielding.yield_thread()
                for each in self._within:
                    each(joined, ledger)
                receipts.append(joined.receipt)
        return receipts


def _own_refused(batch: Batch, refused: Sequence[Refusal]) -> OwnRefused:
    return OwnRefused(
        f"the book refuses {len(refused)} of {len(batch.checked)} events of this service: {refused[0].message}",
        next_step="make sure no other service writes this book, and start this one again: it resumes from the book",
    )


def _is_about(batch: Batch, job: str) -> bool:
    return any(one.event.job == job for one in batch.checked)


def _without(batch: Batch, job: str, why: str) -> Batch:
    """The batch with the events of a job refused."""
    gone = [one for one in batch.checked if one.event.job == job]
    refused = [
        Refusal(index=one.index, code="purged", message=f"no more events of it can be stored: {why}") for one in gone
    ]
    left = [one for one in batch.checked if one.event.job != job]
    return Batch(left, [*batch.refused, *refused], batch.skewed, batch.own)


def _with_refused(receipt: Receipt, refused: Sequence[Refusal]) -> Receipt:
    if not refused:
        return receipt
    everything = sorted((*refused, *receipt.refused), key=lambda one: one.index)
    return msgspec.structs.replace(receipt, refused=everything)


# The single writer: stores the batches of many requests in one durable transaction, and answers each.
#
# A commit to disk costs as much for one event as for thousands. Batches that arrive during a commit are written
# together in the next one; each request is answered when its batch is durable.

log = logging.getLogger(__name__)

GROUP_EVENTS = 5000
QUEUE_EVENTS_MAX = 100_000

Committed = Callable[[Iterable[str]], None]
"""Called in the writer's thread with the jobs of each commit; a job may be named more than once."""


class WriterBusy(PilotageError):
    """Too many events wait to be written. Nothing of the batch was stored; try again in a moment."""

    retryable = True


class WriterStopped(PilotageError):
    """The service is stopping. Nothing of the batch was stored; try again when it is back."""

    retryable = True


class _Request(msgspec.Struct, frozen=True):
    batch: Batch
    answer: Future[Receipt]


class Writer:
    """One thread that writes submitted batches."""

    def __init__(
        self,
        committer: BatchCommitter,
        *,
        committed: Committed | None = None,
        group_events: int = GROUP_EVENTS,
        queue_events_max: int = QUEUE_EVENTS_MAX,
    ) -> None:
        """Take what stores batches, and a function to call after commits; nothing runs before `start`."""
        self._committer = committer
        self._committed = committed
        self._group_events = group_events
        self._queue_events_max = queue_events_max
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._change = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._queued_events = 0
        self._stopped = False
        self.broken = ""
        """Why nothing may be written any more: another writer took over, or the book refused a decision. Else empty."""
        self.trouble = ""  # why the last write failed; empty if it did not

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether submitted batches will be written."""
        return self._thread.is_alive() and not self._stopped

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Queue a batch; the future has its receipt once it is durable, or the error."""
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
        """Accept no more batches, write the queued ones, and end."""
        with self._change:
            self._stopped = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while group := self._next_group():
            # From here on a request cannot be cancelled; requests cancelled before are not written.
            wanted = [request for request in group if request.answer.set_running_or_notify_cancel()]
            if wanted:
                self._write(wanted)

    def _next_group(self) -> list[_Request]:
        """Wait for batches to write; empty when no more will come."""
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
            receipts = self._committer.commit_together([request.batch for request in group])
        except JournalError as fault:
            self.trouble = f"the book cannot be written: {_words(fault)}"
            if len(group) > 1 and not isinstance(fault, JournalFull):
                # The fault may concern one job of one batch: the others must not wait for it.
                for request in group:
                    self._write([request])
                return
            if isinstance(fault, OwnRefused | JournalLost):
                self.broken = str(fault)  # before any caller is answered
            for request in group:
                request.answer.set_exception(fault)
        except Exception as fault:
            log.exception("a group of %d batches could not be written together", len(group))
            if len(group) == 1:
                group[0].answer.set_exception(fault)
                return
            # One of them cannot be folded: the others must not fail with it.
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
            # The commit stands and is acknowledged; a request that is not woken now asks again later.
            log.exception("waiting requests were not woken after %d batches", len(group))


def _words(fault: JournalError) -> str:
    """Why a write failed, in words for any client: the log has the details."""
    if isinstance(fault, JournalFull):
        return "the disk is full"
    if isinstance(fault, JournalUnavailable):
        return "it does not answer"
    return "it cannot be used as it is, and the log of the service says why"


def _jobs(group: Sequence[_Request]) -> Iterator[str]:
    return (one.event.job for request in group for one in request.batch.checked if one.event.job is not None)
