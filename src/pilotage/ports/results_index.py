"""The index of earlier results: found by the key of their inputs, and which files of a tree pilotage made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports.job_tree import StoredFile


class WorkFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that a package's key is computed from; a changed field can be named."""

    argv: str  # each is the beginning of a sha256
    software: str
    environment: str
    outputs: str
    inputs: dict[str, str]  # by name, the beginning of the sha256
    programs: dict[str, str] = {}  # the parts of `software`, likewise; not in the key, which has `software`
    variables: dict[str, str] = {}  # the parts of `environment`, likewise


class MadeWork(msgspec.Struct, frozen=True, kw_only=True):
    """A granted result, with the key of its inputs."""

    key: str
    fields: WorkFields
    folder: str
    document: str  # the job's name, by which an earlier run of the same document is found
    ref: AttemptRef
    manifest: tuple[OutputFile, ...]
    placed: dict[str, StoredFile] = {}  # inputs without a checksum, as they were at submission; never stored


class MadeFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A content that was made under a name."""

    file: OutputFile
    job: str  # the last job that made it; empty: unknown


class SeenFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file with its checksum, which holds while the file is unchanged."""

    file: StoredFile
    sha256: str
    used_ns: int = 0  # until when attempts made and removed links to files of its folder

    def is_still(self, now: StoredFile) -> bool:
        """Whether the file is unchanged. A modification time that was set back shows in `changed_ns`.

        Links made by attempts change `changed_ns` as well; for files that attempts used since, the other fields decide.
        """
        if not self.file.is_like(now):
            return False
        return self.file.changed_ns in (0, now.changed_ns) or now.changed_ns <= self.used_ns


class RunKind(NamedTuple):
    """Runs that are alike: of one activity, with the same software in the same versions (empty: none is described)."""

    activity: str
    software: str


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the successful attempt of a package took."""

    seconds: float  # inputs, application and outputs, as on the standard platform
    input_bytes: int | None  # None: unknown
    output_bytes: int
    scratch_bytes: int  # its inputs and all that it wrote
    memory_bytes: int | None  # at its peak; None: unknown


RUNS_KEPT = 32
"""Runs of each kind and power of two of the input size that are kept, the latest ones: rare sizes stay known."""


class ResultsIndex(Protocol):
    """Knows earlier results, which job made which file, and what packages took. If lost, it starts empty."""

    @property
    def beginnings(self) -> int:
        """How often the index started empty since it was opened, having lost all entries."""
        ...

    def claim(self, folder: str, job: str, files: Sequence[OutputFile]) -> None:
        """Record that a job was granted these contents, and that pilotage made them."""
        ...

    def keep(self, made: Sequence[MadeWork]) -> None:
        """Record granted results, and that pilotage made their files."""
        ...

    def find(self, folder: str, keys: Collection[str]) -> dict[str, MadeWork]:
        """Results in a folder under these keys."""
        ...

    def latest(self, folder: str, document: str, packages: Collection[str]) -> dict[str, WorkFields]:
        """The key fields of a document's latest run, by the dotted place of each package."""
        ...

    def makers(self, folder: str, names: Collection[str]) -> dict[str, tuple[OutputFile, ...]]:
        """Which of these files pilotage made, with every content of that name: an earlier one may be on disk."""
        ...

    def maker(self, folder: str, name: str, *, sha256: str) -> str:
        """The last job that made a content under a name; empty if unknown."""
        ...

    def note_disposed(self, folder: str, files: Sequence[OutputFile]) -> None:
        """Record that files are removed because no package needs them; they count as made until they are made again."""
        ...

    def disposed(self, folder: str, names: Collection[str]) -> dict[str, frozenset[str]]:
        """The checksums of the contents of these names that were removed on purpose."""
        ...

    def made_files(self, folder: str) -> Iterator[MadeFile]:
        """Every content made in a folder, by name, whether it is still there or not."""
        ...

    def knows(self, folder: str, *, document: str | None = None) -> bool:
        """Whether a folder has any result, of one document if named; without one, no lookup is needed."""
        ...

    def knows_files(self, folder: str) -> bool:
        """Whether any file was made in a folder; without one, a lookup for files is not needed."""
        ...

    def saw(self, folder: str, files: Collection[SeenFile], *, made: bool) -> None:
        """Record the checksums of files as they are; with `made`, also that pilotage made them."""
        ...

    def known_files(self, folder: str, names: Collection[str]) -> dict[str, SeenFile]:
        """Recorded checksums of these files; the caller checks whether the files are unchanged."""
        ...

    def used(self, folder: str, *, until_ns: int) -> None:
        """Record that attempts used files of a folder until then."""
        ...

    def note_times(self, folder: str, document: str, times: Mapping[str, tuple[int, float]]) -> None:
        """Record how long packages took: for each activity their number and their total seconds."""
        ...

    def mean_seconds(self, folder: str, document: str) -> dict[str, float]:
        """The mean seconds of each activity in earlier runs of a document."""
        ...

    def note_runs(self, folder: str, document: str, runs: Mapping[RunKind, Sequence[MeasuredRun]]) -> None:
        """Record what packages took, and forget earlier runs beyond `RUNS_KEPT`."""
        ...

    def runs(self, folder: str, document: str, kind: RunKind) -> list[MeasuredRun]:
        """Runs of one kind in a document, the latest last."""
        ...

    def software_runs(self, software: str) -> list[MeasuredRun]:
        """Runs of a software in any document, the latest last."""
        ...

    def close(self) -> None:
        """Close the index."""
        ...
