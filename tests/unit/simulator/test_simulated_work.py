"""What becomes of attempts: room on a node, inputs, limits and the fates that a seed fixes."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.model.exchange.exchange import AttemptRef, InputSource
from pilotage.model.resources import Capacity, Demand
from pilotage.model.states import ExitCodeGasw
from pilotage.simulator.agents.attempt import ENDINGS, Run
from pilotage.simulator.world.agent_context import AgentSettings
from pilotage.simulator.world.behaviour import AttemptOutcome, Habits, RandomBehaviour, SiteHabits
from pilotage.simulator.world.faults import Faults
from pilotage.simulator.world.randomness import AnyDistribution, Fixed, LogNormal, Uniform
from tests.kit.simulated_site import SimulatedSite, ends, ref, work

GIB = 2**30
NODE = Capacity(cores_hundredths=400, memory_bytes=8 * GIB, gpus=1, scratch_bytes=100)


def run_one(site: SimulatedSite, **more: object) -> tuple[str, str | None]:
    """Run one attempt to its end: how it ended and why."""
    site.start()
    site.answer(work(1, **more), seconds=300.0)  # type: ignore[arg-type] # passed on as they are
    (finish,) = ends(site.last)
    assert site.store.has(ref(1)) == (finish.exit_code == ExitCodeGasw.SUCCESS)
    return str(finish.exit_code), finish.reason


@pytest.mark.parametrize(
    "demand",
    [
        Demand(cores_hundredths=250),
        Demand(cores_hundredths=50, memory_bytes=5 * GIB),
        Demand(cores_hundredths=50, gpus=1),
        Demand(cores_hundredths=50, scratch_bytes=60),
    ],
)
def test_what_does_not_fit_beside_what_runs_waits_in_order(demand: Demand) -> None:
    site = SimulatedSite(capacity=NODE, settings=AgentSettings(backlog=2))
    site.start()
    small = Demand(cores_hundredths=50)
    site.answer(work(1, demand=demand), work(2, demand=demand), work(3, demand=small), seconds=10.0)
    assert [seen[-1] for seen in site.trace if seen[0] == "started"] == [ref(1)]
    site.run(55.0)
    assert [seen[-1] for seen in site.trace if seen[0] == "started"] == [ref(1), ref(2), ref(3)]


def test_as_many_run_at_once_as_fit() -> None:
    site = SimulatedSite(capacity=NODE)
    agent = site.start()
    site.answer(*(work(line) for line in (1, 2, 3, 4)), seconds=10.0)
    assert [site.count("started", ref(line)) for line in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert agent.bench.free.cores_hundredths == 0
    site.run(100.0)
    assert agent.bench.free.cores_hundredths == 400
    assert len(ends(site.last)) == 4


@pytest.mark.parametrize("name", ["n1", 'a "node" of 100 %'])
@pytest.mark.parametrize(
    "outcome",
    [
        AttemptOutcome(0.0, 60.0, 0.0, 3 * GIB),
        AttemptOutcome(0.0, 1e-7, 0.0, 0),
        AttemptOutcome(0.0, 0.0, 0.0, 0),
        AttemptOutcome(1.0, 60.0, 2.0, 0),
        AttemptOutcome(0.0, 60.0, 0.0, 0, "application-error", 0.5, 3),
    ],
)
@pytest.mark.parametrize("skew_seconds", [0.0, 5.0])
def test_the_text_of_an_end_is_that_of_the_value(outcome: AttemptOutcome, skew_seconds: float, name: str) -> None:
    run = Run(work(1))
    run.start(outcome, now=1_000_000.1, speed=1.0, memory_limit_bytes=0)
    value = run.finish(now=run.ends_at, skew_seconds=skew_seconds, node=name)
    encode = msgspec.json.encode
    text = run.encoded_end(now=run.ends_at, skew_seconds=skew_seconds, node=name, node_text=encode(name))
    assert text == encode(value)


def test_what_never_fits_fails_instead_of_blocking_the_rest() -> None:
    site = SimulatedSite(capacity=NODE)
    site.start()
    site.answer(work(1, demand=Demand(cores_hundredths=500)), work(2))
    assert [finish.reason for finish in ends(site.last)] == ["platform-failure"]
    assert site.count("started", ref(1)) == 0
    assert site.count("started", ref(2)) == 1


def test_inputs_are_read_from_the_attempts_that_the_assignment_names() -> None:
    site = SimulatedSite()
    site.store.stage(ref(7, 2))
    outcome = run_one(site, inputs=(InputSource("1.7.1", 2),))
    assert outcome == ("SUCCESS", None)
    assert site.store.reads == [(ref(1), ref(7, 2))]


def test_an_input_that_is_not_there_fails_the_attempt() -> None:
    outcome = run_one(SimulatedSite(), inputs=(InputSource("1.7.1", 2),))
    assert outcome == ("ERROR_READ_GRID", "missing-input")


def test_an_input_can_vanish_for_a_while() -> None:
    site = SimulatedSite(faults=Faults(input_vanishes=1.0))
    site.store.stage(ref(7))
    assert run_one(site, inputs=(InputSource("1.7.1", 1),)) == ("ERROR_READ_GRID", "missing-input")
    assert not site.store.has(ref(7)) or site.injector.fired["input_vanishes"] == 1
    site.run(900.0)
    assert site.store.has(ref(7))


def test_a_full_disk_shows_when_outputs_are_staged() -> None:
    site = SimulatedSite(faults=Faults(disk_full=1.0))
    assert run_one(site) == ("ERROR_WRITE_LOCAL", "disk-full")


def test_more_memory_than_was_asked_for_kills() -> None:
    site = SimulatedSite(capacity=NODE)
    site.behaviour.usual = AttemptOutcome(0.0, 60.0, 0.0, 2 * GIB)
    assert run_one(site, demand=Demand(memory_bytes=GIB)) == ("EXECUTION_FAILED", "out-of-memory")


def test_enough_memory_does_not_kill() -> None:
    site = SimulatedSite(capacity=NODE)
    site.behaviour.usual = AttemptOutcome(0.0, 60.0, 0.0, 2 * GIB)
    assert run_one(site, demand=Demand(memory_bytes=2 * GIB)) == ("SUCCESS", None)


def test_without_a_declared_memory_the_node_is_the_limit() -> None:
    site = SimulatedSite(capacity=NODE)
    site.behaviour.usual = AttemptOutcome(0.0, 60.0, 0.0, 9 * GIB)
    assert run_one(site) == ("EXECUTION_FAILED", "out-of-memory")


def test_a_wall_time_of_its_own_kills_an_attempt() -> None:
    site = SimulatedSite()
    site.behaviour.usual = AttemptOutcome(5.0, 60.0, 0.0, 0)
    assert run_one(site, demand=Demand(wall_seconds=30.0)) == ("EXECUTION_FAILED", "wall-time")
    (finish,) = ends(site.last)
    assert [each.seconds for each in finish.phases] == [5.0, 25.0]


def test_a_black_hole_fails_everything_quickly() -> None:
    site = SimulatedSite()
    site.hole = "command-not-found"
    site.start()
    site.answer(work(1), seconds=2.0)
    (finish,) = ends(site.last)
    assert (finish.reason, finish.exit_status) == ("command-not-found", 127)


def test_a_fast_host_takes_less_time() -> None:
    site = SimulatedSite()
    site.behaviour.host_speed = 4.0
    site.start()
    site.answer(work(1), seconds=16.0)
    (finish,) = ends(site.last)
    assert finish.phases[0].seconds == pytest.approx(15.0)


@pytest.mark.parametrize("reason", [reason for reason in ENDINGS if reason])
def test_each_reason_of_a_fate_is_told_as_it_is(reason: str) -> None:
    site = SimulatedSite()
    site.behaviour.usual = AttemptOutcome(0.0, 60.0, 0.0, 0, reason, 0.5, 3)
    _, told = run_one(site)
    assert told == (ENDINGS[reason].reason or reason)
    (finish,) = ends(site.last)
    assert finish.phases[0].seconds == pytest.approx(30.0)
    assert finish.exit_status == (3 if reason == "application-error" else ENDINGS[reason].exit_status)


HABITS = Habits(
    application_seconds=LogNormal(median=60.0, sigma=1.0),
    memory_bytes=Uniform(low=0.0, high=1e9),
    outputs_seconds=Uniform(low=0.0, high=9.0),
)


def test_a_fate_follows_from_the_seed_and_the_name_alone() -> None:
    places = {"north": SiteHabits(failures={"signal": 0.5}, straggler=0.5)}
    first, again = (RandomBehaviour(7, HABITS, places) for _ in range(2))
    asked = [AttemptRef("job", f"1.{line}.1", 1) for line in range(1, 50)]
    expected = [first.outcome(each, "north") for each in asked]
    assert [again.outcome(each, "north") for each in reversed(asked)] == expected[::-1]
    assert [RandomBehaviour(8, HABITS, places).outcome(each, "north") for each in asked] != expected


def test_a_package_needs_the_same_memory_and_work_wherever_it_is_tried() -> None:
    behaviour = RandomBehaviour(7, HABITS, {})
    fates = [behaviour.outcome(AttemptRef("job", "1.1.1", attempt), f"site-{attempt}") for attempt in range(1, 9)]
    assert len({outcome.memory_bytes for outcome in fates}) == 1
    assert len({outcome.application_seconds for outcome in fates}) == 1
    assert len({outcome.outputs_seconds for outcome in fates}) > 1


@pytest.mark.parametrize("work_seconds", [Fixed(9.0), Uniform(low=1.0, high=9.0), LogNormal(median=5.0, sigma=1.0)])
def test_a_site_that_does_nothing_to_attempts_changes_no_fate(work_seconds: AnyDistribution) -> None:
    behaviour = RandomBehaviour(
        7, Habits(application_seconds=work_seconds, outputs_seconds=Fixed(2.0)), {"known": SiteHabits()}
    )
    for line in range(1, 50):
        one = AttemptRef("job", f"1.{line}.1", 1)
        assert behaviour.outcome(one, "known") == behaviour.outcome(one, "unknown")


def test_failures_and_stragglers_come_as_often_as_the_site_has_them() -> None:
    sites = {"north": SiteHabits(failures={"signal": 0.2, "looping": 0.1}, straggler=0.3, straggler_factor=Fixed(10.0))}
    behaviour = RandomBehaviour(7, Habits(application_seconds=Fixed(1.0)), sites)
    fates = [behaviour.outcome(AttemptRef("job", f"1.{line}.1", 1), "north") for line in range(1, 2001)]
    assert 300 < sum(outcome.reason == "signal" for outcome in fates) < 500
    assert 130 < sum(outcome.reason == "looping" for outcome in fates) < 270
    assert 500 < sum(outcome.application_seconds == 10.0 for outcome in fates) < 700


def test_a_doomed_package_fails_alike_everywhere() -> None:
    behaviour = RandomBehaviour(7, Habits(doomed=0.1), {})
    doomed = [line for line in range(1, 301) if behaviour.outcome(AttemptRef("job", f"1.{line}.1", 1), "north").reason]
    assert 10 < len(doomed) < 60
    for line in doomed:
        fates = [behaviour.outcome(AttemptRef("job", f"1.{line}.1", attempt), f"s{attempt}") for attempt in (1, 2, 3)]
        assert len({(outcome.reason, outcome.exit_status) for outcome in fates}) == 1


def test_the_speed_of_a_node_is_its_own() -> None:
    behaviour = RandomBehaviour(7, HABITS, {"north": SiteHabits(speed=Uniform(low=1.0, high=3.0))})
    assert behaviour.speed("a", "north") == behaviour.speed("a", "north") != behaviour.speed("b", "north")
    assert behaviour.speed("a", "south") == 1.0
