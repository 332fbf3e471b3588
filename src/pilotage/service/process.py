"""A service that works through many things lets whoever waits for its core go first, now and then.

Where packages run beside their service, the system may put one that begins behind it, to wait there until the clock ticks:
longer than a short package lasts. To give way in between costs as long as that one runs. Where somebody computes for long,
it costs more than it brings, and is left for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pilotage.model.texts import size_text

AMONG = 8  # so many things are done one after the other
LONG_SECONDS = 0.002
WITHOUT_FACTOR = 20  # for so many times what was lost nobody is let go first: a twentieth is lost at most

Item = TypeVar("Item")


def _nobody() -> None:
    """Where the system has no such call, nobody is let go first."""


_yield: Callable[[], None] = getattr(os, "sched_yield", _nobody)


class ThreadYielding:
    """Gives way for one thread."""

    __slots__ = ("_again_at", "_clock", "_yield")

    def __init__(self, *, yields: Callable[[], None] = _yield, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with giving way."""
        self._yield = yields
        self._clock = clock
        self._again_at = -1.0  # until then it goes on

    def yield_thread(self) -> None:
        """Let others run, unless that lasted long lately."""
        began = self._clock()
        if began < self._again_at:
            return
        self._yield()
        now = self._clock()
        lasted_seconds = now - began
        if lasted_seconds > LONG_SECONDS:
            self._again_at = now + WITHOUT_FACTOR * lasted_seconds

    def among(self, items: Sequence[Item]) -> Iterator[Item]:
        """The items, giving way before the first few, the next few, and so on."""
        for first in range(0, len(items), AMONG):
            self.yield_thread()
            yield from items[first : first + AMONG]


# Has the kernel keep what a busy process has in memory in large pages.
#
# What the engine looks up lies all over its memory. With small pages the processor must find out anew where most of
# it is, which takes a good tenth of the time when many pilots are there. Python gets its memory in pieces that are
# smaller than a large page, so the kernel does not use any by itself; it puts what is there together when it is
# asked, which Linux understands since 6.1. Where it does not, or where large pages are switched off, nothing is
# done, and nothing else is different.

GROWN_BYTES = 16 * 1024 * 1024
"""A process that has grown by less since it asked does not ask again."""
_DENSE = 0.9  # of a stretch is in use: else large pages would take memory that nobody has asked for
_COLLAPSE = 25  # MADV_COLLAPSE
_PROCESS, _SETTINGS = Path("/proc/self"), Path("/sys/kernel/mm/transparent_hugepage")


class LargePages:
    """Asks for the process it is in, and again when that has grown."""

    def __init__(self, *, process: Path = _PROCESS, settings: Path = _SETTINGS) -> None:
        """Nothing is looked at before `ask`."""
        self._process = process
        self._settings = settings
        self._page_bytes: int | None = None  # 0: there is nothing to ask for
        self._asked_bytes = 0

    def ask(self) -> int:
        """Ask if the process has grown; how many bytes lie where large pages were asked for by that."""
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
            # What cannot be put together stays as it is.
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), ctypes.c_int(_COLLAPSE))
        return sum(end - start for start, end in found)


PROCESS = LargePages()
"""The one for this process, whoever in it is busy."""


def stretches(smaps: str, *, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Where the process has memory of its own that is full, from one boundary of a large page to another."""
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
    """How large a large page is; 0 where there are none, or nobody wants them."""
    try:
        wanted = "[never]" not in (settings / "enabled").read_text()
        return int((settings / "hpage_pmd_size").read_text()) if wanted else 0
    except (OSError, ValueError):
        return 0


# Whether there is room to write: asked again and again by whoever looks at a job, and by who looks after the
# service.

FULL_BYTES = 2**20
"""With less than this the book and the agents can write next to nothing."""


def no_room(folder: str | Path, *, statvfs: Callable[[str | Path], os.statvfs_result] = os.statvfs) -> str:
    """That a disk is full, in words, and what to do; empty where there is room, or nobody can say."""
    try:
        found = statvfs(folder)
    except OSError:
        return ""
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail  # some are kept for the superuser
    files = found.f_ffree if os.geteuid() == 0 else found.f_favail
    free = blocks * found.f_frsize
    if free < FULL_BYTES:
        left = f"the disk of {folder} is full: {size_text(free)} are left" if free else f"the disk of {folder} is full"
        return f"{left}; make room there, and it goes on by itself"
    if found.f_files and not files:
        return f"the disk of {folder} takes no more files; remove some, and it goes on by itself"
    return ""
