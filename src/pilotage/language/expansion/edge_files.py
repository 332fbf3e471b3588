"""Which files go along an edge, from what its maker makes and its consumer needs.

What a consumer needs is worked out once and kept until another one is asked about: a merge has thousands of edges.
Whether a name is a pattern is never guessed from its text, and an edge without a file carries none, whatever its
packages are called.
"""

from __future__ import annotations

import bisect

import msgspec
import numpy as np

from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.packages import needed_names
from pilotage.language.text.patterns import can_both_match, literal_prefix, matches
from pilotage.model.definition import OutputFile
from pilotage.model.graph import EdgeKind, Graph


class Carried(msgspec.Struct, frozen=True):
    """An output that goes along an edge: its name, or the pattern of names that are not known yet."""

    name: str
    is_open: bool
    declared: OutputFile


class FilesOnEdges:
    """Knows the files on the edges of a job; quickest when asked consumer by consumer."""

    def __init__(self, expansion: Expansion) -> None:
        """Nothing is worked out yet."""
        self._expansion = expansion
        self._last: tuple[int, _Needed] | None = None

    def between(self, maker: int, consumer: int) -> list[str]:
        """The names and patterns of what a maker gives to a consumer; empty for an edge without a file."""
        return list(dict.fromkeys(carried.name for carried in self.carried(maker, consumer)))

    def carried(self, maker: int, consumer: int) -> list[Carried]:
        """The outputs of a maker that a consumer takes, or may take."""
        kind = _kind(self._expansion.graph, maker, consumer)
        if not kind & (EdgeKind.FILE | EdgeKind.PATTERN):
            return []
        needed = self._needed(consumer)
        block = self._expansion.block(maker)
        # A pattern is served by earlier stages and earlier in the line only, a name from anywhere.
        before = block.stage < needed.stage or needed.line_start <= maker < consumer
        found = []
        for (_, declared), (name, is_open) in zip(block.outputs(), block.made(block.position(maker)), strict=True):
            if is_open:
                is_taken = bool(kind & EdgeKind.PATTERN) and needed.takes_some_of(name)
            else:
                is_taken = bool(kind & EdgeKind.FILE) and (name in needed.names or (before and needed.matches(name)))
            if is_taken:
                found.append(Carried(name, is_open, declared))
        return found

    def _needed(self, consumer: int) -> _Needed:
        if self._last is None or self._last[0] != consumer:
            self._last = (consumer, _Needed(self._expansion, consumer))
        return self._last[1]


class _Needed:
    """What one package needs: names, and patterns of names."""

    __slots__ = ("_patterns", "_sorted", "line_start", "names", "stage")

    def __init__(self, expansion: Expansion, package: int) -> None:
        block = expansion.block(package)
        self.stage = block.stage
        self.line_start = package - block.number
        self._patterns: list[str] = []
        self.names = set(needed_names(block, package, self._note_pattern))
        self._sorted: list[str] | None = None

    def _note_pattern(self, pattern: str, _binary: int) -> tuple[str, ...]:
        self._patterns.append(pattern)
        return ()

    def matches(self, name: str) -> bool:
        """Whether a name is what one of the patterns asks for."""
        return any(matches(pattern, name) for pattern in self._patterns)

    def takes_some_of(self, made: str) -> bool:
        """Whether a name that matches a pattern of a maker is needed, or may be."""
        return any(can_both_match(made, pattern) for pattern in self._patterns) or self._names_one_of(made)

    def _names_one_of(self, made: str) -> bool:
        """Whether one of the names matches; only those that begin alike are looked at."""
        if self._sorted is None:
            self._sorted = sorted(self.names)
        prefix = literal_prefix(made)
        for position in range(bisect.bisect_left(self._sorted, prefix), len(self._sorted)):
            name = self._sorted[position]
            if not name.startswith(prefix):
                return False
            if matches(made, name):
                return True
        return False


def _kind(graph: Graph, maker: int, consumer: int) -> EdgeKind:
    """Why a package waits for another; each row of the graph is sorted, so it is searched and not gone through."""
    found = EdgeKind(0)
    for segment in graph.segments:
        start, end = segment.predecessors.span(consumer)
        position = start + int(np.searchsorted(segment.predecessors.others[start:end], maker))
        if position < end and segment.predecessors.others[position] == maker:
            found |= EdgeKind(int(segment.kinds[position]))
    return found
