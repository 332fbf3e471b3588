"""The application, made late: new jobs, who waits for them, and whoever asks plainly are answered without it.

To import the framework and to lay out the routes takes longer than everything else at a start. Neither a first package
nor a whole run that is short need wait for it: it is made in a thread of its own, when somebody asks for something that only
it can answer, or some time after the start.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from pilotage.model.events import JOB_ID
from pilotage.service.access import SUBMIT, require_scope
from pilotage.service.http.living import live
from pilotage.service.http.messages import (
    JSON_HEADER,
    header_of,
    length_of,
    principal_of,
    read_body,
    refuse,
    send_whole,
)
from pilotage.service.http.running import CONTENT_BYTES_MAX, ONCE_KEY_LENGTH_MAX, SUBMISSION_BYTES_MAX
from pilotage.service.http.services import Services
from pilotage.service.http.submissions import keep_content, submit

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

log = logging.getLogger(__name__)

LATE_SECONDS = 60.0
"""How long after the start the application is made, if nobody has needed it by then: most services never do."""
FIRST_SECONDS = 0.15
"""How long it waits behind a job that has just come in: the first package of that goes before."""

_PROGRESS = re.compile(rf"/v1/jobs/({JOB_ID.pattern})/progress")
_EARLY_BYTES_MAX = {"/v1/jobs": SUBMISSION_BYTES_MAX, "/v1/content": CONTENT_BYTES_MAX}
_encode = msgspec.json.Encoder().encode


class LateApp:
    """Answers what is asked for plainly, and has the application made for everything else, when it is needed."""

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
            await live(self._services, receive, send, meanwhile=self._soon())
            return
        try:
            if _is_early(scope):
                await self._answer_early(scope, receive, send)
                return
            if await self._answer_plainly(scope, receive, send):
                return
        except Exception as fault:  # noqa: BLE001 # whatever it is, who asked is told, and the log
            await refuse(scope, send, fault)
            return
        await (self._app or await self._made())(scope, receive, send)

    async def _answer_plainly(self, scope: Any, receive: Receive, send: Send) -> bool:
        """Answer a request that needs no framework; whether it was one."""
        from pilotage.service.http.plain import answer, is_too_large, plain_request

        plain = plain_request(scope)
        if plain is None or is_too_large(plain, self._services, scope):
            return False
        await answer(plain, self._services, scope, receive, send)
        return True

    async def _made(self) -> ASGIApp:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_it())
        return await asyncio.shield(self._making)

    async def _make_it(self) -> ASGIApp:
        loop = asyncio.get_running_loop()
        # Once: where jobs come in all the time, it is made all the same.
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        try:
            self._app = await loop.run_in_executor(None, self._make)
        except BaseException:
            self._making = None  # the next who asks has it tried again
            raise
        return self._app

    async def _answer_early(self, scope: Any, receive: Receive, send: Send) -> None:
        """A job, bytes that it brings along, or the question how far it is, as the application would."""
        services = self._services
        principal = principal_of(services.access, scope)
        told: Any
        if found := _PROGRESS.fullmatch(scope["path"]):
            from pilotage.service.http.progress import how_far

            await send_whole(send, 200, _encode(await how_far(services, principal, found[1])), [JSON_HEADER])
            return
        require_scope(principal, SUBMIT)  # before anything of the body is read
        if scope["path"] == "/v1/jobs":
            key = header_of(scope, b"idempotency-key") or None
            body = await read_body(receive, SUBMISSION_BYTES_MAX)
            told = await submit(services, principal, body, key=key)
            self._not_before = asyncio.get_running_loop().time() + FIRST_SECONDS
        else:
            told = await keep_content(services, await read_body(receive, CONTENT_BYTES_MAX))
        await send_whole(send, 201, _encode(told), [JSON_HEADER])

    @contextmanager
    def _soon(self) -> Iterator[None]:
        """Have it made some time from now, unless everything ends before."""
        soon = asyncio.get_running_loop().call_later(self._late_seconds, self._begin)
        try:
            yield
        finally:
            soon.cancel()

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
    bytes_max = _EARLY_BYTES_MAX.get(scope["path"]) if scope["method"] == "POST" else None
    if bytes_max is None or (length_of(scope) or 0) > bytes_max:
        return False
    return len(header_of(scope, b"idempotency-key")) <= ONCE_KEY_LENGTH_MAX


def late_app(services: Services) -> LateApp:
    """The application over some services, made late; what it needs must be there at once."""
    if importlib.util.find_spec("litestar") is None:
        raise ModuleNotFoundError("No module named 'litestar'", name="litestar")

    def make() -> ASGIApp:
        from pilotage.service.http.app import make_app

        return make_app(services)

    return LateApp(make, services)
