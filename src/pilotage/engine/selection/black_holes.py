"""Places that fail fast look free and eat a whole job: what counts is failures per unit of time and slot.

A node or a pilot with so many platform failures in a row is to be drained. A site is a black hole when most of its latest ends
are failures and, in the slot time that they took, other sites would have had far fewer: then it sleeps, also where each of
the failures by itself would be the application's fault.
"""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.engine.selection.causes import Cause
from pilotage.engine.selection.settings import SelectionSettings
from pilotage.engine.selection.windows import Window, microseconds

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
            self.counted.pop(name, None)
            return False
        count = self.counted[name] = self.counted.pop(name, 0) + 1
        if len(self.counted) > NAMES_MAX:
            del self.counted[next(iter(self.counted))]
        return count == self._streak

    def count(self, name: str) -> int:
        """How many in a row there were."""
        return self.counted.get(name, 0)

    def counts(self) -> dict[str, int]:
        """All that have some."""
        return dict(self.counted)

    def restore(self, counts: dict[str, int]) -> None:
        """Begin with these."""
        self.counted = dict(counts)

    def forget(self, name: str) -> None:
        """It is gone."""
        self.counted.pop(name, None)


class Tally:
    """Failures, ends and slot time, of one site or of all of them; whole numbers, times in microseconds."""

    __slots__ = ("began", "ends", "failures", "running", "sites", "taken")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.sites = 0
        self.failures = 0
        self.ends = 0
        self.taken = 0  # slot time of what ended
        self.running = 0
        self.began = 0  # the sum of when what runs began

    def slot_time(self, now: int) -> int:
        """The slot time of what ended and of what runs: a slow attempt that goes on is evidence too."""
        return self.taken + max(0, self.running * now - self.began)


class Ends:
    """The latest ends of attempts at a site, which are counted for the site and for all of them together."""

    __slots__ = ("_everyone", "own", "window")

    def __init__(self, everyone: Tally) -> None:
        """Begin with none."""
        self._everyone = everyone
        self.own = Tally()
        self.window = Window()  # the slot time of each end and 1 more, negative where it failed

    def began(self, at: float) -> None:
        """An attempt takes a slot."""
        self._run(1, microseconds(at))

    def left(self, began_at: float) -> None:
        """It leaves it."""
        if self.own.running:
            self._run(-1, microseconds(began_at))

    def recount(self, began_at: Iterable[float]) -> None:
        """These take slots, whatever was thought: since when each does."""
        times = [microseconds(each) for each in began_at]
        for tally in (self._everyone, self.own):
            tally.running += len(times) - self.own.running
            tally.began += sum(times) - self.own.began

    def ended(self, seconds: float, *, failed: bool) -> None:
        """An attempt ended, well or by somebody's fault, after so much time in its slot."""
        size = microseconds(max(0.0, seconds)) + 1
        self._push(-size if failed else size)

    def succeeded(self, began_at: float, at: float) -> None:
        """An attempt leaves its slot, and ended well: `left` and `ended` in one."""
        everyone, own, began = self._everyone, self.own, microseconds(began_at)
        if own.running:
            everyone.running -= 1
            own.running -= 1
            everyone.began -= began
            own.began -= began
        self._push(microseconds(max(0.0, at - began_at)) + 1)

    def clear(self) -> None:
        """What was is forgotten: the site has proved that it works."""
        for number in self.window.numbers():
            self._count(number, -1)
        self.window = Window()

    def restore(self, numbers: Iterable[int]) -> None:
        """Have these ends, as the window gave them."""
        self.clear()
        for number in numbers:
            self._push(number)

    def remove(self) -> None:
        """The site goes, and all of this with it."""
        self.clear()
        self.recount(())

    def _push(self, number: int) -> None:
        gone = self.window.push(number)
        self._count(number, 1)
        if gone is not None:
            self._count(gone, -1)

    def _count(self, number: int, sign: int) -> None:
        everyone, own = self._everyone, self.own
        everyone.ends += sign
        own.ends += sign
        if number < 0:
            everyone.failures += sign
            own.failures += sign
            number = -number
        taken = sign * (number - 1)
        everyone.taken += taken
        own.taken += taken

    def _run(self, sign: int, at: int) -> None:
        everyone, own = self._everyone, self.own
        everyone.running += sign
        own.running += sign
        everyone.began += sign * at
        own.began += sign * at

    def black_hole(self, now: float, settings: SelectionSettings) -> str:
        """Why the site is a black hole, in words; nothing where it is none, or nobody can tell."""
        own, everyone, moment = self.own, self._everyone, microseconds(now)
        if own.failures < settings.black_hole_failures or own.failures < settings.black_hole_share * own.ends:
            return ""
        elsewhere = everyone.slot_time(moment) - own.slot_time(moment)
        if elsewhere <= 0:
            return ""  # without another site there is nothing to compare with
        # One failure more than there was elsewhere: where little time was spent, none says little.
        rate = (everyone.failures - own.failures + 1) / elsewhere
        expected = rate * own.slot_time(moment)
        if own.failures <= settings.black_hole_factor * max(1.0, expected):
            return ""
        seconds, others = own.slot_time(moment) / 1e6, (everyone.failures - own.failures) / (elsewhere / 1e6)
        return (
            f"{own.failures} of its latest {own.ends} attempts failed in {seconds:.3g} s of slot time; "
            f"other sites show {others:.3g} failures in a second of it"
        )
