"""A real store whose connection fails as a test says: cuts, refusals, stalls, damage, and files that change meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from pilotage.adapters.stores.folder import FolderStore
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import FoundStore, PresignedRequest, StoreObject

Fault = Callable[[Iterator[bytes]], Iterator[bytes]]
"""What happens to the content that is read."""


def cut(*, after_bytes: int, error: StoreError) -> Fault:
    """The connection breaks after so many bytes."""

    def broken(content: Iterator[bytes]) -> Iterator[bytes]:
        left = after_bytes
        for piece in content:
            if len(piece) >= left:
                yield piece[:left]
                raise error
            left -= len(piece)
            yield piece
        raise error

    return broken


def ended(*, after_bytes: int) -> Fault:
    """The content ends early, and nobody says so."""

    def short(content: Iterator[bytes]) -> Iterator[bytes]:
        left = after_bytes
        for piece in content:
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return

    return short


def damaged() -> Fault:
    """One byte is another."""

    def flipped(content: Iterator[bytes]) -> Iterator[bytes]:
        first = next(content)
        yield bytes([first[0] ^ 1]) + first[1:]
        yield from content

    return flipped


def before_end(do: Callable[[], object]) -> Fault:
    """Something happens while the content is read."""

    def meanwhile(content: Iterator[bytes]) -> Iterator[bytes]:
        yield next(content)
        do()
        yield from content

    return meanwhile


class Stall:
    """A store that hangs while it sends, until the test is over."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.over = threading.Event()

    def __call__(self, content: Iterator[bytes]) -> Iterator[bytes]:
        """Send the first piece, and then nothing."""
        yield next(content)
        self.reached.set()
        self.over.wait()
        yield from content


class FaultyStore(FolderStore):
    """A folder whose faults are given, one for each read; then it works."""

    def __init__(self) -> None:
        self.faults: deque[Fault | None] = deque()
        self.refusals: deque[StoreError] = deque()  # of the next questions what is there
        self.put_faults: deque[StoreError] = deque()  # of the next copies into it
        self.reads: list[int] = []  # the offsets
        self.puts = 0
        self.known: dict[str, str] = {}  # checksums that the store tells, by locator
        self.versionless = False
        self.presigned_url = ""

    def stat(self, locator: str) -> StoreObject | None:
        """Look up a locator, or refuse."""
        if self.refusals:
            raise self.refusals.popleft()
        found = super().stat(locator)
        if found is None:
            return None
        changes = {"sha256": self.known.get(locator, ""), **({"version": ""} if self.versionless else {})}
        return msgspec.structs.replace(found, **changes)

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content, with the next fault."""
        self.reads.append(offset)
        content = super().read(locator, offset=offset, version=version)
        fault = self.faults.popleft() if self.faults else None
        return fault(content) if fault is not None else content

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The checksum, without faults."""
        return FolderStore().checksum(locator, version=version)

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        """Copy a file into it, or fail."""
        self.puts += 1
        if self.put_faults:
            raise self.put_faults.popleft()
        return super().put(source, locator, replaces=replaces, sent=sent)

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """A request, if the test has given one."""
        if not self.presigned_url:
            return None
        return PresignedRequest(method="GET", url=self.presigned_url, headers={}, expires_at=seconds)


class Stores:
    """Finds stores by the beginning of a locator."""

    def __init__(self, stores: dict[str, FolderStore], *, settings: StoreSettings | None = None) -> None:
        self.stores = stores
        self.settings = settings or StoreSettings()
        self.closed = False

    def find(self, locator: str, *, user: str = "") -> FoundStore:
        """The store of a locator."""
        for name, store in self.stores.items():
            if locator.startswith(name):
                return FoundStore(name=name, store=store, settings=self.settings)
        raise StoreError("no store has such locators", subject=locator)

    def named(self, name: str) -> FoundStore:
        """The store of a name."""
        return FoundStore(name=name, store=self.stores[name], settings=self.settings)

    def archive(self) -> tuple[FoundStore, ...]:
        """All of them."""
        return tuple(map(self.named, self.stores))

    def close(self) -> None:
        """Close all."""
        self.closed = True
