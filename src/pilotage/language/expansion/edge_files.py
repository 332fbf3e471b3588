"""Finds the files of an edge: the outputs of its producer that its consumer needs.

The inputs of a consumer are cached until another one is asked for, since a merge has thousands of edges. The outputs of a
producer of many files are cached with an index of their names, since each of its edges has few of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.packages import needed_names
from pilotage.language.expansion.producers import general_pattern, has_list, late_outputs
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import can_both_match, literal_prefix, matches
from pilotage.model.jobs.definition import OutputFile
from pilotage.model.jobs.graph import EdgeKind, Graph, find_loop, followers

_FEW = 8  # producers with at most so many outputs are not cached
_NAMES_KEPT_MAX = 500_000
_FILE, _PATTERN = int(EdgeKind.FILE), int(EdgeKind.PATTERN)  # plain integers, since there are millions of edges


class EdgeFile(msgspec.Struct, frozen=True):
    """An output on an edge: its name, or the pattern of names that are not known yet."""

    name: str
    is_open: bool
    declared: OutputFile


class EdgeFiles:
    """Finds the files of the edges of a job; fastest if called consumer by consumer."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._last: tuple[int, _PackageInputs] | None = None
        self._makers: dict[int, _PackageOutputs] = {}  # cached producers with many outputs
        self._kept = 0  # the number of their names

    def between(self, maker: int, consumer: int) -> list[str]:
        """The names and patterns that a consumer reads from a producer; empty for an edge without files."""
        return list(dict.fromkeys(carried.name for carried in self.carried(maker, consumer)))

    def carried(self, maker: int, consumer: int) -> list[EdgeFile]:
        """The outputs of a producer that a consumer reads, or may read."""
        kind = _kind(self._expansion.graph, maker, consumer)
        if not kind & (_FILE | _PATTERN):
            return []
        needed = self._needed(consumer)
        made = self._made(maker)
        # A pattern matches only outputs of earlier stages and of earlier packages in the line; a name matches any output.
        before = made.stage < needed.stage or needed.line_start <= maker < consumer
        ordinals: set[int] = set()
        if kind & _FILE:
            ordinals.update(made.named(needed.names))
            for pattern in needed.patterns if before else ():
                ordinals.update(made.matching(pattern))
        if kind & _PATTERN:
            ordinals.update(made.open_for(needed))
        return [made.carried(ordinal) for ordinal in sorted(ordinals)]

    def _made(self, maker: int) -> _PackageOutputs:
        made = self._makers.get(maker)
        if made is None:
            made = _PackageOutputs(self._expansion, maker)
            if made.count > _FEW:
                self._kept += made.count
                if self._kept > _NAMES_KEPT_MAX:
                    self._makers.clear()
                    self._kept = made.count
                self._makers[maker] = made
        return made

    def _needed(self, consumer: int) -> _PackageInputs:
        if self._last is None or self._last[0] != consumer:
            self._last = (consumer, _PackageInputs(self._expansion, consumer))
        return self._last[1]


class _PackageOutputs:
    """The outputs of one package: names, and patterns of names, indexed by prefix."""

    __slots__ = ("_made", "_named", "_open", "_outputs", "_prefixes", "_sorted", "count", "stage")

    def __init__(self, expansion: Expansion, package: int) -> None:
        block = expansion.block(package)
        self.stage = block.stage
        self._outputs = block.outputs()
        self._made = block.made(block.position(package))
        self.count = len(self._made)
        self._named: dict[str, list[int]] = {}
        self._open: dict[str, list[int]] = {}  # patterns by their literal prefix
        for ordinal, (name, is_open) in enumerate(self._made):
            (self._open if is_open else self._named).setdefault(literal_prefix(name) if is_open else name, []).append(
                ordinal
            )
        self._sorted: list[str] | None = None
        self._prefixes: list[str] | None = None

    def carried(self, ordinal: int) -> EdgeFile:
        """One of the outputs."""
        name, is_open = self._made[ordinal]
        return EdgeFile(name, is_open, self._outputs[ordinal][1])

    def named(self, names: set[str]) -> Iterator[int]:
        """The outputs that have one of some names."""
        fewer, more = (names, self._named) if len(names) < len(self._named) else (self._named, names)
        for name in fewer:
            if name in more:
                yield from self._named[name]

    def matching(self, pattern: str) -> Iterator[int]:
        """The outputs whose names match a pattern."""
        if self._sorted is None:
            self._sorted = sorted(self._named)
        for name in beginning_with(literal_prefix(pattern), self._sorted):
            if matches(pattern, name):
                yield from self._named[name]

    def open_for(self, needed: _PackageInputs) -> Iterator[int]:
        """The output patterns that may match an input."""
        if len(needed.names) > len(self._made):
            likely = {ordinal for ordinals in self._open.values() for ordinal in ordinals}
        else:
            texts = (*needed.patterns, *needed.names)
            likely = {ordinal for text in texts for ordinal in self._beginning_like(text)}
        for ordinal in likely:
            if needed.takes_some_of(self._made[ordinal][0]):
                yield ordinal

    def _beginning_like(self, text: str) -> Iterator[int]:
        """The output patterns whose prefix is compatible with that of a name or pattern: one begins with the other."""
        prefix = literal_prefix(text)
        for end in range(len(prefix)):
            yield from self._open.get(prefix[:end], ())
        if self._prefixes is None:
            self._prefixes = sorted(self._open)
        for longer in beginning_with(prefix, self._prefixes):
            yield from self._open[longer]


def beginning_with(prefix: str, texts: Sequence[str]) -> Iterator[str]:
    """The texts of a sorted list that begin with a prefix."""
    for position in range(bisect.bisect_left(texts, prefix), len(texts)):
        if not texts[position].startswith(prefix):
            return
        yield texts[position]


class _PackageInputs:
    """The inputs of one package: names, and patterns of names."""

    __slots__ = ("_sorted", "line_start", "names", "patterns", "stage")

    def __init__(self, expansion: Expansion, package: int) -> None:
        block = expansion.block(package)
        self.stage = block.stage
        self.line_start = package - block.number
        self.patterns: list[str] = []
        self.names = set(needed_names(block, package, self._note_pattern))
        self._sorted: list[str] | None = None

    def _note_pattern(self, pattern: str, _binary: int) -> tuple[str, ...]:
        self.patterns.append(pattern)
        return ()

    def takes_some_of(self, made: str) -> bool:
        """Whether an input matches, or may match, an output pattern."""
        return any(can_both_match(made, pattern) for pattern in self.patterns) or self._names_one_of(made)

    def _names_one_of(self, made: str) -> bool:
        """Whether one of the input names matches; only those with the same prefix are compared."""
        if self._sorted is None:
            self._sorted = sorted(self.names)
        return any(matches(made, name) for name in beginning_with(literal_prefix(made), self._sorted))


def _kind(graph: Graph, maker: int, consumer: int) -> int:
    """The kind of an edge, found by binary search, since each row of the graph is sorted."""
    found = 0
    for segment in graph.segments:
        start, end = segment.predecessors.span(consumer)
        position = start
        if end - start > 1:
            position += int(np.searchsorted(segment.predecessors.others[start:end], maker))
        if position < end and segment.predecessors.others[position] == maker:
            found |= int(segment.kinds[position])
    return found


# The packages before and after a late stage, for drawings and for formats without late stages.

_EDGES_MAX = 4_000_000


def stage_path(expansion: Expansion, stage: int) -> str:
    """The path of a stage, counted from 1; the paths of its packages begin with it."""
    return f"{expansion.definition.job}/{stage:03}"


def blocks_after(expansion: Expansion, stage: int) -> list[Block]:
    """The blocks whose packages wait for a late stage, counted from 1."""
    return [expansion.blocks[i] for i, stages in sorted(expansion.late_waits.items()) if stage in stages]


def packages_after(expansion: Expansion, stage: int) -> list[int]:
    """The packages that wait for a late stage, counted from 1."""
    return sorted(package for block in blocks_after(expansion, stage) for package in block.packages())


def inputs_from(expansion: Expansion, block: Block, stage: int) -> list[str]:
    """The inputs of a block, as written in the document, that a late stage may make; empty if it waits for no file."""
    made = late_outputs(expansion.definition, stage - 1)
    found: dict[str, None] = {}
    for _, given in block.inputs():
        template = block.bound(given.name)
        pattern = tidy_name(general_pattern(template))
        if not has_list(template, block) and any(can_both_match(pattern, output) for output in made):
            found[given.name] = None
    return list(found)


def packages_before(expansion: Expansion, stage: int) -> list[int]:
    """The packages that must end before a late stage can be expanded, including those before earlier late stages."""
    late_stages = {late.stage: late for late in expansion.late}
    found: set[int] = set()
    visited: set[int] = set()
    waiting = [stage]
    while waiting:
        late = late_stages.get(waiting.pop())
        if late is not None and late.stage not in visited:
            visited.add(late.stage)
            found.update(late.packages)
            waiting.extend(late.stages)
    return sorted(found)


def edges_across(expansion: Expansion) -> list[tuple[int, int]] | None:
    """Edges that replace the late stages: from every package before one to every package after it.

    None if these are too many, or would close a cycle.
    """
    sides = [(packages_before(expansion, late.stage), packages_after(expansion, late.stage)) for late in expansion.late]
    if sum(len(before) * len(behind) for before, behind in sides) > _EDGES_MAX:
        return None
    edges = {(maker, package) for before, behind in sides for maker in before for package in behind}
    if not edges:
        return []
    known = ((source, target) for source, target, _ in expansion.graph.edges())
    return None if find_loop(followers(expansion.count, [*known, *edges])) else sorted(edges)
