"""Where the book is kept, and what can be wrong with that place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from pilotage.book.fold.finals import FinalPackage
from pilotage.book.query import Query
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.rows import (
    Counted,
    EventRow,
    JobRow,
    NodeRow,
    PackageRow,
    PilotRow,
    SiteRow,
    StageRow,
    StatisticRow,
    StreamRow,
    TagRow,
)
from pilotage.model.errors import PilotageError
from pilotage.model.jobs.layout import PackageId

if TYPE_CHECKING:
    from pilotage.model.settings.settings import JournalAddress

Item = TypeVar("Item")


class JournalError(PilotageError):
    """The journal cannot be used as it is; what to do is said with it."""


class JournalUnavailable(JournalError):
    """The journal does not answer. Nothing that was acknowledged is lost; try again."""

    retryable = True


class JournalFull(JournalUnavailable):
    """There is no room left to write. Nothing of the batch was kept; make room and it goes on."""


class SealedLost(JournalError):
    """The file of a sealed job is gone or damaged. Other jobs are not concerned: bring it back, or purge the job."""


class JournalBusy(JournalError):
    """Another process is the writer of this journal."""


class JournalLost(JournalBusy):
    """Another process has become the writer of this journal. What was acknowledged is kept; this process must stop."""


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """Some of what was asked for, and whether there may be more after the last of them.

    Where much must be read to find little, a page is short or empty and there is more nevertheless: go on after
    `scanned_to`, which is in the form that `after` has. Where it is None, go on after the last item.
    """

    items: Sequence[Item]
    more: bool
    scanned_to: Any = None


class FoundPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package with the id and the owner of its job."""

    job: str
    owner: str
    row: PackageRow


class FoundEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event with the names that its row has numbers for."""

    job: str | None
    source: str
    stream: str
    row: EventRow


class Journal(Protocol):
    """Where the book is kept. One process writes; reading is open to every thread and sees whole commits only."""

    def transaction(self) -> AbstractContextManager[Ledger]:
        """One durable transaction of the one writer: committed at the end, undone by an exception.

        Raises `JournalFull` or `JournalUnavailable` where trying again can help.
        """
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...

    @property
    def lost(self) -> str:
        """Why this process may write no more: another one has become the writer. Empty while it may; it must stop otherwise."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing can be written at this moment, for that reason or another that may pass; empty while it can."""
        ...

    # --- reading ---

    def position(self) -> int:
        """The position of the last event."""
        ...

    def job(self, job: str) -> JobRow | None:
        """A job, also a sealed or a purged one."""
        ...

    def stages(self, job: JobRow) -> list[StageRow]:
        """The stages of a job, in order."""
        ...

    def package(self, job: JobRow, place: PackageId) -> PackageRow | None:
        """A package of which something was heard."""
        ...

    def line_counts(self, job: JobRow, *, stage: int, line: int) -> Counted:
        """The histogram of the packages of a line that have a row."""
        ...

    def find_jobs(self, query: Query, *, after: str | None, limit: int) -> Page[JobRow]:
        """Jobs in the order of their ids, after one. Relative times of the query are resolved already."""
        ...

    def find_packages(
        self, query: Query, *, after: tuple[str, PackageId] | None, limit: int, job: JobRow | None = None
    ) -> Page[FoundPackage]:
        """Packages that have a row, in the order in which jobs were registered and then of place, after one.

        Of one job, sealed or not, where it is given.
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
        """Events in the order of their positions, after one; of one job or package where it is given."""
        ...

    def count_jobs(self, query: Query) -> int:
        """How many jobs there are."""
        ...

    def count_packages(self, query: Query, *, job: JobRow | None = None) -> int:
        """How many packages that have a row there are."""
        ...

    def count_sealed(self) -> int:
        """How many jobs are sealed: their packages are found only where the question names the job."""
        ...

    def statistics(self, *, width_seconds: int, slices: range) -> list[StatisticRow]:
        """The slices of statistics that exist in a range."""
        ...

    def pilot(self, name: str) -> PilotRow | None:
        """One pilot, or what was asked for under that name, if there ever was one."""
        ...

    def pilots(self, *, after: str, limit: int) -> list[PilotRow]:
        """Pilots by name."""
        ...

    def latest_pilots(self, site: str, *, limit: int) -> list[PilotRow]:
        """The pilots of a site of which something was heard last, the latest first; and what was asked for there."""
        ...

    def nodes(self, *, after: str, limit: int) -> list[NodeRow]:
        """Nodes by name."""
        ...

    def sites(self) -> list[SiteRow]:
        """All sites."""
        ...

    # --- reading, for an engine that starts: each in one pass over what is stored, however much that is ---

    def live_jobs(self) -> list[JobRow]:
        """The jobs of the live book that are not cleared, in the order in which they were registered; also finished ones."""
        ...

    def own_events(self, job: JobRow) -> list[EventRow]:
        """The events about a job itself, and not about its packages, in the order of their positions."""
        ...

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """The packages of a job that are over by facts of their own, in the order of place, at one moment."""
        ...

    def unfinished(self, job: JobRow) -> Iterator[PackageRow]:
        """The other packages of a job that have a row, in the order of place, at one moment."""
        ...

    def stream(self, source: str, stream: str) -> StreamRow | None:
        """What was heard of one stream, if anything was."""
        ...

    def streams(self, source: str) -> Iterator[StreamRow]:
        """What was heard of every stream of a source, by name."""
        ...

    # --- keeping ---

    def put_content(self, content: bytes) -> str:
        """Keep bytes by their sha256, which is returned."""
        ...

    def content(self, sha256: str) -> bytes | None:
        """Bytes that were kept."""
        ...

    def seal(self, job: str) -> None:
        """Move a finished job out of the live book, in slices; its row stays. What is sealed already is left alone."""
        ...

    def unseal(self, jobs: Collection[str]) -> None:
        """Bring sealed jobs back into the live book."""
        ...

    def dump(self, job: str) -> Iterator[bytes]:
        """Everything known of a job, as lines of JSON: enough for `load` to make it anew elsewhere."""
        ...

    def load(self, lines: Iterable[bytes]) -> str:
        """Take a dumped job in; its id is returned. The job must be unknown here."""
        ...

    def count_parked(self, *, before: float) -> int:
        """How many events have waited for their job since before a time."""
        ...

    def drop_parked(self, *, before: float) -> int:
        """Forget events that have waited for their job since before a time; how many they were."""
        ...

    def purge(self, job: str, *, at: float) -> None:
        """Forget a job but for its row, which says that it was purged."""
        ...

    # --- mending: for the rows to be checked against the events, and put right ---

    def tags(self, job: JobRow, *, after: tuple[int, int, int, str], limit: int) -> list[TagRow]:
        """The tags of a job and its packages, in the order of place and name, after one; of a sealed job too."""
        ...

    def forgotten(self) -> int:
        """How many events count as heard that are not kept: those of purged jobs, parked ones that were dropped, given-up holes."""
        ...

    def orphans(self) -> list[int]:
        """The numbers of jobs that events are about and that have no row."""
        ...

    def mislabelled(self, job: JobRow) -> list[PackageId]:
        """The packages of a job whose columns are not what their facts say."""
        ...

    def replace_job(
        self, job: JobRow, *, stages: Iterable[StageRow], packages: Iterable[PackageRow], tags: Iterable[TagRow]
    ) -> None:
        """Put these rows in the place of all that are derived from the events of a live job, in one transaction."""
        ...


class JournalAdapter(Protocol):
    """What opens the books of one kind; a module will do. It is found by its entry point in `pilotage.journals`."""

    def open_journal(self, address: JournalAddress, *, indexed: Collection[str]) -> Journal:
        """A book, for writing; raises `JournalBusy` where another process writes it."""
        ...

    def open_reader(self, address: JournalAddress, *, indexed: Collection[str]) -> Journal | None:
        """A book, to be read beside whoever writes it; None where an older version wrote it."""
        ...
