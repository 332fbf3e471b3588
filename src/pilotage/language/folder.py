"""Where a document stands: the one place at which the language looks at files, behind a small port.

Paths are relative to the document's folder. `DiskFolder` is the real thing; `MemoryFolder` is its twin for tests and
for documents made in Python.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from pilotage.language.text.patterns import is_pattern, matches, pattern_expression

FILE_BYTES_MAX = 256 * 2**20


class Folder(Protocol):
    """What the language may ask of the document's surroundings."""

    def read(self, path: str) -> bytes | None:
        """The content of a file, or None where there is no such readable file."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """The names of the files that match, sorted; folders do not count, and hidden ones only when asked for."""
        ...


class NotingFolder:
    """Another folder, and which of its files were read."""

    def __init__(self, folder: Folder) -> None:
        """Ask this one."""
        self._folder = folder
        self.names: set[str] = set()

    def read(self, path: str) -> bytes | None:
        """The content of a file, which is noted."""
        self.names.add(path)
        return self._folder.read(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return self._folder.exists(path)

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder."""
        return self._folder.is_folder(path)

    def glob(self, pattern: str) -> list[str]:
        """The names of the files that match."""
        return self._folder.glob(pattern)


class EarlierOutputs(NamedTuple):
    """Outputs of a job that ran before: its id, and the names that match, sorted."""

    job: str
    names: list[str]


class EarlierJobs(Protocol):
    """What the language may ask about jobs that ran before."""

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """The granted outputs of a job, by its id or its name, that match; None where the job is not known.

        Raises `PilotageError` where its outputs cannot be taken.
        """
        ...


class NoEarlierJobs:
    """Knows no job: for use where no book is at hand."""

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """Answer that there is no such job."""
        return None


class DiskFolder:
    """A folder on disk. Each directory is listed once: a thousand look-ups in one directory cost one listing."""

    def __init__(self, root: str | Path) -> None:
        """Look below `root`; nothing is read yet."""
        self.root = Path(root)
        self._listings: dict[str, dict[str, bool]] = {}
        self._links: set[str] = set()

    def read(self, path: str) -> bytes | None:
        """The content of a file, or None where it cannot be read."""
        try:
            found = self.root / path
            # A pipe would wait for a writer for ever, and a device may never end.
            if not found.is_file() or found.stat().st_size > FILE_BYTES_MAX:
                return None
            return found.read_bytes()
        except (OSError, ValueError):
            return None

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder, from the listing of its directory."""
        if "\0" in path:
            return False
        parent, _, name = path.rstrip("/").rpartition("/")
        if path.startswith("/") and not parent:
            parent = "/"
        return name in ("", ".", "..") or name in self._listing(parent)

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder, from the listing of the one that it is in."""
        if "\0" in path or path.startswith("/"):
            return False
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._listing(parent).get(name, False)

    def glob(self, pattern: str) -> list[str]:
        """The names of the files that match, sorted."""
        return _glob(pattern, self._listing, self._links)

    def _listing(self, directory: str) -> dict[str, bool]:
        """Names in a directory → whether each is a folder."""
        known = self._listings.get(directory)
        if known is None:
            try:
                with os.scandir(self.root / directory) as entries:
                    known = {}
                    for entry in entries:
                        known[entry.name] = entry.is_dir()
                        if entry.is_symlink():
                            self._links.add(_join(directory, entry.name))
            except (OSError, ValueError):
                known = {}
            self._listings[directory] = known
        return known


class MemoryFolder:
    """A folder that is only a mapping of names to contents."""

    def __init__(self, files: Mapping[str, bytes | str] | Iterable[str] = ()) -> None:
        """Hold the given files; from bare names, empty ones."""
        given = files if isinstance(files, Mapping) else dict.fromkeys(files, b"")
        self._files = {name: data.encode() if isinstance(data, str) else data for name, data in given.items()}
        self._listings: dict[str, dict[str, bool]] = {"": {}}
        for name in self._files:
            parts = name.split("/")
            for depth, part in enumerate(parts):
                directory = self._listings.setdefault("/".join(parts[:depth]), {})
                directory[part] = depth < len(parts) - 1

    def read(self, path: str) -> bytes | None:
        """The content of a file, or None."""
        return self._files.get(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return path in self._files or path in self._listings

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder."""
        return path in self._listings and path not in self._files

    def glob(self, pattern: str) -> list[str]:
        """The names of the files that match, sorted."""
        return _glob(pattern, lambda directory: self._listings.get(directory, {}), frozenset())


def _glob(pattern: str, listing: Callable[[str], dict[str, bool]], links: Collection[str]) -> list[str]:
    """Walk the pattern part by part over directory listings."""
    absolute = pattern.startswith("/")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if any("**" in part and part.strip("*") for part in parts):
        # Stars that cross folders inside a name: take every file, and hold the whole name against the pattern.
        everything = _glob("/**" if absolute else "**", listing, links)
        return [name for name in everything if matches("/".join(["", *parts] if absolute else parts), name)]
    parts = ["**" if part.startswith("**") else part for part in parts]
    places = ["/" if absolute else ""]
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        found: list[str] = []
        for place in places:
            if part == "**":
                found.extend(_below(place, listing, links))
            else:
                found.extend(_join(place, name) for name in _matching(part, listing(place), files=last))
        if part == "**" and last:
            found = [_join(place, name) for place in found for name in _matching("*", listing(place), files=True)]
        places = found
    return sorted(set(places)) if parts else []


def _matching(part: str, entries: dict[str, bool], *, files: bool) -> list[str]:
    if not is_pattern(part):
        return [part] if part in entries and entries[part] is not files else ([part] if part == ".." else [])
    expression = re.compile(pattern_expression(part), re.DOTALL)
    hidden = part.startswith(".")
    return [
        name
        for name, is_folder in entries.items()
        if is_folder is not files and (hidden or not name.startswith(".")) and expression.fullmatch(name)
    ]


def _below(place: str, listing: Callable[[str], dict[str, bool]], links: Collection[str]) -> list[str]:
    """A folder and every folder below it; hidden ones are left out, and links, which may lead back up."""
    found, waiting = [], [place]
    while waiting:
        current = waiting.pop()
        found.append(current)
        folders = [_join(current, name) for name, is_folder in listing(current).items() if is_folder and name[0] != "."]
        waiting.extend(folder for folder in folders if folder not in links)
    return found


def _join(place: str, name: str) -> str:
    return f"{place}{name}" if place in ("", "/") else f"{place}/{name}"
