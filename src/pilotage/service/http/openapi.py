"""What the OpenAPI document says beyond what the handlers' signatures tell: the batch of events, the token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from litestar import MediaType, Request
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
    SecurityScheme,
)

from pilotage.model.events import COUNTER_MAX, DOTTED, EVENT_TYPES, JOB_ID, NAME, STREAM, TIME_MAX, Source
from pilotage.model.version import VERSION
from pilotage.service.http.operations import KINDS

_BEARER = "token"


def _text(pattern: str, description: str) -> Schema:
    return Schema(type=OpenAPIType.STRING, pattern=f"^({pattern})$", description=description)


def _number(least: int, most: int, description: str) -> Schema:
    return Schema(type=OpenAPIType.INTEGER, minimum=least, maximum=most, description=description)


EVENT_SCHEMA = Schema(
    title="Event",
    description=(
        "One thing that happened. `(source, stream, n)` is its identity: the same one with the same content may be sent"
        " any number of times. The subject is a job, a package (with its job), an attempt (with both), a pilot, a site,"
        " or, without any of them, the service."
    ),
    type=OpenAPIType.OBJECT,
    required=["source", "stream", "n", "type", "time"],
    additional_properties=False,
    properties={
        "source": Schema(type=OpenAPIType.STRING, enum=list(get_args(Source)), description="Who says so."),
        "stream": _text(STREAM.pattern, "Which process or spool of the source counts."),
        "n": _number(1, COUNTER_MAX, "Counts on by one within the source and stream."),
        "type": Schema(type=OpenAPIType.STRING, enum=sorted(EVENT_TYPES), description="What happened."),
        "version": Schema(type=OpenAPIType.INTEGER, minimum=1, default=1, description="The version of `data`."),
        "time": Schema(
            type=OpenAPIType.NUMBER,
            minimum=0,
            exclusive_maximum=TIME_MAX,
            description="Seconds since 1970, UTC, by the source's own clock.",
        ),
        "epoch": _number(
            1, COUNTER_MAX, "The epoch of the subject, as far as the source knows; 1 where it is left out."
        ),
        "seen": _number(0, COUNTER_MAX, "The last position of the book that the source saw; 0 where it is left out."),
        "job": _text(JOB_ID.pattern, "The id of the job."),
        "package": _text(DOTTED.pattern, "The package within the job: stage.line.n."),
        "attempt": _number(1, 999_999_999, "The number of the attempt at the package."),
        "pilot": _text(NAME.pattern, "The name of a pilot."),
        "site": _text(NAME.pattern, "The name of a site."),
        "data": Schema(type=OpenAPIType.OBJECT, description="What the type of event says beyond its subject and time."),
    },
)

BATCH_SCHEMA = Schema(
    title="Batch",
    type=OpenAPIType.OBJECT,
    required=["events"],
    additional_properties=False,
    properties={"events": Schema(type=OpenAPIType.ARRAY, items=EVENT_SCHEMA)},
)


def _batch() -> RequestBody:
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=BATCH_SCHEMA)},
        required=True,
        description="A batch of events, each judged by itself.",
    )


def _submission() -> RequestBody:
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=Schema(type=OpenAPIType.OBJECT))},
        required=True,
        description="A checked definition with its resolved lists, the folder, and what it captured.",
    )


def _clean() -> RequestBody:
    texts = Schema(type=OpenAPIType.STRING)
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=["submission"],
        properties={
            "submission": Schema(type=OpenAPIType.OBJECT),
            "read": Schema(type=OpenAPIType.ARRAY, items=texts),
            "remove": Schema(type=OpenAPIType.OBJECT, additional_properties=texts),
        },
    )
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=schema)},
        required=True,
        description="A submission of the document as it is now, files that it was read from, and what to remove: name and sha256.",
    )


def _content() -> RequestBody:
    schema = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
    return RequestBody(content={"application/octet-stream": OpenAPIMediaType(schema=schema)}, required=True)


def _operation(required: Sequence[str], **more: Schema) -> RequestBody:
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=list(required),
        properties={"operation": Schema(type=OpenAPIType.STRING, enum=list(KINDS)), **more},
    )
    return RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)


def _one_operation() -> RequestBody:
    text, number = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.INTEGER, minimum=1)
    flag = Schema(type=OpenAPIType.BOOLEAN)
    return _operation(
        ["operation"], package=text, message=text, stage=number, line=number, force=flag, remove_files=flag
    )


def _operation_on_many() -> RequestBody:
    text, target = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.STRING, enum=["packages", "jobs"])
    return _operation(["operation", "where"], where=text, target=target, job=text, message=text)


def _with_body(make: Callable[[], RequestBody]) -> type[Operation]:
    """An operation whose body the handler reads by itself: no signature says what it is."""

    @dataclass
    class OperationWithBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = make()

    return OperationWithBody


BODIES = {
    "batch": _with_body(_batch),
    "submission": _with_body(_submission),
    "clean": _with_body(_clean),
    "content": _with_body(_content),
    "operation": _with_body(_one_operation),
    "operation on many": _with_body(_operation_on_many),
}
"""The bodies that routes name."""


class _JsonDocument(JsonRenderPlugin):
    """The document as JSON, in which a parameter that may be left out is not said to be null: no query could say so."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Write the document out."""
        for operations in openapi_schema["paths"].values():
            for operation in operations.values():
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = _without_null(parameter["schema"])
        return super().render(request, openapi_schema)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in schema.get("oneOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "oneOf"}, **kinds[0]}


def openapi_config() -> OpenAPIConfig:
    """The document at `/schema`, as JSON; no page that would fetch programs from elsewhere."""
    return OpenAPIConfig(
        title="pilotage",
        version=VERSION,
        summary="The book: every event kept, one state whatever the order.",
        path="/schema",
        render_plugins=[_JsonDocument(path=["/", "/openapi.json"], media_type=MediaType.JSON)],
        components=Components(
            security_schemes={
                _BEARER: SecurityScheme(type="http", scheme="bearer", description="The token of a principal.")
            }
        ),
        security=[{_BEARER: []}],
    )
