"""Delivers the events of one queue to its server, until each is acknowledged or refused.

The order of the steps makes it safe against a crash at any point:
synced to disk → sent → refused events on disk → acknowledged mark moved → finished segments deleted.
An event may be sent twice without harm, so in doubt the courier sends again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.delivery.spool import Acknowledged, EventId, event_id, read_acknowledged, write_acknowledged
from pilotage.agent.delivery.stream import LOCK_NAME, Stream, StreamPosition, StreamRetired, segment_file, segments_of
from pilotage.agent.durable_files import (
    END_START,
    HEADER_START,
    counters_of,
    locked,
    locked_if_free,
    parse_header,
    sync_folder,
    text_of,
)
from pilotage.agent.errors import AgentError, SpoolError, spool_error
from pilotage.agent.link.http import BatchAccepted, BatchTooLarge, Connection, Refusal, RetryLater, judge
from pilotage.agent.service_clock import TOO_EARLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.delivery.spool import Queue
    from pilotage.agent.link.http import LinkConnection


# Reading one stream: whole events, in order, synced to disk before they are sent.

_LINE_MAX = 64 << 20


class Batch(NamedTuple):
    """Events of a stream as JSON texts, the damaged lines after them, and the acknowledged mark that follows."""

    texts: list[bytes]
    damaged: list[bytes]
    after: Acknowledged


class Reader:
    """Reads one stream from the last acknowledged event on; the courier that holds the queue's lock uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.synced = StreamPosition(0, 0)  # everything up to here is synced to disk
        self._mark = Acknowledged(-1, -1, -1)
        self._descriptor = -1
        self._ended = False

    def reload(self) -> None:
        """Start again at the acknowledged mark, which another courier may have moved."""
        mark = read_acknowledged(self.folder)
        if mark != self._mark or self._descriptor < 0:
            segments = segments_of(self.folder)
            if mark.segment not in segments and segments:
                # No mark, or its segment is gone: sending acknowledged events again does no harm.
                mark = Acknowledged(segments[0], 0, mark.n)
            if mark.segment != self._mark.segment or self._descriptor < 0:
                self._open(mark.segment)
            self._mark = mark

    def _open(self, segment: int) -> None:
        self.close()
        try:
            self._descriptor = os.open(segment_file(self.folder, segment), os.O_RDWR)
        except FileNotFoundError:
            return
        sync_folder(self.folder)  # its name is on disk before its events are sent

    def next_batch(self, *, events_max: int, size_max_bytes: int) -> Batch | None:
        """The next events, synced to disk; None if there is nothing to send or to set aside."""
        try:
            while self._descriptor >= 0:
                batch = self._batch(events_max=events_max, size_max_bytes=size_max_bytes)
                if batch is not None:
                    self._sync(batch)
                    return batch
                if self._past_header():
                    continue
                if not self._ended or not self._go_on():
                    return None
        except OSError as error:
            raise spool_error(error, doing="reading events", subject=str(self.folder)) from error
        return None

    def _batch(self, *, events_max: int, size_max_bytes: int) -> Batch | None:
        offset = self._mark.size_bytes
        lines = self._lines(offset, size_bytes=size_max_bytes, count=events_max + 1)
        texts: list[bytes] = []
        damaged: list[bytes] = []
        for line in lines:
            text = text_of(line)
            if text is None and texts:
                break  # send the good events first
            if text is None:
                settled = self._settled(offset, size_bytes=size_max_bytes)
                if settled != line:
                    break  # it was read while being written; the next batch begins with it
                damaged.append(line)
            elif text.startswith(END_START):
                self._ended = True
                break
            elif text.startswith(HEADER_START):
                self._check_header(text)
            elif len(texts) == events_max or damaged:
                break
            else:
                texts.append(text)
            offset += len(line) + 1
        if not texts and not damaged:
            return None
        counters = counters_of(texts[-1]) if texts else None
        number = counters[0] if counters else self._mark.n
        return Batch(texts, damaged, Acknowledged(self._mark.segment, offset, number))

    def _past_header(self) -> bool:
        """Skip the header if it filled the whole block; returns whether there was one."""
        if self._mark.size_bytes or self._ended:
            return False
        header = next(iter(self._lines(0, size_bytes=4096, count=1)), None)
        if header is None:
            return False
        self._mark = self._mark._replace(size_bytes=len(header) + 1)
        return True

    def _lines(self, offset: int, *, size_bytes: int, count: int) -> list[bytes]:
        """Whole lines from an offset on: as many as fit, at least one."""
        while True:
            block = os.pread(self._descriptor, size_bytes, offset)
            lines = block.split(b"\n", count)
            if len(lines) > 1 or len(block) < size_bytes or size_bytes > _LINE_MAX:
                return lines[:-1]
            size_bytes *= 4

    def _settled(self, offset: int, *, size_bytes: int) -> bytes:
        """Read a line again under the append lock: a line that looks damaged may have been read while being written."""
        with locked(self.folder / LOCK_NAME):
            return next(iter(self._lines(offset, size_bytes=size_bytes, count=1)), b"")

    def _check_header(self, text: bytes) -> None:
        if parse_header(text) is None:
            raise SpoolError(
                "the segment was written by another version",
                subject=str(self.folder),
                got=text.decode("utf-8", "replace"),
                next_step="deliver it with the version of pilotage that wrote it",
            )

    def _sync(self, batch: Batch) -> None:
        end = StreamPosition(batch.after.segment, batch.after.size_bytes)
        if end > self.synced:
            os.fdatasync(self._descriptor)
            self.synced = end

    def _go_on(self) -> bool:
        """Move on from a finished segment to the next, if that exists; the last segment always stays."""
        later = [first for first in segments_of(self.folder) if first > self._mark.segment]
        if not later:
            return False
        old = self._mark.segment
        self._mark = Acknowledged(later[0], 0, self._mark.n)
        write_acknowledged(self.folder, self._mark)
        self._open(later[0])
        sync_folder(self.folder)
        segment_file(self.folder, old).unlink()
        return True

    def acknowledge(self, batch: Batch) -> None:
        """Move the acknowledged mark past this batch; refused events are on disk."""
        try:
            write_acknowledged(self.folder, batch.after)
        except OSError as error:
            raise spool_error(error, doing="noting what is delivered", subject=str(self.folder)) from error
        self._mark = batch.after

    def close(self) -> None:
        """Close the segment's file."""
        old, self._descriptor, self._ended = self._descriptor, -1, False
        if old >= 0:
            os.close(old)


BATCH_EVENTS = 2000
BATCH_BYTES = 1 << 20
POLL_SECONDS = 0.5
HOLD_SECONDS = 0.01
BUSY_SECONDS = 0.05
REFUSED_LOOK_BACK = 10_000
EVENTS_PATH = "/v1/events"
PACKAGE_PATH = "/agent/events"
"""The same for events of packages: every link of a pilot leads there, also through relays."""


class DeliveryResult(NamedTuple):
    """Result of one pass over a queue: events delivered, events refused among them, and why it stopped early."""

    delivered: int = 0
    refused: int = 0
    problem: str = ""
    retry_after_seconds: float = 0.0
    busy: bool = False  # another courier holds the lock
    denied: bool = False  # the server rejects this token


class Backoff:
    """Growing pauses after consecutive failures, each drawn from the upper half of its span."""

    def __init__(
        self, *, first_seconds: float = 0.5, longest_seconds: float = 60.0, chance: Callable[[], float] | None = None
    ) -> None:
        """Take the source of randomness, numbers from 0 to 1, so that a test can choose it."""
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._chance = chance or _chance
        self.failures = 0

    def failed(self, *, retry_after_seconds: float = 0.0) -> float:
        """Pause in seconds after one more failure: never less than the server asked for."""
        span = min(self._longest_seconds, self._first_seconds * 2.0 ** min(self.failures, 30))
        self.failures += 1
        # Thousands of agents that lost their server at once must not reconnect at once.
        return max(span * (0.5 + 0.5 * self._chance()), retry_after_seconds * (1 + 0.1 * self._chance()))

    def succeeded(self) -> None:
        """Reset the pause."""
        self.failures = 0


def _chance() -> float:
    return int.from_bytes(os.urandom(4), "big") / 2**32


def _no_token() -> str:
    return ""


class Courier:
    """The courier of one queue. Any number may exist, in any number of processes; a lock lets one work at a time."""

    def __init__(
        self,
        queue: Queue,
        *,
        token: Callable[[], str] | None = None,
        connection: Connection | LinkConnection | None = None,
        path: str = EVENTS_PATH,
        batch_events: int = BATCH_EVENTS,
        batch_bytes: int = BATCH_BYTES,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the queue, and a function that returns the current token (tokens are renewed)."""
        self.queue = queue
        self.last_error = ""  # why the last try failed; empty if it succeeded
        self.delivered = 0  # since this courier was made, as `parked`
        self.parked = 0  # delivered events whose jobs were not registered yet
        self._token = token or _no_token
        self._connection = connection or Connection(queue.server)
        self._path = path
        self._batch_events = batch_events
        self._batch_bytes = batch_bytes
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._readers: dict[str, Reader] = {}
        self._limits: dict[str, int] = {}
        self._unsafe: set[str] = set()  # streams with a failed sync: to be retired before anything else
        self._set_aside: set[EventId] | None = None
        self._working = threading.Lock()
        self._change = threading.Condition()
        self._woken = self._stopped = False

    def drain_once(
        self, *, timeout_seconds: float | None = None, enough: Callable[[], bool] | None = None
    ) -> DeliveryResult:
        """Deliver the waiting events until the first failure, until the time is up or until `enough()`.

        Returns at once if another courier holds the lock.
        """
        if not self._working.acquire(blocking=False):
            return DeliveryResult(busy=True)
        try:
            if not self.queue.folder.is_dir():
                return DeliveryResult()
            with locked_if_free(self.queue.folder / "courier.lock") as mine:
                if not mine:
                    return DeliveryResult(busy=True)
                until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
                drained = self._drain(until, enough)
        except OSError as error:
            drained = DeliveryResult(
                problem=str(spool_error(error, doing="delivering", subject=str(self.queue.folder)))
            )
        finally:
            self._working.release()
        self.last_error = drained.problem
        with self._change:
            self._change.notify_all()
        return drained

    def _drain(self, until: float | None, enough: Callable[[], bool] | None) -> DeliveryResult:
        """Send one batch of each stream in turn, until nothing is left or the time is up."""
        delivered = refused = 0
        problem = ""
        readers = [self._reader(folder) for folder in self.queue.streams()]
        while readers and not self._stopped and (until is None or time.monotonic() < until):
            for reader in list(readers):
                try:
                    came = self._deliver_batch(reader, until)
                except SpoolError as error:
                    # An unreadable stream keeps its events; the others go on.
                    problem = str(error)
                    came = None
                if came is None:
                    readers.remove(reader)
                    continue
                delivered, refused = delivered + came.delivered, refused + came.refused
                if came.problem:
                    return came._replace(delivered=delivered, refused=refused)
                with self._change:
                    self._change.notify_all()
                if enough is not None and enough():
                    return DeliveryResult(delivered, refused, problem)
        return DeliveryResult(delivered, refused, problem)

    def _reader(self, folder: Path) -> Reader:
        reader = self._readers.get(folder.name)
        if reader is None:
            reader = self._readers[folder.name] = Reader(folder)
        reader.reload()
        return reader

    def _deliver_batch(self, reader: Reader, until: float | None) -> DeliveryResult | None:
        """Send one batch and handle the answer; None if there is nothing to send."""
        limit = self._limits.get(reader.folder.name, self._batch_events)
        batch = self._next_batch(reader, events_max=limit)
        if batch is None:
            return None
        taken = BatchAccepted(0, [])
        if batch.texts:
            verdict = self._send(batch.texts, until)
            if isinstance(verdict, RetryLater):
                # An overloaded server gets smaller batches, which grow again with success.
                self._limits[reader.folder.name] = max(1, len(batch.texts) // 2)
                return DeliveryResult(
                    problem=verdict.reason, retry_after_seconds=verdict.retry_after_seconds, denied=verdict.denied
                )
            if isinstance(verdict, BatchTooLarge):
                if len(batch.texts) > 1:
                    self._limits[reader.folder.name] = len(batch.texts) // 2
                    return DeliveryResult()
                verdict = BatchAccepted(0, [Refusal(0, verdict.code, verdict.message)])
            taken = verdict
        self._settle(reader, batch, taken)
        self.delivered += len(batch.texts)
        self.parked += taken.parked
        self._limits[reader.folder.name] = min(self._batch_events, limit * 2)
        return DeliveryResult(len(batch.texts), len(taken.refused) + len(batch.damaged))

    def _next_batch(self, reader: Reader, *, events_max: int) -> Batch | None:
        name = reader.folder.name
        if name in self._unsafe:
            self._retire(reader.folder, "it could not be written to disk")
            self._unsafe.discard(name)
        try:
            return reader.next_batch(events_max=events_max, size_max_bytes=self._batch_bytes)
        except SpoolError:
            # Cached events may never have reached the disk, and their numbers must not be given twice.
            self._unsafe.add(name)
            raise

    def _send(self, texts: list[bytes], until: float | None) -> BatchAccepted | BatchTooLarge | RetryLater:
        timeout_seconds = None if until is None else max(0.05, until - time.monotonic())
        body = b'{"events":[' + b",".join(texts) + b"]}"
        try:
            answer = self._connection.post(self._path, body, token=self._token(), timeout_seconds=timeout_seconds)
            if answer.status == TOO_EARLY:  # our clock may be wrong; the service's clock is known now
                answer = self._connection.post(self._path, body, token=self._token(), timeout_seconds=timeout_seconds)
        except AgentError as error:
            return RetryLater(str(error), 0.0)
        return judge(answer, count=len(texts))

    def _settle(self, reader: Reader, batch: Batch, taken: BatchAccepted) -> None:
        entries = []
        for each in taken.refused:
            event = json.loads(batch.texts[each.batch_index])
            if self._is_new(EventId(event["source"], event["stream"], event["n"])):
                entries.append(self._entry(each.code, each.message, event=event))
        entries += [
            self._entry("damaged", "the line's checksum is wrong", text=line[:4096].decode("utf-8", "replace"))
            for line in batch.damaged
        ]
        if entries:
            self.queue.set_aside(entries)
        if taken.position:
            self.queue.note_seen(taken.position)
        if any(each.code == "conflict" for each in taken.refused):
            # Another writer uses this stream, perhaps a clone of this machine: leave it to that one.
            self._retire(reader.folder, "the server has other events under its numbers")
        reader.acknowledge(batch)

    def _is_new(self, event: EventId) -> bool:
        """Tell whether an event is not yet set aside; it is if a courier died before it moved the mark."""
        if self._set_aside is None:
            ids = map(event_id, self.queue.refused()[-REFUSED_LOOK_BACK:])
            self._set_aside = {each for each in ids if each is not None}
        known = event in self._set_aside
        self._set_aside.add(event)
        return not known

    def _entry(self, code: str, reason: str, **what: Any) -> dict[str, Any]:
        return {"time": self._clock(), "code": code, "reason": reason, **what}

    def _retire(self, folder: Path, why: str) -> None:
        try:
            stream = Stream(folder)
        except StreamRetired:
            return
        try:
            stream.retire(why)
        finally:
            stream.close()

    def synced(self, stream: str) -> StreamPosition:
        """How far a stream, by the name of its folder, was synced to disk before being sent."""
        reader = self._readers.get(stream)
        return reader.synced if reader is not None else StreamPosition(0, 0)

    def run(self, stop: threading.Event | None = None) -> None:
        """Deliver until `stop()` is called, or within half a second after the event is set."""
        while not self._stopped and not (stop is not None and stop.is_set()):
            drained = self.drain_once()
            if drained.problem:
                self._rest(self._backoff.failed(retry_after_seconds=drained.retry_after_seconds), stop, idle=False)
                continue
            self._backoff.succeeded()
            self._rest(BUSY_SECONDS if drained.busy else POLL_SECONDS, stop, idle=not drained.busy)
        self.close()

    def _rest(self, seconds: float, stop: threading.Event | None, *, idle: bool) -> None:
        """Wait for that long, or until woken; a new event wakes only an idle courier."""
        until = time.monotonic() + seconds
        with self._change:
            while not (self._stopped or (idle and self._woken)):
                left = until - time.monotonic()
                if left <= 0 or (stop is not None and stop.is_set()):
                    break
                self._change.wait(min(left, POLL_SECONDS))
            if self._woken and idle and not self._stopped:
                self._change.wait(HOLD_SECONDS)  # gathers many events into one batch
            self._woken = False

    def wake(self) -> None:
        """Announce new events; nearly free if they are announced already."""
        if self._woken:
            return
        with self._change:
            self._woken = True
            self._change.notify_all()

    def wait_for_news(self, timeout_seconds: float) -> None:
        """Wait until this courier has delivered a batch or finished a pass."""
        with self._change:
            self._change.wait(timeout_seconds)

    def stop(self) -> None:
        """End `run` soon and for good, even while it waits for an answer; unacknowledged events stay in the spool."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        self._connection.break_off()

    def abandon(self) -> None:
        """Drop the connection in a forked child: it belongs to the parent."""
        self._connection.abandon()

    def close(self) -> None:
        """Close the connection and the files; not while another thread uses them."""
        with self._working:
            self._connection.close()
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()


def acknowledged(queue: Queue, event: EventId) -> bool:
    """Tell whether the server has acknowledged or refused an event."""
    return queue.acknowledged(queue.folder / f"{event.source}.{event.stream}").n >= event.n
