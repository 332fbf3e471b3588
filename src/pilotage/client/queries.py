"""Queries to one book or several: reads pages up to the limit, and merges the answers of several in key order."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from pilotage.client.errors import ServerError, ServerRefused
from pilotage.client.server import Server, path_of
from pilotage.model.errors import PilotageError

Target = Literal["jobs", "packages", "events"]
Item = dict[str, Any]
OwnKey = tuple[str | int, ...]
Key = tuple[str | int | float, ...]
CURSOR_LENGTH_MAX = 65_536


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A query over jobs, packages or events, and the most items to return."""

    target: Target
    query: str
    limit: int
    binaries: bool = False  # whether to include the record of each binary of a package


class Failure(msgspec.Struct, frozen=True):
    """A server that did not answer, and why."""

    server: str
    error: PilotageError


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The items found, in key order; a cursor if more follow; and the servers that did not answer."""

    items: list[Item]
    next: str | None
    failures: list[Failure]
    sealed_jobs: int = 0  # whose packages were not searched


class CountResult(msgspec.Struct, frozen=True, kw_only=True):
    """The count, in all and at each server; and the servers that did not answer."""

    count: int
    counts: dict[str, int]
    failures: list[Failure]
    sealed_jobs: int = 0  # whose packages were not counted


class BadCursor(PilotageError):
    """The text is not a cursor of these servers: ask again without one."""


def find(servers: Sequence[Server], question: Question, *, cursor: str | None = None) -> QueryResult:
    """Query one server, or several: then each item names its server, and servers that fail are listed."""
    if len(servers) == 1:
        return _find_at_one(servers[0], question, cursor)
    return _find_at_many(servers, question, cursor)


def count(servers: Sequence[Server], question: Question) -> CountResult:
    """Count matches; with one server its failure is raised, with several it is listed."""
    counts: dict[str, int] = {}
    failures: list[Failure] = []
    sealed: dict[str, int] = {}
    for server in servers:
        try:
            answer = server.get(path_of("counts", question.target), {"query": question.query})
            counts[server.url] = answer["count"]
            sealed[server.url] = _sealed(answer)
        except ServerError as error:
            if len(servers) == 1:
                raise
            failures.append(Failure(server.url, error))
    return CountResult(count=sum(counts.values()), counts=counts, failures=failures, sealed_jobs=sum(sealed.values()))


def _sealed(answer: Any) -> int:
    """How many sealed jobs a server left out; 0 if it does not say."""
    count: int = answer.get("sealed_jobs", 0)
    return count


def _find_at_one(server: Server, question: Question, cursor: str | None) -> QueryResult:
    items: list[Item] = []
    while True:
        page = _page(server, question, cursor, limit=question.limit - len(items))
        items += page[question.target]
        cursor = page["next"]
        if cursor is None or len(items) >= question.limit:
            return QueryResult(items=items, next=cursor, failures=[], sealed_jobs=_sealed(page))


def _page(server: Server, question: Question, cursor: str | None, *, limit: int) -> Any:
    asked: dict[str, str | int | None] = {"query": question.query, "cursor": cursor, "limit": min(limit, 1000)}
    if question.target == "packages":
        asked["words"] = 1
        if question.binaries:
            asked["binaries"] = 1
    return server.get(path_of(question.target), asked)


# --- several servers --------------------------------------------------------------------------------------------------


class _Offset(msgspec.Struct, frozen=True, array_like=True):
    """How far the items of one server were returned: after a key, on the page of a cursor."""

    key: list[str | int] = []
    cursor: str | None = None


class _MergedCursor(msgspec.Struct, frozen=True, array_like=True):
    """The cursor of a merged answer: how far each server was read."""

    servers: list[str]
    offsets: list[_Offset]


class _Source:
    """The items of one server, page by page, after those already returned."""

    def __init__(self, server: Server, question: Question, *, offset: _Offset) -> None:
        self.server = server
        self.offset = offset  # moved on by the caller, after each item it returns
        self.failure: Failure | None = None
        self.sealed_jobs = 0
        self._question = question

    def items(self, *, number: int) -> Iterator[tuple[Key, int, Item, _Offset]]:
        """Items with their merge key, the number of this source, and the position after each."""
        target = self._question.target
        cursor, shown = self.offset.cursor, tuple(self.offset.key)
        try:
            while True:
                page = _page(self.server, self._question, cursor, limit=self._question.limit)
                self.sealed_jobs = _sealed(page)
                keyed = [(_OWN_KEYS[target](item), item) for item in page[target]]
                # Each book has its own order: skip the page up to the item returned last.
                begin = next((at + 1 for at, (own, _) in enumerate(keyed) if own == shown), 0)
                for own, item in keyed[begin:]:
                    # Each book counts its own positions: across several, events are merged by the time they were
                    # received.
                    key = (item["received"], *own) if target == "events" else own
                    yield key, number, {"server": self.server.url, **item}, _Offset(list(own), cursor)
                cursor = page["next"]
                if cursor is None:
                    return
        except ServerRefused as error:
            if error.status in (400, 422):
                raise  # the query is wrong, at every server alike
            self.failure = Failure(self.server.url, error)
        except ServerError as error:
            self.failure = Failure(self.server.url, error)


def _find_at_many(servers: Sequence[Server], question: Question, cursor: str | None) -> QueryResult:
    urls = [server.url for server in servers]
    begin = _read_cursor(cursor, urls) if cursor else _MergedCursor(urls, [_Offset()] * len(urls))
    sources = [_Source(server, question, offset=offset) for server, offset in zip(servers, begin.offsets, strict=True)]
    answers = [source.items(number=number) for number, source in enumerate(sources)]
    items: list[Item] = []
    following = None
    for _, number, item, offset in heapq.merge(*answers, key=lambda found: found[:2]):
        if len(items) == question.limit:
            following = _write_cursor(_MergedCursor(urls, [source.offset for source in sources]))
            break
        items.append(item)
        sources[number].offset = offset
    failures = [source.failure for source in sources if source.failure is not None]
    sealed_jobs = sum(source.sealed_jobs for source in sources)
    return QueryResult(items=items, next=following, failures=failures, sealed_jobs=sealed_jobs)


def _job_key(item: Item) -> OwnKey:
    return (item["id"],)


def _package_key(item: Item) -> OwnKey:
    return (item["job"], *(int(part) for part in item["id"].split(".")))


def _event_key(item: Item) -> OwnKey:
    return (item["position"],)


_OWN_KEYS: Mapping[Target, Callable[[Item], OwnKey]] = {
    "jobs": _job_key,
    "packages": _package_key,
    "events": _event_key,
}
"""The key of an item at its server, by which the answers of several are merged."""


def _write_cursor(continued: _MergedCursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(continued)).decode().rstrip("=")


def _read_cursor(text: str, urls: Sequence[str]) -> _MergedCursor:
    try:
        if len(text) > CURSOR_LENGTH_MAX:
            raise ValueError(text)
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(content, type=_MergedCursor)
    except ValueError:  # both base64 and msgspec raise it
        raise BadCursor("this is not a cursor of several servers", next_step="ask again without --cursor") from None
    if found.servers != list(urls) or len(found.offsets) != len(urls):
        raise BadCursor(
            "this cursor belongs to other servers",
            expected=" ".join(f"--server {url}" for url in found.servers),
            next_step="name the same servers in the same order, or ask again without --cursor",
        )
    return found
