"""Answers a file, or the piece of it that the header `Range` names, in pieces: neither side holds a whole one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable

from pilotage.service.http.errors import NotARange
from pilotage.service.http.routing import OCTETS, Reply

PIECE_BYTES = 2**20
"""How much is read from a file at once."""

Read = Callable[[int, int], bytes]
"""Reads from an offset at most so many bytes; empty beyond the end."""

_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


def range_of(asked: str, *, size_bytes: int) -> tuple[int, int]:
    """The first byte requested and the one after the last; without a `Range`, the whole file."""
    if not asked:
        return 0, size_bytes
    found = _RANGE.fullmatch(asked.strip())
    start, end = 0, size_bytes
    if found is not None and found[1]:
        start = int(found[1])
        end = min(int(found[2]) + 1, size_bytes) if found[2] else size_bytes
    elif found is not None and found[2]:
        start = max(0, size_bytes - int(found[2]))
    else:
        start = size_bytes
    if start >= end:
        raise NotARange(
            "no such range in the file", expected=f"bytes=FIRST-LAST within {size_bytes} bytes", got=asked[:64]
        )
    return start, end


async def ranged_reply(read: Read, *, asked: str, size_bytes: int) -> Reply[bytes]:
    """A file of this size, or the piece asked for; its first bytes are read before the answer begins."""
    start, end = range_of(asked, size_bytes=size_bytes)
    headers = {"Content-Length": str(end - start), "Accept-Ranges": "bytes"}
    if asked:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size_bytes}"
    first = await asyncio.to_thread(read, start, min(PIECE_BYTES, end - start))
    pieces = _pieces(read, first, start=start + len(first), end=end if first else start)
    return Reply(stream=pieces, status=206 if asked else 200, headers=headers, media_type=OCTETS)


async def _pieces(read: Read, first: bytes, *, start: int, end: int) -> AsyncIterator[bytes]:
    yield first
    while start < end:
        piece = await asyncio.to_thread(read, start, min(PIECE_BYTES, end - start))
        if not piece:
            return  # the file shrank: the answer stays short of its length, and the client asks again
        start += len(piece)
        yield piece
