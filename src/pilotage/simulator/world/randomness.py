"""Randomness from one seed: named streams of numbers, numbers that follow from a text, and distributions.

A distribution calls only `random()` of its numbers, so it draws the same values from any source, in every version of Python.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from statistics import NormalDist
from typing import Literal, Protocol, overload

import msgspec

from pilotage.model.sites.world import Factors, Times
from pilotage.model.texts import changes_often

_STEP = 2.0**-53
_NORMAL = NormalDist()
_blake2b = hashlib.blake2b
_DIGEST_BYTES = 64
_NUMBER_BYTES = 8
_last_number = struct.Struct(f">{_DIGEST_BYTES - _NUMBER_BYTES}xQ").unpack


class Numbers(Protocol):
    """A source of numbers in [0, 1)."""

    def random(self) -> float:
        """The next number."""
        ...


class Dice:
    """All randomness of a simulation: one stream per name, so that one more draw in one changes no other."""

    __slots__ = ("_streams", "seed")

    def __init__(self, seed: int) -> None:
        """Start with a seed."""
        self.seed = seed
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        """The stream of a name, the same one each time."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = random.Random(f"{self.seed}/{name}")
        return found


@changes_often
class Keyed(msgspec.Struct, gc=False):
    """Numbers that follow from a text alone, on every machine: cheap enough for a few per attempt.

    Nothing is computed before the first number is drawn.
    """

    _text: str
    _blocks: int = 0
    _left: int = 0  # unused bytes of the digest, the first ones
    _digest: bytes = b""

    def random(self) -> float:
        """The next number."""
        end = self._left
        if not end:
            block = f"{self._text}/{self._blocks}".encode()
            self._blocks += 1
            self._digest = _blake2b(block).digest()
            end = _DIGEST_BYTES
        self._left = begin = end - _NUMBER_BYTES
        return (int.from_bytes(self._digest[begin:end], "big") >> 11) * _STEP


def number_of(text: str) -> float:
    """The first of the numbers that follow from a text, in half the time."""
    number: int = _last_number(_blake2b(f"{text}/0".encode()).digest())[0]
    return (number >> 11) * _STEP


class Distribution(msgspec.Struct, frozen=True, tag_field="distribution"):
    """The base: a distribution of amounts."""

    def draw(self, numbers: Numbers) -> float:
        """One amount."""
        raise NotImplementedError


class OfOneNumber(Distribution, frozen=True):
    """The base of distributions drawn with one number."""

    def at(self, number: float) -> float:
        """The amount for a number in [0, 1)."""
        raise NotImplementedError

    def draw(self, numbers: Numbers) -> float:
        """One amount."""
        return self.at(numbers.random())


class Fixed(Distribution, frozen=True, tag="fixed"):
    """Always the same."""

    value: float

    def draw(self, numbers: Numbers) -> float:
        """One amount."""
        return self.value


class Uniform(OfOneNumber, frozen=True, kw_only=True, tag="uniform"):
    """Uniform between two bounds."""

    low: float
    high: float

    def at(self, number: float) -> float:
        """The amount for a number in [0, 1)."""
        return self.low + (self.high - self.low) * number


class Exponential(OfOneNumber, frozen=True, tag="exponential"):
    """The time until an event that may happen at any moment."""

    mean: float

    def at(self, number: float) -> float:
        """The amount for a number in [0, 1)."""
        return -self.mean * math.log(1.0 - number)


class LogNormal(OfOneNumber, frozen=True, kw_only=True, tag="log-normal"):
    """Mostly near the median, sometimes far above it: run times and queue times."""

    median: float
    sigma: float

    def at(self, number: float) -> float:
        """The amount for a number in [0, 1)."""
        return self.median * math.exp(self.sigma * _NORMAL.inv_cdf(number or _STEP))


class Mixture(Distribution, frozen=True, kw_only=True, tag="mixture"):
    """One of several, each with a weight."""

    weights: tuple[float, ...]
    parts: tuple[AnyDistribution, ...]

    def draw(self, numbers: Numbers) -> float:
        """One amount."""
        left = numbers.random() * math.fsum(self.weights)
        for weight, part in zip(self.weights, self.parts, strict=True):
            left -= weight
            if left < 0.0:
                return part.draw(numbers)
        return self.parts[-1].draw(numbers)


AnyDistribution = Fixed | Uniform | Exponential | LogNormal | Mixture
"""The distributions that a world may contain, as in JSON."""


# The distributions for the worlds of users, each drawn with one number, so that a seed gives the same to everyone.

_MEAN_OVER = 200  # quantiles for a mean without a formula


class Weibull(OfOneNumber, frozen=True, kw_only=True, tag="weibull"):
    """Lifetimes of things that wear out, or get more reliable: nodes."""

    scale: float
    shape: float

    def at(self, number: float) -> float:
        """The amount for a number in [0, 1)."""
        return float(self.scale * (-math.log(1.0 - number)) ** (1.0 / self.shape))


class Empirical(OfOneNumber, frozen=True, tag="empirical"):
    """Observed values, sorted, all equally likely."""

    values: tuple[float, ...]

    def at(self, number: float) -> float:
        """The amount for a number in [0, 1)."""
        return self.values[int(number * len(self.values))]


class Shifted(OfOneNumber, frozen=True, kw_only=True, tag="shifted"):
    """Another distribution, and something that comes on top of each amount."""

    offset: float
    of: OfOneNumber

    def at(self, number: float) -> float:
        """The amount for a number in [0, 1)."""
        return self.offset + self.of.at(number)


class _Even:
    """The numbers (k + ½) / n in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def random(self) -> float:
        number = (self._next + 0.5) / self._count
        self._next += 1
        return number


def mean_of(distribution: Distribution) -> float:
    """The approximate mean: over evenly spaced quantiles, without the extreme tails."""
    numbers = _Even(_MEAN_OVER)
    return math.fsum(distribution.draw(numbers) for _ in range(_MEAN_OVER)) / _MEAN_OVER


@overload
def distribution_of(spread: Times | Factors) -> Distribution: ...


@overload
def distribution_of(spread: None) -> None: ...


def distribution_of(spread: Times | Factors | None) -> Distribution | None:
    """The distribution for an entry of a file."""
    if spread is None:
        return None

    offset_seconds = spread.offset_seconds if isinstance(spread, Times) else None
    if offset_seconds:
        assert isinstance(spread, Times)
        of = distribution_of(msgspec.structs.replace(spread, offset_seconds=None))
        assert isinstance(of, OfOneNumber)
        return Shifted(offset=offset_seconds, of=of)

    def given(name: Literal["value", "low", "high", "mean", "median", "scale"]) -> float:
        return float(getattr(spread, f"{name}_seconds" if isinstance(spread, Times) else name) or 0.0)

    match spread.distribution:
        case "fixed":
            return Fixed(given("value"))
        case "uniform":
            return Uniform(low=given("low"), high=given("high"))
        case "exponential":
            return Exponential(given("mean"))
        case "log-normal":
            return LogNormal(median=given("median"), sigma=spread.sigma or 0.0)
        case "weibull":
            return Weibull(scale=given("scale"), shape=spread.shape or 1.0)
        case "empirical":
            return Empirical(tuple(sorted(spread.values)))
