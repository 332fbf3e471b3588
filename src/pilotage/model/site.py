"""A place that runs attempts, as the engine knows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from pilotage.model.resources import Capacity

SiteMode = Literal["pilots", "bound"]

PILOT_MARGIN_SECONDS = 30.0
"""So long before the end of its wall time, or at half of it, a pilot stops everything."""
PILOT_START_SECONDS = 30.0
"""So much of its wall time may be over, or a tenth of it, before a pilot is given its first package."""


LOCAL_DATA_HANDLING = ("folder",)
"""Here the files of a job are at hand: a local site handles data without anything being said about it."""


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A site: how work gets there, and the largest thing it can run."""

    name: str
    kind: str = "local"
    mode: SiteMode = "pilots"
    capacity: Capacity = Capacity()  # of one node
    nodes: int = 1  # the most that one attempt may span
    wall_seconds: float = 0.0  # the longest that a pilot or a bound job may last; 0: no limit
    pilots_max: int = 1  # pilots that are asked for or live at once
    speed: float = 1.0  # relative to the standard platform: what is estimated takes so many times less
    job_throttle: float = 2.0  # swift-site-selection: room in bound mode is 1 + jobThrottle · TScore
    # What packages may ask for besides, called as in `sites.yaml`; none: not said, and mostly not held against it.
    platform: str = ""
    job_types: tuple[str, ...] = ()  # besides `normal`, which it always runs
    node_names: tuple[str, ...] = ()  # by name or pattern; none: it has no node that anybody can name
    places_nodes: bool = True  # its batch system can be told on which nodes a batch job is to run
    scratch_bytes: int | None = None  # for the files of one attempt
    data_handling: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()  # that it reaches, by the beginning of their URLs
    software: tuple[str, ...] = ()  # installed there: `ID` or `ID/VERSION`
    users: tuple[str, ...] = ()  # whose packages it runs; none: everybody's
    initial_score: float | None = None

    @property
    def package_seconds_max(self) -> float:
        """The longest that one package may ask for; 0: no limit. A pilot has never all the time left that its site gives."""
        wall = self.wall_seconds
        if self.mode == "bound":
            return wall
        return wall - min(PILOT_MARGIN_SECONDS, 0.5 * wall) - min(PILOT_START_SECONDS, 0.1 * wall)


def executors_of(sites: Iterable[Site]) -> frozenset[str]:
    """What packages may name as their executor: the sites there are, and their kinds."""
    return frozenset(name for site in sites for name in (site.name, site.kind))


# Nodes by name: whether one is among those that a package may run on, and whether a site may have one of them.

NODE_NAME = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,255}")
"""What names a node, or several: letters, digits, `.`, `_`, `-`, and `*`, `?`, `[…]` as in names of files."""
NODE_NAME_FORM = "letters, digits, '.', '_' and '-', and '*', '?' and '[…]' as in names of files"

_WILD = re.compile(r"[*?\[]")


def is_named(node: str, names: Iterable[str]) -> bool:
    """Whether a node is one of those that are named; what follows the first dot of its name need not be said."""
    node = node.lower()
    return bool(node) and any(_means(each.lower(), node) for each in names)


def _means(name: str, node: str) -> bool:
    short = node.partition(".")[0]
    if fnmatchcase(node, name) or fnmatchcase(short, name):
        return True
    return node == short and not _WILD.search(name) and name.partition(".")[0] == node


def can_mean(one: str, other: str) -> bool:
    """Whether two names or patterns can mean the same node; of two patterns their fixed beginnings must agree."""
    one, other = one.lower(), other.lower()
    ends = [found.start() if (found := _WILD.search(each)) else None for each in (one, other)]
    if None in ends:
        return _means(one, other) if ends[1] is None else _means(other, one)
    return one[: ends[0]].startswith(other[: ends[1]]) or other[: ends[1]].startswith(one[: ends[0]])


# How described software can be started, and which way fits a site: chosen only once the site is known.
#
# A package that names software may have several ways: releases of the software, infrastructures of a release,
# platforms. An infrastructure is called as a site, as a kind of sites, or `any`.

ANY_INFRASTRUCTURE = "any"


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to start a software: of which release, on what."""

    software: str  # `ID` or `ID/VERSION`
    infrastructure: str = ANY_INFRASTRUCTURE
    platform: str = ""


def fitting_start(starts: Sequence[Start], site: Site, *, platform: str = "") -> int | None:
    """Which of the ways is taken at a site; None where none of them fits.

    The first release that has one there; of its infrastructures the one with the site's name goes before its kind, then
    `any`; one for the site's platform goes before one for all. A site that does not say its platform has the one that the
    package asks for.
    """
    known = site.platform or platform
    releases: dict[str, int] = {}
    found: list[tuple[int, int, int, int]] = []
    for position, each in enumerate(starts):
        release = releases.setdefault(each.software, len(releases))
        name = _nearness(each.infrastructure, site)
        if name is not None and _is_installed(each.software, site) and each.platform in ("", known or each.platform):
            found.append((release, name, not each.platform if known else bool(each.platform), position))
    return min(found)[-1] if found else None


def _nearness(infrastructure: str, site: Site) -> int | None:
    names = (site.name, site.kind, ANY_INFRASTRUCTURE)
    return names.index(infrastructure) if infrastructure in names else None


def _is_installed(software: str, site: Site) -> bool:
    """Whether a site has a release; one that tells no versions of it may have any."""
    name = software.partition("/")[0]
    if not site.software or name in site.software or software in site.software:
        return True
    return not any(
        each.startswith(f"{name}/") for each in site.software
    )  # it is not there at all: that is told elsewhere


def told_start(start: Start) -> str:
    """Where a way fits, for people: `slurm`, or `slurm on x86_64-linux`."""
    return f"{start.infrastructure} on {start.platform}" if start.platform else start.infrastructure
