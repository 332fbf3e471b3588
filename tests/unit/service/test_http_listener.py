from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.ports import JournalBusy
from pilotage.service.announcement import (
    SERVICE_FILE,
    Announcement,
    announced,
    find_service,
    last_port,
    refuse_second,
)
from pilotage.service.http.listener import CannotListen, Listener, NoSocketsHere, bind, bind_local, url_of

HERE = Announcement(url="http://127.0.0.1:8642", pid=4711, token_file="/somewhere/token", version="1", started_at=1.0)


def test_any_free_port_is_taken_and_told() -> None:
    with bind("127.0.0.1", 0) as bound:
        assert url_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_a_port_that_is_taken_is_named() -> None:
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}.*\n.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("number, kind", [(errno.EPERM, NoSocketsHere), (errno.EACCES, CannotListen)])
def test_a_file_system_without_sockets_is_told_from_one_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[CannotListen]
) -> None:
    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(CannotListen, match="sqlite:DIR") as fault:
        bind_local(tmp_path / "agent.sock")
    assert type(fault.value) is kind


def test_an_address_of_another_computer_is_no_matter_of_ports() -> None:
    with pytest.raises(CannotListen, match="--host") as fault:
        bind("192.0.2.1", 0)
    assert "--port" not in str(fault.value)


def test_answers_do_not_wait_for_the_client_to_acknowledge_what_it_has() -> None:
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_a_service_is_found_while_it_lives(tmp_path: Path) -> None:
    assert find_service(tmp_path) is None
    with announced(tmp_path, HERE):
        assert find_service(tmp_path) == HERE
        with pytest.raises(JournalBusy, match=r"process 4711\n.*serve --stop.*http://127.0.0.1:8642"):
            refuse_second(tmp_path)
    assert find_service(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == [SERVICE_FILE]
    refuse_second(tmp_path)


def test_a_service_that_ended_leaves_its_port_to_the_next(tmp_path: Path) -> None:
    assert last_port(tmp_path) == 0
    with announced(tmp_path, HERE):
        pass
    assert last_port(tmp_path) == 8642
    for content in (b"nonsense", b"{}", msgspec.json.encode(msgspec.structs.replace(HERE, url="http://x:port"))):
        (tmp_path / SERVICE_FILE).write_bytes(content)
        assert last_port(tmp_path) == 0


def test_what_a_dead_service_left_is_not_believed_and_is_replaced(tmp_path: Path) -> None:
    (tmp_path / SERVICE_FILE).write_bytes(msgspec.json.encode(HERE))
    assert find_service(tmp_path) is None
    with announced(tmp_path, HERE):
        assert find_service(tmp_path) == HERE


def test_the_file_stays_when_the_service_breaks_off_and_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), announced(tmp_path, HERE):
        raise RuntimeError
    assert (tmp_path / SERVICE_FILE).exists()
    assert find_service(tmp_path) is None


def test_a_locked_file_that_says_nothing_is_no_service(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / SERVICE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(descriptor, b"nonsense")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert find_service(tmp_path) is None
    os.close(descriptor)


def test_one_that_fails_once_it_has_begun_ends_as_if_it_were_told_to() -> None:
    def fail() -> None:
        raise OSError("it cannot be announced")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})

    with bind("127.0.0.1", 0) as bound:
        listener = Listener(app, bound=bound, started=fail, stopping=lambda: None)
        with pytest.raises(OSError, match="announced"):
            listener.listen()
    assert listener.started
    assert listener.should_exit  # so that whoever watches does not take it for broken while all is closed
