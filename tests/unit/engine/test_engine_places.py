"""What a pilot has left beside what it was given, what it may speak of, and that one that waits is served."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotage.engine.state.sites import AttemptState, PilotState, SiteState
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptCreated
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import Kill
from pilotage.model.resources import NAMES, Capacity, Demand, amounts
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import bag, kind, plan, site, stage

WHOLE = Capacity(cores_hundredths=400, memory_bytes=40, gpus=4, scratch_bytes=400)
QUARTER = Demand(cores_hundredths=100, memory_bytes=10, gpus=1, scratch_bytes=100)


@pytest.fixture
def here() -> SiteState:
    return Small(site()).engine.state.sites.by_name["a"]


@pytest.fixture
def pilot(here: SiteState) -> PilotState:
    made = PilotState("a-1.1", here, request="a-1", heard_at=0.0)
    made.offers(WHOLE)
    return made


def attempt(here: SiteState, number: int, demand: Demand = QUARTER, *, shape: int = 0) -> AttemptState:
    return AttemptState(
        ref=AttemptRef("j", f"1.{number}.1", 1),
        number=number,
        address=(1, number, 1),
        epoch=1,
        site=here,
        demand=demand,
        shape=shape,
        created_at=0.0,
        began_at=0.0,
    )


def without(field: str) -> Demand:
    """A demand that takes all of one thing and little of the others."""
    return msgspec.structs.replace(QUARTER, **{field: getattr(WHOLE, field)})


def left(pilot: PilotState) -> tuple[int, ...]:
    return amounts(pilot.free)


def told(ref: AttemptRef, **more: Any) -> Event:
    about: dict[str, Any] = {"job": ref.job, "package": ref.package, "attempt": ref.attempt, "epoch": 1} | more
    return Event(source="agent", stream="a-1.1", n=1, type="AttemptFinished", time=0.0, **about)


def test_what_is_left_is_what_it_has_without_what_it_was_given(here: SiteState, pilot: PilotState) -> None:
    pilot.take(attempt(here, 1))
    pilot.take(attempt(here, 2))
    assert left(pilot) == (200, 20, 2, 200)
    pilot.offers(msgspec.structs.replace(WHOLE, cores_hundredths=300, gpus=3))
    assert left(pilot) == (100, 20, 1, 200)
    pilot.give_back(AttemptRef("j", "1.1.1", 1))
    assert left(pilot) == (200, 30, 2, 300)
    assert pilot.give_back(AttemptRef("j", "1.1.1", 1)) is None
    assert left(pilot) == (200, 30, 2, 300)


@pytest.mark.parametrize("field", NAMES[1:])
def test_what_an_attempt_takes_of_one_thing_alone_is_taken_and_given_back(
    here: SiteState, pilot: PilotState, field: str
) -> None:
    one = attempt(here, 1, Demand(**{field: getattr(QUARTER, field)}))
    pilot.take(one)
    kept = msgspec.structs.replace(WHOLE, **{field: 3 * getattr(QUARTER, field)})
    assert left(pilot) == (300, kept.memory_bytes, kept.gpus, kept.scratch_bytes)
    pilot.give_back(one.ref)
    assert left(pilot) == (400, 40, 4, 400)


@pytest.mark.parametrize("field", NAMES)
def test_an_attempt_fits_where_all_that_it_takes_is_left_and_no_more(pilot: PilotState, field: str) -> None:
    assert pilot.free.fits(without(field))
    assert not pilot.free.fits(msgspec.structs.replace(without(field), **{field: getattr(WHOLE, field) + 1}))


@pytest.mark.parametrize("field", NAMES)
def test_what_does_not_run_beside_those_before_it_waits(here: SiteState, pilot: PilotState, field: str) -> None:
    pilot.take(attempt(here, 1))
    pilot.take(attempt(here, 2, without(field), shape=1))  # one thing of it is not left
    pilot.take(attempt(here, 3))
    assert (pilot.in_backlog(), pilot.count_running()) == (1, 1)
    pilot.take(attempt(here, 4))
    pilot.take(attempt(here, 5))
    assert pilot.in_backlog() == 1  # the four quarters are all it has
    pilot.take(attempt(here, 6))
    assert pilot.in_backlog() == 2


def test_of_attempts_that_are_alike_as_many_wait_as_there_is_no_room_for(here: SiteState, pilot: PilotState) -> None:
    assert (pilot.in_backlog(), pilot.count_running()) == (0, 0)
    for number in range(1, 5):
        pilot.take(attempt(here, number))
        assert (pilot.in_backlog(), pilot.count_running()) == (0, number)
    pilot.take(attempt(here, 5))
    assert (pilot.in_backlog(), pilot.count_running()) == (1, 4)


def test_attempts_are_alike_as_long_as_no_other_is_among_them(here: SiteState, pilot: PilotState) -> None:
    pilot.take(attempt(here, 1, shape=3))
    pilot.take(attempt(here, 2, shape=3))
    found = [pilot.common_shape]
    for number in (3, 4):
        pilot.take(attempt(here, number, shape=4))
        found.append(pilot.common_shape)
    assert found == [3, None, None]
    for number in range(1, 5):
        pilot.give_back(AttemptRef("j", f"1.{number}.1", 1))
    pilot.take(attempt(here, 5, shape=4))
    assert pilot.common_shape == 4


@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_pilot_speaks_of_what_it_was_given_and_of_nothing_else(
    here: SiteState, pilot: PilotState, others: int
) -> None:
    assert pilot.holds(told(AttemptRef("j", "1.1.1", 1))) is None
    own = attempt(here, 1)
    pilot.take(own)
    for number in range(others):
        pilot.take(attempt(here, 7 + number))
    assert pilot.holds(told(own.ref)) is own
    for wrong in ({"job": "k"}, {"package": "1.2.1"}, {"attempt": 2}, {"attempt": None}, {"epoch": 2}):
        assert pilot.holds(told(own.ref, **wrong)) is None
    assert pilot.holds(told(own.ref, job=None, package=None, attempt=None)) is None


def test_a_pilot_owes_the_end_of_what_was_taken_off_it_unless_it_told_that(here: SiteState, pilot: PilotState) -> None:
    first, second = attempt(here, 1), attempt(here, 2)
    pilot.take(first)
    pilot.take(second)
    second.end_reported = True
    assert (pilot.give_back(first.ref), pilot.give_back(second.ref)) == (first, second)
    assert pilot.owed == {first.ref: 1}
    pilot.take(first)
    assert pilot.owed == {}


def test_what_is_written_of_an_attempt_says_the_lease_and_the_drops_of_its_time(pilot: PilotState) -> None:
    for lease_seconds, drop_revision in ((60.0, 0), (60.0, 0), (60.0, 5), (30.0, 5), (60.0, 0)):
        said, text = pilot.created(lease_seconds, drop_revision)
        assert (said.site, said.pilot) == ("a", "a-1.1")
        assert (said.lease_seconds, said.drop_revision) == (lease_seconds, drop_revision)
        assert msgspec.json.decode(bytes(text), type=AttemptCreated) == said
    assert pilot.created(60.0, 0)[0] is pilot.created(60.0, 0)[0]


def test_a_pilot_that_is_gone_is_no_longer_among_those_of_its_site(here: SiteState) -> None:
    first, second = (PilotState(f"a-1.{each}", here, request="a-1", heard_at=0.0) for each in (1, 2))
    here.add_pilot(first)
    here.add_pilot(second)
    here.waiting = {first.name: first, second.name: second}
    here.full = True
    here.remove_pilot(first)
    assert (list(here.pilots), list(here.waiting), here.full) == ([second.name], [second.name], False)
    assert here.by_request == {"a-1": {second.name: second}}
    here.remove_pilot(first)  # which it is already
    here.remove_pilot(second)
    assert (here.pilots, here.waiting, here.by_request) == ({}, {}, {})


@pytest.mark.parametrize("field", NAMES[1:])
def test_a_waiting_pilot_is_served_as_soon_as_what_was_lacking_is_free(field: str) -> None:
    capacity = Capacity(cores_hundredths=200, memory_bytes=40, gpus=4, scratch_bytes=400)
    large = kind(demand=msgspec.structs.replace(QUARTER, **{field: getattr(capacity, field)}))
    with Small(site(capacity=capacity)) as small:
        small.submit(plan(stage(1, large), stage(1, kind(demand=QUARTER))))
        pilot = small.pilot()
        assert pilot.packages == ["1.1.1"]
        pilot.exchange()  # it could take more, and waits
        assert pilot.packages == ["1.1.1"]
        pilot.end(pilot.ref("1.1.1"))
        pilot.exchange()
        assert pilot.packages == ["2.1.1"]


def test_of_two_waiting_pilots_the_one_with_room_is_served_when_work_comes() -> None:
    with Small(site(cores=2, pilots=2)) as small:
        small.submit(bag(3))
        first, second = small.pilot(), small.pilot()
        assert sorted(first.packages + second.packages) == ["1.1.1", "1.2.1", "1.3.1"]
        full, free = (first, second) if len(first.packages) == 2 else (second, first)
        full.exchange()
        free.exchange()
        small.submit(bag(1), job="k")
        assert (len(full.held), len(free.held)) == (2, 2)
        assert AttemptRef("k", "1.1.1", 1) in free.held
        for each in (full, free):
            each.unread.clear()
        small.effects.clear()


def idle(small: Small, **more: Any) -> Agent:
    """A pilot that has done all there was, and whose exchange is open."""
    small.submit(bag(1), job="before")
    pilot = small.pilot(**more)
    pilot.succeed("1.1.1")
    pilot.exchange()
    small.effects.clear()
    assert (pilot.held, small.engine.state.pilots.by_name[pilot.name].waiting) == ({}, True)
    return pilot


def test_a_full_pilot_whose_work_is_taken_off_it_gets_the_next_in_the_same_answer() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        pilot.unread.clear()
        assert (pilot.exchange(), pilot.packages) == (None, ["1.1.1"])
        small.ask(Kill(job=JOB, package="1.1.1"))
        reply = pilot.heard()
        assert reply is not None
        assert [ref.package for ref in reply.cancelled] == ["1.1.1"]
        assert [each.ref.package for each in reply.assignments] == ["1.2.1"]


def test_a_waiting_pilot_is_given_as_much_as_it_has_room_for_at_once() -> None:
    with Small(site(cores=2)) as small:
        pilot = idle(small)
        small.submit(bag(3))
        assert pilot.packages == ["1.1.1", "1.2.1"]
        pilot.unread.clear()


def test_a_waiting_pilot_is_given_as_much_as_it_takes_ahead_at_once() -> None:
    with Small(site()) as small:
        pilot = idle(small, backlog=2)
        small.submit(bag(4, kind(run_seconds=0.01)))
        assert pilot.packages == ["1.1.1", "1.2.1", "1.3.1"]
        pilot.unread.clear()


def test_a_waiting_pilot_is_served_though_something_is_before_it_that_does_not_fit() -> None:
    capacity = Capacity(cores_hundredths=200, memory_bytes=40)
    whole = kind(demand=Demand(memory_bytes=40))
    with Small(site(capacity=capacity), site("b", mode="bound", job_throttle=0.0)) as small:
        small.submit(bag(2, msgspec.structs.replace(whole, executor="a")))
        pilot = small.pilot()
        pilot.unread.clear()
        assert (pilot.exchange(), pilot.packages) == (None, ["1.1.1"])
        small.submit(bag(1, kind(executor="a")), job="k")
        assert [ref.job for ref in pilot.held] == [JOB, "k"]
        pilot.unread.clear()
        small.effects.clear()
