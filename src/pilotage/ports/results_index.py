"""The index of results: what was made before, by the key of what was asked, and which files of a tree are ours."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports.job_tree import StoredFile


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


class ResultsIndex(Protocol):
    """What was made before, who made which file, and how long it took; it may be lost, and begins anew then."""

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

    def close(self) -> None:
        """Close it."""
        ...
