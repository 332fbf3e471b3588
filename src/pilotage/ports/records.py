"""The primary storage of job records: parts by content, shared among records, and the records that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.records import Annotation, Deletion, JobRecord

MAKE_CATALOGUE_AGAIN = (
    "the catalogue can be made again from the packs: while no service runs, remove catalogue.sqlite (and -wal, -shm), then run "
    "`pilotage provenance fsck` or start the service"
)


class RecordStoreError(PilotageError):
    """The storage of records cannot be read or written."""


class NoRecords(RecordStoreError):
    """There are no records in this place: none of its jobs is over, or its settings say that none are kept."""


class RecordNotReady(RecordStoreError):
    """Something of the job is still being worked out, such as checksums of its inputs; ask again soon."""

    retryable = True
    code = "record_not_ready"


class DamagedPart(RecordStoreError):
    """A stored part does not have the content that its name promises. `pilotage provenance fsck` names all such parts."""


class IncompleteRecord(RecordStoreError):
    """A record names parts that are not stored; nothing of it is visible. Upload the parts first."""


class RecordTaken(RecordStoreError):
    """Another record has this job and revision."""


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record stands in the storage: its position grows with each commit, also for annotations and deletions."""

    position: int
    job: str
    revision: int
    owner: str
    submitted_at: float | None
    heard_at: float  # when the last event was received that the record has
    sha256: str
    change: str  # record, annotation or deletion


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong in the storage: where, which part, and whose records need it."""

    place: str
    what: str
    sha256: str = ""
    jobs: tuple[str, ...] = ()


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that no record needs, and what their removal frees or would free; what a damaged storage keeps for safety."""

    parts: int
    part_bytes: int
    freed_bytes: int
    unreadable: tuple[
        str, ...
    ] = ()  # jobs whose newest record, or an annotation, is damaged: every part stays, it may need any
    left_packs: tuple[str, ...] = ()  # packs that have lost parts that are needed: they stay as they are


class RecordReader(Protocol):
    """Records that can be read: of a folder, or of a service over HTTP. Every method raises a `PilotageError`."""

    def record(self, job: str, revision: int | None = None) -> JobRecord | None:
        """A record, the newest revision unless another is named; None if there is none."""
        ...

    def revisions(self, job: str) -> list[StoredRecord]:
        """Every revision of a job's record, the oldest first."""
        ...

    def annotations(self, job: str) -> list[Annotation]:
        """What was added to a record, in the order of time."""
        ...

    def content(self, sha256: str) -> bytes:
        """The content of a part, verified. Raises `DamagedPart`, also where it is missing."""
        ...

    def find(self, *, owner: str, submitted_from: float, submitted_before: float) -> list[StoredRecord]:
        """The newest records of an owner whose jobs were submitted in an interval."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class RecordStore(RecordReader, Protocol):
    """Records and their parts. One process writes; any number may read. Every method raises `RecordStoreError`."""

    @property
    def broken(self) -> str:
        """Why nothing more can be written until the storage is opened again; empty while it works."""
        ...

    def deletion(self, job: str) -> Deletion | None:
        """The last deletion of a job's record; None if it never was deleted."""
        ...

    def missing(self, parts: Collection[str]) -> set[str]:
        """Those of some digests that are not stored, or are known to be damaged."""
        ...

    def add_parts(self, parts: Iterable[tuple[str, bytes]]) -> list[str]:
        """Store contents with their kinds, and return their digests. Without a commit nobody sees them."""
        ...

    def commit(self, records: Sequence[JobRecord]) -> list[int]:
        """Make records visible, all durable on return, and return their positions.

        A record that is there already is left as it is. Raises `IncompleteRecord` and `RecordTaken`; then none was added.
        """
        ...

    def annotate(self, annotation: Annotation) -> int:
        """Append an annotation to the record of a job; durable on return."""
        ...

    def delete(self, job: str, *, at: float, author: str) -> bool:
        """Forget every revision of a record and its annotations; whether there was one. Parts stay until `collect`."""
        ...

    def expiry_time(self, to: float, *, seconds_max: float, advances: bool) -> float:
        """The time by which records expire, after it moved towards a moment, by at most so many seconds; it stays there if it `advances`.

        It begins with the newest event of a record, or with that moment where there is no record.
        """
        ...

    def unheard_since(self, before: float) -> list[str]:
        """The jobs whose newest record has no event that was received at this time or later."""
        ...

    def newest(self, name: str, *, readable: Callable[[JobRecord], bool] = bool) -> JobRecord | None:
        """The newest record of the jobs of a name, as far as they are readable; None if there is none."""
        ...

    def changes(self, *, after: int, limit: int) -> list[StoredRecord]:
        """Commits after a position, in order: what index servers are fed with."""
        ...

    def check(self) -> Iterator[Damage]:
        """Read everything, and name each damaged or missing part."""
        ...

    def collect(self, *, dry_run: bool) -> Collected:
        """Remove the parts that no record needs, or only count them.

        Of a damaged storage only what certainly nobody needs is removed: a record that cannot be read may need any part. An earlier
        revision that cannot be read, of a job whose newest can be, needs none. Raises `DamagedPart` where the catalogue is damaged.
        """
        ...


def sound_revisions(store: RecordReader, job: str) -> Iterator[JobRecord]:
    """Those revisions of a job's record that can be read, the oldest first."""
    for each in store.revisions(job):
        with suppress(DamagedPart):
            record = store.record(job, each.revision)
            if record is not None:
                yield record


def sound_record(store: RecordStore, job: str) -> JobRecord | None:
    """The newest revision of a job's record; None also where it is known to be damaged. Raises what else keeps it from being read."""
    try:
        return store.record(job)
    except DamagedPart:
        if not store.missing([store.revisions(job)[-1].sha256]):
            raise  # such as too many open files
        return None
