"""The graph in DOT (Graphviz) and in JSON: every package and every edge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from pilotage.language.drawing.picture import colour_of_activities
from pilotage.language.expansion.edge_files import EdgeFiles, blocks_after, inputs_from, packages_after, stage_path
from pilotage.language.expansion.expansion import Expansion, LateStage

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f]")
_FILES_SHOWN_MAX = 3


def dot_lines(expansion: Expansion) -> Iterator[str]:
    """The lines of a directed graph, grouped by stage; the path of a package is the name of its node."""
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
    files = EdgeFiles(expansion)
    called = lru_cache(maxsize=1024)(
        lambda package: quoted(expansion.path(package))
    )  # for producers with many consumers
    for consumer in range(expansion.count):
        makers = expansion.graph.predecessors(consumer).tolist()
        target = quoted(expansion.path(consumer)) if makers else ""
        for maker in makers:
            yield f"  {called(maker)} -> {target}{_label(files.between(maker, consumer))};\n"
    for late in expansion.late:
        yield from _late_edges(expansion, late)
    yield "}\n"


def _late_edges(expansion: Expansion, late: LateStage) -> Iterator[str]:
    """The edges into and out of a late stage without packages yet."""
    node = quoted(stage_path(expansion, late.stage))
    before = [*map(expansion.path, late.packages), *(stage_path(expansion, stage) for stage in late.stages)]
    for path in before:
        yield f"  {quoted(path)} -> {node}{_label(list(late.patterns))};\n"
    for block in blocks_after(expansion, late.stage):
        label = _label(inputs_from(expansion, block, late.stage))
        for package in block.packages():
            yield f"  {node} -> {quoted(expansion.path(package))}{label};\n"


def quoted(text: str) -> str:
    """A text as a quoted string of DOT, on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_UNWRITABLE.sub(" ", escaped)}"'


def _label(files: list[str]) -> str:
    if not files:
        return " [style=dashed]"
    more = f" (+{len(files) - _FILES_SHOWN_MAX})" if len(files) > _FILES_SHOWN_MAX else ""
    return f" [label={quoted(', '.join(files[:_FILES_SHOWN_MAX]) + more)}]"


# The graph as JSON, written piece by piece, so that a million packages need little memory.

_PIECE_ENTRIES = 500


def json_pieces(expansion: Expansion) -> Iterator[str]:
    """`{"packages": [{"id", "name", "activity", "stage", "line"}], "edges": [{"from", "to", "files"}]}`.

    A job with late stages also has `"late": [{"stage", "name", "patterns", "after", "before"}]`, where packages appear by
    their paths, and late stages by the prefix that the paths of their packages will have.
    """
    yield '{"packages":['
    yield from _joined(_packages(expansion))
    yield '],\n"edges":['
    yield from _joined(_edges(expansion))
    if expansion.late:
        yield '],\n"late":['
        yield from _joined(_late(expansion))
    yield "]}\n"


def _packages(expansion: Expansion) -> Iterator[dict[str, object]]:
    for package in range(expansion.count):
        block, position = expansion.locate(package)
        place = block.layout.id(package)
        yield {
            "id": place.path(expansion.definition.job),
            "name": block.package_name(position),
            "activity": block.activity,
            "stage": place.stage,
            "line": place.line,
        }


def _edges(expansion: Expansion) -> Iterator[dict[str, object]]:
    files = EdgeFiles(expansion)
    path = lru_cache(maxsize=1024)(expansion.path)  # many producers have several consumers
    for consumer in range(expansion.count):
        makers = expansion.graph.predecessors(consumer).tolist()
        target = expansion.path(consumer) if makers else ""
        for maker in makers:
            yield {"from": path(maker), "to": target, "files": files.between(maker, consumer)}


def _late(expansion: Expansion) -> Iterator[dict[str, object]]:
    for late in expansion.late:
        stages = (stage_path(expansion, stage) for stage in late.stages)
        yield {
            "stage": late.stage,
            "name": late.name,
            "patterns": late.patterns,
            "after": [*map(expansion.path, late.packages), *stages],
            "before": [expansion.path(package) for package in packages_after(expansion, late.stage)],
        }


def _joined(entries: Iterable[dict[str, object]]) -> Iterator[str]:
    """The entries of a list, one per line, many lines in each piece."""
    lines: list[str] = []
    separator = "\n"
    for entry in entries:
        lines.append(msgspec.json.encode(entry).decode())
        if len(lines) == _PIECE_ENTRIES:
            yield separator + ",\n".join(lines)
            lines.clear()
            separator = ",\n"
    if lines:
        yield separator + ",\n".join(lines)
