"""What packages, agents and users do that nobody wants: they loop, kill, lie, ramble, and ask for things that get lost."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pilotage.book.codec import Checked, Codec
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import Accepted, AnyOperation, Hold, Refused, Release
from pilotage.model.exchange.reports import Gone
from pilotage.model.jobs.plan import Template
from pilotage.service.messages import Answer, OperationRequest, SiteOperationRequest, Submit
from pilotage.simulator.world.behaviour import DEADLY, AttemptOutcome, Habits, RandomBehaviour
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.jobs import Definitions, JobSketch, LineSketch, StageSketch
from pilotage.simulator.world.network import Network
from pilotage.simulator.world.randomness import Dice, Fixed
from pilotage.simulator.world.users import User, UserHabits
from tests.kit.simulated_site import SimulatedSite, kinds, ref, work

JOB = JobSketch(
    job="j",
    templates=(Template(activity="work"),),
    stages=(StageSketch(lines=(LineSketch(templates=(0,)),)),),
)

# --- packages ---------------------------------------------------------------------------------------------------------


def test_as_many_packages_loop_and_kill_as_was_said_and_most_of_their_attempts_do() -> None:
    behaviour = RandomBehaviour(7, Habits(), {}, loops=0.2, kills=0.1)
    firsts = [behaviour.outcome(AttemptRef("j", f"1.{line}.1", 1), "north").reason for line in range(2000)]
    assert 230 < firsts.count("looping") < 330
    assert 100 < firsts.count(DEADLY) < 180
    looping = f"1.{firsts.index('looping')}.1"
    reasons = [behaviour.outcome(AttemptRef("j", looping, attempt), "north").reason for attempt in range(1, 101)]
    assert set(reasons) == {"looping", ""}
    assert 55 < reasons.count("looping") < 85


def test_what_neither_loops_nor_kills_fares_as_before() -> None:
    plain, bad = RandomBehaviour(7, Habits(), {}), RandomBehaviour(7, Habits(), {}, loops=0.2, kills=0.1)
    for line in range(50):
        one = AttemptRef("j", f"1.{line}.1", 1)
        found = bad.outcome(one, "north")
        assert found.reason or found == plain.outcome(one, "north")


def test_a_deadly_attempt_takes_its_agent_along_and_nobody_tells_of_it() -> None:
    site = SimulatedSite()
    site.behaviour.usual = AttemptOutcome(0.0, 60.0, 0.0, 0, DEADLY)
    agent = site.start()
    site.answer(work(1), seconds=61.0)
    assert not agent.alive
    assert (site.gone, site.reasons) == (["p.1"], ["killed"])
    assert site.injector.fired["package_kills"] == 1
    assert not [event for event in site.spooled if event.type == "AttemptFinished"]


def test_an_attempt_that_loops_is_counted() -> None:
    site = SimulatedSite()
    site.behaviour.usual = AttemptOutcome(0.0, 60.0, 0.0, 0, "looping")
    site.start()
    site.answer(work(1), seconds=62.0)
    assert site.injector.fired["package_loops"] == 1
    assert kinds(site.last)[-1] == "AttemptFinished"


# --- agents -----------------------------------------------------------------------------------------------------------


def a_rogue(seed: int) -> SimulatedSite:
    """Two agents that hold an attempt each, and have ended one each; both lie in every exchange."""
    site = SimulatedSite(faults=Faults(agent_rogue=1.0), seed=seed)
    site.behaviour.fates = {ref(line): AttemptOutcome(0.0, 1.0, 0.0, 0) for line in (1, 2)}
    for name, lines in (("p.1", (1, 3)), ("q.1", (2, 4))):
        site.start(name)
        for line in lines:
            site.answer(work(line), to=site.last, seconds=5.0)
    for _ in range(6):
        site.answer(seconds=10.0)
    return site


def test_lies_are_of_every_kind_and_no_honest_event_is_among_them() -> None:
    said: set[str] = set()
    smuggled: list[Event] = []
    for seed in range(30):
        site = a_rogue(seed)
        said |= {event.type for event in site.forged}
        smuggled += [event for each in site.heard for event in each.events if event.stream != each.pilot]
        honest = {(event.stream, event.n) for event in site.spooled}
        assert honest.isdisjoint({(event.stream, event.n) for event in site.forged})
        assert 0 < site.injector.fired["agent_rogue"] <= site.injector.tried["agent_rogue"]
    assert said >= {"AttemptFinished", "OutputsStaged", "CommitGranted", "CancelAccepted", "PilotEnded", "Nonsense"}
    assert smuggled


def test_lies_are_numbered_with_everything_else_so_that_they_are_heard() -> None:
    site = a_rogue(3)
    for stream in ("p.1", "q.1"):
        numbers = sorted(event.n for event in [*site.spooled, *site.forged] if event.stream == stream)
        assert numbers == list(range(1, len(numbers) + 1))


# --- the way to the service -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loses, arrives", [(True, 0), (False, 1)])
def test_some_messages_are_never_lost(*, loses: bool, arrives: int) -> None:
    schedule, injector, arrived = Schedule(), FaultInjector(Faults(message_lost=1.0), Dice(1)), list[Gone]()
    network = Network(schedule, injector, Dice(1), Fixed(0.5))
    network.send(Gone(site="north", key="k", reason="ended"), arrived.append, loses=loses)
    schedule.run(until=10.0)
    assert (len(arrived), injector.fired["message_lost"]) == (arrives, 1 - arrives)


@pytest.mark.parametrize("doubles, arrives", [(True, 2), (False, 1)])
def test_some_messages_are_never_doubled(*, doubles: bool, arrives: int) -> None:
    schedule, injector, arrived = (
        Schedule(),
        FaultInjector(Faults(message_duplicated=1.0), Dice(1)),
        list[OperationRequest](),
    )
    network = Network(schedule, injector, Dice(1), Fixed(0.5))
    asked = OperationRequest(token=3, operation=Hold(job="j", message="wait"))
    network.send(asked, arrived.append, doubles=doubles)
    schedule.run(until=1000.0)
    assert arrived == [asked] * arrives


# --- users ------------------------------------------------------------------------------------------------------------


class Desk:
    """A user, and a service that answers as the test says."""

    def __init__(self, **faults: float) -> None:
        self.schedule = Schedule()
        self.injector = FaultInjector(Faults(**faults), Dice(1))
        self.asked: list[OperationRequest | SiteOperationRequest | Submit] = []
        self.told: list[object] = []
        self.user = User(
            schedule=self.schedule,
            injector=self.injector,
            dice=Dice(1),
            habits=UserHabits(think_seconds=1.0, answer_seconds=60.0, held_seconds=10.0),
            definitions=Definitions((JOB,), seed=1),
            ask=self.ask,
            answered=self,
        )

    def ask(self, message: OperationRequest | SiteOperationRequest | Submit, *, at_once: bool) -> None:
        self.asked.append(message)

    def on_submitted(self, job: str, outcome: Accepted | Refused, now: float) -> None:
        self.told.append(job)

    def on_answered(self, operation: AnyOperation, outcome: Accepted | Refused, now: float) -> None:
        self.told.append(operation)

    def happen(self, kind: str, *, package: str | None = "1.1.1", **data: object) -> None:
        event = Event(
            source="service",
            stream="engine",
            n=1,
            type=kind,
            time=0.0,
            job="j",
            package=package,
            attempt=1 if kind.startswith("Attempt") else None,
            data=msgspec.Raw(msgspec.json.encode(data)),
        )
        checked = Codec().check(event)
        assert isinstance(checked, Checked), checked
        self.user.on_written([checked])

    def run(self, seconds: float) -> None:
        self.schedule.run(until=self.schedule.now + seconds)

    def answer(self, message: OperationRequest | SiteOperationRequest | Submit, *, accepted: bool) -> None:
        outcome = Accepted(operation=1, events=1) if accepted else Refused(code="job-over", message="no")
        self.user.receive_answer(Answer(token=message.token, outcome=outcome))


def releases(desk: Desk) -> list[OperationRequest]:
    return [each for each in desk.asked if isinstance(each, OperationRequest) and isinstance(each.operation, Release)]


def test_what_a_user_does_counts_only_once_it_is_accepted() -> None:
    desk = Desk(user_kills=1.0)
    desk.happen("AttemptCreated", site="lyon")
    desk.happen("AttemptCreated", site="lyon")
    desk.run(5.0)
    assert (desk.injector.tried["user_kills"], desk.injector.fired["user_kills"]) == (2, 0)
    desk.answer(desk.asked[0], accepted=False)
    desk.answer(desk.asked[1], accepted=True)
    desk.answer(desk.asked[1], accepted=True)  # which came twice
    assert desk.injector.fired["user_kills"] == 1
    assert len(desk.told) == 2


def test_a_user_who_rambles_says_more_than_the_book_takes() -> None:
    desk = Desk(user_holds=1.0, user_rambles=1.0)
    for _ in range(20):
        desk.happen("AttemptCreated", site="lyon")
    desk.run(5.0)
    holds = [each.operation for each in desk.asked if isinstance(each, OperationRequest)]
    lengths = [len(each.message) for each in holds if isinstance(each, Hold)]
    assert min(lengths) < 16_384 < max(lengths)
    desk.answer(desk.asked[0], accepted=True)
    assert (desk.injector.fired["user_rambles"], desk.injector.tried["user_rambles"]) == (1, 20)


def test_a_release_is_repeated_until_it_is_heard() -> None:
    desk = Desk()
    desk.happen("Held", operation=1)
    desk.run(200.0)
    assert len(releases(desk)) == 4
    assert not desk.user.settled
    desk.happen("Released", operation=2)
    desk.run(200.0)
    assert len(releases(desk)) == 4


def test_an_old_refusal_does_not_end_a_new_hold() -> None:
    desk = Desk()
    desk.happen("Held", operation=1)
    desk.run(15.0)
    [first] = releases(desk)
    desk.happen("Released", operation=2)
    desk.happen("Held", operation=3)
    desk.answer(first, accepted=False)
    desk.run(15.0)
    assert len(releases(desk)) == 2
    desk.answer(releases(desk)[-1], accepted=False)
    desk.run(200.0)
    assert len(releases(desk)) == 2


def submitted(desk: Desk) -> list[Submit]:
    return [each for each in desk.asked if isinstance(each, Submit)]


@pytest.mark.parametrize("end", ["registered", "refused"])
def test_a_submission_is_repeated_until_it_is_known_what_came_of_it(end: str) -> None:
    desk = Desk()
    ends: dict[str, Callable[[], None]] = {
        "registered": lambda: desk.happen("JobRegistered", package=None, owner="ada", name="j"),
        "refused": lambda: desk.answer(submitted(desk)[0], accepted=False),
    }
    desk.user.submit_all([JOB])
    desk.run(130.0)
    assert len(submitted(desk)) == 3
    ends[end]()
    desk.run(300.0)
    assert len(submitted(desk)) == 3
    assert desk.user.settled
    assert desk.told == (["j"] if end == "refused" else [])
