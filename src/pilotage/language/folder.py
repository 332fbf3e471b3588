"""The folder of a document: the only way in which this package reads files.

Paths are relative to the folder. `DiskFolder` reads the disk; `MemoryFolder` is for tests and documents made in Python.
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
    """Read access to the folder of a document."""

    def read(self, path: str) -> bytes | None:
        """The content of a file, or None if it does not exist or cannot be read."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """The names of matching files, sorted; hidden ones only if the pattern names them."""
        ...


class NotingFolder:
    """Wraps a folder and records which files were read."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.names: set[str] = set()

    def read(self, path: str) -> bytes | None:
        """The content of a file, which is recorded."""
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
    """Outputs of an earlier job: its id, the matching names, sorted, and the folder that they begin with, if any."""

    job: str
    names: list[str]
    folder: str = ""


class CachedFile(NamedTuple):
    """A file in the cache of a site."""

    locator: str
    size_bytes: int


class EarlierJobs(Protocol):
    """Access to the outputs of earlier jobs, and to the files that are in the caches of sites."""

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """The granted outputs of a job, found by id or name, that match a pattern; None for an unknown job.

        Raises `PilotageError` if its outputs cannot be used.
        """
        ...

    def cached_files(self, site: str) -> list[CachedFile] | None:
        """The files in the cache of a site; None for an unknown site. Raises `PilotageError` if they cannot be known."""
        ...


class NoEarlierJobs:
    """Knows no earlier jobs, for use without a book."""

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """None: the job is unknown."""
        return None

    def cached_files(self, site: str) -> list[CachedFile] | None:
        """None: the site is unknown."""
        return None


class DiskFolder:
    """A folder on disk. Each directory is listed once, so a thousand look-ups in it cost one listing."""

    def __init__(self, root: str | Path) -> None:
        """Read below `root`."""
        self.root = Path(root)
        self._listings: dict[str, dict[str, bool]] = {}
        self._links: set[str] = set()

    def read(self, path: str) -> bytes | None:
        """The content of a file, or None if it cannot be read."""
        try:
            found = self.root / path
            # Reading a pipe could block for ever, and a device may never end.
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
        """Whether there is such a folder, from the listing of its parent."""
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
    """A folder in memory: a mapping from names to contents."""

    def __init__(self, files: Mapping[str, bytes | str] | Iterable[str] = ()) -> None:
        """Hold the given files; files given only by name are empty."""
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
        # `**` inside a name crosses folders: match the pattern against the whole name of each file.
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
    """A folder and all folders below it, without hidden ones and links, which may lead back up."""
    found, waiting = [], [place]
    while waiting:
        current = waiting.pop()
        found.append(current)
        folders = [_join(current, name) for name, is_folder in listing(current).items() if is_folder and name[0] != "."]
        waiting.extend(folder for folder in folders if folder not in links)
    return found


def _join(place: str, name: str) -> str:
    return f"{place}{name}" if place in ("", "/") else f"{place}/{name}"
