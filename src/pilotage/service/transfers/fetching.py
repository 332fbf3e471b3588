"""Fetches one file from its store into a draft of a cache: resumed where it broke off, and verified."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from pilotage.model.locators import shown_locator
from pilotage.model.texts import clipped
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import AccessDenied, FileChanged, NotInStore, Store, StoreObject, StoreUnreachable
from pilotage.service.transfers.cache_folder import CacheFolder, Draft, VerifiedFile
from pilotage.service.transfers.meter import Meter, TimedOut

Result = TypeVar("Result")
FAULT_MAX = 500
"""The longest text of a fault, in characters."""


class Truncated(StoreError):
    """The store sent less than the file has: try again."""

    reason = "truncated"
    retryable = True


class WrongChecksum(StoreError):
    """A copy has another content than the file: it was damaged on its way, or the store keeps it wrongly."""

    reason = "wrong-checksum"
    retryable = True


class CopyToRead(NamedTuple):
    """A verified copy of a file, to be read in place of the file itself."""

    locator: str
    sha256: str


class Fetched(NamedTuple):
    """A verified file of a cache: under its name, or still as a draft that is to be published."""

    file: VerifiedFile
    has_name: bool


class OtherContent(StoreError):
    """The store has another content than the document requires: correct one of the two, then release what waits for it."""

    reason = "input-checksum"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often a transfer is tried, and how long it pauses; a try that moved bytes before it broke off starts anew."""

    tries: int = 8
    first_seconds: float = 1.0
    seconds_max: float = 60.0

    def pause_seconds(self, failed: int) -> float:
        """The pause after so many failures in a row: each is twice as long as the one before."""
        return min(self.seconds_max, self.first_seconds * 2.0 ** (failed - 1))


def retried(do: Callable[[], Result], *, meter: Meter, policy: RetryPolicy) -> Result:
    """Try until it works, until a fault that will not pass, or until nothing has moved for too many tries."""
    failed = 0
    while True:
        moved = meter.bytes_moved
        meter.tries += 1
        try:
            meter.check()
            return do()
        except StoreError as fault:
            meter.fault = clipped(f"{fault.reason}: {fault.what}", FAULT_MAX)
            if not fault.retryable:
                raise
            is_cut = isinstance(fault, StoreUnreachable) and meter.bytes_moved > moved
            failed = 1 if is_cut else failed + 1
            if failed >= policy.tries:
                raise
        meter.pause(policy.pause_seconds(failed))


def fetch(
    store: Store,
    locator: str,
    *,
    cache: CacheFolder,
    name: str,
    sha256: str = "",
    copy: CopyToRead | None = None,
    meter: Meter,
    allowed_seconds: Callable[[int], float],
    policy: RetryPolicy,
) -> Fetched:
    """Bring a file into the draft of a name in a cache; one that is there and was verified is not fetched again.

    With `sha256`, any other content is refused, and leaves nothing behind. With `copy`, that is read, in `store`; if it is
    damaged, nothing is said of the file. `allowed_seconds` is the time limit for a size. A draft stays if a later order may
    go on with it. Raises `StoreError`, `TransferStopped`.
    """
    there = cache.verified(name, locator=locator)
    if there is not None and sha256 in ("", there.sha256):
        meter.total_bytes = meter.bytes_done = there.size_bytes
        return Fetched(there, has_name=True)
    with cache.draft(name) as draft:

        def once() -> VerifiedFile:
            reading = copy.locator if copy is not None else locator
            found = store.stat(reading)
            if found is None:
                raise absent(store, reading)
            if copy is not None:
                found = replace(found, sha256=copy.sha256)
            meter.total_bytes = found.size_bytes if found.size_bytes >= 0 else None
            meter.allow(allowed_seconds(max(0, found.size_bytes)))
            draft.begin(found.version)
            _fill(draft, store, found, meter)
            if sha256 not in ("", draft.sha256):
                what = "the store has another content than the document requires"
                raise OtherContent(what, expected=f"sha256 {sha256}", got=f"sha256 {draft.sha256}")
            return draft.complete(locator=locator)

        try:
            return Fetched(retried(once, meter=meter, policy=policy), has_name=False)
        except StoreError as fault:
            if not fault.retryable and not isinstance(fault, TimedOut):
                draft.discard()
            raise
        except OSError:  # of the cache: its disk is full, or cannot be used
            with suppress(OSError):
                draft.discard()
            raise


def absent(store: Store, locator: str) -> NotInStore:
    """The error for a locator that no file has."""
    try:
        is_folder = store.is_folder(locator)
    except AccessDenied:  # who may read files may still not be allowed to look at folders
        is_folder = False
    what = "this is a folder, and a locator must name one file" if is_folder else "no such file"
    return NotInStore(what, subject=shown_locator(locator))


def pieces(store: Store, found: StoreObject, *, offset: int) -> Iterator[bytes]:
    """The content of this version of a file from an offset on; leaving the loop ends the transfer."""
    reading = store.read(found.locator, offset=offset, version=found.version)
    try:
        yield from reading
    finally:
        if isinstance(reading, Generator):
            reading.close()


def _fill(draft: Draft, store: Store, found: StoreObject, meter: Meter) -> None:
    """Bring a draft to its full size, and verify it."""
    size_bytes, subject = found.size_bytes, shown_locator(found.locator)
    if 0 <= size_bytes < draft.size_bytes:
        draft.restart()
        draft.begin(found.version)
    meter.bytes_done = draft.size_bytes
    try:
        if draft.size_bytes != size_bytes:
            for piece in pieces(store, found, offset=draft.size_bytes):
                if 0 <= size_bytes < draft.size_bytes + len(piece):
                    raise FileChanged("the store sends more than the file has", subject=subject)
                meter.check()
                draft.append(piece)
                meter.advance(len(piece))
        if 0 <= size_bytes != draft.size_bytes:
            got = f"{draft.size_bytes:,} bytes"
            raise Truncated("the file ends too early", subject=subject, expected=f"{size_bytes:,} bytes", got=got)
        if found.sha256 and draft.sha256 != found.sha256:
            raise WrongChecksum("the file came damaged", subject=subject, expected=found.sha256, got=draft.sha256)
        if not found.version and store.stat(found.locator) != found:
            raise FileChanged("the file changed while it was read", subject=subject)
    except (FileChanged, WrongChecksum):
        draft.restart()
        raise
