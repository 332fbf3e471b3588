"""Lowers the number of requested pilots to the fewest that are expected to finish the work nearly as early (`forecast.makespan`).

Only where enough starts are known, and never above what the waiting work could use. A plan is made for each site, again after some time or when
its pilots have changed: if pilots do not come, more are requested. Queued pilots that the plan does not need are cancelled, the
newest first, but none that was requested minutes ago, so that requests and cancellations do not take turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pilotage.engine.engine_state import EngineState
from pilotage.engine.selection.candidates import CandidateSet
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import usual_seconds
from pilotage.engine.state.jobs import JobState, PackageStatus, QueueClass
from pilotage.engine.state.sites import PilotRequest, PilotState, SiteState
from pilotage.engine.state.tables import PilotPlan, WorkPeriod
from pilotage.engine.transitions.readiness import may_start
from pilotage.engine.transitions.site_observations import is_test_pilot
from pilotage.forecast.history import STARTS_MIN
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted
from pilotage.model.resources import slots_for

if TYPE_CHECKING:  # a service starts without it: most have no plan to make for a while
    from pilotage.forecast.makespan import Need

REPLAN_SECONDS = 60.0
"""A plan is made again after this time, and earlier if pilots have come, gone or been requested."""
REPLAN_SECONDS_MIN = 5.0
"""Shortest time between two plans of a site by forecast; one without costs little."""
_SITE_SECONDS = 0.1  # with many sites, that time is so long for each: planning takes less than a hundredth of a core
YOUNG_SECONDS = 300.0
"""No pilot is cancelled that was requested later than this, unless no work is left."""
SURPLUS_SECONDS = 60.0
"""Pilots are cancelled that were not needed for this time."""
_AWAITED_INTERVALS = 2  # so long a pilot of an earlier service counts before it has made contact with this one
_LIFE_SECONDS = 60.0  # remaining times of pilots are rounded to this


def forecasts(state: EngineState, site: SiteState) -> bool:
    """Whether the number of pilots of a site follows from a forecast, if there are starts enough."""
    about = site.site
    return state.settings.provisioning == "forecast" and about.mode == "pilots" and about.kind != "local"


def pilots_by_forecast(state: EngineState, site: SiteState, most: int, work: WaitingWork) -> int:
    """How many pilots are requested now of the `most` that the waiting work could use; cancels those that are not needed."""
    plan = _current_plan(state, site, most, work)
    if plan.at == state.clock.now:
        _cancel_surplus(state, site, plan)
    return max(0, min(most, plan.missing(site)))


class WaitingWork:
    """The packages that could start and what is reserved, with their run times; counted when first needed in a step."""

    __slots__ = ("_by_pool", "_reserved", "_state")

    def __init__(self, state: EngineState) -> None:
        """Count nothing yet."""
        self._state = state
        self._by_pool: dict[CandidateSet, _PoolWork] | None = None
        self._reserved: dict[SiteState, list[tuple[QueueClass, int, float]]] = {}

    def at(self, site: SiteState) -> Iterator[tuple[QueueClass, float, float]]:
        """What pilots of a site could do: a class of each kind, packages, and the seconds of one; 0 if unknown.

        Reservations elsewhere count, as the pilots there do: what they do not come to is given back.
        """
        if self._by_pool is None:
            self._count()
        assert self._by_pool is not None
        for pool, found in self._by_pool.items():
            if pool.allowed(site.index):
                yield found.queue, found.packages, found.mean_seconds
        for there, reserved in self._reserved.items():
            for queue, count, seconds in reserved:
                if there is site or self._state.placement.pool(queue).allowed(site.index):
                    yield queue, float(count), seconds

    def _count(self) -> None:
        state = self._state
        self._by_pool = {}
        first: dict[JobState, tuple[QueueClass, float]] = {}
        for queue in (*state.queues.ready, *state.queues.waiting):
            if queue.ready and may_start(state, queue):
                seconds = usual_seconds(queue)
                self._add(queue, float(queue.ready), seconds)
                first.setdefault(queue.job, (queue, seconds))
        for site, queues in state.queues.at.items():
            if queues.reserved:
                found = [(queue, len(numbers), usual_seconds(queue)) for queue, numbers in queues.reserved.items()]
                self._reserved[site] = found
                for queue, _, seconds in found:
                    first.setdefault(queue.job, (queue, seconds))
        # What waits for producers or a retry comes later, and is taken for packages like those that could start now.
        for job, (queue, seconds) in first.items():
            if later := job.counts[PackageStatus.BLOCKED] + job.counts[PackageStatus.DELAYED]:
                self._add(queue, float(later), seconds)

    def _add(self, queue: QueueClass, packages: float, seconds: float) -> None:
        assert self._by_pool is not None
        pool = self._state.placement.pool(queue)
        found = self._by_pool.get(pool)
        if found is None:
            found = self._by_pool[pool] = _PoolWork(queue)
        found.add(packages, seconds)


class _PoolWork:
    """The packages of one set of candidate sites."""

    __slots__ = ("_known", "_seconds", "packages", "queue")

    def __init__(self, queue: QueueClass) -> None:
        self.queue = queue
        self.packages = 0.0
        self._known = 0.0
        self._seconds = 0.0

    def add(self, packages: float, seconds: float) -> None:
        self.packages += packages
        if seconds:
            self._known += packages
            self._seconds += packages * seconds

    @property
    def mean_seconds(self) -> float:
        return self._seconds / self._known if self._known else 0.0


# --- plans ------------------------------------------------------------------------------------------------------------


def _current_plan(state: EngineState, site: SiteState, most: int, work: WaitingWork) -> PilotPlan:
    """The plan of a site, a new one if it is due."""
    now, plans = state.clock.now, state.provisioning.plans
    plan = plans.get(site)
    if plan is not None:
        changed = plan.expected != site.expected or plan.live != len(site.pilots) or plan.most != most
        pause = plan.pause_seconds if not changed else _pause_seconds(state) if plan.need is not None else 0.0
        if now < plan.at + pause:
            _wake(state, plan.at + pause)
            return plan
    plan = _plan(state, site, most, work)
    if any(_is_awaited(state, pilot) for pilot in site.pilots.values()):
        again_seconds = _AWAITED_INTERVALS * state.settings.interval_seconds
        plan = msgspec.structs.replace(plan, pause_seconds=min(again_seconds, plan.pause_seconds))
    plans[site] = plan
    _wake(state, now + plan.pause_seconds)
    return plan


def _pause_seconds(state: EngineState) -> float:
    """The shortest time between two forecasts for a site."""
    return max(REPLAN_SECONDS_MIN, _SITE_SECONDS * len(state.sites.by_name))


def _wake(state: EngineState, at: float) -> None:
    """Set a timer, unless an earlier one is set."""
    if not state.clock.now < state.provisioning.replan_at <= at:
        state.provisioning.replan_at = at
        state.clock.timers.at(at, Due.PROVISION, "")


def _plan(state: EngineState, site: SiteState, most: int, work: WaitingWork) -> PilotPlan:
    from pilotage.forecast.makespan import provision  # as above

    queued = queued_pilots(site)
    plan = PilotPlan(
        at=state.clock.now,
        expected=site.expected,
        live=len(site.pilots),
        most=most,
        queued=len(queued),
        wanted=len(queued) + most,
        kept=len(queued),
        pause_seconds=REPLAN_SECONDS,
    )
    if site.profile.canary:
        return plan.because("it was just woken")
    known = state.latencies.known(site, now=state.clock.wall_time)
    if known is None:
        starts = state.latencies.at(site.name).history.starts()
        return plan.because(f"of {STARTS_MIN} starts that a forecast needs, {starts} are known")
    need = need_of(state, site, queued, most, work)
    if need is None:
        return plan.because("the run time of its packages is not known yet")
    before = state.provisioning.plans.get(site)
    period = before.period if before is not None else None
    if period is None or not period.goes_on(need.work_seconds):
        period = WorkPeriod(begun_at=plan.at, work_seconds=need.work_seconds)
    period = msgspec.structs.replace(period, work_seconds=min(period.work_seconds, need.work_seconds))
    need = replace(
        need,
        since_seconds=plan.at - period.begun_at,
        promised_seconds=period.promised_at - plan.at,
        spent_seconds=period.spent_seconds,
    )
    within = state.settings.provisioning_within
    found = provision(known.latency, need, within=within)
    if found is None:
        return plan.because("its pilots end before the work does")
    if math.isinf(period.promised_at):
        period = msgspec.structs.replace(period, promised_at=plan.at + (1.0 + within) * found.best_seconds)
    return plan.lowered(found, need=need, known=known, period=period)


def queued_pilots(site: SiteState) -> list[PilotRequest]:
    """The requested pilots that have not started, probes excluded; the newest last."""
    return [
        each for each in site.requests.values() if not each.contacted and not is_test_pilot(each.key, site=site.name)
    ]


def need_of(
    state: EngineState, site: SiteState, queued: Iterable[PilotRequest], most: int, work: WaitingWork
) -> Need | None:
    """What is to be done at a site, in seconds of a whole pilot of it, and by which pilots; None if no run time is known."""
    from pilotage.forecast.makespan import Need  # as above

    capacity, speed = site.site.capacity, site.site.speed
    parts = [
        (queue, packages, seconds / speed, slots)
        for queue, packages, seconds in work.at(site)
        if packages and (slots := slots_for(queue.demand, capacity))
    ]
    known = math.fsum(packages for _, packages, seconds, _ in parts if seconds)
    if not known:
        return None
    mean = math.fsum(packages * seconds for _, packages, seconds, _ in parts) / known
    work_seconds = math.fsum(packages * (seconds or mean) / slots for _, packages, seconds, slots in parts)
    largest = max(parts, key=lambda part: part[1])[0]
    waited = tuple(max(0.0, state.clock.wall_time - each.requested_at) for each in queued)
    return Need(
        work_seconds=work_seconds,
        package_seconds=mean,
        running=(*_running_here(state, site), *_running_elsewhere(state, site, largest)),
        queued_seconds=waited,
        queued_max=len(waited) + most,
        lifetime_seconds=site.site.wall_seconds or math.inf,
        start_cost_seconds=site.start_costs.seconds() or 0.0,
    )


def _is_awaited(state: EngineState, pilot: PilotState) -> bool:
    """Whether a pilot of an earlier service has made no contact yet, and may soon."""
    return (
        not pilot.sequence and state.clock.now < pilot.heard_at + _AWAITED_INTERVALS * state.settings.interval_seconds
    )


def _running_here(state: EngineState, site: SiteState) -> Iterator[tuple[float, float]]:
    """The pilots of a site that take work, by how long they will."""
    lives: dict[float, int] = {}
    for pilot in site.pilots.values():
        if pilot.leaving or pilot.draining or pilot.suspect:
            continue
        if pilot.sequence or _is_awaited(state, pilot):
            left = math.inf
            if pilot.ends_at is not None:
                left = max(0.0, round((pilot.ends_at - state.clock.now) / _LIFE_SECONDS) * _LIFE_SECONDS)
            lives[left] = lives.get(left, 0) + 1
    return ((float(count), left) for left, count in lives.items())


def _running_elsewhere(state: EngineState, site: SiteState, queue: QueueClass) -> Iterator[tuple[float, float]]:
    """The slots of other sites for a class, as pilots of this one: they share the work, and are replaced while there is any."""
    pool, slots = state.placement.pool(queue), slots_for(queue.demand, site.site.capacity)
    for other in state.sites.by_name.values():
        if other is not site and other.pilots and not other.asleep and pool.allowed(other.index):
            share = other.slots[queue.shape] / slots * other.site.speed / site.site.speed
            if share:
                yield share, math.inf


# --- queued pilots that are not needed ----------------------------------------------------------------------------------


def _cancel_surplus(state: EngineState, site: SiteState, plan: PilotPlan) -> None:
    """Cancel queued pilots that were not needed for a while, the newest first."""
    now, since = state.clock.now, state.provisioning.surplus_since
    surplus = plan.queued - plan.kept
    if surplus <= 0:
        since.pop(site, None)
        return
    if now < (due := since.setdefault(site, now) + SURPLUS_SECONDS):
        _wake(state, due)
        return
    young = state.clock.wall_time - YOUNG_SECONDS
    cancelled = [each for each in queued_pilots(site)[-surplus:] if each.requested_at <= young]
    for request in cancelled:
        cancel_queued(state, site, request)
    if cancelled and plan.known is not None and plan.need is not None:
        from pilotage.forecast.makespan import finish_seconds  # as above

        finish = finish_seconds(plan.known.latency, plan.need, queued=plan.queued - len(cancelled))
        state.provisioning.plans[site] = plan.spending(finish - plan.best_seconds)


def cancel_queued(state: EngineState, site: SiteState, request: PilotRequest) -> None:
    """Cancel a queued pilot."""
    state.log.effects.append(CancelSubmitted(site=site.name, key=request.key))
    state.log.write(payloads.PilotEnded(reason="withdrawn"), pilot=request.key)


# --- in words -----------------------------------------------------------------------------------------------------------


class PlanWhy(NamedTuple):
    """How many pilots a site should have, those that run included, and why."""

    code: str  # forecast, all or none
    wanted: int | None  # None: no work waits
    message: str


def explain_plan(state: EngineState, site: SiteState) -> PlanWhy:
    """How many pilots a site should have, and why."""
    from pilotage.forecast.makespan import describe_seconds, finish_seconds  # as above

    if not forecasts(state, site):
        how = "it has no queue" if site.site.kind == "local" else "the settings say so"
        return PlanWhy("all", None, f"as many pilots are requested as the work could use: {how}")
    plan = state.provisioning.plans.get(site)
    if plan is None or not any(packages for _, packages, _ in WaitingWork(state).at(site)):
        return PlanWhy("none", None, "no work waits for more pilots")
    age_seconds = state.clock.now - plan.at
    age = f"; planned {describe_seconds(age_seconds)} ago" if age_seconds >= _OLD_SECONDS else ""
    wanted = plan.live + plan.wanted
    pilots = "1 pilot is" if wanted == 1 else f"{wanted} pilots are"
    if plan.need is None or plan.known is None:
        return PlanWhy("all", wanted, f"{pilots} wanted, as many as the work could use: {plan.message}{age}")
    finish = describe_seconds(finish_seconds(plan.known.latency, plan.need, queued=plan.wanted))
    within, best = 100 * state.settings.provisioning_within, describe_seconds(plan.best_seconds)
    return PlanWhy(
        "forecast",
        wanted,
        f"{pilots} wanted: with {'it' if wanted == 1 else 'them'} the work is expected to be done in {finish},"
        f" within {within:g} % of {best}, the best with {plan.live + plan.best_queued};"
        f" forecast from {plan.known.starts} starts {_BASIS[plan.known.basis]}{age}",
    )


_OLD_SECONDS = 10.0
_BASIS: dict[str, str] = {
    "user and shape": "of such pilots",
    "site": "at this site",
    "probes": "at this site, probes included",
}
