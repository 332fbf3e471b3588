"""The graph as JSON: every package and every edge, written piece by piece so that a million of them need no room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from pilotage.language.drawing.edge_files import files_between, needed_by
from pilotage.language.expansion.expansion import Expansion

_PIECE_ENTRIES = 500


def json_pieces(expansion: Expansion) -> Iterator[str]:
    """`{"packages": [{"id", "name", "activity", "stage", "line"}], "edges": [{"from", "to", "files"}]}`."""
    yield '{"packages":['
    yield from _joined(_packages(expansion))
    yield '],\n"edges":['
    yield from _joined(_edges(expansion))
    yield "]}\n"


def _packages(expansion: Expansion) -> Iterator[dict[str, object]]:
    for package in range(expansion.count):
        block = expansion.block(package)
        place = block.layout.id(package)
        yield {
            "id": place.path(expansion.definition.job),
            "name": block.package_name(block.position(package)),
            "activity": block.activity,
            "stage": place.stage,
            "line": place.line,
        }


def _edges(expansion: Expansion) -> Iterator[dict[str, object]]:
    for consumer in range(expansion.count):
        makers = expansion.graph.predecessors(consumer).tolist()
        if not makers:
            continue
        needed = needed_by(expansion, consumer)
        target = expansion.path(consumer)
        for maker in makers:
            yield {"from": expansion.path(maker), "to": target, "files": files_between(expansion, maker, needed)}


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
