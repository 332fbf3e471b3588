"""Reads the settings: the system's file, the user's, the project's, the environment, then the flags; the last one wins.

Who starts the program gives the environment and the folder, so that nothing here depends on where a test runs.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from pilotage.model.configuration import Settings
from pilotage.model.configuration_layers import (
    Said,
    SettingFault,
    said_in_environment,
    said_in_file,
    said_in_flags,
    settle,
)
from pilotage.model.journal_address import parse_journal_address

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
