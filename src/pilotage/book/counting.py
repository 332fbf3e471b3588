"""The arithmetic of statistics for many attempts at once, in arrays. Only a busy book needs it: it is loaded when it does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pilotage.book.bins import BINS, ENTRY, FINE_SECONDS, NEVER, OFFSET, PER_LOG, SMALLEST, STATES
from pilotage.model.states import State

_WIDTH = 256 * BINS  # one more than the largest code
_READY, _RUNNING = list(State).index(State.READY), list(State).index(State.RUNNING)

Counted = tuple[int, int, int, int, float]
"""A slice, a group, a code, how many there are of it, and their seconds."""


def count_together(
    groups: Sequence[int], times: Sequence[float], *, known_at: Sequence[int], known: Sequence[float]
) -> Iterator[Counted]:
    """What `Observations._count` does one by one: slices, groups, codes, how many there are of each, and their seconds.

    `times` has the milestones of each attempt, one after another; of those that `known_at` numbers, `known` has what was
    counted before.
    """
    at = np.array(times, dtype=np.float64).reshape(-1, STATES)
    seen = at != NEVER
    new = seen.copy()
    if known_at:
        new[known_at] &= np.array(known, dtype=np.float64).reshape(-1, STATES) == NEVER
    reached = np.flatnonzero(seen.any(axis=0)).tolist()
    # Attempts that begin with a lease run from then on, which most do: then RUNNING need not be counted by itself.
    leased = _RUNNING in reached and np.array_equal(at[:, _READY], at[:, _RUNNING])
    leased = leased and np.array_equal(new[:, _READY], new[:, _RUNNING])
    if leased:
        reached.remove(_RUNNING)
    pairs = [(earlier, later) for later in reached if later >= 2 for earlier in reached if earlier < later]
    states = [state for state in reached if state >= 2]
    earlier, later = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    entered = new[:, states]
    both = seen[:, earlier] & seen[:, later] & (new[:, earlier] | new[:, later])
    until = at[:, later]
    seconds = (until - at[:, earlier])[both]
    tiny = seconds < SMALLEST
    seconds[tiny] = 1.0
    bins = np.minimum(BINS - 1, (np.log(seconds) * PER_LOG + OFFSET).astype(np.int64))
    bins[tiny] = 0
    seconds[tiny] = 0.0
    entries = np.array([(ENTRY * 16 + state) * BINS for state in states], dtype=np.int64)
    times_between = np.array([(one * 16 + other) * BINS for one, other in pairs], dtype=np.int64)
    group = np.array(groups, dtype=np.int64)[:, np.newaxis]
    count = int(group.max()) + 1
    keys = np.concatenate((
        _keys(at[:, states], group, entries, count=count)[entered],
        _keys(until, group, times_between, count=count)[both] + bins,
    ))  # fmt: skip
    if not len(keys):
        return
    order = np.argsort(keys)
    keys = keys[order]
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    totals = np.add.reduceat(np.concatenate((np.zeros(len(keys) - len(seconds)), seconds))[order], first)
    numbers = np.diff(first, append=len(keys))
    places, codes = np.divmod(keys[first], _WIDTH)
    slices, owners = np.divmod(places, count)
    found = zip(slices.tolist(), owners.tolist(), codes.tolist(), numbers.tolist(), totals.tolist(), strict=True)
    yield from _twice(found) if leased else found


def _twice(found: Iterable[Counted]) -> Iterator[Counted]:
    """What was counted without RUNNING, and the same of RUNNING, which all entered when they entered READY."""
    for number, group, code, count, seconds in found:
        yield number, group, code, count, seconds
        pair, bin_number = divmod(code, BINS)
        earlier, later = divmod(pair, 16)
        if later == _READY:
            yield number, group, (earlier * 16 + _RUNNING) * BINS + bin_number, count, seconds
            if earlier == ENTRY:
                yield number, group, (_READY * 16 + _RUNNING) * BINS, count, 0.0
        elif earlier == _READY:
            yield number, group, (_RUNNING * 16 + later) * BINS + bin_number, count, seconds


def _keys(at: np.ndarray, group: np.ndarray, codes: np.ndarray, *, count: int) -> np.ndarray:
    """One number for the slice of time, the group and the code of each."""
    keys: np.ndarray = ((at // FINE_SECONDS).astype(np.int64) * count + group) * _WIDTH + codes
    return keys
