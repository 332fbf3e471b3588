"""What runs jobs, as requests see it, and how a job comes in; no route, so that it is there before the application is."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from pilotage.book.rows.rows import JobRow
from pilotage.model.answers import CleanRequest, ObsoleteFiles
from pilotage.model.exchange.exchange import AgentSays
from pilotage.model.exchange.operations import Accepted, AnyOperation, Drop, LineFiles, SiteDeed
from pilotage.model.exchange.reports import SiteSays
from pilotage.model.jobs.submission import FILE, Origin, RunPlan, Submission, SubmissionAnswer
from pilotage.model.states import ClearedBy
from pilotage.ports import AttemptLogs, JobTree, Journal
from pilotage.reading.access import Principal
from pilotage.reading.views import KeptSites
from pilotage.service.errors import Unpublished
from pilotage.service.journal.retention import Action

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine
    from pilotage.language import Expansion

SUBMISSION_BYTES_MAX = 2**30
CONTENT_BYTES_MAX = 256 * 2**20
KEYS_REMEMBERED = 10_000
ONCE_KEY_LENGTH_MAX = 128

Told = TypeVar("Told")
_origin = msgspec.json.Decoder(Origin)
_lists = msgspec.json.Decoder(dict[str, str])


class RunsJobs(Protocol):
    """What runs the jobs of this service."""

    @property
    def alive(self) -> bool:
        """Whether what is asked will be answered."""
        ...

    @property
    def broken(self) -> str:
        """Why it runs nothing any more, though nobody has stopped it; empty while all is well."""
        ...

    @property
    def tree(self) -> JobTree:
        """The files of its jobs."""
        ...

    @property
    def logs(self) -> AttemptLogs:
        """What their attempts printed."""
        ...

    def exchange(self, says: AgentSays) -> Future[bytes]:
        """What an agent says; the answer as it goes over the wire."""
        ...

    def exchange_with_site(self, says: SiteSays) -> Future[bytes]:
        """What the agent of a site says; the answer as it goes over the wire. Raises `UnknownSite`."""
        ...

    def said_of_site(self, site: str) -> str:
        """What a site said last that kept things from being done there; nothing where all is well."""
        ...

    def submit(self, submission: Submission) -> Future[SubmissionAnswer]:
        """Bring a job in."""
        ...

    def operate(self, operation: AnyOperation) -> Future[Accepted]:
        """Ask for an operation; fails with `OperationRefused`."""
        ...

    def drop(self, operation: Drop, *, by: str) -> Future[Accepted]:
        """Drop a line, and remove its files where that is wanted; fails with `OperationRefused`."""
        ...

    def files_left(self, operation: Drop) -> LineFiles:
        """How many files of a line that was dropped are under their names."""
        ...

    def operate_site(self, deed: SiteDeed, site: str, *, message: str = "") -> Future[Accepted]:
        """Have something done with a site; fails with `OperationRefused`."""
        ...

    def ask(self, question: Callable[[Engine], Told]) -> Future[Told]:
        """Have a question answered between two steps."""
        ...

    def reads(self, engine: Engine, site: str, job: str) -> frozenset[str]:
        """The names of what the attempts of a job read that a site holds; to be asked within a question only."""
        ...

    @property
    def leaving(self) -> Future[None] | None:
        """When what is durable now will have led to files under their names; None where it has."""
        ...

    def unpublished(self, job: str) -> int:
        """How many grants of a job have not led to files under their names; to be asked within a question only."""
        ...

    def publishing_fault(self, job: str) -> Unpublished | None:
        """What of a job has not got its names, and why; to be asked within a question only."""
        ...

    def laid_out(self, job: str) -> Expansion | None:
        """The layout of a job that is being run; None of any other."""
        ...

    def note_retained(self, action: Action) -> None:
        """The book has cleared, sealed or purged a finished job."""
        ...

    def clear(self, job: str, *, by: ClearedBy) -> Future[Accepted]:
        """The outputs of a finished job were handed over."""
        ...

    def clean(self, request: CleanRequest) -> Future[ObsoleteFiles]:
        """Find what a document no longer makes, and remove what is asked for of it."""
        ...

    def start(self) -> None:
        """Go on from what the book says."""
        ...

    def wind_down(self) -> None:
        """It is about to be stopped: have pilots withdrawn, as long as agents are still answered; this may take a moment."""
        ...

    def stop(self) -> None:
        """Let what is under way be written, and end."""
        ...

    @property
    def left_behind(self) -> Sequence[str]:
        """What could not be taken out of the queues of sites when it was stopped, in words."""
        ...


class KeepsSites(Protocol):
    """Who keeps the sites as their file says."""

    @property
    def known(self) -> KeptSites:
        """The sites as they are kept, and what is wrong with their file."""
        ...

    def start(self) -> None:
        """Begin to look at the file."""
        ...

    def stop(self) -> None:
        """Look no more."""
        ...


Plan = Callable[[Submission], RunPlan]


class Asked:
    """Whether anybody asks: how many requests are under way that are not an agent's, and when the last one came."""

    def __init__(self) -> None:
        """Nobody has asked yet, but somebody has just started this."""
        self.under_way = 0
        self.last_at = time.monotonic()

    def __enter__(self) -> None:
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        self.under_way -= 1
        self.last_at = time.monotonic()


class Running:
    """What runs jobs, as requests see it."""

    def __init__(self, jobs: RunsJobs, *, journal: Journal, plan: Plan, sites: KeepsSites | None = None) -> None:
        """Take what runs them, what says beforehand what that would come to, and who keeps the sites, if anybody does.

        Nothing runs before `start`.
        """
        self.jobs = jobs
        self.plan = plan
        self.sites = sites
        self.asked = Asked()
        self.dismissed = ""  # why agents are told to leave
        self._when_dismissed: list[Callable[[], None]] = []
        self._journal = journal
        self._origin = lru_cache(maxsize=4096)(self._read_origin)
        self._once: OrderedDict[tuple[str, str], asyncio.Future[Any]] = OrderedDict()

    def start(self) -> None:
        """Go on with the jobs of the book."""
        self.jobs.start()
        if self.sites is not None:
            self.sites.start()

    def stop(self) -> None:
        """End in good order."""
        if self.sites is not None:
            self.sites.stop()
        self.jobs.stop()

    def dismiss(self, reason: str) -> None:
        """Have every agent leave, whatever it holds; any thread may say so."""
        self.dismissed = reason
        for tell in self._when_dismissed:
            tell()

    def when_dismissed(self, tell: Callable[[], None]) -> None:
        """Have somebody told when agents are to leave."""
        self._when_dismissed.append(tell)

    def folder_of(self, row: JobRow) -> str | None:
        """The folder of a job's results; None of a job that is not run here."""
        origin = _lists.decode(row.lists).get("origin")
        return self._origin(origin) if origin is not None else None

    def brought_by(self, row: JobRow) -> frozenset[str]:
        """The checksums of the files that a job brought along; neither its definition nor its lists are among them."""
        return frozenset(sha256 for name, sha256 in _lists.decode(row.lists).items() if name.startswith(FILE))

    def _read_origin(self, sha256: str) -> str | None:
        content = self._journal.content(sha256)
        return _origin.decode(content).folder if content is not None else None

    async def once(self, principal: Principal, key: str | None, do: Callable[[], Awaitable[Told]]) -> Told:
        """Do something, but not again what was done under the same key; what failed may be tried again."""
        if not key:  # an empty one is nobody's own
            return await do()
        known = self._once.get((principal.user, key))
        if known is None:
            known = self._once[principal.user, key] = asyncio.ensure_future(do())
            known.add_done_callback(lambda done: self._remember(principal.user, key, done))
        told: Told = await asyncio.shield(known)
        return told

    def _remember(self, user: str, key: str, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._once.pop((user, key), None)
        while len(self._once) > KEYS_REMEMBERED:
            self._once.popitem(last=False)
