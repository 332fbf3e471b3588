"""Paths of a DAG: seen from the folder that a splice, a node or a description stands in.

A path may lead anywhere, as HTCondor allows; what it leads to must be a file that can be read.
"""

from __future__ import annotations

import posixpath

from pilotage.language.folder import Folder
from pilotage.language.text.paths import tidy_name
from pilotage.language.text.tree import Report


def located(directory: str, path: str) -> str:
    """A path seen from a folder, in its shortest form; an empty one is the folder itself."""
    return tidy_name(posixpath.join(directory, path)) if path else directory


def is_outside(path: str) -> bool:
    """Whether a path leads out of the DAG's folder."""
    return path.startswith(("/", "../")) or path == ".."


def program(directory: str, path: str) -> str:
    """A program as a command that is never looked for on the search path."""
    where = located(directory, path) if directory else path
    return where if "/" in where else f"./{where}"


def told(message: str, report: Report, *, file: str) -> str:
    """A message as it may be told: of a file outside the DAG's folder, which may be anybody's, no word is repeated."""
    if file in ("", report.file) or not is_outside(file):
        return message
    expected, found, _ = message.partition(", found ")
    said = expected if found else "this line cannot be understood"
    return f"{said}; what was found is not shown, the file is outside the DAG's folder"


def found_instead(folder: Folder, path: str) -> str:
    """What there is where a file to read was expected: nothing, or a folder, a pipe, a file that may not be read."""
    return "something that cannot be read as a file" if folder.exists(path) else "none"
