"""Folders that are one user's alone: with every folder above them that is made for their sake."""

from __future__ import annotations

from pathlib import Path

MODE = 0o700


def make_closed(folder: Path) -> None:
    """Make a folder, and those above it that are missing, closed to others; raises `OSError`.

    `mkdir` with `parents` would leave those above open, and one of them may be the state folder.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder.parent == folder:
            break
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=MODE, exist_ok=True)
