"""The services of a folder: in its own state folder, or in one above."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.app.book import state_folders
from pilotage.client.finding import Address, address_in
from pilotage.service.announcement import find_service

if TYPE_CHECKING:
    from pilotage.client.server import Server

INSIDE_VARIABLE = "PILOTAGE_SCRATCH"
"""Set for the programs of a package: what they run is no business of the service that runs them."""


def nearest_address(folder: Path) -> Address | None:
    """The service of a folder or above it: one that runs, or else the nearest that has ended; None where none ever was."""
    found = None
    for path in state_paths(folder, os.environ):
        address = address_in(path)
        if address is not None and address.runs:
            return address
        found = found or address
    return found


def running_service(
    folder: Path, *, environment: Mapping[str, str] | None = None, answer_seconds: float | None = None
) -> Server | None:
    """A connection to the service that runs the jobs of a folder, if one does; none is started."""
    for path in state_paths(folder, os.environ if environment is None else environment):
        address, found = address_in(path), find_service(path)
        if address is not None and address.runs and found is not None and found.socket:
            return address.server(answer_seconds=answer_seconds)
    return None


def state_paths(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The state folders that concern a folder, its own first; of a package's program, its own only."""
    for found in state_folders(environment=environment, folder=folder):
        yield found.path
        if INSIDE_VARIABLE in environment:
            return
