from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.delivery import courier as courier_module
from pilotage.agent.delivery import courier as reading
from pilotage.agent.delivery.courier import Backoff, Courier
from pilotage.agent.delivery.spool import Queue, Spool
from pilotage.agent.delivery.stream import segment_file, segments_of
from pilotage.agent.durable_files import line_of, locked
from pilotage.agent.link.http import Answer, BatchAccepted, BatchTooLarge, Connection, Refusal, RetryLater, judge
from tests.kit.agent_server import AgentServer, agent_server

REST = b'"type":"Noted","time":1.5,"data":{"text":"%d"}}'


@pytest.fixture
def server() -> Iterator[AgentServer]:
    with agent_server() as running:
        yield running


@pytest.fixture
def queue(server: AgentServer, tmp_path: Path) -> Queue:
    return Spool(tmp_path / "spool").queue(server.url)


@pytest.fixture
def courier(queue: Queue) -> Iterator[Courier]:
    made = Courier(queue)
    yield made
    made.close()


def fill(queue: Queue, count: int, *, source: str = "application", segment_bytes: int = 4000) -> str:
    stream = queue.stream(source, segment_bytes=segment_bytes)
    for number in range(count):
        stream.append(REST % number)
    stream.close()
    return stream.name


def drain(courier: Courier) -> None:
    """Go on until everything is delivered, as `run` does but without its pauses."""
    for _ in range(200):
        if not courier.drain_once().problem:
            return
    pytest.fail(courier.last_error)


def test_everything_arrives_once_and_in_order_and_the_segments_go(
    server: AgentServer, queue: Queue, courier: Courier
) -> None:
    name = fill(queue, 500)
    drained = courier.drain_once()
    assert (drained.delivered, drained.refused, drained.problem) == (500, 0, "")
    assert server.numbers(name) == list(range(1, 501))
    assert server.batches == [500 - sum(server.batches[1:]), *server.batches[1:]]
    assert queue.pending() == 0
    assert queue.seen() == 500
    (folder,) = queue.streams()
    assert len(segments_of(folder)) == 1
    assert courier.drain_once().delivered == 0
    assert fill(queue, 1) == name
    drain(courier)
    assert server.numbers(name)[-1] == 501


@pytest.mark.parametrize(
    "fault", ["500", "507", "404", "408", "drop", "half", "lose-answer", "garbage", "redirect", "busy1"]
)
def test_whatever_the_server_does_wrong_nothing_is_lost_or_doubled(
    server: AgentServer, queue: Queue, courier: Courier, fault: str
) -> None:
    name = fill(queue, 100)
    server.script = [fault, "", fault, fault]
    problem = courier.drain_once().problem
    assert problem
    assert courier.last_error == problem
    drain(courier)
    assert server.numbers(name) == list(range(1, 101))
    assert queue.refused() == []
    assert courier.last_error == ""


def test_a_server_that_is_restarted_gets_the_rest(server: AgentServer, queue: Queue, courier: Courier) -> None:
    name = fill(queue, 50)
    drain(courier)
    server.stop()
    fill(queue, 50)
    assert "refused" in courier.drain_once().problem  # the connection, that is
    server.start()
    drain(courier)
    assert server.numbers(name) == list(range(1, 101))


def test_a_connection_that_the_server_closed_at_rest_costs_no_failure(
    server: AgentServer, queue: Queue, courier: Courier
) -> None:
    fill(queue, 1)
    drain(courier)
    server.stop()
    server.start()
    fill(queue, 1)
    assert courier.drain_once().problem == ""
    assert len(server.events) == 2


def test_a_refused_event_is_set_aside_and_the_rest_arrives(server: AgentServer, queue: Queue, courier: Courier) -> None:
    server.refuse = lambda event: ("unknown_type", "no such type") if event["n"] in (3, 10) else None
    name = fill(queue, 10)
    drained = courier.drain_once()
    assert (drained.delivered, drained.refused, drained.problem) == (10, 2, "")
    assert server.numbers(name) == [1, 2, 4, 5, 6, 7, 8, 9]
    told = queue.refused()
    assert [(entry["code"], entry["reason"], entry["event"]["n"]) for entry in told] == [
        ("unknown_type", "no such type", 3),
        ("unknown_type", "no such type", 10),
    ]
    assert told[0]["event"]["data"] == {"text": "2"}
    assert fill(queue, 1) == name


def test_a_refused_event_is_on_disk_before_it_is_done_with_and_is_set_aside_once(
    server: AgentServer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.refuse = lambda event: ("malformed", "no") if event["n"] == 2 else None
    fill(queue, 3)

    def die(*_: Any) -> None:
        raise OSError(5, "the power is gone")

    first = Courier(queue)
    with monkeypatch.context() as patch:
        patch.setattr(reading, "write_acknowledged", die)
        assert "the power is gone" in first.drain_once().problem
    first.close()
    assert queue.pending() == 3
    assert len(queue.refused()) == 1
    second = Courier(queue)
    drain(second)
    second.close()
    assert (queue.pending(), len(queue.refused())) == (0, 1)


def test_a_conflict_ends_the_stream_since_someone_else_counts_in_it(
    server: AgentServer, queue: Queue, courier: Courier
) -> None:
    name = fill(queue, 1)
    server.events["application", name, 1] = {"other": "content"}
    drain(courier)
    assert queue.refused()[0]["code"] == "conflict"
    other = fill(queue, 1)
    assert other != name
    drain(courier)
    assert server.numbers(other) == [1]


def test_a_batch_that_is_too_large_is_halved_until_it_is_taken(
    queue: Queue, server: AgentServer, courier: Courier
) -> None:
    server.events_max = 7
    name = fill(queue, 100)
    drain(courier)
    assert server.numbers(name) == list(range(1, 101))
    assert max(server.batches) <= 7
    assert max(server.batches) > 1


def test_one_event_too_large_is_set_aside(queue: Queue, server: AgentServer, courier: Courier) -> None:
    server.events_max = 0
    fill(queue, 2)
    drain(courier)
    assert [entry["code"] for entry in queue.refused()] == ["too_large", "too_large"]
    assert queue.pending() == 0


def test_without_the_right_token_everything_is_kept_and_the_problem_is_told(
    queue: Queue, server: AgentServer, courier: Courier
) -> None:
    server.token = "s3cret"
    fill(queue, 5)
    assert courier.drain_once().problem == "HTTP 401: unauthorized: no such token"
    assert (queue.pending(), queue.refused()) == (5, [])
    allowed = Courier(queue, token=lambda: "s3cret")
    drain(allowed)
    allowed.close()
    assert len(server.events) == 5


def test_a_damaged_line_is_set_aside_and_the_rest_arrives(queue: Queue, server: AgentServer, courier: Courier) -> None:
    name = fill(queue, 5)
    (folder,) = queue.streams()
    content = segment_file(folder, 1).read_bytes()
    place = content.index(b'"text":"2"')
    with segment_file(folder, 1).open("rb+") as file:
        file.seek(place)
        file.write(b'"text":"7"')
    drain(courier)
    assert server.numbers(name) == [1, 2, 4, 5]
    (entry,) = queue.refused()
    assert entry["code"] == "damaged"
    assert '"text":"7"' in entry["text"]


def test_streams_of_all_sources_are_delivered_and_one_that_cannot_be_read_stops_no_other(
    queue: Queue, server: AgentServer, courier: Courier
) -> None:
    fill(queue, 3, source="agent")
    name = fill(queue, 3)
    agent = next(folder for folder in queue.streams() if folder.name.startswith("agent."))
    header, _, rest = segment_file(agent, 1).read_bytes().partition(b"\n")
    segment_file(agent, 1).write_bytes(line_of(header[9:].replace(b'"version":1', b'"version":2')) + rest)
    drained = courier.drain_once()
    assert "another version" in drained.problem
    assert server.numbers(name) == [1, 2, 3]
    assert (drained.delivered, queue.pending()) == (3, 3)


def test_one_courier_is_at_work_at_a_time(queue: Queue, server: AgentServer, courier: Courier) -> None:
    fill(queue, 3)
    with locked(queue.folder / "courier.lock"):
        assert courier.drain_once().busy
    assert server.events == {}
    assert not courier.drain_once().busy
    assert len(server.events) == 3


def test_a_disk_that_fails_under_the_courier_sends_nothing_before_the_stream_is_retired(
    queue: Queue, server: AgentServer, courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fill(queue, 3)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        assert "Input/output error" in courier.drain_once().problem
        assert "Input/output error" in courier.drain_once().problem
    assert server.events == {}
    drain(courier)
    assert server.numbers(name) == [1, 2, 3]
    assert fill(queue, 1) != name


def test_run_delivers_what_comes_and_ends_when_told(queue: Queue, server: AgentServer) -> None:
    courier = Courier(queue)
    thread = threading.Thread(target=courier.run)
    thread.start()
    fill(queue, 10)
    courier.wake()
    server.wait_for(10)
    fill(queue, 10)
    courier.wake()
    server.wait_for(20)
    courier.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_run_ends_by_an_event(queue: Queue, server: AgentServer) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=Courier(queue).run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_run_ends_at_once_while_it_waits_for_an_answer(queue: Queue, server: AgentServer) -> None:
    server.script = ["hang"]
    fill(queue, 1)
    courier = Courier(queue)
    thread = threading.Thread(target=courier.run)
    thread.start()
    server.wait_for_requests(1)
    courier.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert queue.pending() == 1


def test_run_pauses_after_a_failure_though_events_come(queue: Queue, server: AgentServer) -> None:
    server.script = ["busy3600"]
    fill(queue, 1)
    courier = Courier(queue)
    thread = threading.Thread(target=courier.run)
    thread.start()
    server.wait_for_requests(1)
    courier.wake()
    courier.wait_for_news(0.2)
    assert len(server.tokens) == 1
    courier.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert queue.pending() == 1


def test_an_answer_that_does_not_come_is_waited_for_as_long_as_told(queue: Queue, server: AgentServer) -> None:
    server.script = ["hang"]
    fill(queue, 1)
    impatient = Courier(queue, connection=Connection(queue.server, answer_seconds=0.1))
    assert "timed out" in impatient.drain_once().problem
    drain(impatient)
    impatient.close()
    assert len(server.events) == 1


COURIER = """
import sys
from pathlib import Path
from pilotage.agent import Backoff, Courier, Spool
courier = Courier(Spool(Path(sys.argv[1])).queue(sys.argv[2]), batch_events=20, backoff=Backoff(longest_seconds=0.01))
courier.run()
"""


def test_couriers_cancelled_at_any_moment_and_a_server_that_comes_and_goes_lose_nothing(
    queue: Queue, server: AgentServer
) -> None:
    chance = random.Random(3)
    server.refuse = lambda event: ("malformed", "unlucky") if event["n"] % 97 == 0 else None
    name = fill(queue, 3000, segment_bytes=20_000)
    for _ in range(8):
        server.script = [chance.choice(["", "", "500", "lose-answer", "drop", "half"]) for _ in range(6)]
        before = len(server.tokens)
        process = subprocess.Popen([sys.executable, "-c", COURIER, str(queue.folder.parent), server.url])
        server.wait_for_requests(before + chance.randrange(1, 8))
        if chance.random() < 0.3:
            server.stop()
            server.start()
        process.send_signal(signal.SIGKILL)
        process.wait(100)
    server.script = []
    last = Courier(queue)
    drain(last)
    last.close()
    assert server.numbers(name) == [n for n in range(1, 3001) if n % 97]
    assert [entry["event"]["n"] for entry in queue.refused()] == list(range(97, 3001, 97))


def test_pauses_grow_to_a_limit_are_spread_and_obey_the_server() -> None:
    backoff = Backoff(first_seconds=1, longest_seconds=10, chance=lambda: 1.0)
    assert [backoff.failed() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.succeeded()
    assert backoff.failed() == 1
    assert Backoff(first_seconds=1, chance=lambda: 0.0).failed() == 0.5
    assert Backoff(first_seconds=1, chance=lambda: 0.0).failed(retry_after_seconds=30) == 30
    assert Backoff(first_seconds=1, chance=lambda: 0.5).failed(retry_after_seconds=100) == 105
    assert Backoff(first_seconds=8, chance=lambda: 0.5).failed() == 6
    assert all(0.25 <= Backoff().failed() <= 0.5 for _ in range(100))


def answer(status: int, body: bytes = b"", *, retry_after: str = "") -> Answer:
    return Answer(status, body, retry_after, "")


TAKEN = b'{"position":5,"kept":2,"repeated":0,"parked":0,"refused":[]}'


@pytest.mark.parametrize(
    "given",
    [
        answer(200),
        answer(200, b"[]"),
        answer(200, b'{"position":5}'),
        answer(200, b'{"position":true,"refused":[]}'),
        answer(200, b'{"position":5,"refused":[{"index":2}]}'),
        answer(200, b'{"position":5,"refused":[{"index":-1}]}'),
        answer(200, b'{"position":5,"refused":[{"index":0},{"index":0}]}'),
        answer(200, b'{"position":5,"refused":[0]}'),
        answer(200, TAKEN[:-1]),
        answer(201, TAKEN),
        answer(422, TAKEN),
        answer(400, b"<html>bad request</html>"),
        answer(401, TAKEN),
        answer(403),
        answer(404, b'{"error":{"code":"not_found","message":"?"}}'),
        answer(500, TAKEN),
        answer(204),
    ],
)
def test_an_answer_that_does_not_say_it_plainly_is_not_believed(given: Answer) -> None:
    assert isinstance(judge(given, count=2), RetryLater)


def test_answers_that_say_it_plainly() -> None:
    assert judge(answer(200, TAKEN), count=2) == BatchAccepted(5, [])
    refused = b'{"position":5,"refused":[{"index":1,"code":"purged","message":"gone"}]}'
    assert judge(answer(422, refused), count=2) == BatchAccepted(5, [Refusal(1, "purged", "gone")])
    assert judge(answer(413, b"<html>"), count=2) == BatchTooLarge(
        "too_large", "the server rejects this batch as too large"
    )
    assert judge(answer(400, b'{"error":{"code":"malformed","message":"no"}}'), count=2) == BatchTooLarge(
        "malformed", "no"
    )


@pytest.mark.parametrize(
    "text, seconds",
    [("", 0), ("7", 7), ("soon", 0), ("999999", 3600), ("Thu, 01 Jan 1970 00:01:00 GMT", 50), ("-3", 0)],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(text: str, seconds: float) -> None:
    verdict = judge(answer(503, retry_after=text), count=1, now_seconds=10.0)
    assert isinstance(verdict, RetryLater)
    assert verdict.retry_after_seconds == seconds


def test_the_courier_knows_how_far_a_stream_is_on_disk(queue: Queue, courier: Courier, server: AgentServer) -> None:
    fill(queue, 3)
    (folder,) = queue.streams()
    drain(courier)
    assert courier.synced(folder.name) == (1, segment_file(folder, 1).stat().st_size)
    assert courier.synced("other") == (0, 0)
    assert courier_module.EVENTS_PATH == "/v1/events"
