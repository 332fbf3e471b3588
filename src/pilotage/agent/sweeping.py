"""Processes that must not be left over: found by who started them, or by the mark in their environment, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MARK = "PILOTAGE_MARK"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_SET_CHILD_SUBREAPER = 36
_ROUNDS_MAX = 100  # who forks faster than it is found is looked for so often
_PROC = Path("/proc")


def become_subreaper() -> bool:
    """Have every orphan among the descendants come to this process; whether the system does that."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> bool:
    """Have the system send this process a signal when its parent dies; whether it does that."""
    return _prctl(_SET_DEATH_SIGNAL, number)


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def started_at(pid: int) -> str:
    """When a process started, in a form that no other process of that number has; empty where there is none, or a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return "" if fields[0] in (b"Z", b"X") else f"{boot}:{fields[19].decode()}"


def adopted() -> list[int] | None:
    """The children of the main thread: it starts none, so they are orphans that came here; None where nobody can tell."""
    try:
        said = (_PROC / f"self/task/{os.getpid()}/children").read_text("ascii")
    except (OSError, ValueError):
        return None
    return [int(each) for each in said.split()]


def reap_adopted() -> None:
    """Take the exit status of orphans that are dead; nobody waits for it."""
    for pid in adopted() or ():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def descendants(pid: int) -> list[int]:
    """Every process below one, and nothing that is dead already."""
    children: dict[int, list[int]] = {}
    for child, parent, state in _processes():
        if state not in (b"Z", b"X"):
            children.setdefault(parent, []).append(child)
    found: list[int] = []
    front = [pid]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        found += front
    return found


def end_descendants(pid: int) -> list[int]:
    """Kill everything below a process, until nothing is left; what was found."""
    found: set[int] = set()
    for _ in range(_ROUNDS_MAX):
        living = descendants(pid)
        if not living:
            break
        found.update(living)
        _kill(living)
        time.sleep(0.002)
    return sorted(found)


def sweep(marks: Collection[str]) -> list[int]:
    """Kill every process of this user that carries one of these marks, until there is none; what was found."""
    wanted = {os.fsencode(f"{MARK}={mark}") for mark in marks}
    found: set[int] = set()
    for _ in range(_ROUNDS_MAX if wanted else 0):
        living = [pid for pid in _of_this_user() if _carries(pid, wanted)]
        if not living:
            break
        found.update(living)
        _kill(living)
        time.sleep(0.002)
    return sorted(found)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _carries(pid: int, wanted: set[bytes]) -> bool:
    try:
        said = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return b"PILOTAGE_MARK=" in said and any(each in wanted for each in said.split(b"\0"))


def _of_this_user() -> Iterator[int]:
    user, own = os.getuid(), os.getpid()
    for entry in os.scandir(_PROC):
        if entry.name.isdigit() and int(entry.name) != own:
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user:
                    yield int(entry.name)


def _processes() -> Iterator[tuple[int, int, bytes]]:
    """Every process: its number, its parent's, and its state."""
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            try:
                fields = (_PROC / entry.name / "stat").read_bytes().rpartition(b")")[2].split()
                yield int(entry.name), int(fields[1]), fields[0]
            except (OSError, IndexError):
                continue
