"""The application: routes, who may come in, and what becomes of errors. Everything it needs is handed to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Router
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter

from pilotage.book.codec import MalformedBatch
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.service.http.error_responses import on_http_error, on_pilotage_error, on_surprise
from pilotage.service.http.errors import BadParameter
from pilotage.service.http.events import EVENT_ROUTES
from pilotage.service.http.explaining import explain
from pilotage.service.http.jobs import JOB_ROUTES
from pilotage.service.http.openapi import openapi_config
from pilotage.service.http.operations import OPERATION_ROUTES
from pilotage.service.http.outputs import OUTPUT_ROUTES
from pilotage.service.http.progress_routes import PROGRESS_ROUTES
from pilotage.service.http.running_routes import RUNNING_ROUTES
from pilotage.service.http.services import Services
from pilotage.service.http.sites import SITE_ROUTES
from pilotage.service.http.subscriptions import SUBSCRIPTION_ROUTES
from pilotage.service.http.surroundings import SURROUNDING_ROUTES, health

AnyConnection = ASGIConnection[Any, Any, Any, Any]


def make_app(services: Services) -> Litestar:
    """The application over some services; starting it starts their writer, stopping it drains it."""

    def provide() -> Services:
        return services

    @asynccontextmanager
    async def running(_: Litestar) -> AsyncIterator[None]:
        services.start()
        try:
            yield
        finally:
            # In a thread of its own: what is being written wakes requests on this loop.
            await asyncio.to_thread(services.stop)

    known = Router(
        path="/",
        route_handlers=[
            *EVENT_ROUTES,
            *JOB_ROUTES,
            *RUNNING_ROUTES,
            *OPERATION_ROUTES,
            *PROGRESS_ROUTES,
            explain,
            *OUTPUT_ROUTES,
            *SUBSCRIPTION_ROUTES,
            *SITE_ROUTES,
            *SURROUNDING_ROUTES,
        ],
        guards=[_lets_in(services)],
    )
    return Litestar(
        route_handlers=[known, health],
        dependencies={"services": Provide(provide, sync_to_thread=False)},
        exception_handlers={
            PilotageError: on_pilotage_error,
            MalformedBatch: on_pilotage_error,
            HTTPException: on_http_error,
            Exception: on_surprise,
        },
        request_max_body_size=services.settings.service.batch_bytes_max,
        openapi_config=openapi_config(),
        lifespan=[running],
        logging_config=None,
    )


def _lets_in(services: Services) -> Callable[[AnyConnection, BaseRouteHandler], Awaitable[None]]:
    # A plain function would be run in a thread of its own, which costs more than what it does.
    async def let_in(connection: AnyConnection, handler: BaseRouteHandler) -> None:
        connection.scope["user"] = services.access.principal(connection.headers.get("authorization"))
        if connection.scope.get("query_string"):
            _check_parameters(connection, handler)

    return let_in


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
