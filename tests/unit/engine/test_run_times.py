"""What an engine expects of run times: observed by kind and activity, else the document's; and the work that is left."""

from __future__ import annotations

import pytest

from pilotage.engine.state.job_queries import ACTIVE_MAX, KindWork, running_packages, work_left
from pilotage.engine.state.run_times import LEARNED_MAX, LEARNED_MIN, RunTimes, StartCosts
from pilotage.model.events import payloads
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.jobs.estimates import EarlierRunTime
from pilotage.model.resources import Capacity
from pilotage.model.states import ExitCodeGasw, Phase
from tests.kit.small_engine import Agent, Small
from tests.kit.small_plans import bag, kind, plan, site, stage

TWO = plan(stage(3, kind("filter")), stage(4, kind("merge", run_seconds=30.0)))


def times_of(*seconds: float, of: int = 0) -> RunTimes:
    """Run times of packages of one kind."""
    found = RunTimes()
    for each in seconds:
        found.add(of, each)
    return found


def finish(pilot: Agent, *phases: tuple[Phase, float]) -> None:
    """Let a pilot with one slot finish its package, whose phases took so long."""
    [ref] = pilot.held
    told = tuple(PhaseTimes(phase=phase, started_at=0.0, seconds=seconds) for phase, seconds in phases)
    pilot.say(payloads.AttemptFinished(exit_code=ExitCodeGasw.SUCCESS, phases=told, manifest=()), ref)
    del pilot.held[ref]
    pilot.exchange()


def left(small: Small) -> list[KindWork]:
    """The work left of the job."""
    return work_left(small.engine.state.jobs.by_id["j"], small.now)


def test_before_any_package_has_finished_the_estimate_of_the_document_is_expected() -> None:
    filtering, merging = RunTimes().expected(TWO)
    assert (filtering.known, filtering.mean_seconds) == ("unknown", 0.0)
    assert (merging.known, merging.mean_seconds) == ("document", 30.0)


def test_finished_packages_replace_the_estimate_once_there_are_enough() -> None:
    few, enough = times_of(*[10.0] * (LEARNED_MIN - 1), of=1), times_of(*[10.0, 20.0] * LEARNED_MIN, of=1)
    assert few.expected(TWO)[1].known == "document"
    known = enough.expected(TWO)[1]
    assert (known.known, known.mean_seconds, known.observed) == ("observed", 15.0, 2.0 * LEARNED_MIN)
    assert known.sd_seconds == pytest.approx(5.0)


def test_a_single_package_is_expected_again_where_nothing_else_is_known_and_its_spread_is_not_zero() -> None:
    known = times_of(40.0).expected(TWO)[0]
    assert (known.known, known.mean_seconds) == ("observed", 40.0)
    assert known.sd_seconds > 10.0


def test_kinds_of_one_activity_are_taken_together_while_each_has_few() -> None:
    alike = plan(stage(3, kind("run")), stage(3, kind("run")), stage(3, kind("other")))
    known = times_of(10.0, of=0)
    known.add(1, 30.0)
    assert [each.mean_seconds for each in known.expected(alike)] == [20.0, 20.0, 0.0]


def test_packages_that_become_slower_are_followed_and_what_is_kept_is_bounded() -> None:
    known = times_of(*[10.0] * LEARNED_MAX, *[100.0] * (2 * LEARNED_MAX))
    assert known.by_kind[0][0] <= LEARNED_MAX
    assert known.expected(TWO)[0].mean_seconds > 60.0


def test_an_engine_that_takes_over_starts_from_what_was_recorded() -> None:
    before = times_of(*[10.0, 20.0] * LEARNED_MIN)
    again = RunTimes()
    again.restore(before.record(TWO, most=10))
    assert again.expected(TWO)[0] == pytest.approx(before.expected(TWO)[0])
    again.add(0, 400.0)
    assert again.expected(TWO)[0].mean_seconds > before.expected(TWO)[0].mean_seconds


def test_earlier_runs_count_where_the_document_says_nothing_and_until_packages_of_the_job_do() -> None:
    known = RunTimes()
    known.expect([EarlierRunTime(activity=each, mean_seconds=100.0, sd_seconds=10.0) for each in ("filter", "merge")])
    filtering, merging = known.expected(TWO)
    assert (filtering.known, filtering.mean_seconds) == ("observed", 100.0)
    assert (merging.known, merging.mean_seconds) == ("document", 30.0)
    for _ in range(LEARNED_MIN):
        known.add(0, 1.0)
    assert known.expected(TWO)[0].mean_seconds == 1.0


def test_only_the_activities_with_most_packages_are_recorded() -> None:
    known = times_of(1.0, 2.0)
    known.add(1, 5.0)
    assert [(each.activity, each.count, each.mean_seconds) for each in known.record(TWO, most=1)] == [
        ("filter", 2.0, 1.5)
    ]


def test_a_run_time_is_that_of_inputs_application_and_outputs_on_the_standard_platform() -> None:
    with Small(site("a", speed=2.0)) as small:
        small.submit(bag(2))
        finish(small.pilot(), ("setup", 100.0), ("inputs", 1.0), ("application", 10.0), ("outputs", 2.0))
        [known] = small.engine.state.jobs.by_id["j"].run_times.expected(bag(2))
        assert known.mean_seconds == 26.0
        small.finish()


def test_the_work_left_counts_packages_that_are_not_over_and_what_running_ones_have_spent() -> None:
    with Small(site("a", capacity=Capacity(cores_hundredths=200))) as small:
        small.submit(plan(stage(3, kind("filter")), stage(1, kind("merge")), edges=[("1.1.1", "2.1.1")]))
        pilot = small.pilot()
        assert [(each.activity, each.packages, each.running, each.spent_seconds) for each in left(small)] == [
            ("filter", 3, 2, 0.0),
            ("merge", 1, 0, 0.0),
        ]
        pilot.succeed("1.1.1", after=8.0)
        small.wait(4.0, pilot)
        [filtering, merging] = left(small)
        assert (filtering.packages, filtering.running, filtering.spent_seconds) == (2, 2, 12.0 + 4.0)
        assert filtering.expected.mean_seconds == 8.0
        assert (merging.packages, merging.expected.known) == (1, "unknown")
        pilot.heard()
        small.finish()
    assert left(small) == []


def test_of_many_running_packages_some_stand_for_all() -> None:
    count = 3 * ACTIVE_MAX
    with Small(site("a", capacity=Capacity(cores_hundredths=100 * count))) as small:
        small.submit(bag(2 * count))
        pilot = small.pilot()
        small.wait(7.0, pilot)
        [known] = left(small)
        looked_at = running_packages(small.engine.state.jobs.by_id["j"], small.now)
        assert sum(map(len, looked_at.spent_seconds.values())) <= ACTIVE_MAX
        assert known.running == pytest.approx(len(pilot.held), rel=0.01)
        assert known.spent_seconds == pytest.approx(7.0 * len(pilot.held), rel=0.01)
        pilot.unread.clear()
        small.finish()


def test_the_start_of_a_pilot_costs_what_its_first_attempt_needs_beyond_later_ones() -> None:
    costs = StartCosts()
    for seconds in (50.0, 70.0, 60.0):
        costs.add_first("run", seconds)
    assert costs.seconds() is None
    for seconds in (1.0, 2.0, 3.0):
        costs.add_later("run", seconds)
    assert costs.seconds() == 58.0
    costs.add_first("other", 1e6)  # nothing to compare it with
    assert costs.seconds() == 58.0


def test_a_site_learns_the_start_cost_of_its_pilots() -> None:
    with Small(site("a", pilots=3)) as small:
        small.submit(bag(12))
        for pilot in [small.pilot() for _ in range(3)]:
            finish(pilot, ("setup", 30.0), ("inputs", 10.0), ("application", 5.0))
            for _ in range(2):
                finish(pilot, ("inputs", 1.0), ("application", 5.0))
        assert small.engine.state.sites.by_name["a"].start_costs.seconds() == 39.0
        small.finish()


def test_failed_attempts_are_expected_as_often_and_as_long_as_they_were() -> None:
    known = times_of(*[10.0] * 9)
    for _ in range(5):
        known.add_repeat(0)
        known.add_failed(0, 4.0)
    found = known.expected(TWO)[0]
    assert (found.mean_seconds, found.repeats, found.failed_seconds) == (10.0, 0.5, 4.0)
    assert known.expected(TWO)[1].repeats == 0.0


def test_an_engine_that_takes_over_does_not_take_packages_of_the_one_before_for_packages_without_failures() -> None:
    again = RunTimes()
    again.restore(times_of(*[10.0] * 200).record(TWO, most=10))
    again.add(0, 10.0)
    again.add_repeat(0)
    again.add_failed(0, 10.0)
    assert again.expected(TWO)[0].repeats == 0.5


def test_failures_of_long_ago_count_less_as_run_times_do() -> None:
    known = times_of(*[10.0] * LEARNED_MAX)
    for _ in range(LEARNED_MAX):
        known.add_repeat(0)
        known.add_failed(0, 4.0)
    before = known.expected(TWO)[0].repeats
    for _ in range(2 * LEARNED_MAX):
        known.add(0, 10.0)
    assert before > 0.9
    assert known.expected(TWO)[0].repeats < 0.5 * before


def test_an_attempt_counts_as_repeated_if_the_package_was_tried_before_and_not_if_it_is_given_up() -> None:
    once = kind("run", retry=Retry(rules=(RetryRule(reason="application-error", action="give-up"),)))
    with Small(site("a", capacity=Capacity(cores_hundredths=200))) as small:
        small.submit(bag(4, once))
        pilot = small.pilot()
        pilot.fail("1.1.1", "application-error", after=8.0)
        pilot.heard()
        times = small.engine.state.jobs.by_id["j"].run_times
        assert times.failed[0] == [0.0, 1.0, 8.0]
        pilot.fail("1.2.1", "preempted", after=4.0)
        while "1.2.1" not in pilot.packages:
            pilot.succeed(*pilot.packages, after=1.0)
            pilot.heard()
        assert times.failed[0] == [1.0, 2.0, 20.0]
        small.finish()
