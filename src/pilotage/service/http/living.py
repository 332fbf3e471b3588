"""The life of services behind a server of requests: they start before the first of these, and end after the last."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pilotage.service.http.services import Services

if TYPE_CHECKING:
    from litestar.types import Receive


async def live(
    services: Services, receive: Receive, send: Any, *, meanwhile: AbstractContextManager[None] | None = None
) -> None:
    """Start the services, and end them when nobody is served any more; `meanwhile` is entered in between."""
    await receive()
    try:
        services.start()
    except BaseException as fault:
        await send({"type": "lifespan.startup.failed", "message": str(fault)})
        raise
    with meanwhile or nullcontext():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    # In a thread of its own: what is being written wakes requests on this loop.
    await asyncio.to_thread(services.stop)
    await send({"type": "lifespan.shutdown.complete"})
