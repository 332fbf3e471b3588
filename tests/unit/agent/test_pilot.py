from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from pilotage.agent.attempt.workplace import Workplace
from pilotage.agent.durable_files import text_of
from pilotage.agent.pilot.backlog import AHEAD_FACTOR, HeldAttempt, SlotTable
from pilotage.agent.pilot.exchange import Exchanger
from pilotage.agent.pilot.fetch import ServerFetch
from pilotage.agent.pilot.pilot import Pilot, PilotSettings, describe_node
from pilotage.agent.pilot.spool import PilotSpool, encode_end
from pilotage.agent.resources import Resources
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.states import PILOT_WALL_OVER
from tests.kit.agent_service import AgentService, agent_service
from tests.kit.pilots import flying


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AgentService]:
    with agent_service(tmp_path / "agent.sock", interval_seconds=0.3) as running:
        yield running


def grounded(state: Path) -> Pilot:
    """A pilot of four slots that neither exchanges nor begins anything."""
    return Pilot(
        PilotSettings(pilot="p", site="here", state=str(state), server="unix:none", capacity=Resources(400)),
        workplace=cast("Workplace", None),
        fetch=cast("ServerFetch", None),
        on_news=lambda urgent: None,
    )


def test_news_waits_for_more_unless_it_is_urgent(tmp_path: Path) -> None:
    settings = PilotSettings(pilot="p", site="here", state=str(tmp_path), server="unix:none", hold_seconds=3600.0)
    exchanger = Exchanger(settings)
    begun = time.monotonic()
    exchanger.on_news(False)
    assert exchanger._flush_at >= begun + 3600.0
    exchanger.on_news(True)
    assert begun <= exchanger._flush_at <= time.monotonic()
    os.close(exchanger._awake)
    os.close(exchanger._wake)


@pytest.mark.parametrize("zone, offset", [("UTC0", "+00:00"), ("EAST-5:30", "+05:30"), ("WEST7", "-07:00")])
def test_a_pilot_says_how_far_the_clocks_of_its_node_are_from_utc(
    zone: str, offset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert describe_node("n1", "here")["environment"] == {"utc_offset": offset}
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_pilot_introduces_itself_runs_what_it_is_given_and_says_goodbye(
    service: AgentService, tmp_path: Path
) -> None:
    refs = [service.give(number, ("true",), folder=tmp_path) for number in range(1, 4)]
    with flying(service, tmp_path) as flight:
        service.wait_for(lambda: len(service.finished) == 3)
        assert set(service.finished) == set(refs)
        service.send_away("no more work")
        flight.land()
    assert flight.told
    kinds = service.types()
    assert kinds[:2] == ["PilotStarted", "NodeDescribed"]
    assert kinds[-1] == "PilotEnded"
    assert kinds.count("AttemptFinished") == 3
    first = service.said[0].exchange
    assert (first.pilot, first.site, first.backlog) == ("here-1.a", "here", 2)
    assert service.said[-1].exchange.backlog == 3 * AHEAD_FACTOR  # they took no time, and were three
    assert first.capacity.cores_hundredths == 200


def test_the_longer_attempts_take_the_fewer_wait_here(tmp_path: Path) -> None:
    pilot = grounded(tmp_path)
    found = [pilot.backlog]
    for seconds in (0.01, 0.1, 1.0, 60.0):
        pilot._durations.forget()
        for _ in range(20):
            pilot._durations.note(seconds)
        found.append(pilot.backlog)
    assert found == [4, 64, 20, 2, 0]


def test_news_are_urgent_as_soon_as_no_more_waits_than_is_untold(tmp_path: Path) -> None:
    pilot = grounded(tmp_path)
    for number in range(1, 10):
        pilot.accept({"ref": {"job": "J", "package": f"1.1.{number}", "attempt": 1}}, {})
    found = [pilot.is_urgent]
    for _ in range(9):
        pilot.spool.tell("NodeDescribed", {}, at=0.0)
        found.append(pilot.is_urgent)
    assert found == 9 * [False] + [True]
    pilot.spool.take_unwritten()  # an exchange has them
    assert not pilot.is_urgent


def test_news_are_urgent_when_hardly_more_waits_than_there_are_slots(tmp_path: Path) -> None:
    pilot = grounded(tmp_path)
    for number in range(1, 5):
        pilot.accept({"ref": {"job": "J", "package": f"1.1.{number}", "attempt": 1}}, {})
    assert pilot.is_urgent
    pilot.accept({"ref": {"job": "J", "package": "1.1.5", "attempt": 1}}, {})
    assert not pilot.is_urgent


@pytest.mark.parametrize("waiting", [[], [50, 50], [100, 50], [150, 50], [50, 100]], ids=str)
def test_what_follows_an_attempt_is_what_has_room_without_it(waiting: list[int]) -> None:
    benches = [SlotTable(Resources(cores_hundredths=150)) for _ in range(2)]
    for bench in benches:
        for number, cores in enumerate([100, *waiting]):
            ref = {"job": "J", "package": f"1.1.{number}", "attempt": 1}
            bench.accept(HeldAttempt({"ref": ref, "demand": {"cores_hundredths": cores}}, {}))
    first, second = benches
    over, gone = first.take(), second.take()
    assert over is not None
    assert gone is not None
    second.remove(gone)
    for following, taken in ((first.follow(over), second.take()), (first.take(), second.take())):
        assert (following and following.ref) == (taken and taken.ref)
    assert first.held.keys() == second.held.keys()
    assert [each.ref for each in first.waiting] == [each.ref for each in second.waiting]
    assert (first.running, first.has_capacity(0)) == (second.running, second.has_capacity(0))


@pytest.mark.parametrize("asked", [50, 100, 150])
def test_who_waits_may_begin_where_its_cores_are_free(asked: int) -> None:
    bench = SlotTable(Resources(cores_hundredths=100))
    assert not bench.may_begin
    bench.accept(
        HeldAttempt({"ref": {"job": "J", "package": "1.1.1", "attempt": 1}, "demand": {"cores_hundredths": asked}}, {})
    )
    assert bench.may_begin is (asked <= 100)


def test_an_adopted_manifest_is_told_as_the_service_said_it() -> None:
    payload = {"exit_message": "made before", "manifest": [{"name": "a", "more": [2]}]}
    assert json.loads(encode_end(payload)) == payload


def test_no_more_run_at_once_than_fit(service: AgentService, tmp_path: Path) -> None:
    for number in range(1, 7):
        service.give(number, ("wait",), folder=tmp_path, cores_hundredths=50 if number < 6 else 200)
    with flying(service, tmp_path) as flight:
        flight.stage.wait_for(lambda: len(flight.stage.running) == 4)
        flight.stage.release("1.1.1")
        flight.stage.wait_for(lambda: "1.1.5" in flight.stage.running)
        flight.stage.release(*(f"1.1.{number}" for number in range(2, 5)))
        service.wait_for(lambda: len(service.finished) == 4)
        assert "1.1.6" not in flight.stage.running  # it takes both cores, and one is half taken
        flight.stage.release("1.1.5")
        flight.stage.wait_for(lambda: "1.1.6" in flight.stage.running)
    assert flight.stage.most == 4


def test_memory_is_shared_out_as_cores_are(service: AgentService, tmp_path: Path) -> None:
    for number in (1, 2):
        service.give(number, ("wait",), folder=tmp_path, memory_bytes=700 << 20)
    with flying(service, tmp_path) as flight:
        flight.stage.wait_for(lambda: "1.1.1" in flight.stage.running)
        flight.stage.release("1.1.1")
        flight.stage.wait_for(lambda: "1.1.2" in flight.stage.running)
    assert flight.stage.most == 1


def test_what_can_never_fit_is_told_at_once(service: AgentService, tmp_path: Path) -> None:
    ref = service.give(1, ("true",), folder=tmp_path, memory_bytes=1 << 40)
    with flying(service, tmp_path):
        service.wait_for(lambda: service.finished)
    assert service.finished[ref]["reason"] == "platform-failure"


def test_what_the_service_cannot_say_how_to_run_fails_with_its_words(service: AgentService, tmp_path: Path) -> None:
    ref = service.give(1, ("true",), folder=tmp_path)
    assignment, work = service.ready.pop()
    service.ready.append((assignment, msgspec.structs.replace(work, refused="its definition is gone")))
    with flying(service, tmp_path):
        service.wait_for(lambda: service.finished)
    assert "its definition is gone" in service.finished[ref]["exit_message"]


def test_a_surprise_in_a_runner_ends_the_attempt_and_not_the_slot(service: AgentService, tmp_path: Path) -> None:
    bad = service.give(1, ("raise",), folder=tmp_path)
    good = service.give(2, ("true",), folder=tmp_path)
    with flying(service, tmp_path, slots=1):
        service.wait_for(lambda: len(service.finished) == 2)
    assert service.finished[bad]["exit_code"] == "UNDEFINED"
    assert "a fault of the runner" in service.finished[bad]["exit_message"]
    assert service.finished[good]["exit_code"] == "SUCCESS"


def test_a_cancelled_attempt_is_held_until_it_is_over_and_a_waiting_one_is_forgotten(
    service: AgentService, tmp_path: Path
) -> None:
    running = service.give(1, ("wait",), folder=tmp_path)
    waiting = service.give(2, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, slots=1) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        service.wait_for(lambda: any(waiting in says.exchange.held for says in service.said))
        service.cancel(waiting)
        service.cancel(running)
        service.wait_for(lambda: running in service.finished)
        service.wait_for(lambda: not service.said[-1].exchange.held)
    assert service.finished[running]["exit_code"] == "EXECUTION_CANCELED"
    assert waiting not in service.finished


def test_a_pilot_that_wants_no_more_hears_at_once_what_is_cancelled(tmp_path: Path) -> None:
    with agent_service(tmp_path / "agent.sock", interval_seconds=3600.0) as service:
        running, waiting = (service.give(number, ("wait",), folder=tmp_path) for number in (1, 2))
        with flying(service, tmp_path, slots=1, backlog=1) as flight:
            flight.stage.wait_for(lambda: flight.stage.running)
            service.wait_for(lambda: waiting in service.said[-1].exchange.held)
            service.cancel(running)
            service.wait_for(lambda: running in service.finished)
            assert len(service.said) < 8  # it listens, and does not ask over and over


def test_what_did_not_hear_its_cancel_is_reminded(service: AgentService, tmp_path: Path) -> None:
    ref = service.give(1, ("deaf",), folder=tmp_path)
    with flying(service, tmp_path) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        service.wait_for(lambda: any(ref in says.exchange.held for says in service.said))
        service.cancel(ref)
        service.wait_for(lambda: ref in service.finished)
        held = [says for says in service.said if ref in says.exchange.held]
    assert len(held) < 12  # what is being ended is no reason to speak without pause


def test_what_is_long_in_ending_does_not_keep_the_other_slots_from_work(tmp_path: Path) -> None:
    with agent_service(tmp_path / "agent.sock", interval_seconds=30.0) as service:
        stone = service.give(1, ("stone",), folder=tmp_path)
        with flying(service, tmp_path, backlog=0) as flight:
            flight.stage.wait_for(lambda: flight.stage.running)
            service.wait_for(lambda: any(stone in says.exchange.held for says in service.said))
            service.cancel(stone)
            service.wait_for(lambda: sum(stone in says.exchange.held for says in service.said) > 1)
            other = service.give(2, ("true",), folder=tmp_path)
            service.wait_for(lambda: other in service.finished)
            assert stone not in service.finished
            flight.stage.release("1.1.1")


def test_a_pilot_that_leaves_ends_everything_and_tells_why(service: AgentService, tmp_path: Path) -> None:
    running = service.give(1, ("wait",), folder=tmp_path)
    waiting = service.give(2, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, slots=1) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        service.wait_for(lambda: any(len(says.exchange.held) == 2 for says in service.said))
        flight.exchanger.ask_to_leave("terminated")
        flight.land()
    assert flight.told
    assert [service.finished[ref]["reason"] for ref in (running, waiting)] == ["preempted", "preempted"]
    assert service.types()[-1] == "PilotEnded"
    assert not service.said[-1].exchange.held


def test_one_that_its_batch_system_ends_since_its_time_is_over_says_so_though_it_was_told_of_no_such_limit(
    service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho TimeLimit\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    running = service.give(1, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, wall_seconds=600.0) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        flight.exchanger.ask_to_leave("terminated")
        flight.land()
    assert service.finished[running]["reason"] == "wall-time"
    assert service.finished[running]["exit_message"] == PILOT_WALL_OVER
    last = service.events[max(service.events)]
    assert json.loads(bytes(last.data)) == {"reason": "wall-time"}


def test_one_that_is_ended_after_the_limit_that_it_knows_says_so_though_its_batch_system_does_not_answer(
    service: AgentService, tmp_path: Path
) -> None:
    with flying(service, tmp_path, wall_seconds=1e-6, leaves="terminated") as flight:
        flight.land()
    last = service.events[max(service.events)]
    assert json.loads(bytes(last.data)) == {"reason": "wall-time"}


def test_the_end_of_its_wall_time_ends_what_runs(service: AgentService, tmp_path: Path) -> None:
    ref = service.give(1, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, wall_seconds=0.4) as flight:
        flight.land()
    assert service.finished[ref]["reason"] == "wall-time"
    assert service.finished[ref]["exit_code"] == "EXECUTION_FAILED"
    assert service.finished[ref]["exit_message"] == PILOT_WALL_OVER
    assert service.said[0].exchange.remaining_seconds is not None


def test_a_pilot_without_work_ends_by_itself(service: AgentService, tmp_path: Path) -> None:
    with flying(service, tmp_path, idle_seconds=0.1) as flight:
        flight.land()
    assert flight.told
    last = service.events[max(service.events)]
    assert json.loads(bytes(last.data)) == {"reason": "idle"}


def test_an_agent_for_one_attempt_asks_for_it_and_ends_after_it(service: AgentService, tmp_path: Path) -> None:
    ref = service.give(1, ("true",), folder=tmp_path)
    serves = {"job": ref.job, "package": ref.package, "attempt": ref.attempt}
    with flying(service, tmp_path, slots=1, serves=serves, backlog=0) as flight:
        flight.land()
    assert service.said[0].exchange.serves == ref
    assert service.finished[ref]["exit_code"] == "SUCCESS"
    assert service.types()[-1] == "PilotEnded"


def test_a_long_phase_is_told_once_with_the_time_it_began_and_its_log_so_far(
    service: AgentService, tmp_path: Path
) -> None:
    ref = service.give(1, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, interval_seconds=0.3) as flight:
        flight.stage.older_seconds = 100.0
        flight.stage.wait_for(lambda: flight.stage.running)
        service.wait_for(lambda: "PhaseEntered" in service.types())
        service.wait_for(lambda: service.logs)
        flight.stage.release("1.1.1")
        service.wait_for(lambda: ref in service.finished)
    assert service.types().count("PhaseEntered") == 1
    events = {event.type: event for event in service.events.values()}
    assert events["PhaseEntered"].time < events["AttemptFinished"].time - 99.0
    assert not service.logs[0].final
    assert (service.logs[0].ref, service.logs[0].head) == (ref, "so far")


def test_logs_travel_with_the_end_of_their_attempt_until_it_is_acknowledged(
    service: AgentService, tmp_path: Path
) -> None:
    service.give(1, ("say",), folder=tmp_path)
    with flying(service, tmp_path):
        service.wait_for(lambda: service.logs)
        assert service.logs[0].head == "said"
        service.give(2, ("true",), folder=tmp_path)
        service.wait_for(lambda: len(service.finished) == 2)
    assert len(service.logs) == 1


def test_an_attempt_whose_end_was_told_is_not_run_again(service: AgentService, tmp_path: Path) -> None:
    ref = service.give(1, ("true",), folder=tmp_path)
    with flying(service, tmp_path) as flight:
        service.wait_for(lambda: service.finished)
        with service.change:
            work = service.said[0]
            assert work is not None
            told = len(service.said)
            service.finished.clear()
        service.give(1, ("wait",), folder=tmp_path)  # the same once more, as after a lost word
        service.wait_for(lambda: any(event.n == 3 for says in service.said[told:] for event in says.exchange.events))
        assert not flight.stage.running
        service.cancel(ref)


@pytest.mark.parametrize("state", ["untold", "told", "acknowledged"])
def test_the_end_of_an_attempt_is_told_once_more_whether_it_was_told_before_or_not(tmp_path: Path, state: str) -> None:
    spool = PilotSpool(tmp_path, "p", remembered_max=1)
    for number in (1, 2):
        held = HeldAttempt({"ref": {"job": "J", "package": f"1.1.{number}", "attempt": 1}}, {})
        spool.tell_of(held, "AttemptFinished", {"exit_code": "SUCCESS"}, at=0.0)
    if state != "untold":
        spool.batch()
    spool.acknowledge(2 if state == "acknowledged" else 0)
    assert not spool.tell_again(("J", "1.1.3", 1))
    assert spool.tell_again(("J", "1.1.2", 1))
    assert spool.tell_again(("J", "1.1.1", 1)) == (state != "acknowledged")  # of those only the last is remembered
    told = [json.loads(text)["package"] for text in spool.batch()[0]]
    assert told == (["1.1.2"] if state == "acknowledged" else ["1.1.1", "1.1.2"])


def test_what_an_assignment_changes_can_wait_for_the_next_exchange(tmp_path: Path) -> None:
    news: list[bool] = []
    pilot = Pilot(
        PilotSettings(pilot="p", site="here", state=str(tmp_path), server="unix:none", capacity=Resources(400)),
        workplace=cast("Workplace", None),
        fetch=cast("ServerFetch", None),
        on_news=news.append,
    )
    assignment = {"ref": {"job": "J", "package": "1.1.1", "attempt": 1}}
    pilot.accept(assignment, None)
    assert news == [False]  # it cannot be run
    pilot.accept(assignment, None)
    assert news == [False, False]  # its end is told once more


def test_what_happens_in_one_moment_is_told_in_one_exchange(service: AgentService, tmp_path: Path) -> None:
    for number in range(1, 301):
        service.give(number, ("true",), folder=tmp_path)
    with flying(service, tmp_path):
        service.wait_for(lambda: len(service.finished) == 300)
        assert service.exchanges < 100


def test_events_are_on_disk_before_they_are_told_and_the_file_stays_small(
    service: AgentService, tmp_path: Path
) -> None:
    service.give(1, ("true",), folder=tmp_path)
    with flying(service, tmp_path) as flight:
        service.wait_for(lambda: service.finished)
        lines = (tmp_path / "spool" / "here-1.a.events").read_bytes().splitlines()
        texts = [text_of(line) for line in lines]
        assert [json.loads(text)["type"] for text in texts if text] == service.types()
        assert AttemptRef("job", "1.1.1", 1) in service.finished
        flight.exchanger.ask_to_leave("end")
        flight.land()


def test_damaged_files_of_the_cache_are_removed_and_told_until_the_service_has_answered(
    service: AgentService, tmp_path: Path
) -> None:
    cached = tmp_path / "abc"
    cached.write_bytes(b"damaged")
    with flying(service, tmp_path) as flight:
        flight.pilot.damaged.add("ab/abc", str(cached))
        ref = service.give(1, ("true",), folder=tmp_path)
        service.wait_for(lambda: ref in service.finished)
        first = next(number for number, each in enumerate(service.said) if each.damaged)
        assert service.said[first].damaged == ("ab/abc",)
        later = service.give(2, ("true",), folder=tmp_path)
        service.wait_for(lambda: later in service.finished)
        assert service.said[-1].damaged == ()
        service.send_away("no more work")
        flight.land()
    assert not cached.exists()
