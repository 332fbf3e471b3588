"""Random draws that follow from a seed and the number of a decision: equal on every machine.

A counter-based generator (splitmix64, Steele, Lea and Flood 2014): it keeps no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import pairwise

from pilotage.engine.selection.scores import graded

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEP = 2.0**-53
_HALF_STEP = 2.0**-32


def mixed(number: int) -> int:
    """The finisher of splitmix64: every bit of a 64-bit number changes half of the others."""
    number &= _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


class Draws:
    """The draws of one decision, in order."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, decision: int = 0) -> None:
        """The stream of a seed and a decision; decision 0 is splitmix64's own stream for the seed."""
        self._state = (seed ^ mixed(decision)) & _MASK

    def bits(self) -> int:
        """The next 64 bits."""
        number = self._state = (self._state + _GOLDEN) & _MASK
        number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # `mixed`, inlined for speed
        number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
        return number ^ (number >> 31)

    def uniform(self) -> float:
        """The next number in [0, 1)."""
        number = self._state = (self._state + _GOLDEN) & _MASK
        number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # `bits`, inlined for speed
        number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((number ^ (number >> 31)) >> 11) * _STEP

    def halves(self) -> tuple[float, float]:
        """Two numbers in [0, 1) from the next 64 bits, of 32 bits each."""
        number = self.bits()
        return (number >> 32) * _HALF_STEP, (number & 0xFFFFFFFF) * _HALF_STEP

    def normals(self, count: int) -> list[float]:
        """Draws of the standard normal distribution (Box and Muller)."""
        found: list[float] = []
        while len(found) < count:
            radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
            angle = 2.0 * math.pi * self.uniform()
            found += (radius * math.cos(angle), radius * math.sin(angle))
        return found[:count]


# Weights of sites in a tree: one can be changed or picked without touching the others.
#
# They are whole numbers, TScore times 2^20, so every sum is exact: a site that leaves and comes back changes nothing.
# (Swift subtracts the score of a site from a sum to which its TScore was added, so its sum drifts.)

SCALE = 1 << 20
_BITS = 4
_FANOUT = 1 << _BITS  # children of a node, searched linearly: fewer make more levels, more a longer search


def weight_of(tscore: float) -> int:
    """A TScore as a weight, at least 1: every candidate can be picked."""
    return max(1, round(tscore * SCALE))


def weight_of_grade(grade: int) -> int:
    """The weight of a grade (`Score.grade`)."""
    found = _WEIGHTS.get(grade)
    if found is None:
        found = _WEIGHTS[grade] = weight_of(graded(grade))
    return found


_WEIGHTS: dict[int, int] = {}  # of a few hundred grades, cached


def _levels_of(weights: list[int], joined: Callable[[list[int]], int]) -> list[list[int]]:
    """The weights, and above them levels of joined groups, up to one that is searched linearly."""
    levels = [weights + [0] * (-len(weights) % _FANOUT)]
    while len(below := levels[-1]) > _FANOUT:
        above = [joined(below[at : at + _FANOUT]) for at in range(0, len(below), _FANOUT)]
        levels.append(above + [0] * (-len(above) % _FANOUT))
    return levels


class Weights:
    """A weight for each index; 0 if it may not be picked."""

    __slots__ = ("_down", "_largest", "_levels", "total")

    def __init__(self, count: int = 0) -> None:
        """Start with zeros."""
        self.total = 0  # the sum of all
        self._levels: list[list[int]] = []  # the weights, the sums of groups of them, the sums of those
        self._down: list[list[int]] = []  # the same from the top
        self._largest: list[list[int]] | None = None  # likewise with maxima instead of sums, once needed
        self._lay_out([0] * count)

    def _lay_out(self, weights: list[int]) -> None:
        self._levels = _levels_of(weights, sum)
        self._down = self._levels[::-1]
        if self._largest is not None:
            self._largest = _levels_of(weights, max)

    def __getitem__(self, index: int) -> int:
        weights = self._levels[0]
        return weights[index] if index < len(weights) else 0

    def __setitem__(self, index: int, weight: int) -> None:
        weights = self._levels[0]
        if index >= len(weights):
            self._lay_out(weights + [0] * max(index + 1 - len(weights), len(weights)))
            weights = self._levels[0]
        change = weight - weights[index]
        if not change:
            return
        self.total += change
        at = index
        for sums in self._levels:
            sums[at] += change
            at >>= _BITS
        if self._largest is not None:
            self._note_largest(self._largest, index, weight)

    def _note_largest(self, levels: list[list[int]], index: int, weight: int) -> None:
        levels[0][index] = weight
        for below, above in pairwise(levels):
            index >>= _BITS
            above[index] = max(below[index << _BITS : (index + 1) << _BITS])

    def pick(self, draw: float) -> int | None:
        """The index at a number in [0, 1), each with the probability of its weight; None if all are 0."""
        total = self.total
        if not total:
            return None
        target = min(int(draw * total), total - 1)
        at = 0
        for sums in self._down:
            at <<= _BITS
            while target >= (here := sums[at]):
                target -= here
                at += 1
        return at

    def pick_two(self, draw: float, other_draw: float) -> tuple[int, int]:
        """As `pick`, plus another index for the second number among the rest; -1 if there is none."""
        total = self.total
        if not total:
            return -1, -1
        target = left = min(int(draw * total), total - 1)
        here = first = second = 0
        for sums in self._down:
            first <<= _BITS
            while left >= (here := sums[first]):
                left -= here
                first += 1
        rest = total - here  # the last value found is its own weight
        if not rest:
            return first, -1
        begins, left = target - left, min(int(other_draw * rest), rest - 1)
        if left >= begins:
            left += here  # skip the first
        for sums in self._down:
            second <<= _BITS
            while left >= (here := sums[second]):
                left -= here
                second += 1
        return first, second

    def first(self) -> int | None:
        """The first index with a weight; None if all are 0."""
        if not self.total:
            return None
        at = 0
        for sums in self._down:
            at <<= _BITS
            while not sums[at]:
                at += 1
        return at

    def best(self) -> int | None:
        """The first index with the largest weight; None if all are 0."""
        if not self.total:
            return None
        if self._largest is None:
            self._largest = _levels_of(self._levels[0], max)
        at = 0
        for largest in reversed(self._largest):
            at <<= _BITS
            block = largest[at : at + _FANOUT]
            at += block.index(max(block))
        return at

    def without(self, indices: Collection[int]) -> Hidden:
        """Hide these indices for a while: `with weights.without(…): …`."""
        return Hidden(self, indices)


class Hidden:
    """Hides some weights for the time of a `with` block."""

    __slots__ = ("_kept", "_weights")

    def __init__(self, weights: Weights, indices: Collection[int]) -> None:
        """Hide the weights at these indices."""
        self._weights = weights
        self._kept = {index: weights[index] for index in indices if weights[index]}

    def __enter__(self) -> Weights:
        for index in self._kept:
            self._weights[index] = 0
        return self._weights

    def __exit__(self, *_: object) -> None:
        for index, weight in self._kept.items():
            self._weights[index] = weight
