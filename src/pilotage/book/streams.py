"""Which events of a stream were heard: a watermark and the ranges ahead of it. Repeats are found without an index of ids."""

from __future__ import annotations

import bisect

import msgspec

from pilotage.book.rows import StreamRow
from pilotage.model.events import JUMP_MAX

RANGES_MAX = 10_000
"""Of a stream with more holes than this the oldest one is given up; what comes for it after all is a conflict."""

NO_RANGES = "[]"  # most streams count on, and leave none

_NONE: list[int] = []  # of every stream that never had any

_ranges = msgspec.json.Decoder(list[tuple[int, int]])


class Heard:
    """What was heard of one stream."""

    __slots__ = ("_lasts", "changed", "firsts", "forgotten", "row", "stream_id", "watermark")

    def __init__(self, row: StreamRow) -> None:
        """Unpack a row."""
        self.row = row
        self.stream_id = row.stream_id
        self.changed = False
        self.forgotten = 0  # numbers that count as heard since then, and of which nothing is kept
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
        """Whether `n` is new; from now on it is not."""
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
        """Count `n` as heard, though nothing is kept of it: no hole stays for what will never be."""
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
                # The oldest hole is given up: most likely what belongs there was refused, and will not come.
                self.forgotten += self.firsts[0] - self.watermark - 1
                self.watermark = self._lasts[0]
                del self.firsts[0], self._lasts[0]

    def packed(self) -> StreamRow:
        """The row again."""
        self.row.watermark = self.watermark
        ranges = list(zip(self.firsts, self._lasts, strict=True))
        self.row.ahead = msgspec.json.encode(ranges).decode() if ranges else NO_RANGES
        return self.row
