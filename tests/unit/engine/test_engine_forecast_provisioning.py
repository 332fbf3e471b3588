"""Pilots by forecast: fewer than the work could use where that is hardly slower, more where they do not come, and no to and fro."""

from __future__ import annotations

import math

import pytest

from pilotage.engine.decisions.forecast_provisioning import (
    REPLAN_SECONDS,
    SURPLUS_SECONDS,
    YOUNG_SECONDS,
    PlanWhy,
    explain_plan,
)
from pilotage.engine.state.tables import PilotPlan
from pilotage.forecast.history import Submitter
from pilotage.forecast.pilot_records import shape_of_pilots
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted, Kill, ProbeSite, SubmitPilot
from pilotage.model.exchange.reports import Gone
from pilotage.model.resources import Capacity
from pilotage.model.site import Site
from pilotage.service.messages import SiteOperationRequest, SitesChanged
from tests.kit.small_engine import START, Agent, Small
from tests.kit.small_plans import bag, kind, plan, site, stage

LATENCY_SECONDS = 600.0
LYON = Site(name="lyon", kind="slurm", capacity=Capacity(cores_hundredths=100), pilots_max=50)
SHORT = kind(run_seconds=60.0)


def knows(small: Small, name: str, latency_seconds: float = LATENCY_SECONDS, *, starts: int = 30) -> None:
    """Let the engine have seen so many pilots start at a site, all after the same time."""
    there = small.engine.state.sites.by_name[name].site
    history = small.engine.state.latencies.at(name).history
    for number in range(starts):
        history.started(
            Submitter("", shape_of_pilots(there)), at=START - 7200.0 + number, latency_seconds=latency_seconds
        )


def small_with(*sites: Site, latency_seconds: float = LATENCY_SECONDS, starts: int = 30, **settings: object) -> Small:
    made = Small(*sites, **settings)
    for each in sites:
        if each.kind != "local":
            knows(made, each.name, latency_seconds, starts=starts)
    return made


def current(small: Small, name: str = "lyon") -> PilotPlan:
    return small.engine.state.provisioning.plans[small.engine.state.sites.by_name[name]]


def described(small: Small, name: str = "lyon") -> PlanWhy:
    return explain_plan(small.engine.state, small.engine.state.sites.by_name[name])


def requested(small: Small) -> int:
    """How many pilots were requested so far; submissions without an answer are repeated."""
    small.take(SubmitPilot)
    return len({one.event.pilot for one in small.book if isinstance(one.data, payloads.PilotRequested)})


def withdrawn(small: Small) -> list[str]:
    return [one.event.pilot or "" for one in small.book if getattr(one.data, "reason", "") == "withdrawn"]


def test_as_few_pilots_are_requested_as_finish_within_a_tenth() -> None:
    with small_with(LYON) as small:
        small.submit(bag(500, SHORT))
        # 50 pilots would be done after 600 s and ten packages each: 1,200 s. Within a tenth of it 43 are, with 12 each: 1,320 s.
        assert requested(small) == 42
        assert current(small).best_seconds == pytest.approx(1200, rel=0.04)
        assert described(small) == PlanWhy(
            "forecast",
            42,
            "42 pilots are wanted: with them the work is expected to be done in 23 min, within 10 % of 21 min, the best with 50;"
            " forecast from 30 starts of such pilots",
        )


def test_all_pilots_that_the_work_could_use_are_requested_where_the_settings_say_so() -> None:
    with small_with(LYON, provisioning="all") as small:
        small.submit(bag(500, SHORT))
        assert requested(small) == 50
        assert described(small).code == "all"


def test_a_larger_tolerance_wants_fewer() -> None:
    with small_with(LYON, provisioning_within=1.0) as small:
        small.submit(bag(500, SHORT))
        assert requested(small) == 17  # 30 packages each take 1,800 s


def test_below_thirty_starts_all_are_requested_and_the_explanation_says_so() -> None:
    with small_with(LYON, starts=29) as small:
        small.submit(bag(500, SHORT))
        assert requested(small) == 50
        assert described(small) == PlanWhy(
            "all",
            50,
            "50 pilots are wanted, as many as the work could use: of 30 starts that a forecast needs, 29 are known",
        )


def test_all_are_requested_while_no_run_time_is_known() -> None:
    with small_with(LYON) as small:
        small.submit(bag(500))
        assert requested(small) == 50
        assert "run time" in described(small).message


def test_a_local_site_has_no_queue_and_is_left_alone() -> None:
    here = site("here", cores=1, pilots=4)
    assert here.kind == "local"
    with small_with(here) as small:
        knows(small, "here")
        small.submit(bag(500, SHORT))
        assert requested(small) == 4
        assert not small.engine.state.provisioning.plans
        assert "no queue" in described(small, "here").message


def test_nobody_is_asked_for_who_would_start_after_the_work_is_done() -> None:
    with small_with(LYON) as small:
        small.submit(bag(3, SHORT))
        # One pilot would be done after 13 minutes, two after 12, three after 11: two are within a tenth.
        pilots = [small.pilot("lyon"), small.pilot("lyon")]
        assert requested(small) == 2
        small.submit(bag(10, SHORT), job="k")
        small.wait(30, *pilots)
        assert requested(small) == 2  # five more minutes of work, and ten to wait
        assert current(small).best_queued == 0
        for each in pilots:
            each.unread.clear()


def test_where_pilots_do_not_come_more_are_requested_up_to_all() -> None:
    with small_with(LYON) as small:
        small.submit(bag(100, SHORT))
        first = requested(small)
        assert 0 < first < 50
        small.wait(LATENCY_SECONDS + 3 * REPLAN_SECONDS)
        assert requested(small) > first + 10
        assert not withdrawn(small)


def settled(small: Small, seconds: float, *alive: Agent) -> None:
    small.wait(seconds, *alive)
    for each in alive:
        each.unread.clear()


def test_in_a_world_where_nothing_happens_nothing_is_requested_or_withdrawn_again() -> None:
    with small_with(LYON) as small:
        small.submit(bag(500, SHORT))
        assert requested(small) == 42
        settled(small, 500.0)
        assert (requested(small), withdrawn(small)) == (42, [])


def test_queued_pilots_are_withdrawn_when_much_less_work_is_left_the_newest_first() -> None:
    with small_with(LYON) as small:
        small.submit(bag(500, SHORT))
        small.submit(bag(20, SHORT), job="k")
        keys = [each.key for each in small.take(SubmitPilot)]
        small.wait(100)
        small.ask(Kill(job="j"))
        small.wait(YOUNG_SECONDS - 101)
        assert not withdrawn(small)  # too young
        small.wait(2 * REPLAN_SECONDS + SURPLUS_SECONDS)
        gone = [each.key for each in small.take(CancelSubmitted)]
        assert gone == withdrawn(small) == keys[-len(gone) :]
        left = len(keys) - len(gone)
        assert left == 20  # for 20 packages of a minute, that start together
        small.effects.clear()


def test_a_probe_is_neither_counted_nor_withdrawn() -> None:
    with small_with(LYON) as small:
        small.step(SiteOperationRequest(token=1, operation=ProbeSite(site="lyon")))
        small.answers.clear()
        small.submit(bag(500, SHORT))
        small.wait(2)
        assert requested(small) == 1 + 41  # one fewer is allowed
        assert current(small).queued == 0


def test_slots_of_other_sites_that_share_the_work_leave_less_to_do() -> None:
    here = site("here", cores=40, pilots=1)
    with small_with(here, LYON) as small:
        small.submit(bag(500, SHORT))
        pilot = small.pilot("here")
        small.effects.clear()
        small.wait(30, pilot)
        need = current(small).need
        assert need is not None
        assert (40.0, math.inf) in need.running
        assert current(small).wanted < 5  # twelve minutes of work here, of which ten pass before another pilot starts
        pilot.unread.clear()


def test_work_that_waits_for_producers_counts() -> None:
    lines = [(f"1.{n}.1", f"2.{n}.1") for n in range(1, 51)]
    with small_with(LYON) as small:
        small.submit(plan(stage(50, SHORT), stage(50, SHORT), edges=lines))
        need = current(small).need
        assert need is not None
        assert need.work_seconds == 100 * 60.0
        small.effects.clear()


def test_a_pilot_with_several_slots_does_as_much_as_several() -> None:
    wide = Site(name="lyon", kind="slurm", capacity=Capacity(cores_hundredths=1000), pilots_max=50, speed=2.0)
    with small_with(wide) as small:
        small.submit(bag(500, SHORT))
        need = current(small).need
        assert need is not None
        assert (need.work_seconds, need.package_seconds) == (500 * 30.0 / 10, 30.0)
        small.effects.clear()


def test_a_restarted_engine_plans_again_from_what_the_book_knows() -> None:
    with small_with(LYON) as small:
        small.submit(bag(500, SHORT))
        assert requested(small) == 42
        small.core = small.restarted()
        knows(small, "lyon")
        small.engine.state.latencies.at("lyon").record_scheduled = False
        settled(small, 30.0)
        assert (current(small).queued, current(small).wanted) == (42, 42)
        assert requested(small) == 42
        small.effects.clear()


def test_pilots_that_an_earlier_service_left_count_for_two_intervals_unless_they_make_contact() -> None:
    with small_with(LYON) as small:
        small.submit(bag(500, SHORT))
        pilots = [small.pilot("lyon") for _ in range(4)]
        small.core = small.restarted()
        knows(small, "lyon")
        small.engine.state.latencies.at("lyon").record_scheduled = False
        small.wait(5.0, pilots[0])
        need = current(small).need
        assert need is not None
        assert sum(count for count, _ in need.running) == 4
        small.wait(20.0, pilots[0])
        need = current(small).need
        assert need is not None
        assert sum(count for count, _ in need.running) == 1
        small.effects.clear()
        for each in pilots:
            each.unread.clear()


def test_a_plan_is_told_while_work_waits_and_how_old_it_is() -> None:
    with small_with(LYON) as small:
        small.submit(bag(500, SHORT))
        assert requested(small) == 42
        assert "ago" not in described(small).message
        settled(small, 10.0)
        small.wait(30.0)
        assert described(small).message.endswith("; planned 30 s ago")
        small.ask(Kill(job="j"))
        assert described(small) == PlanWhy("none", None, "no work waits for more pilots")
        small.effects.clear()


def test_a_site_that_is_gone_has_no_plan() -> None:
    with small_with(LYON, site("here")) as small:
        small.submit(bag(5, SHORT))
        keys = [each.key for each in small.take(SubmitPilot) if each.site == "lyon"]
        assert [each.name for each in small.engine.state.provisioning.plans] == ["lyon"]
        small.step(SitesChanged(sites=(site("here"),)))
        small.step(*(Gone(site="lyon", key=key, reason="cancelled") for key in keys))
        small.step(SitesChanged(sites=(site("here"),)))
        small.effects.clear()
        assert not small.engine.state.provisioning.plans
