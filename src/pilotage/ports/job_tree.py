"""The tree of a job: the files in its document's folder, and the staged outputs of attempts that wait for a grant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef


class StoreError(PilotageError):
    """A file could not be read or written; `reason` says in a word why, for counts and scores."""

    reason = "store-error"


class NotOurs(StoreError):
    """A file that pilotage did not make has the name of an output; it was not overwritten."""


class Rival(NotOurs):
    """Another job, unfinished at the same time, made a different file of this name; neither replaces the other's."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file of a job's tree as it is now."""

    name: str
    size_bytes: int
    modified_ns: int
    inode: int
    changed_ns: int = 0  # last change of the file or of its links; cannot be set back; 0: unknown

    def is_like(self, other: StoredFile) -> bool:
        """Whether this is the same file with the same size and time; the number of its hard links does not count."""
        mine = (self.name, self.size_bytes, self.modified_ns, self.inode)
        return mine == (other.name, other.size_bytes, other.modified_ns, other.inode)


InTheWay = Literal["refuse", "set-aside"]
"""What to do when a file that pilotage did not make has the name of an output: refuse, or rename that file."""


class Mark(msgspec.Struct, frozen=True):
    """Proves to an agent that a path on its node is the store's own folder, and not another of the same name."""

    text: str = ""  # the line in the mark file beside the staged outputs; empty: it could not be written
    in_folder: str = ""  # name of the same mark in the tree, if outputs are staged outside the tree


class JobTree(Protocol):
    """The files of jobs: a tree for each document's folder, and the staged outputs of its attempts."""

    def staged_folder(self, folder: str, job: str) -> str:
        """The folder for staged outputs of a job, on the file system of its tree; created if missing."""
        ...

    def mark(self, folder: str, job: str) -> Mark:
        """Write the mark files of a job. They stay until the job is forgotten; writing them again changes nothing."""
        ...

    def kept_folder(self, job: str) -> str:
        """Where agents next to the store keep outputs of finished binaries for a later attempt; creates nothing."""
        ...

    def publish(
        self,
        folder: str,
        ref: AttemptRef,
        manifest: Sequence[OutputFile],
        *,
        is_rival: Callable[[str], bool] | None = None,
        in_the_way: InTheWay = "refuse",
    ) -> None:
        """Move the staged files of a granted attempt to their names. Doing it again changes nothing.

        A file that pilotage made is replaced, unless `is_rival` says that the job which made it must not lose it. A
        file that pilotage did not make is renamed if `in_the_way` says so. Raises `NotOurs` for a file in the way, and
        `StoreError` if the file system refuses.
        """
        ...

    def check(
        self,
        folder: str,
        manifest: Sequence[OutputFile],
        *,
        is_rival: Callable[[str], bool] | None = None,
        in_the_way: InTheWay = "refuse",
    ) -> None:
        """Raise what `publish` would raise for the files that have these names now."""
        ...

    def discard(self, folder: str, ref: AttemptRef, count: int) -> None:
        """Remove the staged files of an attempt whose result is not used."""
        ...

    def staged_file(self, folder: str, ref: AttemptRef, number: int) -> str:
        """The path of a staged output, by its number in the manifest."""
        ...

    def staged(self, folder: str, job: str) -> list[tuple[str, int]]:
        """The packages and attempts that have staged files; read when a service starts."""
        ...

    def look_up(self, folder: str, names: Collection[str]) -> dict[str, StoredFile]:
        """Those of the named files that exist."""
        ...

    def checksum(self, folder: str, name: str) -> str | None:
        """The sha256 of a file, cached while its size, time and inode stay the same; None if the file is gone."""
        ...

    def read(self, folder: str, name: str, *, offset: int, size_bytes: int) -> bytes:
        """Read part of a file."""
        ...

    def write_staged(self, folder: str, ref: AttemptRef, *, number: int, offset: int, data: bytes) -> None:
        """Write part of a staged file, for an agent that cannot see the folder."""
        ...

    def is_linked(self, folder: str, name: str) -> bool:
        """Whether a file is a symbolic link, or lies in a folder that is one."""
        ...

    def remove(self, folder: str, name: str, *, sha256: str) -> bool:
        """Remove a file if it still has this checksum. Symbolic links are neither followed nor removed.

        Raises `StoreError` if the file system refuses.
        """
        ...

    def remove_empty(self, folder: str, names: Collection[str]) -> list[str]:
        """Remove the folders of these files that are empty now; return their names."""
        ...

    def is_ours(self, folder: str, files: Collection[StoredFile]) -> dict[str, bool]:
        """Which of these files pilotage made, judged by their present content."""
        ...

    def forget(self, folder: str, job: str) -> None:
        """Remove all staged files of a finished job."""
        ...

    def close(self) -> None:
        """Write cached checksums to disk and close."""
        ...
