"""How bad incidents are: a degree from 0 to 1 for each kind, from counts and times (vip-execution-service, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def performance(seconds: float, other_seconds: float) -> float:
    """The performance coefficient p of one time beside another: 1/2 if they are equal, 0/0 too, and 1 if it is far longer."""
    both = seconds + other_seconds
    return seconds / both if both > 0.0 else 0.5  # vip-execution-service, eq. 1


def blocked_degree(coefficients: Iterable[float]) -> float:
    """The degree of a blocked activity from the coefficients of its packages."""
    return max(0.0, 2.0 * max(coefficients, default=0.5) - 1.0)  # vip-execution-service, eq. 1


def estimated_seconds(medians: Sequence[float], *, phase: int | None, before: float, elapsed: float) -> float:
    """The expected duration of a running attempt, phase by phase (vip-execution-service, figure 6).

    `phase` is the one that it told of, `before` what it took until then, and `elapsed` what it has spent in that phase. One that
    has told of no phase has no long one yet: then `elapsed` is its whole time, and it takes at least that.
    """
    if phase is None:
        return max(elapsed, sum(medians))
    return before + max(elapsed, medians[phase]) + sum(medians[phase + 1 :])


def seconds_until(coefficient: float, medians: Sequence[float], *, phase: int | None, before: float) -> float:
    """How long an attempt may stay in its phase until its coefficient is so high."""
    longest = sum(medians) * coefficient / (1.0 - coefficient)
    if phase is None:
        return longest
    return max(medians[phase], longest - before - sum(medians[phase + 1 :]))


def failing(*, uncured: int, ends: int) -> float:
    """The share of the attempts of an activity that failed, without those whose package succeeded later."""
    return uncured / ends if ends else 0.0


def unavailable(failures: int) -> float:
    """The degree for a file or store with so many failed transfers in a row; one may happen."""
    return 1.0 - 0.5 ** (failures - 1) if failures > 1 else 0.0


def unfairness(slowdowns: Sequence[float]) -> float:
    """The spread of the slowdowns of the jobs that wait: 0 if all are slowed down alike."""
    if len(slowdowns) < 2:
        return 0.0
    return 1.0 - min(slowdowns) / max(slowdowns) if max(slowdowns) > 0.0 else 0.0
