"""The choice of sites, told of attempts by the names of their sites: the engine has the sites at hand, tests have their names."""

from __future__ import annotations

from pilotage.engine.selection import Cause, Change
from pilotage.engine.selection import Selection as ByPlace


class Selection(ByPlace):
    """What the engine tells of a place, told by name; nothing is told of a site that is not known."""

    def attempt_created(self, site: str, *, at: float, activity: str = "") -> None:
        """An attempt was handed over to a site."""
        if (place := self.sites.by_name.get(site)) is not None:
            self.created_at(place, at, activity)

    def attempt_began(self, site: str, *, at: float, queued_seconds: float | None = None) -> None:
        """It takes a slot; how long it was in the queue of the site, where it was in one of its own."""
        if (place := self.sites.by_name.get(site)) is not None:
            self.began_at(place, at, queued_seconds)

    def attempt_ended(
        self,
        site: str,
        *,
        cause: Cause,
        at: float,
        created_at: float,
        began_at: float | None = None,
        queued_seconds: float | None = None,
        activity: str = "",
        pilot: str = "",
        node: str = "",
    ) -> list[Change]:
        """It is over, or nobody waits for it."""
        if (place := self.sites.by_name.get(site)) is None:
            return []
        return self.ended_at(place, cause, at, created_at, began_at, queued_seconds, activity, pilot, node)
