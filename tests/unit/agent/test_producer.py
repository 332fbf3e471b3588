from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent import BadEvent, BadSetting, EventRefused, NotDelivered, Producer, TokenRefused
from pilotage.agent.delivery.spool import EventId
from pilotage.agent.errors import AgentError, SpoolError
from tests.kit.agent_server import AgentServer, agent_server

INSIDE = {"PILOTAGE_JOB": "reco001", "PILOTAGE_PACKAGE": "1.2.1", "PILOTAGE_ATTEMPT": "2", "PILOTAGE_EPOCH": "3"}


@pytest.fixture
def server() -> Iterator[AgentServer]:
    with agent_server() as running:
        yield running


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Producer]:
    """A producer inside a running package whose events only wait."""
    with Producer("http://127.0.0.1:9", spool=tmp_path, environment=INSIDE, deliver=False) as producer:
        yield producer


def waiting(producer: Producer) -> list[dict[str, Any]]:
    found = []
    for folder in producer.queue.streams():
        for segment in sorted(folder.glob("*.segment")):
            lines = segment.read_text().splitlines()[1:]
            found += [event for line in lines if "source" in (event := json.loads(line[9:]))]
    return found


def helpers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pilotage-")]


def test_an_event_is_logged_and_delivered_in_the_background(server: AgentServer, tmp_path: Path) -> None:
    with Producer(server.url, spool=tmp_path, environment=INSIDE) as producer:
        event = producer.log("Noted", {"text": "Grüße"}, time=12.5)
        server.wait_for(1)
    assert list(server.events) == [event]
    assert server.events[event] == {
        "source": "application", "stream": event.stream, "n": 1, "seen": 0, "type": "Noted", "time": 12.5,
        "job": "reco001", "package": "1.2.1", "attempt": 2, "epoch": 3, "data": {"text": "Grüße"},
    }  # fmt: skip
    assert helpers() == []


def test_an_event_is_synced_to_disk_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    with Producer("http://127.0.0.1:9", spool=tmp_path, environment=INSIDE, deliver=False) as producer:
        monkeypatch.setattr(producer, "_sync", synced.set)
        for text in ("first", "second"):
            synced.clear()
            producer.log("Noted", {"text": text})
            assert synced.wait(60)


def test_nothing_is_made_and_no_thread_started_before_the_first_event(tmp_path: Path) -> None:
    with Producer("http://127.0.0.1:9", spool=tmp_path / "spool", environment={}):
        assert helpers() == []
    assert not (tmp_path / "spool").exists()


def test_the_environment_says_where_to_and_with_what(server: AgentServer, tmp_path: Path) -> None:
    server.token = "first"
    (tmp_path / "token").write_text("first\n")
    environment = {
        **INSIDE,
        "PILOTAGE_SERVER": server.url,
        "PILOTAGE_SPOOL": str(tmp_path / "spool"),
        "PILOTAGE_TOKEN_FILE": str(tmp_path / "token"),
    }
    with Producer(environment=environment) as producer:
        producer.log_now("Noted", {"text": "a"})
        server.token = "renewed"
        (tmp_path / "token").write_text("renewed\n")
        producer.log_now("Noted", {"text": "b"})
    assert set(server.tokens) == {"Bearer first", "Bearer renewed"}
    assert (tmp_path / "spool").is_dir()


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, {"job": "reco001", "package": "1.2.1", "attempt": 2, "epoch": 3}),
        ({"attempt": 1}, {"job": "reco001", "package": "1.2.1", "attempt": 1, "epoch": 3}),
        ({"package": "7.1.1"}, {"job": "reco001", "package": "7.1.1", "epoch": 3}),
        ({"job": "other"}, {"job": "other"}),
        ({"job": "other", "package": "1.1.1", "epoch": 9}, {"job": "other", "package": "1.1.1", "epoch": 9}),
        ({"pilot": "p1"}, {"pilot": "p1"}),
        ({"site": "lyon"}, {"site": "lyon"}),
        ({"epoch": 4}, {"job": "reco001", "package": "1.2.1", "attempt": 2, "epoch": 4}),
    ],
)
def test_what_an_event_is_about(away: Producer, given: dict[str, Any], expected: dict[str, Any]) -> None:
    away.log("Noted", **given)
    (event,) = waiting(away)
    names = ("job", "package", "attempt", "pilot", "site", "epoch")
    assert {name: event[name] for name in names if name in event} == expected


def test_a_tag_is_about_the_package_or_what_is_named(away: Producer) -> None:
    away.tag("study", "A12")
    away.tag("study", "B", job="other")
    away.tag("study", "C", package="3.1.1")
    told = [[event.get(name) for name in ("job", "package", "attempt", "epoch")] for event in waiting(away)]
    assert told == [["reco001", "1.2.1", None, 3], ["other", None, None, None], ["reco001", "3.1.1", None, 3]]
    assert waiting(away)[0]["type"] == "Tagged"
    assert waiting(away)[0]["data"] == {"name": "study", "value": "A12"}


def test_a_tag_outside_of_any_job_is_refused(tmp_path: Path) -> None:
    with (
        Producer("http://h", spool=tmp_path, environment={}, deliver=False) as outside,
        pytest.raises(BadEvent, match="PILOTAGE_JOB"),
    ):
        outside.tag("study", "A12")


@pytest.mark.parametrize(
    "event_type, details, words",
    [
        ("noted", {}, "event type"),
        ("", {}, "event type"),
        (None, {}, "event type"),
        ("Noted", {"data": ["a"]}, "object"),
        ("Noted", {"data": {"x": float("nan")}}, "JSON"),
        ("Noted", {"data": {"x": object()}}, "JSON"),
        ("Noted", {"data": {"x": "\ud800"}}, "Unicode"),
        ("Noted", {"data": {"x": "y" * (9 << 20)}}, "too large"),
        ("Noted", {"job": "../x"}, "job"),
        ("Noted", {"job": "x", "attempt": 1}, "fit together"),
        ("Noted", {"pilot": "p", "site": "s"}, "fit together"),
        ("Noted", {"package": "1.2"}, "package"),
        ("Noted", {"attempt": 0}, "attempt"),
        ("Noted", {"attempt": True}, "attempt"),
        ("Noted", {"epoch": 2**53}, "epoch"),
        ("Noted", {"version": 0}, "version"),
        ("Noted", {"time": float("inf")}, "not a time"),
        ("Noted", {"time": -1.0}, "not a time"),
        ("Noted", {"time": "now"}, "not a time"),
    ],
)
def test_what_no_server_would_take_is_refused_at_once(
    away: Producer, event_type: Any, details: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadEvent, match=words):
        away.log(event_type, **details)
    assert waiting(away) == []


@pytest.mark.parametrize("name, value", [("1st", "x"), ("", "x"), ("a b", "x"), ("fine", 3)])
def test_a_tag_has_a_name_and_text(away: Producer, name: str, value: Any) -> None:
    with pytest.raises(BadEvent):
        away.tag(name, value)


@pytest.mark.parametrize(
    "environment, words",
    [
        ({}, "PILOTAGE_SERVER"),
        ({"PILOTAGE_SERVER": "nowhere"}, "base URL"),
        ({"PILOTAGE_SERVER": "http://h", "PILOTAGE_ATTEMPT": "one"}, "PILOTAGE_ATTEMPT"),
        ({"PILOTAGE_SERVER": "http://h", "PILOTAGE_EPOCH": "0"}, "PILOTAGE_EPOCH"),
        ({"PILOTAGE_SERVER": "http://h", "PILOTAGE_PACKAGE": "1.1.1"}, "PILOTAGE_JOB"),
    ],
)
def test_settings_that_cannot_be_meant_are_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        Producer(environment=environment)
    with pytest.raises(BadSetting, match="unknown source"):
        Producer("http://h", source="nobody", environment={})


def test_log_now_returns_when_the_server_has_it(server: AgentServer, tmp_path: Path) -> None:
    with Producer(server.url, spool=tmp_path, environment=INSIDE, deliver=False) as producer:
        event = producer.log_now("Noted", {"text": "a"}, job="other")
        assert list(server.events) == [event]
        assert server.events[event]["job"] == "other"


def test_log_now_tells_the_servers_reason(server: AgentServer, tmp_path: Path) -> None:
    server.refuse = lambda event: ("unknown_type", "no such type") if event["type"] == "Strange" else None
    with Producer(server.url, spool=tmp_path, environment=INSIDE) as producer:
        with pytest.raises(EventRefused, match="no such type") as caught:
            producer.log_now("Strange")
        assert caught.value.code == "unknown_type"
        producer.log_now("Noted", {"text": "goes on"})


def test_log_now_gives_up_in_time_and_keeps_the_event(server: AgentServer, tmp_path: Path) -> None:
    server.script = ["500"] * 1000
    with Producer(server.url, spool=tmp_path, environment=INSIDE, deliver=False) as producer:
        with pytest.raises(NotDelivered, match="HTTP 500") as caught:
            producer.log_now("Noted", {"text": "a"}, timeout_seconds=0.3)
        assert caught.value.retryable
        server.script = []
        producer.flush()
        assert len(server.events) == 1


def test_a_token_that_is_refused_is_not_waited_with(tmp_path: Path) -> None:
    with (
        agent_server(token="right") as strict,
        Producer(strict.url, spool=tmp_path, environment=INSIDE, token="wrong", deliver=False) as producer,
    ):
        with pytest.raises(TokenRefused, match="HTTP 401: unauthorized: no such token"):
            producer.log_now("Noted", {"text": "x"}, timeout_seconds=600)
        assert (len(strict.tokens), producer.queue.pending(), producer.delivered) == (1, 1, 0)


def test_what_waits_at_the_server_for_its_job_is_counted(
    server: AgentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"position": 2, "kept": 2, "repeated": 0, "parked": 1, "refused": []}
    monkeypatch.setattr(server, "keep", lambda batch: (200, answer))
    with Producer(server.url, spool=tmp_path, environment=INSIDE, deliver=False) as producer:
        producer.tag("a", "1")
        producer.log_now("Noted", {"text": "x"})
        assert (producer.delivered, producer.parked) == (2, 1)


def test_a_flush_ends_in_time_though_the_server_hangs(server: AgentServer, tmp_path: Path) -> None:
    server.script = ["hang", "hang"]
    with Producer(server.url, spool=tmp_path, environment=INSIDE, deliver=False) as producer:
        producer.log("Noted", {"text": "a"})
        with pytest.raises(NotDelivered, match="timed out"):
            producer.flush(0.2)


def test_closing_while_the_server_hangs_leaves_no_thread_and_keeps_the_events(
    server: AgentServer, tmp_path: Path
) -> None:
    server.script = ["hang"]
    producer = Producer(server.url, spool=tmp_path, environment=INSIDE)
    producer.log("Noted", {"text": "a"})
    server.wait_for_requests(1)
    producer.close(flush_seconds=0.1)
    assert helpers() == []
    assert producer.queue.pending() == 1
    with pytest.raises(AgentError, match="closed"):
        producer.log("Noted", {"text": "b"})
    with Producer(server.url, spool=tmp_path, environment=INSIDE) as later:
        later.log("Noted", {"text": "c"})
    assert [event["data"]["text"] for event in server.events.values()] == ["a", "c"]


def test_threads_share_a_producer(server: AgentServer, tmp_path: Path) -> None:
    with Producer(server.url, spool=tmp_path, environment=INSIDE) as producer:

        def work() -> None:
            for number in range(200):
                producer.log("Noted", {"text": str(number)})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    assert [n for _, _, n in server.events] == list(range(1, 801))


FORK = """
import os, sys, threading
from pilotage.agent import Producer
with Producer(sys.argv[1], spool=sys.argv[2], environment={"PILOTAGE_JOB": "j"}) as producer:
    done = threading.Event()
    def work():
        while not done.wait(0.001):
            producer.log("Noted", {"text": "thread"})
    thread = threading.Thread(target=work)
    thread.start()
    for number in range(10):
        child = os.fork()
        if child == 0:
            for _ in range(20):
                producer.log("Noted", {"text": "child"})
            producer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()
"""


def test_forked_children_go_on_with_the_producer_they_inherited(server: AgentServer, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, server.url, str(tmp_path)], check=True, timeout=100)
    texts = [event["data"]["text"] for event in server.events.values()]
    assert texts.count("child") == 200
    assert [n for _, _, n in server.events] == list(range(1, len(texts) + 1))


FORGETFUL = """
import sys
from pilotage.agent import Producer
Producer(sys.argv[1], spool=sys.argv[2], environment={"PILOTAGE_JOB": "j"}).log("Noted", {"text": "bye"})
"""


def test_a_program_that_forgets_to_close_still_delivers(server: AgentServer, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", FORGETFUL, server.url, str(tmp_path)], check=True, timeout=100)
    assert len(server.events) == 1


def test_events_carry_the_last_position_that_was_acknowledged(server: AgentServer, tmp_path: Path) -> None:
    for _ in range(3):
        with Producer(server.url, spool=tmp_path, environment=INSIDE, deliver=False) as producer:
            producer.log_now("Noted", {"text": "a"})
    assert [event["seen"] for event in server.events.values()] == [0, 1, 2]


def test_sync_tells_when_the_disk_fails_and_logging_goes_on_in_another_stream(
    away: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = away.log("Noted", {"text": "a"})

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(SpoolError, match="Input/output"):
            away.sync()
    second = log_again(away)
    assert (second.n, second.stream != first.stream) == (1, True)


def log_again(producer: Producer) -> EventId:
    """Log once more; the thread that syncs may have met the same failure, which is told once."""
    try:
        return producer.log("Noted", {"text": "b"})
    except SpoolError:
        return producer.log("Noted", {"text": "b"})


def test_the_agent_is_quick_to_import_and_needs_nothing_else() -> None:
    code = (
        "import sys, pilotage.agent; "
        "print([name for name in ('http.client', 'ssl', 'msgspec', 'email', 'asyncio') if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed.strip() == "[]"
