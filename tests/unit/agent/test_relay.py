"""The relay for pilots without a way out: what goes through, how much at once, and what a service that is gone looks like."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.settings.tls import make_certificates
from pilotage.agent.link.connect import connect
from pilotage.agent.link.link import Link
from pilotage.agent.pilot.fetch import ServerFetch
from pilotage.agent.site.relay import Relays, bound, may_pass
from pilotage.model.exchange.exchange import AgentMessage, Exchange
from tests.kit.agent_runs import open_descriptors
from tests.kit.agent_service import AgentService
from tests.kit.pilots import flying

SECONDS = 20.0


class Relayed:
    """A service, and a relay to it."""

    def __init__(self, service: AgentService, relaying: Relays, port: int, said: list[str]) -> None:
        self.service, self.relaying, self.port, self.said = service, relaying, port, said
        self.address = f"http://127.0.0.1:{port}"

    def link(self) -> Link:
        return connect(self.address, token=lambda: "secret")


@contextmanager
def relayed(folder: Path | None = None) -> Iterator[Relayed]:
    """A relay by network, and through a folder where one is named."""
    service = AgentService(interval_seconds=0.5)
    service.listen()
    listener = bound("127.0.0.1", 0)
    said: list[str] = []
    relaying = Relays(service.address, say=said.append)
    relaying.start(listener=listener, folder=folder)
    try:
        yield Relayed(service, relaying, listener.getsockname()[1], said)
    finally:
        relaying.stop()
        service.stop()


@pytest.fixture
def relay() -> Iterator[Relayed]:
    with relayed() as made:
        yield made


def raw(port: int, text: bytes) -> bytes:
    """What is answered to bytes as they are, until the relay hangs up."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        connection.sendall(text)
        answer = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                answer += piece
        return answer


def test_a_port_that_was_just_given_up_is_taken_again_and_one_that_is_held_is_not() -> None:
    with bound("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), SECONDS) as caller:
            accepted, _ = listener.accept()
            accepted.close()  # first: the system keeps the port for what may still come from the other side
            assert caller.recv(1) == b""
        before = open_descriptors()
        with pytest.raises(OSError, match="in use"):
            bound("127.0.0.1", port)
        assert open_descriptors() == before
    with bound("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize(
    "target",
    [
        "/", "/v1/jobs", "/agent", "/agentx", "/agent/../v1/jobs", "/agent/%2e%2e/v1/jobs", "/agent/x/..", "/agent//v1",
        "/agent/.%2E/v1", "http://elsewhere/agent/x", "/agent/a\\..\\b", "/agent/site", "/agent/site?x", "/agent/a b",
    ],
)  # fmt: skip
def test_only_what_is_for_pilots_may_pass(target: str) -> None:
    assert not may_pass(target)


@pytest.mark.parametrize(
    "target",
    [
        "/agent/exchange",
        "/agent/cached/ab/abc",
        "/agent/files/j-1?name=a/../b",
        "/agent/staged/j/1.1.1/1/0?offset=4",
        "/agent/events",
    ],
)
def test_what_pilots_ask_passes(target: str) -> None:
    assert may_pass(target)


def test_the_token_and_large_bodies_go_through_both_ways(relay: Relayed) -> None:
    content = os.urandom(9_000_001)
    relay.service.contents["content/big"] = content
    link = relay.link()
    link.send("GET", "/agent/content/big")
    answer = link.wait(SECONDS)
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(content).digest()
    link.send("PUT", "/agent/staged/j/1.1.1/1/0?offset=0", content)
    assert link.wait(SECONDS).status == 204
    link.close()
    assert bytes(relay.service.staged["j/1.1.1/1/0"]) == content
    assert {*relay.service.tokens} == {"secret"}


def test_a_file_of_the_sites_cache_comes_in_pieces_through_the_relay(relay: Relayed, tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    sha256 = hashlib.sha256(content).hexdigest()
    relay.service.contents["cached/ab/abc"] = content
    fetch = ServerFetch(tmp_path / "fetched", relay.link)
    path = fetch.cached("ab/abc", sha256)
    fetch.close()
    assert path is not None
    assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == sha256


def test_a_body_of_any_size_takes_no_memory(relay: Relayed) -> None:
    relay.service.contents["content/big"] = bytes(64 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with socket.create_connection(("127.0.0.1", relay.port), SECONDS) as connection:
        connection.sendall(b"GET /agent/content/big HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n")
        received = 0
        while received < 64 << 20:
            received += len(connection.recv(1 << 16))
    # The service of the test copies it once.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000


@pytest.mark.parametrize(
    "request_text, status",
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n", b"404"),
        (b"DELETE /agent/content/x HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n", b"404"),
        (b"GET /agent/content/x HTTP/1.1\r\n\r\n", b"401"),
        (b"POST /agent/exchange HTTP/1.1\r\nAuthorization: Bearer x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"POST /agent/exchange HTTP/1.1\r\nAuthorization: Bearer x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST /agent/exchange HTTP/1.1\r\nAuthorization: Bearer x\r\nContent-Length : 1\r\n\r\n", b"400"),
        (b"POST /agent/exchange HTTP/1.1\r\nAuthorization: Bearer x\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"GET /agent/content/x HTTP/1.1\r\n" + b"a: " + b"b" * 200_000 + b"\r\n\r\n", b"400"),
    ],
)  # fmt: skip
def test_what_is_malformed_or_for_others_is_refused_and_never_reaches_the_service(
    relay: Relayed, request_text: bytes, status: bytes
) -> None:
    assert raw(relay.port, request_text).split(b" ")[1] == status
    assert relay.service.connections == 0


def test_what_packages_say_of_themselves_goes_in_by_the_door_for_agents(relay: Relayed) -> None:
    asked = b"POST /v1/events HTTP/1.1\r\nAuthorization: Bearer x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_connection(("127.0.0.1", relay.port), SECONDS) as connection:
        connection.sendall(asked)
        assert connection.recv(65536).split(b" ")[1] == b"404"  # this service has no such door, and was asked
    assert relay.service.connections == 1


def test_a_service_that_is_gone_is_told_as_such_and_asked_anew_when_it_is_back(relay: Relayed) -> None:
    link = relay.link()
    relay.service.contents["content/x"] = b"here"
    port = int(relay.service.address.rpartition(":")[2])
    relay.service.stop()
    for _ in range(2):
        link.send("GET", "/agent/content/x")
        answer = link.wait(SECONDS)
        assert answer.status == 503
        assert b"cannot reach the service" in answer.body
    relay.service.listen(port=port)
    link.send("GET", "/agent/content/x")
    assert link.wait(SECONDS).body == b"here"
    link.close()


def test_a_connection_that_the_service_closed_while_it_rested_is_no_fault(relay: Relayed) -> None:
    relay.service.contents["content/x"] = b"here"
    link = relay.link()
    port = int(relay.service.address.rpartition(":")[2])
    for _ in range(3):
        link.send("GET", "/agent/content/x")
        assert link.wait(SECONDS).status == 206
        relay.service.stop()
        relay.service.listen(port=port)
    link.close()


def test_when_a_pilot_hangs_up_the_service_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(SECONDS)
        listener = bound("127.0.0.1", 0)
        relaying = Relays(f"http://127.0.0.1:{service.getsockname()[1]}")
        relaying.start(listener=listener)
        try:
            link = connect(f"http://127.0.0.1:{listener.getsockname()[1]}", token=lambda: "x")
            link.send("POST", "/agent/exchange", b"{}")
            asked, _ = service.accept()
            with asked:
                asked.settimeout(SECONDS)
                heard = b""
                while not heard.endswith(b"{}"):
                    heard += asked.recv(65536)
                link.close()
                assert asked.recv(65536) == b""
        finally:
            relaying.stop()


def test_pilots_work_through_the_relay_while_many_others_wait(relay: Relayed, tmp_path: Path) -> None:
    waiting = []
    try:
        for number in range(100):
            link = relay.link()
            waiting.append(link)
            says = AgentMessage(exchange=Exchange(pilot=f"w-{number}.1", site="here", sequence=1, leaving="full"))
            link.send("POST", "/agent/exchange", msgspec.json.encode(says))
        token = tmp_path / "token"
        token.write_text("secret")
        with flying(relay.service, tmp_path, server=relay.address, token_file=str(token)):
            ref = relay.service.give(1, ("true",), folder=tmp_path)
            relay.service.wait_for(lambda: ref in relay.service.finished)
        for link in waiting:
            assert link.wait(SECONDS).status == 200
    finally:
        for link in waiting:
            link.close()


def test_the_relay_believes_one_authority_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for each in ("a", "b"):
        make_certificates(tmp_path / each, ["localhost"], now=time.time)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "a" / "server.pem", tmp_path / "a" / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), context.wrap_socket(plain, server_side=True) as secure:
                secure.recv(65536)
                secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        for folder, status in (("a", 200), ("b", 503)):
            inside = bound("127.0.0.1", 0)
            relaying = Relays(f"https://localhost:{port}", ca_file=str(tmp_path / folder / "ca.pem"))
            relaying.start(listener=inside)
            link = connect(f"http://127.0.0.1:{inside.getsockname()[1]}", token=lambda: "x")
            link.send("GET", "/agent/content/x")
            answer = link.wait(SECONDS)
            link.close()
            relaying.stop()
            assert answer.status == status, answer
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(SECONDS)
