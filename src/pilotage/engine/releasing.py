"""Reservations are given back: where no pilot could run them for long enough, and where a site cannot be reached."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pilotage.engine.fits import could_take, is_bound
from pilotage.engine.parts import Standing
from pilotage.engine.places import SiteState
from pilotage.engine.readiness import move
from pilotage.engine.timers import Due

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


def release_unfit(engine: Engine, site: SiteState) -> None:
    """Give back what was reserved at a site for long enough and no pilot there could run; nothing more until one comes."""
    again = math.inf
    for queue, numbers in list(site.reserved.items()):
        if could_take(site, queue, engine.now):
            continue
        oldest = queue.job.work[numbers[0]].bound_at
        if engine.now < oldest + engine.settings.unfit_seconds:
            again = min(again, oldest + engine.settings.unfit_seconds)
            continue
        if not is_bound(site, queue):
            engine.openings.close(site, queue)
        for number in list(numbers):
            move(engine, queue.job, number, Standing.READY)
    if again < math.inf:
        # One for all of them: each would otherwise bring the others along.
        engine.timers.at(again, Due.UNFIT, site.name)


def release_estimated(engine: Engine, site: SiteState) -> None:
    """A site came, or is another than it was: what waits where no pilot lasts so long goes elsewhere, if this one does."""
    for job in engine.jobs.values():
        for queue in list(job.classes.values()):  # what is given back may be of another class since, and a new one
            if not engine.openings.recall_estimate(queue, site):
                continue
            for other in engine.sites.values():
                if queue in other.reserved and not engine.openings.able(other, queue):
                    for number in list(other.reserved[queue]):
                        move(engine, job, number, Standing.READY)


def release_site(engine: Engine, site: SiteState) -> None:
    """Give back everything that is reserved at a site that cannot be reached."""
    for queue, numbers in list(site.reserved.items()):
        for number in list(numbers):
            move(engine, queue.job, number, Standing.READY)
