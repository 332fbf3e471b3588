"""Statistics of many attempts at once, with numpy arrays; loaded only for a busy book."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pilotage.book.rows.fast_rows import Lives
from pilotage.book.rows.sketches import BINS, ENTRY, FINE_SECONDS, NEVER, OFFSET, PER_LOG, SMALLEST, STATES
from pilotage.model.states import State

_PAIRS = 256
_WIDTH = _PAIRS * BINS  # one more than the largest code
_SUBMITTED, _WAITING, _READY, _SCHEDULED, _RUNNING, _DONE = (
    list(State).index(state)
    for state in (State.SUBMITTED, State.WAITING, State.READY, State.SCHEDULED, State.RUNNING, State.DONE)
)
_BEGINS = [pair * BINS for pair in (ENTRY * 16 + _READY, ENTRY * 16 + _RUNNING, _READY * 16 + _RUNNING)]
_ENDS = (ENTRY * 16 + _DONE) * BINS

SliceCounts = tuple[int, int, dict[int, int], dict[int, float]]
"""A slice, a group, the counts by code, and the seconds by pair of states."""


def count_together(
    groups: Sequence[int], times: Sequence[float], *, known_at: Sequence[int], known: Sequence[float]
) -> Iterator[SliceCounts]:
    """Like `Observations._count`, for many attempts: counts by code and sums by pair of states, per slice and group.

    `times` has the milestones of each attempt, one after another; `known` has those counted before, for the attempts
    that `known_at` numbers.
    """
    at = np.array(times, dtype=np.float64).reshape(-1, STATES)
    owners = np.array(groups, dtype=np.int64)
    is_reached = at != NEVER
    new, by = is_reached.copy(), None
    if known_at:
        before, places = np.array(known, dtype=np.float64).reshape(-1, STATES), np.array(known_at)
        corrected = ((before != NEVER) & (before != at[places])).any(axis=1)
        if corrected.any():
            # A time was corrected: subtract its earlier count, and count everything again.
            wrong = before[corrected]
            before[corrected] = NEVER
            by = np.repeat((1, -1), (len(at), len(wrong)))[:, np.newaxis]
            at, owners = np.concatenate((at, wrong)), np.concatenate((owners, owners[places[corrected]]))
            is_reached = at != NEVER
            new = is_reached.copy()
        new[places] &= before == NEVER
    reached = np.flatnonzero(is_reached.any(axis=0)).tolist()
    # Most attempts run from the moment that they are assigned: then RUNNING need not be counted on its own.
    leased = _RUNNING in reached and np.array_equal(at[:, _READY], at[:, _RUNNING])
    leased = leased and _SCHEDULED not in reached and np.array_equal(new[:, _READY], new[:, _RUNNING])
    if leased:
        reached.remove(_RUNNING)
    pairs = [(earlier, later) for later in reached if later >= 2 for earlier in reached if earlier < later]
    states = [state for state in reached if state >= 2]
    earlier, later = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    entered = new[:, states]
    both = is_reached[:, earlier] & is_reached[:, later] & (new[:, earlier] | new[:, later])
    until = at[:, later]
    seconds = (until - at[:, earlier])[both]
    bins = _bins(seconds)
    entries = np.array([(ENTRY * 16 + state) * BINS for state in states], dtype=np.int64)
    times_between = np.array([(one * 16 + other) * BINS for one, other in pairs], dtype=np.int64)
    group = owners[:, np.newaxis]
    count = int(owners.max()) + 1
    keys = np.concatenate((
        _keys(at[:, states], group, entries, count=count)[entered],
        _keys(until, group, times_between, count=count)[both] + bins,
    ))  # fmt: skip
    if not len(keys):
        return
    order = np.argsort(keys)
    keys = keys[order]
    seconds = np.concatenate((np.zeros(len(keys) - len(seconds)), seconds))[order]
    first = _firsts(keys)
    if by is None:
        counts = _lengths(first, len(keys))
    else:
        signs = np.concatenate((np.broadcast_to(by, entered.shape)[entered], np.broadcast_to(by, both.shape)[both]))[
            order
        ]
        counts = np.add.reduceat(signs, first)
        seconds = seconds * signs
    first_of_pairs = _firsts(keys // BINS)
    sums = np.add.reduceat(seconds, first_of_pairs)
    for found in _cut(keys[first], counts, keys[first_of_pairs] // BINS, sums, groups=count):
        if leased:
            _count_running(found)
        yield found


def count_lives(lives: Lives, known: tuple[float, float]) -> Iterator[SliceCounts]:
    """The same for short lives, whose times are each counted once; `known` is when their job was submitted and accepted."""
    groups = len(lives.groups)
    found: dict[int, tuple[dict[int, int], dict[int, float]]] = {}  # by slice and group, combined into one number
    if lives.began:
        at, places = _at_places(lives.began, lives.began_in, groups=groups)
        for place, count in _counts(places):
            found[place] = dict.fromkeys(_BEGINS, count), {}
        for states, since in _known_before(known):
            _count_times(
                found, places, at - since, [each * 16 + into for each in states for into in (_READY, _RUNNING)]
            )
    if lives.granted:
        at, places = _at_places(lives.granted, lives.granted_in, groups=groups)
        for place, count in _counts(places):
            found.setdefault(place, ({}, {}))[0][_ENDS] = count
        for states, since in _known_before(known):
            _count_times(found, places, at - since, [each * 16 + _DONE for each in states])
        began = np.fromiter(lives.granted_since, np.float64, len(lives.granted_since))
        _count_times(found, places, at - began, [_READY * 16 + _DONE, _RUNNING * 16 + _DONE])
    for place, (counts, sums) in found.items():
        number, group = divmod(place, groups)
        yield number, group, counts, sums


def _at_places(times: Sequence[float], groups_of: Sequence[int], *, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Times, and the slice and group of each, combined into one number."""
    at, group = np.fromiter(times, np.float64, len(times)), np.fromiter(groups_of, np.int64, len(times))
    return at, at.astype(np.int64) // FINE_SECONDS * groups + group


def _counts(places: np.ndarray) -> Iterator[tuple[int, int]]:
    """Each distinct number, and its count."""
    places = np.sort(places)
    first = _firsts(places)
    return zip(places[first].tolist(), _lengths(first, len(places)).tolist(), strict=True)


def _known_before(known: tuple[float, float]) -> list[tuple[tuple[int, ...], float]]:
    """The known entries of a job into states: mostly both at the same time, which is counted once."""
    submitted, accepted = known
    if submitted == accepted:
        return [((_SUBMITTED, _WAITING), submitted)] if submitted != NEVER else []
    return [((state,), at) for state, at in ((_SUBMITTED, submitted), (_WAITING, accepted)) if at != NEVER]


def _count_times(
    found: dict[int, tuple[dict[int, int], dict[int, float]]],
    places: np.ndarray,
    seconds: np.ndarray,
    pairs: Sequence[int],
) -> None:
    """Count times that are those between several pairs of states, each in its place."""
    keys = places * BINS + _bins(seconds)
    order = np.argsort(keys)
    keys = keys[order]
    first = _firsts(keys)
    counted = _lengths(first, len(keys)).tolist()
    codes = [pair * BINS for pair in pairs]
    where, bins = (each.tolist() for each in np.divmod(keys[first], BINS))
    for place, number, count in zip(where, bins, counted, strict=True):
        counts = found[place][0]
        for code in codes:
            counts[code + number] = count
    keys //= BINS
    first = _firsts(keys)
    totals = np.add.reduceat(seconds[order], first).tolist()
    for place, total in zip(keys[first].tolist(), totals, strict=True):
        if total:
            sums = found[place][1]
            for pair in pairs:
                sums[pair] = total


def _bins(seconds: np.ndarray) -> np.ndarray:
    """The bins of times; negligible times are set to zero."""
    tiny = seconds < SMALLEST
    seconds[tiny] = 1.0
    bins: np.ndarray = np.minimum(BINS - 1, (np.log(seconds) * PER_LOG + OFFSET).astype(np.int64))
    bins[tiny] = 0
    seconds[tiny] = 0.0
    return bins


def _count_running(found: SliceCounts) -> None:
    """Add RUNNING to counts made without it, since all entered it together with READY."""
    _, _, counts, sums = found
    for code, count in list(counts.items()):
        pair, bin_number = divmod(code, BINS)
        earlier, later = divmod(pair, 16)
        if later == _READY:
            counts[(earlier * 16 + _RUNNING) * BINS + bin_number] = count
            if earlier == ENTRY:
                counts[(_READY * 16 + _RUNNING) * BINS] = count
        elif earlier == _READY:
            counts[(_RUNNING * 16 + later) * BINS + bin_number] = count
    for pair, seconds in list(sums.items()):
        earlier, later = divmod(pair, 16)
        if later == _READY:
            sums[earlier * 16 + _RUNNING] = seconds
        elif earlier == _READY:
            sums[_RUNNING * 16 + later] = seconds


def _cut(
    keys: np.ndarray, counts: np.ndarray, pairs: np.ndarray, sums: np.ndarray, *, groups: int
) -> Iterator[SliceCounts]:
    """Split ordered counts and sums by slice and group."""
    timed = sums != 0.0
    pairs, sums = pairs[timed], sums[timed]
    places, codes = np.divmod(keys, _WIDTH)
    first = _firsts(places)
    found = places[first]
    at, numbers = codes.tolist(), counts.tolist()
    of_pairs, pair_codes, seconds = pairs // _PAIRS, (pairs % _PAIRS).tolist(), sums.tolist()
    ends = np.append(first[1:], len(keys)).tolist()
    pair_starts, pair_ends = (
        np.searchsorted(of_pairs, found).tolist(),
        np.searchsorted(of_pairs, found, "right").tolist(),
    )
    for place, start, end, low, high in zip(found.tolist(), first.tolist(), ends, pair_starts, pair_ends, strict=True):
        number, group = divmod(place, groups)
        counted = dict(zip(at[start:end], numbers[start:end], strict=True))
        yield number, group, counted, dict(zip(pair_codes[low:high], seconds[low:high], strict=True))


def _firsts(keys: np.ndarray) -> np.ndarray:
    """The first index of each value of an ordered array."""
    is_first = np.empty(len(keys), dtype=bool)
    is_first[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def _lengths(first: np.ndarray, count: int) -> np.ndarray:
    """The distances from each index to the next, and from the last to the end."""
    lengths = np.empty_like(first)
    np.subtract(first[1:], first[:-1], out=lengths[:-1])
    lengths[-1] = count - first[-1]
    return lengths


def _keys(at: np.ndarray, group: np.ndarray, codes: np.ndarray, *, count: int) -> np.ndarray:
    """The slice, group and code of each, combined into one number."""
    keys: np.ndarray = ((at // FINE_SECONDS).astype(np.int64) * count + group) * _WIDTH + codes
    return keys
