"""The tree of a job: the files of a document's folder, and beside it the outputs that wait for a grant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef


class StoreError(PilotageError):
    """A file could not be read or written where the results are kept."""


class NotOurs(StoreError):
    """A file is in the way that this program did not make; nothing was written over it."""


class Rival(NotOurs):
    """Another job that was not over has made another file of a name; neither replaces what the other has made."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file of a job's tree as it is now."""

    name: str
    size_bytes: int
    modified_ns: int
    inode: int
    changed_ns: int = 0  # of the file or of its names: nobody can set it back; 0 where it is not known

    def is_like(self, other: StoredFile) -> bool:
        """Whether it is the same file with the same size and time, however many names it was given meanwhile."""
        mine = (self.name, self.size_bytes, self.modified_ns, self.inode)
        return mine == (other.name, other.size_bytes, other.modified_ns, other.inode)


InTheWay = Literal["refuse", "set-aside"]
"""What is done where an output needs the name of a file that is not ours: nothing, or that file gets another name."""


class Mark(msgspec.Struct, frozen=True):
    """By what an agent knows that a path of its node is the very folder of the store, and no other of that name."""

    text: str = ""  # a line of the mark beside the staged outputs; empty: none could be made
    in_folder: str = (
        ""  # the name in the tree of another that says the same, where the outputs are not staged in the tree
    )


class JobTree(Protocol):
    """The files of jobs: a tree for each document's folder, and the staged outputs of its attempts."""

    def staged_folder(self, folder: str, job: str) -> str:
        """Where attempts of a job put their outputs, on the file system of the tree; it is made where it is not there."""
        ...

    def mark(self, folder: str, job: str) -> Mark:
        """Make the marks of a job, which are there until it is forgotten; done again, they are the same."""
        ...

    def kept_folder(self, job: str) -> str:
        """Where agents beside the store keep what finished binaries made, for a later attempt; nothing is made."""
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
        """Put the staged files of a granted attempt under their names. Done again, it changes nothing.

        A file that we made is replaced, unless `is_rival` says of the job that made it that this must not be; what we
        did not make is set aside where that is wanted. Raises `NotOurs` where a file is in the way, `StoreError` where
        the system does not let it.
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
        """Raise what `publish` would raise for what is under the names of these files now."""
        ...

    def discard(self, folder: str, ref: AttemptRef, count: int) -> None:
        """Remove the staged files of an attempt that nobody wants."""
        ...

    def staged(self, folder: str, job: str) -> list[tuple[str, int]]:
        """The packages and attempts of which staged files are there, for a service that starts."""
        ...

    def look_up(self, folder: str, names: Collection[str]) -> dict[str, StoredFile]:
        """The files of a tree that exist, of those named."""
        ...

    def checksum(self, folder: str, name: str) -> str | None:
        """The sha256 of a file of a tree, remembered as long as its size, time and inode stay; None where it is gone."""
        ...

    def read(self, folder: str, name: str, *, offset: int, size_bytes: int) -> bytes:
        """A piece of a file of a tree."""
        ...

    def write_staged(self, folder: str, ref: AttemptRef, *, number: int, offset: int, data: bytes) -> None:
        """A piece of a staged file, from an agent that does not see the folder."""
        ...

    def is_linked(self, folder: str, name: str) -> bool:
        """Whether a file of a tree is a link, or is reached through a folder that is one."""
        ...

    def remove(self, folder: str, name: str, *, sha256: str) -> bool:
        """Remove a file of a tree if it is still the one that was made; no link is followed to it, nor is one removed.

        Raises `StoreError` where the system does not let it.
        """
        ...

    def remove_empty(self, folder: str, names: Collection[str]) -> list[str]:
        """Remove the folders of a tree that these names stood in, as far as they are empty now; the names of those."""
        ...

    def is_ours(self, folder: str, files: Collection[StoredFile]) -> dict[str, bool]:
        """Which of these files this program made, as they are now."""
        ...

    def forget(self, folder: str, job: str) -> None:
        """Remove everything that is still staged for a job that is over."""
        ...

    def close(self) -> None:
        """Hand over what is remembered of files; nothing more is asked."""
        ...
