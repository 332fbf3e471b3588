"""Errors as the application answers them, and as its documentation tells of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from pilotage.ports import JournalError
from pilotage.service.http.errors import ErrorBody, ErrorView, error_of, headers_of
from pilotage.service.http.messages import HungUp

log = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]
AnyResponse = Response[Any]

_MEANINGS: Mapping[int, str] = {
    400: "The request cannot be read: a bad parameter, query, cursor or body.",
    401: "No token, or one that is not known.",
    403: "The token has not the scope, or its user may read the job and not do this to it.",
    404: "There is no such job, package, subscription, file or log, or none that one may know of.",
    409: "It does not go with what there is; the code says what stands in its way.",
    410: "The job was purged.",
    413: "The batch is too large; nothing of it was kept.",
    425: "The clock of the sender may be wrong; nothing was kept. Send the same again, with the time of the answer.",
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


def on_pilotage_error(request: AnyRequest, error: Exception) -> AnyResponse:
    """An error of ours."""
    status, body = error_of(error)
    if isinstance(error, JournalError):
        log.error("%s %s: %s", request.method, request.url.path, error)
    headers = headers_of(status, error)
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
    if not isinstance(error, HungUp):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    body = ErrorBody(code="internal", message="the service failed at this; its log says why")
    return _answer(500, body, {})


def _answer(status: int, body: ErrorBody, headers: Mapping[str, str]) -> AnyResponse:
    return Response(ErrorView(error=body), status_code=status, headers=dict(headers), media_type=MediaType.JSON)


def _faulty(error: ValidationException) -> str:
    parts = error.extra if isinstance(error.extra, list) else []
    told = "; ".join(f"{part.get('key', 'parameter')}: {part.get('message', '')}" for part in parts)
    return told or error.detail
