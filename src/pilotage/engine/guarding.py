"""Who is asked before what an attempt made is granted, where jobs that are worked on at once may make the same files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from pilotage.model.exchange import AttemptRef
from pilotage.model.payloads import OutputFile


class Guard(Protocol):
    """Knows which files jobs may not have. What it says of an attempt is written down, as a grant or a hold."""

    @property
    def contested(self) -> Collection[str]:
        """The jobs whose grants it is asked about; for all others nothing is asked, and nothing told."""
        ...

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """An attempt of a contested job has staged these files."""
        ...

    def refusal(self, ref: AttemptRef) -> str:
        """Why the files of an attempt cannot get their names now; empty where they can, and then they are its own."""
        ...


class NoGuard:
    """Nothing is contested."""

    contested: Collection[str] = ()

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """Nobody says this."""

    def refusal(self, ref: AttemptRef) -> str:
        """Nobody asks."""
        return ""
