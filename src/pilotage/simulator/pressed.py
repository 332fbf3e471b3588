"""What is seldom wanted again of packages that are over, some dozens together, so that it takes little room.

Texts are pressed: alike as they are, little is left of each. Short lives, which most packages have, are packed as the
values they consist of, which takes a fraction of the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from pilotage.book.short_rows import Ended

TOGETHER = 32
_LEVEL = 1  # the others take longer, and win little
_UNPACKED_MAX = 64


class PressedTexts:
    """Texts of one line each, found by the number that they were given. A text that was put here is never taken out."""

    __slots__ = ("_blocks", "_open", "_unpacked")

    def __init__(self) -> None:
        """Begin with none."""
        self._blocks: list[bytes] = []
        self._open: list[str] = []  # too few as yet to be pressed
        self._unpacked: dict[int, list[str]] = {}  # what was asked for lately

    def put(self, text: str) -> int:
        """Keep a text; the number to ask for it by."""
        number = len(self._blocks) * TOGETHER + len(self._open)
        self._open.append(text)
        if len(self._open) == TOGETHER:
            self._blocks.append(zlib.compress("\n".join(self._open).encode(), _LEVEL))
            self._open.clear()
        return number

    def text(self, number: int) -> str:
        """A text that was kept."""
        block, place = divmod(number, TOGETHER)
        if block == len(self._blocks):
            return self._open[place]
        texts = self._unpacked.get(block)
        if texts is None:
            if len(self._unpacked) >= _UNPACKED_MAX:
                del self._unpacked[next(iter(self._unpacked))]
            texts = self._unpacked[block] = zlib.decompress(self._blocks[block]).decode().split("\n")
        return texts[place]


_lives = msgspec.msgpack.Decoder(list[Ended])
_encode = msgspec.msgpack.Encoder().encode


class PackedLives:
    """Short lives that have ended, found by the number that they were given. None is ever taken out."""

    __slots__ = ("_blocks", "_open", "_unpacked")

    def __init__(self) -> None:
        """Begin with none."""
        self._blocks: list[bytes] = []
        self._open: list[Ended] = []  # too few as yet to be packed
        self._unpacked: dict[int, list[Ended]] = {}  # what was asked for lately

    def put(self, lives: Iterable[Ended]) -> int:
        """Keep lives; the number to ask for the first by, from which the others count on."""
        number = len(self._blocks) * TOGETHER + len(self._open)
        found = [*self._open, *lives]
        full = len(found) - len(found) % TOGETHER
        self._blocks += [_encode(found[at : at + TOGETHER]) for at in range(0, full, TOGETHER)]
        self._open = found[full:]
        return number

    def life(self, number: int) -> Ended:
        """A life that was kept."""
        block, place = divmod(number, TOGETHER)
        if block == len(self._blocks):
            return self._open[place]
        lives = self._unpacked.get(block)
        if lives is None:
            if len(self._unpacked) >= _UNPACKED_MAX:
                del self._unpacked[next(iter(self._unpacked))]
            lives = self._unpacked[block] = _lives.decode(self._blocks[block])
        return lives[place]
