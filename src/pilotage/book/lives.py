"""Short lives as statistics count them: all those of one kind at once, since nothing of them is ever taken back."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from itertools import product

from pilotage.book.bins import BINS, ENTRY, FINE_SECONDS, NEVER, bin_of
from pilotage.book.sketches import Sketch
from pilotage.model.states import State

_SUBMITTED, _WAITING, _READY, _RUNNING, _DONE = (
    list(State).index(state) for state in (State.SUBMITTED, State.WAITING, State.READY, State.RUNNING, State.DONE)
)
_FEW = 32  # so many times are looked at one by one; of more, only where a bin ends


class Lives:
    """Short lives of one batch, of one stage, at one site and in one activity: when they began and ended.

    Each begins with a lease, so that it enters READY and RUNNING at once, and is DONE when it is granted.
    """

    __slots__ = ("activity", "began", "finished", "granted", "granted_since", "site")

    def __init__(self, site: str, activity: str) -> None:
        """Begin with none."""
        self.site, self.activity = site, activity
        self.began: list[float] = []  # of those that began in this batch
        self.finished: list[float] = []  # of those that ended in this batch: when they said so,
        self.granted: list[float] = []  # when they were granted,
        self.granted_since: list[float] = []  # and when they had begun

    def counted(self, known: tuple[float, float]) -> Iterator[tuple[int, Sketch]]:
        """What they add to each slice of time, by its number; `known` is when their job was submitted and accepted."""
        before = _known_before(known)
        for number, began, _ in _by_slice(self.began, self.began):
            sketch = _entered(len(began), (ENTRY, _READY), (ENTRY, _RUNNING), (_READY, _RUNNING))
            for states, since in before:
                _count(sketch, [at - since for at in began], *product(states, (_READY, _RUNNING)))
            yield number, sketch
        for number, granted, began in _by_slice(self.granted, self.granted_since):
            sketch = _entered(len(granted), (ENTRY, _DONE))
            for states, since in before:
                _count(sketch, [at - since for at in granted], *product(states, (_DONE,)))
            seconds = [at - since for at, since in zip(granted, began, strict=True)]
            _count(sketch, seconds, (_READY, _DONE), (_RUNNING, _DONE))
            yield number, sketch


def _known_before(known: tuple[float, float]) -> list[tuple[tuple[int, ...], float]]:
    """When a job came into which states, as far as that is known: mostly into both at once, which is counted once."""
    submitted, accepted = known
    if submitted == accepted:
        return [((_SUBMITTED, _WAITING), submitted)] if submitted != NEVER else []
    return [((state,), at) for state, at in ((_SUBMITTED, submitted), (_WAITING, accepted)) if at != NEVER]


def _entered(count: int, *pairs: tuple[int, int]) -> Sketch:
    """So many entries into states, or times between them that are nothing."""
    return Sketch({(earlier * 16 + later) * BINS: count for earlier, later in pairs}, {})


def _count(sketch: Sketch, seconds: list[float], *pairs: tuple[int, int]) -> None:
    """Count times between an earlier and a later state, or several such pairs, of which the sketch has none yet."""
    first, last = bin_of(min(seconds)), bin_of(max(seconds))
    total = 0.0
    if first == last:  # what happens within a moment is about equally far from what was long ago
        bins = {first: len(seconds)}
        if first:
            total = sum(seconds)
    elif len(seconds) <= _FEW:
        bins = {}
        for each in seconds:
            number = bin_of(each)
            bins[number] = bins.get(number, 0) + 1
            if number:
                total += each
    else:
        bins = _bins_of_many(seconds, last)
        total = sum(seconds[bins.get(0, 0) :])
    for earlier, later in pairs:
        pair = earlier * 16 + later
        code = pair * BINS
        for number, count in bins.items():
            sketch.counts[code + number] = count
        if total:
            sketch.sums[pair] = total


def _bins_of_many(seconds: list[float], last: int) -> dict[int, int]:
    """How many of so many times, which are sorted by that, fall into each bin, up to the last that one falls into."""
    seconds.sort()  # which they nearly are, as a rule
    bins: dict[int, int] = {}
    start, end = 0, len(seconds)
    while start < end:  # there are few bins
        number = bin_of(seconds[start])
        if number == last:
            bins[number] = end - start
            break
        after = bisect.bisect_right(seconds, number, lo=start, key=bin_of)
        bins[number], start = after - start, after
    return bins


def _by_slice(times: list[float], beside: list[float]) -> Iterator[tuple[int, list[float], list[float]]]:
    """Times by the number of the slice that they fall into, with what stands beside each."""
    if not times:
        return
    first, last = int(min(times)) // FINE_SECONDS, int(max(times)) // FINE_SECONDS
    if first == last:  # as in most batches
        yield first, times, beside
        return
    found: dict[int, tuple[list[float], list[float]]] = {}
    for at, other in zip(times, beside, strict=True):
        some = found.setdefault(int(at) // FINE_SECONDS, ([], []))
        some[0].append(at)
        some[1].append(other)
    for number, (some_times, some_beside) in found.items():
        yield number, some_times, some_beside
