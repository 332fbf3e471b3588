"""The lines of a spool: a checksum, a blank, JSON. People can read them, and a torn one is known as such.

A segment begins with a header line and may end with an end line; in between each line is an event:

    8 hexadecimal digits of CRC-32, a blank, {"source":…,"stream":…,"n":7,"seen":41,"type":…}

A line counts when its newline is there and its checksum is right. Whatever follows the last newline was being written
when its writer died, and was never sent: the courier sends whole lines only.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import Any, NamedTuple

VERSION = 1
HEADER_START = b'{"spool":'
END_START = b'{"end":'

_HEAD = re.compile(rb'\{"source":"[a-z]+","stream":"[^"]+","n":([0-9]+),"seen":([0-9]+),')
_LINE_MAX = 64 << 20  # no event is that long: what has no newline for so long is not a spool


class Mark(NamedTuple):
    """Where a segment lies: a copy of its folder, here or elsewhere, lies in another place and is known by that."""

    host: str
    machine: str
    device: int
    inode: int


class Header(NamedTuple):
    """What the first line of a segment says: whose events follow, from which number on, and where they were written."""

    source: str
    stream: str
    first: int
    seen: int
    mark: Mark


class End(NamedTuple):
    """What the last line of a segment says: the number that comes next, or why the stream is written no more."""

    following: int
    seen: int
    retired: str


class Tail(NamedTuple):
    """The end of a segment: where its last newline is, and the text of its last line, None if that is damaged."""

    end: int
    text: bytes | None


def line_of(text: bytes) -> bytes:
    """The line that keeps a text."""
    return b"%08x %b\n" % (zlib.crc32(text), text)


def text_of(line: bytes) -> bytes | None:
    """The text that a line (without its newline) keeps, or None where it is not what was written."""
    text = line[9:]
    return text if line[:9] == b"%08x " % zlib.crc32(text) else None


def counters_of(text: bytes) -> tuple[int, int] | None:
    """The number of an event and the position it has seen, or None where the text is no event."""
    found = _HEAD.match(text)
    return (int(found[1]), int(found[2])) if found else None


def header_text(header: Header) -> bytes:
    """The text of a header."""
    value: dict[str, Any] = {"spool": "pilotage", "version": VERSION}
    value.update(header._asdict())
    value["mark"] = header.mark._asdict()
    return json.dumps(value, separators=(",", ":")).encode()


def parse_header(text: bytes) -> Header | None:
    """The header that a text says, or None where it is none that this version knows."""
    value = _object(text)
    if value is None or value.get("version") != VERSION or not text.startswith(HEADER_START):
        return None
    try:
        mark = Mark(**value["mark"])
        return Header(value["source"], value["stream"], value["first"], value["seen"], mark)
    except (KeyError, TypeError):
        return None


def end_text(*, following: int, seen: int, retired: str = "") -> bytes:
    """The text of an end line."""
    return json.dumps({"end": following, "seen": seen, "retired": retired}, separators=(",", ":")).encode()


def parse_end(text: bytes) -> End | None:
    """What an end line says, or None where the text is none."""
    value = _object(text) if text.startswith(END_START) else None
    return End(value["end"], value["seen"], value["retired"]) if value is not None else None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def tail_of(descriptor: int, *, size_bytes: int) -> Tail | None:
    """The last whole line of a file of that size, or None where there is no newline at all.

    It is looked for from the end backwards, so a long segment costs no more than a short one.
    """
    window = 4096
    while True:
        start = max(0, size_bytes - window)
        block = os.pread(descriptor, size_bytes - start, start)
        end = block.rfind(b"\n")
        begin = block.rfind(b"\n", 0, max(end, 0))
        if end >= 0 and (begin >= 0 or start == 0):
            return Tail(start + end + 1, text_of(block[begin + 1 : end]))
        if start == 0 or window > _LINE_MAX:
            return None
        window *= 8


def first_line(descriptor: int) -> bytes | None:
    """The text of the first line of a file, or None where it is not whole; a header is short."""
    line, newline, _ = os.pread(descriptor, 4096, 0).partition(b"\n")
    return text_of(line) if newline else None
