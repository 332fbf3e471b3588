"""Agents against a service that says what the test tells it to: the exchange, as lossy as it may be."""

from __future__ import annotations

import pytest

from pilotage.book.codec import Checked, Codec
from pilotage.model.events.payloads import AttemptFinished, PhaseEntered, PilotEnded, PilotStarted
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.states import PILOT_WALL_OVER, ExitCodeGasw
from pilotage.simulator.world.agent_context import AgentSettings
from pilotage.simulator.world.behaviour import AttemptOutcome
from pilotage.simulator.world.faults import Faults
from tests.kit.simulated_site import BEGINNING, SimulatedSite, ends, kinds, ref, said, work


def test_the_first_exchange_says_who_it_is_and_what_it_has() -> None:
    site = SimulatedSite(settings=AgentSettings(backlog=2), wall_seconds=3600.0)
    site.start("p.1", request="p")
    (first,) = site.heard
    assert (first.pilot, first.site, first.sequence) == ("p.1", "north", 1)
    assert (first.backlog, first.held, first.leaving) == (2, (), "")
    assert first.remaining_seconds == pytest.approx(3600.0 - 30.0)
    assert said(first.events[0]) == PilotStarted(site="north", node="p.1", slots=1, request="p")
    assert (first.events[0].n, first.events[0].seen) == (1, 0)


def test_whatever_an_agent_says_of_its_node_is_the_name_that_the_node_was_given() -> None:
    site = SimulatedSite()
    site.fleet.start("p.1", site, request="p", site=site.site, node="north-n2")
    site.run(1.0)
    assert site.last.node == "north-n2"
    assert said(site.last.events[0]) == PilotStarted(site="north", node="north-n2", slots=1, request="p")


def test_an_assignment_runs_and_its_end_is_told_with_phases_and_manifest() -> None:
    site = SimulatedSite()
    site.behaviour.usual = AttemptOutcome(5.0, 40.0, 2.0, 1000)
    site.start()
    site.answer(work(1, epoch=3), position=17)
    site.run(48.0 - site.now)
    assert not ends(site.last)
    site.run(1.0)
    (finish,) = ends(site.last)
    assert finish.exit_code == ExitCodeGasw.SUCCESS
    assert [(each.phase, each.seconds) for each in finish.phases] == [
        ("inputs", 5.0),
        ("application", 40.0),
        ("outputs", 2.0),
    ]
    assert finish.manifest is not None
    assert [file.name for file in finish.manifest] == ["out"]
    assert finish.peak_memory_bytes == 1000
    event = next(each for each in site.last.events if each.type == "AttemptFinished")
    assert (event.job, event.package, event.attempt, event.epoch, event.seen) == ("job", "1.1.1", 1, 3, 17)
    assert site.last.held == ()
    assert site.store.has(ref(1))


def test_every_event_is_one_that_the_book_takes() -> None:
    site = SimulatedSite()
    site.behaviour.fates[ref(2)] = AttemptOutcome(0.0, 5.0, 0.0, 0, "application-error")
    site.start()
    site.answer(work(1), work(2), seconds=200.0)
    site.answer(leave="enough")
    site.answer()
    checked = [Codec().check(event) for event in site.spooled]
    assert all(isinstance(each, Checked) for each in checked)
    assert [event.n for event in site.spooled] == list(range(1, len(site.spooled) + 1))


def test_a_lost_reply_is_mended_by_a_repetition_with_a_new_number_after_some_patience() -> None:
    site = SimulatedSite()
    site.start()
    site.run(13.0)
    assert len(site.heard) == 1
    site.run(2.0)
    assert [each.sequence for each in site.heard] == [1, 2]
    assert site.heard[0].events == site.heard[1].events
    site.run(29.0)
    assert len(site.heard) == 2  # the patience has grown
    site.run(2.0)
    assert len(site.heard) == 3


def test_a_reply_resets_the_patience() -> None:
    site = SimulatedSite()
    site.start()
    site.run(50.0)
    site.answer()
    before = len(site.heard)
    site.run(16.0)
    assert len(site.heard) == before + 1


def test_a_reply_to_an_exchange_that_is_no_longer_open_is_ignored() -> None:
    site = SimulatedSite()
    site.start()
    site.run(20.0)
    site.answer(work(1), to=site.heard[0], position=99)
    assert site.count("assigned", ref(1)) == 0
    site.answer(work(1))
    assert site.count("started", ref(1)) == 1


def test_a_reply_that_comes_twice_counts_once() -> None:
    site = SimulatedSite()
    site.start()
    reply = site.answer(work(1))
    site.fleet.deliver([reply])
    site.run(1.0)
    assert site.count("assigned", ref(1)) == 1


def test_while_no_exchange_is_open_nothing_is_an_answer() -> None:
    site = SimulatedSite()
    site.start()
    first = site.last
    site.answer(work(1))
    assert site.last is first  # it is full: the next exchange comes as a heartbeat
    site.answer(work(2), to=first)
    assert site.count("assigned", ref(2)) == 0


def test_an_attempt_that_is_held_is_not_started_again() -> None:
    site = SimulatedSite()
    site.start()
    site.answer(work(1), seconds=30.0)
    assert site.last.held == (ref(1),)
    site.answer(work(1))
    assert site.count("started", ref(1)) == 1


def test_a_finished_attempt_that_is_assigned_again_is_answered_by_the_same_end() -> None:
    site = SimulatedSite()
    site.start()
    site.answer(work(1), seconds=100.0)
    told = next(event for event in site.last.events if event.type == "AttemptFinished")
    site.answer()
    assert site.last.events == ()
    site.answer(work(1))
    assert told in site.last.events
    site.run(100.0)
    assert site.count("started", ref(1)) == 1


def test_events_are_sent_until_they_are_acknowledged() -> None:
    site = SimulatedSite()
    site.start()
    site.answer(work(1), acknowledges=False, seconds=100.0)
    assert kinds(site.last) == ["PilotStarted", "PhaseEntered", "AttemptFinished"]
    site.answer(acknowledges=False, seconds=20.0)
    assert kinds(site.last) == ["PilotStarted", "PhaseEntered", "AttemptFinished"]
    site.answer(seconds=20.0)
    assert site.last.events == ()
    assert ("acknowledged", "p.1", 3) in site.trace


def test_a_cancelled_attempt_that_runs_is_stopped_and_told() -> None:
    site = SimulatedSite()
    site.start()
    site.answer(work(1), seconds=20.0)
    site.answer(cancelled=(ref(1),))
    (finish,) = ends(site.last)
    assert (finish.exit_code, finish.reason) == (ExitCodeGasw.EXECUTION_CANCELED, None)
    assert site.last.held == ()
    assert site.count("ended", ref(1)) == 1
    site.run(200.0)
    assert not site.store.has(ref(1))


def test_a_cancelled_attempt_that_waits_is_forgotten_without_a_word() -> None:
    site = SimulatedSite(settings=AgentSettings(backlog=1))
    site.start()
    site.answer(work(1), work(2), seconds=20.0)
    assert site.last.held == (ref(1), ref(2))
    site.answer(cancelled=(ref(2),))
    site.run(200.0)
    assert site.count("started", ref(2)) == 0
    assert all(event.package != "1.2.1" for event in site.spooled)


def test_who_is_told_to_leave_stops_everything_tells_it_and_ends() -> None:
    site = SimulatedSite(settings=AgentSettings(backlog=1))
    agent = site.start()
    site.answer(work(1), work(2), seconds=20.0)
    site.answer(leave="not-needed")
    assert site.last.leaving == "not-needed"
    assert site.last.held == ()
    assert [finish.reason for finish in ends(site.last)] == ["preempted", "preempted"]
    assert said(site.last.events[-1]) == PilotEnded(reason="not-needed")
    assert site.gone == []
    site.answer(work(3))
    assert not agent.alive
    assert site.gone == ["p.1"]
    assert site.count("assigned", ref(3)) == 0


def test_last_words_that_nobody_hears_are_given_up_after_a_while() -> None:
    site = SimulatedSite()
    agent = site.start()
    site.answer(leave="not-needed")
    site.run(299.0)
    assert agent.alive
    site.run(130.0)
    assert not agent.alive


def test_a_pilot_without_work_ends_by_itself() -> None:
    site = SimulatedSite(settings=AgentSettings(idle_seconds=60.0))
    agent = site.start()
    for _ in range(7):
        site.answer(seconds=10.0)
    assert site.last.leaving == "idle"
    assert said(site.last.events[-1]) == PilotEnded(reason="idle")
    site.answer()
    assert not agent.alive


def test_without_its_service_an_agent_lives_for_a_stated_time() -> None:
    site = SimulatedSite(settings=AgentSettings(outlive_seconds=3600.0))
    agent = site.start()
    site.run(3590.0)
    assert agent.alive
    site.run(130.0)
    assert not agent.alive


def test_at_the_end_of_its_wall_time_a_pilot_kills_what_runs_and_leaves() -> None:
    site = SimulatedSite(wall_seconds=100.0, settings=AgentSettings(backlog=1))
    site.behaviour.usual = AttemptOutcome(0.0, 1000.0, 0.0, 0)
    site.start()
    site.answer(work(1), work(2), seconds=30.0)
    site.run(69.9 - site.now)
    assert site.last.leaving == ""
    site.run(1.0)
    assert site.last.leaving == "wall-time"
    assert [finish.reason for finish in ends(site.last)] == ["wall-time", "preempted"]
    assert ends(site.last)[0].exit_message == PILOT_WALL_OVER
    site.answer()
    assert site.gone == ["p.1"]


def test_a_long_phase_is_told_by_itself_once_and_with_its_beginning() -> None:
    site = SimulatedSite()
    site.behaviour.usual = AttemptOutcome(2.0, 300.0, 0.0, 0)
    site.start()
    site.answer(work(1), seconds=9.0)
    started_at = next(event for event in site.spooled if event.type == "PilotStarted").time
    for _ in range(6):
        site.answer(seconds=10.0)
    told = [event for event in site.spooled if event.type == "PhaseEntered"]
    assert [said(event) for event in told] == [PhaseEntered(phase="application")]
    assert told[0].time == pytest.approx(started_at + 3.1)


def test_each_long_phase_is_told_the_setup_too() -> None:
    site = SimulatedSite()
    site.behaviour.usual = AttemptOutcome(20.0, 30.0, 20.0, 0, setup_seconds=20.0)
    site.start()
    site.answer(work(1), seconds=9.0)
    for _ in range(12):
        site.answer(seconds=10.0)
    told = [said(event) for event in site.spooled if event.type == "PhaseEntered"]
    assert told == [PhaseEntered(phase=phase) for phase in ("setup", "inputs", "application", "outputs")]
    [finish] = [said(event) for event in site.spooled if event.type == "AttemptFinished"]
    assert isinstance(finish, AttemptFinished)
    assert [(each.phase, each.seconds) for each in finish.phases] == [
        ("setup", 20.0),
        ("inputs", 20.0),
        ("application", 30.0),
        ("outputs", 20.0),
    ]


def test_a_poll_without_news_is_overtaken_by_news() -> None:
    site = SimulatedSite()
    site.start()
    site.answer(work(1))
    site.answer()  # what runs fills it: the next exchange is a heartbeat, which the service keeps open
    site.run(11.0)
    before = len(site.heard)
    site.run(61.5 - site.now)
    assert ends(site.last)
    assert len(site.heard) > before


def test_news_wait_for_the_answer_to_news_but_not_for_long() -> None:
    site = SimulatedSite(settings=AgentSettings(backlog=1))
    site.behaviour.fates[ref(1)] = AttemptOutcome(0.0, 5.0, 0.0, 0)
    site.behaviour.fates[ref(2)] = AttemptOutcome(0.0, 0.3, 0.0, 0)
    site.start()
    site.answer(work(1), work(2), seconds=0.0)
    site.run(6.25 - site.now)
    assert len(ends(site.last)) == 1
    before = len(site.heard)
    site.run(0.5)
    assert len(site.heard) == before
    site.run(0.7)
    assert len(ends(site.last)) == 2


def test_a_killed_agent_says_nothing_more_and_what_ran_is_lost() -> None:
    site = SimulatedSite()
    agent = site.start()
    site.answer(work(1), seconds=10.0)
    before = len(site.heard)
    agent.kill()
    site.run(500.0)
    assert len(site.heard) == before
    assert site.gone == ["p.1"]
    assert site.count("ended", ref(1)) == 1
    assert not site.store.has(ref(1))
    agent.kill()
    assert site.gone == ["p.1"]


def test_a_paused_agent_goes_on_as_if_no_time_had_passed_even_after_its_lease() -> None:
    site = SimulatedSite()
    agent = site.start()
    site.answer(work(1), seconds=19.0)
    reply = site.last
    agent.pause(600.0)
    site.answer(to=reply, seconds=500.0)
    before = len(site.heard)
    assert site.last is reply
    site.run(101.0)  # back: it takes the reply that waited for it
    assert len(site.heard) > before
    assert site.last.held == (ref(1),)
    site.run(30.0)
    assert not site.store.has(ref(1))
    site.run(30.0)
    assert site.store.has(ref(1))
    assert sum(event.type == "PhaseEntered" for event in site.spooled) == 1


def test_a_pause_ends_before_what_it_shifted_is_due() -> None:
    site = SimulatedSite()
    agent = site.start()
    site.answer(work(1))
    agent.pause(20.0)
    site.run(61.5 - site.now)
    assert not site.store.has(ref(1))
    site.run(20.0)
    assert site.store.has(ref(1))


def test_a_skewed_clock_shifts_what_is_told_not_what_happens() -> None:
    site = SimulatedSite(faults=Faults(clock_skewed=1.0))
    site.start()
    skew = site.spooled[0].time - BEGINNING
    assert 0.0 < abs(skew) <= 3 * 3600.0
    site.answer(work(1), seconds=70.0)
    (finish,) = ends(site.last)
    assert finish.phases[0].started_at == pytest.approx(BEGINNING + 1.1 + skew)
    assert finish.phases[0].seconds == pytest.approx(60.0)


def test_a_bound_agent_serves_its_attempt_and_ends_with_it() -> None:
    site = SimulatedSite(settings=AgentSettings(backlog=5))
    site.start("a.1", request="a", serves=ref(1))
    assert site.last.serves == ref(1)
    assert site.last.backlog == 0
    site.answer(work(1), seconds=70.0)
    assert kinds(site.last)[-2:] == ["AttemptFinished", "PilotEnded"]
    site.answer()
    assert site.gone == ["a.1"]


def test_a_bound_agent_whose_attempt_is_cancelled_ends() -> None:
    site = SimulatedSite()
    site.start("a.1", request="a", serves=ref(1))
    site.answer(work(1), seconds=20.0)
    site.answer(cancelled=(ref(1),))
    assert kinds(site.last)[-2:] == ["AttemptFinished", "PilotEnded"]


@pytest.mark.parametrize("kind", ["agent_killed", "agent_paused"])
def test_faults_of_agents_strike_while_they_speak(kind: str) -> None:
    site = SimulatedSite(faults=Faults(**{kind: 1.0}))
    agent = site.start()
    site.answer(work(1), seconds=40.0)
    assert site.injector.fired[kind] > 0
    assert agent.alive == (kind == "agent_paused")
    finishes = [event for event in site.spooled if event.type == "AttemptFinished"]
    site.run(60.0)
    assert finishes == []


def test_the_same_seed_gives_the_same_events() -> None:
    def events(seed: int) -> list[object]:
        faults = Faults(message_lost=0.2, message_duplicated=0.2, message_delayed=0.2, agent_paused=0.1, disk_full=0.3)
        site = SimulatedSite(faults=faults, seed=seed, settings=AgentSettings(backlog=2))
        site.start("p.1")
        site.start("q.1")
        site.run(300.0)
        for line in range(1, 60):
            site.answer(work(line), seconds=7.0)
        return list(site.spooled)

    assert events(5) == events(5)
    assert events(5) != events(6)


def test_the_memory_of_finished_attempts_is_bounded_but_never_loses_an_untold_end() -> None:
    site = SimulatedSite(settings=AgentSettings(remembered_max=1))
    site.behaviour.usual = AttemptOutcome(0.0, 1.0, 0.0, 0)
    site.start()
    for line in (1, 2, 3):
        site.answer(work(line), acknowledges=False, seconds=5.0)
    site.answer(work(1), acknowledges=False, seconds=5.0)
    assert site.count("started", AttemptRef("job", "1.1.1", 1)) == 1
    site.answer()
    site.answer(work(3), seconds=5.0)
    assert site.count("started", ref(3)) == 1
    assert isinstance(said(site.last.events[0]), AttemptFinished)


@pytest.mark.parametrize(
    "outcome",
    [
        AttemptOutcome(0.0, 1.0, 0.0, 0),
        AttemptOutcome(0.5, 1.0, 0.25, 10**12),
        AttemptOutcome(0.5, 3.0, 1.0, 7, "application-error", 0.3, 255),
        AttemptOutcome(0.0, 2.0, 0.0, 7, "out-of-memory", 0.1),
        AttemptOutcome(0.5, 1.0, 0.25, 7, setup_seconds=0.5),
    ],
)
def test_an_end_that_is_told_again_is_the_event_that_was_told(outcome: AttemptOutcome) -> None:
    site = SimulatedSite(faults=Faults(clock_skewed=1.0))
    site.behaviour.usual = outcome
    site.start()
    site.answer(work(1), seconds=5.0)
    [told] = [event for event in site.spooled if event.type == "AttemptFinished"]
    site.answer(work(1), seconds=5.0)
    [again] = site.last.events
    assert (again, bytes(again.data)) == (told, bytes(told.data))
