"""The graph in DOT, the language of Graphviz: every package and every edge, grouped by stage."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pilotage.language.drawing.edge_files import files_between, needed_by
from pilotage.language.drawing.palette import colour_of_activities
from pilotage.language.expansion.expansion import Expansion

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f]")
_FILES_SHOWN_MAX = 3


def dot_lines(expansion: Expansion) -> Iterator[str]:
    """The lines of a directed graph; each node is called by its package's path."""
    job = expansion.definition.job
    yield f"digraph {quoted(job)} {{\n"
    yield "  rankdir=LR;\n"
    yield '  node [shape=box, style="rounded,filled", fontname="sans-serif"];\n'
    colours = colour_of_activities(block.activity for block in expansion.blocks)
    for stage, layout in sorted(expansion.layouts.items()):
        yield f"  subgraph {quoted(f'cluster_{stage + 1}')} {{\n"
        yield f"    label={quoted(f'{stage + 1} {expansion.stage_names[stage]}')};\n"
        for package in range(layout.first, layout.first + layout.count):
            block = expansion.block(package)
            label = quoted(block.package_name(block.position(package)))
            colour = colours[block.activity]
            yield f'    {quoted(expansion.path(package))} [label={label}, fillcolor="{colour.fill}", color="{colour.line}"];\n'
        yield "  }\n"
    for consumer in range(expansion.count):
        makers = expansion.graph.predecessors(consumer).tolist()
        if makers:
            needed = needed_by(expansion, consumer)
            target = quoted(expansion.path(consumer))
            for maker in makers:
                files = files_between(expansion, maker, needed)
                yield f"  {quoted(expansion.path(maker))} -> {target}{_label(files)};\n"
    yield "}\n"


def quoted(text: str) -> str:
    """A text as DOT reads it back: in double quotes, on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_UNWRITABLE.sub(" ", escaped)}"'


def _label(files: list[str]) -> str:
    if not files:
        return " [style=dashed]"
    more = f" (+{len(files) - _FILES_SHOWN_MAX})" if len(files) > _FILES_SHOWN_MAX else ""
    return f" [label={quoted(', '.join(files[:_FILES_SHOWN_MAX]) + more)}]"
