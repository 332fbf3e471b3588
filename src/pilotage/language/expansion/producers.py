"""The producers of files: every output name of a job with its package, and the output patterns."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pilotage.language.expansion.blocks import Block, as_array, bind
from pilotage.language.expansion.lists import Indices
from pilotage.language.parsing.iterations import sources
from pilotage.language.parsing.kinds import FieldPath
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import (
    can_both_match,
    is_pattern,
    literal,
    literal_prefix,
    literal_suffix,
    matching,
)
from pilotage.language.text.templates import Placeholder, Template, parse_template
from pilotage.model.jobs.definition import Definition, Iteration

NO_PRODUCER = -1
_ASKED_OFTEN = 8
_CHUNKS_COMPARED_MAX = 64
_BEGINNING_LENGTH_MAX = 256
_FEW = 8


class OutputNames:
    """The names of one output of one block, in the order of its packages."""

    __slots__ = ("_asked", "_sorted", "block", "general", "names", "ordinal", "packages", "place")

    def __init__(
        self, block: Block, *, ordinal: int, place: FieldPath, general: str, names: list[str], packages: Sequence[int]
    ) -> None:
        """`general` is a pattern that all names match; `ordinal` is the number of the output in its block."""
        self.block = block
        self.ordinal = ordinal
        self.place = place
        self.general = general
        self.names = names
        self.packages = packages
        self._asked = 0
        self._sorted: list[tuple[str, int]] = []

    def matching(self, pattern: str) -> list[int]:
        """The positions of the matching names; if this is called often, an index by prefix is used."""
        self._asked += 1
        if self._asked <= _ASKED_OFTEN or len(self.names) < _ASKED_OFTEN:
            return matching(pattern, self.names)
        if not self._sorted:
            self._sorted = sorted(zip(self.names, range(len(self.names)), strict=True))
        prefix = literal_prefix(pattern)
        start = bisect.bisect_left(self._sorted, (prefix, -1))
        end = bisect.bisect_right(self._sorted, (prefix + chr(0x10FFFF), -1))
        candidates = sorted(position for _, position in self._sorted[start:end])
        return [candidates[i] for i in matching(pattern, [self.names[c] for c in candidates])]


class MatchedNames:
    """Names that match a pattern, with their packages and outputs, in the order of the packages."""

    __slots__ = ("names", "order", "ordinals", "packages", "pieces")

    def __init__(self, pieces: Iterable[tuple[OutputNames, list[int]]]) -> None:
        """Join the matches of several chunks."""
        found = list(pieces)
        packages = [
            as_array(chunk.packages) if len(positions) == len(chunk.names) else as_array(chunk.packages)[positions]
            for chunk, positions in found
        ]
        ordinals = [np.full(len(positions), chunk.ordinal, np.uint32) for chunk, positions in found]
        names = [
            chunk.names if len(positions) == len(chunk.names) else [chunk.names[i] for i in positions]
            for chunk, positions in found
        ]
        self.packages: Indices = np.concatenate(packages)
        self.ordinals = np.concatenate(ordinals)
        self.names = names[0] if len(names) == 1 else [name for some in names for name in some]
        self.pieces = found
        self.order: NDArray[np.int64] | None = None  # the permutation that sorted the concatenated pieces
        if len(found) > 1:
            self.order = order = np.lexsort((self.ordinals, self.packages))
            self.packages, self.ordinals = self.packages[order], self.ordinals[order]
            self.names = [self.names[i] for i in order.tolist()]


class OutputIndex:
    """All known outputs of a job."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.by_name: dict[str, int] = {}
        self.chunks: list[OutputNames] = []
        self._by_start: dict[str, list[int]] = {}  # chunks by the common prefix of their names
        self._starts: list[str] = []  # the prefixes, sorted
        self.patterns = PatternIndex()
        self.late: list[tuple[int, str]] = []  # late stages, and patterns of the names that they will make

    def add(self, chunk: OutputNames) -> list[tuple[str, int, int]]:
        """Add new names; return those that already have a producer, with both producers."""
        start = literal_prefix(chunk.general)
        if start not in self._by_start:
            bisect.insort(self._starts, start)
        self._by_start.setdefault(start, []).append(len(self.chunks))
        self.chunks.append(chunk)
        before = len(self.by_name)
        if self.by_name.keys().isdisjoint(chunk.names):
            self.by_name.update(zip(chunk.names, chunk.packages, strict=True))
            if len(self.by_name) == before + len(chunk.names):
                return []
            # The chunk itself contains a name twice: undo, and add the names one by one.
            for name in chunk.names:
                self.by_name.pop(name, None)
        doubles = []
        for name, package in zip(chunk.names, chunk.packages, strict=True):
            if name in self.by_name:
                doubles.append((name, self.by_name[name], package))
            else:
                self.by_name[name] = package
        return doubles

    def of_names(self, names: list[str]) -> Indices:
        """The producer of each name, or `NO_PRODUCER`; the cases that all or none have one are fast."""
        try:
            return np.array(list(map(self.by_name.__getitem__, names)), dtype=np.int32)
        except KeyError:
            if self.by_name.keys().isdisjoint(names):
                return np.full(len(names), NO_PRODUCER, np.int32)
        get = self.by_name.get
        return np.array([get(name, NO_PRODUCER) for name in names], dtype=np.int32)

    def makes_nothing_like(self, pattern: str) -> bool:
        """Whether certainly no output matches; False without a search if there are many outputs."""
        if self.patterns or self.late or len(self.chunks) > _CHUNKS_COMPARED_MAX:
            return False
        return not any(can_both_match(chunk.general, pattern) for chunk in self.chunks)

    def matching(self, pattern: str, *, before_stage: int, stage: int | None = None) -> MatchedNames | None:
        """The known output names of earlier stages, or of one stage, that match; None if none does."""
        pieces = []
        for chunk in self._beginning_like(pattern):
            if chunk.block.stage >= before_stage or (stage is not None and chunk.block.stage != stage):
                continue
            if can_both_match(chunk.general, pattern):
                positions = chunk.matching(pattern)
                if positions:
                    pieces.append((chunk, positions))
        return MatchedNames(pieces) if pieces else None

    def _beginning_like(self, pattern: str) -> list[OutputNames]:
        """The chunks whose prefix is compatible with that of a pattern; an index, since there may be thousands of stages."""
        prefix = literal_prefix(pattern)
        found = [i for end in range(len(prefix)) for i in self._by_start.get(prefix[:end], ())]
        position = bisect.bisect_left(self._starts, prefix)
        while position < len(self._starts) and self._starts[position].startswith(prefix):
            found.extend(self._by_start[self._starts[position]])
            position += 1
        return [self.chunks[i] for i in sorted(found)]

    def awaits(self, pattern: str, *, before_stage: int) -> list[int]:
        """The earlier late stages that may make a matching name."""
        return sorted({s for s, made in self.late if s < before_stage and can_both_match(made, pattern)})


class PatternIndex:
    """Output patterns with their producers, indexed by literal prefix and suffix."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._makers: dict[str, list[tuple[int, int]]] = {}  # for each pattern, the packages and their stages
        self._by_prefix = _Beginnings()
        self._by_suffix = _Beginnings()  # of reversed suffixes

    def __bool__(self) -> bool:
        """Whether there are any patterns."""
        return bool(self._makers)

    def add(self, patterns: Iterable[tuple[str, int]], *, stage: int) -> None:
        """Add patterns, each with its package."""
        for pattern, package in patterns:
            makers = self._makers.get(pattern)
            if makers is None:
                makers = self._makers[pattern] = []
                self._by_prefix.add(literal_prefix(pattern), pattern)
                self._by_suffix.add(literal_suffix(pattern)[::-1], pattern)
            makers.append((package, stage))

    def makers_of(self, pattern: str, *, before_stage: int, stage: int | None = None) -> list[int]:
        """The packages of earlier stages whose output patterns may match a name or a pattern."""
        found: set[int] = set()
        for made in self._beginning_or_ending_like(pattern):
            makers = [p for p, s in self._makers[made] if s < before_stage and stage in (None, s)]
            if makers and can_both_match(made, pattern):
                found.update(makers)
        return sorted(found)

    def _beginning_or_ending_like(self, pattern: str) -> Iterable[str]:
        """The patterns with a compatible prefix, or those with a compatible suffix: the smaller set."""
        one = self._by_prefix.agreeing(literal_prefix(pattern))
        if len(one) <= _FEW and sum(map(len, one)) <= _FEW:
            return chain.from_iterable(one)
        other = self._by_suffix.agreeing(literal_suffix(pattern)[::-1])
        # Each list has at least one pattern, so the number of lists tells quickly which set to count first.
        if len(other) < len(one):
            one, other = other, one
        count = sum(map(len, one))
        fewer = one if count <= len(other) or count <= sum(map(len, other)) else other
        return chain.from_iterable(fewer)


class _Beginnings:
    """Patterns indexed by a prefix of limited length."""

    def __init__(self) -> None:
        self._patterns: dict[str, list[str]] = {}
        self._sorted: list[str] = []  # the prefixes, without the new ones
        self._new: list[str] = []
        self._lengths: set[int] = set()

    def add(self, beginning: str, pattern: str) -> None:
        """Add a pattern."""
        beginning = beginning[:_BEGINNING_LENGTH_MAX]
        patterns = self._patterns.get(beginning)
        if patterns is None:
            patterns = self._patterns[beginning] = []
            self._new.append(beginning)
            self._lengths.add(len(beginning))
        patterns.append(pattern)

    def agreeing(self, beginning: str) -> list[list[str]]:
        """The patterns with a compatible prefix: one begins with the other; one list for each prefix."""
        self._sort()
        beginning = beginning[:_BEGINNING_LENGTH_MAX]
        length = len(beginning)
        shorter = (self._patterns.get(beginning[:end]) for end in self._lengths if end < length)
        start = bisect.bisect_left(self._sorted, beginning)
        end = bisect.bisect_right(self._sorted, beginning, lo=start, key=lambda text: text[:length])
        return [*filter(None, shorter), *map(self._patterns.__getitem__, self._sorted[start:end])]

    def _sort(self) -> None:
        """Sort in the new prefixes; a few are inserted one by one, since thousands of stages may add one each."""
        if len(self._new) <= _FEW:
            for text in self._new:
                bisect.insort(self._sorted, text)
        else:
            self._sorted += self._new
            self._sorted.sort()
        self._new.clear()


def general_pattern(template: Template) -> str:
    """A pattern that all names of a template match, with a wildcard for each placeholder."""
    written = "".join(part if isinstance(part, str) else "\0" for part in template.parts)
    if not is_pattern(written):
        written = literal(written)
    return written.replace("\0", "**")


def late_outputs(definition: Definition, stage: int) -> list[str]:
    """Patterns of the outputs of a late stage, counted from 0."""
    constants = definition.constants
    for source in (s for each in _iterations(definition, stage) for s in sources(each)):
        constants.pop(source.variable, None)
    texts: list[str] = []
    for line in definition.stages[stage].lines:
        for binary in (binary for package in line.packages for binary in package.binaries):
            texts += [o.name or (f"{o.folder}/**" if o.folder else "**") for o in binary.outputs]
            texts += [stream for stream in (binary.stdout, binary.stderr) if stream]
    return [tidy_name(general_pattern(bind(parse_template(text), constants))) for text in texts]


def _iterations(definition: Definition, stage: int) -> list[Iteration | None]:
    return [definition.stages[stage].each, *(line.each for line in definition.stages[stage].lines)]


def has_list(template: Template, block: Block) -> Placeholder | None:
    """The placeholder of a template that is a list, or None."""
    return next((p for p in template.placeholders if block.is_list(p.name)), None)
