"""A site that runs attempts, as the engine knows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from pilotage.model.resources import Capacity

SiteMode = Literal["pilots", "bound"]

PILOT_MARGIN_SECONDS = 30.0
"""A pilot stops everything this long before the end of its wall time, or at half of it."""
PILOT_START_SECONDS = 30.0
"""This much of its wall time, or a tenth of it, may pass before a pilot gets its first package."""


LOCAL_DATA_HANDLING = ("folder",)
"""A local site has the files of a job at hand: it handles data without a configured service."""


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A site: how work gets there, and the largest package it can run."""

    name: str
    kind: str = "local"
    mode: SiteMode = "pilots"
    capacity: Capacity = Capacity()  # of one node
    nodes: int = 1  # the most that one attempt may use
    wall_seconds: float = 0.0  # the longest time of a pilot or a bound job; 0: no limit
    pilots_max: int = 1  # requested and live pilots at once
    speed: float = 1.0  # relative to the standard platform: estimates are divided by it
    job_throttle: float = 2.0  # swift-site-selection: room in bound mode is 1 + jobThrottle · TScore
    # Further properties that packages may require, named as in `sites.yaml`; empty: unknown, and mostly not held against it.
    platform: str = ""
    job_types: tuple[str, ...] = ()  # besides `normal`, which every site runs
    node_names: tuple[str, ...] = ()  # names or patterns; empty: its nodes cannot be named
    places_nodes: bool = True  # its batch system accepts the nodes for a batch job
    scratch_bytes: int | None = None  # for the files of one attempt
    data_handling: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()  # that it reaches, by URL prefix
    software: tuple[str, ...] = ()  # installed there: `ID` or `ID/VERSION`
    users: tuple[str, ...] = ()  # whose packages it runs; empty: everyone's
    initial_score: float | None = None
    cache_bytes: int | None = None  # of files that are brought there; none: no limit

    @property
    def package_seconds_max(self) -> float:
        """The longest time that one package may ask for; 0: no limit. No pilot has the full wall time of its site left."""
        wall = self.wall_seconds
        if self.mode == "bound":
            return wall
        return wall - min(PILOT_MARGIN_SECONDS, 0.5 * wall) - min(PILOT_START_SECONDS, 0.1 * wall)


def executors_of(sites: Iterable[Site]) -> frozenset[str]:
    """What packages may name as their executor: the sites, and their kinds."""
    return frozenset(name for site in sites for name in (site.name, site.kind))


# Names of nodes: whether a node is among those a package may use, and whether a site may have one of them.

NODE_NAME = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,255}")
"""The form of a node name or pattern: letters, digits, `.`, `_`, `-`, and `*`, `?`, `[…]` as in file names."""
NODE_NAME_FORM = "letters, digits, '.', '_' and '-', and '*', '?' and '[…]' as in names of files"

_WILD = re.compile(r"[*?\[]")


def is_named(node: str, names: Iterable[str]) -> bool:
    """Whether a node is among these names; the part after the first dot of its name is optional."""
    node = node.lower()
    return bool(node) and any(_means(each.lower(), node) for each in names)


def _means(name: str, node: str) -> bool:
    short = node.partition(".")[0]
    if fnmatchcase(node, name) or fnmatchcase(short, name):
        return True
    return node == short and not _WILD.search(name) and name.partition(".")[0] == node


def can_mean(one: str, other: str) -> bool:
    """Whether two names or patterns can match the same node; two patterns must agree in their fixed prefixes."""
    one, other = one.lower(), other.lower()
    ends = [found.start() if (found := _WILD.search(each)) else None for each in (one, other)]
    if None in ends:
        return _means(one, other) if ends[1] is None else _means(other, one)
    return one[: ends[0]].startswith(other[: ends[1]]) or other[: ends[1]].startswith(one[: ends[0]])


# How described software can be started, and which way fits a site: chosen only once the site is known.
#
# A package that names software may have several ways: releases of the software, infrastructures of a release, platforms.
# An infrastructure is named after a site, a kind of sites, or `any`.

ANY_INFRASTRUCTURE = "any"


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to start a software: its release, and where it applies."""

    software: str  # `ID` or `ID/VERSION`
    infrastructure: str = ANY_INFRASTRUCTURE
    platform: str = ""


def fitting_start(starts: Sequence[Start], site: Site, *, platform: str = "") -> int | None:
    """The index of the way that is used at a site; None if none fits.

    The first release with a fitting way; among its infrastructures the site's name comes before its kind, then `any`; one for
    the site's platform comes before one for all. A site without a stated platform has the one that the package asks for.
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
    """Whether a site has a release; a site that lists no versions of it may have any."""
    name = software.partition("/")[0]
    if not site.software or name in site.software or software in site.software:
        return True
    return not any(
        each.startswith(f"{name}/") for each in site.software
    )  # not installed at all: another filter reports that


def start_text(start: Start) -> str:
    """Where a way applies, for people: `slurm`, or `slurm on x86_64-linux`."""
    return f"{start.infrastructure} on {start.platform}" if start.platform else start.infrastructure
