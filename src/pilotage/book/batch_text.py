"""A batch as the texts of its events, where one of them is such that the strict reader cannot read the batch."""

from __future__ import annotations

import json
import re

CUT_BYTES_MAX = 1_100_000
"""A longer body is not cut: that would take too long for who waits meanwhile, and those who collect events send shorter ones."""

_BLANKS = b" \t\n\r"
_HEAD = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*"events"[ \t\n\r]*:[ \t\n\r]*\[')
_TAIL = re.compile(rb"[ \t\n\r]*\}[ \t\n\r]*")
# A text in quotes is one piece, whatever stands in it; a quote by itself begins one that does not end.
_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]++|[\]},"]', re.DOTALL)


def lenient_texts(body: bytes) -> list[bytes] | None:
    """The text of each event of `{"events": […]}` as a lenient reader has it; None where the body has another form.

    Where one of them is nested so deeply that no reader can follow, the body is cut without being read.
    """
    try:
        found = json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError:
        return None
    except RecursionError:
        return event_texts(body)
    if not isinstance(found, dict) or found.keys() != {"events"} or not isinstance(found["events"], list):
        return None
    plain = [json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in found["events"]]
    return [text.encode("utf-8", "surrogatepass") for text in plain]


def event_texts(body: bytes) -> list[bytes] | None:
    """The text of each event of `{"events": […]}`, in order; None where the body has another form, or is too long.

    Whether a text is JSON is for who reads it: here only brackets and quotes are looked at.
    """
    head = _HEAD.match(body)
    if head is None or len(body) > CUT_BYTES_MAX:
        return None
    texts: list[bytes] = []
    opened, start = bytearray(), head.end()
    for piece in _PIECE.finditer(body, start):
        mark = piece[0]
        if mark[0] in b"[{":
            opened += mark
        elif mark in b"]}" and opened:
            if opened.pop() + 2 != mark[0]:  # so far are those of a pair from each other
                return None
        elif mark in (b",", b"]") and not opened:
            texts.append(body[start : piece.start()].strip(_BLANKS))
            start = piece.end()
            if mark == b"]":
                if texts == [b""]:
                    texts = []
                return texts if _TAIL.fullmatch(body, start) else None
        elif mark in (b"}", b'"'):
            return None
    return None
