"""Whether there is room to write: asked again and again by whoever looks at a job, and by who looks after the service."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pilotage.model.texts import size_text

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
