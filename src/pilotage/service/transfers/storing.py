"""Copies one output to a store, and verifies the copy; what is there already and equal counts as stored."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pilotage.model.locators import shown_locator
from pilotage.ports.store import AlreadyInStore, NotInStore, Store, StoreObject
from pilotage.service.transfers.fetching import RetryPolicy, WrongChecksum, retried
from pilotage.service.transfers.meter import Meter


class OutputCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of an output that is to be in a store."""

    name: str  # of the output
    source: str  # the path of the staged file
    size_bytes: int
    sha256: str
    locator: str
    replaceable: frozenset[str] | None = frozenset()
    """The checksums of earlier copies of ours at this locator, which are replaced; None: whatever is there is ours."""
    owner: str = ""  # of the job; the service keeps contents for users
    spares: tuple[OutputCopy, ...] = ()
    """The same file in further stores: one of them takes the place of this copy if its store does not take it."""


def store_copy(
    store: Store,
    copy: OutputCopy,
    *,
    meter: Meter,
    allowed_seconds: Callable[[int], float],
    policy: RetryPolicy,
    before_put: Callable[[], None] = lambda: None,
) -> None:
    """Make sure that a store has a copy; calls back before it is put. Raises `StoreError`, `TransferStopped`."""
    meter.total_bytes = copy.size_bytes
    meter.allow(allowed_seconds(copy.size_bytes))
    damaged: set[str] = set()  # the versions of copies that we put there, and that are wrong

    def once() -> None:
        meter.bytes_done = 0
        there = store.stat(copy.locator)
        replaces = ""
        if there is not None:
            if there.version not in damaged and _is_equal(store, there, copy, meter):
                meter.bytes_done = copy.size_bytes
                return
            if there.version not in damaged:
                _refuse_foreign(store, there, copy)
            replaces = there.version
        before_put()
        store.put(copy.source, copy.locator, replaces=replaces, sent=meter.advance)
        now = store.stat(copy.locator)
        if now is None:
            raise NotInStore("the copy was removed at once", subject=shown_locator(copy.locator))
        if not _is_equal(store, now, copy, meter):
            damaged.add(now.version)
            raise WrongChecksum(
                "the copy in the store is not the file", subject=shown_locator(copy.locator), expected=copy.sha256
            )

    retried(once, meter=meter, policy=policy)


def _is_equal(store: Store, there: StoreObject, copy: OutputCopy, meter: Meter) -> bool:
    """Whether a file in a store has the content of an output; it is read if the store does not know its checksum."""
    if there.size_bytes not in (-1, copy.size_bytes):
        return False
    meter.check()
    return (there.sha256 or store.checksum(there.locator, version=there.version)) == copy.sha256


def _refuse_foreign(store: Store, there: StoreObject, copy: OutputCopy) -> None:
    """Raise `AlreadyInStore` unless the file there is an earlier copy of ours."""
    if copy.replaceable is None:
        return
    if copy.replaceable:
        known = there.sha256 or store.checksum(there.locator, version=there.version)
        if known in copy.replaceable:
            return
    raise AlreadyInStore(
        "another file is there, which this package did not store; it is not replaced",
        subject=shown_locator(copy.locator),
        next_step="move it away, or give the output another locator; then release the package",
    )
