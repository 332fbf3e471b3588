"""Which files go along an edge, from what its maker makes and its consumer needs.

What a consumer needs is worked out once and kept until another one is asked about: a merge has thousands of edges. So is
what a maker of many files makes, with an index of the names: each of its edges carries few of them.
Whether a name is a pattern is never guessed from its text, and an edge without a file carries none, whatever its
packages are called.
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

_FEW = 8  # outputs: what makes no more is worked out anew for each of its edges
_NAMES_KEPT_MAX = 500_000
_FILE, _PATTERN = int(EdgeKind.FILE), int(EdgeKind.PATTERN)  # plain numbers: there are as many edges as files, and more


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
        self._makers: dict[int, _Made] = {}  # those of many files that were asked about
        self._kept = 0  # how many names these have

    def between(self, maker: int, consumer: int) -> list[str]:
        """The names and patterns of what a maker gives to a consumer; empty for an edge without a file."""
        return list(dict.fromkeys(carried.name for carried in self.carried(maker, consumer)))

    def carried(self, maker: int, consumer: int) -> list[Carried]:
        """The outputs of a maker that a consumer takes, or may take."""
        kind = _kind(self._expansion.graph, maker, consumer)
        if not kind & (_FILE | _PATTERN):
            return []
        needed = self._needed(consumer)
        made = self._made(maker)
        # A pattern is served by earlier stages and earlier in the line only, a name from anywhere.
        before = made.stage < needed.stage or needed.line_start <= maker < consumer
        ordinals: set[int] = set()
        if kind & _FILE:
            ordinals.update(made.named(needed.names))
            for pattern in needed.patterns if before else ():
                ordinals.update(made.matching(pattern))
        if kind & _PATTERN:
            ordinals.update(made.open_for(needed))
        return [made.carried(ordinal) for ordinal in sorted(ordinals)]

    def _made(self, maker: int) -> _Made:
        made = self._makers.get(maker)
        if made is None:
            made = _Made(self._expansion, maker)
            if made.count > _FEW:
                self._kept += made.count
                if self._kept > _NAMES_KEPT_MAX:
                    self._makers.clear()
                    self._kept = made.count
                self._makers[maker] = made
        return made

    def _needed(self, consumer: int) -> _Needed:
        if self._last is None or self._last[0] != consumer:
            self._last = (consumer, _Needed(self._expansion, consumer))
        return self._last[1]


class _Made:
    """What one package makes: names, and patterns of names, each found by how it begins."""

    __slots__ = ("_made", "_named", "_open", "_outputs", "_prefixes", "_sorted", "count", "stage")

    def __init__(self, expansion: Expansion, package: int) -> None:
        block = expansion.block(package)
        self.stage = block.stage
        self._outputs = block.outputs()
        self._made = block.made(block.position(package))
        self.count = len(self._made)
        self._named: dict[str, list[int]] = {}
        self._open: dict[str, list[int]] = {}  # by the text that each begins with
        for ordinal, (name, is_open) in enumerate(self._made):
            (self._open if is_open else self._named).setdefault(literal_prefix(name) if is_open else name, []).append(
                ordinal
            )
        self._sorted: list[str] | None = None
        self._prefixes: list[str] | None = None

    def carried(self, ordinal: int) -> Carried:
        """One of the outputs."""
        name, is_open = self._made[ordinal]
        return Carried(name, is_open, self._outputs[ordinal][1])

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

    def open_for(self, needed: _Needed) -> Iterator[int]:
        """The outputs that are patterns and of which some may be needed."""
        if len(needed.names) > len(self._made):
            likely = {ordinal for ordinals in self._open.values() for ordinal in ordinals}
        else:
            texts = (*needed.patterns, *needed.names)
            likely = {ordinal for text in texts for ordinal in self._beginning_like(text)}
        for ordinal in likely:
            if needed.takes_some_of(self._made[ordinal][0]):
                yield ordinal

    def _beginning_like(self, text: str) -> Iterator[int]:
        """The open outputs of which one may begin as a name or a pattern does: one beginning goes on as the other."""
        prefix = literal_prefix(text)
        for end in range(len(prefix)):
            yield from self._open.get(prefix[:end], ())
        if self._prefixes is None:
            self._prefixes = sorted(self._open)
        for longer in beginning_with(prefix, self._prefixes):
            yield from self._open[longer]


def beginning_with(prefix: str, texts: Sequence[str]) -> Iterator[str]:
    """Those of some sorted texts that begin with another."""
    for position in range(bisect.bisect_left(texts, prefix), len(texts)):
        if not texts[position].startswith(prefix):
            return
        yield texts[position]


class _Needed:
    """What one package needs: names, and patterns of names."""

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
        """Whether a name that matches a pattern of a maker is needed, or may be."""
        return any(can_both_match(made, pattern) for pattern in self.patterns) or self._names_one_of(made)

    def _names_one_of(self, made: str) -> bool:
        """Whether one of the names matches; only those that begin alike are looked at."""
        if self._sorted is None:
            self._sorted = sorted(self.names)
        return any(matches(made, name) for name in beginning_with(literal_prefix(made), self._sorted))


def _kind(graph: Graph, maker: int, consumer: int) -> int:
    """Why a package waits for another; each row of the graph is sorted, so it is searched and not gone through."""
    found = 0
    for segment in graph.segments:
        start, end = segment.predecessors.span(consumer)
        position = start
        if end - start > 1:
            position += int(np.searchsorted(segment.predecessors.others[start:end], maker))
        if position < end and segment.predecessors.others[position] == maker:
            found |= int(segment.kinds[position])
    return found


# What stands before and behind a stage that is not laid out yet, for pictures and for formats that cannot say it.

_EDGES_MAX = 4_000_000


def stage_path(expansion: Expansion, stage: int) -> str:
    """The path of a stage, counted from 1; the paths of its packages, once it has some, begin with it."""
    return f"{expansion.definition.job}/{stage:03}"


def blocks_behind(expansion: Expansion, stage: int) -> list[Block]:
    """The blocks whose packages wait for a late stage, counted from 1."""
    return [expansion.blocks[i] for i, stages in sorted(expansion.late_waits.items()) if stage in stages]


def packages_behind(expansion: Expansion, stage: int) -> list[int]:
    """The packages that wait for a late stage, counted from 1."""
    return sorted(package for block in blocks_behind(expansion, stage) for package in block.packages())


def inputs_from(expansion: Expansion, block: Block, stage: int) -> list[str]:
    """The inputs of a block, as the document says them, that a late stage may make; empty where it waits for no file."""
    made = late_outputs(expansion.definition, stage - 1)
    found: dict[str, None] = {}
    for _, given in block.inputs():
        template = block.bound(given.name)
        pattern = tidy_name(general_pattern(template))
        if not has_list(template, block) and any(can_both_match(pattern, output) for output in made):
            found[given.name] = None
    return list(found)


def packages_before(expansion: Expansion, stage: int) -> list[int]:
    """The packages that have to be done before a late stage can be laid out, also those before late stages before it."""
    late_stages = {late.stage: late for late in expansion.late}
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [stage]
    while waiting:
        late = late_stages.get(waiting.pop())
        if late is not None and late.stage not in seen:
            seen.add(late.stage)
            found.update(late.packages)
            waiting.extend(late.stages)
    return sorted(found)


def edges_across(expansion: Expansion) -> list[tuple[int, int]] | None:
    """Edges that stand for all late stages: from everyone before one to everyone behind it.

    None where these would be too many, or would close a loop.
    """
    sides = [
        (packages_before(expansion, late.stage), packages_behind(expansion, late.stage)) for late in expansion.late
    ]
    if sum(len(before) * len(behind) for before, behind in sides) > _EDGES_MAX:
        return None
    edges = {(maker, package) for before, behind in sides for maker in before for package in behind}
    if not edges:
        return []
    known = ((source, target) for source, target, _ in expansion.graph.edges())
    return None if find_loop(followers(expansion.count, [*known, *edges])) else sorted(edges)
