"""The graph in DOT, the language of Graphviz: every package and every edge, grouped by stage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from pilotage.language.drawing.palette import colour_of_activities
from pilotage.language.expansion.edge_files import FilesOnEdges
from pilotage.language.expansion.expansion import Expansion, LateStage
from pilotage.language.expansion.late_edges import blocks_behind, inputs_from, stage_path

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f]")
_FILES_SHOWN_MAX = 3


def dot_lines(expansion: Expansion) -> Iterator[str]:
    """The lines of a directed graph; each node is called by its package's path."""
    job = expansion.definition.job
    yield f"digraph {quoted(job)} {{\n"
    yield "  rankdir=LR;\n"
    yield '  node [shape=box, style="rounded,filled", fontname="sans-serif"];\n'
    colours = colour_of_activities(block.activity for block in expansion.blocks)
    waiting = {late.stage - 1: late for late in expansion.late}
    for stage in sorted({*expansion.layouts, *waiting}):
        yield f"  subgraph {quoted(f'cluster_{stage + 1}')} {{\n"
        yield f"    label={quoted(f'{stage + 1} {expansion.stage_names[stage]}')};\n"
        if stage in waiting:
            node, label = quoted(stage_path(expansion, stage + 1)), quoted(f"{waiting[stage].name} (not known yet)")
            yield f'    {node} [label={label}, style="rounded,dashed"];\n'
            yield "  }\n"
            continue
        layout = expansion.layouts[stage]
        for package in range(layout.first, layout.first + layout.count):
            block, position = expansion.locate(package)
            label = quoted(block.package_name(position))
            colour = colours[block.activity]
            yield f'    {quoted(expansion.path(package))} [label={label}, fillcolor="{colour.fill}", color="{colour.line}"];\n'
        yield "  }\n"
    files = FilesOnEdges(expansion)
    called = lru_cache(maxsize=1024)(lambda package: quoted(expansion.path(package)))  # of makers with many consumers
    for consumer in range(expansion.count):
        makers = expansion.graph.predecessors(consumer).tolist()
        target = quoted(expansion.path(consumer)) if makers else ""
        for maker in makers:
            yield f"  {called(maker)} -> {target}{_label(files.between(maker, consumer))};\n"
    for late in expansion.late:
        yield from _late_edges(expansion, late)
    yield "}\n"


def _late_edges(expansion: Expansion, late: LateStage) -> Iterator[str]:
    """The edges into a stage that is not laid out yet, and out of it."""
    node = quoted(stage_path(expansion, late.stage))
    before = [*map(expansion.path, late.packages), *(stage_path(expansion, stage) for stage in late.stages)]
    for path in before:
        yield f"  {quoted(path)} -> {node}{_label(list(late.patterns))};\n"
    for block in blocks_behind(expansion, late.stage):
        label = _label(inputs_from(expansion, block, late.stage))
        for package in block.packages():
            yield f"  {node} -> {quoted(expansion.path(package))}{label};\n"


def quoted(text: str) -> str:
    """A text as DOT reads it back: in double quotes, on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_UNWRITABLE.sub(" ", escaped)}"'


def _label(files: list[str]) -> str:
    if not files:
        return " [style=dashed]"
    more = f" (+{len(files) - _FILES_SHOWN_MAX})" if len(files) > _FILES_SHOWN_MAX else ""
    return f" [label={quoted(', '.join(files[:_FILES_SHOWN_MAX]) + more)}]"
