"""Jobs that are run here, over HTTP: submitted with what they bring along, planned, and cleared."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from litestar import Response, post
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import HeaderParameter

from pilotage.book.rows import JobRow
from pilotage.engine.engine import Engine
from pilotage.model.operations import Accepted, AnyOperation
from pilotage.model.outcomes import ClearedBy
from pilotage.model.submission import Origin, RunPlan, Submission, SubmissionAnswer
from pilotage.model.work import AgentSays
from pilotage.ports import FileStore, Journal, WorkIndex
from pilotage.service.access import ANY_OWNER, SUBMIT, Forbidden, Principal, require, require_scope
from pilotage.service.http.errors import BookOnly, Malformed, faults
from pilotage.service.http.parameters import JobPath
from pilotage.service.http.services import Ask, Book, Services
from pilotage.service.http.views import View
from pilotage.service.retention import Action

SUBMISSION_BYTES_MAX = 2**30
CONTENT_BYTES_MAX = 256 * 2**20
KEYS_REMEMBERED = 10_000

Told = TypeVar("Told")
OnceKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=128,
        description="A text of the client's own: a request that is repeated with it is done once.",
    ),
]

_submission = msgspec.json.Decoder(Submission)
_origin = msgspec.json.Decoder(Origin)
_lists = msgspec.json.Decoder(dict[str, str])


class RunsJobs(Protocol):
    """What runs the jobs of this service."""

    @property
    def alive(self) -> bool:
        """Whether what is asked will be answered."""
        ...

    @property
    def store(self) -> FileStore:
        """The files of its jobs."""
        ...

    @property
    def index(self) -> WorkIndex:
        """What was made before, and the logs."""
        ...

    def exchange(self, says: AgentSays) -> Future[bytes]:
        """What an agent says; the answer as it goes over the wire."""
        ...

    def submit(self, submission: Submission) -> Future[SubmissionAnswer]:
        """Bring a job in."""
        ...

    def operate(self, operation: AnyOperation) -> Future[Accepted]:
        """Ask for an operation; fails with `OperationRefused`."""
        ...

    def ask(self, question: Callable[[Engine], Told]) -> Future[Told]:
        """Have a question answered between two steps."""
        ...

    def unpublished(self, job: str) -> int:
        """How many grants of a job have not led to files under their names; to be asked within a question only."""
        ...

    def seen_to(self, action: Action) -> None:
        """The book has cleared, sealed or purged a finished job."""
        ...

    def clear(self, job: str, *, by: ClearedBy) -> Future[Accepted]:
        """The outputs of a finished job were handed over."""
        ...

    def start(self) -> None:
        """Go on from what the book says."""
        ...

    def stop(self) -> None:
        """Let what is under way be written, and end."""
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

    def __init__(self, jobs: RunsJobs, *, journal: Journal, plan: Plan) -> None:
        """Take what runs them, and what says beforehand what that would come to; nothing runs before `start`."""
        self.jobs = jobs
        self.plan = plan
        self.asked = Asked()
        self._journal = journal
        self._origin = lru_cache(maxsize=4096)(self._read_origin)
        self._once: OrderedDict[tuple[str, str], asyncio.Future[Any]] = OrderedDict()

    def start(self) -> None:
        """Go on with the jobs of the book."""
        self.jobs.start()

    def stop(self) -> None:
        """End in good order."""
        self.jobs.stop()

    def folder_of(self, row: JobRow) -> str | None:
        """The folder of a job's results; None of a job that is not run here."""
        origin = _lists.decode(row.lists).get("origin")
        return self._origin(origin) if origin is not None else None

    def _read_origin(self, sha256: str) -> str | None:
        content = self._journal.content(sha256)
        return _origin.decode(content).folder if content is not None else None

    async def once(self, principal: Principal, key: str | None, do: Callable[[], Awaitable[Told]]) -> Told:
        """Do something, but not again what was done under the same key; what failed may be tried again."""
        if key is None:
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


def running_of(services: Services) -> Running:
    """What runs jobs here; raises `BookOnly` where nothing does."""
    if services.running is None:
        raise BookOnly(
            "this service keeps the book, and runs nothing", next_step="start it without --book-only: pilotage serve"
        )
    return services.running


class ContentView(View, frozen=True, kw_only=True):
    """Under which name bytes were kept."""

    sha256: str


class ClearedView(View, frozen=True, kw_only=True):
    """That the outputs of a job were handed over."""

    job: str


def _any_json(description: str) -> RequestBody:
    schema = Schema(type=OpenAPIType.OBJECT)
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=schema)}, required=True, description=description
    )


def _any_bytes() -> RequestBody:
    schema = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
    return RequestBody(content={"application/octet-stream": OpenAPIMediaType(schema=schema)}, required=True)


@dataclass
class SubmissionOperation(Operation):
    """The operation whose body is a submission, which the handler reads by itself."""

    def __post_init__(self) -> None:
        """Say what the body is: no signature does."""
        self.request_body = _any_json("A checked definition with its resolved lists, the folder, and what it captured.")


@dataclass
class ContentOperation(Operation):
    """The operation whose body is bytes."""

    def __post_init__(self) -> None:
        """Say what the body is: no signature does."""
        self.request_body = _any_bytes()


@post(
    "/v1/jobs",
    operation_id="submit_job",
    operation_class=SubmissionOperation,
    summary="Submit a job",
    tags=["running"],
    responses=faults(400, 401, 403, 409, 413, 422, 503, 507),
    request_max_body_size=SUBMISSION_BYTES_MAX,
)
async def submit_job(request: Ask, services: Book, key: OnceKey = None) -> SubmissionAnswer:
    """Have a job run. It is in the book when the answer comes; what it needs was sent to `/v1/content` before."""
    running = running_of(services)
    submission = await _submitted(request, services)
    return await running.once(request.user, key, lambda: asyncio.wrap_future(running.jobs.submit(submission)))


@post(
    "/v1/plan",
    status_code=200,
    operation_id="plan_job",
    operation_class=SubmissionOperation,
    summary="What running a job would come to",
    tags=["running"],
    responses=faults(400, 401, 403, 409, 413, 422, 503),
    request_max_body_size=SUBMISSION_BYTES_MAX,
)
async def plan_job(request: Ask, services: Book) -> RunPlan:
    """What would run, what is there already, and why; nothing is kept and nothing is spent."""
    running = running_of(services)
    submission = await _submitted(request, services)
    return await services.ask(running.plan, submission)


async def _submitted(request: Ask, services: Services) -> Submission:
    require_scope(request.user, SUBMIT)
    body = await request.body()

    def read() -> Submission:
        try:
            return _submission.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise Malformed(f"the body is no submission: {fault}") from None

    submission = await services.ask(read)
    owner = submission.owner or request.user.user
    if owner != request.user.user and ANY_OWNER not in request.user.scopes:
        raise Forbidden(
            "jobs are submitted for oneself",
            subject=f"owner {owner[:64]}",
            expected=request.user.user,
            next_step=f"leave the owner out, or show a token with {ANY_OWNER}",
        )
    return msgspec.structs.replace(submission, owner=owner)


@post(
    "/v1/content",
    operation_id="put_content",
    operation_class=ContentOperation,
    summary="Keep bytes that a job brings along",
    tags=["running"],
    responses=faults(400, 401, 403, 409, 413, 503, 507),
    request_max_body_size=CONTENT_BYTES_MAX,
)
async def put_content(request: Ask, services: Book) -> ContentView:
    """Keep bytes by their sha256; the same ones are kept once."""
    running_of(services)
    require_scope(request.user, SUBMIT)
    body = await request.body()
    return ContentView(sha256=await services.ask(services.journal.put_content, body))


@post(
    "/v1/jobs/{job:str}/clear",
    status_code=200,
    operation_id="clear_job",
    summary="Say that the outputs of a job were taken over",
    tags=["running"],
    responses=faults(400, 401, 403, 404, 409, 410, 503),
)
async def clear_job(request: Ask, services: Book, job: JobPath) -> Response[ClearedView]:
    """Record that its owner has the outputs; done again, it changes nothing."""
    running = running_of(services)
    row = await services.ask(services.reading.job, request.user, job)
    require(request.user, "modify", row)
    if row.cleared_at is None:
        await asyncio.wrap_future(running.jobs.clear(job, by="user"))
    return Response(ClearedView(job=job))


RUNNING_ROUTES = (submit_job, plan_job, put_content, clear_job)
