"""What was really seen of sites and packages, from a book or from somebody's trace: what a world is fitted to."""

from __future__ import annotations

import msgspec


class SiteObserved(msgspec.Struct, kw_only=True):
    """What was seen of one site; whatever is empty was not looked at there."""

    queue_seconds: list[float] = []  # of each pilot, or bound attempt, that left the queue
    run_seconds: list[float] = []  # of attempts that succeeded and belong to no activity that is known
    attempts: int = 0  # that ended, one way or the other
    failures: dict[str, int] = {}  # by reason: those that are the site's fault
    pilots: int = 0  # that were asked for and are over, or started
    dead_pilots: int = 0  # of these, that never started
    node_hours: float = 0.0  # for which nodes, or pilots, were up
    node_failures: int = 0


class Observed(msgspec.Struct, kw_only=True):
    """What was seen of some jobs."""

    sites: dict[str, SiteObserved] = {}
    run_seconds: dict[str, dict[str, list[float]]] = {}  # by activity and site, of attempts that succeeded
    inputs_seconds: list[float] = []
    outputs_seconds: list[float] = []
    packages: dict[str, int] = {}  # by activity, that are over
    doomed: dict[str, int] = {}  # of these, that failed in the end through their own fault
