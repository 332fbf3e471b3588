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
        self._state = (self._state + _GOLDEN) & _MASK
        return mixed(self._state)

    def uniform(self) -> float:
        """The next number from 0 up to, and without, 1."""
        return (self.bits() >> 11) * 2.0**-53

    def normal(self) -> float:
        """Of the standard normal distribution (Box and Muller)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """Of the gamma distribution with rate 1 (Marsaglia and Tsang 2000)."""
        if shape < 1.0:
            # U^(1/shape) of a tiny shape is 0 as a float: kept above it, because it divides elsewhere.
            return max(1e-300, self.gamma(shape + 1.0) * math.pow(1.0 - self.uniform(), 1.0 / shape))
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = math.pow(1.0 + c * x, 3)
            if v > 0.0 and math.log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def beta(self, successes: float, failures: float) -> float:
        """Of the beta distribution."""
        left, right = self.gamma(successes), self.gamma(failures)
        return left / (left + right)
