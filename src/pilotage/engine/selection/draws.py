"""Chance that follows from a seed and the number of a decision: the same two give the same draws, on every machine.

A counter-based generator (splitmix64, Steele, Lea and Flood 2014): it has no state that would have to be kept.
"""

from __future__ import annotations

import math

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
        """The stream of a seed and a decision; that of decision 0 is splitmix64's own for the seed."""
        self._state = (seed ^ mixed(decision)) & _MASK

    def bits(self) -> int:
        """The next 64 bits."""
        number = self._state = (self._state + _GOLDEN) & _MASK
        number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # `mixed`, which is asked very often here
        number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
        return number ^ (number >> 31)

    def uniform(self) -> float:
        """The next number from 0 up to, and without, 1."""
        number = self._state = (self._state + _GOLDEN) & _MASK
        number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # `bits`, whose call would cost as much
        number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((number ^ (number >> 31)) >> 11) * _STEP

    def halves(self) -> tuple[float, float]:
        """Two numbers from 0 up to, and without, 1 out of the next 64 bits, for who needs no more than 32 of each."""
        number = self.bits()
        return (number >> 32) * _HALF_STEP, (number & 0xFFFFFFFF) * _HALF_STEP

    def normals(self, count: int) -> list[float]:
        """So many of the standard normal distribution, two for each two draws (Box and Muller)."""
        found: list[float] = []
        while len(found) < count:
            radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
            angle = 2.0 * math.pi * self.uniform()
            found += (radius * math.cos(angle), radius * math.sin(angle))
        return found[:count]
