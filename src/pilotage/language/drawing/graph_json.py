"""The graph as JSON: every package and every edge, written piece by piece so that a million of them need no room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from pilotage.language.expansion.edge_files import FilesOnEdges
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.late_edges import packages_behind, stage_path

_PIECE_ENTRIES = 500


def json_pieces(expansion: Expansion) -> Iterator[str]:
    """`{"packages": [{"id", "name", "activity", "stage", "line"}], "edges": [{"from", "to", "files"}]}`.

    A job with stages that are not laid out yet also has `"late": [{"stage", "name", "patterns", "after", "before"}]`,
    where packages are called by their paths, and late stages by the beginning that their packages' paths will have.
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
    files = FilesOnEdges(expansion)
    path = lru_cache(maxsize=1024)(expansion.path)  # of makers: many have more than one consumer
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
            "before": [expansion.path(package) for package in packages_behind(expansion, late.stage)],
        }


def _joined(entries: Iterable[dict[str, object]]) -> Iterator[str]:
    """The entries of a list, a line each, many lines at a time."""
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
