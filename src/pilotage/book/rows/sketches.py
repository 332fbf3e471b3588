"""A slice of statistics: counts in bins and sums of seconds, which can be added; and its encoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from pilotage.model.states import State

# The bins: logarithmic in seconds, per pair of states, in slices of time.

FINE_SECONDS = 10
COARSE_SECONDS = 300

BASE = 1.1  # a bin is ten per cent wide: its middle is within five per cent of every value in it
SMALLEST = 0.001  # anything below a millisecond counts as zero, and so does a negative time
PER_LOG = 1 / math.log(BASE)
OFFSET = 1 - math.log(SMALLEST) * PER_LOG
BINS = 1024
ENTRY = 15  # in place of the earlier state: an entry into the later one, not a duration
STATES = len(State)
NEVER = -1.0
"""In place of a time that is not known."""


def bin_of(seconds: float) -> int:
    """The bin of a duration."""
    return 0 if seconds < SMALLEST else min(BINS - 1, int(math.log(seconds) * PER_LOG + OFFSET))


def middle_of(number: int) -> float:
    """The duration that a bin stands for."""
    return 0.0 if number == 0 else SMALLEST * BASE ** (number - 0.5)


class Sketch(msgspec.Struct, array_like=True):
    """Counts by (earlier state, later state, bin), and sums of seconds by (earlier, later)."""

    counts: dict[int, int]
    sums: dict[int, float]


_decoder = msgspec.msgpack.Decoder(Sketch)
_encode = msgspec.msgpack.Encoder().encode
_CACHE_MAX = 1024
_cache: dict[bytes, Sketch] = {}
"""Recently encoded sketches by their encoding: every batch needs the current slices."""


def read_sketch(packed: bytes) -> Sketch:
    """Decode a sketch, read-only."""
    return _decoder.decode(packed)


def unpacked(packed: bytes) -> Sketch:
    """Decode a sketch that may be changed."""
    return _cache.pop(packed, None) or _decoder.decode(packed)


def packed(sketch: Sketch) -> bytes:
    """Encode a sketch, which must not change any more."""
    return _encode(_ordered(sketch))


def stored(before: Sketch | None, sketches: Iterable[Sketch]) -> bytes:
    """Add sketches to the stored one, which is changed; returns the encoding."""
    codes, pairs = (len(before.counts), len(before.sums)) if before is not None else (0, 0)
    total = added(before, sketches)
    # The stored one is sorted, and stays so if no code was added or removed.
    in_order = codes == len(total.counts) and pairs == len(total.sums) and 0 not in total.counts.values()
    return _packed(total if in_order else _ordered(total))


def added(total: Sketch | None, sketches: Iterable[Sketch]) -> Sketch:
    """Add sketches to one that the caller owns, which is changed."""
    if total is None:
        total = Sketch({}, {})
    for sketch in sketches:
        add(total, sketch.counts, sketch.sums)
    return total


def add(total: Sketch, counted: Mapping[int, int], seconds: Mapping[int, float]) -> None:
    """Add counts and sums of seconds to a sketch."""
    counts, sums = total.counts, total.sums
    if not counts and not sums:
        counts.update(counted)
        sums.update(seconds)
        return
    for code, count in counted.items():
        counts[code] = counts.get(code, 0) + count
    for pair, more in seconds.items():
        sums[pair] = sums.get(pair, 0.0) + more


def _packed(sketch: Sketch) -> bytes:
    """Encode a sorted sketch."""
    packed = _encode(sketch)
    if len(_cache) >= _CACHE_MAX:
        for old in list(_cache)[: _CACHE_MAX // 2]:  # entries in frequent use are at the end
            del _cache[old]
    _cache[packed] = sketch
    return packed


def _ordered(sketch: Sketch) -> Sketch:
    """Drop zero counts and sort, so that equal sketches have equal bytes."""
    counts, sums = sketch.counts, sketch.sums
    if 0 in counts.values():
        counts = {code: count for code, count in counts.items() if count}
        counted = {code // BINS for code in counts}
        sums = {pair: total for pair, total in sums.items() if pair in counted}
    return Sketch({code: counts[code] for code in sorted(counts)}, {pair: sums[pair] for pair in sorted(sums)})
