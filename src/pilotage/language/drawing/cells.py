"""How much room a text takes where every character has one width: wide ones take two cells, combining ones none."""

from __future__ import annotations

import unicodedata


def cells(text: str) -> int:
    """How many cells of a terminal a text fills."""
    return len(text) if text.isascii() else sum(map(cell, text))


def cell(character: str) -> int:
    """How many cells one character fills."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def clipped(text: str, cells_max: int) -> str:
    """The text, or its beginning and an ellipsis where it would be wider than allowed."""
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    if cells(text) <= cells_max:
        return text
    kept, used = [], 1
    for character in text:
        used += cell(character)
        if used > cells_max:
            break
        kept.append(character)
    return "".join(kept) + "…" if cells_max > 0 else ""


def shortened(text: str, cells_max: int) -> str:
    """The text, or its beginning and its end, since names often differ only there."""
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    if cells(text) <= cells_max or cells_max < 8:
        return clipped(text, cells_max)
    room = (cells_max - 1) // 2
    ending = ""
    for character in reversed(text):
        if cells(ending) + cell(character) > room:
            break
        ending = character + ending
    return clipped(text, cells_max - cells(ending)) + ending


def padded(text: str, width: int) -> str:
    """The text with spaces after it up to a width in cells."""
    return text + " " * (width - cells(text))
