"""The journal: where the book is stored, and the errors it can raise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pilotage.book.fold.finals import FinalPackage
from pilotage.book.query import Query
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.rows import (
    CachedFileRow,
    EventRow,
    JobRow,
    KnowledgeRow,
    NodeRow,
    PackageRow,
    PilotRow,
    SiteRow,
    StageRow,
    StateHistogram,
    StatisticRow,
    StreamRow,
    TagRow,
)
from pilotage.model.errors import PilotageError
from pilotage.model.jobs.layout import PackageId

if TYPE_CHECKING:
    from pilotage.model.settings.settings import JournalAddress

Item = TypeVar("Item")


class DumpParts(NamedTuple):
    """A dump of a job: its first line, the contents that the job refers to by their digests, and the lines of its events.

    A piece of events is any number of whole lines.
    """

    header: bytes
    contents: Iterator[tuple[str, bytes]]
    events: Iterator[bytes]


class JournalError(PilotageError):
    """The journal cannot be used; the message says what to do."""


class JournalUnavailable(JournalError):
    """The journal does not answer. Acknowledged events are safe; try again."""

    retryable = True


class JournalFull(JournalUnavailable):
    """The disk is full. Nothing of the batch was stored; free some space and try again."""


class SealedLost(JournalError):
    """The file of a sealed job is missing or damaged; other jobs are unaffected. Restore the file, or purge the job."""


class JournalBusy(JournalError):
    """Another process is the writer of this journal."""


class JournalLost(JournalBusy):
    """Another process became the writer of this journal. Acknowledged events are stored; this process must stop."""


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """One page of a result, and whether more may follow.

    A page can be short or empty although more follows, when few of the rows that were read match. Continue after
    `scanned_to`, which has the form of `after`; if it is None, continue after the last item.
    """

    items: Sequence[Item]
    more: bool
    scanned_to: Any = None


class FoundPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package row, with the id and the owner of its job."""

    job: str
    owner: str
    row: PackageRow


class FoundEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event row, with the job, source and stream that the row refers to by number."""

    job: str | None
    source: str
    stream: str
    row: EventRow


class Journal(Protocol):
    """Where the book is stored. One process writes; any thread may read, and sees whole commits only."""

    def transaction(self) -> AbstractContextManager[Ledger]:
        """One durable transaction of the single writer: committed at the end, rolled back on an exception.

        Raises `JournalFull` or `JournalUnavailable` if trying again can help.
        """
        ...

    def close(self) -> None:
        """Close connections and release locks."""
        ...

    @property
    def lost(self) -> str:
        """Why this process must stop writing: another one became the writer. Empty while it may write."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing can be written now: `lost`, or a failure that may pass. Empty while writing works."""
        ...

    # --- reading ---

    def position(self) -> int:
        """The position of the last event."""
        ...

    def job(self, job: str) -> JobRow | None:
        """The row of a job, including sealed and purged ones."""
        ...

    def stages(self, job: JobRow) -> list[StageRow]:
        """The stages of a job, in order."""
        ...

    def package(self, job: JobRow, place: PackageId) -> PackageRow | None:
        """A package that at least one event was about."""
        ...

    def line_counts(self, job: JobRow, *, stage: int, line: int) -> StateHistogram:
        """Count the packages of a line by state; only those that have a row."""
        ...

    def find_jobs(self, query: Query, *, after: str | None, limit: int) -> Page[JobRow]:
        """Jobs by id, after the given one. Relative times in the query are already resolved."""
        ...

    def find_packages(
        self, query: Query, *, after: tuple[str, PackageId] | None, limit: int, job: JobRow | None = None
    ) -> Page[FoundPackage]:
        """Packages that have a row, by registration of their job and then by place, after the given one.

        With `job`, only of that job, sealed or not.
        """
        ...

    def find_events(
        self,
        query: Query,
        *,
        after: int,
        limit: int,
        job: JobRow | None = None,
        place: PackageId | None = None,
    ) -> Page[FoundEvent]:
        """Events by position, after the given one; only of one job or package if given."""
        ...

    def count_jobs(self, query: Query) -> int:
        """Count the jobs that match."""
        ...

    def count_packages(self, query: Query, *, job: JobRow | None = None) -> int:
        """Count the packages that match and have a row."""
        ...

    def count_sealed(self) -> int:
        """Count the sealed jobs; a query finds their packages only if it names the job."""
        ...

    def statistics(self, *, width_seconds: int, slices: range) -> list[StatisticRow]:
        """The statistics of a range of time slices, as far as they exist."""
        ...

    def pilot(self, name: str) -> PilotRow | None:
        """A pilot, or a pilot request, by name; None if it never existed."""
        ...

    def pilots(self, *, after: str, limit: int) -> list[PilotRow]:
        """Pilots by name, after the given one."""
        ...

    def latest_pilots(self, site: str, *, limit: int) -> list[PilotRow]:
        """The pilots and pilot requests of a site, the most recently heard first."""
        ...

    def node(self, name: str) -> NodeRow | None:
        """A node by name; None if none was ever described."""
        ...

    def nodes_named(self, names: Collection[str]) -> list[NodeRow]:
        """Those of some nodes that were ever described, by name."""
        ...

    def nodes(self, *, after: str, limit: int) -> list[NodeRow]:
        """Nodes by name, after the given one."""
        ...

    def sites(self) -> list[SiteRow]:
        """All sites."""
        ...

    def cached_files(self, site: str, *, after: str, limit: int) -> list[CachedFileRow]:
        """Files of the cache of a site, by digest, after the given one; removed ones, too."""
        ...

    def knowledge(self, name: str) -> KnowledgeRow | None:
        """What the service learned from all jobs, by its name; None if nothing was recorded."""
        ...

    # --- reading, when an engine starts: each in one pass over the stored rows, however many ---

    def live_jobs(self) -> list[JobRow]:
        """Jobs of the live book that are not cleared, in order of registration; finished ones included."""
        ...

    def own_events(self, job: JobRow) -> list[EventRow]:
        """The events about a job itself, not about its packages, by position."""
        ...

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """The packages of a job that ended by events of their own, by place, from one snapshot."""
        ...

    def unfinished(self, job: JobRow) -> Iterator[PackageRow]:
        """The other packages of a job that have a row, by place, from one snapshot."""
        ...

    def stream(self, source: str, stream: str) -> StreamRow | None:
        """How far one stream was received; None if nothing was."""
        ...

    def streams(self, source: str) -> Iterator[StreamRow]:
        """How far each stream of a source was received, by name."""
        ...

    # --- storing ---

    def put_content(self, content: bytes) -> str:
        """Store bytes under their sha256, and return that."""
        ...

    def put_contents(self, contents: Collection[bytes]) -> list[str]:
        """The same for many, durable together."""
        ...

    def content(self, sha256: str) -> bytes | None:
        """Stored bytes; None if unknown."""
        ...

    def seal(self, job: str) -> None:
        """Move a finished job out of the live book, in slices; its row stays. Sealing a sealed job changes nothing."""
        ...

    def unseal(self, jobs: Collection[str]) -> None:
        """Move sealed jobs back into the live book."""
        ...

    def dump(self, job: str) -> Iterator[bytes]:
        """Everything stored about a job, as lines of JSON that `load` can restore elsewhere."""
        ...

    def dump_parts(self, job: JobRow) -> AbstractContextManager[DumpParts]:
        """The same before it is encoded as one text, to be read once, in order; nothing in it is checked again."""
        ...

    def load(self, lines: Iterable[bytes]) -> str:
        """Store a dumped job and return its id. The job must be unknown here."""
        ...

    def count_parked(self, *, before: float) -> int:
        """Count the events that have waited for their job since before a time."""
        ...

    def drop_parked(self, *, before: float) -> int:
        """Delete events that have waited for their job since before a time; return how many."""
        ...

    def purge(self, job: str, *, at: float) -> None:
        """Delete a job except for its row, which records the purge."""
        ...

    # --- repair: compare rows with the events, and correct them ---

    def tags(self, job: JobRow, *, after: tuple[int, int, int, str], limit: int) -> list[TagRow]:
        """Tags of a job and its packages, by place and name, after the given one; also of a sealed job."""
        ...

    def forgotten(self) -> int:
        """Count the events received but no longer stored: of purged jobs, dropped parked events, abandoned gaps."""
        ...

    def orphans(self) -> list[int]:
        """The numbers of jobs that have events but no row."""
        ...

    def mislabelled(self, job: JobRow) -> list[PackageId]:
        """The packages of a job whose columns contradict their facts."""
        ...

    def replace_job(
        self, job: JobRow, *, stages: Iterable[StageRow], packages: Iterable[PackageRow], tags: Iterable[TagRow]
    ) -> None:
        """Replace all rows derived from the events of a live job, in one transaction."""
        ...


class JournalAdapter(Protocol):
    """Opens books of one kind; a module will do. Found by its entry point in `pilotage.journals`."""

    def open_journal(self, address: JournalAddress, *, indexed: Collection[str]) -> Journal:
        """Open a book for writing; raises `JournalBusy` if another process writes it."""
        ...

    def open_reader(self, address: JournalAddress, *, indexed: Collection[str]) -> Journal | None:
        """Open a book for reading, next to its writer; None if an older version wrote it."""
        ...
