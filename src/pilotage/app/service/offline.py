"""Answers from the book of a folder whose service has stopped; starts nothing, and no job continues.

The answers are those of the service: the same application, in this process, over a reader of the book. It holds no
lock, so a service may start, write and stop meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from urllib.parse import unquote, urlsplit

import msgspec

from pilotage.adapters.journals.sqlite.locations import BOOK
from pilotage.adapters.settings.settings_files import load_settings
from pilotage.app.state_folder import SystemClock, indexed_of, local_user, open_journal
from pilotage.client import Address, Server, ServerUnreachable
from pilotage.client.finding import SERVICE_FILE
from pilotage.client.server import Parameters
from pilotage.model.settings.settings import Settings
from pilotage.service.announcement import why_ended

if TYPE_CHECKING:
    from pilotage.app.job_stores import JobStores
    from pilotage.book.codec import Codec
    from pilotage.engine.engine import Engine
    from pilotage.model.answers import CleanRequest, ObsoleteFiles
    from pilotage.model.exchange.exchange import AgentMessage
    from pilotage.model.exchange.operations import Accepted, AnyFileOperation, AnyOperation, Drop, LineFiles, SiteDeed
    from pilotage.model.exchange.reports import SiteAgentMessage
    from pilotage.model.jobs.submission import RunPlan, Submission, SubmissionAnswer
    from pilotage.model.states import ClearedBy
    from pilotage.ports import AttemptLogs, Clock, JobTree, Journal
    from pilotage.service.http.backend import JobBackend
    from pilotage.service.journal.retention import Action
    from pilotage.service.journal.writer import Writer

Result = TypeVar("Result")


def server_or_book(address: Address) -> Server:
    """The service of an address, or its book if it has stopped. Raises `ServerError` if neither can answer."""
    if address.runs or not address.origin or not is_readable(Path(address.origin)):
        return address.server()
    folder = Path(address.origin)
    settings = load_settings(environment=os.environ, folder=Path.cwd(), flags={"journal.url": f"sqlite:{folder}"})
    return OfflineServer(address, folder=folder, settings=settings)


def is_readable(folder: Path) -> bool:
    """Whether a folder has a book that this version can read; a service must upgrade an older one."""
    from pilotage.adapters.journals.sqlite.schema import is_current

    try:
        return (folder / BOOK).stat().st_uid in (os.geteuid(), 0) and is_current(folder / BOOK)
    except OSError:
        return False


class OfflineServer(Server):
    """Answers as the service of a folder would, from its book. What only a service can do is refused."""

    def __init__(self, address: Address, *, folder: Path, settings: Settings) -> None:
        """Take the folder of the book; opens nothing yet."""
        super().__init__(address.url, start_hint=address.start_hint)
        self.resting = ran_jobs(folder)
        self.ended = why_ended(folder)
        self._folder = folder
        self._settings = settings
        self._authorization = f"Bearer {secrets.token_hex(16)}"
        self._open: _Open | None = None

    def lines(self, path: str, parameters: Parameters | None = None, *, quiet_seconds: float) -> Iterator[str]:
        """There is nothing to wait for: no service writes."""
        raise ServerUnreachable(
            "the service of this folder does not run", subject=str(self._folder), next_step=self._start_hint
        )

    def close(self) -> None:
        """Close the book; the next request opens it again."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _tried(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self._open is None:
            self._open = _Open(self._folder, self._settings, self._authorization)
        sent_headers = {**headers, "host": urlsplit(self.url).netloc, "authorization": self._authorization}
        sent_headers["content-length"] = str(len(body or b""))
        return self._open.answer(method, path, body or b"", sent_headers, scheme=urlsplit(self.url).scheme)


def ran_jobs(folder: Path) -> bool:
    """Whether the last service here ran jobs, and did not only serve the book."""
    try:
        record: dict[str, Any] = msgspec.json.decode((folder / SERVICE_FILE).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return True
    return bool(record.get("socket"))


class _Open:
    """The application over a reader of the book, and its event loop."""

    def __init__(self, folder: Path, settings: Settings, authorization: str) -> None:
        from pilotage.adapters.journals.sqlite.reader import SqliteReader
        from pilotage.app.provenance.records import open_records_for
        from pilotage.model.errors import part
        from pilotage.reading.access import Access, digest_of, local_principal

        with part(purpose="to read the book"):
            from pilotage.service.http.dispatcher import Dispatcher
            from pilotage.service.http.services import Services
        self._resting = NoRunner(folder, settings)
        self._reader = SqliteReader(folder, indexed=indexed_of(settings))
        services = Services(
            cast("Journal", self._reader),  # its writer is never started
            access=Access({digest_of(authorization.removeprefix("Bearer ")): local_principal(local_user())}),
            settings=settings,
            clock=SystemClock(),
            make_backend=self._running,
            open_records=open_records_for(settings, folder),
            at_rest=True,
        )
        self._records = services.records
        with part(purpose="to read the book"):
            self._app: Any = Dispatcher(services)
        self._runner = asyncio.Runner()

    def _running(self, journal: Journal, *, writer: Writer, codec: Codec, clock: Clock) -> JobBackend:
        from pilotage.service.http.backend import JobBackend

        del writer, codec, clock
        return JobBackend(self._resting, journal=journal, plan=self._resting.plan)

    def answer(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, scheme: str
    ) -> tuple[int, bytes]:
        """Status and body of an answer."""
        return self._runner.run(_asked(self._app, method, path, body, headers, scheme=scheme))

    def close(self) -> None:
        self._runner.close()
        if self._records is not None:
            self._records.close()
        self._resting.stop()
        self._reader.close()


async def _asked(
    app: Any, method: str, path: str, body: bytes, headers: Mapping[str, str], *, scheme: str
) -> tuple[int, bytes]:
    """Send one request to an ASGI application."""
    raw_path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": scheme,
        "path": unquote(raw_path), "raw_path": raw_path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": None, "server": (headers["host"], 0), "state": {},
    }  # fmt: skip
    asked = [{"type": "http.request", "body": body, "more_body": False}]
    answer: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return asked.pop() if asked else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answer.append(message)

    await app(scope, receive, send)
    status = next(each["status"] for each in answer if each["type"] == "http.response.start")
    return status, b"".join(each.get("body", b"") for each in answer if each["type"] == "http.response.body")


class NoRunner:
    """Takes the place of the runner where no service runs; it can still record that results were handed over."""

    alive = False
    broken = ""
    left_behind = ()
    transfers = None

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Take the state folder; its database is opened on demand."""
        self._folder = folder
        self._settings = settings
        self._opened: JobStores | None = None

    @property
    def tree(self) -> JobTree:
        """The files of its jobs, to be looked at."""
        return self._stores().tree

    @property
    def logs(self) -> AttemptLogs:
        """What their attempts printed."""
        return self._stores().logs

    def ordered_fetch(self, key: str, *, site: str | None) -> None:
        """No site agent is served."""

    def _stores(self) -> JobStores:
        from pilotage.app.job_stores import open_job_stores

        if self._opened is None:
            self._opened = open_job_stores(self._folder)
        return self._opened

    def inputs_pending(self, job: str) -> bool:
        """Nothing is being worked out here; a service describes what its predecessor left out, in another revision."""
        return False

    def scheduler_at(self, site: str) -> str:
        """Nobody asks sites here."""
        return ""

    def clear(self, job: str, *, by: ClearedBy) -> Future[Accepted]:
        """Record that the outputs of a finished job were handed over: opens the book for writing meanwhile."""
        from pilotage.book.codec import Codec
        from pilotage.service.journal.retention import clear_job
        from pilotage.service.journal.writer import BatchCommitter, Writer

        done: Future[Accepted] = Future()
        clock = SystemClock()
        with closing(open_journal(self._settings)) as journal:
            codec = Codec()
            writer = Writer(BatchCommitter(journal, clock=clock, codec=codec))
            writer.start()
            try:
                done.set_result(clear_job(job, by, journal=journal, writer=writer, codec=codec, clock=clock))
            finally:
                writer.stop()
        return done

    def start(self) -> None:
        """There is nothing to start."""

    def wind_down(self) -> None:
        """There is nothing to prepare."""

    def stop(self) -> None:
        """Close the database."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def plan(self, submission: Submission) -> RunPlan:
        """Refused: a service makes plans."""
        self._refuse()

    def exchange(self, says: AgentMessage) -> Future[bytes]:
        """Refused: there are no agents."""
        self._refuse()

    def operate_site(self, deed: SiteDeed, site: str, *, message: str = "") -> Future[Accepted]:
        """Refused: there is no engine."""
        self._refuse()

    def change_files(self, operation: AnyFileOperation) -> Future[Accepted]:
        """Refused: there is no engine."""
        self._refuse()

    def site_message(self, site: str) -> str:
        """There are no messages of sites."""
        return ""

    def exchange_with_site(self, says: SiteAgentMessage) -> Future[bytes]:
        """Refused: there are no site agents."""
        self._refuse()

    def submit(self, submission: Submission) -> Future[SubmissionAnswer]:
        """Refused: nothing is run."""
        self._refuse()

    def clean(self, request: CleanRequest) -> Future[ObsoleteFiles]:
        """Refused: `app/clean.py` opens the book itself."""
        self._refuse()

    def operate(self, operation: AnyOperation) -> Future[Accepted]:
        """Refused: there is no engine."""
        self._refuse()

    def drop(self, operation: Drop, *, by: str) -> Future[Accepted]:
        """Refused: there is no engine."""
        self._refuse()

    def files_left(self, operation: Drop) -> LineFiles:
        """Refused: there is no engine."""
        self._refuse()

    def ask(self, question: Callable[[Engine], Result]) -> Future[Result]:
        """Refused: there is no engine."""
        self._refuse()

    def reads(self, engine: Engine, site: str, job: str) -> frozenset[str]:
        """No attempt runs."""
        return frozenset()

    @property
    def pending_effects(self) -> None:
        """Nothing is pending."""

    def unpublished(self, job: str) -> int:
        """Always 0: without an engine there is no query."""
        self._refuse()

    def publishing_fault(self, job: str) -> None:
        """Always None: without an engine there is no query."""
        self._refuse()

    def needed_contents(self) -> frozenset[str]:
        """No job runs."""
        return frozenset()

    def expansion_of(self, job: str) -> None:
        """No job runs."""

    def note_retained(self, action: Action) -> None:
        """Retention does not run meanwhile."""

    def _refuse(self) -> NoReturn:
        from pilotage.service.errors import NotRunning

        raise NotRunning("no service runs in this folder", subject=str(self._folder))
