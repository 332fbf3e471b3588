"""Pulling: gives the reservations of a site to the pilots there that ask for work."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.engine.decisions.attempts import create, remove_if_full
from pilotage.engine.decisions.binding import _take, bind
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.affinity import note_use, preferred
from pilotage.engine.placement import emptiest, lasts, takes
from pilotage.engine.selection.candidates import SelectionSnapshot
from pilotage.engine.state.jobs import PackageStatus, QueueClass
from pilotage.engine.state.queues import any_reserved
from pilotage.engine.state.sites import PilotState, SiteState
from pilotage.engine.transitions.queue_classes import snapshot
from pilotage.engine.transitions.readiness import move, reserve
from pilotage.engine.transitions.site_observations import drain
from pilotage.model.resources import Demand

_FETCH_SECONDS = 1.0  # how often a site with idle pilots looks for reservations of other sites


def pull(state: EngineState) -> None:
    """Give the reservations of a site to its pilots that wait for work."""
    asking = state.pilots.with_free_slots
    while asking or state.queues.sites_to_serve:
        # A pilot that just asked is served alone: the others were served when they asked.
        for pilot in list(asking):
            del asking[pilot]
            if not pilot.waiting:
                continue
            if state.queues.at[pilot.site].reserved:
                _serve(state, pilot.site, pilot)
            elif not state.queues.ready and not pilot.assigned:
                _fetch(state, pilot.site)
        if asking or not state.queues.sites_to_serve:
            continue
        site = next(iter(state.queues.sites_to_serve))
        del state.queues.sites_to_serve[site]
        for pilot in list(site.waiting.values()):
            if not state.queues.at[site].reserved:
                break
            _serve(state, site, pilot)


def _fetch(state: EngineState, site: SiteState) -> None:
    """Let the idle pilots of a site start packages that are reserved elsewhere and cannot start there."""
    if state.clock.now < site.fetched_at + _FETCH_SECONDS or site.profile.canary or site.asleep or site.removed:
        return
    if not any_reserved(state.queues.reserved_counts):
        return
    before, site.fetched_at = site.fetched_at, state.clock.now
    idle = [pilot for pilot in site.waiting.values() if not pilot.assigned]
    for other in state.sites.by_name.values():
        if (
            other is site
            or not state.queues.at[other].reserved
            or any(pilot.free.cores_hundredths > 0 for pilot in other.waiting.values())
        ):
            continue
        for queue in [each for each in state.queues.at[other].reserved if may_fetch(state, site, each)]:
            choice: SelectionSnapshot | None = None
            for pilot in idle:
                while (
                    queue in state.queues.at[other].reserved
                    and pilot.free.fits(queue.demand)
                    and takes(pilot, queue, state.clock.now)
                ):
                    if not state.placement.has_room(site, queue.shape):
                        return
                    move(state, queue.job, state.queues.at[other].reserved[queue][-1], PackageStatus.READY)
                    number = _take(state, queue)
                    if number is None:
                        return
                    choice = choice or snapshot(state, queue, "idle")
                    reserve(state, queue, number, site, choice)
                    _serve(state, site, pilot)
                    if queue.job.files is not None and queue.job.work[number].lacks:
                        break  # it waits for its files here
                    if site.site.kind == "local":
                        site.fetched_at = before  # there may be more, and fetching here costs nothing


def may_fetch(state: EngineState, site: SiteState, queue: QueueClass) -> bool:
    """Whether the pilots of a site may fetch packages of a class that are reserved elsewhere."""
    return site.name not in queue.avoid and site.index not in queue.unfit and state.placement.able(site, queue)


def _serve(state: EngineState, site: SiteState, pilot: PilotState) -> None:
    served = False
    reserved = state.queues.at[site].reserved
    while reserved:
        if len(reserved) > 1:
            first = first_taken(state, site, pilot)
            if first is None:
                break
            queue = first
        else:
            queue = next(iter(reserved))
            if not takes(pilot, queue, state.clock.now) or lacks_files(queue, reserved[queue]):
                break
        job, number = queue.job, reserved[queue][0]
        if job.files is not None:
            number = preferred(state, pilot, job, reserved[queue])
            note_use(state, pilot, job, number)
        create(state, job, number, queue.demand, site, pilot, job.work[number].choice)
        served = True
        if pilot.free.cores_hundredths <= 0 and not pilot.backlog:
            break  # every reservation needs some of its cores
    remove_if_full(site, pilot)
    if not served and pilot.ends_at is not None and not pilot.assigned and not pilot.draining:
        fits_nothing = not any(lasts(pilot, queue, state.clock.now) for queue in state.queues.at[site].reserved)
        if fits_nothing:
            drain(state, pilot, "its remaining time is too short for the waiting work")
    if served and state.queues.may_bind:
        bind(state)  # a pull frees room, or the package wants a replica


def lacks_files(queue: QueueClass, reserved: Sequence[int]) -> bool:
    """Whether all reserved packages of a class wait for files; those that do not come first."""
    return queue.job.files is not None and queue.job.work[reserved[0]].lacks > 0


def first_taken(state: EngineState, site: SiteState, pilot: PilotState) -> QueueClass | None:
    """The reserved class of the highest rank at a site that a pilot can take.

    If an overdue class needs more than a pilot has free, no class of lower rank gets the resources that it lacks.
    """
    now, fairness = state.clock.now, state.fairness
    overdue: list[Demand] = []
    for queue in fairness.ordered(state.queues.at[site].reserved, counted="running"):
        if queue.job.files is not None and lacks_files(queue, state.queues.at[site].reserved[queue]):
            continue
        if takes(pilot, queue, now):
            if not any(pilot.free.is_contended(queue.demand, each) for each in overdue):
                return queue
        elif fairness.is_overdue(queue.job) and pilot is emptiest(site, queue, now):
            overdue.append(queue.demand)
    return None
