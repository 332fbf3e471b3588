"""What an application shows when it speaks of itself, and what becomes of what it could not deliver."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.agent.attempt.attempt import Outcome
from pilotage.agent.attempt.environment import SlotToken
from tests.kit.agent_runs import DEADLINE_SECONDS, Place, log_of, place_in
from tests.kit.agent_server import AgentServer
from tests.kit.agent_service import AgentService, agent_service
from tests.kit.pilots import flying
from tests.kit.real_runs import wait_until

TAG = """
import sys
from pilotage.agent.delivery.producer import Producer
producer = Producer(deliver=False)
producer.tag(sys.argv[1], "x")
producer.close()
"""


@pytest.fixture
def server() -> Iterator[AgentServer]:
    server = AgentServer()
    server.start()
    yield server
    server.stop()


def run(place: Place, script: str, *, token: str, seen: int = 0) -> Outcome:
    """Run a script of a shell with a token."""
    place.attempt += 1
    assignment = {"ref": {"job": "j1", "package": "1.1.1", "attempt": place.attempt}, "seen": seen}
    work = {"path": "r/001/001/001", "name": "r", "index": 0, "folder": str(place.folder), "staged": str(place.staged)}
    argv = ["/bin/sh", "-c", script, "sh", sys.executable, TAG]
    return place.runner.run(
        assignment, {**work, "binaries": [{"argv": argv}]}, on_phase=lambda *_: None, fetch=place.fetch, token=token
    )


@pytest.fixture(params=["memory", "a plain file"])
def slot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of files that a slot may have."""
    if request.param != "memory":

        def refuse(*_: object) -> int:
            raise OSError("no such memory here")

        monkeypatch.setattr(os, "memfd_create", refuse)
    return str(request.param)


def test_each_attempt_of_a_slot_finds_its_own_token_in_a_file_that_nobody_else_reads(tmp_path: Path, slot: str) -> None:
    with place_in(tmp_path) as place:
        show = 'echo "$(cat $PILOTAGE_TOKEN_FILE)"; stat -Lc %a "$PILOTAGE_TOKEN_FILE"; ls -A; env | grep -c token-'
        first = log_of(run(place, show, token="a-rather-long-token-x"))
        second = log_of(run(place, show, token="short-token-x"))
        third = log_of(run(place, "cat $PILOTAGE_TOKEN_FILE | tr -d '\\n'; echo nothing", token=""))
        where = log_of(run(place, "echo $PILOTAGE_TOKEN_FILE", token="x")).strip()
    assert first.splitlines() == ["a-rather-long-token-x", "600", "0"]
    assert second.splitlines() == ["short-token-x", "600", "0"]
    assert third.splitlines() == ["nothing"]
    assert where.startswith("/proc/") == (slot == "memory")
    assert not Path(where).exists()


def test_no_application_takes_the_file_away_under_its_pilot(tmp_path: Path, slot: str) -> None:
    with place_in(tmp_path) as place:
        run(place, ": > $PILOTAGE_TOKEN_FILE; truncate -s 0 $PILOTAGE_TOKEN_FILE", token="first")
        assert log_of(run(place, 'echo "$(cat $PILOTAGE_TOKEN_FILE)"', token="second")).strip() == "second"


def test_a_token_file_is_no_link_that_somebody_laid_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    (tmp_path / "slot.token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="slot"):
        SlotToken(str(tmp_path / "slot.token")).show("secret")
    assert not (tmp_path / "elsewhere").exists()


def test_what_an_application_left_is_delivered_with_the_token_of_its_own_attempt(
    tmp_path: Path, server: AgentServer
) -> None:
    spool = tmp_path / "spools"
    server.stop()
    with place_in(tmp_path, server=server.url, spool=str(spool)) as place:
        for name in ("one", "two"):
            ended = run(place, f'"$1" -c "$2" {name}', token=f"token-of-{name}", seen=7)
            assert ended.payload["exit_code"] == "SUCCESS"
        run(place, "true", token="of-one-that-logs-nothing")
        assert {folder.name for folder in spool.iterdir()} == {"j1-1.1.1-1", "j1-1.1.1-2"}
        place.workplace.left_events.look()
        server.start()
        server.wait_for(2)
        wait_until(lambda: not list(spool.iterdir()), "nothing is left", seconds=DEADLINE_SECONDS)
    assert {event["data"]["name"]: event["seen"] for event in server.events.values()} == {"one": 7, "two": 7}
    assert set(server.tokens) == {"Bearer token-of-one", "Bearer token-of-two"}


def test_what_runs_still_delivers_for_itself(tmp_path: Path, server: AgentServer) -> None:
    spool = tmp_path / "spools"
    with place_in(tmp_path, server=server.url, spool=str(spool)) as place:
        run(place, "true", token="t")
        (spool / "j1-1.1.1-9").mkdir(parents=True)  # of an attempt that is not over
        place.workplace.left_events.look()
        assert place.workplace.left_events._thread is None
    assert (spool / "j1-1.1.1-9").exists()


# --- the pilot's own ---


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AgentService]:
    with agent_service(tmp_path / "agent.sock", interval_seconds=0.1) as running:
        yield running


def test_a_renewed_token_is_shown_from_then_on_on_every_connection(service: AgentService, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(_token(1))
    service.renewal = _token(2)
    with flying(service, tmp_path, token_file=str(token_file)) as flight:
        service.wait_for(lambda: service.tokens.count(_token(2)) >= 2)
        service.send_away("enough")
        flight.land()
    assert service.tokens[0] == _token(1)
    assert service.connections == 1  # nobody had to hang up for it
    assert token_file.read_text() == _token(1)


def _token(ends_at: int) -> str:
    part = base64.urlsafe_b64encode(json.dumps({"exp": ends_at}).encode()).decode().rstrip("=")
    return f"head.{part}.signature"
