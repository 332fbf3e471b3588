"""Thompson sampling: picks a site as often as it is believed to be the fastest for an activity.

There are two beliefs for each site and activity. The probability of success: a beta distribution over successes and
failures. The rate of successes: a gamma distribution over their number and the time of all attempts, from hand-over to end.
An active attempt counts with its age so far and without an end, as censored evidence does at a constant rate: a site with
an endless queue looks worse with every minute. So does one that failed; a site that fails at once therefore never looks
fast. Evidence loses half of its weight in each half-life, so that the beliefs follow drift. A draw from both beliefs,
multiplied, is a number of successes per second; the largest wins. An unknown site is assumed to take as long as those it
is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from pilotage.engine.selection.rolling import microseconds
from pilotage.engine.selection.sampling import Draws
from pilotage.model.settings.engine import SelectionSettings

_FRESH = 1 / 1024
"""Evidence younger than this part of a half-life counts as new: it loses less than a thousandth, which saves most powers."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence of an activity at a site, as of a time; times in seconds."""

    activity: str
    successes: float = 0.0
    failures: float = 0.0
    seconds: float = 0.0
    at: float = 0.0


class Arm:
    """An activity at a site: its evidence, and its active attempts."""

    __slots__ = ("_activity", "_at", "_failures", "_seconds", "_since", "_successes", "_underway")

    def __init__(self, evidence: Evidence) -> None:
        """Start with this evidence."""
        self._activity = evidence.activity
        self._successes = evidence.successes
        self._failures = evidence.failures
        self._seconds = evidence.seconds
        self._at = evidence.at
        self._underway = 0
        self._since = 0  # sum of the hand-over times of active attempts, in microseconds

    @property
    def evidence(self) -> Evidence:
        """The current evidence."""
        return Evidence(
            activity=self._activity,
            successes=self._successes,
            failures=self._failures,
            seconds=self._seconds,
            at=self._at,
        )

    def began(self, moment: int) -> None:
        """An attempt was handed over, at a time in microseconds."""
        self._underway += 1
        self._since += moment

    def left(self, created_at: float) -> None:
        """An attempt is over or given up."""
        if self._underway:
            self._underway -= 1
            self._since -= microseconds(created_at)

    def recount(self, created_at: Iterable[float]) -> None:
        """Replace the active attempts by these hand-over times."""
        times = [microseconds(each) for each in created_at]
        self._underway, self._since = len(times), sum(times)

    @property
    def underway(self) -> int:
        """How many attempts are active."""
        return self._underway

    def ended(self, now: float, seconds: float, *, succeeded: bool, half_life: float) -> None:
        """Record the end of an attempt, `seconds` after its hand-over."""
        age = now - self._at
        if age > half_life * _FRESH:
            share = math.pow(0.5, age / half_life)
            self._successes *= share
            self._failures *= share
            self._seconds *= share
            self._at = now
        if succeeded:
            self._successes += 1.0
        else:
            self._failures += 1.0
        if seconds > 0.0:
            self._seconds += seconds

    def succeeded(self, created_at: float, moment: int, now: float, half_life: float) -> None:
        """A success of an attempt with this hand-over time, also in microseconds: `left` and `ended` in one."""
        if self._underway:
            self._underway -= 1
            self._since -= moment
        if now - self._at > half_life * _FRESH:
            self.ended(now, now - created_at, succeeded=True, half_life=half_life)
            return
        self._successes += 1.0
        if now > created_at:
            self._seconds += now - created_at

    def figures(self, now: float, half_life: float) -> tuple[float, float, float]:
        """Current successes, failures and seconds, including the age of active attempts."""
        age = now - self._at
        seconds = self._seconds
        if self._underway and (censored := self._underway * round(now * 1e6) - self._since) > 0:
            aged = censored / 1e6
        else:
            aged = 0.0
        if age <= half_life * _FRESH:
            return self._successes, self._failures, seconds + aged
        share = math.pow(0.5, age / half_life)
        return self._successes * share, self._failures * share, seconds * share + aged


def sample(arms: Sequence[Arm], now: float, draws: Draws, settings: SelectionSettings) -> int:
    """The position of the chosen site among those compared."""
    figures = [arm.figures(now, settings.thompson_half_life_seconds) for arm in arms]
    # Time for a success at the compared sites: the assumption for an unknown one.
    taken = settings.thompson_prior_seconds + sum(seconds for _, _, seconds in figures)
    prior = taken / (1.0 + sum(successes for successes, _, _ in figures))
    normals = draws.normals(len(figures))
    drawn = [
        log_rate(successes, failures, prior + seconds, normal)
        for (successes, failures, seconds), normal in zip(figures, normals, strict=True)
    ]
    return drawn.index(max(drawn))


def is_quicker(one: Arm, other: Arm, now: float, draw: float, settings: SelectionSettings) -> bool:
    """Whether the first of two is chosen, as by `sample`: the difference of two normal numbers is normal, and one draw gives its sign."""
    half_life = settings.thompson_half_life_seconds
    successes, failures, seconds = one.figures(now, half_life)
    other_successes, other_failures, other_seconds = other.figures(now, half_life)
    prior = (settings.thompson_prior_seconds + seconds + other_seconds) / (1.0 + successes + other_successes)
    # As in `log_rate`, with both logarithms as one, and each term as a reciprocal.
    good, both = 1.0 + successes, 2.0 + successes + failures
    other_good, other_both = 1.0 + other_successes, 2.0 + other_successes + other_failures
    ratio = good * good * other_both * (prior + other_seconds) / (other_good * other_good * both * (prior + seconds))
    by_good, by_both, by_other_good, by_other_both = 1.0 / good, 1.0 / both, 1.0 / other_good, 1.0 / other_both
    shift = by_good * (12.0 + 2.0 * by_good) - by_both * (6.0 + by_both)
    shift = shift - by_other_good * (12.0 + 2.0 * by_other_good) + by_other_both * (6.0 + by_other_both)
    mean = math.log(ratio) - shift / 12.0
    variance = by_good * (12.0 + by_good * (6.0 + 2.0 * by_good)) - by_both * (6.0 + by_both * (3.0 + by_both))
    variance += by_other_good * (12.0 + by_other_good * (6.0 + 2.0 * by_other_good)) - by_other_both * (
        6.0 + by_other_both * (3.0 + by_other_both)
    )
    return draw < 0.5 * math.erfc(-mean / math.sqrt(variance / 3.0))


def log_rate(successes: float, failures: float, seconds: float, normal: float) -> float:
    """The logarithm of successes per second, drawn from both beliefs at once.

    Both logarithms are drawn as one normal number with the mean and the variance of their sum: digamma and trigamma of
    the shapes, whose first series terms are accurate enough from 1 on.
    """
    good, all_of_them = 1.0 + successes, 2.0 + successes + failures
    # beta(good, bad) is gamma(good) / gamma(all) in distribution; its mean and variance of logarithms likewise.
    mean = 2.0 * (math.log(good) - (6.0 * good + 1.0) / (12.0 * good * good))
    mean -= math.log(all_of_them) - (6.0 * all_of_them + 1.0) / (12.0 * all_of_them * all_of_them)
    variance = 2.0 * _trigamma(good) - _trigamma(all_of_them)
    return mean - math.log(seconds) + math.sqrt(variance) * normal


def _trigamma(shape: float) -> float:
    return (1.0 + (0.5 + 1.0 / (6.0 * shape)) / shape) / shape


_NOBODYS = Arm(Evidence(activity=""))


class Arms:
    """The most recently used activities of a site."""

    __slots__ = ("_arms", "_settings", "latest", "latest_name")

    def __init__(self, settings: SelectionSettings, known: Iterable[Evidence] = ()) -> None:
        """Start with this evidence, the least recently used first."""
        self._settings = settings
        self._arms = {each.activity: Arm(each) for each in known}
        self.latest = _NOBODYS  # the most recently used one, named by `latest_name`; None: unknown
        self.latest_name: str | None = None

    def of(self, activity: str) -> Arm:
        """The arm of an activity, which becomes the most recently used."""
        if activity == self.latest_name:
            return self.latest
        arm = self._arms.pop(activity, None)
        if arm is None:
            arm = Arm(Evidence(activity=activity))
            self._forget_one()
        self._arms[activity] = self.latest = arm
        self.latest_name = activity
        return arm

    def peek(self, activity: str) -> Arm:
        """The arm of an activity, without marking it as used."""
        return self._arms.get(activity) or Arm(Evidence(activity=activity))

    def _forget_one(self) -> None:
        if len(self._arms) < self._settings.thompson_activities_max:
            return
        idle = next((name for name, arm in self._arms.items() if not arm.underway), None)
        if idle is not None:
            del self._arms[idle]

    def evidence(self) -> tuple[Evidence, ...]:
        """All evidence, the least recently used first."""
        return tuple(arm.evidence for arm in self._arms.values())

    def recount(self, underway: Iterable[tuple[str, float]]) -> None:
        """Set the active attempts: activity and hand-over time of each."""
        self.latest_name = None
        times: dict[str, list[float]] = {name: [] for name in self._arms}
        for activity, created_at in underway:
            times.setdefault(activity, []).append(created_at)
        for activity, created in times.items():
            if created and activity not in self._arms:
                self._arms[activity] = Arm(Evidence(activity=activity))
            if activity in self._arms:
                self._arms[activity].recount(created)
