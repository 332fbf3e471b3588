"""A wire on loopback between a client and a server: it can be cut, cut after so many bytes, or go dead."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

_PIECE = 64 << 10


class Wire:
    """Carries bytes both ways between whoever connects and a port on loopback."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._guard = threading.Condition()
        self._open: set[socket.socket] = set()
        self._left: int | None = None  # bytes that still pass, both ways together
        self._is_cut = False
        self._is_dead = False
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while self._threads:
            self._threads.pop().join()

    def cut(self) -> None:
        """End all connections, and every new one."""
        with self._guard:
            self._is_cut = True
            self._guard.notify_all()
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def cut_after(self, count: int) -> None:
        """Cut when so many more bytes have passed."""
        with self._guard:
            self._left = count

    def hold(self) -> None:
        """Let nothing pass, and tell nobody."""
        with self._guard:
            self._is_dead = True

    def mend(self) -> None:
        """Let everything pass again."""
        with self._guard:
            self._is_cut = self._is_dead = False
            self._left = None
            self._guard.notify_all()

    def _begin(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._guard:
                refused = self._is_cut
            if refused:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            with self._guard:
                self._open |= {near, far}
            self._begin(self._carry, near, far)
            self._begin(self._carry, far, near)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (piece := source.recv(_PIECE)) and self._may_pass(len(piece)):
                target.sendall(piece)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._guard:
            if source not in self._open:  # the other direction ended before
                for each in (source, target):
                    each.close()
            self._open -= {source, target}

    def _may_pass(self, count: int) -> bool:
        with self._guard:
            self._guard.wait_for(lambda: self._is_cut or not self._is_dead)
            if self._left is not None:
                self._left -= count
                if self._left < 0:
                    self._is_cut = True
                    for each in self._open:
                        with contextlib.suppress(OSError):
                            each.shutdown(socket.SHUT_RDWR)
            return not self._is_cut
