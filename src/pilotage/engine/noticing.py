"""What was noticed at a site of things that do not begin, or run and do not speak: told to whoever waits for them.

It decides nothing: a pilot that speaks late is as good as any, and one that never does has a wall time.
"""

from __future__ import annotations

import re

from pilotage.engine.places import SiteState
from pilotage.model.reports import Noticed, SiteNoticed
from pilotage.model.texts import clipped

THINGS_MAX = 200
LINES_TOLD = 2
LINE_MAX = 200
_STAMP = re.compile(r"^[0-9T:+-]+ pilotage-agent: ")


def notice(site: SiteState, report: SiteNoticed) -> None:
    """Keep what was noticed, instead of what was before."""
    site.noticed = {
        each.key: Noticed(key=each.key, state=each.state, words=clipped(each.words))
        for each in report.things[:THINGS_MAX]
    }


def has_spoken(site: SiteState, key: str) -> bool:
    """Whether something at a site is known to have spoken, or is not waited for."""
    if (request := site.requests.get(key)) is not None:
        return request.spoke
    attempt = site.bound.get(key)
    return attempt is None or attempt.leased


def unheard(site: SiteState) -> list[Noticed]:
    """What was noticed and still holds; what will not begin by itself first."""
    found = [each for each in site.noticed.values() if not has_spoken(site, each.key)]
    return sorted(found, key=lambda each: each.state != "held")


def summary_of(site: SiteState, *keys: str) -> tuple[str, str]:
    """The same in some words, of some keys where they are named, and what was said there; nothing where all is well."""
    found = [each for each in unheard(site) if not keys or each.key in keys]
    if not found:
        return "", ""
    state = found[0].state
    count = sum(each.state == state for each in found)
    words = next((each.words for each in found if each.state == state and each.words), "")
    lines = [_STAMP.sub("", line.strip())[:LINE_MAX] for line in words.strip().splitlines()[-LINES_TOLD:]]
    said = " / ".join(lines)
    if state == "held":
        what = "a batch job does not" if count == 1 else f"{count} batch jobs do not"
        return f"{what} begin at {site.name} without somebody's help", f"the batch system says {said}" if said else ""
    what = "a pilot runs" if count == 1 else f"{count} pilots run"
    none = "it has" if count == 1 else "they have"
    return f"{what} at {site.name} and cannot be heard", said or f"{none} printed nothing"


def told_of(site: SiteState, *keys: str) -> str:
    """The same in one sentence."""
    return ": ".join(filter(None, summary_of(site, *keys)))
