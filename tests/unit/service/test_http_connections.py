"""Hostile connections on real sockets: idle, slow, endless and too many ones shut out nobody else."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.adapters.settings.tls import SERVER_KEY_FILE, make_certificates
from pilotage.adapters.settings.tokens import StoredKeys
from pilotage.reading.access import READ, Access, Principal, digest_of, local_principal
from pilotage.service.http.admission import ClientConnection, Kind, OpenConnections, TooManyConnections
from pilotage.service.http.connections import ConnectionLimits
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.listener import Certificate, Listener, TlsFiles, bind, bind_local
from pilotage.service.tokens import Tokens
from tests.kit.running_jobs import running_services
from tests.kit.served_book import TOKEN
from tests.kit.waiting import wait_until

WAIT_SECONDS = 60.0
PATIENT = ConnectionLimits()
QUICK = ConnectionLimits(
    head_seconds=0.2, body_seconds=0.2, discard_seconds=0.2, taking_seconds=0.5, body_bytes_per_second=10**9
)
SHOWN = f"Authorization: Bearer {TOKEN}\r\n"


class Serving:
    """A service in a thread of this process, at a port and at a socket of its folder."""

    def __init__(
        self, folder: Path, *, bounds: ConnectionLimits, connections_max: int, tls: TlsFiles | None = None
    ) -> None:
        self.folder = folder
        self._stack, self._clients = contextlib.ExitStack(), contextlib.ExitStack()
        services, self.jobs = self._stack.enter_context(running_services(folder))
        tokens = Tokens(StoredKeys(folder), user="ann", clock=services.clock.now)
        known = {
            digest_of(TOKEN): local_principal("ann"),
            digest_of("bobs"): Principal(user="bob", scopes=frozenset({READ})),
        }
        services.access = Access(known, tokens=tokens)
        self.pilot = tokens.pilot_token(tokens.principal(tokens.for_pilot("local")), "p.1")  # type: ignore[arg-type]
        self.bound = self._stack.enter_context(bind("127.0.0.1", 0))
        local = self._stack.enter_context(bind_local(folder / "agent.sock"))
        dispatcher = make_dispatcher(services)
        started = threading.Event()
        self.listener = Listener(
            dispatcher,
            bound=self.bound,
            beside=[local],
            started=started.set,
            stopping=dispatcher.stop,
            bounds=bounds,
            connections_max=connections_max,
            certificate=Certificate(tls) if tls is not None else None,
        )
        self._thread = threading.Thread(target=self.listener.listen)
        self._thread.start()
        assert started.wait(WAIT_SECONDS)

    def stop(self) -> None:
        self._clients.close()  # or it would wait for what they have begun to say
        self.listener.should_exit = True
        self._thread.join(WAIT_SECONDS)
        self._stack.close()

    def connect(self) -> socket.socket:
        made = socket.create_connection(self.bound.getsockname()[:2], timeout=WAIT_SECONDS)
        self._clients.callback(made.close)
        return made

    def connect_locally(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(WAIT_SECONDS)
        made.connect(str(self.folder / "agent.sock"))
        self._clients.callback(made.close)
        return made


@contextlib.contextmanager
def serving(
    folder: Path, *, bounds: ConnectionLimits = PATIENT, connections_max: int = 64, tls: TlsFiles | None = None
) -> Iterator[Serving]:
    made = Serving(folder, bounds=bounds, connections_max=connections_max, tls=tls)
    try:
        yield made
    finally:
        made.stop()


def answered(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of one answer; 0 where the other side has hung up."""
    content = b""
    try:
        while b"\r\n\r\n" not in content:
            piece = connection.recv(65536)
            if not piece:
                return 0, content
            content += piece
        head, _, body = content.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += connection.recv(65536)
        return int(head.split()[1]), body
    except ConnectionError:
        return 0, content


def get(connection: socket.socket, path: str = "/v1/position", shown: str = SHOWN) -> int:
    try:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{shown}\r\n".encode())
    except ConnectionError:
        return 0
    return answered(connection)[0]


def exchange(connection: socket.socket, token: str) -> None:
    """Ask for work, and do not wait for the answer."""
    body = json.dumps({"exchange": {"pilot": "p.1", "site": "local", "sequence": 1}}).encode()
    head = f"POST /agent/exchange HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + body)


def hangs_up(connection: socket.socket) -> bool:
    """Wait until the other side has hung up."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            continue
    return True


def test_whoever_only_connects_shuts_out_nobody(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.jobs.patient = True
        user, agent = service.connect(), service.connect()
        assert get(user) == 200
        exchange(agent, service.pilot)
        assert service.jobs.came.acquire(timeout=WAIT_SECONDS)
        for begun in (b"", b"GET /v1/pos", b"POST /v1/events HTTP/1.1\r\nContent-Length: 9\r\nX: "):
            for _ in range(135):
                service.connect().sendall(begun)
        assert get(service.connect_locally()) == 200
        assert get(service.connect()) == 200  # a newcomer takes the place of who says nothing
        assert get(user) == 200
        service.jobs.open[0].set_result(b"{}")
        assert answered(agent) == (200, b"{}")


def test_a_user_who_holds_all_he_can_leaves_room_for_agents_and_newcomers(tmp_path: Path) -> None:
    with serving(tmp_path, connections_max=64) as service:
        service.jobs.patient = True
        head = b"POST /v1/events HTTP/1.1\r\nHost: x\r\n" + SHOWN.encode() + b"Content-Length: 9\r\n\r\n{"
        held = [service.connect() for _ in range(5)]
        for each in held:
            each.sendall(head)
        for _ in range(100):
            with contextlib.suppress(ConnectionError):  # whoever has no place is told so, and sent away
                service.connect().sendall(head)
        agent = service.connect()
        exchange(agent, service.pilot)
        assert service.jobs.came.acquire(timeout=WAIT_SECONDS)
        assert get(service.connect_locally()) == 200
        assert get(service.connect(), "/healthz", "") == 200
        for each in held:  # which go on undisturbed
            each.sendall(b'"a": 1}.')
            assert answered(each)[0] == 400


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\n" + SHOWN.encode() + b"Content-Length: 100\r\n\r\n{",
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\n" + SHOWN.encode() + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["nothing", "head", "body", "chunks"],
)
def test_who_does_not_go_on_is_hung_up_on(tmp_path: Path, said: bytes) -> None:
    with serving(tmp_path, bounds=QUICK) as service:
        for connect in (service.connect, service.connect_locally):
            connection = connect()
            connection.sendall(said)
            assert hangs_up(connection)


def test_who_does_not_begin_to_speak_tls_is_hung_up_on(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "tls", ["localhost"], now=time.time)
    files = TlsFiles(
        certificate=made.certificate, key=str(tmp_path / "tls" / SERVER_KEY_FILE), expires_at=lambda: made.expires_at
    )
    with serving(tmp_path, bounds=QUICK, tls=files) as service:
        assert hangs_up(service.connect())
        assert get(service.connect_locally()) == 200


def test_a_slow_answer_and_a_body_that_comes_have_their_time(tmp_path: Path) -> None:
    bounds = ConnectionLimits(head_seconds=0.2, body_seconds=0.2, body_bytes_per_second=1)
    with serving(tmp_path, bounds=bounds) as service:
        service.jobs.patient = True
        agent, other = service.connect(), service.connect()
        exchange(agent, service.pilot)
        assert service.jobs.came.acquire(timeout=WAIT_SECONDS)
        assert hangs_up(other)  # so long it took, and longer than a head or a body may
        service.jobs.open[0].set_result(b"{}")
        assert answered(agent) == (200, b"{}")
        body = b'{"events": []' + b" " * 1000
        slow, other = service.connect(), service.connect()
        slow.sendall(
            b"POST /v1/events HTTP/1.1\r\nHost: x\r\n" + SHOWN.encode() + b"Content-Length: 1014\r\n\r\n" + body
        )
        assert hangs_up(other)
        slow.sendall(b"}")
        assert answered(slow)[0] == 200


def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        for line in (b"X-More: " + b"x" * 1000 + b"\r\n", b"x" * 4096):
            connection = service.connect()
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nY: ")
                for _ in range(1000):
                    connection.sendall(line)
            assert answered(connection)[0] in (0, 431)  # the answer may be lost where more is on its way
        whole = service.connect()
        whole.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")
        assert answered(whole)[0] in (0, 431)
        assert get(service.connect(), shown=SHOWN + f"X: {'x' * 30_000}\r\n") == 200


def test_a_token_is_looked_at_before_any_body_is_read(tmp_path: Path) -> None:
    posted = ("events", "jobs", "content", "plan", "clean", "jobs/j/purge")
    paths = [*(f"/v1/{each}" for each in posted), "/agent/exchange", "/agent/site"]
    with serving(tmp_path) as service:
        for shown, status in (
            ("", 401),
            ("Authorization: Bearer wrong\r\n", 401),
            ("Authorization: Bearer bobs\r\n", 403),
        ):
            for path in paths:
                connection = service.connect()
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{shown}Content-Length: 1000000\r\n\r\n"
                connection.sendall(head.encode())
                assert answered(connection)[0] == status, path


def test_what_follows_an_answer_is_not_read_for_ever(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=ConnectionLimits(discard_bytes_max=2**20)) as service:
        connection = service.connect()
        connection.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert answered(connection)[0] == 401
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(chunk)
        assert hangs_up(connection)
        # Where it ends in time, the connection is good for the next request.
        connection = service.connect()
        connection.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        assert answered(connection)[0] == 401
        connection.sendall(b"123")
        assert get(connection) == 200
    with serving(tmp_path / "quick", bounds=QUICK) as service:
        connection = service.connect()
        connection.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n1")
        assert answered(connection)[0] == 401
        assert hangs_up(connection)


def test_who_takes_no_answer_is_hung_up_on(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=QUICK) as service:
        connection = service.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        service.jobs.patient = True
        exchange(connection, service.pilot)
        assert service.jobs.came.acquire(timeout=WAIT_SECONDS)
        service.jobs.open[0].set_result(b"x" * 2**26)
        there = service.listener.server_state.connections
        wait_until(lambda: not there, lambda: "the connection is not ended", seconds=WAIT_SECONDS)


def test_one_connection_may_ask_thousands_of_times(tmp_path: Path) -> None:
    with serving(tmp_path, connections_max=8) as service:
        connection = service.connect()
        assert {get(connection, "/healthz", "") for _ in range(2000)} == {200}
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert answered(connection)[0] == 200


# --- who is counted as what ---


def client(clients: OpenConnections, kind: Kind = Kind.STRANGER, peer: str = "1.2.3.4") -> ClientConnection:
    made = ClientConnection(clients, kind=kind, peer=peer, now=0.0)
    made.close = lambda: ended.append(made)
    clients.add(made)
    return made


ended: list[ClientConnection] = []


@pytest.fixture(autouse=True)
def nobody_ended() -> None:
    ended.clear()


def test_of_one_address_the_one_that_rested_longest_goes_first() -> None:
    clients = OpenConnections(64)
    other = client(clients, peer="5.6.7.8")
    first = client(clients)
    while not ended:
        client(clients)
    assert ended == [first]
    assert other in clients.all
    clients.busy(other)
    for number in range(100):
        client(clients, peer=str(number))
    assert other not in ended
    assert len(clients.all) <= 64


def test_there_is_room_for_the_local_socket_and_for_agents_whatever_others_hold() -> None:
    clients = OpenConnections(64)
    for number in range(200):
        one = client(clients, peer=str(number))
        clients.busy(one)
        try:
            one.mark_authenticated(agent=False)
        except TooManyConnections:
            clients.idle(one)  # it is told so
    agents = 0
    with contextlib.suppress(TooManyConnections):
        while True:
            one = client(clients, peer="relay")
            clients.busy(one)
            one.mark_authenticated(agent=True)
            agents += 1
    assert agents >= 20
    for _ in range(8):
        clients.busy(client(clients, Kind.LOCAL, ""))
    assert len(clients.all) <= 64


def test_who_leaves_leaves_room() -> None:
    clients = OpenConnections(16)
    for _ in range(3):
        held = []
        with contextlib.suppress(TooManyConnections):
            while True:
                held.append(client(clients, Kind.LOCAL, ""))
                clients.busy(held[-1])
        assert len(held) == 16
        for each in held:
            clients.remove(each)
            clients.remove(each)
    assert not clients.all


@pytest.mark.parametrize(
    "kind, of_one_address, of_all",
    [(Kind.LOCAL, 64, 64), (Kind.STRANGER, 7, 14), (Kind.USER, 14, 28), (Kind.AGENT, 49, 49)],
)
def test_of_each_kind_so_many_may_speak_at_once(kind: Kind, of_one_address: int, of_all: int) -> None:
    for peers, most in ((1, of_one_address), (1000, of_all)):
        clients, held = OpenConnections(64), 0
        with contextlib.suppress(TooManyConnections):
            while True:
                clients.busy(client(clients, kind, str(held % peers)))
                held += 1
        assert held == most


@pytest.mark.parametrize("most, of_strangers, of_agents", [(8, 1, 5), (16, 3, 13), (100, 22, 77)])
def test_few_connections_leave_room_for_everybody(most: int, of_strangers: int, of_agents: int) -> None:
    for kind, expected in ((Kind.STRANGER, of_strangers), (Kind.AGENT, of_agents)):
        clients, held = OpenConnections(most), 0
        with contextlib.suppress(TooManyConnections):
            while True:
                clients.busy(client(clients, kind, str(held)))
                held += 1
        assert held == expected
