"""Where the files of jobs are, and what was made before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef, LogText


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


class FileStore(Protocol):
    """Where the files of jobs are: a tree for each document's folder, and beside it what waits for a grant."""

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


class WorkFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a package's key is made of, field by field: a changed one can be named."""

    argv: str  # the beginning of the sha256 of each
    software: str
    environment: str
    outputs: str
    inputs: dict[str, str]  # name → the beginning of its sha256
    programs: dict[str, str] = {}  # what `software` is made of, likewise; it is not in the key, which has that
    variables: dict[str, str] = {}  # the same of `environment`


class MadeWork(msgspec.Struct, frozen=True, kw_only=True):
    """What was made once, by the key of what was asked."""

    key: str
    fields: WorkFields
    folder: str
    document: str  # the job's name, by which an earlier run of the same is found
    ref: AttemptRef
    manifest: tuple[OutputFile, ...]
    placed: dict[str, StoredFile] = {}  # inputs without a checksum, as they were when it was asked for; never stored


class MadeFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A content that was made under a name."""

    file: OutputFile
    job: str  # the last that made it; empty where none is known


class SeenFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file whose checksum is known, as long as it is this file."""

    file: StoredFile
    sha256: str
    used_ns: int = 0  # until when attempts linked and unlinked files of its folder

    def is_still(self, now: StoredFile) -> bool:
        """Whether the file is as it was. A change whose time was set back shows in `changed_ns`.

        Attempts change that too, by the links that they are given: what they used since is believed by its other marks.
        """
        if not self.file.is_like(now):
            return False
        return self.file.changed_ns in (0, now.changed_ns) or now.changed_ns <= self.used_ns


class WorkIndex(Protocol):
    """What was made before, who made which file, and the logs; a few files however many packages there are."""

    @property
    def beginnings(self) -> int:
        """How often it was begun anew since it was opened: what it knew was gone each time."""
        ...

    def claim(self, folder: str, job: str, files: Sequence[OutputFile]) -> None:
        """Remember that these contents, which a job was granted, are ours."""
        ...

    def keep(self, made: Sequence[MadeWork]) -> None:
        """Remember granted attempts, and that their files are ours."""
        ...

    def find(self, folder: str, keys: Collection[str]) -> dict[str, MadeWork]:
        """What was made in a folder under these keys."""
        ...

    def latest(self, folder: str, document: str, packages: Collection[str]) -> dict[str, WorkFields]:
        """What the latest run of a document was asked for, by the dotted place of each package."""
        ...

    def makers(self, folder: str, names: Collection[str]) -> dict[str, tuple[OutputFile, ...]]:
        """Which of these files are ours, with every content that was made under the name: an earlier one may be there."""
        ...

    def maker(self, folder: str, name: str, *, sha256: str) -> str:
        """The job that made a content under a name, the last if several did; empty where none is known."""
        ...

    def made_files(self, folder: str) -> Iterator[MadeFile]:
        """Every content that was made in a folder, sorted by name, whether it is still there or not."""
        ...

    def knows(self, folder: str, *, document: str | None = None) -> bool:
        """Whether anything was made in a folder, by a document where one is named; else nothing need be looked for."""
        ...

    def knows_files(self, folder: str) -> bool:
        """Whether any file was made in a folder; else nothing need be looked for that makes one."""
        ...

    def saw(self, folder: str, files: Collection[SeenFile], *, made: bool) -> None:
        """Remember the checksums of files as they are; those `made` are ours from now on."""
        ...

    def seen(self, folder: str, names: Collection[str]) -> dict[str, SeenFile]:
        """What is remembered of the checksums of these files; whoever asks looks whether they are still the same."""
        ...

    def used(self, folder: str, *, until_ns: int) -> None:
        """Attempts have used files of a folder until then."""
        ...

    def note_times(self, folder: str, document: str, times: Mapping[str, tuple[int, float]]) -> None:
        """Remember how long packages took: for each activity how many there were, and their seconds in all."""
        ...

    def mean_seconds(self, folder: str, document: str) -> dict[str, float]:
        """How long a package of each activity took on average in earlier runs of a document."""
        ...

    def put_logs(self, logs: Sequence[LogText]) -> None:
        """Keep logs; what was kept of the same attempt and stream before is replaced."""
        ...

    def logs(self, job: str, package: str) -> list[LogText]:
        """The logs of every attempt of a package, in order."""
        ...

    def forget(self, job: str) -> None:
        """Let go of the logs of a job that is purged."""
        ...

    def close(self) -> None:
        """Close it."""
        ...
