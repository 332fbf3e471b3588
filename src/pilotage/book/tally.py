"""Histograms of packages by state, kept for stages and jobs: each change of a package costs one step, never a count."""

from __future__ import annotations

from pilotage.book.rows import Counted, PackageFacts
from pilotage.book.settle import COUNTERS, DONE

Standing = tuple[str, int, int, int]
"""What a package counts as: its state, whether dropped, whether ever started, whether granted."""


def is_known(row: PackageFacts) -> bool:
    """Whether anything says that a package exists: a tag or a note alone may be about one that was never there."""
    return bool(row.shaped or row.attempts or row.epoch > 1 or row.keys)


def standing(row: PackageFacts) -> Standing | None:
    """What a package counts as now; one that nobody knows of does not count."""
    if not row.shaped and not is_known(row):
        return None
    return row.state, row.dropped, row.started, int(row.done_at is not None and row.state in (DONE, "CLEARED"))


def count(counts: Counted, what: Standing, by: int) -> None:
    """Add packages of a standing, or take them away."""
    state, dropped, started, succeeded = what
    if dropped:
        counts.dropped += by
        return
    name = COUNTERS[state]
    setattr(counts, name, getattr(counts, name) + by)
    if started:
        counts.started += by
    if succeeded:
        counts.succeeded += by


def total(counts: Counted) -> int:
    """How many packages count."""
    return sum(getattr(counts, name) for name in COUNTERS.values())


def untouched(counts: Counted) -> int:
    """How many packages nothing was heard of."""
    return counts.expected - counts.touched
