"""The other documents of a folder, as they are now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pilotage.language import DiskFolder, LoadedJob, load
from pilotage.language.folder import EarlierJobs
from pilotage.model.errors import PilotageError

_HEAD_BYTES = 64 * 1024  # how far into a file to look for the beginning of a document


def documents_beside(folder: str, document: str, *, jobs: EarlierJobs) -> Iterator[tuple[str, LoadedJob]]:
    """The other documents of a folder that can be loaded, by name; `jobs` finds earlier jobs that they refer to."""
    disk = DiskFolder(folder)
    for name in names_beside(folder, document):
        data = disk.read(name)
        if data is None:
            continue
        try:
            yield name, load(data, file=name, folder=disk, jobs=jobs).job()
        except PilotageError:  # the book knows what its latest run used
            continue


def names_beside(folder: str, document: str) -> Iterator[str]:
    """Files of a folder that look like documents of ours, except one."""
    try:
        paths = sorted(Path(folder).iterdir())
    except OSError:
        return  # the folder cannot be read
    for path in paths:
        if path.suffix in (".yaml", ".yml") and path.name != document and _begins_like_a_document(path):
            yield path.name


def _begins_like_a_document(path: Path) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    with path.open("rb") as file:
        return b"pilotage:" in file.read(_HEAD_BYTES)
