"""A way to a service that lets nothing pass but what is for agents, as relays do."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_REFUSED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Forwarder:
    """Listens on loopback and carries requests for `/agent/` to a service, each with its body, as they come."""

    def __init__(self, url: str) -> None:
        """Take the address of the service."""
        parts = urlsplit(url)
        self._service = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed: list[str] = []
        self.refused: list[str] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._listen)

    def close(self) -> None:
        """Hang up on everybody."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._open.add(client)
                self._start(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._service) as service:
            self._open.add(service)
            self._start(_copy, service, client)
            reading = client.makefile("rb")
            while head := _head(reading):
                target = head.split(b" ", 2)[1].decode("ascii")
                if not target.startswith("/agent/"):
                    self.refused.append(target)
                    client.sendall(_REFUSED)
                    break
                self.passed.append(target)
                lines = head.lower().split(b"\r\n")
                size = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
                service.sendall(head + reading.read(size))
            with contextlib.suppress(OSError):
                service.shutdown(socket.SHUT_RDWR)


def _head(reading: object) -> bytes:
    """The head of a request; nothing at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line: bytes = reading.readline()  # type: ignore[attr-defined]
        if not line:
            return b""
        head += line
    return head


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)


@contextlib.contextmanager
def forwarder(url: str) -> Iterator[Forwarder]:
    """One that hangs up at the end of the block."""
    made = Forwarder(url)
    try:
        yield made
    finally:
        made.close()
