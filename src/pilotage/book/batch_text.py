"""A batch cut into the texts of its events without reading them, for one of them that no reader can follow to its depth."""

from __future__ import annotations

import re

CUT_BYTES_MAX = 1_100_000
"""A longer body is not cut: that would take too long for who waits meanwhile, and those who collect events send shorter ones."""

_HEAD = re.compile(rb'\s*\{\s*"events"\s*:\s*\[')
_TAIL = re.compile(rb"\s*\}\s*")
# A text in quotes is one piece, whatever stands in it; a quote by itself begins one that does not end.
_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]++|[\]},"]', re.DOTALL)


def event_texts(body: bytes) -> list[bytes] | None:
    """The text of each event of `{"events": […]}`, in order; None where the body has another form, or is too long.

    Whether a text is JSON is for who reads it: here only brackets and quotes are looked at.
    """
    head = _HEAD.match(body)
    if head is None or len(body) > CUT_BYTES_MAX:
        return None
    texts: list[bytes] = []
    depth, start = 0, head.end()
    for piece in _PIECE.finditer(body, start):
        mark = piece[0]
        if mark[0] in b"[{":
            depth += len(mark)
        elif mark in b"]}" and depth:
            depth -= 1
        elif mark in (b",", b"]") and not depth:
            texts.append(body[start : piece.start()].strip())
            start = piece.end()
            if mark == b"]":
                if texts == [b""]:
                    texts = []
                return texts if _TAIL.fullmatch(body, start) else None
        elif mark in (b"}", b'"'):
            return None
    return None
