"""What a slice of statistics holds: counts in bins and sums of seconds, which add up; and how it is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from pilotage.model.states import State

# Into what statistics count: logarithmic bins of seconds, for each pair of states, in slices of time.

FINE_SECONDS = 10
COARSE_SECONDS = 300

BASE = 1.1  # a bin is ten per cent wide: its middle is within five of every value in it
SMALLEST = 0.001  # below a millisecond everything counts as nothing, and so does a clock that runs backwards
PER_LOG = 1 / math.log(BASE)
OFFSET = 1 - math.log(SMALLEST) * PER_LOG
BINS = 1024
ENTRY = 15  # in place of the earlier state: an entry into the later one, not a time
STATES = len(State)
NEVER = -1.0
"""In place of a time that did not come."""


def bin_of(seconds: float) -> int:
    """The bin that a time falls into."""
    return 0 if seconds < SMALLEST else min(BINS - 1, int(math.log(seconds) * PER_LOG + OFFSET))


def middle_of(number: int) -> float:
    """The time that a bin stands for."""
    return 0.0 if number == 0 else SMALLEST * BASE ** (number - 0.5)


class Sketch(msgspec.Struct, array_like=True):
    """Counts by (earlier state, later state, bin), and sums of seconds by (earlier, later)."""

    counts: dict[int, int]
    sums: dict[int, float]


_decoder = msgspec.msgpack.Decoder(Sketch)
_encode = msgspec.msgpack.Encoder().encode
_AT_HAND_MAX = 1024
_at_hand: dict[bytes, Sketch] = {}
"""Sketches that were packed lately, by what they were packed to: the slices of the present are wanted with each batch."""


def read_sketch(packed: bytes) -> Sketch:
    """A stored sketch, for one who only looks."""
    return _decoder.decode(packed)


def unpacked(packed: bytes) -> Sketch:
    """A stored sketch, for one who may change it."""
    return _at_hand.pop(packed, None) or _decoder.decode(packed)


def packed(sketch: Sketch) -> bytes:
    """A sketch as it is stored, for one who only looks."""
    return _encode(_ordered(sketch))


def stored(before: Sketch | None, sketches: Iterable[Sketch]) -> bytes:
    """Sketches added to what was stored before, which is changed; as it is stored."""
    codes, pairs = (len(before.counts), len(before.sums)) if before is not None else (0, 0)
    total = added(before, sketches)
    # What was stored is in order, and stays so where nothing came to it and nothing was taken back.
    in_order = codes == len(total.counts) and pairs == len(total.sums) and 0 not in total.counts.values()
    return _packed(total if in_order else _ordered(total))


def added(total: Sketch | None, sketches: Iterable[Sketch]) -> Sketch:
    """Sketches added to one that is nobody else's, and that is changed."""
    if total is None:
        total = Sketch({}, {})
    for sketch in sketches:
        add(total, sketch.counts, sketch.sums)
    return total


def add(total: Sketch, counted: Mapping[int, int], seconds: Mapping[int, float]) -> None:
    """Counts and sums of seconds added to a sketch."""
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
    """A sketch in order as it is stored."""
    packed = _encode(sketch)
    if len(_at_hand) >= _AT_HAND_MAX:
        for old in list(_at_hand)[: _AT_HAND_MAX // 2]:  # what is wanted again and again stands behind
            del _at_hand[old]
    _at_hand[packed] = sketch
    return packed


def _ordered(sketch: Sketch) -> Sketch:
    """What was taken back to nothing is left out, and equal sketches are in the same order: they are equal bytes."""
    counts, sums = sketch.counts, sketch.sums
    if 0 in counts.values():
        counts = {code: count for code, count in counts.items() if count}
        counted = {code // BINS for code in counts}
        sums = {pair: total for pair, total in sums.items() if pair in counted}
    return Sketch({code: counts[code] for code in sorted(counts)}, {pair: sums[pair] for pair in sorted(sums)})
