"""Texts as they lie in a database: packed where that pays, and where they hold what no text there may hold."""

from __future__ import annotations

import zlib

_PACKED_MIN = 200  # a shorter text is not worth packing


def packed(text: str) -> str | bytes:
    """A text as it is stored."""
    if len(text) < _PACKED_MIN and text.isascii():
        return text
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpacked(stored: str | bytes) -> str:
    """A text from what is stored of it."""
    return stored if isinstance(stored, str) else zlib.decompress(stored).decode("utf-8", "surrogatepass")
