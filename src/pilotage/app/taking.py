"""The results of a job, taken over: every file is compared with what was granted, and put where it is wanted."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from pilotage.model.outputs import PublishedFile

_PIECE_BYTES = 2**20
_GONE = "it is gone"
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EACCES, errno.ENOSYS})


TakenKind = Literal["well", "gone", "changed", "in-the-way"]
"""How a file is: well; missing; another than was granted; or well, with something in its way where it is to be put."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One file: where it is now, or what is wrong with it."""

    file: PublishedFile
    path: str
    problem: str = ""
    kind: TakenKind = "well"


def take(files: Iterable[tuple[str, PublishedFile]], *, to: Path | None) -> Iterator[Taken]:
    """Verify files that lie in their folders, and put them under their names into another one where it is given.

    A file of another content that is there already is left alone, and told.
    """
    for folder, file in files:
        source = Path(folder, file.name)
        outside = Path(file.name).is_absolute() or ".." in Path(file.name).parts
        problem = "its name leads out of the folder" if outside else _difference(source, file)
        path = source
        kind: TakenKind = "well" if not problem else "gone" if problem == _GONE else "changed"
        if not problem and to is not None:
            path = to / file.name
            problem = _put(source, path, file)
            kind = "in-the-way" if problem else "well"
        yield Taken(file=file, path=str(path), problem=problem, kind=kind)


def _difference(path: Path, file: PublishedFile) -> str:
    """What is wrong with a file; nothing where it is the one that was granted."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != file.size_bytes:
                return f"it has {size:,} bytes, and {file.size_bytes:,} were granted"
            digest = hashlib.sha256()
            while piece := stream.read(_PIECE_BYTES):
                digest.update(piece)
    except FileNotFoundError:
        return _GONE
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return "" if digest.hexdigest() == file.sha256 else "its content is not what was granted"


def _put(source: Path, path: Path, file: PublishedFile) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, path)
        except FileExistsError:
            return "another file is there already" if _difference(path, file) else ""
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            _copy(source, path)
    except FileExistsError:
        return "another file is there already"
    except OSError as error:
        return f"it cannot be written: {error.strerror}"
    return ""


def _copy(source: Path, path: Path) -> None:
    """Copy a file so that it appears whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    os.close(handle)
    draft = Path(name)
    try:
        shutil.copy2(source, draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
