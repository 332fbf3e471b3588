"""Draws a job's graph: text for a terminal, SVG for a page, DOT and JSON for other programs.

Hides how a graph is laid out, and when there is too much of it to draw every package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from pilotage.language.expansion.expansion import Expansion

__all__ = ["DRAWINGS", "Drawing", "draw"]

Drawing = Literal["text", "dot", "json", "svg"]
DRAWINGS: tuple[Drawing, ...] = get_args(Drawing)


def draw(expansion: Expansion, drawing: Drawing, *, columns: int = 80) -> Iterator[str]:
    """The pieces of a drawing, to be written one after the other; `columns` is the width of a text."""
    # Each kind is imported when it is asked for: whoever only counts files pays for none.
    if drawing == "text":
        from pilotage.language.drawing.text import text_lines

        return text_lines(expansion, columns=columns)
    if drawing == "dot":
        from pilotage.language.drawing.exports import dot_lines

        return dot_lines(expansion)
    if drawing == "json":
        from pilotage.language.drawing.exports import json_pieces

        return json_pieces(expansion)
    from pilotage.language.drawing.svg import svg_text

    return iter((svg_text(expansion),))
