"""Files that get a name, and those that give it back: by a rename, which is done or is not."""

# Paths are texts here, as in the store.
# ruff: noqa: PTH104, PTH108, PTH118, PTH119, PTH120

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress


def move(source: str, target: str) -> None:
    """Rename; where that is not possible between two places, copy beside the target and rename that."""
    try:
        os.rename(source, target)
    except OSError as fault:
        if fault.errno != errno.EXDEV:
            raise
        import shutil  # only where file systems differ in spite of what they say

        beside = os.path.join(os.path.dirname(target), f".{os.path.basename(target)[:200]}.pilotage")
        shutil.copy2(source, beside)
        os.rename(beside, target)
        os.unlink(source)


def set_aside(path: str) -> str:
    """Give what is at a path the first free name of `NAME.~1~`, `NAME.~2~`, … beside it, as numbered backups have; that name.

    A file keeps the one it has, too, until another takes that: it is never without a name.
    """
    number = 1
    while True:
        aside = f"{path}.~{number}~"
        if not os.path.lexists(aside):
            try:
                os.link(path, aside, follow_symlinks=False)  # fails where somebody else took the name meanwhile
            except FileExistsError:
                continue
            except OSError:  # a folder, or a file system without links
                os.rename(path, aside)
            return aside
        number += 1


def take_back(brought: Sequence[tuple[str, str]]) -> None:
    """Put files back to where they were staged, as far as that can be done: they are brought again with the others."""
    for staged, target in brought:
        with suppress(OSError):  # then it stays under its name, which it was granted
            os.rename(target, staged)
