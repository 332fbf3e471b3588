"""Pilots are asked for where work could use them: no more than the work needs and the site allows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pilotage.engine.behaviour import submitting
from pilotage.engine.dispatch import may_start
from pilotage.engine.places import SiteState
from pilotage.engine.timers import Due
from pilotage.model import payloads
from pilotage.model.demand import slots_for
from pilotage.model.effects import SubmitPilot

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


EVERY_SECONDS = 1.0
"""Sites are not asked more often than this: many packages become ready in a second, and one look serves them all."""


def request_pilots(engine: Engine) -> None:
    """Ask every pilot site for as many pilots as the work that waits could use there."""
    if not engine.active and not engine.stuck and not any(site.reserved for site in engine.sites.values()):
        return
    if engine.now < engine.provisioned_at + EVERY_SECONDS:
        if not engine.provision_again:
            engine.provision_again = True
            engine.timers.at(engine.provisioned_at + EVERY_SECONDS, Due.PROVISION, "")
        return
    engine.provisioned_at = engine.now
    engine.provision_again = False
    for site in engine.sites.values():
        if site.site.mode != "pilots" or not site.answers or site.asleep or site.removed:
            continue
        if engine.now >= site.quiet_until:
            free = site.site.pilots_max - len(site.pilots) - site.expected
            for _ in range(min(free, wanted(engine, site)) if free > 0 else 0):
                request(engine, site)


def wanted(engine: Engine, site: SiteState) -> int:
    """How many more pilots the work that waits could use at a site."""
    pilots, canary = 0.0, site.place.canary
    # One that was just woken is asked for what is reserved there, and no more; but where nothing may be reserved before a
    # pilot comes, for that one.
    for queue in (*engine.active, *engine.stuck) if not canary or not site.reserved else ():
        if may_start(engine, queue) and engine.openings.able(site, queue):
            slots = slots_for(queue.demand, site.site.capacity)
            if slots:
                pilots += queue.ready / slots
    if canary:
        pilots = min(pilots, 1.0)
    for queue, numbers in site.reserved.items():
        slots = slots_for(queue.demand, site.site.capacity)
        pilots += len(numbers) / slots if slots else 0.0
    return max(0, math.ceil(pilots) - site.expected)


def request(engine: Engine, site: SiteState) -> None:
    """Ask for one pilot."""
    key = f"{site.name}-{engine.next_n}"
    engine.write(payloads.PilotRequested(site=site.name), pilot=key)
    submit_pilot(engine, site, key)


def submit_pilot(engine: Engine, site: SiteState, key: str) -> None:
    """Have a pilot submitted, and look again if nothing is heard of it."""
    engine.effects.append(SubmitPilot(site=site.name, key=key))
    if (asked := engine.requests.get(key)) is not None:
        submitting(engine, site, asked)
    engine.timers.at(engine.now + engine.settings.submit_again_seconds, Due.REQUEST, key)
