"""Healing in the engine: late packages get copies, the first success ends the others, and what was done is in the book."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.events.healing_payloads import HealingDecided, HealingLearned, IncidentsLearned
from pilotage.model.exchange.operations import Hold
from pilotage.model.settings.engine import HealingSettings
from pilotage.model.states import Phase
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import bag, kind, plan, site, stage

MODES = ("paper", "predictive")


def end(pilot: Agent, package: str, **seconds: float) -> None:
    """A package succeeded, with these times of its phases."""
    names: tuple[Phase, ...] = ("setup", "inputs", "application", "outputs")
    data = payloads.AttemptFinished(
        exit_code="SUCCESS",  # type: ignore[arg-type]
        manifest=(),
        phases=tuple(
            payloads.PhaseTimes(phase=each, started_at=0.0, seconds=seconds[each]) for each in names if each in seconds
        ),
    )
    ref = pilot.ref(package)
    pilot.say(data, ref)
    pilot.held.pop(ref)


def decided(small: Small) -> list[HealingDecided]:
    return [msgspec.json.decode(each.data, type=HealingDecided) for each in small.told(HealingDecided)]


def wanted(small: Small, package: str) -> list[payloads.ReplicaWanted]:
    return [
        msgspec.json.decode(each.data, type=payloads.ReplicaWanted)
        for each in small.told(payloads.ReplicaWanted, package)
    ]


def stalled(small: Small, *, packages: int = 8, **template: Any) -> tuple[Agent, Agent]:
    """Two sites; all packages but the last are done in 100 s each, and the last one, at the first site, stalls in its inputs."""
    small.submit(bag(packages, kind(**template)))
    one, two = small.pilot("a"), small.pilot("b")
    last = f"1.{packages}.1"
    while True:
        one.exchange()
        two.exchange()
        left = [each for pilot in (one, two) for each in pilot.packages if each != last]
        if not left:
            break
        small.wait(100.0, one, two)
        for pilot in (one, two):
            for package in [each for each in pilot.packages if each != last]:
                end(pilot, package, inputs=20.0, application=70.0, outputs=10.0)
            pilot.exchange()
    holder = one if last in one.packages else two
    holder.say(payloads.PhaseEntered(phase="inputs"), holder.ref(last))
    holder.exchange()
    return (one, two) if holder is one else (two, one)


@pytest.mark.parametrize("mode", MODES)
def test_a_stalled_package_gets_a_copy_elsewhere_whose_success_ends_the_first(mode: str) -> None:
    with Small(site("a"), site("b"), healing=mode) as small:
        holder, other = stalled(small)
        small.wait(60.0, holder, other)
        (replica,) = wanted(small, "1.8.1")
        assert replica.cause == "healing"
        (decision,) = [each for each in small.told(HealingDecided) if each.n == replica.decision]
        said = msgspec.json.decode(decision.data, type=HealingDecided)
        assert [(each.treatment, each.package) for each in said.treated] == [("replicate", "1.8.1")]
        assert said.incidents[said.drawn - 1].kind == "blocked-activity"
        assert other.packages == ["1.8.1"]
        assert other.ref("1.8.1").attempt == 2
        other.succeed("1.8.1")
        small.wait(20.0, holder, other)
        assert holder.packages == []
        holder.unread.clear()  # it was told to stop
        health = small.engine.state.healing.of(JOB)
        assert 0.0 < health.healing_seconds < 400.0  # of the first attempt, since it had a rival
        assert 0.0 < health.waste(small.now) < 0.5
        small.finish()


def test_nothing_is_copied_with_healing_off() -> None:
    with Small(site("a"), site("b"), healing="off") as small:
        holder, other = stalled(small)
        small.wait(2000.0, holder, other)
        assert wanted(small, "1.8.1") == []
        assert decided(small) == []
        holder.succeed("1.8.1")
        small.finish()


@pytest.mark.parametrize("mode", MODES)
def test_a_package_with_side_effects_is_never_copied(mode: str) -> None:
    with Small(site("a"), site("b"), healing=mode) as small:
        holder, other = stalled(small, side_effects=True)
        small.wait(2000.0, holder, other)
        assert wanted(small, "1.8.1") == []
        assert any("side effects" in each.message for each in decided(small))
        holder.succeed("1.8.1")
        small.finish()


@pytest.mark.parametrize("mode", MODES)
def test_a_package_that_may_have_one_attempt_starts_anew_elsewhere_if_its_application_has_not_begun(mode: str) -> None:
    with Small(site("a"), site("b"), healing=mode) as small:
        holder, other = stalled(small, replicas_max=1)
        small.wait(100.0, holder, other)
        assert wanted(small, "1.8.1") == []
        treated = [each.treatment for said in decided(small) for each in said.treated]
        assert treated == ["reschedule"]
        assert (holder.packages, other.packages) == ([], ["1.8.1"])
        holder.unread.clear()
        other.succeed("1.8.1")
        small.finish()


@pytest.mark.parametrize("mode", MODES)
def test_a_package_that_may_have_one_attempt_keeps_it_once_its_application_runs(mode: str) -> None:
    with Small(site("a"), site("b"), healing=mode) as small:
        holder, other = stalled(small, replicas_max=1)
        holder.say(payloads.PhaseEntered(phase="application"), holder.ref("1.8.1"))
        holder.exchange()
        small.wait(2000.0, holder, other)
        assert wanted(small, "1.8.1") == []
        assert [each for said in decided(small) for each in said.treated] == []
        holder.succeed("1.8.1")
        small.finish()


@pytest.mark.parametrize("mode", MODES)
def test_medians_are_not_trusted_before_enough_packages_have_finished(mode: str) -> None:
    with Small(site("a"), site("b"), healing=mode, incidents=HealingSettings(finished_min=8)) as small:
        holder, other = stalled(small)
        small.wait(2000.0, holder, other)
        assert wanted(small, "1.8.1") == []
        holder.succeed("1.8.1")
        small.finish()


@pytest.mark.parametrize("mode", MODES)
def test_the_budget_of_waste_is_kept_and_told(mode: str) -> None:
    with Small(site("a"), site("b"), healing=mode, incidents=HealingSettings(waste_max=0.05)) as small:
        holder, other = stalled(small)
        small.wait(400.0, holder, other)
        assert wanted(small, "1.8.1") == []
        assert any("budget of waste" in each.message for each in decided(small))
        holder.succeed("1.8.1")
        small.finish()


def test_a_copy_that_overtakes_ends_the_first_attempt_at_once() -> None:
    with Small(site("a"), site("b"), healing="paper") as small:
        holder, other = stalled(small)
        small.wait(60.0, holder, other)
        other.say(payloads.PhaseEntered(phase="application"), other.ref("1.8.1"))
        other.exchange()
        small.wait(60.0, holder, other)
        (lost,) = small.told(payloads.AttemptLost, "1.8.1")
        said = msgspec.json.decode(lost.data, type=payloads.AttemptLost)
        assert (lost.attempt, said.reason) == (1, "healed")
        assert said.decision
        assert holder.packages == []
        holder.unread.clear()
        other.succeed("1.8.1")
        small.finish()


def test_a_held_job_is_not_healed() -> None:
    with Small(site("a"), site("b")) as small:
        holder, other = stalled(small)
        small.ask(Hold(job=JOB))
        small.wait(2000.0, holder, other)
        assert wanted(small, "1.8.1") == []
        holder.succeed("1.8.1")
        small.effects.clear()


def test_activities_have_their_own_medians() -> None:
    with Small(site("a", cores=2), healing="paper") as small:
        small.submit(plan(stage(8, kind("short")), stage(1, kind("long"))))
        pilot = small.pilot("a")
        while [each for each in pilot.packages if each.startswith("1.")]:
            small.wait(50.0, pilot)
            for package in [each for each in pilot.packages if each.startswith("1.")]:
                end(pilot, package, application=50.0)
            pilot.exchange()
        small.wait(5000.0, pilot)
        assert wanted(small, "2.1.1") == []  # nobody knows how long it takes
        pilot.succeed("2.1.1")
        small.finish()


def test_what_is_known_is_recorded_from_time_to_time() -> None:
    with Small(site("a"), site("b")) as small:
        holder, other = stalled(small, packages=20)
        small.wait(1000.0, holder, other)
        (learned,) = small.told(HealingLearned)
        (activity,) = msgspec.json.decode(learned.data, type=HealingLearned).activities
        assert activity.count > 10
        assert {each.phase: each.seconds for each in activity.medians} == {
            "setup": 0.0, "inputs": 20.0, "application": 70.0, "outputs": 10.0,
        }  # fmt: skip
        (general,) = small.told(IncidentsLearned)
        text = msgspec.json.decode(general.data, type=IncidentsLearned).learned
        again = type(small.engine.state.healing)(
            small.settings, clock=small.engine.state.clock, jobs=small.engine.state.jobs
        )
        again.restore(text)
        assert again.knowledge() == text
        for pilot in (holder, other):
            if pilot.packages:
                pilot.succeed("1.20.1")
        small.finish()
        for pilot in (holder, other):
            pilot.unread.clear()


def test_what_healing_cost_is_recorded_when_the_job_is_over() -> None:
    with Small(site("a"), site("b"), healing="paper") as small:
        holder, other = stalled(small)
        small.wait(60.0, holder, other)
        other.succeed("1.8.1")
        learned = [msgspec.json.decode(each.data, type=HealingLearned) for each in small.told(HealingLearned)]
        assert [each.activities[0].count for each in learned] == [7]  # those that told of their phases
        (replica,) = small.told(payloads.ReplicaWanted, "1.8.1")
        (granted,) = small.told(payloads.CommitGranted, "1.8.1")
        # The first attempt still runs: what it took since it had a rival.
        assert learned[-1].healing_seconds == pytest.approx(granted.time - replica.time)
        assert learned[-1].healing_seconds > 0.0
        holder.unread.clear()
        small.finish()


def test_what_healing_cost_a_job_too_short_for_a_forecast_is_recorded_once() -> None:
    with Small(site("a"), site("b"), healing="paper") as small:
        small.submit(bag(8))
        one, two = small.pilot("a"), small.pilot("b")
        for _ in range(8):
            one.exchange()
            two.exchange()
            for pilot in (one, two):
                for package in [each for each in pilot.packages if each != "1.8.1"]:
                    end(pilot, package, setup=0.0, inputs=0.4, application=1.4, outputs=0.2)
            small.wait(2.0, one, two)
        while not wanted(small, "1.8.1"):
            small.wait(1.0, one, two)
        other = next(pilot for pilot in (one, two) if pilot.packages == ["1.8.1"] and pilot.ref("1.8.1").attempt == 2)
        small.wait(1.0, one, two)
        other.succeed("1.8.1")
        assert not small.told(payloads.ForecastMade)
        (learned,) = small.told(HealingLearned)
        assert msgspec.json.decode(learned.data, type=HealingLearned).healing_seconds > 0.0
        small.wait(1000.0)
        assert len(small.told(HealingLearned)) == 1
        for pilot in (one, two):
            pilot.unread.clear()
        small.finish()


def test_an_engine_that_takes_over_wastes_only_of_what_runs_since() -> None:
    with Small(site("a"), site("b"), healing="paper") as small:
        small.submit(bag(8, kind()))
        health = small.engine.state.healing.of(JOB)
        health.restore(HealingLearned(slot_seconds=1000.0, healing_seconds=50.0))
        assert health.waste(small.now) == pytest.approx(0.05)
        assert health.allowance(0.2, small.now) == 0.0
        pilot = small.pilot("a")
        small.wait(100.0, pilot)
        running = len(pilot.packages)
        assert health.allowance(0.2, small.now) == pytest.approx(0.2 * 100.0 * running)
        for package in list(pilot.packages):
            pilot.succeed(package)
        small.finish()
