"""The port that a service takes where nobody says another: there is one for all tests, whichever worker runs them."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until

PORT = 8642


@contextmanager
def usual_port(factory: pytest.TempPathFactory) -> Iterator[None]:
    """While the block runs, no other test that asks for the usual port has it."""
    with Path(factory.getbasetemp().parent / "usual-port.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Others do not ask: their services have it for a while, and let it go.
        wait_until(_is_free, lambda: f"somebody keeps the port {PORT}", seconds=240.0)
        yield


def _is_free() -> bool:
    try:
        socket.create_server(("127.0.0.1", PORT)).close()
    except OSError:
        return False
    return True
