"""Checks the journal: everything acknowledged is durable, once, and unchanged.

The events of a stream are remembered as a watermark plus those ahead of it, so a long stream costs no more than a short one.
"""

from __future__ import annotations

from pilotage.model.events.events import Event
from pilotage.simulator.checkers.records import Record

FINISHED = "AttemptFinished"
NOTED = "Noted"
ACKNOWLEDGED = "acknowledged"
ROGUES = "rogues"


class _Stream:
    __slots__ = ("ahead", "complete", "forged", "spooled", "unheard")

    def __init__(self) -> None:
        self.complete = 0  # every event up to this one is durable
        self.ahead: set[int] = set()  # for look-ups only
        self.spooled: dict[int, Event] = {}  # sent, and not yet durable
        self.forged: dict[int, Event] = {}  # forged, and not yet durable
        self.unheard: set[tuple[object, ...]] = set()  # ends of attempts that were only stored; for look-ups only


class Streams:
    """Every stream of events: what its agent sent, what is durable, and what was acknowledged."""

    def __init__(self, record: Record) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._streams: dict[tuple[str, str], _Stream] = {}

    def on_spooled(self, event: Event) -> None:
        """An agent will send an event until it is acknowledged."""
        self._stream(event.source, event.stream).spooled[event.n] = event

    def on_forged(self, event: Event) -> None:
        """An agent will send a forged event."""
        self._stream(event.source, event.stream).forged[event.n] = event

    def on_written(self, event: Event) -> None:
        """An event is durable."""
        stream = self._stream(event.source, event.stream)
        n = event.n
        if n <= stream.complete or n in stream.ahead:
            raise self._record.broken_stream(
                ACKNOWLEDGED, f"event {n} ({event.type}) of {event.source} is in the book twice", event.stream
            )
        if n == stream.complete + 1:
            stream.complete = n
            while stream.ahead and stream.complete + 1 in stream.ahead:
                stream.complete += 1
                stream.ahead.remove(stream.complete)
        else:
            stream.ahead.add(n)
        lie = stream.forged.pop(n, None)
        if lie is not None and event.type != NOTED and not self._is_first_end(stream, lie):
            what = f"{lie.job}/{lie.package}/{lie.attempt}" if lie.job is not None else lie.pilot or "nothing"
            message = (
                f"event {n} said {lie.type} of {what}, which is not its to say, and is in the book as {event.type}"
            )
            raise self._record.broken_stream(ROGUES, message, event.stream)
        spooled = stream.spooled.pop(n, None)
        if spooled is not None and spooled is not event and spooled != event and not self._is_late(spooled, event):
            raise self._record.broken_stream(
                ACKNOWLEDGED, f"event {n} was said as {spooled.type} and is in the book as {event.type}", event.stream
            )
        if spooled is not None and spooled.type == FINISHED and event.type == NOTED:
            stream.unheard.add(_attempt_of(spooled))

    def on_acknowledged(self, pilot: str, n: int) -> None:
        """Events of an agent up to `n` were acknowledged."""
        stream = self._stream("agent", pilot)
        if n > stream.complete:
            raise self._record.broken_stream(
                ACKNOWLEDGED, f"event {stream.complete + 1} is not durable, and {n} was acknowledged", pilot
            )

    def _is_first_end(self, stream: _Stream, lie: Event) -> bool:
        """Whether this is the first end of an attempt in the book: earlier reports came while its job was cleared.

        A cleared job may be restarted, and its pilots may then report an end that the book does not have. Once.
        """
        attempt = _attempt_of(lie)
        if lie.type != FINISHED or attempt not in stream.unheard:
            return False
        stream.unheard.remove(attempt)
        return True

    def _is_late(self, spooled: Event, event: Event) -> bool:
        """Whether an event about an attempt was only stored, because the attempt was given up."""
        job = self._record.jobs.get(spooled.job or "")
        package = job.packages.get(spooled.package or "") if job is not None else None
        attempt = package.attempts.get(spooled.attempt or 0) if package is not None else None
        if event.type != NOTED or package is None or attempt is None:
            return False
        return bool(package.state) or attempt.epoch != package.epoch

    def _stream(self, source: str, name: str) -> _Stream:
        found = self._streams.get((source, name))
        if found is None:
            found = self._streams[source, name] = _Stream()
        return found


def _attempt_of(event: Event) -> tuple[object, ...]:
    return event.job, event.package, event.attempt, event.epoch
