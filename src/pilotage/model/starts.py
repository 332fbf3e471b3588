"""How described software can be started, and which way fits a site: chosen only once the site is known.

A package that names software may have several ways: releases of the software, infrastructures of a release, platforms.
An infrastructure is called as a site, as a kind of sites, or `any`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.model.site import Site

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
