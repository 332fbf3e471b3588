"""Short lives as statistics count them: all those of one batch at once, since nothing of them is ever taken back."""

from __future__ import annotations


class Lives:
    """Short lives of one job in one batch, in columns: when they began and ended, and in which group.

    A group is a site and an activity. Each life begins with a lease, so that it enters READY and RUNNING at once, and is
    DONE when it is granted.
    """

    __slots__ = ("began", "began_in", "finished", "granted", "granted_in", "granted_since", "groups")

    def __init__(self) -> None:
        """Begin with none."""
        self.groups: dict[tuple[str, str], int] = {}  # the number of each site and activity
        self.began: list[float] = []  # of those that began in this batch,
        self.began_in: list[int] = []  # with their groups
        self.finished: list[float] = []  # of those that ended in this batch: when they said so,
        self.granted: list[float] = []  # when they were granted,
        self.granted_in: list[int] = []  # in which groups,
        self.granted_since: list[float] = []  # and when they had begun

    def group(self, site: str, activity: str) -> int:
        """The number of a site and an activity."""
        found = self.groups.get((site, activity))
        if found is None:
            found = self.groups[site, activity] = len(self.groups)
        return found
