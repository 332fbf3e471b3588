from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from pilotage.agent import supervisor
from pilotage.agent.link.connect import connect
from pilotage.agent.link.link import Address, Link
from pilotage.agent.pilot import spool as pilot_spool
from pilotage.agent.pilot.pilot import PilotSettings
from pilotage.agent.pilot.spool import TOKEN_SUFFIX, Owner, PilotSpool, claim
from pilotage.agent.pilot.takeover import DeadPilot, deliver, find_dead_pilots, own_credentials, release_lock, settle
from tests.kit.agent_service import AgentService, agent_service
from tests.kit.pilots import flying, wait_until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AgentService]:
    with agent_service(tmp_path / "agent.sock", interval_seconds=0.3) as running:
        yield running


@pytest.mark.parametrize("fault", ["503", "hang-up", "garbage", "lose-reply", "500", "409"])
def test_an_exchange_that_fails_is_made_again_and_nothing_is_lost_or_doubled(
    fault: str, service: AgentService, tmp_path: Path
) -> None:
    service.script = [fault] * 2
    refs = [service.give(number, ("true",), folder=tmp_path) for number in range(1, 11)]
    with flying(service, tmp_path):
        service.wait_for(lambda: len(service.finished) == 10)
        service.script = [fault] * 3
        refs += [service.give(number, ("true",), folder=tmp_path) for number in range(11, 21)]
        service.wait_for(lambda: len(service.finished) == 20)
    assert set(service.finished) == set(refs)
    assert service.types().count("AttemptFinished") == 20
    numbers = sorted(n for _, n in service.events)
    assert numbers == list(range(1, len(numbers) + 1))


def test_an_exchange_without_an_answer_is_repeated_on_another_connection(service: AgentService, tmp_path: Path) -> None:
    service.script = ["silence"]
    with flying(service, tmp_path, interval_seconds=0.1):
        service.wait_for(lambda: len(service.said) >= 1)
    assert service.said[0].exchange.sequence > 1
    assert [event.n for event in service.said[0].exchange.events][:2] == [1, 2]


def test_a_token_that_is_not_taken_is_told_and_the_file_is_read_again(
    service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pilotage.agent.pilot.exchange.DENIED_SECONDS", 0.1)
    token = tmp_path / "token"
    token.write_text("old\n")
    service.script = ["401"]
    with flying(service, tmp_path, token_file=str(token)) as flight:
        service.wait_for(lambda: service.said)
        assert service.tokens[0] == "old"
        flight.exchanger.ask_to_leave("end")
        flight.land()
    assert f"the token in {token} is rejected" in capfd.readouterr().err


def test_while_the_service_is_gone_the_work_goes_on_and_is_told_when_it_is_back(tmp_path: Path) -> None:
    service = AgentService(interval_seconds=0.3)
    service.listen(tmp_path / "agent.sock")
    refs = [service.give(number, ("wait",), folder=tmp_path) for number in range(1, 5)]
    with flying(service, tmp_path) as flight:
        flight.stage.wait_for(lambda: len(flight.stage.running) == 2)
        service.stop()
        flight.stage.release("1.1.1", "1.1.2", "1.1.3", "1.1.4")
        wait_until(lambda: not flight.stage.running and not flight.pilot.slot_table.held)
        assert not service.finished
        service.listen(tmp_path / "agent.sock")
        service.wait_for(lambda: len(service.finished) == 4)
    service.stop()
    assert set(service.finished) == set(refs)


def test_a_service_that_comes_back_under_another_port_is_found_by_its_announcement(tmp_path: Path) -> None:
    service = AgentService(interval_seconds=0.3)
    service.listen()
    first = service.address
    announcement = tmp_path / "service.json"
    announcement.write_text(json.dumps({"url": first}))
    with flying(service, tmp_path, announcement=str(announcement)):
        service.wait_for(lambda: service.said)
        service.stop()
        service.listen()
        assert service.address != first
        announcement.write_text(json.dumps({"url": service.address}))
        ref = service.give(1, ("true",), folder=tmp_path)
        service.wait_for(lambda: ref in service.finished)
    service.stop()


def test_a_pilot_does_not_outlive_its_service_for_ever_and_leaves_what_it_could_not_tell(tmp_path: Path) -> None:
    service = AgentService(interval_seconds=0.1)
    service.listen(tmp_path / "agent.sock")
    service.give(1, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, outlive_seconds=0.5) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        service.stop()
        flight.stage.release("1.1.1")
        flight.land()
        assert flight.told is False
    assert "AttemptFinished" in (tmp_path / "spool" / "here-1.a.events").read_text()


def test_a_pilot_with_nothing_to_do_or_to_tell_waits_less_long_for_its_service(tmp_path: Path) -> None:
    service = AgentService(interval_seconds=0.1)
    service.listen(tmp_path / "agent.sock")
    service.give(1, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, deserted_seconds=0.2) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        service.wait_for(lambda: service.said[-1].exchange.held)
        service.stop()
        wait_until(lambda: time.monotonic() > flight.exchanger.heard_at + 0.5)
        flight.stage.release("1.1.1")  # now there is something to tell, so it goes on waiting
        flight.stage.wait_for(lambda: not flight.stage.running)
        service.listen(tmp_path / "agent.sock")
        service.wait_for(lambda: service.finished)
        wait_until(lambda: not flight.pilot.spool.pending)
        service.stop()
        flight.land()
    assert "deserted" in (tmp_path / "spool" / "here-1.a.events").read_text()


def test_a_pilot_whose_work_is_over_does_not_wait_for_hours_for_somebody_to_tell(tmp_path: Path) -> None:
    service = AgentService(interval_seconds=0.1)
    service.listen(tmp_path / "agent.sock")
    service.give(1, ("wait",), folder=tmp_path)
    with flying(service, tmp_path, untold_seconds=0.3) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        service.stop()
        wait_until(lambda: time.monotonic() > flight.exchanger.heard_at + 1.0)
        assert flight.stage.running  # as long as it has work it goes on
        flight.stage.release("1.1.1")
        flight.land()
        assert flight.told is False
    left = (tmp_path / "spool" / "here-1.a.events").read_text()
    assert ("AttemptFinished" in left, "deserted" in left) == (True, True)


def test_a_pilot_that_was_never_answered_has_nothing_that_anybody_waits_for_and_leaves(tmp_path: Path) -> None:
    service = AgentService(interval_seconds=0.1)
    service.address = f"unix:{tmp_path / 'agent.sock'}"  # nobody listens there
    with flying(service, tmp_path, deserted_seconds=0.2, outlive_seconds=15.0) as flight:
        flight.land()
        assert flight.told is False
    assert "deserted" in (tmp_path / "spool" / "here-1.a.events").read_text()


def test_a_spool_that_cannot_be_written_does_not_stop_the_work(
    service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with flying(service, tmp_path):
        service.wait_for(lambda: service.said)
        with monkeypatch.context() as patch:
            patch.setattr("pilotage.agent.pilot.spool.os.fdatasync", full)
            service.give(1, ("true",), folder=tmp_path)
            service.wait_for(lambda: len(service.finished) == 1)
        service.give(2, ("true",), folder=tmp_path)
        service.wait_for(lambda: len(service.finished) == 2)
        texts = (tmp_path / "spool" / "here-1.a.events").read_text()
    assert texts.count("AttemptFinished") == 2  # what could not be written comes with what can
    assert "events cannot be written to disk" in capfd.readouterr().err


def test_a_spool_is_rewritten_when_most_of_it_is_delivered(
    service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot_spool, "REWRITE_BYTES", 4000)
    for number in range(1, 301):
        service.give(number, ("true",), folder=tmp_path)
    with flying(service, tmp_path):
        service.wait_for(lambda: len(service.finished) == 300)
        assert (tmp_path / "spool" / "here-1.a.events").stat().st_size < 60_000
    assert service.types().count("AttemptFinished") == 300


def test_a_pilot_that_was_started_without_an_input_opens_its_spool_once_and_closes_it(tmp_path: Path) -> None:
    def opened() -> int:
        files = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        return files.count(str(tmp_path / "p.events"))

    spool = PilotSpool(tmp_path, "p")
    aside = os.dup(0)
    os.close(0)  # so that the next file that is opened has this number
    try:
        for at in (1.0, 2.0):
            spool.tell("PilotStarted", {"site": "here"}, at=at)
            spool.write(spool.take_unwritten())
        assert opened() == 1
        spool.close()
        assert opened() == 0
    finally:
        os.dup2(aside, 0)
        os.close(aside)
    assert (tmp_path / "p.events").read_text().count("PilotStarted") == 2


# --- what dead pilots leave ------------------------------------------------------------------------------------------


def _dead_pilot(spool: Path, *, kinds: tuple[str, ...] = ("PilotStarted",)) -> int:
    descriptor = claim(spool, Owner("dead.1", "here", "dead"))
    left = PilotSpool(spool, "dead.1")
    for kind in kinds:
        left.tell(kind, {"site": "here"}, at=1.0)
    left.write(left.take_unwritten())
    left.close()
    return descriptor


def told(dead: DeadPilot, spool: Path, service: AgentService, *, token_file: str = "") -> bool:
    """Deliver what a dead pilot left, with its own token where it has one."""
    shown = own_credentials(dead, spool=spool, token_file=token_file)
    return deliver(dead, spool=spool, credentials=shown, connect=lambda token: connect(service.address, token=token))


def test_what_a_dead_pilot_left_is_told_with_its_own_token(service: AgentService, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    os.close(_dead_pilot(spool))
    (spool / f"dead.1{TOKEN_SUFFIX}").write_text(f"{signed(pilot='dead.1', exp=5)}\n")
    (tmp_path / "token").write_text(f"{signed(exp=9)}\n")
    (dead,) = find_dead_pilots(spool)
    assert told(dead, spool, service, token_file=str(tmp_path / "token"))
    release_lock(dead)
    assert service.tokens == [signed(pilot="dead.1", exp=5)]
    assert list(spool.iterdir()) == []


def test_of_one_that_died_before_it_had_a_token_all_is_said_again_with_the_one_that_comes(
    service: AgentService, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    os.close(_dead_pilot(spool))
    (tmp_path / "token").write_text(f"{signed(exp=9)}\n")
    service.renewal, service.script = signed(pilot="dead.1", exp=7), ["introduce"]
    (dead,) = find_dead_pilots(spool)
    assert told(dead, spool, service, token_file=str(tmp_path / "token"))
    release_lock(dead)
    assert service.tokens == [signed(exp=9), signed(pilot="dead.1", exp=7)]
    assert service.types("dead.1") == ["PilotStarted", "PilotEnded"]


def signed(**claims: object) -> str:
    """A token that says this of itself; nobody here looks at its signature."""
    return f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


def test_what_a_dead_pilot_left_is_told_with_its_end_and_then_removed(service: AgentService, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    os.close(_dead_pilot(spool))
    with (spool / "dead.1.events").open("ab") as file:
        file.write(b"00000000 torn")
    (dead,) = find_dead_pilots(spool)
    assert (dead.pilot, dead.site, dead.request) == ("dead.1", "here", "dead")
    assert told(dead, spool, service)
    release_lock(dead)
    assert service.types("dead.1") == ["PilotStarted", "PilotEnded"]
    assert service.said[0].exchange.leaving == "gone"
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize(
    "in_batch_job, left, waits",
    [(True, ("PilotStarted",), True), (True, ("PilotStarted", "AttemptFinished"), False), (False, ("PilotStarted",), False)],
)  # fmt: skip
def test_of_the_end_of_a_batch_job_its_batch_system_has_the_first_word_but_results_are_told_at_once(
    service: AgentService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left: tuple[str, ...],
    *,
    in_batch_job: bool,
    waits: bool,
) -> None:
    os.close(_dead_pilot(tmp_path / "spool", kinds=left))
    paused, go_on = list[tuple[float, list[str]]](), threading.Event()

    def pause(seconds: float) -> None:
        paused.append((seconds, service.types("dead.1")))
        go_on.wait(60.0)

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(sleep=pause))
    settings = PilotSettings(
        pilot="next.1",
        request="next",
        site="here",
        state=str(tmp_path),
        server=service.address,
        in_batch_job=in_batch_job,
    )
    supervisor._take_over_dead(settings)
    if waits:
        wait_until(lambda: paused)
        assert paused == [(supervisor.BATCH_SYSTEM_SECONDS, [])]
        go_on.set()
    wait_until(lambda: service.types("dead.1")[-1:] == ["PilotEnded"])
    assert bool(paused) == waits


def test_what_cannot_be_told_stays_for_the_next(service: AgentService, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    os.close(_dead_pilot(spool))
    service.script = ["503"]
    (dead,) = find_dead_pilots(spool)
    assert not told(dead, spool, service)
    assert find_dead_pilots(spool) == []  # somebody is at it
    release_lock(dead)
    (dead,) = find_dead_pilots(spool)
    assert told(dead, spool, service)
    release_lock(dead)


def test_a_living_pilot_is_not_taken_for_dead(tmp_path: Path) -> None:
    descriptor = _dead_pilot(tmp_path / "spool")
    assert find_dead_pilots(tmp_path / "spool") == []
    os.close(descriptor)
    (dead,) = find_dead_pilots(tmp_path / "spool")
    release_lock(dead)


def test_who_settles_waits_for_a_service_that_is_about_to_come_back(service: AgentService, tmp_path: Path) -> None:
    os.close(_dead_pilot(tmp_path / "spool"))
    service.stop()
    with ThreadPoolExecutor(max_workers=1) as other:
        settled = other.submit(
            settle, tmp_path, token_file="", connect=lambda shown: connect(service.address, token=shown)
        )
        with pytest.raises(TimeoutError):
            settled.result(timeout=0.2)
        service.listen(tmp_path / "agent.sock")
        assert settled.result(timeout=20)
    assert service.types("dead.1") == ["PilotStarted", "PilotEnded"]
    assert list((tmp_path / "spool").iterdir()) == []


def test_who_settles_does_not_wait_for_ever_and_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    os.close(_dead_pilot(tmp_path / "spool"))
    nowhere = f"unix:{tmp_path}/agent.sock"
    assert not settle(
        tmp_path, token_file="", connect=lambda shown: connect(nowhere, token=shown), patience_seconds=0.1
    )
    (dead,) = find_dead_pilots(tmp_path / "spool")
    release_lock(dead)


def test_a_lock_that_somebody_died_over_before_it_had_its_name_is_removed_and_no_other(tmp_path: Path) -> None:
    (tmp_path / ".dead.1.new").touch()
    held = os.open(tmp_path / ".living.1.new", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert find_dead_pilots(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [".living.1.new"]
    os.close(held)


def test_a_lock_that_cannot_be_opened_hides_no_other(tmp_path: Path) -> None:
    os.close(_dead_pilot(tmp_path))
    (tmp_path / "a.lock").symlink_to("removed-meanwhile")
    (tmp_path / "z.lock").symlink_to("removed-meanwhile")
    (dead,) = find_dead_pilots(tmp_path)
    assert dead.pilot == "dead.1"
    release_lock(dead)


def test_a_pilot_whose_lock_is_taken_for_a_dead_one_s_claims_its_name_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[list[DeadPilot]] = []
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if not looked:  # between the making of the file and its lock
            looked.append([])
            looked.append(find_dead_pilots(tmp_path))
        flock(descriptor, operation)

    monkeypatch.setattr("pilotage.agent.pilot.spool.fcntl.flock", late)
    descriptor = claim(tmp_path, Owner("late.1", "here", "late"))
    assert looked == [[], []]
    assert [path.name for path in tmp_path.iterdir()] == ["late.1.lock"]
    assert find_dead_pilots(tmp_path) == []
    os.close(descriptor)


def test_a_pilot_whose_state_folder_is_gone_ends_with_everything_that_it_runs(tmp_path: Path) -> None:
    service = AgentService(interval_seconds=0.1)
    service.listen(tmp_path / "agent.sock")
    service.give(1, ("wait",), folder=tmp_path)
    state = tmp_path / "state"
    with flying(service, state) as flight:
        flight.stage.wait_for(lambda: flight.stage.running)
        shutil.rmtree(state)
        flight.land()
        assert not flight.stage.running
    service.stop()


# --- the connection --------------------------------------------------------------------------------------------------


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-long-name-of-a-folder" for _ in range(8)])
    folder.mkdir(parents=True)
    with agent_service(folder / "agent.sock", interval_seconds=0.3) as service, flying(service, tmp_path):
        service.wait_for(lambda: service.said)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("unix:/a/b.sock", ("/a/b.sock", "", 0, False, "")),
        ("http://host:81", ("", "host", 81, False, "")),
        ("https://host/at/", ("", "host", 443, True, "/at")),
        ("http://[::1]:8080", ("", "::1", 8080, False, "")),
        ("http://[::1]", ("", "::1", 80, False, "")),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[object, ...]) -> None:
    assert tuple(Address.parse(text)) == expected


@pytest.mark.parametrize("text", ["", "unix:", "ftp://host", "host:80", "http://", "http://host:port"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|invalid literal"):
        Address.parse(text)


@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:5\r\n\r\nhello",
    ],
)
def test_an_answer_is_whole_however_it_comes(sent: bytes, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    monkeypatch.setattr("pilotage.agent.link.link.connect_socket", lambda *_: here)
    link = Link("unix:/nowhere")
    link.ticket = 7
    answer = None
    for begin in range(0, len(sent), pieces):
        assert answer is None
        there.sendall(sent[begin : begin + pieces])
        answer = link.receive()
    assert answer is not None
    assert (answer.status, answer.body, link.ticket) == (200, b"hello", 0)
    there.close()
    link.close()


def test_where_the_system_gives_no_more_threads_what_has_none_waits_for_those_there_are(
    service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("slot") and thread.name != "slot 1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    refs = [service.give(number, ("true",), folder=tmp_path) for number in range(1, 5)]
    with flying(service, tmp_path) as flight:
        service.wait_for(lambda: len(service.finished) == 4)
        assert flight.stage.most == 1
    assert [service.finished[ref]["exit_code"] for ref in refs] == ["SUCCESS"] * 4


def test_where_the_system_gives_no_thread_at_all_that_is_told(
    service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("slot"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    refs = [service.give(number, ("true",), folder=tmp_path) for number in range(1, 4)]
    with flying(service, tmp_path):
        service.wait_for(lambda: len(service.finished) == 3)
    assert [service.finished[ref]["reason"] for ref in refs] == ["platform-failure"] * 3
    assert "can't start new thread" in service.finished[refs[0]]["exit_message"]
