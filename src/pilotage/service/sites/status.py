"""The status of a site, from the engine: its pilots, slots and score, and why nothing is started there."""

from __future__ import annotations

from typing import Any

import msgspec

from pilotage.engine.decisions.forecast_provisioning import explain_plan
from pilotage.engine.engine import Engine
from pilotage.engine.explain import silence_summary
from pilotage.engine.selection.filters import Requirements
from pilotage.engine.selection.status import wakes_at
from pilotage.engine.state.sites import SiteState, silent_batch_jobs
from pilotage.reading.views import SiteReason, SiteStatus

CANDIDATE, SILENT, LEAVING = "candidate", "silent", "leaving"


def status_of_site(engine: Engine, name: str) -> SiteStatus | None:
    """The status of a site; None if the engine does not know it."""
    site = engine.state.sites.by_name.get(name)
    if site is None or (site.removed and not site.requests and not site.pilots):
        return None
    learned = _learned(engine, name)
    closed = _closed(engine, site)
    pilots, (what, words) = site.pilots.values(), silence_summary(site)
    message = ": ".join(filter(None, (what, words)))
    mute = [SiteReason(stage="pilots", code="unheard", message=message)] if message else []
    status = LEAVING if site.removed else "" if site.known else SILENT
    return SiteStatus(
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
        reasons=(*_pilots(engine, site, closed), *mute, *learned.pop("reasons", ())),
        **{name: value for name, value in learned.items() if name != "status"},
    )


def next_try_at(engine: Engine, site: SiteState) -> float | None:
    """The earliest time of the next pilot at a site in back-off; None if no time is set."""
    if site.removed or site.site.mode != "pilots" or not site.answers:
        return None
    times = (
        [site.quiet_until + engine.state.clock.wall_time - engine.state.clock.now]
        if engine.state.clock.now < site.quiet_until
        else []
    )
    sleep = site.profile.sleep
    if sleep is not None:
        if sleep.reason != "dead-starts":  # what else wakes it depends on the other sites
            return None
        times.append(wakes_at(sleep, site.profile.times, site.profile.settings, alone=False))
    return max(times, default=None)


def _learned(engine: Engine, name: str) -> dict[str, Any]:
    """What the site selection has learned about a site; empty if it does not know it."""
    try:
        users = engine.state.selection.profile(name).description.users
        requirements = (
            Requirements(owner=users[0]) if users else Requirements()
        )  # its score for the users it is reserved for
        why = engine.state.selection.explain(name, now=engine.state.clock.wall_time, requirements=requirements)
        learned_state = engine.state.selection.learned_state(name)
    except KeyError:
        return {}
    whose = SiteReason(stage="filter", code="own-sites", message=f"it runs packages of {', '.join(users)} only")
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
    """Why nothing is submitted there, in short; the stages of the site selection give details."""
    if not site.answers:
        return "it does not answer"
    sleep = site.profile.sleep
    if sleep is not None and sleep.reason == "dead-starts":
        count = site.dead_starts  # the count does not survive a restart
        starts = "a dead start" if count == 1 else f"{count or 'some'} dead starts"
        return f"it hibernates after {starts}"
    if sleep is not None:
        return f"it hibernates ({sleep.reason}): {sleep.message}"
    if site.dead_starts and engine.state.clock.now < site.quiet_until:
        pilots = "1 pilot" if site.dead_starts == 1 else f"{site.dead_starts} pilots"
        seconds = site.quiet_until - engine.state.clock.now
        return f"{pilots} died there before contacting us: nothing more is submitted for {seconds:.0f} s"
    return ""


def _pilots(engine: Engine, site: SiteState, closed: str) -> list[SiteReason]:
    """Whether pilots are requested there and how many, and if not, why."""
    if site.site.mode != "pilots":
        return [SiteReason(stage="pilots", code="bound", message="each package is a batch job of its own")]
    if closed:
        return [SiteReason(stage="pilots", code="closed", message=closed, passes=False)]
    live, most = len(site.pilots), site.site.pilots_max
    lives = "1 pilot lives" if live == 1 else f"{live} pilots live"
    full = ": no more are requested" if live + site.expected >= most else ""
    message = f"{lives} and {site.expected} on the way, of at most {most}{full}"
    wanted = SiteReason(stage="pilots", code="wanted", message=message)
    if site.site.kind == "local":
        return [wanted]
    why = explain_plan(engine.state, site)
    return [wanted, SiteReason(stage="pilots", code=why.code, message=why.message, count=why.wanted)]
