"""Short lives as statistics count them: all those of one batch at once, since nothing of them is ever taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from pilotage.book.short_rows import Begun, Ended

Group = tuple[str, str]
"""A site and an activity."""
_group_of: Callable[[Begun | Ended], Group] = attrgetter("site", "activity")
_created_of: Callable[[Begun | Ended], float] = attrgetter("created_at")
_finished_of: Callable[[Ended], float] = attrgetter("finished_at")
_granted_of: Callable[[Ended], float] = attrgetter("granted_at")


class Lives:
    """Short lives of one job in one batch, in columns: when they began and ended, and in which group.

    Each life begins with a lease, so that it enters READY and RUNNING at once, and is DONE when it is granted.
    """

    __slots__ = ("began", "began_in", "finished", "granted", "granted_in", "granted_since", "groups")

    def __init__(self, began: Sequence[Begun | Ended] = (), granted: Sequence[Ended] = ()) -> None:
        """Take those that began in this batch and those that were granted in it, of which some may be the same."""
        began_in, granted_in = list(map(_group_of, began)), list(map(_group_of, granted))
        names = dict.fromkeys(began_in) | dict.fromkeys(granted_in)
        self.groups: dict[Group, int] = {name: number for number, name in enumerate(names)}
        numbered = self.groups.__getitem__
        self.began: list[float] = list(map(_created_of, began))
        self.began_in: list[int] = list(map(numbered, began_in))  # their groups
        self.finished: list[float] = list(map(_finished_of, granted))  # when those that ended said so,
        self.granted: list[float] = list(map(_granted_of, granted))  # when they were granted,
        self.granted_in: list[int] = list(map(numbered, granted_in))  # in which groups,
        self.granted_since: list[float] = list(map(_created_of, granted))  # and when they had begun

    def group(self, site: str, activity: str) -> int:
        """The number of a site and an activity."""
        return self.groups.setdefault((site, activity), len(self.groups))
