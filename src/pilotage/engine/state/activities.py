"""The activities of a job: equal failures of each since it was opened, and those that were stopped because of them."""

from __future__ import annotations

import math

import msgspec

from pilotage.engine.retry.policy import Failure, signature
from pilotage.engine.retry.rules import row_of

PACKAGES_MIN = 5
"""Packages that must have failed in the same way: fewer may have an error of their own."""
_SITES_MAX = 2  # that are remembered: more say nothing new
_SIGNATURES_MAX = 100  # of an activity: the latest


class StoppedActivity(msgspec.Struct, frozen=True, kw_only=True):
    """An activity that was stopped: after how many failed attempts of how many packages, and why."""

    operation: int
    at: float
    failed_attempts: int = 0
    failed_packages: int = 0
    message: str = ""


class EqualFailures:
    """Attempts of an activity that failed in the same way since it was opened."""

    __slots__ = ("ask_at", "attempts", "longest_seconds", "packages", "sample", "sites")

    def __init__(self, sample: Failure) -> None:
        """None was counted yet."""
        self.attempts = 0
        self.packages: set[int] = set()
        self.sites: set[str] = set()
        self.longest_seconds = 0.0
        self.sample = sample
        self.ask_at = 0  # so many attempts may stop it at the earliest: before, too many others run

    def add(self, number: int, failure: Failure, seconds: float) -> None:
        """One more attempt, of a package, failed after so long."""
        self.attempts += 1
        self.packages.add(number)
        if len(self.sites) < _SITES_MAX:
            self.sites.add(failure.site)
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.sample = failure


class Activities:
    """What is known of the activities of a job, by name."""

    __slots__ = ("_failures", "_opened_at", "_succeeded", "stopped")

    def __init__(self) -> None:
        """All are open."""
        self.stopped: dict[str, StoppedActivity] = {}
        self._opened_at: dict[str, float] = {}  # of those that were opened again
        self._succeeded: set[str] = set()
        self._failures: dict[str, dict[str, EqualFailures]] = {}

    def succeeded(self, activity: str) -> None:
        """An attempt of it succeeded: it can, and its failures are not counted until it is opened again."""
        if activity not in self._succeeded:
            self._succeeded.add(activity)
            self._failures.pop(activity, None)

    def failed(self, activity: str, number: int, failure: Failure, seconds: float) -> EqualFailures | None:
        """An attempt of a package failed: the failures that are equal; None if this one says nothing of the activity."""
        if activity in self._succeeded or not is_of_application(failure.reason):
            return None
        known = self._failures.setdefault(activity, {})
        mark = signature(failure)
        found = known.pop(mark, None) or EqualFailures(failure)
        known[mark] = found
        while len(known) > _SIGNATURES_MAX:
            del known[next(iter(known))]
        found.add(number, failure, seconds)
        return found

    def most_equal(self, activity: str) -> EqualFailures | None:
        """The failures of an activity that are equal most often; None without any, or after a success."""
        known = self._failures.get(activity)
        return max(known.values(), key=lambda each: each.attempts) if known else None

    @property
    def names(self) -> list[str]:
        """The activities of which attempts failed, and none succeeded."""
        return list(self._failures)

    def opened_at(self, activity: str) -> float:
        """When an activity was last opened again; never: before all times."""
        return self._opened_at.get(activity, -math.inf)

    def stop(self, activity: str, stopped: StoppedActivity) -> None:
        """Stop an activity."""
        self.stopped[activity] = stopped

    def reopen(self, activity: str, at: float) -> None:
        """Open an activity again: all counts start anew."""
        self.stopped.pop(activity, None)
        self._opened_at[activity] = at
        self._succeeded.discard(activity)
        self._failures.pop(activity, None)


_APPLICATION = frozenset(("application_errors_max", "commands_not_found_max"))  # the budgets of its reasons


def is_of_application(reason: str) -> bool:
    """Whether a failure for this reason is the program's: neither site nor platform, nor cured by more time or memory."""
    return row_of(reason)[1].budget in _APPLICATION
