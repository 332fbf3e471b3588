"""The simulated service says and does nothing that is not durable, and survives its death at any point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import cast

import msgspec
import pytest

from pilotage.book.codec import Checked, Codec
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import ExchangeReply
from pilotage.model.exchange.operations import Accepted, CancelSubmitted, Effect
from pilotage.model.exchange.reports import SiteSeen
from pilotage.service.core import Core
from pilotage.service.messages import Answer, Input, Outbox
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.jobs import Definitions
from pilotage.simulator.world.journal import SimulatedJournal
from pilotage.simulator.world.randomness import Dice
from pilotage.simulator.world.service_process import BusyLoop, ServiceProcess, Timing

HELLO = SiteSeen(site="lyon", answers=True)
TIMING = Timing(collect_seconds=1.0, commit_seconds=1.0, restart_seconds=10.0, full_seconds=5.0)


def noted(n: int) -> Checked:
    data = msgspec.Raw(msgspec.json.encode(payloads.Noted(text=f"note {n}")))
    found = Codec().check(Event(source="service", stream="engine", n=n, type="Noted", time=0.0, data=data))
    assert isinstance(found, Checked)
    return found


class ScriptedBox(FaultInjector):
    """Strikes when the test says so: by the kind of fault and how often it was asked about."""

    def __init__(self, *, strikes: dict[str, set[int]]) -> None:
        super().__init__(Faults(), Dice(1))
        self.quiet = False  # it strikes, though no probability says so
        self.script = strikes
        self.asked: dict[str, int] = {}

    def strikes(self, kind: str) -> bool:
        self.asked[kind] = self.asked.get(kind, 0) + 1
        return self.asked[kind] in self.script.get(kind, ())


class EchoingCore:
    """Answers every message with one event, one reply, one answer and one effect; says nothing to a tick."""

    def __init__(self, first: int, *, wake: bool = False) -> None:
        self.n = first
        self.positions: list[int] = []
        self.wake = wake

    def step(self, inbox: Sequence[Input], now: float) -> Outbox:
        outbox = Outbox(events=[], replies=[], answers=[], effects=[], wake_at=now if self.wake else None)
        for _ in inbox:
            self.n += 1
            outbox.events.append(noted(self.n))
            outbox.replies.append(ExchangeReply(pilot="p", sequence=self.n))
            outbox.answers.append(Answer(token=self.n, outcome=Accepted(operation=self.n, events=1)))
            outbox.effects.append(CancelSubmitted(site="lyon", key=str(self.n)))
        return outbox

    def written(self, position: int) -> None:
        self.positions.append(position)


class Watched:
    """Everything around the service, as a list of what happened."""

    def __init__(self, *, wake: bool = False, **strikes: set[int]) -> None:
        self.told: list[str] = []
        self.durable: list[int] = []
        self.starts = 0
        self.wake = wake
        self.schedule = Schedule()
        self.injector = ScriptedBox(strikes=strikes)
        self.journal = SimulatedJournal(Random(1))
        self.driver = ServiceProcess(
            schedule=self.schedule,
            injector=self.injector,
            journal=self.journal,
            definitions=Definitions((), seed=1),
            timing=TIMING,
            around=self,
        )
        self.driver.start()

    def carry_out(self, effect: Effect) -> None:
        assert isinstance(effect, CancelSubmitted)
        self.tell_once("effect", int(effect.key))

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        for reply in replies:
            self.tell_once("reply", reply.sequence)

    def tell(self, answer: Answer) -> None:
        self.tell_once("answer", answer.token)

    def tell_once(self, what: str, n: int) -> None:
        assert n in self.durable, "nothing leaves before its events are durable"
        self.told.append(f"{what} {n}")

    def written(self, events: Sequence[Checked]) -> None:
        self.durable += [checked.event.n for checked in events]

    def crashed(self) -> None:
        self.told.append("crash")

    def clock_set(self, *, since: float, due: float) -> None:
        raise AssertionError("nobody sets the clock")

    def stepped(self, core: Core, outbox: Outbox) -> None:
        """Nothing to look at."""

    def start(self, now: float) -> Core:
        self.starts += 1
        return cast("Core", EchoingCore(len(self.journal.events()), wake=self.wake))

    def run(self, seconds: float) -> None:
        self.schedule.run(until=self.schedule.now + seconds)


def crash_at(point: int) -> Callable[[], Watched]:
    return lambda: Watched(service_crashed={point})


def test_messages_that_come_together_are_one_step_and_leave_after_the_write() -> None:
    watched = Watched()
    watched.driver.receive(HELLO)
    watched.driver.receive(HELLO)
    watched.run(1.5)
    assert watched.driver.steps == 2  # the first when it started
    assert watched.told == []
    watched.run(1.0)
    assert watched.durable == [1, 2]
    assert watched.told == ["reply 1", "reply 2", "answer 1", "answer 2", "effect 1", "effect 2"]


def test_steps_run_ahead_of_the_write_and_are_released_in_order() -> None:
    watched = Watched()
    for _ in range(3):
        watched.driver.receive(HELLO)
        watched.run(1.0)
    watched.run(5.0)
    assert [line for line in watched.told if line.startswith("reply")] == ["reply 1", "reply 2", "reply 3"]


# The points of one message's way, in the order in which they are asked about after the start, which asks twice.
POINTS = {
    3: ("before the step", [], False),
    4: ("before the append", [], False),
    5: ("after the append", [], False),
    6: ("before the sync", [], False),
    7: ("before the release", [], True),
    8: ("between releases", ["reply 1"], True),
    9: ("between effects", ["reply 1", "answer 1"], True),
}


@pytest.mark.parametrize("asked", sorted(POINTS))
def test_a_crash_leaves_what_was_durable_and_what_had_left(asked: int) -> None:
    point, told, durable = POINTS[asked]
    watched = crash_at(asked)()
    watched.driver.receive(HELLO)
    watched.run(5.0)
    assert watched.driver.crashes == {point: 1}
    assert watched.told == [*told, "crash"]
    assert watched.durable == ([1] if durable else [])
    assert watched.driver.core is None
    watched.run(10.0)
    assert watched.starts == 2
    assert watched.driver.core is not None


@pytest.mark.parametrize("asked", [5, 6])
@pytest.mark.parametrize("torn", [True, False])
def test_a_torn_tail_keeps_a_beginning_of_what_was_not_synced_and_nothing_of_it_leaves(
    asked: int, *, torn: bool
) -> None:
    watched = Watched(service_crashed={asked}, tail_torn={1} if torn else set())
    watched.driver.receive(HELLO)
    watched.run(5.0)
    assert watched.told == ["crash"]
    assert watched.durable == ([1] if torn else [])


def test_a_dead_service_hears_nothing() -> None:
    watched = crash_at(3)()
    watched.driver.receive(HELLO)
    watched.run(2.0)
    watched.driver.receive(HELLO)
    watched.run(20.0)
    assert watched.durable == []


def test_a_full_disk_holds_everything_back_until_there_is_room() -> None:
    watched = Watched(journal_full={1})
    watched.driver.receive(HELLO)
    watched.run(5.5)
    assert (watched.durable, watched.told) == ([], [])
    watched.run(5.0)
    assert watched.durable == [1]
    assert "reply 1" in watched.told


def test_a_core_that_never_sleeps_is_found_out() -> None:
    watched = Watched(wake=True)
    with pytest.raises(BusyLoop):
        watched.run(5.0)
