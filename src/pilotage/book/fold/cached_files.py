"""Folds events about the caches of sites into one row for each site and locator.

An event tells of many files. Each sets registers of their rows, which hold the latest order, content, fault and removal; the
state of a file follows from the latest of them. What was there before the last removal no longer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from pilotage.book.codec import Checked
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.registers import Register, takes
from pilotage.book.rows.rows import CachedFileRow, Keys, StoredKey, keys_of, with_keys
from pilotage.model.events.events import Event
from pilotage.model.events.file_payloads import (
    CachedFilesRemoved,
    FailedFetch,
    FetchedFile,
    FetchesFailed,
    FetchesOrdered,
    FilesFetched,
    OrderedFetch,
    OrderedRemoval,
    RemovalsOrdered,
    Retention,
    RetentionSet,
)
from pilotage.model.events.payloads import Payload

_STATES = {
    Register.ORDERED: "ordered",
    Register.CONTENT: "present",
    Register.FAULT: "failed",
    Register.REMOVAL: "removing",
    Register.REMOVED: "removed",
}
_WISHES = ("deletable", "retain-temporarily", "retain-indefinitely")

_OWNED = msgspec.json.Decoder(dict[str, tuple[int, StoredKey]])
_encode = msgspec.json.Encoder().encode

_PARTS: dict[type[Payload], Callable[[Any], Iterable[Any]]] = {
    FetchesOrdered: lambda data: data.files,
    FilesFetched: lambda data: data.files,
    FetchesFailed: lambda data: data.files,
    RetentionSet: lambda data: data.files,
    RemovalsOrdered: lambda data: data.files,
    CachedFilesRemoved: lambda data: data.locators,
}


def digest_of(locator: str) -> str:
    """The key of a file beside its site: locators are too long for an index."""
    return sha256(locator.encode()).hexdigest()


def _locator(part: Any) -> str:
    return part if isinstance(part, str) else part.locator


def files_of(one: Checked) -> Iterator[tuple[str, Any]]:
    """The files that an event tells of, by locator; none if it is about something else."""
    parts = _PARTS.get(type(one.data))
    for part in parts(one.data) if parts is not None else ():
        yield _locator(part), part


class FileWork:
    """A file in a join: its row, the keys of its registers, its wishes and pins by owner."""

    __slots__ = ("keys", "pins", "row", "wishes")

    def __init__(self, row: CachedFileRow) -> None:
        self.row = row
        self.keys: Keys = keys_of(row)
        self.wishes = _OWNED.decode(row.wishes)
        self.pins = _OWNED.decode(row.pins)

    def fold(self, event: Event, key: StoredKey, part: Any) -> None:
        """Add what an event says of the file."""
        row = self.row
        row.updated_at = max(row.updated_at, event.time)
        match part:
            case OrderedFetch():
                self._order(event, key, part)
            case FetchedFile():
                if takes(self.keys, Register.CONTENT, key):
                    row.size_bytes, row.sha256, row.version = part.size_bytes, part.sha256, part.version
                    row.fetched_at = event.time
            case FailedFetch():
                if takes(self.keys, Register.FAULT, key):
                    row.failures, row.reason, row.message = part.failures, part.reason, part.message
                    row.failed_at = event.time
            case OrderedRemoval():
                if takes(self.keys, Register.REMOVAL, key):
                    row.removal_key, row.cause, row.removal_at = part.key, part.cause, event.time
            case Retention():
                self._retain(event, key, part)
            case _:  # its locator alone: it is gone
                if takes(self.keys, Register.REMOVED, key):
                    row.removed_at = event.time

    def _order(self, event: Event, key: StoredKey, part: OrderedFetch) -> None:
        row = self.row
        if takes(self.keys, Register.ORDERED, key):
            row.fetch_key, row.name, row.expected_bytes = part.key, part.name, part.size_bytes or 0
            row.software, row.ordered_at = int(part.software), event.time
        if part.wish is not None:
            _set(self.wishes, part.owner, _WISHES.index(part.wish), key)

    def _retain(self, event: Event, key: StoredKey, part: Retention) -> None:
        if part.released:
            _set(self.wishes, part.owner, -1, key)
        elif part.wish is not None:
            _set(self.wishes, part.owner, _WISHES.index(part.wish), key)
        if part.pinned is not None:
            _set(self.pins, part.owner, int(part.pinned), key)
        if part.stale:
            takes(self.keys, Register.STALE, key)
        if part.size_bytes is not None:
            self.row.expected_bytes = part.size_bytes
        if part.wish is not None:
            self.row.used_at = max(self.row.used_at or 0.0, event.time)

    def settle(self) -> CachedFileRow:
        """Derive the state of the file from its registers."""
        row, keys = self.row, self.keys
        latest = max((each for each in _STATES if each in keys), key=lambda each: keys[each], default=None)
        row.state = _STATES[latest] if latest is not None else ""
        if row.state in ("", "removed") and self.current_wishes():
            row.state = "wished"
        row.stale = int(_is_later(keys, Register.STALE, Register.CONTENT, Register.REMOVED))
        row.wish = _WISHES[max(self.current_wishes().values(), default=0)]
        row.pinned = len(self.current_pins())
        row.wishes = _encode(dict(sorted(self.wishes.items()))).decode()
        row.pins = _encode(dict(sorted(self.pins.items()))).decode()
        return with_keys(row, keys)

    def current_wishes(self) -> dict[str, int]:
        """The wishes that were not released, by owner."""
        return {owner: wish for owner, (wish, key) in self.wishes.items() if wish >= 0 and self._holds(key)}

    def current_pins(self) -> tuple[str, ...]:
        """The persons who pin it."""
        return tuple(sorted(owner for owner, (pinned, key) in self.pins.items() if pinned and self._holds(key)))

    def _holds(self, key: StoredKey) -> bool:
        removed = self.keys.get(Register.REMOVED)
        return removed is None or removed < key


def _set(owned: dict[str, tuple[int, StoredKey]], owner: str, value: int, key: StoredKey) -> None:
    known = owned.get(owner)
    if known is None or known[1] < key:
        owned[owner] = (value, key)


def _is_later(keys: Keys, register: int, *others: int) -> bool:
    """Whether a register was set, and none of the others later."""
    key = keys.get(register)
    return key is not None and all(keys[other] < key for other in others if other in keys)


class CachedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the cache of a site, or on its way there or out of it, as its row shows it."""

    site: str
    locator: str
    state: str
    key: str  # of the last order to fetch or remove it
    name: str
    size_bytes: int
    sha256: str
    version: str
    since: float
    wishes: dict[str, int]  # by owner
    pins: tuple[str, ...]
    software: bool
    stale: bool
    used_at: float
    failures: int = 0
    reason: str = ""
    message: str = ""


def read_cached_file(row: CachedFileRow) -> CachedFile:
    """A row as the engine and people see the file; the content of an earlier fetch does not count."""
    work, keys = FileWork(row), keys_of(row)
    there = _is_later(keys, Register.CONTENT, Register.ORDERED)
    failed = _is_later(keys, Register.FAULT, Register.CONTENT, Register.REMOVAL, Register.REMOVED)
    removing = row.state == "removing"
    times = {
        "ordered": row.ordered_at,
        "present": row.fetched_at,
        "failed": row.failed_at,
        "removing": row.removal_at,
        "removed": row.removed_at,
    }
    content = row.state == "present" or (removing and there)
    return CachedFile(
        site=row.site,
        locator=row.locator,
        state=row.state,
        key=row.removal_key if removing else row.fetch_key,
        name=row.name,
        size_bytes=row.size_bytes if content else 0 if removing else row.expected_bytes,
        sha256=row.sha256 if content else "",
        version=row.version if content else "",
        since=times.get(row.state) or 0.0,
        wishes=work.current_wishes(),
        pins=work.current_pins(),
        software=bool(row.software),
        stale=bool(row.stale),
        used_at=max(row.used_at or 0.0, row.fetched_at or 0.0),
        failures=row.failures if failed else 0,
        reason=row.reason if failed else "",
        message=row.message if failed else "",
    )


class CachedFileRows:
    """The rows of cached files that a batch touches."""

    def __init__(self, ledger: Ledger, others: Sequence[Checked]) -> None:
        """Load the rows for events about the caches of sites."""
        wanted: dict[tuple[str, str], str] = {}
        for one in others:
            for locator, _ in files_of(one):
                wanted[one.event.site or "", digest_of(locator)] = locator
        self._files: dict[tuple[str, str], FileWork] = {}
        if wanted:
            found = ledger.rows_by_keys(CachedFileRow, by=("site", "digest"), keys=wanted)
            self._files = {(row.site, row.digest): FileWork(row) for row in found}
            for (site, digest), locator in wanted.items():
                if (site, digest) not in self._files:
                    row = CachedFileRow(site=site, digest=digest, locator=locator)
                    self._files[site, digest] = FileWork(row)

    def fold(self, one: Checked, key: StoredKey) -> None:
        """Fold an event about the cache of a site."""
        event = one.event
        for locator, part in files_of(one):
            self._files[event.site or "", digest_of(locator)].fold(event, key, part)

    def result(self) -> list[CachedFileRow]:
        """The rows to write."""
        return [work.settle() for work in self._files.values()]
