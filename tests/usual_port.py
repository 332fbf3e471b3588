"""The port that a service takes where nobody says another: there is one for all tests, whichever worker runs them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def usual_port(factory: pytest.TempPathFactory) -> Iterator[None]:
    """While the block runs, no other test that asks for the usual port has it."""
    with Path(factory.getbasetemp().parent / "usual-port.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
