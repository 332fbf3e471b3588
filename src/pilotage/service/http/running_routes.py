"""Jobs that are run here, over HTTP: submitted with what they bring along, planned, cleared and purged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from litestar import Response, post
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import HeaderParameter

from pilotage.model.operations import Refused
from pilotage.model.submission import RunPlan, SubmissionAnswer
from pilotage.service.access import require
from pilotage.service.http.asking import Ask, Book
from pilotage.service.http.error_responses import faults
from pilotage.service.http.parameters import JobPath
from pilotage.service.http.running import (
    CONTENT_BYTES_MAX,
    ONCE_KEY_LENGTH_MAX,
    SUBMISSION_BYTES_MAX,
    ClearedView,
    ContentView,
    keep_content,
    read_submission,
    running_of,
    submit,
)
from pilotage.service.retention import Action
from pilotage.service.running.errors import OperationRefused

OnceKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=ONCE_KEY_LENGTH_MAX,
        description="A text of the client's own: a request that is repeated with it is done once.",
    ),
]


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
    return await submit(services, request.user, await request.body(), key=key)


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
    submission = await read_submission(services, request.user, await request.body())
    return await services.ask(running.plan, submission)


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
    return await keep_content(services, request.user, await request.body())


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


@post(
    "/v1/jobs/{job:str}/purge",
    status_code=200,
    operation_id="purge_job",
    summary="Forget a job that is cleared",
    tags=["running"],
    responses=faults(400, 401, 403, 404, 409, 410, 503),
)
async def purge_job(request: Ask, services: Book, job: JobPath) -> Response[ClearedView]:
    """Forget everything of a job but that it was purged. Its files stay; it must be cleared, and nothing of it under way."""
    running = running_of(services)
    row = await services.ask(services.reading.job, request.user, job)
    require(request.user, "modify", row)
    if row.cleared_at is None:
        raise _not_over(job, "it is not cleared", "take over its outputs first: pilotage outputs")
    now = services.clock.now()
    running.jobs.seen_to(Action(deed="clear", job=job, since=now, why="it is to be purged"))
    if await asyncio.wrap_future(running.jobs.ask(lambda engine: job in engine.jobs)):
        raise _not_over(job, "something of it is under way", "ask again when that has ended")
    await services.ask(lambda: services.journal.purge(job, at=now))
    running.jobs.seen_to(Action(deed="purge", job=job, since=now, why="somebody asked for it"))
    return Response(ClearedView(job=job))


def _not_over(job: str, why: str, next_step: str) -> OperationRefused:
    message = f"the job {job} cannot be purged: {why}"
    return OperationRefused(Refused(code="job-unfinished", message=message, subject=job, next_step=next_step))


RUNNING_ROUTES = (submit_job, plan_job, put_content, clear_job, purge_job)
