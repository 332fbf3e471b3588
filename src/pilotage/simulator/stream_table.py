"""The streams of a book in memory: their rows, and beside them how far those were heard that only count on."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from msgspec.structs import replace

from pilotage.book.ledger import OfStreams, StreamsAtHand
from pilotage.book.rows import StreamRow
from pilotage.book.streams import NO_RANGES
from pilotage.model.events import SOURCE_RANKS


class StreamTable:
    """Streams by their source and name. What a row says of how far its stream was heard may be older than what is here."""

    __slots__ = ("_heard", "_ids", "_rows")

    def __init__(self, rows: dict[tuple[Any, ...], StreamRow]) -> None:
        """Look after rows, of which there are none yet."""
        self._rows = rows
        self._ids: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}
        self._heard: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}

    def known(self, names: Collection[tuple[str, str]]) -> list[StreamRow]:
        """Those that are known among some (source, stream)."""
        ids, rows = self._ids, self._rows
        return [self.read(rows[ids[source][stream],]) for source, stream in names if stream in ids[source]]

    def at_hand(self) -> StreamsAtHand:
        """All of them."""
        return StreamsAtHand(self._ids, self._heard)

    def read(self, row: StreamRow) -> StreamRow:
        """A row of its own for whoever asked."""
        return replace(row, watermark=self._heard[row.source].get(row.stream, row.watermark))

    def write(self, rows: Iterable[StreamRow], counted_on: OfStreams) -> None:
        """Put rows in place of those with the same keys, and go on with those that counted on."""
        for source, counted in counted_on.items():
            self._heard[source] |= counted
        for row in rows:
            self._rows[row.stream_id,] = row
            self._ids[row.source][row.stream] = row.stream_id
            heard = self._heard[row.source]
            if row.ahead == NO_RANGES:
                heard[row.stream] = row.watermark
            else:
                heard.pop(row.stream, None)
