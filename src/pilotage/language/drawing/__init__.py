"""Draws the graph of a job: text for a terminal, SVG for a page, DOT and JSON for other programs.

Hides the layout of the graph, and when packages are drawn as one box per activity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from pilotage.language.expansion.expansion import Expansion

__all__ = ["DRAWINGS", "Drawing", "draw"]

Drawing = Literal["text", "dot", "json", "svg"]
DRAWINGS: tuple[Drawing, ...] = get_args(Drawing)


def draw(expansion: Expansion, drawing: Drawing, *, columns: int = 80) -> Iterator[str]:
    """The drawing as pieces of text; `columns` is the width of a text drawing."""
    # Each format is imported when it is used, since counting files needs none of them.
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
