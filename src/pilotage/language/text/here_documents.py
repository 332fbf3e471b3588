"""Here-documents of a shell script: how they end, and how the shell joins their lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class HereDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a here-document: its range in the script, its end word, and the placeholders inside."""

    word: str
    literal: bool
    strips_tabs: bool
    start: int
    end: int
    first_slot: int
    slots: int


def ends(line: str, document: HereDocument) -> bool:
    """Whether a line ends a here-document."""
    return (line.lstrip("\t") if document.strips_tabs else line) == document.word


def joined_lines(lines: Sequence[str]) -> list[str]:
    """The lines of a here-document after the shell has joined those that end with a backslash."""
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
    """Whether the last line is not continued: it ends with an even number of backslashes."""
    text = body.removesuffix("\n")
    return (len(text) - len(text.rstrip("\\"))) % 2 == 0
