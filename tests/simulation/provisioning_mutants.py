"""Planted bugs in how many pilots are requested by forecast, and which queued ones are withdrawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from pilotage.engine.decisions import forecast_provisioning
from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.sites import PilotRequest, SiteState
from pilotage.engine.state.tables import PilotPlan
from pilotage.forecast import history, makespan
from pilotage.forecast.latency import LatencyDistribution
from pilotage.forecast.makespan import Need, Provision
from tests.simulation.mutants import Patch, graft, mutant


@mutant(first_seed=2, by="provisioning")
def half_of_the_pilots_are_thought_to_do(patch: Patch) -> None:
    """The tolerance is taken twice, and then some: the work is done far too late."""
    planned = makespan.provision

    def provision(latency: LatencyDistribution, need: Need, *, within: float) -> Provision | None:
        found = planned(latency, need, within=within)
        return found if found is None else replace(found, queued=found.queued // 2, kept=found.kept // 2)

    graft(patch, planned, provision)


@mutant(first_seed=2, by="provisioning")
def more_pilots_are_requested_than_the_work_could_use(patch: Patch) -> None:
    """A forecast may raise what is wanted."""
    planned = makespan.provision

    def provision(latency: LatencyDistribution, need: Need, *, within: float) -> Provision | None:
        return planned(latency, replace(need, queued_max=2 * need.queued_max), within=within)

    graft(patch, planned, provision)
    lowered = PilotPlan.lowered

    def raised(self: PilotPlan, found: Provision, **about: Any) -> PilotPlan:
        return msgspec.structs.replace(lowered(self, found, **about), wanted=found.queued)

    patch.setattr(PilotPlan, "lowered", raised)


@mutant(first_seed=2, by="provisioning")
def every_pilot_is_expected_to_start_as_early_as_the_luckiest(patch: Patch) -> None:
    """Pilots are requested that start after the work is done."""
    graft(patch, makespan.expected_start_seconds, lambda latency: latency.lower_bound_seconds)


@mutant(first_seed=2, by="provisioning")
def a_queued_pilot_counts_as_if_it_were_requested_now(patch: Patch) -> None:
    """How long a pilot has waited is forgotten."""
    counted = forecast_provisioning.need_of

    def need_of(*about: Any) -> Need | None:
        found = counted(*about)
        return found if found is None else replace(found, queued_seconds=(0.0,) * len(found.queued_seconds))

    graft(patch, counted, need_of)


@mutant(first_seed=2, by="provisioning")
def a_few_starts_are_enough_for_a_forecast(patch: Patch) -> None:
    """A site is taken for known after ten starts."""
    patch.setattr(history, "STARTS_MIN", 10)


@mutant(first_seed=2, by="provisioning")
def queued_pilots_are_withdrawn_as_soon_as_fewer_would_do(patch: Patch) -> None:
    """What was requested a minute ago is withdrawn, and requested again later."""
    patch.setattr(forecast_provisioning, "YOUNG_SECONDS", 0.0)
    patch.setattr(forecast_provisioning, "SURPLUS_SECONDS", 0.0)


@mutant(first_seed=142, by="provisioning")
def the_pilots_that_have_waited_longest_are_withdrawn(patch: Patch) -> None:
    """The surplus is taken from the wrong end of the queue."""
    queued = forecast_provisioning.queued_pilots

    def cancel_surplus(state: EngineState, site: SiteState, plan: PilotPlan) -> None:
        for request in queued(site)[: max(0, plan.queued - plan.kept)]:
            cancel_if_old(state, site, request)

    def cancel_if_old(state: EngineState, site: SiteState, request: PilotRequest) -> None:
        if state.clock.wall_time >= request.requested_at + forecast_provisioning.YOUNG_SECONDS:
            forecast_provisioning.cancel_queued(state, site, request)

    graft(patch, forecast_provisioning._cancel_surplus, cancel_surplus)


@mutant(first_seed=78, by="provisioning")
def all_queued_pilots_are_withdrawn_when_some_are_not_needed(patch: Patch) -> None:
    """The work that is left waits for pilots that are requested anew."""

    def cancel_surplus(state: EngineState, site: SiteState, plan: PilotPlan) -> None:
        for request in forecast_provisioning.queued_pilots(site) if plan.queued > plan.kept else ():
            if state.clock.wall_time >= request.requested_at + forecast_provisioning.YOUNG_SECONDS:
                forecast_provisioning.cancel_queued(state, site, request)

    graft(patch, forecast_provisioning._cancel_surplus, cancel_surplus)
