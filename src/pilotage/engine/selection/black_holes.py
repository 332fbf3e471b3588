"""Black holes: sites that fail fast look free and attract a whole job. The measure is failures per unit of slot time.

A node or a pilot with enough platform failures in a row is drained. A site is a black hole when most of its latest attempts
failed and other sites would have had far fewer failures in the same slot time: then it is hibernated, even if each failure
alone would be the application's fault. Failures that an activity has at all other sites too do not count: the program is at
fault then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from pilotage.engine.selection.rolling import WINDOW, microseconds
from pilotage.model.settings.engine import SelectionSettings
from pilotage.model.states import LossReason, Reason

# Which side is at fault when an attempt fails, as far as site selection is concerned.

Cause = Literal["success", "platform", "application", "neutral"]
"""How an attempt ended: success, by the fault of the platform or the application, or neutral (preempted, cancelled, no input)."""

CAUSES: Mapping[Reason | LossReason, Cause] = {
    "platform-failure": "platform",
    "credential-expired": "platform",
    "disk-full": "platform",
    "unheard": "platform",
    "pilot-killed": "platform",
    "preempted": "neutral",
    "rescheduled": "neutral",
    "dropped": "neutral",
    "outrun": "neutral",  # its queue time is scored separately
    "healed": "neutral",  # another attempt of its package was ahead
    "regrouped": "neutral",  # it had not begun
    "wall-time": "neutral",  # it asked for too little, or its pilot had too little left: no fault of the site
    "missing-input": "neutral",  # it would be missing everywhere
    "input-checksum": "neutral",
    "application-error": "application",
    "command-not-found": "application",  # a site without the command shows as a black hole if others have it
    "failure-pattern": "application",
    "looping": "application",
    "missing-output": "application",
    "out-of-memory": "application",
    "segmentation-fault": "application",
    "signal": "application",
}
"""The cause of each reason."""

_BY_NAME: dict[str, Cause] = {str(reason): cause for reason, cause in CAUSES.items()}


def cause_of(reason: str) -> Cause:
    """The cause of a reason; an unknown one was set by the package itself, so it is the application's fault."""
    return _BY_NAME.get(reason, "application")


NAMES_MAX = 256
"""How many pilots or nodes of a site have a failure count: those that failed latest."""


class FailureStreaks:
    """Consecutive platform failures, by name of a pilot or a node."""

    __slots__ = ("_streak", "counted")

    def __init__(self, settings: SelectionSettings) -> None:
        """Start without failures."""
        self._streak = settings.black_hole_streak
        self.counted: dict[str, int] = {}

    def ended(self, name: str, cause: Cause) -> bool:
        """Count the end of an attempt; returns whether to drain the pilot or node, once."""
        if not name or cause in ("application", "neutral"):
            return False
        if cause == "success":
            if not self.is_due(name):
                self.counted.pop(name, None)
            return False
        count = self.counted[name] = self.counted.pop(name, 0) + 1
        if len(self.counted) > NAMES_MAX:
            del self.counted[next(iter(self.counted))]
        return count == self._streak

    def is_due(self, name: str) -> bool:
        """Whether a pilot or node is to be drained; that holds until it is gone, even if attempts still succeed there."""
        return self.counted.get(name, 0) >= self._streak

    def mark_for_drain(self, name: str) -> None:
        """Mark a pilot or node for draining, whatever its count."""
        self.counted[name] = max(self._streak, self.counted.pop(name, 0))

    def put_on_trial(self, name: str) -> None:
        """The next attempt there is a canary: one more failure drains it again, a success clears it."""
        self.counted.pop(name, None)
        if self._streak > 1:
            self.counted[name] = self._streak - 1

    def counts(self) -> dict[str, int]:
        """All non-zero counts."""
        return dict(self.counted)

    def restore(self, counts: dict[str, int]) -> None:
        """Start with these counts."""
        self.counted = dict(counts)

    def forget(self, name: str) -> None:
        """Drop the count of a pilot or node that is gone."""
        self.counted.pop(name, None)


class Tally(msgspec.Struct, frozen=True, gc=False):
    """Failures, ends and slot time of one site or of all sites; whole numbers, times in microseconds."""

    failures: int = 0
    ends: int = 0
    taken: int = 0  # slot time of ended attempts
    running: int = 0
    began: int = 0  # sum of the start times of running attempts

    def slot_time(self, now: int) -> int:
        """Slot time of ended and of running attempts: a slow attempt that goes on is evidence too."""
        return self.taken + max(0, self.running * now - self.began)

    def changed(self, before: Tally, after: Tally) -> Tally:
        """The sum after one of its parts has changed."""
        return Tally(
            self.failures + after.failures - before.failures,
            self.ends + after.ends - before.ends,
            self.taken + after.taken - before.taken,
            self.running + after.running - before.running,
            self.began + after.began - before.began,
        )


NOTHING = Tally()


class AllSites:
    """All sites together: their number, and the sum of their tallies, computed on demand."""

    __slots__ = ("_stale", "_sum", "sites")

    def __init__(self) -> None:
        """Start without a site."""
        self.sites = 0
        self._sum = NOTHING
        self._stale: list[RecentEnds] = []  # sites that changed since the last query

    def note(self, ends: RecentEnds) -> None:
        """A site changed; called once until the next query."""
        self._stale.append(ends)

    def tally(self) -> Tally:
        """The current sum over all sites."""
        stale, self._stale = self._stale, []
        for ends in stale:
            before, after = ends.published, ends.publish()
            self._sum = self._sum.changed(before, after)
        return self._sum


class RecentEnds:
    """The latest ends of attempts at a site, and its running attempts.

    Attempts end all the time, but the result is rarely queried: only the necessary minimum is counted per end.
    """

    __slots__ = ("_began", "_everyone", "_failed", "_stale", "latest", "published", "running")

    def __init__(self, everyone: AllSites) -> None:
        """Start without attempts."""
        self._everyone = everyone
        self._stale = False  # the total holds an outdated tally of this site
        self.published = NOTHING  # the tally of this site in the total
        self.latest: deque[int] = deque(maxlen=WINDOW)  # slot time of each plus 1, negative for a failure
        self._failed: deque[str] = deque(maxlen=WINDOW)  # activities of failures, including some that left the window
        self.running = 0
        self._began = 0  # sum of the start times of running attempts

    def began(self, moment: int) -> None:
        """An attempt occupies a slot since a time in microseconds."""
        self.running += 1
        self._began += moment
        if not self._stale:
            self._note()

    def left(self, began_at: float) -> None:
        """An attempt leaves its slot."""
        if self.running:
            self.running -= 1
            self._began -= round(began_at * 1e6)
        if not self._stale:
            self._note()

    def recount(self, began_at: Iterable[float]) -> None:
        """Replace the running attempts by these start times."""
        times = [microseconds(each) for each in began_at]
        self.running, self._began = len(times), sum(times)
        self._note()

    def ended(self, seconds: float, *, failed: bool, activity: str = "") -> None:
        """Count the end of an attempt of an activity after this much slot time."""
        size = microseconds(max(0.0, seconds)) + 1
        self.latest.append(-size if failed else size)
        if failed:
            self._failed.append(activity)
        self._note()

    def succeeded(self, moment: int, seconds: float) -> None:
        """A successful attempt leaves the slot that it took then, in microseconds: `left` and `ended` in one."""
        if self.running:
            self.running -= 1
            self._began -= moment
        self.latest.append(round(seconds * 1e6) + 1 if seconds > 0.0 else 1)
        if not self._stale:
            self._note()

    def clear(self) -> None:
        """Forget the past: the site has proved that it works."""
        self.latest.clear()
        self._failed.clear()
        self._note()

    def failed(self) -> tuple[str, ...]:
        """Activities of the failures among the latest ends, where known, in order."""
        count = sum(number < 0 for number in self.latest)
        return tuple(self._failed)[-count:] if count else ()

    def restore(self, numbers: Iterable[int], failed: Iterable[str] = ()) -> None:
        """Restore the ends that `latest` and `failed` returned."""
        self.clear()
        self.latest.extend(numbers)
        self._failed.extend(failed)

    def remove(self) -> None:
        """Remove the site from the total: what still ends there no longer matters."""
        self.clear()
        self.recount(())
        self._everyone.tally()
        self._everyone = AllSites()

    def tally(self) -> Tally:
        """The tally of this site."""
        latest = self.latest
        failures = sum(number < 0 for number in latest)
        taken = sum(map(abs, latest)) - len(latest)
        return Tally(failures, len(latest), taken, self.running, self._began)

    def publish(self) -> Tally:
        """The tally of this site, which the total takes over."""
        self._stale = False
        self.published = self.tally()
        return self.published

    def _note(self) -> None:
        if not self._stale:
            self._stale = True
            self._everyone.note(self)

    def black_hole(
        self, now: float, settings: SelectionSettings, elsewhere_fails: Callable[[str], float] | None = None
    ) -> str:
        """Why the site is a black hole, in words; empty if it is none, or if that cannot be told.

        `elsewhere_fails` returns the share of an activity that fails at every other site, from 0 to 1: that share of the failures
        here is the program's fault.
        """
        own = self.tally()
        why = self._hole(now, settings, own, excused=0.0)
        if not why or elsewhere_fails is None:
            return why  # the usual case: the other sites need not be inspected
        excused = sum(count * elsewhere_fails(activity) for activity, count in Counter(self.failed()).items())
        return self._hole(now, settings, own, excused=excused) if excused else why

    def _hole(self, now: float, settings: SelectionSettings, own: Tally, *, excused: float) -> str:
        moment, failures, ends = microseconds(now), own.failures - excused, own.ends - excused
        if failures < settings.black_hole_failures or failures < settings.black_hole_share * ends:
            return ""
        everyone = self._everyone.tally()
        elsewhere = everyone.slot_time(moment) - own.slot_time(moment)
        if elsewhere <= 0:
            return ""  # without another site there is nothing to compare with
        # Add one failure elsewhere: with little slot time, no failures say little.
        rate = (everyone.failures - own.failures + 1) / elsewhere
        expected = rate * own.slot_time(moment)
        if failures <= settings.black_hole_factor * max(1.0, expected):
            return ""
        seconds, others = own.slot_time(moment) / 1e6, (everyone.failures - own.failures) / (elsewhere / 1e6)
        return (
            f"{own.failures} of its latest {own.ends} attempts failed in {seconds:.3g} s of slot time; "
            f"other sites have {others:.3g} failures per second of it"
        )
