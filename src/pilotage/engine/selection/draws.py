"""Chance that follows from a seed and the number of a decision: the same two give the same draws, on every machine.

A counter-based generator (splitmix64, Steele, Lea and Flood 2014): it has no state that would have to be kept.
"""

from __future__ import annotations

import math

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed(number: int) -> int:
    """The finisher of splitmix64: every bit of a 64-bit number changes half of the others."""
    number &= _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def drawn(seed: int, decision: int) -> float:
    """The first number of `Draws(seed, decision)`, for who needs no more of them and asks very often."""
    # `mixed` twice, written out: it is most of what a choice costs.
    decision &= _MASK
    decision = ((decision ^ (decision >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    decision = ((decision ^ (decision >> 27)) * 0x94D049BB133111EB) & _MASK
    number = ((seed ^ decision ^ (decision >> 31)) + _GOLDEN) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((number ^ (number >> 31)) >> 11) * 2.0**-53


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
        return (self.bits() >> 11) * 2.0**-53

    def normals(self, count: int) -> list[float]:
        """So many of the standard normal distribution, two for each two draws (Box and Muller)."""
        found: list[float] = []
        while len(found) < count:
            radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
            angle = 2.0 * math.pi * self.uniform()
            found += (radius * math.cos(angle), radius * math.sin(angle))
        return found[:count]
