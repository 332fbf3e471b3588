"""Probes that a service starts by itself: so many at once, and none at a site more often than it may.

What a probe costs is one pilot that ends at once. So the cost is bounded twice: by how many are under way, and by how often
one site is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from pilotage.engine.behaviour import is_probe
from pilotage.engine.engine import Engine
from pilotage.model.errors import PilotageError

log = logging.getLogger(__name__)


def sites_to_probe(engine: Engine) -> list[str]:
    """The sites of which a probe may tell something: not those that somebody put to sleep, nor the computer that we are on."""
    sites = [each for each in engine.state.sites.by_name.values() if not each.removed and each.site.kind != "local"]
    return [each.name for each in sites if each.place.sleep is None or each.place.sleep.reason != "by-hand"]


def probes_under_way(engine: Engine) -> list[str]:
    """The sites that are being probed."""
    sites = engine.state.sites.by_name.values()
    return [site.name for site in sites if any(is_probe(key, site=site.name) for key in site.requests)]


class Prober:
    """Has sites probed, the one that was asked longest ago first."""

    def __init__(
        self, probe: Callable[[str], None], *, at_once: int, every_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Take what has a site probed, which raises where it is refused."""
        self._probe = probe
        self._at_once = at_once
        self._every_seconds = every_seconds
        self._clock = clock
        self._begun_at: dict[str, float] = {}

    def look(self, sites: Collection[str], *, under_way: Collection[str]) -> list[str]:
        """Have probed what is due, and may be; their names."""
        if not self._at_once:
            return []
        now = self._clock()
        self._begun_at = {site: at for site, at in self._begun_at.items() if site in sites}
        due = [site for site in sites if now >= self._begun_at.get(site, float("-inf")) + self._every_seconds]
        due = [site for site in due if site not in under_way]
        due.sort(key=lambda site: self._begun_at.get(site, float("-inf")))
        chosen = due[: max(0, self._at_once - len(under_way))]
        for site in chosen:
            self._begun_at[site] = now
            try:
                self._probe(site)
            except PilotageError as refused:
                log.info("site %s is not probed: %s", site, refused)
        return chosen
