"""Messages that take their time, and files that come and go."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import AttemptRef, Exchange, ExchangeReply
from pilotage.model.exchange.reports import Gone
from pilotage.model.resources import Capacity
from pilotage.simulator.world.agent_context import Store
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.network import Network
from pilotage.simulator.world.randomness import Dice, Fixed

EVENT = Event(source="agent", stream="p.1", n=1, type="PilotStarted", time=0.1, data=msgspec.Raw(b'{"site":"north"}'))
MESSAGE = Exchange(
    pilot="p.1",
    site="north",
    sequence=1,
    serves=AttemptRef("job", "1.1.1", 1),
    capacity=Capacity(cores_hundredths=250),
    remaining_seconds=0.1 + 0.2,
    held=(AttemptRef("job", "1.2.1", 3),),
    events=(EVENT,),
)


class Wire:
    """A network and what came out of it, with the time of each."""

    def __init__(self, *, seed: int = 1, plain: bool = False, **probabilities: float) -> None:
        self.schedule = Schedule()
        self.injector = FaultInjector(Faults(**probabilities), Dice(seed))
        self.network = Network(self.schedule, self.injector, Dice(seed), Fixed(0.5), plain=plain)
        self.arrived: list[tuple[float, msgspec.Struct]] = []

    def send(self, message: msgspec.Struct) -> None:
        self.network.send(message, lambda value: self.arrived.append((self.schedule.now, value)))

    def send_all(self, messages: Sequence[msgspec.Struct]) -> None:
        arrived = self.arrived
        self.network.send_all(
            messages,
            lambda value: arrived.append((self.schedule.now, value)),
            lambda values: arrived.extend((self.schedule.now, value) for value in values),
        )

    def drain(self) -> list[msgspec.Struct]:
        while self.schedule.step():
            pass
        return [value for _, value in self.arrived]


def reply(sequence: int, pilot: str = "p.1") -> ExchangeReply:
    return ExchangeReply(pilot=pilot, sequence=sequence)


@pytest.mark.parametrize("message", [MESSAGE, reply(1), Gone(site="north", key="k", reason="ended")])
def test_a_message_arrives_as_another_value_with_the_same_content(message: msgspec.Struct) -> None:
    wire = Wire()
    wire.send(message)
    assert wire.drain() == [message]
    assert wire.arrived[0][0] == 0.5
    assert wire.arrived[0][1] is not message


def test_a_plain_network_hands_over_the_value_itself() -> None:
    wire = Wire(plain=True)
    wire.send(MESSAGE)
    assert wire.drain()[0] is MESSAGE


@pytest.mark.parametrize("wire, first", [(Wire(plain=True), 3), (Wire(), 2)])
def test_messages_that_are_sent_together_arrive_in_order_and_where_all_do_in_one_step(wire: Wire, first: int) -> None:
    wire.send_all(())
    assert wire.schedule.pending == 0
    wire.send(reply(1))
    wire.send_all((reply(2), reply(3)))
    wire.schedule.step()
    wire.send_all((reply(4), reply(5)))
    wire.schedule.step()
    assert len(wire.arrived) == first
    assert wire.drain() == [reply(number) for number in (1, 2, 3, 4, 5)]
    assert [time for time, _ in wire.arrived] == [0.5, 0.5, 0.5, 1.0, 1.0]


def test_a_lost_message_never_arrives() -> None:
    wire = Wire(message_lost=1.0)
    wire.send(MESSAGE)
    assert wire.drain() == []
    assert wire.injector.fired["message_lost"] == 1


def test_a_duplicated_message_arrives_twice() -> None:
    wire = Wire(message_duplicated=1.0)
    wire.send(MESSAGE)
    assert wire.drain() == [MESSAGE, MESSAGE]


def test_a_delayed_message_takes_up_to_minutes() -> None:
    wire = Wire(message_delayed=1.0)
    for sequence in range(100):
        wire.send(reply(sequence))
    assert len(wire.drain()) == 100
    times = [time for time, _ in wire.arrived]
    assert min(times) >= 1.5
    assert 200.0 < max(times) <= 300.5


def test_a_reordered_message_arrives_after_the_next_one_to_the_same_agent() -> None:
    wire = Wire(message_reordered=1.0)
    wire.send(reply(1))
    wire.send(reply(1, "q.1"))
    wire.schedule.run(until=3.0)
    assert wire.arrived == []
    wire.send(reply(2))
    wire.schedule.run(until=10.0)
    assert [value for _, value in wire.arrived] == [reply(2), reply(1)]
    assert reply(1, "q.1") in wire.drain()


def test_a_message_that_nothing_overtakes_arrives_in_the_end() -> None:
    wire = Wire(message_reordered=1.0)
    wire.send(reply(1))
    wire.injector.stop()
    assert wire.drain() == [reply(1)]
    assert 30.0 <= wire.schedule.now <= 600.0


def test_the_same_seed_loses_the_same_messages() -> None:
    def arrivals(seed: int) -> list[tuple[float, msgspec.Struct]]:
        wire = Wire(seed=seed, message_lost=0.3, message_delayed=0.3, message_duplicated=0.3, message_reordered=0.3)
        for sequence in range(100):
            wire.send(reply(sequence))
        wire.drain()
        return wire.arrived

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


A, B = AttemptRef("job", "1.1.1", 1), AttemptRef("job", "2.1.1", 1)


def test_only_what_was_staged_can_be_read_and_every_read_is_remembered() -> None:
    told: list[tuple[AttemptRef, AttemptRef, float]] = []
    store = Store(Schedule(7.0), on_read=lambda *read: told.append(read))
    assert not store.read(A, B)
    store.stage(A)
    assert store.read(A, B)
    assert not store.has(AttemptRef("job", "1.1.1", 2))
    assert store.reads == [(B, A), (B, A)]
    assert told == [(B, A, 7.0), (B, A, 7.0)]


def test_what_vanished_comes_back() -> None:
    schedule = Schedule()
    store = Store(schedule)
    store.stage(A)
    store.vanish(A, 10.0)
    store.vanish(A, 5.0)
    schedule.run(until=9.0)
    assert not store.has(A)
    schedule.run(until=10.0)
    assert store.read(A, B)


def test_what_vanished_before_it_was_staged_was_never_there() -> None:
    store = Store(Schedule())
    store.vanish(A, 10.0)
    assert not store.has(A)


def test_a_store_for_benches_remembers_no_reads() -> None:
    store = Store(Schedule(), remembers=False)
    store.read(A, B)
    assert store.reads == []
