"""Makes folders that only one user can read, including their missing parents."""

from __future__ import annotations

from pathlib import Path

MODE = 0o700


def make_closed(folder: Path) -> None:
    """Make a folder and its missing parents, closed to other users; raises `OSError`.

    `mkdir` with `parents` would leave the parents open, and one of them may be the state folder.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder.parent == folder:
            break
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=MODE, exist_ok=True)
