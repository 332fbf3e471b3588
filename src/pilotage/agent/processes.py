"""The processes of an attempt, as /proc shows them: its session, those who left it, and how all of them are ended.

A command leads a session, and what it starts stays in it unless it takes pains. Who leaves keeps our mark in its
environment; who drops that as well is still a child of ours once its parent is gone, where this process adopts orphans.
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


# Processes that must not be left over: found by who started them, or by the mark in their environment, and ended.

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


_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MARK = b"PILOTAGE_MARK="
_FIRST_PAUSE_SECONDS = 0.002
_LAST_PAUSE_SECONDS = 0.05


class Process(NamedTuple):
    """What /proc says of a process. Its number and start time together are its own for ever."""

    pid: int
    parent: int
    session: int
    state: str
    cpu_seconds: float
    started_ticks: int


def look_at(pid: int) -> Process | None:
    """A process as it is now; None where there is none."""
    text = _read(f"/proc/{pid}/stat")
    end = text.rfind(b")")
    if end < 0:
        return None
    fields = text[end + 2 :].split()
    cpu = sum(map(int, fields[11:15]))  # its own and that of the children it waited for, user and system
    return Process(pid, int(fields[1]), int(fields[3]), fields[0].decode(), cpu / _CLOCK_TICKS, int(fields[19]))


def all_processes() -> list[Process]:
    """Every process of the system that can be seen."""
    found = (look_at(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def memory_bytes(pids: Iterable[int]) -> int:
    """How much memory processes have in use, what they share counted for each."""
    total = 0
    for pid in pids:
        fields = _read(f"/proc/{pid}/statm").split()
        total += int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0
    return total


def own_share_bytes(pids: Iterable[int]) -> int:
    """How much memory processes have in use, what they share counted once: slower than `memory_bytes`."""
    total = 0
    for pid in pids:
        text = _read(f"/proc/{pid}/smaps_rollup")
        line = next((line for line in text.splitlines() if line.startswith(b"Pss:")), None)
        total += int(line.split()[1]) * 1024 if line is not None else memory_bytes([pid])
    return total


def own_peak_bytes() -> int:
    """The most memory that this process had: no child's peak is told to be less, since it began as this process."""
    return _peak_bytes("self")


def largest_peak_bytes(pids: Iterable[int]) -> int:
    """The most memory that any of these processes had at once, since it became the program that it is."""
    return max((_peak_bytes(str(pid)) for pid in pids), default=0)


def _peak_bytes(pid: str) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def family(root: int) -> list[int]:
    """A process and everything that descends from it and whose parents all live, without those that ended."""
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
    """Whether the environment that a process was started with has all of these entries."""
    entries = set(_read(f"/proc/{pid}/environ").split(b"\0"))
    return all(mark in entries for mark in marks)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to every process of a group; whether there was one. 0 only asks."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class ProcessCleanup:
    """Finds and ends what commands leave behind.

    Where the process is `sole`, that is, runs commands and has no other children, it adopts orphans: one look at its own
    children then tells whether anything is left at all, and what nobody's mark is found on is ended as soon as every
    command has ended that could have left it. Elsewhere all processes are looked at, and only marks and sessions count.
    """

    def __init__(self, *, sole: bool, grace_seconds: float) -> None:
        """Adopt orphans from now on, if this process may."""
        self._adopts = sole and become_subreaper()
        self._grace_seconds = grace_seconds
        self._children = -1
        self._running: dict[int, None] = {}  # sessions
        self._lock = threading.Lock()
        self._suspects: dict[tuple[int, int], set[int]] = {}  # an orphan without a mark → the sessions it may be of
        if self._adopts:
            try:
                self._children = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._adopts = False

    def began(self, session: int) -> None:
        """A command runs in a session."""
        self._running[session] = None

    def close(self) -> None:
        """Let go of what is held."""
        if self._children >= 0:
            os.close(self._children)
            self._children = -1
            self._adopts = False

    def adopted_of(self, session: int) -> list[int]:
        """The orphans that belong to a session which still runs, as far as they are ours."""
        if not self._adopts:
            return []
        processes = [look_at(int(pid)) for pid in self._adopted()]
        return [each.pid for each in processes if each is not None and each.session == session and each.state != "Z"]

    def clear(
        self, session: int, marks: Collection[bytes], *, urgent: bool = False, patience_seconds: float = 0.0
    ) -> bool:
        """After the end of a session's first process: end the rest of what it started. Whether nothing is left.

        They are asked to end, after some patience where one is said, and killed if they do not in time; with `urgent`
        they were asked already.
        """
        self._running.pop(session, None)
        # Whatever is left has lost a parent, or descends from what has; and who has lost its parent has become our child.
        if self._adopts and (
            not os.pread(self._children, 1, 0) or all(self._is_anothers(int(pid), marks) for pid in self._adopted())
        ):
            return True
        return self._end(session, marks, urgent=urgent, patience_seconds=patience_seconds)

    def _adopted(self) -> list[bytes]:
        """The children of the main thread: orphans come to it, and slots start their commands from threads of their own."""
        return os.pread(self._children, 1 << 20, 0).split()

    def _is_anothers(self, pid: int, marks: Collection[bytes]) -> bool:
        """Whether an orphan is surely of a command that is not the one with these marks."""
        process = look_at(pid)
        if process is None or process.state == "Z":
            return False  # it is to be buried
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
                return False  # a process that even SIGKILL does not end waits for a device
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
        """What lives and belongs to a session that is over; the dead among our adopted children are buried."""
        processes = all_processes()
        # Orphans come to the main thread; the children of a slot's own thread are commands that run, and its business.
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
        """Whether an orphan without a mark can be of no command that still runs."""
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
    """The processes that descend from any of these, in as many rounds as they are deep."""
    found: dict[int, Process] = {}
    while True:
        known = {*roots, *found}
        new = [each for each in processes if each.parent in known and each.pid not in known]
        if not new:
            return list(found.values())
        found.update((each.pid, each) for each in new)


def _send(process: Process, number: int) -> None:
    """Send a signal to a process if it is still the one that was looked at."""
    now = look_at(process.pid)
    if now is not None and now.started_ticks == process.started_ticks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _read(path: str) -> bytes:
    """A small file of /proc; nothing where it is gone, or not for us to see."""
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


# Whether the kernel ended a process for want of memory: its control group counts that, and nothing else tells.


class KernelKills:
    """How often the kernel ended a process of our control group for want of memory, told once for each."""

    def __init__(self) -> None:
        """Take the count as it is now."""
        self._file = _events_file()
        self._lock = threading.Lock()
        self._told = self._count()

    def claim(self) -> bool:
        """Whether there was one that nobody was told of; who asks is told now."""
        with self._lock:
            if self._count() <= self._told:
                return False
            self._told += 1
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
    """The file of our memory control group that counts; empty where there is none."""
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
