"""The part of the service that runs jobs, for HTTP handlers; it has no routes, so it exists before the application."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from pilotage.book.rows.rows import JobRow
from pilotage.model.answers import CleanRequest, ObsoleteFiles
from pilotage.model.exchange.exchange import AgentMessage
from pilotage.model.exchange.operations import (
    Accepted,
    AnyFileOperation,
    AnyOperation,
    Drop,
    FetchFile,
    LineFiles,
    SiteDeed,
)
from pilotage.model.exchange.reports import SiteAgentMessage
from pilotage.model.jobs.submission import (
    CAPTURED,
    FILE,
    ORIGIN,
    Captured,
    Origin,
    RunPlan,
    Submission,
    SubmissionAnswer,
)
from pilotage.model.states import ClearedBy
from pilotage.ports import AttemptLogs, ContentStore, JobTree, Journal
from pilotage.reading.access import Principal
from pilotage.reading.views import SitesConfiguration
from pilotage.service.errors import Unpublished
from pilotage.service.journal.retention import Action

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine
    from pilotage.language import Expansion
    from pilotage.service.transfers.transfers import Transfers

SUBMISSION_BYTES_MAX = 2**30
CONTENT_BYTES_MAX = 256 * 2**20
KEYS_REMEMBERED = 10_000
ONCE_KEY_LENGTH_MAX = 128

Result = TypeVar("Result")
_origin = msgspec.json.Decoder(Origin)
_captured = msgspec.json.Decoder(dict[str, Captured])
_lists = msgspec.json.Decoder(dict[str, str])
_NOWHERE = Origin(folder="")  # of a job that does not run here


class JobRunner(Protocol):
    """Runs the jobs of this service."""

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        ...

    @property
    def broken(self) -> str:
        """Why it stopped running jobs without being told to; empty while it works."""
        ...

    def inputs_pending(self, job: str) -> bool:
        """Whether checksums of the inputs of a finished job are still being worked out."""
        ...

    def scheduler_at(self, site: str) -> str:
        """The batch system of a site and its version, as far as known."""
        ...

    @property
    def tree(self) -> JobTree:
        """The files of its jobs."""
        ...

    @property
    def logs(self) -> AttemptLogs:
        """What the attempts printed."""
        ...

    def exchange(self, says: AgentMessage) -> Future[bytes]:
        """Process an agent's exchange; the encoded answer."""
        ...

    def exchange_with_site(self, says: SiteAgentMessage) -> Future[bytes]:
        """Process a site agent's exchange; the encoded answer. Raises `UnknownSite`."""
        ...

    @property
    def transfers(self) -> Transfers | None:
        """The transfers of files; None if it moves none."""
        ...

    def ordered_fetch(self, key: str, *, site: str | None) -> FetchFile | None:
        """The file that a site agent is to bring to its site under a key; of any site, if none is named."""
        ...

    def site_message(self, site: str) -> str:
        """The last error of a site that delays work there; empty if there is none."""
        ...

    def submit(self, submission: Submission) -> Future[SubmissionAnswer]:
        """Submit a job."""
        ...

    def operate(self, operation: AnyOperation) -> Future[Accepted]:
        """Request an operation; fails with `OperationRefused`."""
        ...

    def drop(self, operation: Drop, *, by: str) -> Future[Accepted]:
        """Drop a line, and remove its files if requested; fails with `OperationRefused`."""
        ...

    def files_left(self, operation: Drop) -> LineFiles:
        """How many published files of a dropped line exist."""
        ...

    def operate_site(self, deed: SiteDeed, site: str, *, message: str = "") -> Future[Accepted]:
        """Request an operation on a site; fails with `OperationRefused`."""
        ...

    def change_files(self, operation: AnyFileOperation) -> Future[Accepted]:
        """Pin, unpin or purge files in the cache of a site; fails with `OperationRefused`."""
        ...

    def ask(self, question: Callable[[Engine], Result]) -> Future[Result]:
        """Run a query on the engine between two steps."""
        ...

    def reads(self, engine: Engine, site: str, job: str) -> frozenset[str]:
        """The names of the files that attempts of a job at a site read; only within an engine query."""
        ...

    @property
    def pending_effects(self) -> Future[None] | None:
        """Completes when the files of all grants durable now are published; None if they are."""
        ...

    def unpublished(self, job: str) -> int:
        """How many grants of a job have no published files; only within an engine query."""
        ...

    def publishing_fault(self, job: str) -> Unpublished | None:
        """A result of a job that could not be published, and why; only within an engine query."""
        ...

    def needed_contents(self) -> Collection[str]:
        """The contents of the service's own store that jobs which run here name, by sha256."""
        ...

    def expansion_of(self, job: str) -> Expansion | None:
        """The expansion of a job that runs here; None for any other."""
        ...

    def note_retained(self, action: Action) -> None:
        """The book has cleared, sealed or purged a finished job."""
        ...

    def clear(self, job: str, *, by: ClearedBy) -> Future[Accepted]:
        """Record that the outputs of a finished job were handed over."""
        ...

    def clean(self, request: CleanRequest) -> Future[ObsoleteFiles]:
        """Find the files that a document no longer makes, and remove those requested."""
        ...

    def start(self) -> None:
        """Resume from the book."""
        ...

    def wind_down(self) -> None:
        """Prepare to stop: cancel queued pilots while agents are still answered; this may take a moment."""
        ...

    def stop(self) -> None:
        """Write pending events, and end."""
        ...

    @property
    def left_behind(self) -> Sequence[str]:
        """The batch jobs that could not be cancelled at sites when it stopped, in words."""
        ...


class SitesKeeper(Protocol):
    """Keeps the sites as their file configures them."""

    @property
    def known(self) -> SitesConfiguration:
        """The configured sites, and the fault of their file."""
        ...

    def start(self) -> None:
        """Begin to watch the file."""
        ...

    def stop(self) -> None:
        """Stop watching."""
        ...


Plan = Callable[[Submission], RunPlan]


class RequestActivity:
    """Counts the requests in progress that are not an agent's, and remembers when the last one came."""

    def __init__(self) -> None:
        """Count the start of the service as the last request."""
        self.under_way = 0
        self.last_at = time.monotonic()

    def __enter__(self) -> None:
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        self.under_way -= 1
        self.last_at = time.monotonic()


class JobBackend:
    """The running of jobs, for HTTP handlers."""

    def __init__(
        self,
        jobs: JobRunner,
        *,
        journal: Journal,
        plan: Plan,
        sites: SitesKeeper | None = None,
        content: ContentStore | None = None,
    ) -> None:
        """Take what runs jobs, what plans them, and, if there are any, what keeps the sites and the contents sent.

        Nothing runs before `start`.
        """
        self.jobs = jobs
        self.plan = plan
        self.sites = sites
        self.content = content
        self.activity = RequestActivity()
        self.dismissed = ""  # why agents are told to leave
        self._when_dismissed: list[Callable[[], None]] = []
        self._journal = journal
        self._origin = lru_cache(maxsize=4096)(self._read_origin)
        self._captured = lru_cache(maxsize=16)(self._read_captured)
        self._once: OrderedDict[tuple[str, str], asyncio.Future[Any]] = OrderedDict()

    def start(self) -> None:
        """Resume the jobs of the book."""
        self.jobs.start()
        if self.sites is not None:
            self.sites.start()

    def stop(self) -> None:
        """Shut down in order."""
        if self.sites is not None:
            self.sites.stop()
        self.jobs.stop()

    def dismiss(self, reason: str) -> None:
        """Tell every agent to leave, whatever it holds; any thread may call it."""
        self.dismissed = reason
        for tell in self._when_dismissed:
            tell()

    def when_dismissed(self, tell: Callable[[], None]) -> None:
        """Call a function when agents are told to leave."""
        self._when_dismissed.append(tell)

    def folder_of(self, row: JobRow) -> str | None:
        """The folder of a job's results; None for a job that does not run here."""
        return self._origin_of(row).folder or None

    def sent_from(self, row: JobRow) -> str:
        """The folder on another computer from which the inputs of a job were sent; empty if the service reads them in place."""
        return self._origin_of(row).sent_from

    def brought_by(self, row: JobRow) -> frozenset[str]:
        """The checksums of the files that a job brought along, without its definition and lists."""
        lists = _lists.decode(row.lists)
        brought = frozenset(sha256 for name, sha256 in lists.items() if name.startswith(FILE))
        captured = lists.get(CAPTURED)
        return (
            brought | self._captured(captured) if captured is not None and self._origin_of(row).sent_from else brought
        )

    def _origin_of(self, row: JobRow) -> Origin:
        origin = _lists.decode(row.lists).get(ORIGIN)
        return self._origin(origin) if origin is not None else _NOWHERE

    def _read_origin(self, sha256: str) -> Origin:
        content = self._journal.content(sha256)
        return _origin.decode(content) if content is not None else _NOWHERE

    def _read_captured(self, sha256: str) -> frozenset[str]:
        content = self._journal.content(sha256)
        return frozenset(each.sha256 for each in _captured.decode(content or b"{}").values())

    async def once(self, principal: Principal, key: str | None, do: Callable[[], Awaitable[Result]]) -> Result:
        """Run an operation once per key and return its result; a failed one may be tried again."""
        if not key:  # an empty key identifies nothing
            return await do()
        known = self._once.get((principal.user, key))
        if known is None:
            known = self._once[principal.user, key] = asyncio.ensure_future(do())
            known.add_done_callback(lambda done: self._remember(principal.user, key, done))
        result: Result = await asyncio.shield(known)
        return result

    def _remember(self, user: str, key: str, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._once.pop((user, key), None)
        while len(self._once) > KEYS_REMEMBERED:
            self._once.popitem(last=False)
