"""Whether the results of a job can be put where they belong: asked before anything is spent, as far as it can be known."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pilotage.language import Expansion
from pilotage.ports import NotOurs, StoreError
from pilotage.service.running.capturing import wanted_column


def refuse_unwritable(expansion: Expansion, folder: str) -> None:
    """Raise `StoreError` where a folder that an output belongs into takes no files of this user, `NotOurs` where it is a file."""
    wanted = {""} if any(True for block in expansion.blocks for _ in block.outputs()) else set()
    for block in expansion.blocks:
        for _, output in block.outputs():
            if not block.makes_pattern(output) and not block.package.done:
                wanted |= {name.rpartition("/")[0] for name in wanted_column(expansion, block, output) if "/" in name}
    for file in sorted({blocking for each in wanted if (blocking := _in_the_way(Path(folder), each)) is not None}):
        raise NotOurs(
            "a file is where results need a folder",
            subject=str(file),
            next_step="move it away, or give the outputs another folder",
        )
    for parent in sorted({_nearest(Path(folder), each) for each in wanted}):
        if not os.access(parent, os.W_OK | os.X_OK):
            raise StoreError(
                f"results cannot be written here: {_why(parent)}",
                subject=str(parent),
                next_step="let this user write there, or run a copy of the document in a folder of your own",
            )


def _in_the_way(folder: Path, name: str) -> Path | None:
    """What is no folder, and stands where one of a name is to be."""
    path = folder
    for part in Path(name).parts:
        path /= part
        if not path.is_dir():
            return path if os.path.lexists(path) else None
    return None


def _nearest(folder: Path, name: str) -> Path:
    """The folder of a name, or the nearest above it that is there: the rest is made when it is needed."""
    path = folder / name
    while path != folder and not path.is_dir():
        path = path.parent
    return path


def _why(folder: Path) -> str:
    number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    return os.strerror(number)
