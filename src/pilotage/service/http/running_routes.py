"""Jobs that are run here, over HTTP: submitted with what they bring along, planned, cleared and purged; and what their documents no longer make."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pilotage.model.cleaning import ObsoleteFiles
from pilotage.model.operations import Refused
from pilotage.model.submission import RunPlan, SubmissionAnswer
from pilotage.service.access import OPERATE, SUBMIT
from pilotage.service.http.parameters import JobPath
from pilotage.service.http.routes import Ask, Book, in_header, post
from pilotage.service.http.running import CONTENT_BYTES_MAX, ONCE_KEY_LENGTH_MAX, SUBMISSION_BYTES_MAX
from pilotage.service.http.services import running_of
from pilotage.service.http.submissions import (
    ClearedView,
    ContentView,
    keep_content,
    read_clean_request,
    read_submission,
    submit,
)
from pilotage.service.retention import Action
from pilotage.service.running.errors import OperationRefused

OnceKey = Annotated[
    str | None,
    in_header(
        "Idempotency-Key",
        "A text of the client's own: a request that is repeated with it is done once.",
        max_length=ONCE_KEY_LENGTH_MAX,
    ),
]


@post(
    "/v1/jobs",
    operation_id="submit_job",
    needs=(SUBMIT,),
    body="submission",
    summary="Submit a job",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 422, 503, 507),
    body_bytes_max=SUBMISSION_BYTES_MAX,
)
async def submit_job(request: Ask, services: Book, key: OnceKey = None) -> SubmissionAnswer:
    """Have a job run. It is in the book when the answer comes; what it needs was sent to `/v1/content` before."""
    return await submit(services, request.user, await request.body(), key=key)


@post(
    "/v1/plan",
    status=200,
    operation_id="plan_job",
    needs=(SUBMIT,),
    body="submission",
    summary="What running a job would come to",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 422, 503),
    body_bytes_max=SUBMISSION_BYTES_MAX,
)
async def plan_job(request: Ask, services: Book) -> RunPlan:
    """What would run, what is there already, and why; nothing is kept and nothing is spent."""
    running = running_of(services)
    submission = await read_submission(services, request.user, await request.body())
    return await services.do(running.plan, submission)


@post(
    "/v1/clean",
    status=200,
    operation_id="clean",
    needs=(SUBMIT, OPERATE),
    body="clean",
    summary="Remove what earlier runs of a document made and it no longer makes",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 422, 503),
    body_bytes_max=SUBMISSION_BYTES_MAX,
)
async def clean(request: Ask, services: Book) -> ObsoleteFiles:
    """What can be removed, and what stays and why; removed is what the request names, as far as it is still the same."""
    running = running_of(services)
    wanted = await read_clean_request(services, request.user, await request.body())
    return await asyncio.wrap_future(running.jobs.clean(wanted))


@post(
    "/v1/content",
    operation_id="put_content",
    needs=(SUBMIT,),
    body="content",
    summary="Keep bytes that a job brings along",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503, 507),
    body_bytes_max=CONTENT_BYTES_MAX,
)
async def put_content(request: Ask, services: Book) -> ContentView:
    """Keep bytes by their sha256; the same ones are kept once."""
    return await keep_content(services, await request.body())


@post(
    "/v1/jobs/{job:str}/clear",
    status=200,
    operation_id="clear_job",
    needs=(OPERATE,),
    summary="Say that the outputs of a job were taken over",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def clear_job(request: Ask, services: Book, job: JobPath) -> ClearedView:
    """Record that its owner has the outputs; done again, it changes nothing."""
    running = running_of(services)
    row = await services.ask(services.reading.job_to_change, request.user, job, "modify")
    if row.cleared_at is None:
        await asyncio.wrap_future(running.jobs.clear(job, by="user"))
    return ClearedView(job=job)


@post(
    "/v1/jobs/{job:str}/purge",
    status=200,
    operation_id="purge_job",
    needs=(OPERATE,),
    summary="Forget a job that is cleared",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def purge_job(request: Ask, services: Book, job: JobPath) -> ClearedView:
    """Forget everything of a job but that it was purged. Its files stay; it must be cleared, and nothing of it under way."""
    running = running_of(services)
    row = await services.ask(services.reading.job_to_change, request.user, job, "modify")
    if row.cleared_at is None:
        raise _not_over(job, "it is not cleared", "take over its outputs first: pilotage outputs")
    now = services.clock.now()
    running.jobs.seen_to(Action(deed="clear", job=job, since=now, why="it is to be purged"))
    if await asyncio.wrap_future(running.jobs.ask(lambda engine: job in engine.state.jobs.by_id)):
        raise _not_over(job, "something of it is under way", "ask again when that has ended")
    await services.do(lambda: services.journal.purge(job, at=now))
    running.jobs.seen_to(Action(deed="purge", job=job, since=now, why="somebody asked for it"))
    return ClearedView(job=job)


def _not_over(job: str, why: str, next_step: str) -> OperationRefused:
    message = f"the job {job} cannot be purged: {why}"
    return OperationRefused(Refused(code="job-unfinished", message=message, subject=job, next_step=next_step))


RUNNING_ROUTES = (submit_job, plan_job, clean, put_content, clear_job, purge_job)
