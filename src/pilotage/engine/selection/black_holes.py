"""Places that fail fast look free and eat a whole job: what counts is failures per unit of time and slot.

A node or a pilot with so many platform failures in a row is to be drained. A site is a black hole when most of its latest ends
are failures and, in the slot time that they took, other sites would have had far fewer: then it sleeps, also where each of
the failures by itself would be the application's fault. Failures that the same activity has at all other sites too do not
count: the program is at fault then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from pilotage.engine.selection.rolling import WINDOW, microseconds
from pilotage.model.settings.engine import SelectionSettings
from pilotage.model.states import LossReason, Reason

# Whose fault the end of an attempt is, as far as the choice of a site cares.

Cause = Literal["success", "platform", "application", "nobody"]
"""How an attempt ended: well, by the fault of its place, by its own, or by nobody's (preempted, cancelled, no input)."""

CAUSES: Mapping[Reason | LossReason, Cause] = {
    "platform-failure": "platform",
    "credential-expired": "platform",
    "disk-full": "platform",
    "unheard": "platform",
    "pilot-killed": "platform",
    "preempted": "nobody",
    "rescheduled": "nobody",
    "dropped": "nobody",
    "outrun": "nobody",  # what its queue is worth is told by itself
    "wall-time": "nobody",  # it asked for too little, or its pilot had too little left: neither is the place's fault
    "missing-input": "nobody",  # it would be missing everywhere
    "input-checksum": "nobody",
    "application-error": "application",
    "command-not-found": "application",  # a site that lacks it shows as a black hole, where others have it
    "failure-pattern": "application",
    "looping": "application",
    "missing-output": "application",
    "out-of-memory": "application",
    "segmentation-fault": "application",
    "signal": "application",
}
"""The cause that each reason counts as."""

_BY_NAME: dict[str, Cause] = {str(reason): cause for reason, cause in CAUSES.items()}


def cause_of(reason: str) -> Cause:
    """The cause that a reason counts as; one that is not in the table is a package's own word, so its own fault."""
    return _BY_NAME.get(reason, "application")


NAMES_MAX = 256
"""Of so many pilots or nodes of a site it is counted what fails there in a row: those where something failed latest."""


class Streaks:
    """Platform failures in a row, by the name of a pilot or a node."""

    __slots__ = ("_streak", "counted")

    def __init__(self, settings: SelectionSettings) -> None:
        """Begin with none."""
        self._streak = settings.black_hole_streak
        self.counted: dict[str, int] = {}

    def ended(self, name: str, cause: Cause) -> bool:
        """An attempt ended there; whether the place is to be drained, which is said once."""
        if not name or cause in ("application", "nobody"):
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
        """Whether a place is to be drained; that is so until it is gone, whatever else still ends well there."""
        return self.counted.get(name, 0) >= self._streak

    def mark_for_drain(self, name: str) -> None:
        """A place is to be drained, whatever was counted there."""
        self.counted[name] = max(self._streak, self.counted.pop(name, 0))

    def put_on_trial(self, name: str) -> None:
        """What comes there next is a canary: one more failure, and the place is to be drained again; a success clears it."""
        self.counted.pop(name, None)
        if self._streak > 1:
            self.counted[name] = self._streak - 1

    def counts(self) -> dict[str, int]:
        """All that have some."""
        return dict(self.counted)

    def restore(self, counts: dict[str, int]) -> None:
        """Begin with these."""
        self.counted = dict(counts)

    def forget(self, name: str) -> None:
        """It is gone."""
        self.counted.pop(name, None)


class Tally(msgspec.Struct, frozen=True, gc=False):
    """Failures, ends and slot time, of one site or of all of them; whole numbers, times in microseconds."""

    failures: int = 0
    ends: int = 0
    taken: int = 0  # slot time of what ended
    running: int = 0
    began: int = 0  # the sum of when what runs began

    def slot_time(self, now: int) -> int:
        """The slot time of what ended and of what runs: a slow attempt that goes on is evidence too."""
        return self.taken + max(0, self.running * now - self.began)

    def changed(self, before: Tally, after: Tally) -> Tally:
        """The sum when one of its parts has changed."""
        return Tally(
            self.failures + after.failures - before.failures,
            self.ends + after.ends - before.ends,
            self.taken + after.taken - before.taken,
            self.running + after.running - before.running,
            self.began + after.began - before.began,
        )


NOTHING = Tally()


class AllSites:
    """All sites together: how many there are, and the sum of their tallies, which is made when somebody asks."""

    __slots__ = ("_stale", "_sum", "sites")

    def __init__(self) -> None:
        """Begin with none."""
        self.sites = 0
        self._sum = NOTHING
        self._stale: list[RecentEnds] = []  # where something happened since somebody asked

    def note(self, ends: RecentEnds) -> None:
        """Something happened at a site; told once until somebody asks."""
        self._stale.append(ends)

    def tally(self) -> Tally:
        """The sum of all, as things stand."""
        stale, self._stale = self._stale, []
        for ends in stale:
            before, after = ends.told, ends.tell()
            self._sum = self._sum.changed(before, after)
        return self._sum


class RecentEnds:
    """The latest ends of attempts at a site, and what runs there.

    Attempts end all the time and it is seldom asked what that comes to: only what must be is counted when one does.
    """

    __slots__ = ("_began", "_everyone", "_failed", "_stale", "latest", "running", "told")

    def __init__(self, everyone: AllSites) -> None:
        """Begin with none."""
        self._everyone = everyone
        self._stale = False  # all of them have another tally of it
        self.told = NOTHING  # the tally of it that all of them have
        self.latest: deque[int] = deque(maxlen=WINDOW)  # the slot time of each and 1 more, negative where it failed
        self._failed: deque[str] = deque(
            maxlen=WINDOW
        )  # the activities of what failed, also of what is no more among them
        self.running = 0
        self._began = 0  # the sum of when what runs began

    def began(self, moment: int) -> None:
        """An attempt takes a slot, at a time in microseconds."""
        self.running += 1
        self._began += moment
        if not self._stale:
            self._note()

    def left(self, began_at: float) -> None:
        """It leaves it."""
        if self.running:
            self.running -= 1
            self._began -= round(began_at * 1e6)
        if not self._stale:
            self._note()

    def recount(self, began_at: Iterable[float]) -> None:
        """These take slots, whatever was thought: since when each does."""
        times = [microseconds(each) for each in began_at]
        self.running, self._began = len(times), sum(times)
        self._note()

    def ended(self, seconds: float, *, failed: bool, activity: str = "") -> None:
        """An attempt of an activity ended, well or by somebody's fault, after so much time in its slot."""
        size = microseconds(max(0.0, seconds)) + 1
        self.latest.append(-size if failed else size)
        if failed:
            self._failed.append(activity)
        self._note()

    def succeeded(self, moment: int, seconds: float) -> None:
        """An attempt leaves the slot that it took then, in microseconds, and ended well: `left` and `ended` in one."""
        if self.running:
            self.running -= 1
            self._began -= moment
        self.latest.append(round(seconds * 1e6) + 1 if seconds > 0.0 else 1)
        if not self._stale:
            self._note()

    def clear(self) -> None:
        """What was is forgotten: the site has proved that it works."""
        self.latest.clear()
        self._failed.clear()
        self._note()

    def failed(self) -> tuple[str, ...]:
        """The activities of those among the latest ends that failed, where they are known, in their order."""
        count = sum(number < 0 for number in self.latest)
        return tuple(self._failed)[-count:] if count else ()

    def restore(self, numbers: Iterable[int], failed: Iterable[str] = ()) -> None:
        """Have these ends, as `latest` and `failed` gave them."""
        self.clear()
        self.latest.extend(numbers)
        self._failed.extend(failed)

    def remove(self) -> None:
        """The site goes, and all of this with it: what still ends there is nobody else's concern."""
        self.clear()
        self.recount(())
        self._everyone.tally()
        self._everyone = AllSites()

    def own(self) -> Tally:
        """What it comes to."""
        latest = self.latest
        failures = sum(number < 0 for number in latest)
        taken = sum(map(abs, latest)) - len(latest)
        return Tally(failures, len(latest), taken, self.running, self._began)

    def tell(self) -> Tally:
        """The same, which all of them take notice of."""
        self._stale = False
        self.told = self.own()
        return self.told

    def _note(self) -> None:
        if not self._stale:
            self._stale = True
            self._everyone.note(self)

    def black_hole(
        self, now: float, settings: SelectionSettings, elsewhere_fails: Callable[[str], float] | None = None
    ) -> str:
        """Why the site is a black hole, in words; nothing where it is none, or nobody can tell.

        `elsewhere_fails` gives how much of an activity fails at every other site, from 0 to 1: so much of what failed here
        is the program's fault.
        """
        own = self.own()
        why = self._hole(now, settings, own, excused=0.0)
        if not why or elsewhere_fails is None:
            return why  # most are none, and nobody need look at the other sites
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
        # One failure more than there was elsewhere: where little time was spent, none says little.
        rate = (everyone.failures - own.failures + 1) / elsewhere
        expected = rate * own.slot_time(moment)
        if failures <= settings.black_hole_factor * max(1.0, expected):
            return ""
        seconds, others = own.slot_time(moment) / 1e6, (everyone.failures - own.failures) / (elsewhere / 1e6)
        return (
            f"{own.failures} of its latest {own.ends} attempts failed in {seconds:.3g} s of slot time; "
            f"other sites show {others:.3g} failures in a second of it"
        )
