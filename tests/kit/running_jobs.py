"""A stand-in for what runs jobs, behind the real HTTP side: it answers what a test says, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.content_store import FolderContent
from pilotage.engine.engine import Engine
from pilotage.engine.inbound.site_operations import operate_site
from pilotage.language import Expansion
from pilotage.model.answers import CleanRequest, ObsoleteFiles
from pilotage.model.exchange.exchange import AgentMessage, AgentReply, AttemptRef, ExchangeReply, LogText
from pilotage.model.exchange.operations import (
    Accepted,
    AnyFileOperation,
    AnyOperation,
    Drop,
    FetchFile,
    LineFiles,
    Refused,
    SiteDeed,
)
from pilotage.model.exchange.reports import SiteAgentMessage, SiteAgentReply
from pilotage.model.jobs.submission import Origin, RunPlan, Submission, SubmissionAnswer
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.settings.settings import Settings
from pilotage.model.site import Site
from pilotage.model.states import ClearedBy
from pilotage.ports import AttemptLogs, JobTree, Journal, StoredFile
from pilotage.reading.access import Principal
from pilotage.service.errors import OperationRefused, UnknownSite, Unpublished
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.services import Services
from pilotage.service.journal.retention import Action
from pilotage.service.transfers.transfers import Transfers
from tests.kit.served_book import WallClock, access_of, sqlite_journal

Result = TypeVar("Result")


class FakeTree:
    """Files of one folder, by their plain paths."""

    def __init__(self) -> None:
        self.staged: list[tuple[str, AttemptRef, int, int, bytes]] = []

    def look_up(self, folder: str, names: list[str]) -> dict[str, StoredFile]:
        files = {name: Path(folder, name) for name in names if Path(folder, name).is_file()}
        return {
            name: StoredFile(name=name, size_bytes=file.stat().st_size, modified_ns=0, inode=0)
            for name, file in files.items()
        }

    def read(self, folder: str, name: str, *, offset: int, size_bytes: int) -> bytes:
        return Path(folder, name).read_bytes()[offset : offset + size_bytes]

    def write_staged(self, folder: str, ref: AttemptRef, *, number: int, offset: int, data: bytes) -> None:
        self.staged.append((folder, ref, number, offset, data))


class FakeLogs:
    """Logs that a test put there."""

    def __init__(self) -> None:
        self.kept: list[LogText] = []

    def read(self, job: str, package: str) -> list[LogText]:
        return [each for each in self.kept if (each.ref.job, each.ref.package) == (job, package)]


class FakeJobs:
    """Runs nothing. `answers` is what an exchange gets, and `refusals` which operations are refused."""

    def __init__(self) -> None:
        self.files = FakeTree()
        self.kept = FakeLogs()
        self.engine = Engine(sites=[Site(name="local")], settings=EngineSettings())
        self.heard: list[AgentMessage] = []
        self.heard_sites: list[SiteAgentMessage] = []
        self.came = threading.Semaphore(0)  # once for each exchange
        self.open: list[Future[bytes]] = []
        self.patient = False  # exchanges stay open
        self.fault: Exception | None = None
        self.submitted: list[Submission] = []
        self.cleaned: list[CleanRequest] = []
        self.operations: list[AnyOperation] = []
        self.dropped_by: list[str] = []
        self.line_files = LineFiles()  # of every line that is dropped with its files
        self.refusals: dict[str, Refused] = {}  # by the package, or the job
        self.cleared: list[str] = []
        self.put_away: list[str] = []
        self.waits_to_publish = 0
        self.cannot_publish: Unpublished | None = None
        self.site_operations: list[tuple[SiteDeed, str, str]] = []
        self.file_operations: list[AnyFileOperation] = []
        self.site_words: dict[str, str] = {}
        self.inputs = {"in.txt"}  # of every attempt
        self.alive = False
        self.broken = ""
        self.transfers: Transfers | None = None
        self.ordered: dict[str, FetchFile] = {}  # for site agents, by key
        self.left_behind: list[str] = []
        self.pending_effects: Future[None] | None = None

    def inputs_pending(self, job: str) -> bool:
        return False

    def scheduler_at(self, site: str) -> str:
        return "slurm 22.05.8" if site == "lyon" else ""

    @property
    def tree(self) -> JobTree:
        return cast("JobTree", self.files)

    @property
    def logs(self) -> AttemptLogs:
        return cast("AttemptLogs", self.kept)

    def start(self) -> None:
        self.alive = True

    def wind_down(self) -> None:
        assert self.alive

    def stop(self) -> None:
        self.alive = False

    def exchange(self, says: AgentMessage) -> Future[bytes]:
        self.heard.append(says)
        future: Future[bytes] = Future()
        if self.patient:
            self.open.append(future)
        elif self.fault is not None:
            future.set_exception(self.fault)
        else:
            reply = ExchangeReply(pilot=says.exchange.pilot, sequence=says.exchange.sequence, acknowledged=7)
            future.set_result(msgspec.json.encode(AgentReply(reply=reply)))
        self.came.release()
        return future

    def ordered_fetch(self, key: str, *, site: str | None) -> FetchFile | None:
        found = self.ordered.get(key)
        return found if found is not None and site in (None, found.site) else None

    def exchange_with_site(self, says: SiteAgentMessage) -> Future[bytes]:
        if says.site != "lyon":
            raise UnknownSite("no site of this name has a site agent", subject=f"site {says.site}")
        self.heard_sites.append(says)
        self.came.release()
        told = SiteAgentReply(site=says.site, agent=says.agent, sequence=says.sequence, service="s")
        return _done(msgspec.json.encode(told), self.fault)

    def operate_site(self, deed: SiteDeed, site: str, *, message: str = "") -> Future[Accepted]:
        self.site_operations.append((deed, site, message))
        return _done(Accepted(operation=len(self.site_operations), events=1))

    def change_files(self, operation: AnyFileOperation) -> Future[Accepted]:
        self.file_operations.append(operation)
        outcome = operate_site(self.engine.state, operation)
        fault = OperationRefused(outcome) if isinstance(outcome, Refused) else None
        return _done(outcome if isinstance(outcome, Accepted) else Accepted(operation=0, events=0), fault)

    def site_message(self, site: str) -> str:
        return self.site_words.get(site, "")

    def submit(self, submission: Submission) -> Future[SubmissionAnswer]:
        self.submitted.append(submission)
        return _done(SubmissionAnswer(job=f"job-{len(self.submitted)}", packages=3), self.fault)

    def clean(self, request: CleanRequest) -> Future[ObsoleteFiles]:
        self.cleaned.append(request)
        return _done(
            ObsoleteFiles(job="p", folder=request.submission.folder, removed=tuple(request.remove)), self.fault
        )

    def operate(self, operation: AnyOperation) -> Future[Accepted]:
        self.operations.append(operation)
        refused = self.refusals.get(getattr(operation, "package", "") or operation.job)
        fault = OperationRefused(refused) if refused is not None else None
        return _done(Accepted(operation=len(self.operations), events=1), fault)

    def drop(self, operation: Drop, *, by: str) -> Future[Accepted]:
        self.dropped_by.append(by)
        accepted = self.operate(operation)
        if not operation.remove_files or accepted.exception() is not None:
            return accepted
        return _done(msgspec.structs.replace(accepted.result(), files=self.line_files))

    def files_left(self, operation: Drop) -> LineFiles:
        assert not operation.remove_files
        return LineFiles(kept=2)

    def ask(self, question: Callable[[Engine], Result]) -> Future[Result]:
        return _done(question(self.engine))

    def note_retained(self, action: Action) -> None:
        self.put_away.append(action.job)

    def clear(self, job: str, *, by: ClearedBy) -> Future[Accepted]:
        self.cleared.append(f"{job} by {by}")
        return _done(Accepted(operation=1, events=1))

    def reads(self, engine: Engine, site: str, job: str) -> frozenset[str]:
        held = [
            ref
            for each in engine.state.pilots.by_name.values()
            if each.site.name == site
            for ref in (*each.assigned, *each.owed)
        ]
        return frozenset(self.inputs if any(ref.job == job for ref in held) else ())

    def unpublished(self, job: str) -> int:
        return self.waits_to_publish

    def publishing_fault(self, job: str) -> Unpublished | None:
        return self.cannot_publish

    def needed_contents(self) -> frozenset[str]:
        return frozenset()

    def expansion_of(self, job: str) -> Expansion | None:
        return None


def _done(told: Result, fault: Exception | None = None) -> Future[Result]:
    future: Future[Result] = Future()
    if fault is not None:
        future.set_exception(fault)
    else:
        future.set_result(told)
    return future


@contextmanager
def running_services(
    folder: Path, *, principals: dict[str, Principal] | None = None, settings: Settings | None = None
) -> Iterator[tuple[Services, FakeJobs]]:
    """Services over a book in a folder, with a stand-in for what runs jobs."""
    jobs = FakeJobs()

    def make(journal: Journal, **_: Any) -> JobBackend:
        return JobBackend(
            jobs,
            journal=journal,
            plan=lambda submission: RunPlan(job="p", packages=1, would_run=1, there=0),
            content=FolderContent(folder),
        )

    with sqlite_journal(folder) as journal:
        services = Services(
            journal,
            access=access_of(principals),
            settings=settings or Settings(),
            clock=WallClock(),
            make_backend=make,
            open_records=partial(FolderRecords, folder / "records"),
        )
        yield services, jobs


def origin_of(journal: Journal, folder: Path) -> str:
    """Keep where a job comes from; what its registration names it by."""
    return journal.put_content(msgspec.json.encode(Origin(folder=str(folder))))
