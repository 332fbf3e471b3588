"""How far a batch is heard on each stream: most count on from where they were, and need nothing but a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec.structs import replace

from pilotage.book.codec import Checked
from pilotage.book.ledger import CountedOn, Ledger, StreamsAtHand
from pilotage.book.rows import StreamRow
from pilotage.book.streams import NO_RANGES, Heard
from pilotage.model.events import SOURCE_RANKS, Event

Name = tuple[str, str]
"""The source and the stream of an event."""
OUT_OF_TURN = -1
"""In place of how far a stream was heard of which something came out of turn: no event counts on from there."""
event_of: Callable[[Checked], Event] = attrgetter("event")
_name_of: Callable[[Event], Name] = attrgetter("source", "stream")


class Hearing:
    """The streams of one batch. Whoever goes through its events may look at `known` and write into `counted` itself."""

    __slots__ = ("_checked", "_is_own", "_ledger", "_out_of_turn", "counted", "known")

    def __init__(self, ledger: Ledger, checked: Sequence[Checked]) -> None:
        """Take the streams that the ledger has at hand; if it has none, those of the batch are loaded."""
        self._ledger = ledger
        self._checked = checked
        self._out_of_turn: dict[Name, Heard] = {}
        self.counted: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}  # heard up to here, by stream
        self.known: StreamsAtHand = ledger.streams_at_hand()
        self._is_own = False
        if not self.known:
            self._load()

    def _load(self) -> None:
        """Load the streams of the whole batch; those that are heard of for the first time are made."""
        names = set(map(_name_of, map(event_of, self._checked)))
        known: dict[str, dict[str, StreamRow]] = {source: {} for source in SOURCE_RANKS}
        for row in self._ledger.streams(names):
            known[row.source][row.stream] = row
        for source, stream in sorted(names):
            if stream not in known[source]:
                row = StreamRow(stream_id=self._ledger.next_stream_id(), source=source, stream=stream)
                known[source][stream] = row
        self.known, self._is_own = known, True

    def row(self, event: Event) -> StreamRow:
        """The row of a stream as it was before the batch."""
        row = self.known[event.source].get(event.stream)
        if row is None:
            self._load()
            row = self.known[event.source][event.stream]
        return row

    def hear(self, event: Event) -> bool:
        """Whether an event is new; from now on it is not."""
        row, mine = self.row(event), self.counted[event.source]
        if row.ahead == NO_RANGES and event.n == mine.get(event.stream, row.watermark) + 1:
            mine[event.stream] = event.n
            return True
        return self._heard_of(event).add(event.n)

    def forget(self, event: Event) -> None:
        """Count an event as heard, though nothing is kept of it."""
        self._heard_of(event).forget(event.n)

    def _heard_of(self, event: Event) -> Heard:
        """What was heard of a stream of which something may come out of turn."""
        heard = self._out_of_turn.get((event.source, event.stream))
        if heard is None:
            row, mine = self.row(event), self.counted[event.source]
            heard = Heard(replace(row, watermark=mine.get(event.stream, row.watermark)))
            self._out_of_turn[event.source, event.stream] = heard
            mine[event.stream] = OUT_OF_TURN
        return heard

    @property
    def forgotten(self) -> int:
        """How many numbers count as heard of which nothing is kept."""
        return sum(heard.forgotten for heard in self._out_of_turn.values())

    def result(self) -> tuple[list[StreamRow], CountedOn]:
        """The rows of streams that were heard further, and how far those at hand were that only counted on."""
        changed: list[StreamRow] = []
        for (source, stream), heard in self._out_of_turn.items():
            before, row = self.known[source][stream], heard.packed()
            if (before.watermark, before.ahead) != (row.watermark, row.ahead):
                changed.append(row)
            self.counted[source].pop(stream, None)
        if not self._is_own:
            return changed, self.counted
        for source, counted in self.counted.items():
            for stream, n in counted.items():
                changed.append(row := self.known[source][stream])
                row.watermark = n
        return changed, {}
