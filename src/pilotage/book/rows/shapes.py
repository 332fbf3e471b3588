"""The packages of a stage's shape, and the activity of each."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate

import msgspec

from pilotage.book.rows.derived_states import COUNTERS, DONE
from pilotage.book.rows.rows import PackageFacts, StateHistogram
from pilotage.model.events.payloads import StageShape
from pilotage.model.jobs.layout import PackageId, StageLayout, TemplateLayout

_decoder = msgspec.json.Decoder(StageShape)


class Shape:
    """The packages of one stage."""

    __slots__ = ("_activities", "_layout", "_line_ends", "_line_period", "_lines", "count", "late", "shape")

    def __init__(self, shape: StageShape, *, stage: int) -> None:
        """Lay the stage out; stores nothing per package."""
        self.shape = shape
        self.late = shape.late
        templates = [TemplateLayout(lines=each.lines, packages=len(each.activities)) for each in shape.templates]
        self._layout = StageLayout(stage=stage, first=0, items=shape.items, templates=templates)
        self._line_period = self._layout.line_period
        self._line_ends = list(accumulate(each.lines for each in shape.templates))
        self.count = 0 if shape.late else self._layout.count
        self._lines = shape.lines
        # Most stages have one template: then the activity does not depend on the line.
        self._activities = shape.templates[0].activities if len(shape.templates) == 1 and not shape.late else None

    def activity(self, line: int, number: int) -> str | None:
        """The activity of a package by its line and number; None if the stage has no such package."""
        only = self._activities
        if only is not None:
            return only[number - 1] if 1 <= number <= len(only) and 1 <= line <= self._lines else None
        if self.late or not self._line_period:
            return None
        item, rest = divmod(line - 1, self._line_period)
        if item >= self.shape.items or line < 1:
            return None
        at = 0 if len(self._line_ends) == 1 else bisect.bisect_right(self._line_ends, rest)
        activities = self.shape.templates[at].activities
        return activities[number - 1] if 1 <= number <= len(activities) else None

    def line_length(self, line: int) -> int:
        """Number of packages in a line; 0 if there is no such line."""
        count = 0
        while self.activity(line, count + 1) is not None:
            count += 1
        return count

    def activities(self) -> Iterator[tuple[str, int]]:
        """Each activity of the stage, and its number of packages."""
        if self.late:
            return
        counts: Counter[str] = Counter()
        for template in self.shape.templates:
            for activity in template.activities:
                counts[activity] += self.shape.items * template.lines
        yield from ((activity, count) for activity, count in sorted(counts.items()) if count)

    def after(self, package: PackageId | None) -> Iterator[PackageId]:
        """The packages of the stage in order, after one of them or from the first.

        A package that the stage does not have sorts by its line and number.
        """
        if not self.count:
            return
        start = 0
        if package is not None:
            low, high = 0, self.count
            while low < high:
                middle = (low + high) // 2
                if self._layout.id(middle) <= package:
                    low = middle + 1
                else:
                    high = middle
            start = low
        for number in range(start, self.count):
            yield self._layout.id(number)


@lru_cache(maxsize=1024)
def shape_of(text: str, *, stage: int) -> Shape:
    """The shape in a stage's row."""
    return Shape(_decoder.decode(text), stage=stage)


# Histograms of packages by state, for stages and jobs: each change of a package is one update, never a recount.

CountedAs = tuple[str, int, int, int]
"""How a package counts: its state, whether dropped, whether ever started, whether granted."""


def is_known(row: PackageFacts) -> bool:
    """Tell whether a package certainly exists: a tag or a note alone may be about a package that does not."""
    return bool(row.shaped or row.attempts or row.epoch > 1 or row.keys)


def counted_as(row: PackageFacts) -> CountedAs | None:
    """How a package counts now; None if it is not known to exist."""
    if not row.shaped and not is_known(row):
        return None
    return row.state, row.dropped, row.started, int(row.done_at is not None and row.state in (DONE, "CLEARED"))


def count(counts: StateHistogram, what: CountedAs, by: int) -> None:
    """Add or subtract packages in a histogram."""
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


def total(counts: StateHistogram) -> int:
    """Number of counted packages."""
    return sum(getattr(counts, name) for name in COUNTERS.values())


def untouched(counts: StateHistogram) -> int:
    """Number of packages without events."""
    return counts.expected - counts.touched
