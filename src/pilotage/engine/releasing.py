"""Reservations are given back: where no pilot could run them for long enough, and where a site cannot be reached."""

from __future__ import annotations

import math

from pilotage.engine.engine_state import EngineState
from pilotage.engine.fits import could_take, is_bound
from pilotage.engine.jobs import Standing
from pilotage.engine.places import SiteState
from pilotage.engine.readiness import move
from pilotage.engine.timers import Due


def release_unfit(state: EngineState, site: SiteState) -> None:
    """Give back what was reserved at a site for long enough and no pilot there could run; nothing more until one comes."""
    again = math.inf
    for queue, numbers in list(state.queues.at[site].reserved.items()):
        if could_take(site, queue, state.clock.now):
            continue
        oldest = queue.job.work[numbers[0]].bound_at
        if state.clock.now < oldest + state.settings.unfit_seconds:
            again = min(again, oldest + state.settings.unfit_seconds)
            continue
        if not is_bound(site, queue):
            state.placement.close(site, queue)
        for number in list(numbers):
            move(state, queue.job, number, Standing.READY)
    if again < math.inf:
        # One for all of them: each would otherwise bring the others along.
        state.clock.timers.at(again, Due.UNFIT, site.name)


def release_estimated(state: EngineState, site: SiteState) -> None:
    """A site came, or is another than it was: what waits where no pilot lasts so long goes elsewhere, if this one does."""
    for job in state.jobs.by_id.values():
        for queue in list(job.classes.values()):  # what is given back may be of another class since, and a new one
            if not state.placement.recall_estimate(queue, site):
                continue
            for other in state.sites.by_name.values():
                if queue in state.queues.at[other].reserved and not state.placement.able(other, queue):
                    for number in list(state.queues.at[other].reserved[queue]):
                        move(state, job, number, Standing.READY)


def release_site(state: EngineState, site: SiteState) -> None:
    """Give back everything that is reserved at a site that cannot be reached."""
    for queue, numbers in list(state.queues.at[site].reserved.items()):
        for number in list(numbers):
            move(state, queue.job, number, Standing.READY)
