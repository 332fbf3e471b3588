"""Where `sites.yaml` is, what is in it, and how it is replaced: the file of the project, or else the user's own."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pilotage.adapters.settings_files import settings_files
from pilotage.model.errors import PilotageError

SITES_FILE = "sites.yaml"
SITES_BYTES_MAX = 4 * 1024 * 1024

Mark = tuple[str, int, int, int]
"""What tells one state of the file from another: its path, inode, size and time."""


class SitesFileError(PilotageError):
    """The file of sites cannot be read or written. The message says why."""


class Kept(NamedTuple):
    """A file as it was at one moment."""

    file: Path
    mark: Mark
    content: bytes


def sites_file(*, environment: Mapping[str, str], folder: Path, named: str = "") -> Path:
    """The file that holds for a folder: the one that is named, else the project's, else the user's.

    Where there is none, it is where the project's would be.
    """
    if named:
        home = environment.get("HOME", "")
        return folder / (home + named[1:] if home and (named == "~" or named.startswith("~/")) else named)
    # The strongest first; the system's own are no place for one's accounts.
    places = [
        file.with_name(SITES_FILE) for file in reversed([*settings_files(environment=environment, folder=folder)])
    ]
    known = places[: 2 if environment.get("HOME") or environment.get("XDG_CONFIG_HOME") else 1]
    return next((file for file in known if file.is_file()), places[0])


def mark_of(file: Path) -> Mark | None:
    """The state that a file is in; None where there is none."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _fault(file, error) from error
    return str(file), found.st_ino, found.st_size, found.st_mtime_ns


def read_file(file: Path) -> Kept | None:
    """What is in a file; None where there is none. Raises `SitesFileError`."""
    mark = mark_of(file)  # before it is read: what is written meanwhile is read again
    if mark is None:
        return None
    try:
        with file.open("rb") as stream:
            content = stream.read(SITES_BYTES_MAX + 1)
        if len(content) > SITES_BYTES_MAX:
            raise OSError(errno.EFBIG, f"larger than {SITES_BYTES_MAX} bytes")
    except OSError as error:
        raise _fault(file, error) from error
    return Kept(file, mark, content)


def write_file(file: Path, text: str, *, before: Kept | None) -> None:
    """Replace a file as a whole; not where somebody changed it since it was read as `before`."""
    if mark_of(file) != (before.mark if before is not None else None):
        raise SitesFileError("somebody has changed it meanwhile", subject=str(file), next_step="say it again")
    target = Path(os.path.realpath(file))  # a link stays a link
    draft = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if before is not None:
            draft.chmod(target.stat().st_mode & 0o777)
        draft.replace(target)
    except OSError as error:
        raise _fault(file, error) from error
    finally:
        draft.unlink(missing_ok=True)


def _fault(file: Path, error: OSError) -> SitesFileError:
    return SitesFileError("cannot be used", subject=str(file), got=(error.strerror or str(error)).lower())
