"""The door for agents, over real sockets: exchanges, content, files and staged outputs."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.stores.folder_tree import FolderTree
from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.model.exchange.exchange import AgentMessage, AgentReply, AttemptRef, Exchange
from pilotage.reading.access import EXCHANGE, READ, Principal, local_principal
from pilotage.service.errors import Superseded
from pilotage.service.http import agent_exchange
from pilotage.service.http.dispatcher import make_dispatcher
from pilotage.service.http.errors import NotARange
from pilotage.service.http.listener import Listener, bind, bind_local
from pilotage.service.http.ranges import PIECE_BYTES, range_of
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from tests.kit.running_jobs import FakeJobs, origin_of, running_services
from tests.kit.served_book import TOKEN, event, registered

PRINCIPALS = {
    TOKEN: local_principal("ann"),
    "of-an-agent": Principal(user="agent", scopes=frozenset({EXCHANGE})),
    "reads-only": Principal(user="bob", scopes=frozenset({READ})),
}
WAIT_SECONDS = 60.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket file, reached through its folder however long its name is."""

    def __init__(self, file: Path) -> None:
        super().__init__("agent", timeout=WAIT_SECONDS)
        self._file = file

    def connect(self) -> None:
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(WAIT_SECONDS)
            self.sock.connect(f"/proc/self/fd/{folder}/{self._file.name}")
        finally:
            os.close(folder)


class Door:
    """The service, in a thread of this process, on a port and on a socket file."""

    def __init__(self, services: Services, jobs: FakeJobs, folder: Path) -> None:
        self.services, self.jobs, self.folder = services, jobs, folder
        self.socket = folder / "agent.sock"
        self.bound, self.local = bind("127.0.0.1", 0), bind_local(self.socket)
        dispatcher = make_dispatcher(services)
        started = threading.Event()
        self.listener = Listener(
            dispatcher, bound=self.bound, beside=[self.local], started=started.set, stopping=dispatcher.stop
        )
        self.thread = threading.Thread(target=self.listener.listen)
        self.thread.start()
        assert started.wait(WAIT_SECONDS)

    def stop(self) -> None:
        self.listener.should_exit = True
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()
        self.bound.close()
        self.local.close()

    def connect(self) -> http.client.HTTPConnection:
        host, port = self.bound.getsockname()[:2]
        return http.client.HTTPConnection(host, port, timeout=WAIT_SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None, *, token: str = TOKEN, **headers: str) -> Any:
        with_token = {"Authorization": f"Bearer {token}", **headers}
        connection = self.connect()
        try:
            connection.request(method, path, body, with_token)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


@contextmanager
def opened(folder: Path) -> Iterator[Door]:
    with running_services(folder, principals=PRINCIPALS) as (services, jobs):
        door = Door(services, jobs, folder)
        try:
            yield door
        finally:
            door.stop()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with opened(tmp_path) as door:
        yield door


@pytest.fixture
def job_folder(door: Door, tmp_path: Path) -> Path:
    """The folder of a job `j` that is run here."""
    folder = tmp_path / "results"
    folder.mkdir()
    job = registered(1, "j")
    job["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin_of(door.services.journal, folder)}}
    log(door, job, of_attempt(2, "AttemptCreated", site="local"))
    return folder


def of_attempt(n: int, kind: str, **data: Any) -> dict[str, Any]:
    """An event of attempt 3 of the package 1.2.1 of job `j`."""
    return event(n, kind, data, job="j", package="1.2.1", attempt=3)


def log(door: Door, *events: dict[str, Any]) -> None:
    checked, refused, _ = door.services.codec.read_batch(msgspec.json.encode({"events": events}))
    assert not refused
    door.services.writer.submit(Batch(checked)).result(WAIT_SECONDS)


def says(sequence: int = 1) -> bytes:
    return msgspec.json.encode(AgentMessage(exchange=Exchange(pilot="p.1", site="local", sequence=sequence)))


def error_of(answer: Any) -> tuple[int, str]:
    return answer[0], msgspec.json.decode(answer[2])["error"]["code"]


def test_an_exchange_is_answered_with_what_the_engine_says(door: Door) -> None:
    status, headers, body = door.ask("POST", "/agent/exchange", says(3), token="of-an-agent")
    assert (status, headers["content-type"]) == (200, "application/json")
    reply = msgspec.json.decode(body, type=AgentReply).reply
    assert (reply.pilot, reply.sequence, reply.acknowledged) == ("p.1", 3, 7)
    assert door.jobs.heard[0].exchange.site == "local"


def test_an_exchange_comes_in_by_the_socket_file_which_is_for_its_user_alone(door: Door) -> None:
    assert stat.S_IMODE(door.socket.stat().st_mode) == 0o600
    connection = UnixConnection(door.socket)
    connection.request("POST", "/agent/exchange", says(), {"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_socket_that_a_dead_service_left_is_replaced_however_long_its_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 20) / ("longer-" * 20)
    folder.mkdir(parents=True)
    bind_local(folder / "agent.sock").close()
    with opened(folder) as door:
        connection = UnixConnection(door.socket)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


def test_who_shows_no_token_or_one_for_something_else_is_sent_away(door: Door) -> None:
    assert error_of(door.ask("POST", "/agent/exchange", says(), token="wrong")) == (401, "unauthenticated")
    assert error_of(door.ask("POST", "/agent/exchange", says(), token="reads-only")) == (403, "forbidden")
    assert error_of(door.ask("GET", f"/agent/content/{'0' * 64}", token="reads-only")) == (403, "forbidden")
    assert door.jobs.heard == []


def test_what_is_no_exchange_is_refused_and_not_heard(door: Door) -> None:
    for body in (b"", b"{}", b'{"exchange":{"pilot":3}}', b"\xff", b"[" * 100_000):
        assert error_of(door.ask("POST", "/agent/exchange", body)) == (400, "malformed")
    assert door.jobs.heard == []


@pytest.mark.parametrize(
    "said",
    [
        {"logs": [{"ref": {"job": "j", "package": "1.1.1", "attempt": 2**63}, "stream": "stderr", "head": "x"}]},
        {
            "logs": [
                {
                    "ref": {"job": "j", "package": "1.1.1", "attempt": 1},
                    "stream": "stderr",
                    "head": "x",
                    "dropped_bytes": 2**70,
                }
            ]
        },
        {"exchange": {"backlog": 2**70}},
        {"exchange": {"backlog": -1}},
        {"exchange": {"sequence": 2**53}},
    ],
)
def test_numbers_that_no_book_can_keep_are_refused(door: Door, said: dict[str, Any]) -> None:
    body: dict[str, Any] = {"exchange": {"pilot": "p.1", "site": "local", "sequence": 1, **said.get("exchange", {})}}
    body["logs"] = said.get("logs", [])
    assert error_of(door.ask("POST", "/agent/exchange", msgspec.json.encode(body))) == (400, "malformed")
    assert door.jobs.heard == []


def test_a_service_whose_engine_has_ended_is_not_well(door: Door) -> None:
    assert door.ask("GET", "/healthz")[0] == 200
    door.jobs.alive = False
    assert door.ask("GET", "/healthz")[0] == 503


def test_an_exchange_that_a_later_one_overtook_is_told_so(door: Door) -> None:
    door.jobs.fault = Superseded("a later exchange of this agent has arrived")
    assert error_of(door.ask("POST", "/agent/exchange", says())) == (409, "superseded")


def test_agents_that_wait_for_work_are_let_go_when_the_service_stops(tmp_path: Path) -> None:
    with running_services(tmp_path, principals=PRINCIPALS) as (services, jobs):
        jobs.patient = True
        door = Door(services, jobs, tmp_path)
        connection = door.connect()
        connection.request("POST", "/agent/exchange", says(), {"Authorization": f"Bearer {TOKEN}"})
        assert jobs.came.acquire(timeout=WAIT_SECONDS)
        door.stop()
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("retry-after") is not None) == (503, True)
        assert jobs.open[0].cancelled()
        connection.close()


def test_agents_that_are_dismissed_are_told_to_leave_at_once_and_whenever_they_ask(door: Door) -> None:
    door.jobs.patient = True
    connection = door.connect()
    connection.request("POST", "/agent/exchange", says(4), {"Authorization": f"Bearer {TOKEN}"})
    assert door.jobs.came.acquire(timeout=WAIT_SECONDS)
    assert door.services.backend is not None
    door.services.backend.dismiss("no home")
    waited = msgspec.json.decode(connection.getresponse().read(), type=AgentReply).reply
    connection.close()
    later = msgspec.json.decode(door.ask("POST", "/agent/exchange", says(5))[2], type=AgentReply).reply
    assert [(each.pilot, each.sequence, each.leave) for each in (waited, later)] == [
        ("p.1", 4, "no home"),
        ("p.1", 5, "no home"),
    ]
    assert len(door.jobs.heard) == 1


def test_an_agent_that_hangs_up_does_no_harm(door: Door) -> None:
    door.jobs.patient = True
    connection = door.connect()
    connection.request("POST", "/agent/exchange", says(), {"Authorization": f"Bearer {TOKEN}"})
    assert door.jobs.came.acquire(timeout=WAIT_SECONDS)
    connection.close()
    door.jobs.open[0].set_result(b"{}")
    door.jobs.patient = False
    assert door.ask("POST", "/agent/exchange", says(2))[0] == 200


def test_content_is_brought_by_its_checksum(door: Door) -> None:
    sha256 = door.services.journal.put_content(b"#!/bin/sh\n")
    assert door.ask("GET", f"/agent/content/{sha256}", token="of-an-agent")[2] == b"#!/bin/sh\n"
    for unknown in ("0" * 64, "../token", "x"):
        assert error_of(door.ask("GET", f"/agent/content/{unknown}")) == (404, "unknown_content")


def test_many_contents_are_brought_with_one_request(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_exchange, "CONTENTS_BYTES_MAX", 25)
    first, empty, larger, last = map(door.services.journal.put_content, (b"a" * 15, b"", b"b" * 11, b"c" * 10))
    asked = [first, "0" * 64, empty, first, larger, last]
    status, headers, body = door.ask("POST", "/agent/contents", json.dumps({"sha256": asked}).encode())
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    frames = ((first, b"a" * 15), (empty, b""), (last, b"c" * 10))  # what is unknown or does not fit is left out
    assert body == b"".join(b"%b %d\n%b" % (sha256.encode(), len(data), data) for sha256, data in frames)
    for wrong in (["0" * 63], ["../token"], ["0" * 64 + "\n"], "0", ["0" * 64] * (agent_exchange.CONTENTS_MAX + 1)):
        told = json.dumps({"sha256": wrong}).encode()
        assert error_of(door.ask("POST", "/agent/contents", told)) == (400, "malformed")
    told = json.dumps({"sha256": [first]}).encode()
    assert error_of(door.ask("POST", "/agent/contents", told, token="reads-only")) == (403, "forbidden")


def test_a_file_of_a_job_is_brought_whole_or_in_part(door: Door, job_folder: Path) -> None:
    content = os.urandom(2 * PIECE_BYTES + 17)
    (job_folder / "a b.dat").write_bytes(content)
    status, headers, body = door.ask("GET", "/agent/files/j?name=a%20b.dat")
    assert (status, headers["content-length"], body) == (200, str(len(content)), content)
    status, headers, body = door.ask("GET", "/agent/files/j?name=a%20b.dat", Range=f"bytes={PIECE_BYTES}-")
    assert (status, body) == (206, content[PIECE_BYTES:])
    assert headers["content-range"] == f"bytes {PIECE_BYTES}-{len(content) - 1}/{len(content)}"
    assert error_of(door.ask("GET", "/agent/files/j?name=a%20b.dat", Range="bytes=9999999-")) == (416, "not_a_range")
    assert error_of(door.ask("GET", "/agent/files/j?name=nowhere")) == (404, "unknown_content")
    assert error_of(door.ask("GET", "/agent/files/nix?name=a")) == (404, "unknown_job")


def test_an_empty_file_is_brought(door: Door, job_folder: Path) -> None:
    (job_folder / "empty").touch()
    assert door.ask("GET", "/agent/files/j?name=empty")[::2] == (200, b"")


def test_staged_outputs_are_taken_in_pieces(door: Door, job_folder: Path) -> None:
    content = os.urandom(PIECE_BYTES + 5)
    assert door.ask("PUT", "/agent/staged/j/1.2.1/3/0?offset=10", content)[0] == 204
    staged = door.jobs.files.staged
    assert {each[:3] for each in staged} == {(str(job_folder), AttemptRef("j", "1.2.1", 3), 0)}
    assert b"".join(each[4] for each in staged) == content
    offsets = [each[3] for each in staged]
    assert offsets[0] == 10
    assert offsets[-1] == 10 + len(content) - len(staged[-1][4])


def test_outputs_for_nowhere_are_refused(door: Door, job_folder: Path) -> None:
    assert error_of(door.ask("PUT", "/agent/staged/j/x/3/0", b"x")) == (404, "unknown_package")
    assert error_of(door.ask("PUT", "/agent/staged/nix/1.1.1/3/0", b"x")) == (404, "unknown_job")
    assert error_of(door.ask("PUT", "/agent/staged/j/1.1.1/3/0?offset=-1", b"x")) == (416, "not_a_range")
    assert error_of(door.ask("GET", "/agent/elsewhere")) == (404, "not_found")
    for nobodys in ("1.3.1/3", "2.1.1/1", "999999999.999999999.999999999/1", "1.1.1/1", "1.2.1/4", "1.2.1/0"):
        answer = door.ask("PUT", f"/agent/staged/j/{nobodys}/0", b"x")
        assert error_of(answer) == (404, "unknown_package"), nobodys
        assert b"job j has no such" in answer[2]
    assert error_of(door.ask("PUT", "/agent/staged/j/1.2.1/3/100000", b"x")) == (409, "not_awaited")
    assert door.jobs.files.staged == []


def test_outputs_come_too_late_when_they_were_told_of_or_their_job_is_over(door: Door, job_folder: Path) -> None:
    assert door.ask("PUT", "/agent/staged/j/1.2.1/3/0", b"x")[0] == 204
    log(door, of_attempt(3, "AttemptFinished", exit_code="SUCCESS", manifest=[]))
    assert error_of(door.ask("PUT", "/agent/staged/j/1.2.1/3/0", b"y")) == (409, "not_awaited")
    log(door, of_attempt(4, "AttemptCreated", site="local") | {"attempt": 4})
    assert door.ask("PUT", "/agent/staged/j/1.2.1/4/0", b"z")[0] == 204
    log(door, event(5, "CancelAccepted", job="j"), of_attempt(6, "CommitGranted"))
    assert error_of(door.ask("PUT", "/agent/staged/j/1.2.1/4/1", b"z")) == (409, "not_awaited")
    assert [each[4] for each in door.jobs.files.staged] == [b"x", b"z"]


def test_an_empty_output_is_taken(door: Door, job_folder: Path) -> None:
    assert door.ask("PUT", "/agent/staged/j/1.2.1/3/0?offset=0", b"")[0] == 204
    assert door.jobs.files.staged == [(str(job_folder), AttemptRef("j", "1.2.1", 3), 0, 0, b"")]


def test_what_is_no_file_of_the_job_is_refused_in_plain_words(
    door: Door, job_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = SqliteResultsIndex(WorkDatabase(job_folder / ".pilotage"))
    door.jobs.files = FolderTree(job_folder / ".pilotage", index)  # type: ignore[assignment]
    (job_folder / "folder").mkdir()
    (job_folder / "loop").symlink_to("loop")
    (job_folder / ".pilotage" / "empty").touch()
    (job_folder.parent / "outside").touch()
    os.mkfifo(job_folder / "pipe")
    names = ("", ".", "..", "folder", "folder/", "../outside", "%2Fetc%2Fpasswd", ".pilotage/empty", "pipe", "a%00b")
    for name in names:
        asked = f"/agent/files/j?name={name}"
        assert error_of(door.ask("GET", asked)) == (404, "unknown_content"), name
        assert error_of(door.ask("GET", asked, Range="bytes=0-9")) == (404, "unknown_content"), name
    assert error_of(door.ask("GET", "/agent/files/j")) == (404, "unknown_content")
    for name in ("x" * 300, "loop", "loop/x"):
        assert error_of(door.ask("GET", f"/agent/files/j?name={name}")) == (409, "store"), name
    assert not [each for each in caplog.records if each.exc_info]
    index.close()


@pytest.mark.parametrize(
    "asked, piece",
    [("", (0, 10)), ("bytes=0-", (0, 10)), ("bytes=3-5", (3, 6)), ("bytes=-4", (6, 10)), ("bytes=8-99", (8, 10))],
)
def test_a_range_is_read(asked: str, piece: tuple[int, int]) -> None:
    assert range_of(asked, size_bytes=10) == piece


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=5-3", "bytes=-", "lines=1-2", "bytes=0-1,3-4", "bytes=-0"])
def test_a_range_that_is_none_is_refused(asked: str) -> None:
    with pytest.raises(NotARange):
        range_of(asked, size_bytes=10)
