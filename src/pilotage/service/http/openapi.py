"""What the OpenAPI document says beyond what the handlers' signatures tell: the batch of events, the token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from litestar import MediaType, Request
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
    SecurityScheme,
)

from pilotage.model.events import COUNTER_MAX, DOTTED, EVENT_TYPES, JOB_ID, NAME, STREAM, TIME_MAX, Source
from pilotage.model.version import VERSION

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


@dataclass
class BatchOperation(Operation):
    """The operation whose body the handler reads by itself, as bytes."""

    request_body: RequestBody | None = field(default_factory=_batch)

    def __post_init__(self) -> None:
        """Say what the body is: no signature does."""
        self.request_body = _batch()


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
