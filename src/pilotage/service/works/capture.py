"""Captures the files that a job brings along: executables, scripts and small inputs, stored once by content.

This runs where the document is, before submission. It examines only words that are the same for every package of a
template; for a program or script that varies, only its few different values: a million packages cost no more than one.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from pilotage.language import Expansion
from pilotage.language.expansion.blocks import Block
from pilotage.language.named_files import NamesMade, blocks_of, differing_of, input_names, named_by, names_read
from pilotage.model.errors import PilotageError
from pilotage.model.jobs.definition import Definition
from pilotage.model.jobs.submission import Captured

INPUT_BYTES_MAX = 64 * 2**10
"""A larger input is not captured: it is read in place."""
INPUTS_MAX = 1000
INPUTS_BYTES_MAX = 16 * 2**20
"""The most inputs, and the most bytes of them, to capture; the others are read in place."""
PROGRAM_BYTES_MAX = 16 * 2**20
"""A larger program or script is identified by its checksum, and read from its folder."""
SCRIPTS_BYTES_MAX = 64 * 2**20
"""The most bytes of varying programs and scripts to capture."""


class MissingInput(PilotageError):
    """An input of a job does not exist where the document is."""


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """A regular file below the document's folder."""

    size_bytes: int
    executable: bool


class Files(Protocol):
    """The document's folder, for capturing files."""

    def find(self, name: str) -> FoundFile | None:
        """A regular file by its name in the tree; None if there is none, or it leads out of the folder."""
        ...

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file, in pieces."""
        ...


class DiskFiles:
    """The document's folder on disk."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def find(self, name: str) -> FoundFile | None:
        """A regular file; a link is read as the file it leads to."""
        try:
            found = (self._folder / name).stat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return FoundFile(size_bytes=found.st_size, executable=bool(found.st_mode & 0o111))

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content, a mebibyte at a time."""
        with (self._folder / name).open("rb") as file:
            while piece := file.read(2**20):
                yield piece


Keep = Callable[[bytes], str]
"""Stores bytes and returns their sha256."""


def capture(expansion: Expansion, files: Files, keep: Keep) -> dict[str, Captured]:
    """Store the files that a job brings along, with `keep`; returns their descriptions by name."""
    made = NamesMade(expansion)
    found = _programs(expansion, files, keep, made)
    count, size_bytes = 0, 0
    for name in input_names(expansion):
        if count >= INPUTS_MAX or size_bytes >= INPUTS_BYTES_MAX:
            break
        file = files.find(name) if name not in found else None
        if file is None or file.size_bytes > min(INPUT_BYTES_MAX, INPUTS_BYTES_MAX - size_bytes) or name in made:
            continue
        found[name] = _captured(name, file, files, keep, content=True)
        count += 1
        size_bytes += file.size_bytes
    return found


def capture_everything(expansion: Expansion, files: Files, keep: Keep) -> dict[str, Captured]:
    """Describe every file that a job reads, for a service that does not see its folder.

    Programs and scripts are stored with `keep`, as far as `capture` does; the content of all others is yet to be sent.
    Raises `MissingInput`.
    """
    made = NamesMade(expansion)
    found = _programs(expansion, files, keep, made)
    for name in dict.fromkeys(names_read(expansion)):
        if name in found or name in made:
            continue
        file = files.find(name)
        if file is None:
            raise MissingInput(
                "this input does not exist, or is not a regular file",
                subject=name,
                next_step="the service does not see this folder: all inputs have to be here, to be sent",
            )
        found[name] = _captured(name, file, files, keep, content=False)
    return found


def _programs(expansion: Expansion, files: Files, keep: Keep, made: NamesMade) -> dict[str, Captured]:
    found: dict[str, Captured] = {}
    for name in dict.fromkeys(name for block in blocks_of(expansion) for name in named_by(block, expansion.definition)):
        file = files.find(name)
        if file is not None and name not in made:
            found[name] = _captured(name, file, files, keep, content=file.size_bytes <= PROGRAM_BYTES_MAX)
    size_bytes = 0
    for name in dict.fromkeys(
        name for block in blocks_of(expansion) for name in _differing(block, expansion.definition)
    ):
        file = files.find(name) if name not in found else None
        limit_bytes = min(PROGRAM_BYTES_MAX, SCRIPTS_BYTES_MAX - size_bytes)
        if file is not None and file.size_bytes <= limit_bytes and name not in made:
            found[name] = _captured(name, file, files, keep, content=True)
            size_bytes += file.size_bytes
    return found


def _differing(block: Block, definition: Definition) -> Iterator[str]:
    for each in differing_of(block, definition):
        yield from each.names.values()


def _captured(name: str, file: FoundFile, files: Files, keep: Keep, *, content: bool) -> Captured:
    if content:
        data = b"".join(files.pieces(name))
        return Captured(sha256=keep(data), size_bytes=len(data), executable=file.executable)
    hashed, size_bytes = hashlib.sha256(), 0
    for piece in files.pieces(name):
        hashed.update(piece)
        size_bytes += len(piece)
    return Captured(sha256=hashed.hexdigest(), size_bytes=size_bytes, executable=file.executable, content=False)
