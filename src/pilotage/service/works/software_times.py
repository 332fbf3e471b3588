"""How long described software took, in any folder and document, for plans that know no run time themselves."""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.language.expansion.software import find_software
from pilotage.model.jobs.definition import Definition, Package
from pilotage.ports import ResultsIndex

_ANY_FOLDER = ""
_ALL = ""  # activities


def software_of(definition: Definition, package: Package) -> str:
    """The software that a package runs, with versions; empty if it also runs something that is not described.

    A plain command is no name to go by: what `python3` takes depends on the script.
    """
    if not definition.software:
        return ""
    found = [find_software(definition, binary) for binary in package.binaries]
    if not found or any(each is None for each in found):
        return ""
    return ", ".join(f"{each.id}/{each.version}" for each in found if each is not None)


def note_software_times(index: ResultsIndex, times: Mapping[str, tuple[int, float]]) -> None:
    """Record how long packages took: for each software their number and their total seconds."""
    for software, spent in times.items():
        index.note_times(_ANY_FOLDER, _document(software), {_ALL: spent})


def software_seconds(index: ResultsIndex, software: str) -> float | None:
    """The mean seconds of a package that runs a software; None if none has."""
    return index.mean_seconds(_ANY_FOLDER, _document(software)).get(_ALL) if software else None


def _document(software: str) -> str:
    return f"software {software}"  # no job has a name with a blank
