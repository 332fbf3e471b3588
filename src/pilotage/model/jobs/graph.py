"""The dependency graph of a job, as compressed rows over package numbers.

Packages are numbered from 0 in document order. A graph grows by segments: the first has the packages known at submission,
each later one those of an expanded late stage, with their edges, also to earlier packages. A million packages cost some
tens of bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int32]
Kinds = NDArray[np.uint8]

EDGES_MAX = 100_000_000  # some gigabytes while they are sorted


class EdgeKind(IntFlag):
    """Why one package waits for another; an edge may have several reasons."""

    FILE = 1  # it needs a named file
    PATTERN = 2  # it reads all files that match
    SEQUENCE = 4  # it comes later in the same line
    AFTER = 8  # an imported control edge without a file
    AWAITED = 16  # the consumer must not start before; absent only where it may start early


class Rows:
    """Compressed rows: for each package of a range, the packages at the other end of its edges."""

    __slots__ = ("_count", "_starts", "first", "indptr", "numbers", "others")

    def __init__(self, keys: Indices, others: Indices) -> None:
        """Build from edges sorted by key; only the range between the least and the greatest key takes memory."""
        self.first = int(keys[0]) if len(keys) else 0
        count = int(keys[-1]) - self.first + 1 if len(keys) else 0
        counts = np.bincount(keys - self.first, minlength=count) if len(keys) else np.zeros(0, np.int64)
        self.indptr: Indices = np.zeros(count + 1, np.int32)
        np.cumsum(counts, out=self.indptr[1:])
        self._count = count
        self.others = others
        # A view of the same memory: it returns plain numbers, and faster than an array.
        self._starts = self.indptr.data
        self.numbers = others.data

    def span(self, package: int) -> tuple[int, int]:
        """The positions of a package's edges."""
        row = package - self.first
        if 0 <= row < self._count:
            starts = self._starts
            return starts[row], starts[row + 1]
        return 0, 0

    def few(self, package: int) -> Sequence[int]:
        """The packages at the other end of a package's edges as plain numbers; fast for few."""
        row = package - self.first
        if not 0 <= row < self._count:
            return ()
        starts = self._starts
        start, end = starts[row], starts[row + 1]
        return (self.numbers[start],) if end - start == 1 else self.numbers[start:end]

    def of(self, package: int) -> Indices:
        """The packages at the other end of a package's edges."""
        start, end = self.span(package)
        return self.others[start:end]


class Segment:
    """Packages added together, with their edges as rows in both directions."""

    __slots__ = ("common", "count", "first", "kind_numbers", "kinds", "predecessors", "successors")

    def __init__(self, first: int, count: int, *, sources: Indices, targets: Indices, kinds: Kinds) -> None:
        """Take edges in any order; edges between the same two packages are merged with all their kinds."""
        self.first = first
        self.count = count
        if len(sources):
            stride = max(int(sources.max()), int(targets.max())) + 1
            keys = targets.astype(np.int64) * stride + sources
            if not np.all(keys[1:] > keys[:-1]):
                order = np.argsort(keys, kind="stable")
                keys, kinds = keys[order], kinds[order]
                starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
                keys, kinds = keys[starts], np.bitwise_or.reduceat(kinds, starts).astype(np.uint8)
                sources, targets = (keys % stride).astype(np.int32), (keys // stride).astype(np.int32)
            del keys
        self.kinds: Kinds = kinds
        self.kind_numbers = kinds.data
        self.common = int(np.bitwise_and.reduce(kinds)) if len(kinds) else 0  # the kinds that all edges have
        self.predecessors = Rows(targets, sources)
        by_source = np.argsort(sources, kind="stable")
        self.successors = Rows(sources[by_source], targets[by_source])

    @property
    def edges(self) -> int:
        """How many edges it has."""
        return len(self.kinds)


class Graph:
    """All segments together."""

    __slots__ = ("count", "segments")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        """Join consecutive segments."""
        self.segments = tuple(segments)
        self.count = sum(segment.count for segment in self.segments)

    def grown(self, segment: Segment) -> Graph:
        """A new graph with one more segment."""
        if segment.first != self.count:
            raise ValueError(f"the segment starts at package {segment.first}, expected {self.count}")
        return Graph((*self.segments, segment))

    @property
    def edge_count(self) -> int:
        """How many pairs of packages have an edge."""
        return sum(segment.edges for segment in self.segments)

    def predecessors(self, package: int) -> Indices:
        """The packages that one waits for."""
        return _joined([segment.predecessors.of(package) for segment in self.segments])

    def successors(self, package: int) -> Indices:
        """The packages that wait for one."""
        return _joined([segment.successors.of(package) for segment in self.segments])

    def edges(self) -> Iterator[tuple[int, int, EdgeKind]]:
        """Every edge as (from, to, kinds), by segment, then by consumer."""
        for segment in self.segments:
            rows = segment.predecessors
            for row in range(len(rows.indptr) - 1):
                for position in range(rows.indptr[row], rows.indptr[row + 1]):
                    yield int(rows.others[position]), rows.first + row, EdgeKind(int(segment.kinds[position]))

    def order(self) -> Indices | None:
        """A topological order of the packages (Kahn's algorithm); None if there is a cycle."""
        if all(_runs_forward(segment) for segment in self.segments):
            return np.arange(self.count, dtype=np.int32)
        waits = self._predecessor_counts()
        ready = [int(package) for package in np.flatnonzero(waits == 0)]
        order: list[int] = []
        left = waits.tolist()
        rows = [(s.successors.first, s.successors.indptr, s.successors.others) for s in self.segments]
        while ready:
            order.extend(ready)
            following: list[int] = []
            for package in ready:
                for first, indptr, others in rows:
                    row = package - first
                    if 0 <= row < len(indptr) - 1:
                        for other in others[indptr[row] : indptr[row + 1]].tolist():
                            left[other] -= 1
                            if not left[other]:
                                following.append(other)
            ready = following
        return np.array(order, dtype=np.int32) if len(order) == self.count else None

    def waits(self) -> Indices:
        """How many packages each one must wait for; edges that allow an early start do not count."""
        counts = np.zeros(self.count, np.int32)
        for segment in self.segments:
            rows = segment.predecessors
            awaited = np.concatenate(([0], np.cumsum(segment.kinds & EdgeKind.AWAITED != 0)))
            counts[rows.first : rows.first + len(rows.indptr) - 1] += np.diff(awaited[rows.indptr]).astype(np.int32)
        return counts

    def _predecessor_counts(self) -> Indices:
        counts = np.zeros(self.count, np.int32)
        for segment in self.segments:
            rows = segment.predecessors
            counts[rows.first : rows.first + len(rows.indptr) - 1] += np.diff(rows.indptr)
        return counts

    def cycle(self) -> list[int]:
        """The packages of one cycle, each waiting for the one before it, from the smallest; empty if there is none."""
        return next(self.cycles(), [])

    def cycles(self) -> Iterator[list[int]]:
        """All cycles that share no package, in the form of `cycle`."""
        if self.order() is not None:
            return
        removed: set[int] = set()
        while True in (left := self._in_or_behind_cycles(removed)):
            loop = self._loop(left)
            yield loop
            removed.update(loop)

    def _loop(self, left: list[bool]) -> list[int]:
        # Each remaining package waits for another remaining one: walking backwards must return.
        current = left.index(True)
        positions: dict[int, int] = {}
        path: list[int] = []
        while current not in positions:
            positions[current] = len(path)
            path.append(current)
            current = next(int(other) for other in self.predecessors(current) if left[other])
        loop = path[positions[current] :][::-1]
        start = loop.index(min(loop))
        return loop[start:] + loop[:start]

    def _in_or_behind_cycles(self, removed: set[int]) -> list[bool]:
        left = self._predecessor_counts().tolist()
        ready = [package for package, count in enumerate(left) if not count]
        for package in removed:
            if left[package]:
                left[package] = 0
                ready.append(package)
        over = [True] * self.count
        while ready:
            package = ready.pop()
            over[package] = False
            for other in self.successors(package).tolist():
                left[other] -= 1
                if left[other] == 0:
                    ready.append(other)
        return over

    def depths(self) -> Indices:
        """The length of the longest path to each package; the graph must have no cycle."""
        return self._longest(np.ones(self.count)).astype(np.int32) - 1

    def critical_path_seconds(self, seconds: NDArray[np.float64]) -> float:
        """The longest path through the graph with these run times."""
        return float(self._longest(seconds).max()) if self.count else 0.0

    def path_ends_seconds(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """The end of the longest path up to each package with these run times, that of the package included."""
        return self._longest(seconds)

    def _longest(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        order = self.order()
        if order is None:
            raise ValueError("the graph has a cycle")
        finish: list[float] = weights.tolist()
        rows = [
            (s.predecessors.first, s.predecessors.indptr.tolist(), s.predecessors.others.tolist())
            for s in self.segments
        ]
        own = finish.copy()
        for package in order.tolist():
            before = 0.0
            for first, indptr, others in rows:
                row = package - first
                if 0 <= row < len(indptr) - 1 and indptr[row] != indptr[row + 1]:
                    before = max(before, *map(finish.__getitem__, others[indptr[row] : indptr[row + 1]]))
            finish[package] = before + own[package]
        return np.array(finish, dtype=np.float64)


def _joined(parts: list[Indices]) -> Indices:
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    return np.unique(np.concatenate(filled)) if filled else np.zeros(0, np.int32)


def _runs_forward(segment: Segment) -> bool:
    """Whether every edge goes from a lower to a higher package number."""
    rows = segment.predecessors
    if not len(rows.others):
        return True
    # The greatest source of each row is its last one, since rows are sorted.
    filled = np.flatnonzero(np.diff(rows.indptr))
    return bool(np.all(rows.others[rows.indptr[filled + 1] - 1] < filled + rows.first))


# The order of a small graph held as lists: the depth of each node, and a loop if there is no order.
#
# For graphs that are read or drawn. The graph of a job, with up to a million packages, is above.

Followers = Sequence[Sequence[int]]  # for each node, those that follow it


def followers(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The followers of each of `count` nodes, from pairs (before, after)."""
    found: list[list[int]] = [[] for _ in range(count)]
    for before, after in edges:
        found[before].append(after)
    return found


def depths(graph: Followers) -> list[int]:
    """The length of the longest path to each node; a node in or behind a loop keeps its value so far."""
    return _gone_through(graph)[0]


def find_loop(graph: Followers) -> list[int]:
    """The nodes of one loop, each followed by the next; empty if there is none."""
    waiting = _gone_through(graph)[1]
    left = [node for node, count in enumerate(waiting) if count]
    if not left:
        return []
    # Each remaining node follows another remaining one: walking backwards must meet one twice.
    before = {after: node for node in left for after in graph[node]}
    at = left[0]
    positions: dict[int, int] = {}
    path: list[int] = []
    while at not in positions:
        positions[at] = len(path)
        path.append(at)
        at = before[at]
    return path[positions[at] :][::-1]


def _gone_through(graph: Followers) -> tuple[list[int], list[int]]:
    """Kahn's algorithm: the depth of each node, and how many predecessors were never reached."""
    waiting = [0] * len(graph)
    for following in graph:
        for node in following:
            waiting[node] += 1
    found = [0] * len(graph)
    ready = [node for node, count in enumerate(waiting) if not count]
    while ready:
        at = ready.pop()
        for node in graph[at]:
            found[node] = max(found[node], found[at] + 1)
            waiting[node] -= 1
            if not waiting[node]:
                ready.append(node)
    return found, waiting
