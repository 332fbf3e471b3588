"""Which status and which words each error becomes: the one place that knows both. Never a traceback, never a secret."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from pilotage.book.codec import MalformedBatch
from pilotage.book.query import CursorError, QueryError, QueryTooBroad
from pilotage.book.subscriptions import SubscriptionError
from pilotage.model.errors import DocumentError, PilotageError, Problem
from pilotage.ports import BadAddress, JournalError, JournalFull, JournalUnavailable, NotOurs, StoreError
from pilotage.service.access import Forbidden, Unauthenticated
from pilotage.service.running.driver import NotRunning, OperationRefused, Superseded
from pilotage.service.subscriptions import NotPolled, TooManySubscriptions, UnknownSubscription
from pilotage.service.unknown import JobPurged, UnknownJob, UnknownPackage
from pilotage.service.writer import WriterBusy, WriterStopped

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 2
AnyRequest = Request[Any, Any, Any]
AnyResponse = Response[Any]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong: a word for programs, a sentence for people, and what to do next."""

    code: str
    message: str
    hint: str = ""
    purged_at: float | None = None
    problems: tuple[Problem, ...] = ()  # every fault of a document that was refused


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """How every error is answered."""

    error: ErrorBody


class BatchTooLarge(PilotageError):
    """More events or bytes than one batch may have. Nothing of it was kept; send smaller ones."""


class BadParameter(PilotageError):
    """A parameter that is not known here; nothing is ignored in silence."""


class BookOnly(PilotageError):
    """The service keeps the book and runs nothing: start one that does, with `pilotage serve`."""


class Malformed(PilotageError):
    """A body that cannot be read; nothing of it was done."""


class TooLarge(PilotageError):
    """More bytes than are taken at once."""


class NotARange(PilotageError):
    """A piece of a file that is not in it."""


class UnknownContent(PilotageError):
    """No such file, log or content is kept here."""


class _Status(msgspec.Struct, frozen=True):
    """A status and its word; `message` stands in place of the error's own words where those are not for everybody."""

    status: int
    code: str
    message: str = ""


# The first class that fits decides, so the narrower ones stand first.
STATUSES: Mapping[type[Exception], _Status] = {
    Unauthenticated: _Status(401, "unauthenticated"),
    Forbidden: _Status(403, "forbidden"),
    UnknownJob: _Status(404, "unknown_job"),
    UnknownPackage: _Status(404, "unknown_package"),
    UnknownSubscription: _Status(404, "unknown_subscription"),
    JobPurged: _Status(410, "purged"),
    TooManySubscriptions: _Status(409, "too_many_subscriptions"),
    NotPolled: _Status(409, "not_polled"),
    SubscriptionError: _Status(400, "bad_subscription"),
    BadAddress: _Status(400, "bad_address"),
    QueryTooBroad: _Status(422, "too_broad"),
    QueryError: _Status(400, "bad_query"),
    CursorError: _Status(400, "bad_cursor"),
    BadParameter: _Status(400, "bad_parameter"),
    MalformedBatch: _Status(400, "malformed"),
    Malformed: _Status(400, "malformed"),
    BatchTooLarge: _Status(413, "too_large"),
    TooLarge: _Status(413, "too_large"),
    NotARange: _Status(416, "not_a_range"),
    UnknownContent: _Status(404, "unknown_content"),
    BookOnly: _Status(409, "book_only"),
    Superseded: _Status(409, "superseded"),
    NotRunning: _Status(503, "stopping"),
    DocumentError: _Status(422, "bad_document"),
    NotOurs: _Status(409, "not_ours"),
    StoreError: _Status(409, "store"),
    OperationRefused: _Status(409, "refused"),  # or what the engine calls it
    WriterBusy: _Status(503, "busy"),
    WriterStopped: _Status(503, "stopping"),
    JournalFull: _Status(507, "full", "there is no room left to write: nothing of this was kept"),
    JournalUnavailable: _Status(503, "unavailable", "the book cannot be reached: whatever was acknowledged is safe"),
    JournalError: _Status(500, "journal", "the book cannot be used as it is; the log of the service says why"),
}

_MEANINGS: Mapping[int, str] = {
    400: "The request cannot be read: a bad parameter, query, cursor or body.",
    401: "No token, or one that is not known.",
    403: "The token has not the scope, or its user not the right on the job.",
    404: "There is no such job, package, subscription, file or log.",
    409: "It does not go with what there is; the code says what stands in its way.",
    410: "The job was purged.",
    413: "The batch is too large; nothing of it was kept.",
    422: "No index serves the query; or the document has faults.",
    503: "Busy, stopping, or the book cannot be reached; try again after the time that Retry-After names.",
    507: "No room left to write; nothing was kept.",
}


def faults(*statuses: int) -> dict[int, ResponseSpec]:
    """The errors that a route may answer, for its documentation."""
    return {
        status: ResponseSpec(
            data_container=ErrorView, description=_MEANINGS[status], generate_examples=False, media_type=MediaType.JSON
        )
        for status in statuses
    }


def error_of(error: Exception) -> tuple[int, ErrorBody]:
    """The status and the words of an error; one that nobody foresaw is told in its own words to the log alone."""
    answer = next((answer for kind, answer in STATUSES.items() if isinstance(error, kind)), None)
    if answer is None:
        return 500, ErrorBody(code="internal", message="the service failed at this; its log says why")
    if answer.message:
        return answer.status, ErrorBody(code=answer.code, message=answer.message, hint="try again later")
    if isinstance(error, OperationRefused):
        unknown = error.code.startswith("unknown-")
        return 404 if unknown else answer.status, _told(error.code.replace("-", "_"), error)
    return answer.status, _told(answer.code, error)


def on_pilotage_error(request: AnyRequest, error: Exception) -> AnyResponse:
    """An error of ours."""
    status, body = error_of(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="pilotage"'
    if status in (503, 507):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if isinstance(error, JournalError):
        log.error("%s %s: %s", request.method, request.url.path, error)
    return _answer(status, body, headers) if body.code != "internal" else on_surprise(request, error)


def on_http_error(request: AnyRequest, error: HTTPException) -> AnyResponse:
    """An error of the framework: no such path, not this method, a parameter that cannot be read."""
    headers = dict(error.headers or {})
    match error:
        case ValidationException():
            body = ErrorBody(code="bad_parameter", message=_faulty(error))
        case MethodNotAllowedException():
            body = ErrorBody(code="method_not_allowed", message=f"{request.method} is not possible here")
        case NotFoundException():
            body = ErrorBody(code="not_found", message="there is nothing here", hint="what there is: GET /schema")
        case _ if error.status_code == 413:
            body = ErrorBody(
                code="too_large", message="the body is too large: nothing was kept", hint="send smaller batches"
            )
        case _ if error.status_code < 500:
            body = ErrorBody(code="bad_request", message=error.detail)
        case _:
            return on_surprise(request, error)
    return _answer(error.status_code, body, headers)


def on_surprise(request: AnyRequest, error: Exception) -> AnyResponse:
    """An error that nobody foresaw: what it was stands in the log and nowhere else."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    body = ErrorBody(code="internal", message="the service failed at this; its log says why")
    return _answer(500, body, {})


def _answer(status: int, body: ErrorBody, headers: Mapping[str, str]) -> AnyResponse:
    return Response(ErrorView(error=body), status_code=status, headers=dict(headers), media_type=MediaType.JSON)


def _told(code: str, error: Exception) -> ErrorBody:
    if not isinstance(error, PilotageError):
        return ErrorBody(code=code, message=str(error))
    message = f"{error.subject}: {error.what}" if error.subject else error.what
    message += f"; expected {error.expected}" if error.expected else ""
    message += f", got {error.got}" if error.got else ""
    hint = error.next_step
    if isinstance(error, QueryError) and error.caret:
        hint = f"{error.caret}\n{hint}".rstrip()
    purged_at = error.purged_at if isinstance(error, JobPurged) else None
    if purged_at is not None:
        message += f", on {datetime.fromtimestamp(purged_at, UTC):%Y-%m-%d %H:%M} UTC"
    problems = error.problems if isinstance(error, DocumentError) else ()
    return ErrorBody(code=code, message=message, hint=hint, purged_at=purged_at, problems=problems)


def _faulty(error: ValidationException) -> str:
    parts = error.extra if isinstance(error.extra, list) else []
    told = "; ".join(f"{part.get('key', 'parameter')}: {part.get('message', '')}" for part in parts)
    return told or error.detail
