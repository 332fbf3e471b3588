"""The received numbers of a stream: a watermark and the ranges ahead of it. Finds duplicates without an index of ids."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import msgspec

from pilotage.book.rows.rows import StreamRow
from pilotage.model.events.events import JUMP_MAX

RANGES_MAX = 10_000
"""A stream with more gaps than this loses its oldest; an event that arrives for it later is a conflict."""

NO_RANGES = "[]"  # most streams have no gaps

_NONE: list[int] = []  # shared by streams without ranges

_ranges = msgspec.json.Decoder(list[tuple[int, int]])


class ReceivedNumbers:
    """The received numbers of one stream."""

    __slots__ = ("_lasts", "changed", "firsts", "forgotten", "row", "stream_id", "watermark")

    def __init__(self, row: StreamRow) -> None:
        """Decode a row."""
        self.row = row
        self.stream_id = row.stream_id
        self.changed = False
        self.forgotten = 0  # numbers that count as received since then, without a stored event
        self.watermark = row.watermark
        self.firsts = self._lasts = _NONE
        if row.ahead != NO_RANGES:
            ranges = _ranges.decode(row.ahead)
            self.firsts, self._lasts = [first for first, _ in ranges], [last for _, last in ranges]

    @property
    def reach(self) -> int:
        """The greatest number that may come next; see `JUMP_MAX`."""
        return (self._lasts[-1] if self._lasts else self.watermark) + JUMP_MAX

    def add(self, n: int) -> bool:
        """Add a number; returns whether it is new."""
        if n == self.watermark + 1 and not self.firsts:
            self.watermark = n
            self.changed = True
            return True
        if n <= self.watermark:
            return False
        if self.firsts is _NONE:
            self.firsts, self._lasts = [], []
        at = bisect.bisect_right(self.firsts, n)
        if at and n <= self._lasts[at - 1]:
            return False
        self._insert(at, n)
        self.changed = True
        if self.firsts and self.firsts[0] == self.watermark + 1:
            self.watermark = self._lasts[0]
            del self.firsts[0], self._lasts[0]
        return True

    def forget(self, n: int) -> None:
        """Count a number as received without a stored event, so that no gap stays."""
        self.forgotten += self.add(n)

    def _insert(self, at: int, n: int) -> None:
        joins_before = at > 0 and self._lasts[at - 1] == n - 1
        joins_after = at < len(self.firsts) and self.firsts[at] == n + 1
        if joins_before and joins_after:
            self._lasts[at - 1] = self._lasts[at]
            del self.firsts[at], self._lasts[at]
        elif joins_before:
            self._lasts[at - 1] = n
        elif joins_after:
            self.firsts[at] = n
        else:
            self.firsts.insert(at, n)
            self._lasts.insert(at, n)
            if len(self.firsts) > RANGES_MAX:
                # Give up the oldest gap: most likely its event was refused, and will not come.
                self.forgotten += self.firsts[0] - self.watermark - 1
                self.watermark = self._lasts[0]
                del self.firsts[0], self._lasts[0]

    def packed(self) -> StreamRow:
        """The row with the current numbers."""
        self.row.watermark = self.watermark
        ranges = list(zip(self.firsts, self._lasts, strict=True))
        self.row.ahead = msgspec.json.encode(ranges).decode() if ranges else NO_RANGES
        return self.row


# The received numbers of a stream as ranges, and back into the row of the stream.

Range = tuple[int, int]
"""The first and the last of consecutive numbers."""

_decoder = msgspec.json.Decoder(list[tuple[int, int]])
_encode = msgspec.json.Encoder().encode


def received_ranges(row: StreamRow) -> list[Range]:
    """The received numbers of a stream's row."""
    ahead = _decoder.decode(row.ahead)
    return united([(1, row.watermark), *ahead]) if row.watermark else united(ahead)


def highest_of(row: StreamRow) -> int:
    """The highest received number of a stream, whatever gaps are below it; 0 if none."""
    return max([row.watermark, *(last for _, last in _decoder.decode(row.ahead))])


def united(ranges: Iterable[Range]) -> list[Range]:
    """Ranges sorted and merged."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def ranges_of(numbers: Iterable[int]) -> list[Range]:
    """Numbers as ranges."""
    return united((number, number) for number in numbers)


def contains(ranges: list[Range], number: int) -> bool:
    """Tell whether a number is in sorted ranges."""
    at = bisect.bisect_right(ranges, (number, 2**63)) - 1
    return at >= 0 and ranges[at][0] <= number <= ranges[at][1]


def size(ranges: Iterable[Range]) -> int:
    """How many numbers ranges contain."""
    return sum(last - first + 1 for first, last in ranges)


def stream_row(row: StreamRow, ranges: list[Range]) -> StreamRow:
    """The row of a stream with these received numbers."""
    watermark = ranges[0][1] if ranges and ranges[0][0] == 1 else 0
    ahead = ranges[1:] if watermark else ranges
    return msgspec.structs.replace(row, watermark=watermark, ahead=_encode(ahead).decode())
