"""Reads the settings: the system's file, the user's, the project's, the environment, then the flags; the last one wins.

The caller passes the environment and the folder, so that the result does not depend on where a test runs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.settings.layers import (
    GivenSetting,
    SettingFault,
    settings_in_environment,
    settings_in_file,
    settings_in_flags,
    settle,
)
from pilotage.model.settings.settings import Settings, parse_journal_address

SETTINGS_FILE = "pilotage.toml"
STATE_FOLDER = ".pilotage"
SYSTEM_FOLDERS = "/etc/xdg"
SETTINGS_BYTES_MAX = 1024 * 1024


def load_settings(*, environment: Mapping[str, str], folder: Path, flags: Mapping[str, object]) -> Settings:
    """The settings for a program started in `folder`: reads and checks all sources, and merges them.

    `flags` has the names of settings (`"service.port"`); None is a flag that was not given. The folder of a SQLite
    journal is made absolute, relative to `folder`, so that the value means the same everywhere.
    """
    given, faults = _gathered(environment=environment, folder=folder, flags=flags)
    settings = settle(given, faults=faults)
    return _with_absolute_journal(settings, environment=environment, folder=folder)


def is_set(name: str, *, environment: Mapping[str, str], folder: Path, flags: Mapping[str, object]) -> bool:
    """Tell whether any source sets a setting (`"service.port"`), or it has its default."""
    given, _ = _gathered(environment=environment, folder=folder, flags=flags)
    return any(each.name == name for each in given)


def _gathered(
    *, environment: Mapping[str, str], folder: Path, flags: Mapping[str, object]
) -> tuple[list[GivenSetting], list[SettingFault]]:
    """The settings of every source, the weakest first, and the faults of the files."""
    given: list[GivenSetting] = []
    faults: list[SettingFault] = []
    for file in settings_files(environment=environment, folder=folder):
        try:
            content = _read(file)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR):
                continue
            faults.append(SettingFault(origin=str(file), name="", message=_reason(error)))
        else:
            given += settings_in_file(content, origin=str(file))
    given += settings_in_environment(environment)
    given += settings_in_flags(flags)
    return given, faults


def settings_files(*, environment: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """The possible settings files, the weakest first, whether they exist or not (XDG Base Directory Specification)."""
    # The first of XDG_CONFIG_DIRS has the highest precedence, so they are read from the last.
    for system in reversed((environment.get("XDG_CONFIG_DIRS") or SYSTEM_FOLDERS).split(":")):
        if system.startswith("/"):
            yield Path(system) / "pilotage" / SETTINGS_FILE
    user = environment.get("XDG_CONFIG_HOME", "")
    if not user.startswith("/") and (home := environment.get("HOME")):
        user = f"{home}/.config"
    if user.startswith("/"):
        yield Path(user) / "pilotage" / SETTINGS_FILE
    yield folder / SETTINGS_FILE


def state_folder(settings: Settings, *, folder: Path) -> Path:
    """The folder of the program's own state, such as the local token: beside a SQLite book, else in the project."""
    address = settings.journal.address
    return folder / (address.folder if address.kind == "sqlite" else STATE_FOLDER)


def _read(file: Path) -> dict[str, object]:
    with file.open("rb") as stream:
        content = stream.read(SETTINGS_BYTES_MAX + 1)
    if len(content) > SETTINGS_BYTES_MAX:
        raise OSError(errno.EFBIG, f"larger than {SETTINGS_BYTES_MAX} bytes")
    import tomllib  # most folders have no settings file

    return tomllib.loads(content.decode("utf-8"))


def _reason(error: OSError | ValueError) -> str:
    match error:
        case OSError():
            return f"cannot be read: {error.strerror}"
        case UnicodeDecodeError():
            return f"is not UTF-8: byte {error.start + 1} is {error.object[error.start]:#04x}"
        case _:
            return f"is not TOML: {error}"


def _with_absolute_journal(settings: Settings, *, environment: Mapping[str, str], folder: Path) -> Settings:
    address = parse_journal_address(settings.journal.url)
    if address.kind != "sqlite":
        return msgspec.structs.replace(settings, journal=msgspec.structs.replace(settings.journal, url=address.url))
    path = address.folder
    home = environment.get("HOME", "")
    # No shell expands a tilde after `sqlite:`, and a folder named ~ is never meant.
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    url = f"sqlite:{(folder / path).absolute()}"
    return msgspec.structs.replace(settings, journal=msgspec.structs.replace(settings.journal, url=url))


# Finds, reads and replaces `sites.yaml`: the file of the project, or else the user's own.

SITES_FILE = "sites.yaml"
SITES_BYTES_MAX = 4 * 1024 * 1024

FileStamp = tuple[str, int, int, int]
"""Identifies a version of the file: its path, inode, size and time."""


class SitesFileError(PilotageError):
    """The sites file cannot be read or written. The message says why."""


class SitesFileVersion(NamedTuple):
    """A version of the sites file."""

    file: Path
    stamp: FileStamp
    content: bytes


def sites_file(*, environment: Mapping[str, str], folder: Path, named: str = "") -> Path:
    """The sites file for a folder: the named one, else the project's, else the user's.

    If none exists, the path of the project's.
    """
    if named:
        home = environment.get("HOME", "")
        return folder / (home + named[1:] if home and (named == "~" or named.startswith("~/")) else named)
    # The strongest first; system folders are no place for personal accounts.
    places = [
        file.with_name(SITES_FILE) for file in reversed([*settings_files(environment=environment, folder=folder)])
    ]
    known = places[: 2 if environment.get("HOME") or environment.get("XDG_CONFIG_HOME") else 1]
    return next((file for file in known if file.is_file()), places[0])


def stamp_of(file: Path) -> FileStamp | None:
    """The version of a file; None if it does not exist."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _fault(file, error) from error
    return str(file), found.st_ino, found.st_size, found.st_mtime_ns


def read_file(file: Path) -> SitesFileVersion | None:
    """Read the sites file; None if it does not exist. Raises `SitesFileError`."""
    stamp = stamp_of(file)  # before the read: a change meanwhile is read again
    if stamp is None:
        return None
    try:
        with file.open("rb") as stream:
            content = stream.read(SITES_BYTES_MAX + 1)
        if len(content) > SITES_BYTES_MAX:
            raise OSError(errno.EFBIG, f"larger than {SITES_BYTES_MAX} bytes")
    except OSError as error:
        raise _fault(file, error) from error
    return SitesFileVersion(file, stamp, content)


def write_file(file: Path, text: str, *, before: SitesFileVersion | None) -> None:
    """Replace a file atomically, unless it was changed since it was read as `before`."""
    if stamp_of(file) != (before.stamp if before is not None else None):
        raise SitesFileError("the file was changed meanwhile", subject=str(file), next_step="run the command again")
    target = Path(os.path.realpath(file))  # keep a symbolic link
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
