"""Delivers the events of one queue to its server until each is acknowledged or set aside with the reason.

The order of things is what makes it safe, whatever dies in between:
on disk → sent → what was refused on disk → acknowledged mark moved → finished segments deleted.
Sending the same event twice does no harm, so every doubt ends in sending again.
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
from pilotage.agent.link.http import Connection, NotNow, Refusal, Taken, TooMuch, judge
from pilotage.agent.service_clock import TOO_EARLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.delivery.spool import Queue
    from pilotage.agent.link.http import LinkConnection


# The reading side of one stream: whole events, in order, on disk before anyone sends them.

_LINE_MAX = 64 << 20


class Batch(NamedTuple):
    """Some events of a stream as JSON texts, the damaged lines that stand after them, and the mark that follows."""

    texts: list[bytes]
    damaged: list[bytes]
    after: Acknowledged


class Reader:
    """Reads one stream from where the server has it; used by one courier at a time, which holds the queue's lock."""

    def __init__(self, folder: Path) -> None:
        """Name the folder of the stream."""
        self.folder = folder
        self.synced = StreamPosition(0, 0)  # everything up to here is known to be on disk
        self._mark = Acknowledged(-1, -1, -1)
        self._descriptor = -1
        self._ended = False

    def reload(self) -> None:
        """Begin where the server has the stream, which another courier may have carried on."""
        mark = read_acknowledged(self.folder)
        if mark != self._mark or self._descriptor < 0:
            segments = segments_of(self.folder)
            if mark.segment not in segments and segments:
                # No mark, or a segment that is gone: sending what the server has already does no harm.
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
        sync_folder(self.folder)  # its name is on disk before anything from it is sent

    def next_batch(self, *, events_max: int, size_max_bytes: int) -> Batch | None:
        """The next events, on disk when this returns, or None where there is nothing to send or to set aside."""
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
                break  # first what is good
            if text is None:
                settled = self._settled(offset, size_bytes=size_max_bytes)
                if settled != line:
                    break  # it was seen while it was written; the next batch begins with it
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
        """Step over the header, should it have been all that fitted in a block; says whether there was one to step over."""
        if self._mark.size_bytes or self._ended:
            return False
        header = next(iter(self._lines(0, size_bytes=4096, count=1)), None)
        if header is None:
            return False
        self._mark = self._mark._replace(size_bytes=len(header) + 1)
        return True

    def _lines(self, offset: int, *, size_bytes: int, count: int) -> list[bytes]:
        """The whole lines from an offset on: as many as fit, at least one where there is one."""
        while True:
            block = os.pread(self._descriptor, size_bytes, offset)
            lines = block.split(b"\n", count)
            if len(lines) > 1 or len(block) < size_bytes or size_bytes > _LINE_MAX:
                return lines[:-1]
            size_bytes *= 4

    def _settled(self, offset: int, *, size_bytes: int) -> bytes:
        """A line read again while nobody writes: a line that looks damaged may only have been seen too early."""
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
        """Leave a segment that is done with for the next one, if that is there; the last one always stays."""
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
        """The server has this batch, or what it refused of it is set aside."""
        try:
            write_acknowledged(self.folder, batch.after)
        except OSError as error:
            raise spool_error(error, doing="noting what is delivered", subject=str(self.folder)) from error
        self._mark = batch.after

    def close(self) -> None:
        """Close the file."""
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
"""The same for what packages say of themselves: it is reached by whatever way their pilot came, through relays, too."""


class Drained(NamedTuple):
    """What came of one go at a queue: events done with, events refused among them, and why it stopped early, if so."""

    delivered: int = 0
    refused: int = 0
    problem: str = ""
    retry_after_seconds: float = 0.0
    busy: bool = False  # another courier is at it
    denied: bool = False  # the server does not take events with this token


class Backoff:
    """Longer and longer pauses after failures in a row, each drawn from the upper half of its span."""

    def __init__(
        self, *, first_seconds: float = 0.5, longest_seconds: float = 60.0, chance: Callable[[], float] | None = None
    ) -> None:
        """Take the source of randomness, a number from 0 to 1, so that a test can know it."""
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._chance = chance or _chance
        self.failures = 0

    def failed(self, *, retry_after_seconds: float = 0.0) -> float:
        """How long to pause after one more failure: never less than the server asked for."""
        span = min(self._longest_seconds, self._first_seconds * 2.0 ** min(self.failures, 30))
        self.failures += 1
        # Thousands of agents that lost their server together must not come back together.
        return max(span * (0.5 + 0.5 * self._chance()), retry_after_seconds * (1 + 0.1 * self._chance()))

    def succeeded(self) -> None:
        """Begin anew with the next failure."""
        self.failures = 0


def _chance() -> float:
    return int.from_bytes(os.urandom(4), "big") / 2**32


def _no_token() -> str:
    return ""


class Courier:
    """The courier of one queue. Any number may exist, in any number of processes: one is at work at a time."""

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
        """Take the queue, and a function that says which token to show now (tokens are renewed)."""
        self.queue = queue
        self.last_error = ""  # why the last try failed; empty when it did not
        self.delivered = 0  # since this courier is at work, as is what follows
        self.parked = 0  # how many of them are of jobs that were not registered yet
        self._token = token or _no_token
        self._connection = connection or Connection(queue.server)
        self._path = path
        self._batch_events = batch_events
        self._batch_bytes = batch_bytes
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._readers: dict[str, Reader] = {}
        self._limits: dict[str, int] = {}
        self._unsafe: set[str] = set()  # streams that a disk failed under: to be retired before anything else
        self._set_aside: set[EventId] | None = None
        self._working = threading.Lock()
        self._change = threading.Condition()
        self._woken = self._stopped = False

    def drain_once(self, *, timeout_seconds: float | None = None, enough: Callable[[], bool] | None = None) -> Drained:
        """Deliver what is there now, up to the first failure, or until the time is up or the caller has enough.

        Leaves at once where another courier is at work.
        """
        if not self._working.acquire(blocking=False):
            return Drained(busy=True)
        try:
            if not self.queue.folder.is_dir():
                return Drained()
            with locked_if_free(self.queue.folder / "courier.lock") as mine:
                if not mine:
                    return Drained(busy=True)
                until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
                drained = self._drain(until, enough)
        except OSError as error:
            drained = Drained(problem=str(spool_error(error, doing="delivering", subject=str(self.queue.folder))))
        finally:
            self._working.release()
        self.last_error = drained.problem
        with self._change:
            self._change.notify_all()
        return drained

    def _drain(self, until: float | None, enough: Callable[[], bool] | None) -> Drained:
        """One batch of each stream in turn, until nothing is left or the time is up."""
        delivered = refused = 0
        problem = ""
        readers = [self._reader(folder) for folder in self.queue.streams()]
        while readers and not self._stopped and (until is None or time.monotonic() < until):
            for reader in list(readers):
                try:
                    came = self._deliver_batch(reader, until)
                except SpoolError as error:
                    # A stream that cannot be read keeps its events; the others go on.
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
                    return Drained(delivered, refused, problem)
        return Drained(delivered, refused, problem)

    def _reader(self, folder: Path) -> Reader:
        reader = self._readers.get(folder.name)
        if reader is None:
            reader = self._readers[folder.name] = Reader(folder)
        reader.reload()
        return reader

    def _deliver_batch(self, reader: Reader, until: float | None) -> Drained | None:
        """Send one batch and draw the consequences; None where there is nothing to send."""
        limit = self._limits.get(reader.folder.name, self._batch_events)
        batch = self._next_batch(reader, events_max=limit)
        if batch is None:
            return None
        taken = Taken(0, [])
        if batch.texts:
            verdict = self._send(batch.texts, until)
            if isinstance(verdict, NotNow):
                # A server in trouble gets smaller batches, which grow again with success.
                self._limits[reader.folder.name] = max(1, len(batch.texts) // 2)
                return Drained(
                    problem=verdict.reason, retry_after_seconds=verdict.retry_after_seconds, denied=verdict.denied
                )
            if isinstance(verdict, TooMuch):
                if len(batch.texts) > 1:
                    self._limits[reader.folder.name] = len(batch.texts) // 2
                    return Drained()
                verdict = Taken(0, [Refusal(0, verdict.code, verdict.message)])
            taken = verdict
        self._settle(reader, batch, taken)
        self.delivered += len(batch.texts)
        self.parked += taken.parked
        self._limits[reader.folder.name] = min(self._batch_events, limit * 2)
        return Drained(len(batch.texts), len(taken.refused) + len(batch.damaged))

    def _next_batch(self, reader: Reader, *, events_max: int) -> Batch | None:
        name = reader.folder.name
        if name in self._unsafe:
            self._retire(reader.folder, "it could not be written to disk")
            self._unsafe.discard(name)
        try:
            return reader.next_batch(events_max=events_max, size_max_bytes=self._batch_bytes)
        except SpoolError:
            # What is in memory may never have reached the disk, and its numbers must not be given twice.
            self._unsafe.add(name)
            raise

    def _send(self, texts: list[bytes], until: float | None) -> Taken | TooMuch | NotNow:
        timeout_seconds = None if until is None else max(0.05, until - time.monotonic())
        body = b'{"events":[' + b",".join(texts) + b"]}"
        try:
            answer = self._connection.post(self._path, body, token=self._token(), timeout_seconds=timeout_seconds)
            if answer.status == TOO_EARLY:  # the clock here may be wrong, which shows now that theirs is known
                answer = self._connection.post(self._path, body, token=self._token(), timeout_seconds=timeout_seconds)
        except AgentError as error:
            return NotNow(str(error), 0.0)
        return judge(answer, count=len(texts))

    def _settle(self, reader: Reader, batch: Batch, taken: Taken) -> None:
        entries = []
        for each in taken.refused:
            event = json.loads(batch.texts[each.batch_index])
            if self._is_new(EventId(event["source"], event["stream"], event["n"])):
                entries.append(self._entry(each.code, each.message, event=event))
        entries += [
            self._entry("damaged", "the line is not what was written", text=line[:4096].decode("utf-8", "replace"))
            for line in batch.damaged
        ]
        if entries:
            self.queue.set_aside(entries)
        if taken.position:
            self.queue.note_seen(taken.position)
        if any(each.code == "conflict" for each in taken.refused):
            # Someone else counts in this stream, a clone of this machine perhaps: leave it to them.
            self._retire(reader.folder, "the server has other events under its numbers")
        reader.acknowledge(batch)

    def _is_new(self, event: EventId) -> bool:
        """Whether an event is not yet set aside; it is where a courier died before it moved the mark."""
        if self._set_aside is None:
            told = map(event_id, self.queue.refused()[-REFUSED_LOOK_BACK:])
            self._set_aside = {each for each in told if each is not None}
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
        """How far a stream, by the name of its folder, is known to be on disk because it was sent."""
        reader = self._readers.get(stream)
        return reader.synced if reader is not None else StreamPosition(0, 0)

    def run(self, stop: threading.Event | None = None) -> None:
        """Deliver until told to stop: by `stop()`, or by the event within half a second."""
        while not self._stopped and not (stop is not None and stop.is_set()):
            drained = self.drain_once()
            if drained.problem:
                self._rest(self._backoff.failed(retry_after_seconds=drained.retry_after_seconds), stop, idle=False)
                continue
            self._backoff.succeeded()
            self._rest(BUSY_SECONDS if drained.busy else POLL_SECONDS, stop, idle=not drained.busy)
        self.close()

    def _rest(self, seconds: float, stop: threading.Event | None, *, idle: bool) -> None:
        """Wait for that long, or until there is a reason not to; a new event is one only where nothing is wrong."""
        until = time.monotonic() + seconds
        with self._change:
            while not (self._stopped or (idle and self._woken)):
                left = until - time.monotonic()
                if left <= 0 or (stop is not None and stop.is_set()):
                    break
                self._change.wait(min(left, POLL_SECONDS))
            if self._woken and idle and not self._stopped:
                self._change.wait(HOLD_SECONDS)  # many events in one batch
            self._woken = False

    def wake(self) -> None:
        """Say that there are new events; nearly free where it has been said already."""
        if self._woken:
            return
        with self._change:
            self._woken = True
            self._change.notify_all()

    def wait_for_news(self, timeout_seconds: float) -> None:
        """Wait until a batch has been delivered by this courier, or a go has ended."""
        with self._change:
            self._change.wait(timeout_seconds)

    def stop(self) -> None:
        """End `run` soon and for good, also where it waits for an answer; what is not acknowledged stays in the spool."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        self._connection.break_off()

    def abandon(self) -> None:
        """Let go of the connection in a forked child: it is the parent's."""
        self._connection.abandon()

    def close(self) -> None:
        """Close the connection and the files; not while another thread is at work here."""
        with self._working:
            self._connection.close()
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()


def acknowledged(queue: Queue, event: EventId) -> bool:
    """Whether the server has an event, or has refused it."""
    return queue.acknowledged(queue.folder / f"{event.source}.{event.stream}").n >= event.n
