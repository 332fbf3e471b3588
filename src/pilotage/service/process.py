"""Lets other processes run first now and then while the service works through a long list.

On the computer of the service, a package that starts may be queued behind the service until the next clock tick, which
is longer than a short package takes. Yielding costs as long as that package runs. While another process computes for
long, yielding costs more than it gains, and is suspended for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pilotage.model.texts import size_text

AMONG = 8  # items between two yields
LONG_SECONDS = 0.002
WITHOUT_FACTOR = 20  # suspended for this many times the time lost: at most a twentieth is lost

Item = TypeVar("Item")


def _nobody() -> None:
    """On a system without `sched_yield`, do nothing."""


_yield: Callable[[], None] = getattr(os, "sched_yield", _nobody)


class ThreadYielding:
    """Yields the processor, for one thread."""

    __slots__ = ("_again_at", "_clock", "_yield")

    def __init__(self, *, yields: Callable[[], None] = _yield, clock: Callable[[], float] = time.monotonic) -> None:
        self._yield = yields
        self._clock = clock
        self._again_at = -1.0  # suspended until then

    def yield_thread(self) -> None:
        """Let other processes run, unless that took long lately."""
        began = self._clock()
        if began < self._again_at:
            return
        self._yield()
        now = self._clock()
        lasted_seconds = now - began
        if lasted_seconds > LONG_SECONDS:
            self._again_at = now + WITHOUT_FACTOR * lasted_seconds

    def among(self, items: Sequence[Item]) -> Iterator[Item]:
        """Iterate over the items, yielding before the first and then every few."""
        for first in range(0, len(items), AMONG):
            self.yield_thread()
            yield from items[first : first + AMONG]


# Has the kernel move the memory of a busy process into huge pages.
#
# The engine's lookups are scattered over its memory. With small pages the processor must translate most addresses anew,
# which takes a good tenth of the time when there are many pilots. Python allocates memory in pieces smaller than a huge
# page, so the kernel uses none by itself; since Linux 6.1 it collapses existing pages on request. Where the kernel is
# older, or huge pages are switched off, nothing happens.

GROWN_BYTES = 16 * 1024 * 1024
"""A process that grew by less than this since its last request does not ask again."""
_DENSE = 0.9  # the least part of a stretch in use: otherwise huge pages would take memory that was never requested
_COLLAPSE = 25  # MADV_COLLAPSE
_PROCESS, _SETTINGS = Path("/proc/self"), Path("/sys/kernel/mm/transparent_hugepage")


class LargePages:
    """Requests huge pages for its process, and again when the process has grown."""

    def __init__(self, *, process: Path = _PROCESS, settings: Path = _SETTINGS) -> None:
        self._process = process
        self._settings = settings
        self._page_bytes: int | None = None  # 0: the system has none
        self._asked_bytes = 0

    def ask(self) -> int:
        """Ask if the process has grown; return how many bytes lie in the ranges asked for."""
        if self._page_bytes is None:
            self._page_bytes = _page_bytes(self._settings)
        if not self._page_bytes:
            return 0
        import ctypes

        try:
            resident = int((self._process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            if resident < self._asked_bytes + GROWN_BYTES:
                return 0
            self._asked_bytes = resident
            found = list(stretches((self._process / "smaps").read_text(), page_bytes=self._page_bytes))
            advise = ctypes.CDLL(None).madvise
        except (OSError, ValueError, IndexError, AttributeError):
            self._page_bytes = 0
            return 0
        for start, end in found:
            # Pages that cannot be collapsed stay as they are.
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), ctypes.c_int(_COLLAPSE))
        return sum(end - start for start, end in found)


PROCESS = LargePages()
"""The instance for this process."""


def stretches(smaps: str, *, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of the process's own memory that are in use, aligned to huge pages."""
    start = end = 0
    for line in smaps.splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, _, last = name.partition("-")
            flags, _, _, inode, *_ = rest.split()
            own = flags == "rw-p" and inode == "0"
            start, end = (int(first, 16), int(last, 16)) if own else (0, 0)
        elif name == "Rss:" and end > start and int(rest.split()[0]) * 1024 >= _DENSE * (end - start):
            whole_start, whole_end = -(-start // page_bytes) * page_bytes, end // page_bytes * page_bytes
            if whole_end > whole_start:
                yield whole_start, whole_end


def _page_bytes(settings: Path) -> int:
    """The size of a huge page; 0 if the system has none, or they are switched off."""
    try:
        wanted = "[never]" not in (settings / "enabled").read_text()
        return int((settings / "hpage_pmd_size").read_text()) if wanted else 0
    except (OSError, ValueError):
        return 0


# Whether the disk has space: asked often, by clients that look at a job and by health checks.

FULL_BYTES = 2**20
"""With less than this the book and the agents can write next to nothing."""


def no_room(folder: str | Path, *, statvfs: Callable[[str | Path], os.statvfs_result] = os.statvfs) -> str:
    """Says that a disk is full, and what to do; empty if it has space, or that is unknown."""
    try:
        found = statvfs(folder)
    except OSError:
        return ""
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail  # some blocks are reserved for root
    files = found.f_ffree if os.geteuid() == 0 else found.f_favail
    free = blocks * found.f_frsize
    if free < FULL_BYTES:
        left = f"the disk of {folder} is full: {size_text(free)} are left" if free else f"the disk of {folder} is full"
        return f"{left}; free some space there; work resumes by itself"
    if found.f_files and not files:
        return f"the disk of {folder} takes no more files; remove some, and work resumes by itself"
    return ""
