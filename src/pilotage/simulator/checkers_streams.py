"""Doubts the journal: what was acknowledged is durable, once, and as it was said.

A stream's events are remembered as a watermark and what came ahead of it, so a long stream costs no more than a short one.
"""

from __future__ import annotations

from pilotage.model.events import Event
from pilotage.simulator.checkers_traces import Record

ACKNOWLEDGED = "acknowledged"


class _Stream:
    __slots__ = ("ahead", "complete", "spooled")

    def __init__(self) -> None:
        self.complete = 0  # every event up to this one is durable
        self.ahead: set[int] = set()  # only asked, never walked
        self.spooled: dict[int, Event] = {}  # said, and not yet durable


class Streams:
    """Every stream of events: what its agent said, what is durable, and what was acknowledged."""

    def __init__(self, record: Record) -> None:
        """Share what the other checkers know."""
        self._record = record
        self._streams: dict[tuple[str, str], _Stream] = {}

    def on_spooled(self, event: Event) -> None:
        """An agent noted an event, which it will send until it is acknowledged."""
        self._stream(event.source, event.stream).spooled[event.n] = event

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
        said = stream.spooled.pop(n, None)
        if said is not None and said is not event and said != event:
            raise self._record.broken_stream(
                ACKNOWLEDGED, f"event {n} was said as {said.type} and is in the book as {event.type}", event.stream
            )

    def on_acknowledged(self, pilot: str, n: int) -> None:
        """An agent was told that it need not send events up to `n` again."""
        stream = self._stream("agent", pilot)
        if n > stream.complete:
            raise self._record.broken_stream(
                ACKNOWLEDGED, f"event {stream.complete + 1} is not durable, and {n} was acknowledged", pilot
            )

    def _stream(self, source: str, name: str) -> _Stream:
        found = self._streams.get((source, name))
        if found is None:
            found = self._streams[source, name] = _Stream()
        return found
