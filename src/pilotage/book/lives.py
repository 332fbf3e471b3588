"""Short lives as statistics count them: all those of one batch at once, since nothing of them is ever taken back."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.book.short_rows import Begun, Ended

Group = tuple[str, str]
"""A site and an activity."""


class Lives:
    """Short lives of one job in one batch, in columns: when they began and ended, and in which group.

    Each life begins with a lease, so that it enters READY and RUNNING at once, and is DONE when it is granted.
    """

    __slots__ = ("began", "began_in", "finished", "granted", "granted_in", "granted_since", "groups")

    def __init__(self, began: Sequence[Begun | Ended], granted: Sequence[Ended]) -> None:
        """Take those that began in this batch and those that were granted in it, of which some may be the same."""
        self.groups: list[Group] = []
        numbers = _Numbers(self.groups)
        self.began = [life.created_at for life in began]
        self.began_in = [numbers[life.activity][life.site] for life in began]  # their groups
        self.finished = [life.finished_at for life in granted]  # when those that ended said so,
        self.granted = [life.granted_at for life in granted]  # when they were granted,
        self.granted_in = [numbers[life.activity][life.site] for life in granted]  # in which groups,
        self.granted_since = [life.created_at for life in granted]  # and when they had begun


class _Numbers(dict[str, "_NumbersOfSites"]):
    """The number of each group, by its activity and its site; one that was not asked for before is given the next."""

    def __init__(self, groups: list[Group]) -> None:
        super().__init__()
        self._groups = groups

    def __missing__(self, activity: str) -> _NumbersOfSites:
        found = self[activity] = _NumbersOfSites(self._groups, activity)
        return found


class _NumbersOfSites(dict[str, int]):
    def __init__(self, groups: list[Group], activity: str) -> None:
        super().__init__()
        self._groups = groups
        self._activity = activity

    def __missing__(self, site: str) -> int:
        number = self[site] = len(self._groups)
        self._groups.append((site, self._activity))
        return number
