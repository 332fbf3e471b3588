"""The application: every route laid out in the framework, who may come in, and what becomes of errors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.spec import OpenAPI
from litestar.params import QueryParameter
from litestar.types import Receive, Send

from pilotage.book.codec import MalformedBatch
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.service.http.error_responses import on_http_error, on_pilotage_error, on_surprise
from pilotage.service.http.errors import BadParameter
from pilotage.service.http.every_route import EVERY_ROUTE
from pilotage.service.http.layout import laid_out, services_of, with_services
from pilotage.service.http.living import live
from pilotage.service.http.messages import principal_of
from pilotage.service.http.openapi import openapi_config
from pilotage.service.http.routes import Route
from pilotage.service.http.services import Services

AnyConnection = ASGIConnection[Any, Any, Any, Any]
_LAYOUTS_KEPT = 4


class Application:
    """The routes over some services; starting it starts their writer, stopping it drains it."""

    def __init__(self, services: Services) -> None:
        """Take everything it needs."""
        self._services = services
        self._framework = _framework(services.settings.service.batch_bytes_max)

    @property
    def openapi_schema(self) -> OpenAPI:
        """What the OpenAPI document says."""
        return self._framework.openapi_schema

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop the services."""
        if scope["type"] == "lifespan":
            await live(self._services, receive, send)
        else:
            await self._framework(with_services(scope, self._services), receive, send)


def make_app(services: Services) -> Application:
    """The application over some services."""
    return Application(services)


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _framework(batch_bytes_max: int) -> Litestar:
    """The routes in the framework, over whatever services a request brings along: to lay them out takes long."""
    return Litestar(
        route_handlers=[laid_out(route, let_in=_let_in) for route in EVERY_ROUTE],
        exception_handlers={
            PilotageError: on_pilotage_error,
            MalformedBatch: on_pilotage_error,
            HTTPException: on_http_error,
            Exception: on_surprise,
        },
        request_max_body_size=batch_bytes_max,
        openapi_config=openapi_config(),
        logging_config=None,
    )


def _let_in(route: Route, connection: AnyConnection, handler: BaseRouteHandler) -> None:
    principal = connection.scope["user"] = principal_of(services_of(connection.scope).access, connection.scope)
    route.let_in(principal)
    if connection.scope.get("query_string"):
        _check_parameters(connection, handler)


def _check_parameters(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """Refuse parameters that nobody reads: a misspelt one would be answered as if it were not there."""
    known = {
        field.kwarg_definition.name or name
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(field.kwarg_definition, QueryParameter)
    }
    for name in connection.query_params:
        if name not in known:
            raise BadParameter("no such parameter", subject=name[:64], next_step=did_you_mean(name[:64], known))
        if len(connection.query_params.getall(name)) > 1:
            raise BadParameter("said more than once", subject=name)
