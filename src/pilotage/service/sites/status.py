"""How a site stands, asked of the engine: its pilots, its slots, what it is worth, and why nothing is started there."""

from __future__ import annotations

from typing import Any

import msgspec

from pilotage.engine.engine import Engine
from pilotage.engine.explain import silence_summary
from pilotage.engine.selection.filters import Asked
from pilotage.engine.selection.status import wakes_at
from pilotage.engine.state.sites import SiteState, silent_batch_jobs
from pilotage.reading.views import SiteReason, SiteStand

CANDIDATE, SILENT, LEAVING = "candidate", "silent", "leaving"


def status_of_site(engine: Engine, name: str) -> SiteStand | None:
    """How a site stands; None where the engine does not know it."""
    site = engine.state.sites.by_name.get(name)
    if site is None or (site.removed and not site.requests and not site.pilots):
        return None
    learned = _learned(engine, name)
    closed = _closed(engine, site)
    pilots, (what, words) = site.pilots.values(), silence_summary(site)
    told = ": ".join(filter(None, (what, words)))
    mute = [SiteReason(stage="pilots", code="unheard", message=told)] if told else []
    status = LEAVING if site.removed else "" if site.known else SILENT
    return SiteStand(
        status=status or learned.pop("status", "") or CANDIDATE,
        pilots_queued=site.expected,
        pilots_live=len(site.pilots),
        slots=sum(pilot.capacity.cores_hundredths // 100 for pilot in pilots),
        used=sum(pilot.count_running() for pilot in pilots),
        dead_starts=site.dead_starts,
        closed=closed,
        next_try_at=next_try_at(engine, site),
        unheard=what,
        noticed=tuple(silent_batch_jobs(site)),
        reasons=(*_pilots(site, closed), *mute, *learned.pop("reasons", ())),
        **{name: value for name, value in learned.items() if name != "status"},
    )


def next_try_at(engine: Engine, site: SiteState) -> float | None:
    """When a pilot is tried again at a site that is left alone, at the earliest, by the clock; None where no time is set for it."""
    if site.removed or site.site.mode != "pilots" or not site.answers:
        return None
    times = (
        [site.quiet_until + engine.state.clock.wall_time - engine.state.clock.now]
        if engine.state.clock.now < site.quiet_until
        else []
    )
    sleep = site.place.sleep
    if sleep is not None:
        if sleep.reason != "dead-starts":  # what else wakes it is a matter of the other sites
            return None
        times.append(wakes_at(sleep, site.place.times, site.place.settings, alone=False))
    return max(times, default=None)


def _learned(engine: Engine, name: str) -> dict[str, Any]:
    """What the choice of sites has learned of one; nothing where it does not know it."""
    try:
        users = engine.state.selection.place(name).description.users
        asked = Asked(owner=users[0]) if users else Asked()  # what it is to those it is for
        why = engine.state.selection.explain(name, now=engine.state.clock.wall_time, asked=asked)
        learned_state = engine.state.selection.learned_state(name)
    except KeyError:
        return {}
    whose = SiteReason(stage="filter", code="own-sites", message=f"it runs packages of {', '.join(users)} alone")
    reasons = [whose] if users else []
    reasons += [msgspec.convert(msgspec.to_builtins(each), SiteReason) for each in why.stages if each.stage != "filter"]
    waits = sorted(learned_state.waits)
    return {
        "status": why.status,
        "score": why.score,
        "tscore": why.tscore,
        "queue_seconds": waits[len(waits) // 2] / 1e6 if waits else None,
        "reasons": reasons,
    }


def _closed(engine: Engine, site: SiteState) -> str:
    """Why nothing is submitted there, in short: what the stages of the choice say of it is told beside it."""
    if not site.answers:
        return "it does not answer"
    sleep = site.place.sleep
    if sleep is not None and sleep.reason == "dead-starts":
        count = site.dead_starts  # not counted over a restart
        return "it sleeps after a dead start" if count == 1 else f"it sleeps after {count or 'some'} dead starts"
    if sleep is not None:
        return f"it hibernates ({sleep.reason}): {sleep.message}"
    if site.dead_starts and engine.state.clock.now < site.quiet_until:
        dead = site.dead_starts
        told = "1 pilot died there before it spoke" if dead == 1 else f"{dead} pilots died there before they spoke"
        return f"{told}: nothing more is submitted for {site.quiet_until - engine.state.clock.now:.0f} s"
    return ""


def _pilots(site: SiteState, closed: str) -> list[SiteReason]:
    """Whether pilots are asked for there, and why not."""
    if site.site.mode != "pilots":
        return [SiteReason(stage="pilots", code="bound", message="each package is a batch job of its own")]
    if closed:
        return [SiteReason(stage="pilots", code="closed", message=closed, passes=False)]
    live, most = len(site.pilots), site.site.pilots_max
    lives = "1 pilot lives" if live == 1 else f"{live} pilots live"
    full = ": no further one is asked for" if live + site.expected >= most else ""
    message = f"{lives} and {site.expected} on the way, of at most {most}{full}"
    return [SiteReason(stage="pilots", code="wanted", message=message)]
