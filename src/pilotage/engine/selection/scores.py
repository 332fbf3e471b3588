"""The score of a site, and TScore, which follows from it (swift-site-selection, "Scoring mechanism").

The load of operations under way is counted apart from what was earned and multiplied when it is asked for: whatever happens
between, an operation that ended leaves nothing of its load behind, also where the score met its floor or was set to 0. (Swift's
own code returns the load of what ended well only, so every failure costs a site its load for ever.)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Literal

from pilotage.model.exchange.reports import Trouble
from pilotage.model.settings.engine import SelectionSettings

Operation = Literal["submission", "transfer", "file-operation"]
"""What is scored besides attempts."""


def tscore(score: float, settings: SelectionSettings) -> float:
    """Between 1 / scoreHighCap and scoreHighCap, 1 where the score is 0."""
    exponent = settings.tscore_b * math.log(settings.score_high_cap) / math.pi * math.atan(settings.tscore_c * score)
    return math.exp(exponent)


def submission_delta(seconds: float, settings: SelectionSettings) -> float:
    """What the time of a submission adds: submissionTimeBias + submissionTimeFactor · seconds."""
    factor = settings.submission_factor
    return -settings.submission_seconds_base * factor + factor * seconds


GRADES = 32
"""Weight and room follow from TScore in steps, so many for each factor of e: they change only where it matters, by 3 %."""


def graded(grade: int) -> float:
    """The TScore of a grade."""
    return math.exp(grade / GRADES)


class Steps:
    """Where grades begin: the first one, and the score from which on each of the following is given."""

    __slots__ = ("begin", "first")

    def __init__(self, settings: SelectionSettings) -> None:
        """As TScore follows from the score."""
        scale = GRADES * settings.tscore_b * math.log(settings.score_high_cap) / math.pi
        self.first = round(scale * math.atan(settings.tscore_c * settings.score_floor))
        last = round(scale * math.atan(settings.tscore_c * settings.score_ceiling))
        self.begin = [math.tan((grade - 0.5) / scale) / settings.tscore_c for grade in range(self.first + 1, last + 1)]


_STEPS: dict[tuple[float, ...], Steps] = {}  # by the settings that they follow from


def _steps_of(settings: SelectionSettings) -> Steps:
    key = (settings.tscore_b, settings.tscore_c, settings.score_high_cap, settings.score_floor, settings.score_ceiling)
    found = _STEPS.get(key)
    if found is None:
        found = _STEPS[key] = Steps(settings)
    return found


class Score:
    """One site's score: what it earned, within floor and ceiling, and the load of what is under way."""

    __slots__ = ("_above", "_below", "_earned", "_loads", "_settings", "_steps", "_underway", "known_grade")

    def __init__(self, settings: SelectionSettings, earned: float) -> None:
        """Begin with an initial score and nothing under way."""
        self._settings = settings
        self._loads = 0  # operations under way, of whatever kind
        self._steps = _steps_of(settings)
        self._underway: dict[Operation, int] = {"submission": 0, "transfer": 0, "file-operation": 0}
        self._earned = self._bounded(earned)
        self.known_grade: int | None = None  # the grade, unless it may have changed since it was last asked for
        self._above = (
            self._below
        ) = -math.inf  # the grade stays as long as what was earned is from the one up to the other

    @property
    def earned(self) -> float:
        """The score without the load of what is under way."""
        return self._earned

    @property
    def load(self) -> float:
        """Of what is under way."""
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
        """What weight and room follow from."""
        return tscore(self.value, self._settings)

    @property
    def grade(self) -> int:
        """TScore as a grade, which follows from the score alone."""
        grade = self.known_grade
        if grade is None:
            found = bisect_right(self._steps.begin, self.value if self._loads else self._earned)
            grade = self.known_grade = self._steps.first + found
            self._above = self._steps.begin[found - 1] if found else -math.inf
            self._below = self._steps.begin[found] if found < len(self._steps.begin) else math.inf
            if self._loads:  # it does not follow from what was earned alone: whatever is earned, it is looked up again
                self._below = -math.inf
        return grade

    def grade_with(self, earned: float) -> int:
        """The grade as it would be if it had earned something else."""
        score = self._bounded(self._bounded(earned) + self.load)
        return self._steps.first + bisect_right(self._steps.begin, score)

    def underway(self, operation: Operation) -> int:
        """How many of an operation are under way."""
        return self._underway[operation]

    def reset(self, earned: float) -> None:
        """Begin anew, as hibernating and waking do; what is under way stays."""
        self._earned = self._bounded(earned)
        self.known_grade = None

    def dropped(self, operation: Operation) -> None:
        """Nobody will hear how an operation ended: its load is returned, and that is all."""
        self.recount(operation, self._underway[operation] - 1)

    def recount(self, operation: Operation, count: int) -> None:
        """So many are under way, whatever was thought."""
        count = max(0, count)
        self._loads += count - self._underway[operation]
        self._underway[operation] = count
        self.known_grade = None

    def began(self, operation: Operation) -> None:
        """Take the load of an operation that begins."""
        self.recount(operation, self._underway[operation] + 1)

    def ended(self, operation: Operation, trouble: Trouble | None = None) -> None:
        """Return its load; and what its end is worth."""
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
        """A submission took so long."""
        self._add(submission_delta(seconds, self._settings))

    def succeeded(self) -> None:
        """An operation or an attempt ended well."""
        settings = self._settings
        earned = self._earned + settings.success
        if earned > settings.score_ceiling:
            earned = settings.score_ceiling
        self._earned = earned
        if earned >= self._below:
            self.known_grade = None

    def failed(self) -> None:
        """One did not."""
        self._add(self._settings.failure)

    def outqueued(self) -> None:
        """A replica elsewhere began to run that had waited for less time."""
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
