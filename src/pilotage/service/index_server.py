"""An index server: feeds itself from storages of records, and answers queries over HTTP."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.ports.record_index import FOUND_MAX, RecordIndex
from pilotage.provenance.index.feed import FeedSource, bring_up_to_date
from pilotage.provenance.index.search import answer_query
from pilotage.reading.access import READ, Access, require_scope
from pilotage.service.http.errors import BadParameter
from pilotage.service.http.messages import JSON_HEADER, principal_of, refuse, send_whole

if TYPE_CHECKING:
    from litestar.types import Receive, Send

log = logging.getLogger(__name__)

FOUND = 100
"""Records of a page, unless the asker says otherwise."""

_encode = msgspec.json.Encoder().encode


class FedStorage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a storage was read, when it was last reached, and why it was not."""

    storage: str
    position: int
    fed_at: float | None = None
    fault: str = ""


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an index server."""

    name: str
    queryable: tuple[str, ...]
    indexed: tuple[str, ...]
    storages: tuple[FedStorage, ...]


class Feeder:
    """Keeps an index up to date with its storages, in a thread of its own."""

    def __init__(
        self,
        index: RecordIndex,
        sources: Mapping[str, FeedSource],
        *,
        poll_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take the index, and its storages by name."""
        self._index = index
        self._sources = sources
        self._poll_seconds = poll_seconds
        self._now = now
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._states = {name: FedStorage(storage=name, position=0) for name in sources}

    def start(self) -> None:
        """Start feeding."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the batch in progress."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def states(self) -> tuple[FedStorage, ...]:
        """How far each storage was read."""
        positions = self._index.storages()
        return tuple(
            msgspec.structs.replace(each, position=positions.get(each.storage, 0)) for each in self._states.values()
        )

    def feed_once(self) -> None:
        """Read what each storage has by now; one that cannot be reached is tried again the next time."""
        for name, source in self._sources.items():
            if self._stopping.is_set():
                return
            try:
                bring_up_to_date(self._index, name, source, stopping=self._stopping.is_set)
            except PilotageError as fault:
                if str(fault) != self._states[name].fault:
                    log.warning("%s: %s", name, fault)
                self._states[name] = msgspec.structs.replace(self._states[name], fault=str(fault))
            else:
                self._states[name] = msgspec.structs.replace(self._states[name], fault="", fed_at=self._now())

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.feed_once()
            except Exception:
                log.exception("feeding failed, and is tried again")
            self._stopping.wait(self._poll_seconds)


class IndexApplication:
    """Answers queries over HTTP: the application of an index server."""

    def __init__(self, index: RecordIndex, feeder: Feeder, *, name: str, access: Access) -> None:
        """Take the index, what feeds it, and whom to answer."""
        self._index = index
        self._feeder = feeder
        self._name = name
        self._access = access

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop with the server."""
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
            return
        try:
            body = await self._answer(scope)
        except Exception as fault:  # noqa: BLE001 # answered, and logged
            await refuse(scope, send, fault)
            return
        await send_whole(send, 200, _encode(body), [JSON_HEADER])

    async def _answer(self, scope: Any) -> object:
        path, method = scope["path"], scope["method"]
        if path == "/healthz":
            return {"status": "ok"}
        principal = principal_of(self._access, scope)
        require_scope(principal, READ)
        if method != "GET" or path not in ("/v1/records/find", "/v1/index"):
            raise BadParameter("an index has no such address", subject=f"{method} {path}"[:100], next_step=_ADDRESSES)
        if path == "/v1/index":
            given = _parameters(scope, ())
            return await asyncio.to_thread(self._status)
        given = _parameters(scope, ("query", "limit", "cursor"))
        limit = _limit(given.get("limit", str(FOUND)))
        return await asyncio.to_thread(
            answer_query,
            self._index,
            given.get("query", ""),
            principal=principal,
            now=time.time(),
            limit=limit,
            after=given.get("cursor"),
        )

    def _status(self) -> IndexStatus:
        attributes = self._index.attributes
        return IndexStatus(
            name=self._name,
            queryable=attributes.queryable,
            indexed=attributes.indexed,
            storages=self._feeder.states,
        )


_ADDRESSES = "GET /v1/records/find?query=… finds records, GET /v1/index tells what the index has"


def _parameters(scope: Any, known: Sequence[str]) -> dict[str, str]:
    pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    for name, _ in pairs:
        if name not in known:
            raise BadParameter("no such parameter", subject=name[:64], next_step=did_you_mean(name[:64], known))
    if len(dict(pairs)) != len(pairs):
        raise BadParameter("given more than once", subject=", ".join(known))
    return dict(pairs)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= FOUND_MAX:
        raise BadParameter("not a limit", subject="limit", expected=f"a number from 1 to {FOUND_MAX}", got=text[:40])
    return int(text)


async def _run_lifespan(receive: Receive, send: Any) -> None:
    while True:
        message: Any = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
