"""Operations over HTTP: on one job or package, or on everything that a query finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec

from pilotage.book.rows.rows import JobRow
from pilotage.model.answers import ObsoleteFiles
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    Drop,
    Hold,
    Kill,
    NotDone,
    OperatedOn,
    OperationOn,
    Refused,
    Release,
    Replicate,
    Reschedule,
    Restart,
    Restore,
)
from pilotage.model.jobs.submission import RunPlan, SubmissionAnswer
from pilotage.reading.access import OPERATE, READ, SUBMIT, Right, may
from pilotage.reading.packages import ShownPackage
from pilotage.service.errors import OperationRefused
from pilotage.service.http.backend import CONTENT_BYTES_MAX, ONCE_KEY_LENGTH_MAX, SUBMISSION_BYTES_MAX, JobBackend
from pilotage.service.http.errors import Malformed
from pilotage.service.http.routing import ApiRequest, JobPath, ServicesArgument, in_header, post
from pilotage.service.http.services import Services, backend_of
from pilotage.service.http.submissions import (
    ClearedView,
    ContentView,
    keep_content,
    read_clean_request,
    read_submission,
    submit,
)
from pilotage.service.journal.retention import Action

# Jobs that run here, over HTTP: submit, plan, clear and purge them, and clean up files that their documents no longer
# make.

OnceKey = Annotated[
    str | None,
    in_header(
        "Idempotency-Key",
        "An idempotency key: a request repeated with the same key is carried out once.",
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
async def submit_job(request: ApiRequest, services: ServicesArgument, key: OnceKey = None) -> SubmissionAnswer:
    """Submit a job. It is in the book when the answer comes; its files were sent to `/v1/content` before."""
    return await submit(services, request.user, await request.body(), key=key)


@post(
    "/v1/plan",
    status=200,
    operation_id="plan_job",
    needs=(SUBMIT,),
    body="submission",
    summary="What running a job would do",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 422, 503),
    body_bytes_max=SUBMISSION_BYTES_MAX,
)
async def plan_job(request: ApiRequest, services: ServicesArgument) -> RunPlan:
    """Which packages would run, which results exist, and why; stores nothing and runs nothing."""
    backend = backend_of(services)
    submission = await read_submission(services, request.user, await request.body())
    return await services.do(backend.plan, submission)


@post(
    "/v1/clean",
    status=200,
    operation_id="clean",
    needs=(SUBMIT, OPERATE),
    body="clean",
    summary="Remove files of earlier runs that a document no longer makes",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 422, 503),
    body_bytes_max=SUBMISSION_BYTES_MAX,
)
async def clean(request: ApiRequest, services: ServicesArgument) -> ObsoleteFiles:
    """The files that can be removed, and those that stay and why; those the request names are removed if unchanged."""
    backend = backend_of(services)
    wanted = await read_clean_request(services, request.user, await request.body())
    return await asyncio.wrap_future(backend.jobs.clean(wanted))


@post(
    "/v1/content",
    operation_id="put_content",
    needs=(SUBMIT,),
    body="content",
    summary="Store a file that a job brings along",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503, 507),
    body_bytes_max=CONTENT_BYTES_MAX,
)
async def put_content(request: ApiRequest, services: ServicesArgument) -> ContentView:
    """Store bytes under their sha256; the same bytes are stored once."""
    return await keep_content(services, await request.body())


@post(
    "/v1/jobs/{job:str}/clear",
    status=200,
    operation_id="clear_job",
    needs=(OPERATE,),
    summary="Record that the outputs of a job were handed over",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def clear_job(request: ApiRequest, services: ServicesArgument, job: JobPath) -> ClearedView:
    """Record that the owner has the outputs; doing it again changes nothing."""
    backend = backend_of(services)
    row = await services.ask(services.reader.job_to_change, request.user, job, "modify")
    if row.cleared_at is None:
        await asyncio.wrap_future(backend.jobs.clear(job, by="user"))
    return ClearedView(job=job)


@post(
    "/v1/jobs/{job:str}/purge",
    status=200,
    operation_id="purge_job",
    needs=(OPERATE,),
    summary="Delete a cleared job from the book",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def purge_job(request: ApiRequest, services: ServicesArgument, job: JobPath) -> ClearedView:
    """Delete everything about a job except its row. Its files stay; it must be cleared, and nothing of it running."""
    backend = backend_of(services)
    row = await services.ask(services.reader.job_to_change, request.user, job, "modify")
    if row.cleared_at is None:
        raise _not_over(job, "it is not cleared", "fetch its outputs first: pilotage outputs")
    now = services.clock.now()
    backend.jobs.note_retained(Action(deed="clear", job=job, since=now, why="it is being purged"))
    if await asyncio.wrap_future(backend.jobs.ask(lambda engine: job in engine.state.jobs.by_id)):
        raise _not_over(job, "something of it still runs", "ask again when that has ended")
    if services.records is not None:
        await services.do(services.records.record, job)
    await services.do(lambda: services.journal.purge(job, at=now))
    backend.jobs.note_retained(Action(deed="purge", job=job, since=now, why="on request"))
    return ClearedView(job=job)


def _not_over(job: str, why: str, next_step: str) -> OperationRefused:
    message = f"the job {job} cannot be purged: {why}"
    return OperationRefused(Refused(code="job-unfinished", message=message, subject=job, next_step=next_step))


RUNNING_ROUTES = (submit_job, plan_job, clean, put_content, clear_job, purge_job)

PAGE_ROWS = 1000
NOT_DONE_MAX = 100
"""Refused packages or jobs that an answer lists one by one."""

KINDS: dict[str, type[AnyOperation]] = {
    "kill": Kill, "hold": Hold, "release": Release, "drop": Drop, "restore": Restore, "restart": Restart,
    "reschedule": Reschedule, "replicate": Replicate,
}  # fmt: skip
_OF_JOBS = ("kill", "hold", "release", "restart")
_OF_LINES = ("drop", "restore")
_WITH_MESSAGE = ("kill", "hold", "restart", "reschedule")


def right_for(operation: AnyOperation | str) -> Right:
    """The right on a job that an operation needs."""
    return "cancel" if operation == "kill" or isinstance(operation, Kill) else "modify"


@post(
    "/v1/jobs/{job:str}/operations",
    status=200,
    operation_id="operate",
    needs=(OPERATE,),
    body="operation",
    summary="Kill, hold, release, restart … a job or a part of it",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def operate(request: ApiRequest, services: ServicesArgument, job: JobPath, key: OnceKey = None) -> Accepted:
    """Apply an operation to a job, a package or a line. It is in the book when the answer comes, as `events` events."""
    backend = backend_of(services)
    operation = _operation(await request.body(), job)
    await services.ask(services.reader.job_to_change, request.user, job, right_for(operation))
    if isinstance(operation, Drop):
        drop = operation
        return await backend.once(request.user, key, lambda: _drop(request, services, backend, drop))
    return await backend.once(request.user, key, lambda: asyncio.wrap_future(backend.jobs.operate(operation)))


async def _drop(request: ApiRequest, services: Services, backend: JobBackend, operation: Drop) -> Accepted:
    """Drop a line; the answer says which of its files were removed, or how many stay."""
    accepted = await asyncio.wrap_future(backend.jobs.drop(operation, by=request.user.user))
    if operation.remove_files:
        return accepted
    return msgspec.structs.replace(accepted, files=await services.ask(backend.jobs.files_left, operation))


def _operation(body: bytes, job: str) -> AnyOperation:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        kind = KINDS.get(fields.pop("operation", ""))
        if kind is None:
            raise Malformed("no such operation", expected=", ".join(KINDS))
        fields["job"] = job
        unknown = [name for name in fields if name not in kind.__struct_fields__]
        if unknown:
            raise Malformed("no such field", subject=unknown[0][:64], expected=", ".join(kind.__struct_fields__[1:]))
        operation: AnyOperation = msgspec.convert(fields, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Malformed(f"the body is not an operation: {fault}") from None
    if isinstance(operation, Drop | Restore) and (operation.stage < 1 or operation.line < 1):
        raise Malformed("there is no such line", expected="stage and line, each from 1")
    if isinstance(operation, Kill) and (operation.stage, operation.line) != (0, 0):
        _check_line(operation)
    return operation


def _check_line(operation: Kill) -> None:
    if min(operation.stage, operation.line) < 1 or operation.package:
        raise Malformed("there is no such line", expected="stage and line, each from 1, and no package")


@post(
    "/v1/operations",
    status=200,
    operation_id="operate_on",
    needs=(READ, OPERATE),
    body="operation on many",
    summary="Apply an operation to everything that a query finds",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 422, 503),
)
async def operate_on(request: ApiRequest, services: ServicesArgument, key: OnceKey = None) -> OperatedOn:
    """Apply one operation to every package or job that a query finds; a refusal for one does not stop the others."""
    backend = backend_of(services)
    try:
        wanted = msgspec.json.decode(await request.body(), type=OperationOn)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Malformed(f"the body is not an operation with a query: {fault}") from None
    _check(wanted)
    return await backend.once(request.user, key, lambda: _on_all(request, services, backend, wanted))


def _check(wanted: OperationOn) -> None:
    if wanted.operation not in KINDS:
        raise Malformed("no such operation", subject=wanted.operation[:64], expected=", ".join(KINDS))
    if wanted.target not in ("jobs", "packages"):
        raise Malformed("no such target", subject=wanted.target[:64], expected="packages or jobs")
    if wanted.target == "jobs" and wanted.operation not in _OF_JOBS:
        raise Malformed(
            "this operation applies to packages, not to jobs", subject=wanted.operation, expected=", ".join(_OF_JOBS)
        )
    if not wanted.where.strip():
        raise Malformed("the query is empty", subject="where", next_step="write `all` to mean everything")


async def _on_all(request: ApiRequest, services: Services, backend: JobBackend, wanted: OperationOn) -> OperatedOn:
    found = done = refused = 0
    not_done: list[NotDone] = []
    lines_requested: set[tuple[str, int, int]] = set()  # lines that were requested already
    async for page in _pages(request, services, wanted):
        asked: list[tuple[str, AnyOperation | None]] = []
        for row, package in page:
            operation, subject = _one(wanted, row, package, lines_requested)
            if operation is None:
                continue
            allowed = may(request.user, right_for(wanted.operation), row)
            asked.append((subject, operation if allowed else None))
        found += len(asked)
        answers = await asyncio.gather(
            *(asyncio.wrap_future(backend.jobs.operate(each)) for _, each in asked if each is not None),
            return_exceptions=True,
        )
        following = iter(answers)
        for subject, operation in asked:
            fault = None if operation is None else next(following)
            if isinstance(fault, Accepted):
                done += 1
                continue
            refused += 1
            if isinstance(fault, BaseException) and not isinstance(fault, OperationRefused):
                raise fault
            if len(not_done) < NOT_DONE_MAX:
                not_done.append(_not_done(subject, fault))
    return OperatedOn(found=found, done=done, refused=refused, told=tuple(not_done))


def _not_done(subject: str, fault: OperationRefused | None) -> NotDone:
    if fault is None:
        return NotDone(subject=subject, code="forbidden", message="you may not do this; ask its owner")
    return NotDone(subject=subject, code=fault.code.replace("-", "_"), message=fault.what)


def _one(
    wanted: OperationOn, job: JobRow, package: ShownPackage | None, lines_requested: set[tuple[str, int, int]]
) -> tuple[AnyOperation | None, str]:
    """The operation for one match, and the name of that match; None if it was requested already."""
    fields: dict[str, Any] = {"job": job.job}
    subject = job.job
    if package is not None and wanted.operation in _OF_LINES:
        line = (job.job, package.place.stage, package.place.line)
        subject = f"{job.job}/{line[1]}.{line[2]}"
        if line in lines_requested:
            return None, subject
        lines_requested.add(line)
        fields |= {"stage": line[1], "line": line[2]}
    elif package is not None:
        fields["package"] = package.place.dotted
        subject = f"{job.job}/{package.place.dotted}"
    if wanted.message and wanted.operation in _WITH_MESSAGE:
        fields["message"] = wanted.message
    made: AnyOperation = KINDS[wanted.operation](**fields)
    return made, subject


async def _pages(
    request: ApiRequest, services: Services, wanted: OperationOn
) -> AsyncIterator[list[tuple[JobRow, ShownPackage | None]]]:
    """The matches of a query, page by page in key order, so that each is seen once even if it changes meanwhile."""
    reader, user = services.reader, request.user
    cursor: str | None = None
    while True:
        if wanted.target == "jobs":
            jobs = await services.ask(lambda at: reader.jobs(user, wanted.where, cursor=at, limit=PAGE_ROWS), cursor)
            cursor = jobs.next
            yield [(row, None) for row in jobs.items if wanted.job in ("", row.job)]
        else:
            packages = await services.ask(_find, services, request, wanted, cursor)
            cursor = packages.next
            yield [(each.job, each) for each in packages.items]
        if cursor is None:
            return


def _find(services: Services, request: ApiRequest, wanted: OperationOn, cursor: str | None) -> Any:
    reader = services.reader
    if wanted.job:
        row = reader.job(request.user, wanted.job)
        return reader.packages_of(row, wanted.where, cursor=cursor, limit=PAGE_ROWS)
    return reader.packages(request.user, wanted.where, cursor=cursor, limit=PAGE_ROWS)


OPERATION_ROUTES = (operate, operate_on)
