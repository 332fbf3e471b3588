"""Here-documents of a shell script: where one ends, and whether a line of it would be its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class HereDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a here-document: its stretch of the script, its end word, and the gaps inside."""

    word: str
    literal: bool
    strips_tabs: bool
    start: int
    end: int
    first_slot: int
    slots: int


def ends(line: str, document: HereDocument) -> bool:
    """Whether a line is the end of a here-document."""
    return (line.lstrip("\t") if document.strips_tabs else line) == document.word


def joined_lines(lines: Sequence[str]) -> list[str]:
    """The lines of a document as a shell sees them that takes a backslash at the end as "goes on"."""
    joined: list[str] = []
    goes_on = False
    for line in lines:
        odd = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        text = line[:-1] if odd else line
        if goes_on:
            joined[-1] += text
        else:
            joined.append(text)
        goes_on = odd
    return joined


def ends_evenly(body: str) -> bool:
    """Whether the last line does not go on: the backslashes at its end come in pairs."""
    text = body.removesuffix("\n")
    return (len(text) - len(text.rstrip("\\"))) % 2 == 0
