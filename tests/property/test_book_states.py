"""What the book shows is how things stand: step by step with the scheduler that made the history."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.book.rows.rows import JobRow, PackageFacts
from pilotage.model.events.events import EVENT_TYPES
from pilotage.model.states import ADVANCE, FINAL_STATES, State
from tests.kit.histories import Scheduler
from tests.kit.memory_ledger import MemoryBook
from tests.kit.shown import delivered
from tests.kit.standing import Package

seeds = st.integers(0, 2**32)
steps = st.integers(1, 60)
MANY = settings(max_examples=2 * settings().max_examples)


def scheduler(chance: random.Random, *, races: bool = True) -> Scheduler:
    return Scheduler(random.Random(chance.random()), jobs=chance.randint(1, 2), races=races)


def assert_stands(facts: PackageFacts, package: Package) -> None:
    assert facts.state == package.state()
    assert facts.epoch == package.epoch
    assert facts.held == package.hold[1]
    assert facts.replicas == package.replicas
    assert facts.dropped == package.drop[1]
    shown = package.shown()
    assert facts.attempt == shown
    if shown is not None:
        attempt = package.attempts[shown]
        assert facts.site == attempt.site
        assert facts.exit_code == attempt.exit_code()
        assert attempt.number in package.granted or facts.reason == attempt.reason()
    ends = len(package.granted) + package.cancelled + package.aborted
    assert facts.conflict == (ends > 1)


@given(seeds, steps)
@MANY
def test_after_every_step_the_book_shows_how_things_stand(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    world = scheduler(chance).run(0)
    book = MemoryBook()
    told = 0
    for _ in range(steps):
        world.step()
        fresh, told = world.events[told:], len(world.events)
        book.take(fresh)
        for job in world.jobs:
            for package in job.packages.values():
                if package.heard:
                    assert_stands(book.package(job.name, package.place), package)


@given(seeds, steps)
@MANY
def test_in_the_end_the_book_shows_how_things_stand_whatever_the_order(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    world = scheduler(chance).run(steps)
    book = MemoryBook()
    book.take(delivered(chance, world.events))
    for job in world.jobs:
        for package in job.packages.values():
            if package.heard:
                assert_stands(book.package(job.name, package.place), package)


@given(seeds, steps)
def test_an_engine_that_never_ends_a_package_twice_is_never_flagged(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    world = scheduler(chance, races=False).run(steps)
    book = MemoryBook()
    book.take(delivered(chance, world.events))
    assert not any(facts.conflict for facts in book.packages().values())


@given(seeds, steps)
def test_what_ended_says_why(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    world = scheduler(chance).run(steps)
    book = MemoryBook()
    book.take(world.events)
    for facts in book.packages().values():
        assert facts.state != "ABORTED" or facts.cause is not None
        assert facts.state != "CLEARED" or facts.cleared_by in ("user", "timeout")
        for attempt in facts.attempts.values():
            assert attempt.finished_at is None or attempt.exit_code is not None
    for row in book.rows(JobRow):
        assert row.aborted_at is None or row.cause is not None
        assert row.cleared_at is None or row.cleared_by in ("user", "timeout")


@given(seeds, steps)
def test_without_a_restart_more_events_never_take_a_final_state_back(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    world = scheduler(chance).run(steps)
    events = [event for event in world.events if event["epoch"] == 1 and event["type"] != "Restarted"]
    book = MemoryBook()
    reached: dict[tuple[int, int, int, int], State] = {}
    for event in delivered(chance, events):
        book.take([event])
        own = {
            key: State(facts.state)
            for key, facts in book.packages().items()
            if any((facts.done_at, facts.cancelled_at, facts.aborted_at, facts.cleared_at))
        }
        for key, state in reached.items():
            assert ADVANCE[own[key]] >= ADVANCE[state]
        reached = {key: state for key, state in own.items() if state in FINAL_STATES}


def test_the_scheduler_tells_of_every_type_of_event() -> None:
    types = {
        event["type"]
        for seed in range(100)
        for event in Scheduler(random.Random(seed)).run(60).events
    }  # fmt: skip
    assert types == set(EVENT_TYPES)


def test_the_scheduler_reaches_every_state_and_every_kind_of_trouble() -> None:
    states: set[str] = set()
    troubles: set[str] = set()
    for seed in range(150):
        for job in Scheduler(random.Random(seed)).run(60).jobs:
            for package in job.packages.values():
                states.add(package.state())
                winners = [package.attempts[number] for number in package.granted]
                others = [each for each in package.here() if each not in winners]
                troubles |= {
                    name
                    for name, holds in {
                        "resubmitted deeply": package.epoch > 1,
                        "resubmitted shallowly": sum(bool(each.ends) for each in package.here()) > 1,
                        "replicas on several sites": len({each.site for each in package.here() if each.level}) > 1,
                        "cancelled and granted": package.cancelled and bool(package.granted),
                        "finished after another won": bool(winners) and any(each.ends for each in others),
                        "two reports of one end": any(len(each.ends) > 1 for each in package.here()),
                        "lost, and nothing came of it": any(each.lost() for each in package.here()),
                        "lost, and won after all": any(each.doubt() == "AttemptLost" and each.ends for each in winners),
                        "lost, and recovered": any(
                            each.doubt() == "AttemptRecovered" and "AttemptLost" in [one["type"] for one in each.doubts]
                            for each in package.here()
                        ),
                        "cleared": package.cleared,
                        "held": package.hold[1],
                        "dropped": package.drop[1],
                        "restored": package.drop == (package.drop[0], False) and package.drop[0] > 0,
                    }.items()
                    if holds
                }
    assert states == {state.value for state in State}
    assert len(troubles) == 13, troubles
