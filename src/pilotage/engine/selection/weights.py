"""Weights of sites, kept in a tree: one changes, or one is picked, without looking at the others.

They are whole numbers, TScore times 2^20, so every sum is exact: a site that leaves and comes back changes nothing. (Swift
subtracts the score of a site from a sum to which its TScore was added, so its sum drifts away from its sites.)
"""

from __future__ import annotations

from collections.abc import Collection

from pilotage.engine.selection.scores import graded

SCALE = 1 << 20


def weight_of(tscore: float) -> int:
    """A TScore as a weight, at least 1: nobody who may be picked is never picked."""
    return max(1, round(tscore * SCALE))


def weight_of_grade(grade: int) -> int:
    """The weight of a grade (`Score.grade`)."""
    found = _WEIGHTS.get(grade)
    if found is None:
        found = _WEIGHTS[grade] = weight_of(graded(grade))
    return found


_WEIGHTS: dict[int, int] = {}  # of a few hundred grades, as they come up


class Weights:
    """A weight for each index; 0 where it may not be picked."""

    __slots__ = ("_largest", "_size", "_sums")

    def __init__(self, count: int = 0) -> None:
        """Begin with nothing but zeros."""
        self._size = 1
        while self._size < count:
            self._size *= 2
        self._sums = [0] * (2 * self._size)
        self._largest = [0] * (2 * self._size)

    @property
    def total(self) -> int:
        """The sum of all."""
        return self._sums[1]

    def __getitem__(self, index: int) -> int:
        return self._sums[self._size + index] if index < self._size else 0

    def __setitem__(self, index: int, weight: int) -> None:
        if index >= self._size:
            self._grow(index + 1)
        sums, largest = self._sums, self._largest
        node = self._size + index
        if sums[node] == weight:
            return
        sums[node] = largest[node] = weight
        node //= 2
        while node:
            left, right = 2 * node, 2 * node + 1
            sums[node] = sums[left] + sums[right]
            largest[node] = max(largest[left], largest[right])
            node //= 2

    def _grow(self, count: int) -> None:
        wider = Weights(max(count, 2 * self._size))
        half = wider._size
        for tree, old in ((wider._sums, self._sums), (wider._largest, self._largest)):
            tree[half : half + self._size] = old[self._size :]
        for node in range(half - 1, 0, -1):
            wider._sums[node] = wider._sums[2 * node] + wider._sums[2 * node + 1]
            wider._largest[node] = max(wider._largest[2 * node], wider._largest[2 * node + 1])
        self._size, self._sums, self._largest = wider._size, wider._sums, wider._largest

    def pick(self, draw: float) -> int | None:
        """The index that a number from 0 up to 1 falls on, each as probable as its weight; None where all are 0."""
        if not self.total:
            return None
        target = min(int(draw * self.total), self.total - 1)
        node = 1
        while node < self._size:
            node *= 2
            if target >= self._sums[node]:
                target -= self._sums[node]
                node += 1
        return node - self._size

    def best(self) -> int | None:
        """The index with the largest weight, the first of them; None where all are 0."""
        largest = self._largest
        if not largest[1]:
            return None
        node = 1
        while node < self._size:
            node *= 2
            if largest[node] < largest[node + 1]:
                node += 1
        return node - self._size

    def some(self, count: int) -> list[int]:
        """The first indices with a weight, at most so many."""
        found: list[int] = []
        nodes = [1]
        while nodes and len(found) < count:
            node = nodes.pop()
            if not self._sums[node]:
                continue
            if node >= self._size:
                found.append(node - self._size)
            else:
                nodes += (2 * node + 1, 2 * node)
        return found

    def without(self, indices: Collection[int]) -> Hidden:
        """The same for a while, but for these: `with weights.without(…): …`."""
        return Hidden(self, indices)


class Hidden:
    """Takes some weights away for as long as a `with` lasts."""

    __slots__ = ("_kept", "_weights")

    def __init__(self, weights: Weights, indices: Collection[int]) -> None:
        """Of these weights, those at these indices."""
        self._weights = weights
        self._kept = {index: weights[index] for index in indices if weights[index]}

    def __enter__(self) -> None:
        for index in self._kept:
            self._weights[index] = 0

    def __exit__(self, *_: object) -> None:
        for index, weight in self._kept.items():
            self._weights[index] = weight
