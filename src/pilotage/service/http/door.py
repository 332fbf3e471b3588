"""What stands at the sockets of a service: agents, new jobs and who waits for them are answered at once.

To import the application and to lay out its routes takes longer than everything else at a start. Neither a first package
nor a whole run that is short need wait for it: it is made in a thread of its own, when somebody asks for something of it,
or some time after the start.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from pilotage.model.events import JOB_ID
from pilotage.service.http.agents import AgentDoor, header_of, read_body, refuse, send_whole
from pilotage.service.http.running import (
    CONTENT_BYTES_MAX,
    ONCE_KEY_LENGTH_MAX,
    SUBMISSION_BYTES_MAX,
    keep_content,
    running_of,
    submit,
)
from pilotage.service.http.services import Services

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

log = logging.getLogger(__name__)

LATE_SECONDS = 10.0
"""How long after the start the application is made, if nobody has asked for it by then: a short run ends before."""
FIRST_SECONDS = 0.15
"""How long it waits behind a job that has just come in: the first package of that goes before."""

_JSON = (b"content-type", b"application/json")
_PROGRESS = re.compile(rf"/v1/jobs/({JOB_ID.pattern})/progress")
_encode = msgspec.json.Encoder().encode


class LateApp:
    """An application that is made when it is needed; until then it takes in jobs, and says how far they are."""

    def __init__(self, make: Callable[[], ASGIApp], services: Services, *, late_seconds: float = LATE_SECONDS) -> None:
        """Take what makes it; nothing is made before the start."""
        self._make = make
        self._services = services
        self._late_seconds = late_seconds
        self._app: ASGIApp | None = None
        self._making: asyncio.Future[ASGIApp] | None = None
        self._not_before = 0.0  # by the clock of the loop

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop the services."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if self._app is None and _is_early(scope):
            try:
                await self._answer_early(scope, receive, send)
            except Exception as fault:  # noqa: BLE001 # whatever it is, who asked is told, and the log
                await refuse(scope, send, fault)
            return
        await (self._app or await self._made())(scope, receive, send)

    async def _made(self) -> ASGIApp:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_it())
        return await asyncio.shield(self._making)

    async def _make_it(self) -> ASGIApp:
        loop = asyncio.get_running_loop()
        while (seconds := self._not_before - loop.time()) > 0.0:
            await asyncio.sleep(seconds)
        try:
            self._app = await loop.run_in_executor(None, self._make)
        except BaseException:
            self._making = None  # the next who asks has it tried again
            raise
        return self._app

    async def _answer_early(self, scope: Any, receive: Receive, send: Send) -> None:
        """A job, bytes that it brings along, or the question how far it is, as the application would."""
        services = self._services
        principal = services.access.principal(header_of(scope, b"authorization") or None)
        told: Any
        if found := _PROGRESS.fullmatch(scope["path"]):
            from pilotage.service.http.progress import how_far

            await send_whole(send, 200, _encode(await how_far(services, principal, found[1])), [_JSON])
            return
        if scope["path"] == "/v1/jobs":
            key = header_of(scope, b"idempotency-key") or None
            body = await read_body(receive, SUBMISSION_BYTES_MAX)
            told = await submit(services, principal, body, key=key)
            self._not_before = asyncio.get_running_loop().time() + FIRST_SECONDS
        else:
            told = await keep_content(services, principal, await read_body(receive, CONTENT_BYTES_MAX))
        await send_whole(send, 201, _encode(told), [_JSON])

    async def _live(self, receive: Receive, send: Any) -> None:
        """Start the services, and end them when nobody is served any more."""
        await receive()
        try:
            self._services.start()
        except BaseException as fault:
            await send({"type": "lifespan.startup.failed", "message": str(fault)})
            raise
        soon = asyncio.get_running_loop().call_later(self._late_seconds, self._begin)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        soon.cancel()
        # In a thread of its own: what is being written wakes requests on this loop.
        await asyncio.to_thread(self._services.stop)
        await send({"type": "lifespan.shutdown.complete"})

    def _begin(self) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_it())
            self._making.add_done_callback(_complain)


def _complain(made: asyncio.Future[Any]) -> None:
    if not made.cancelled() and (fault := made.exception()) is not None:
        log.error("the application cannot be made", exc_info=fault)


def _is_early(scope: Any) -> bool:
    """Whether a request can be answered before the application is there: in its plainest form only."""
    if scope.get("query_string"):
        return False
    if scope["method"] == "GET":
        return _PROGRESS.fullmatch(scope["path"]) is not None
    if scope["method"] != "POST" or scope["path"] not in ("/v1/jobs", "/v1/content"):
        return False
    return len(header_of(scope, b"idempotency-key")) <= ONCE_KEY_LENGTH_MAX


def make_door(services: Services) -> tuple[ASGIApp, Callable[[], None]]:
    """What answers requests where jobs are run, agents before the rest; and what lets go of all who wait."""
    if importlib.util.find_spec("litestar") is None:
        raise ModuleNotFoundError("No module named 'litestar'", name="litestar")

    def make() -> ASGIApp:
        from pilotage.service.http.app import make_app

        return make_app(services)

    door = AgentDoor(LateApp(make, services), services, running_of(services))

    def let_go() -> None:
        services.bell.stop()
        door.stop()

    return door, let_go
