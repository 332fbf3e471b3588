"""What packages log of themselves goes by the way that their pilot came, and by their pilot where nobody else may go it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.undelivered_events import LOOK_SECONDS, UndeliveredEvents
from pilotage.agent.delivery.producer import Producer, Subject
from pilotage.agent.delivery.spool import Spool, is_pilots_own, normal_server, queue_name
from pilotage.agent.errors import BadSetting, NotDelivered
from pilotage.agent.link.connect import connect
from pilotage.agent.link.http import LinkConnection, Unreachable
from pilotage.agent.site.relay import Relays
from pilotage.client.deliver import deliver_once
from pilotage.client.errors import ServerUnreachable
from pilotage.client.finding import find_addresses
from pilotage.client.send import ComposedEvent, log_events
from tests.kit.agent_server import AgentServer, agent_server
from tests.kit.real_runs import wait_until

REF = {"job": "j1", "package": "1.1.1", "attempt": 1}
INSIDE = {"PILOTAGE_JOB": "j1", "PILOTAGE_PACKAGE": "1.1.1", "PILOTAGE_ATTEMPT": "1"}


@pytest.fixture
def server() -> Iterator[AgentServer]:
    with agent_server() as running:
        yield running


@pytest.mark.parametrize(
    "environment, path",
    [
        ({"PILOTAGE_MARK": "p", "PILOTAGE_SERVER": "{url}/"}, "/agent/events"),
        ({"PILOTAGE_SERVER": "{url}"}, "/v1/events"),  # nobody's pilot: somebody tells a book of what runs elsewhere
        ({"PILOTAGE_MARK": "p", "PILOTAGE_SERVER": "http://127.0.0.1:9"}, "/v1/events"),  # another server than its own
        ({"PILOTAGE_MARK": "p", "PILOTAGE_SERVER": "nonsense"}, "/v1/events"),
        ({"PILOTAGE_MARK": "p"}, "/v1/events"),
    ],
)
def test_what_a_pilot_runs_speaks_by_the_door_of_agents(
    server: AgentServer, tmp_path: Path, environment: dict[str, str], path: str
) -> None:
    said = {name: value.format(url=server.url) for name, value in environment.items()}
    with Producer(server.url, spool=tmp_path, environment={**INSIDE, **said}) as producer:
        producer.log_now("Noted", {"text": "x"})
    assert set(server.paths) == {path}


# --- where only the pilot reaches the service ---


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(server: AgentServer, tmp_path: Path) -> Iterator[Path]:
    """A folder with a relay to the server behind it."""
    relaying = Relays(server.url)
    relaying.start(folder=tmp_path / "relay")
    yield tmp_path / "relay"
    relaying.stop()


def log(spools: Path, address: str, text: str) -> None:
    """Log an event as a package does."""
    environment = {**INSIDE, "PILOTAGE_MARK": "p", "PILOTAGE_SERVER": address}
    with Producer(spool=spools / "j1-1.1.1-1", environment=environment) as producer:
        producer.log("Noted", {"text": text})


def left_events(tmp_path: Path, address: str, clock: Clock) -> UndeliveredEvents:
    """What a pilot has that reaches its service by an address."""
    return UndeliveredEvents(
        str(tmp_path / "spools"), server=address, connect=lambda token: connect(address, token=token), clock=clock
    )


def test_a_package_that_cannot_reach_the_server_keeps_its_events_and_says_so(tmp_path: Path) -> None:
    address = f"spool:{tmp_path / 'relay'}"
    environment = {**INSIDE, "PILOTAGE_MARK": "p", "PILOTAGE_SERVER": address}
    with Producer(spool=tmp_path / "spool", environment=environment) as producer:
        producer.flush()  # nothing was logged
        with pytest.raises(NotDelivered, match="only the pilot of this package can reach the server"):
            producer.log_now("Noted", {"text": "x"})
    (queue,) = Spool(tmp_path / "spool").queues()
    assert (queue.server, queue.pending()) == (address, 1)


def test_addresses_that_only_a_pilot_reaches_are_known_by_how_they_begin() -> None:
    assert [is_pilots_own(each) for each in ("spool:/a", "unix:/a", "http://h", "spool:", "/spool:")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert normal_server("spool:/a/b/") == "spool:/a/b/"
    assert queue_name("spool:/a/b") != queue_name("spool:/a-b")
    with pytest.raises(BadSetting):
        normal_server("spool:")


def test_the_pilot_delivers_through_the_folder_of_a_relay_while_packages_run_and_afterwards(
    server: AgentServer, folder: Path, tmp_path: Path
) -> None:
    clock = Clock()
    address = f"spool:{folder}"
    left = left_events(tmp_path, address, clock)
    left.attempt_began(REF, "token-of-one")
    log(tmp_path / "spools", address, "while it runs")
    left.look()
    assert not server.events  # not so often
    clock.now += LOOK_SECONDS
    left.look()
    server.wait_for(1)
    assert (tmp_path / "spools" / "j1-1.1.1-1").is_dir()
    log(tmp_path / "spools", address, "at its end")
    left.attempt_ended(REF, "token-of-one")
    left.look()
    server.wait_for(2)
    wait_until(lambda: not list((tmp_path / "spools").iterdir()), "nothing is left", seconds=20)
    left.close()
    assert [event["data"]["text"] for event in server.events.values()] == ["while it runs", "at its end"]
    assert set(server.tokens) == {"Bearer token-of-one"}
    assert set(server.paths) == {"/agent/events"}


def test_the_pilot_goes_its_own_way_when_the_address_that_packages_were_told_is_gone(
    server: AgentServer, tmp_path: Path
) -> None:
    told = "http://127.0.0.1:9"
    left = UndeliveredEvents(
        str(tmp_path / "spools"), server=told, connect=lambda token: connect(server.url, token=token)
    )
    environment = {**INSIDE, "PILOTAGE_MARK": "p", "PILOTAGE_SERVER": told}
    with Producer(spool=tmp_path / "spools" / "j1-1.1.1-1", environment=environment, deliver=False) as producer:
        producer.log("Noted", {"text": "x"})
    left.attempt_ended(REF, "t")
    left.close()
    assert len(server.events) == 1
    assert not list((tmp_path / "spools").iterdir())


def test_a_token_is_not_shown_to_a_server_that_a_package_chose(server: AgentServer, tmp_path: Path) -> None:
    with Producer(server.url, spool=tmp_path / "spools" / "j1-1.1.1-1", environment=INSIDE, deliver=False) as producer:
        producer.log("Noted", {"text": "for somebody else"})
    left = UndeliveredEvents(str(tmp_path / "spools"), server="http://127.0.0.1:9")
    left.attempt_ended(REF, "secret")
    left.close()
    assert server.tokens == []
    assert (tmp_path / "spools" / "j1-1.1.1-1").is_dir()


def test_a_link_that_the_server_closed_is_made_again_once(server: AgentServer) -> None:
    connection = LinkConnection(server.url, lambda token: connect(server.url, token=token))
    body = b'{"events":[]}'
    assert connection.post("/agent/events", body, token="one").status == 200
    server.stop()
    with pytest.raises(Unreachable):
        connection.post("/agent/events", body, token="one")
    server.start()
    assert connection.post("/agent/events", body, token="two").status == 200
    server.script += ["drop"]
    assert connection.post("/agent/events", body, token="two").status == 200
    server.script += ["busy7"]
    assert connection.post("/agent/events", body, token="two").retry_after == "7"
    connection.close()
    assert set(server.tokens) == {"Bearer one", "Bearer two"}


def test_commands_in_such_a_package_say_who_delivers(tmp_path: Path) -> None:
    server = f"spool:{tmp_path / 'relay'}"
    (address,) = find_addresses([], environment={"PILOTAGE_SERVER": server, "PILOTAGE_TOKEN": "t"}, state_folders=[])
    assert (address.url, address.token) == (server, "t")
    with pytest.raises(ServerUnreachable, match="only the pilot of this package can reach the server"):
        address.server()
    event = ComposedEvent(type="Noted", version=1, subject=Subject("j1", "1.1.1", 1), epoch=1, data={"text": "x"})
    said: dict[str, Any] = {"source": "application", "spool": str(tmp_path / "spool"), "environment": INSIDE}
    sent = log_events([event], address=address, deliver_seconds=0.1, **said)
    assert ([each.delivered for each in sent.events], sent.denied) == ([False], False)
    assert "only the pilot" in sent.problem
    (told,) = deliver_once(Spool(tmp_path / "spool"), lambda: [address], timeout_seconds=0.1)
    assert (told.delivered, told.waiting) == (0, 1)
    assert "only the pilot" in told.problem
