"""Doubts the choice of sites: each is in one set, nothing goes where nothing may, and nobody gets more than a score allows.

What a site may have follows from its score, which only the engine knows; here is the most that it can be by what was
written down: every attempt is worth five successes at most, its submission, its end, and three phases that are scored.
"""

from __future__ import annotations

import math

from pilotage.model import payloads
from pilotage.model.site import Site
from pilotage.simulator.checkers_traces import Record, Rules

SITES = "sites"
_FLOOR, _CEILING = -10.0, 50.0
_WORTH = 0.5  # of an attempt that went well, with its submission and every long phase
_STEP = 1 / 64  # TScore is taken in steps


class _Standing:
    __slots__ = ("asleep", "removed", "score_max")

    def __init__(self, site: Site) -> None:
        self.asleep = False
        self.removed = False
        self.score_max = site.initial_score or 0.0


class Sites:
    """What is written down of sites."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share what the other checkers know."""
        self._record = record
        self._sites = {site.name: site for site in rules.sites}
        self._standings = {site.name: _Standing(site) for site in rules.sites}

    def on_event(self, name: str, data: payloads.Payload) -> None:
        """Something was written down of a site."""
        standing = self._standings.get(name)
        if standing is None:
            return
        match data:
            case payloads.SiteHibernated():
                if standing.asleep:
                    raise self._record.broken_stream(SITES, "was put to sleep, and slept already", name)
                standing.asleep = True
                self._check_score(name, data.score)
            case payloads.SiteWoken():
                if not standing.asleep:
                    raise self._record.broken_stream(SITES, "was woken, and did not sleep", name)
                standing.asleep = False
                standing.score_max = max(standing.score_max, data.score)
                self._check_score(name, data.score)
            case payloads.SiteStanding():
                if standing.asleep != (data.status == "hibernated"):
                    raise self._record.broken_stream(SITES, f"is said to be {data.status}, and is not", name)
                self._check_score(name, data.score)
            case _:
                pass

    def on_created(self, name: str) -> str:
        """One more attempt is at a site; what speaks against it."""
        standing = self._standings.get(name)
        if standing is None:
            return ""
        standing.score_max = min(_CEILING, standing.score_max + _WORTH)
        return "which hibernates" if standing.asleep else ""

    def bound_room(self, name: str) -> int:
        """The most attempts of one demand that may be in the queue of a site, or run there without pilots."""
        score = self._standings[name].score_max
        tscore = math.exp(2.0 * math.log(100.0) / math.pi * math.atan(0.2 * score) + _STEP)
        return 1 + math.floor(self._sites[name].job_throttle * tscore)

    def _check_score(self, name: str, score: float) -> None:
        if not _FLOOR <= score <= _CEILING:
            raise self._record.broken_stream(SITES, f"has a score of {score}", name)
