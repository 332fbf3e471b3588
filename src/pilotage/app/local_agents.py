"""The agents of this computer that a service has started: which of them live, and how they are ended."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

AGENTS_SECONDS = 20.0
LOOK_SECONDS = 0.02


class _Pilot(msgspec.Struct, frozen=True):
    pid: int
    started: Any  # by the clock of the system, which tells a process from a later one of the same number


def end_agents(state: Path) -> bool:
    """End the agents of this computer that the service of a folder left behind; each ends what it runs. Whether all did."""
    left = sorted((state / "pilots").glob("*.json"))
    for record in left:
        _terminate(record)
    until = time.monotonic() + AGENTS_SECONDS
    while any(map(is_held, left)):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _terminate(record: Path) -> None:
    """Tell the agent of a record to end, if it lives and its process is still the one that was started."""
    from pilotage.agent.sweeping import started_at

    with suppress(OSError, msgspec.DecodeError):
        pilot = msgspec.json.decode(record.read_bytes(), type=_Pilot)
        if is_held(record) and started_at(pilot.pid) == pilot.started:
            os.kill(pilot.pid, signal.SIGTERM)


def is_held(record: Path) -> bool:
    """Whether somebody holds the lock of a file: an agent that of its record, as long as it lives."""
    try:
        with record.open("rb") as stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
