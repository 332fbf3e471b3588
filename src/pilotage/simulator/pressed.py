"""Texts that are seldom wanted again, pressed together some dozens at a time: alike as they are, little is left of each."""

from __future__ import annotations

import zlib

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
