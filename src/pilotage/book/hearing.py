"""How far a batch is heard on each stream: most count on from where they were, and need nothing but a number."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pilotage.book.codec import Checked
from pilotage.book.ledger import Ledger, OfStreams
from pilotage.book.rows import StreamRow
from pilotage.book.streams import NO_RANGES, Heard
from pilotage.model.events import JUMP_MAX, SOURCE_RANKS, Event

Name = tuple[str, str]
"""The source and the stream of an event."""
OUT_OF_TURN = -1
"""In place of how far a stream was heard: nothing counts on from there."""


class Hearing:
    """The streams of one batch. Whoever goes through its events may look at `heard` and write into `counted` itself."""

    __slots__ = ("_checked", "_ledger", "_out_of_turn", "_rows", "counted", "heard", "ids")

    def __init__(self, ledger: Ledger, checked: Sequence[Checked]) -> None:
        """Look at the streams that the ledger has at hand; if it has none, those of the batch are loaded."""
        self._ledger = ledger
        self._checked = checked
        self._rows: dict[Name, StreamRow] = {}  # of the whole batch, or none
        self._out_of_turn: dict[Name, Heard] = {}
        self.ids: OfStreams = {}
        self.heard: OfStreams = {}  # how far before this batch, of those of which nothing was heard out of turn,
        self.counted: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}  # and with it
        at_hand = ledger.streams_at_hand()
        if at_hand is None:
            self._load()
        else:
            self.ids, self.heard = at_hand

    def _load(self) -> None:
        """Load the streams of the whole batch; those that are heard of for the first time are made."""
        names: set[Name] = {(event.source, event.stream) for event in [one.event for one in self._checked]}
        self._rows = rows = {(row.source, row.stream): row for row in self._ledger.streams(names)}
        for source, stream in sorted(names - rows.keys()):
            row = StreamRow(stream_id=self._ledger.next_stream_id(), source=source, stream=stream)
            rows[source, stream] = row
        ids: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}
        heard: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}
        for (source, stream), row in rows.items():
            ids[source][stream] = row.stream_id
            if row.ahead == NO_RANGES:
                heard[source][stream] = row.watermark
        self.ids, self.heard = ids, heard

    def id_of(self, event: Event) -> int:
        """The number that the stream of an event has."""
        if event.stream not in self.ids[event.source]:
            self._load()
        return self.ids[event.source][event.stream]

    def hear(self, event: Event) -> bool:
        """Whether an event is new; from now on it is not."""
        self.id_of(event)
        mine, stream = self.counted[event.source], event.stream
        before = mine.get(stream)
        if before is None:
            before = self.heard[event.source].get(stream, OUT_OF_TURN)
        if event.n == before + 1:
            mine[stream] = event.n
            return True
        return self._heard_of(event).add(event.n)

    def jumps(self, event: Event) -> bool:
        """Whether an event is so far beyond all others of its stream that it cannot be of it."""
        return event.n > JUMP_MAX and event.n > self._heard_of(event).reach

    def forget(self, event: Event) -> None:
        """Count an event as heard, though nothing is kept of it."""
        self._heard_of(event).forget(event.n)

    def _heard_of(self, event: Event) -> Heard:
        """What was heard of a stream of which something may come out of turn."""
        name = event.source, event.stream
        heard = self._out_of_turn.get(name)
        if heard is None:
            if name not in self._rows:
                self._load()
            row, mine = self._rows[name], self.counted[event.source]
            heard = Heard(replace(row, watermark=mine.get(event.stream, row.watermark)))
            self._out_of_turn[name] = heard
            mine[event.stream] = OUT_OF_TURN
        return heard

    @property
    def forgotten(self) -> int:
        """How many numbers count as heard of which nothing is kept."""
        return sum(heard.forgotten for heard in self._out_of_turn.values())

    def result(self) -> tuple[list[StreamRow], OfStreams]:
        """The rows of streams that were heard further; those that only counted on may be told without one."""
        changed: list[StreamRow] = []
        for (source, stream), heard in self._out_of_turn.items():
            before, row = self._rows[source, stream], heard.packed()
            if (before.watermark, before.ahead) != (row.watermark, row.ahead):
                changed.append(row)
            del self.counted[source][stream]
        if not self._rows:
            return changed, self.counted
        for source, counted in self.counted.items():
            for stream, n in counted.items():
                changed.append(row := self._rows[source, stream])
                row.watermark = n
        return changed, {}
