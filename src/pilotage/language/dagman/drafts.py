"""A draft is a package in the making: its files are still plain paths, and nothing is known of the other packages."""

from __future__ import annotations

import msgspec

from pilotage.language.dagman.submit import Origin
from pilotage.model.definition import Package


class DraftFile(msgspec.Struct, frozen=True):
    """A file that a node needs or makes, by its path below the DAG's folder, or below a folder or URL elsewhere."""

    path: str
    origin: Origin
    locator: str = ""


class Draft(msgspec.Struct, kw_only=True):
    """What one queued job of a node becomes."""

    node: int
    package: Package
    origin: Origin
    command: tuple[str, ...] = ()
    inputs: list[DraftFile] = []
    outputs: list[DraftFile] = []
    stdin: DraftFile | None = None
    stdout: DraftFile | None = None
    stderr: DraftFile | None = None

    def needed(self) -> list[DraftFile]:
        """All files it needs from the DAG's folder."""
        found = [*self.inputs, self.stdin] if self.stdin is not None else self.inputs
        return [file for file in found if not file.locator]

    def made(self) -> list[DraftFile]:
        """All files it makes, its standard streams included."""
        return [*self.outputs, *(stream for stream in (self.stdout, self.stderr) if stream is not None)]
