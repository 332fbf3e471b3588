"""The score of a site, and TScore, which follows from it (swift-site-selection, "Scoring mechanism").

The load of active operations is kept apart from the earned score and multiplied in on demand: an ended operation leaves
nothing of its load behind, even if the score met its floor or was reset. (Swift's own code returns only the load of
successful operations, so every failure costs a site its load for ever.)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Literal

from pilotage.model.exchange.reports import Trouble
from pilotage.model.settings.engine import SelectionSettings

Operation = Literal["submission", "transfer", "file-operation"]
"""Scored operations besides attempts."""


def tscore(score: float, settings: SelectionSettings) -> float:
    """A value between 1 / scoreHighCap and scoreHighCap; 1 for a score of 0."""
    exponent = settings.tscore_b * math.log(settings.score_high_cap) / math.pi * math.atan(settings.tscore_c * score)
    return math.exp(exponent)


def submission_delta(seconds: float, settings: SelectionSettings) -> float:
    """What the duration of a submission adds: submissionTimeBias + submissionTimeFactor · seconds."""
    factor = settings.submission_factor
    return -settings.submission_seconds_base * factor + factor * seconds


GRADES = 32
"""Steps per factor of e: weight and room follow TScore in steps of 3 %, so they change only where it matters."""


def graded(grade: int) -> float:
    """The TScore of a grade."""
    return math.exp(grade / GRADES)


class Steps:
    """Bounds of the grades: the first grade, and the score at which each further one begins."""

    __slots__ = ("begin", "first")

    def __init__(self, settings: SelectionSettings) -> None:
        """Derive the bounds from the settings of TScore."""
        scale = GRADES * settings.tscore_b * math.log(settings.score_high_cap) / math.pi
        self.first = round(scale * math.atan(settings.tscore_c * settings.score_floor))
        last = round(scale * math.atan(settings.tscore_c * settings.score_ceiling))
        self.begin = [math.tan((grade - 0.5) / scale) / settings.tscore_c for grade in range(self.first + 1, last + 1)]


_STEPS: dict[tuple[float, ...], Steps] = {}  # by the settings they derive from


def _steps_of(settings: SelectionSettings) -> Steps:
    key = (settings.tscore_b, settings.tscore_c, settings.score_high_cap, settings.score_floor, settings.score_ceiling)
    found = _STEPS.get(key)
    if found is None:
        found = _STEPS[key] = Steps(settings)
    return found


class Score:
    """The score of a site: what it earned, within floor and ceiling, and the load of active operations."""

    __slots__ = ("_above", "_below", "_earned", "_loads", "_settings", "_steps", "_underway", "known_grade")

    def __init__(self, settings: SelectionSettings, earned: float) -> None:
        """Start with an initial score and no load."""
        self._settings = settings
        self._loads = 0  # active operations of any kind
        self._steps = _steps_of(settings)
        self._underway: dict[Operation, int] = {"submission": 0, "transfer": 0, "file-operation": 0}
        self._earned = self._bounded(earned)
        self.known_grade: int | None = None  # the grade, unless it may have changed since
        self._above = self._below = -math.inf  # the grade holds while the earned score is within these bounds

    @property
    def earned(self) -> float:
        """The score without load."""
        return self._earned

    @property
    def load(self) -> float:
        """The load of active operations."""
        count, settings = self._underway, self._settings
        return (
            count["submission"] * settings.job_submission_load
            + count["transfer"] * settings.transfer_load
            + count["file-operation"] * settings.file_operation_load
        )

    @property
    def value(self) -> float:
        """The score."""
        return self._bounded(self._earned + self.load)

    @property
    def tscore(self) -> float:
        """The TScore, the base of weight and room."""
        return tscore(self.value, self._settings)

    @property
    def grade(self) -> int:
        """TScore as a grade, from the score alone."""
        grade = self.known_grade
        if grade is None:
            found = bisect_right(self._steps.begin, self.value if self._loads else self._earned)
            grade = self.known_grade = self._steps.first + found
            self._above = self._steps.begin[found - 1] if found else -math.inf
            self._below = self._steps.begin[found] if found < len(self._steps.begin) else math.inf
            if self._loads:  # with load, the grade does not follow from the earned score alone: look it up every time
                self._below = -math.inf
        return grade

    def grade_with(self, earned: float) -> int:
        """The grade with another earned score."""
        score = self._bounded(self._bounded(earned) + self.load)
        return self._steps.first + bisect_right(self._steps.begin, score)

    def underway(self, operation: Operation) -> int:
        """How many operations of a kind are active."""
        return self._underway[operation]

    def reset(self, earned: float) -> None:
        """Start anew, as on hibernation and waking; active operations stay."""
        self._earned = self._bounded(earned)
        self.known_grade = None

    def dropped(self, operation: Operation) -> None:
        """Return the load of an operation whose end will not be known."""
        self.recount(operation, self._underway[operation] - 1)

    def recount(self, operation: Operation, count: int) -> None:
        """Set the number of active operations of a kind."""
        count = max(0, count)
        self._loads += count - self._underway[operation]
        self._underway[operation] = count
        self.known_grade = None

    def began(self, operation: Operation) -> None:
        """Add the load of an operation that starts."""
        self.recount(operation, self._underway[operation] + 1)

    def ended(self, operation: Operation, trouble: Trouble | None = None) -> None:
        """Return the load of an operation, and score its end."""
        self.recount(operation, self._underway[operation] - 1)
        if trouble is None:
            self.succeeded()
            return
        self.failed()
        if trouble == "connection-refused":
            self._add(self._settings.connection_refused)
        elif trouble == "connection-timed-out":
            self._add(self._settings.connection_timed_out)

    def submitted(self, seconds: float) -> None:
        """Score a submission by its duration."""
        self._add(submission_delta(seconds, self._settings))

    def succeeded(self) -> None:
        """Score a successful operation or attempt."""
        settings = self._settings
        earned = self._earned + settings.success
        if earned > settings.score_ceiling:
            earned = settings.score_ceiling
        self._earned = earned
        if earned >= self._below:
            self.known_grade = None

    def failed(self) -> None:
        """Score a failure."""
        self._add(self._settings.failure)

    def outqueued(self) -> None:
        """Score a defeat: a replica elsewhere started after a shorter wait."""
        self._add(self._settings.queue_time_factor)

    def _add(self, amount: float) -> None:
        earned = self._earned + amount
        settings = self._settings
        if earned > settings.score_ceiling:
            earned = settings.score_ceiling
        elif earned < settings.score_floor:
            earned = settings.score_floor
        self._earned = earned
        if not self._above <= earned < self._below:
            self.known_grade = None

    def _bounded(self, score: float) -> float:
        return min(self._settings.score_ceiling, max(self._settings.score_floor, score))
