"""Finds and ends the processes of an attempt, with /proc: its session, and processes that left it.

A command leads a session, and its children stay in it unless they leave on purpose. A process that leaves still has our
mark in its environment. One that drops the mark as well becomes our child when its parent dies, if we are a subreaper.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


# Processes that must not be left over: found by their parents or by the mark in their environment, and killed.

MARK = "PILOTAGE_MARK"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_SET_CHILD_SUBREAPER = 36
_ROUNDS_MAX = 100  # a program may fork faster than it is found: give up after so many rounds
_PROC = Path("/proc")


def become_subreaper() -> bool:
    """Adopt all orphaned descendants; returns whether the system supports that."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> bool:
    """Ask the system for a signal when our parent dies; returns whether it supports that."""
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
    """Start time of a process, which with its number identifies it; empty if it is gone or a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return "" if fields[0] in (b"Z", b"X") else f"{boot}:{fields[19].decode()}"


def adopted() -> list[int] | None:
    """Children of the main thread: it starts none, so they are adopted orphans; None if unknown."""
    try:
        children = (_PROC / f"self/task/{os.getpid()}/children").read_text("ascii")
    except (OSError, ValueError):
        return None
    return [int(each) for each in children.split()]


def reap_adopted() -> None:
    """Reap dead adopted orphans."""
    for pid in adopted() or ():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def descendants(pid: int) -> list[int]:
    """All living processes below one."""
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
    """Kill all processes below one, until none is left; returns those found."""
    found: set[int] = set()
    for _ in range(_ROUNDS_MAX):
        living = descendants(pid)
        if not living:
            break
        found.update(living)
        _kill(living)
        time.sleep(_FIRST_PAUSE_SECONDS)  # the kernel takes a moment to remove them
    return sorted(found)


def sweep(marks: Collection[str]) -> list[int]:
    """Kill all processes of this user that carry one of these marks, until none is left; returns those found."""
    wanted = {os.fsencode(f"{MARK}={mark}") for mark in marks}
    found: set[int] = set()
    for _ in range(_ROUNDS_MAX if wanted else 0):
        living = [pid for pid in _of_this_user() if _carries(pid, wanted)]
        if not living:
            break
        found.update(living)
        _kill(living)
        time.sleep(_FIRST_PAUSE_SECONDS)  # the kernel takes a moment to remove them
    return sorted(found)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _carries(pid: int, wanted: set[bytes]) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return b"PILOTAGE_MARK=" in environment and any(each in wanted for each in environment.split(b"\0"))


def _of_this_user() -> Iterator[int]:
    user, own = os.getuid(), os.getpid()
    for entry in os.scandir(_PROC):
        if entry.name.isdigit() and int(entry.name) != own:
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user:
                    yield int(entry.name)


def _processes() -> Iterator[tuple[int, int, bytes]]:
    """Every process: its number, its parent's number, and its state."""
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            try:
                fields = (_PROC / entry.name / "stat").read_bytes().rpartition(b")")[2].split()
                yield int(entry.name), int(fields[1]), fields[0]
            except (OSError, IndexError):
                continue


_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MARK = b"PILOTAGE_MARK="
_FIRST_PAUSE_SECONDS = 0.002
_LAST_PAUSE_SECONDS = 0.05


class Process(NamedTuple):
    """A process as /proc shows it. Number and start time together identify it for ever."""

    pid: int
    parent: int
    session: int
    state: str
    cpu_seconds: float
    started_ticks: int


def look_at(pid: int) -> Process | None:
    """A process as it is now; None if it does not exist."""
    text = _read(f"/proc/{pid}/stat")
    end = text.rfind(b")")
    if end < 0:
        return None
    fields = text[end + 2 :].split()
    cpu = sum(map(int, fields[11:15]))  # its own and that of the children it waited for, user and system
    return Process(pid, int(fields[1]), int(fields[3]), fields[0].decode(), cpu / _CLOCK_TICKS, int(fields[19]))


def all_processes() -> list[Process]:
    """All visible processes of the system."""
    found = (look_at(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory in use by processes; shared pages count for each of them."""
    total = 0
    for pid in pids:
        fields = _read(f"/proc/{pid}/statm").split()
        total += int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0
    return total


def own_share_bytes(pids: Iterable[int]) -> int:
    """Memory in use by processes; shared pages count once. Slower than `memory_bytes`."""
    total = 0
    for pid in pids:
        text = _read(f"/proc/{pid}/smaps_rollup")
        line = next((line for line in text.splitlines() if line.startswith(b"Pss:")), None)
        total += int(line.split()[1]) * 1024 if line is not None else memory_bytes([pid])
    return total


def own_peak_bytes() -> int:
    """Peak memory of this process. A child's reported peak is never below it, since the child began as its copy."""
    return _peak_bytes("self")


def largest_peak_bytes(pids: Iterable[int]) -> int:
    """The largest peak memory of any of these processes since its exec."""
    return max((_peak_bytes(str(pid)) for pid in pids), default=0)


def _peak_bytes(pid: str) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def family(root: int) -> list[int]:
    """A process and its living descendants, as far as the chain of parents is alive."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        found.append(pid)
        for thread in threads:
            waiting += [int(child) for child in _read(f"/proc/{pid}/task/{thread}/children").split()]
    return found


def carries(pid: int, marks: Collection[bytes]) -> bool:
    """Tell whether the initial environment of a process has all of these entries."""
    entries = set(_read(f"/proc/{pid}/environ").split(b"\0"))
    return all(mark in entries for mark in marks)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group (0: only check); returns whether the group exists."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class ProcessCleanup:
    """Finds and ends processes that commands leave behind.

    If this process is `sole`, that is, runs commands and has no other children, it adopts orphans: its own children
    then show whether anything is left at all, and an orphan without a mark is ended as soon as every command has ended
    that could have started it. Otherwise all processes are searched, and only marks and sessions count.
    """

    def __init__(self, *, sole: bool, grace_seconds: float) -> None:
        """Become a subreaper if this process is `sole`."""
        self._adopts = sole and become_subreaper()
        self._grace_seconds = grace_seconds
        self._children = -1
        self._running: dict[int, None] = {}  # sessions
        self._lock = threading.Lock()
        self._suspects: dict[tuple[int, int], set[int]] = {}  # orphan without a mark → sessions it may come from
        if self._adopts:
            try:
                self._children = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._adopts = False

    def began(self, session: int) -> None:
        """Note that a command runs in a session."""
        self._running[session] = None

    def close(self) -> None:
        """Close the open files."""
        if self._children >= 0:
            os.close(self._children)
            self._children = -1
            self._adopts = False

    def adopted_of(self, session: int) -> list[int]:
        """Our adopted orphans that belong to a running session."""
        if not self._adopts:
            return []
        processes = [look_at(int(pid)) for pid in self._adopted()]
        return [each.pid for each in processes if each is not None and each.session == session and each.state != "Z"]

    def clear(
        self, session: int, marks: Collection[bytes], *, urgent: bool = False, patience_seconds: float = 0.0
    ) -> bool:
        """End what is left of a session after its first process ended; returns whether nothing is left.

        Processes get SIGTERM, after `patience_seconds`, and SIGKILL if they do not end in time; with `urgent` they had
        SIGTERM already.
        """
        self._running.pop(session, None)
        # A left-over process is an orphan or descends from one, and orphans have become our children.
        if self._adopts and (
            not os.pread(self._children, 1, 0) or all(self._is_anothers(int(pid), marks) for pid in self._adopted())
        ):
            return True
        return self._end(session, marks, urgent=urgent, patience_seconds=patience_seconds)

    def _adopted(self) -> list[bytes]:
        """Children of the main thread, which gets the orphans; slots start commands from their own threads."""
        return os.pread(self._children, 1 << 20, 0).split()

    def _is_anothers(self, pid: int, marks: Collection[bytes]) -> bool:
        """Tell whether an orphan certainly belongs to another command than the one with these marks."""
        process = look_at(pid)
        if process is None or process.state == "Z":
            return False  # a zombie, to be reaped
        if process.session in self._running:
            return True
        entries = _read(f"/proc/{pid}/environ").split(b"\0")
        return any(entry.startswith(_MARK) for entry in entries) and not all(mark in entries for mark in marks)

    def _end(self, session: int, marks: Collection[bytes], *, urgent: bool, patience_seconds: float) -> bool:
        began = time.monotonic() + patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        asked: set[int] = set()
        while True:
            left = self._left_of(session, marks)
            if not left:
                return True
            waited = time.monotonic() - began
            if waited > 2 * self._grace_seconds + 1:
                return False  # a process that survives SIGKILL waits for a device
            for process in left:
                if urgent or waited > self._grace_seconds:
                    _send(process, signal.SIGKILL)
                elif waited >= 0 and process.pid not in asked:
                    asked.add(process.pid)
                    _send(process, signal.SIGTERM)
                    _send(process, signal.SIGCONT)
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)

    def _left_of(self, session: int, marks: Collection[bytes]) -> list[Process]:
        """Living processes of a session that is over; dead ones among our adopted children are reaped."""
        processes = all_processes()
        # The main thread gets the orphans; the children of a slot's own thread are running commands, and its business.
        adopted = {int(pid) for pid in self._adopted()} if self._adopts else set()
        for process in processes:
            if process.state == "Z" and process.pid in adopted and process.pid not in self._running:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
        living = [each for each in processes if each.state not in "ZX" and each.pid not in self._running]
        left = {each.pid: each for each in living if each.session == session or carries(each.pid, marks)}
        if self._adopts:
            orphans = [each for each in living if each.pid in adopted and each.pid not in left]
            left.update((each.pid, each) for each in orphans if self._is_nobodys(each))
            descendants = _descending(living, left)
            left.update((each.pid, each) for each in descendants if each.session not in self._running)
        left.pop(os.getpid(), None)
        return list(left.values())

    def _is_nobodys(self, orphan: Process) -> bool:
        """Tell whether an orphan without a mark belongs to no running command."""
        if orphan.session in self._running or _read(f"/proc/{orphan.pid}/environ").find(_MARK) >= 0:
            return False
        key = (orphan.pid, orphan.started_ticks)
        with self._lock:
            suspected = self._suspects.setdefault(key, set(self._running))
            suspected &= set(self._running)
            if not suspected:
                del self._suspects[key]
            return not suspected


def _descending(processes: list[Process], roots: Collection[int]) -> list[Process]:
    """All processes that descend from any of these; one round per level."""
    found: dict[int, Process] = {}
    while True:
        known = {*roots, *found}
        new = [each for each in processes if each.parent in known and each.pid not in known]
        if not new:
            return list(found.values())
        found.update((each.pid, each) for each in new)


def _send(process: Process, number: int) -> None:
    """Send a signal to a process, if its number was not reused."""
    now = look_at(process.pid)
    if now is not None and now.started_ticks == process.started_ticks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _read(path: str) -> bytes:
    """Read a small file of /proc; empty if it is gone or not readable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces: list[bytes] = []
        while True:
            piece = os.read(descriptor, 65536)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


# Out-of-memory kills are counted by the control group, and reported nowhere else.


class KernelKills:
    """Out-of-memory kills in our control group; each is claimed once."""

    def __init__(self) -> None:
        """Start with the current count."""
        self._file = _events_file()
        self._lock = threading.Lock()
        self._claimed = self._count()

    def claim(self) -> bool:
        """Claim an out-of-memory kill that no attempt has claimed; returns whether there was one."""
        with self._lock:
            if self._count() <= self._claimed:
                return False
            self._claimed += 1
            return True

    def _count(self) -> int:
        if not self._file:
            return 0
        try:
            with open(self._file, encoding="ascii") as lines:
                return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
        except (OSError, ValueError, IndexError):
            return 0


def _events_file() -> str:
    """The file with the out-of-memory count of our control group; empty if there is none."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except (OSError, ValueError):
        return ""
    for _, controllers, path in (each for each in groups if len(each) == 3):
        if "memory" in controllers.split(","):
            roots = [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
        elif not controllers:
            roots = [f"/sys/fs/cgroup{path}/memory.events"]
        else:
            continue
        for file in roots:
            if os.path.exists(file):
                return file
    return ""
