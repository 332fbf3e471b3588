"""Reads the settings: the system's file, the user's, the project's, the environment, then the flags; the last one wins.

Who starts the program gives the environment and the folder, so that nothing here depends on where a test runs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.settings.layers import Said, SettingFault, said_in_environment, said_in_file, said_in_flags, settle
from pilotage.model.settings.settings import Settings, parse_journal_address

SETTINGS_FILE = "pilotage.toml"
STATE_FOLDER = ".pilotage"
SYSTEM_FOLDERS = "/etc/xdg"
SETTINGS_BYTES_MAX = 1024 * 1024


def load_settings(*, environment: Mapping[str, str], folder: Path, flags: Mapping[str, object]) -> Settings:
    """The settings for a program started in `folder`: every source read, checked at once, and made one value.

    `flags` has the names of settings (`"service.port"`); None is a flag that was not given. A SQLite journal's folder
    is made absolute, from `folder`, so that the value means the same wherever it is handed to.
    """
    said, faults = _gathered(environment=environment, folder=folder, flags=flags)
    settings = settle(said, faults=faults)
    return _with_absolute_journal(settings, environment=environment, folder=folder)


def is_said(name: str, *, environment: Mapping[str, str], folder: Path, flags: Mapping[str, object]) -> bool:
    """Whether anybody gave a setting (`"service.port"`) a value, and it is not only as it is where nobody does."""
    said, _ = _gathered(environment=environment, folder=folder, flags=flags)
    return any(each.name == name for each in said)


def _gathered(
    *, environment: Mapping[str, str], folder: Path, flags: Mapping[str, object]
) -> tuple[list[Said], list[SettingFault]]:
    """What every source says, the weakest first, and what is wrong with the files."""
    said: list[Said] = []
    faults: list[SettingFault] = []
    for file in settings_files(environment=environment, folder=folder):
        try:
            content = _read(file)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR):
                continue
            faults.append(SettingFault(origin=str(file), name="", message=_reason(error)))
        else:
            said += said_in_file(content, origin=str(file))
    said += said_in_environment(environment)
    said += said_in_flags(flags)
    return said, faults


def settings_files(*, environment: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Where settings may stand, the weakest first, whether the files exist or not (XDG Base Directory Specification)."""
    # The first of XDG_CONFIG_DIRS is the most important one, so they are read from the last.
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
    """Where the program keeps what is its own, such as the local token: beside a SQLite book, else in the project."""
    address = settings.journal.address
    return folder / (address.folder if address.kind == "sqlite" else STATE_FOLDER)


def _read(file: Path) -> dict[str, object]:
    with file.open("rb") as stream:
        content = stream.read(SETTINGS_BYTES_MAX + 1)
    if len(content) > SETTINGS_BYTES_MAX:
        raise OSError(errno.EFBIG, f"larger than {SETTINGS_BYTES_MAX} bytes")
    import tomllib  # most folders have no settings of their own

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
    # No shell expands a tilde behind `sqlite:`, and nobody wants a folder called ~.
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    url = f"sqlite:{(folder / path).absolute()}"
    return msgspec.structs.replace(settings, journal=msgspec.structs.replace(settings.journal, url=url))


# Where `sites.yaml` is, what is in it, and how it is replaced: the file of the project, or else the user's own.

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
