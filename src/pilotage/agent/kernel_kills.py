"""Whether the kernel ended a process for want of memory: its control group counts that, and nothing else tells."""

from __future__ import annotations

import os
import threading


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
