"""Removes copies of outputs from stores whose attempts were never granted, once that is certain, and nothing else.

A copy is noted before it is put, so the next service removes what this one left. Only what was not there before is ours,
and goes only if it still has the content that was put and no granted attempt has it as its own copy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec.structs import replace

from pilotage.model.errors import PilotageError
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.locators import shown_locator
from pilotage.ports.put_copies import PutCopies, PutCopy
from pilotage.ports.store import FindsStores
from pilotage.service.transfers.storing import OutputCopy

log = logging.getLogger(__name__)

Standing = Literal["granted", "open", "never-granted", "unknown"]
"""Whether an attempt was granted, may still be, or never will; unknown: nothing tells it any more, so its copies stay."""
StandingOf = Callable[[AttemptRef], Standing]


class OwnCopies:
    """Notes what is put into stores. Any thread may use it; a locator that is being written is not removed meanwhile."""

    def __init__(self, notes: PutCopies) -> None:
        """Keep notes there."""
        self._notes = notes
        self._change = threading.Condition()
        self._written: dict[str, int] = {}  # how many copies are under way, by locator
        self._removed: set[str] = set()
        self._begun: set[str] | None = (
            None  # locators whose writing has begun since a look at leftovers; None: nobody looks
        )

    @contextmanager
    def writing(self, ref: AttemptRef, copy: OutputCopy) -> Iterator[Callable[[], None]]:
        """While a copy is put or compared; calls back before it is put."""
        note = PutCopy(ref=ref, locator=copy.locator, sha256=copy.sha256, owner=copy.owner)
        with self._change:
            self._change.wait_for(lambda: copy.locator not in self._removed)
            self._written[copy.locator] = self._written.get(copy.locator, 0) + 1
            if self._begun is not None:
                self._begun.add(copy.locator)
        try:
            yield lambda: self._notes.note(note)
            self._notes.note(replace(note, put=False))
        finally:
            with self._change:
                self._written[copy.locator] -= 1
                if not self._written[copy.locator]:
                    del self._written[copy.locator]

    def remove_leftovers(self, stores: FindsStores, standing_of: StandingOf) -> int:
        """Remove what attempts left that were never granted; returns how many copies could not be removed yet.

        One thread at a time may call it.
        """
        with self._change:
            self._begun = set(self._written)
        try:
            return self._remove_noted(self._notes.noted(), stores, standing_of)
        finally:
            with self._change:
                self._begun = None

    def _remove_noted(self, noted: list[PutCopy], stores: FindsStores, standing_of: StandingOf) -> int:
        standing = {ref: standing_of(ref) for ref in dict.fromkeys(each.ref for each in noted)}
        staying = {(each.locator, each.sha256) for each in noted if standing[each.ref] in ("granted", "unknown")}
        # First, so that nothing that goes wrong with another copy can make these leftovers once their job is purged.
        if settled := [each for each in noted if (each.locator, each.sha256) in staying]:
            self._notes.forget(settled)
        heirs = {(each.locator, each.sha256): each for each in noted if standing[each.ref] == "open"}
        done: list[PutCopy] = []
        left = 0
        for each in noted:
            place = each.locator, each.sha256
            if standing[each.ref] == "open" or place in staying:
                continue
            if each.put and (heir := heirs.get(place)) is not None:
                self._notes.note(replace(heir, put=True))  # it was found there by one that may still be granted
            elif each.put and not self._remove(stores, each):
                left += 1
                continue
            done.append(each)
        if done:
            self._notes.forget(done)
        return left

    def _remove(self, stores: FindsStores, copy: PutCopy) -> bool:
        """Remove a copy if it is still what was put; whether it is gone, or another file now."""
        with self._change:
            # An attempt that found it there meanwhile may still be granted, and is not among the notes that were read.
            if copy.locator in self._written or (self._begun is not None and copy.locator in self._begun):
                return False
            self._removed.add(copy.locator)
        try:
            store = stores.find(copy.locator, user=copy.owner).store
            there = store.stat(copy.locator)
            if there is None:
                return True
            if (there.sha256 or store.checksum(copy.locator, version=there.version)) == copy.sha256:
                store.delete(copy.locator)
                log.info("%s: its copy %s was removed: it was never granted", copy.ref, shown_locator(copy.locator))
        except PilotageError as fault:
            log.warning("%s: its copy stays for now: %s", copy.ref, fault.on_one_line())
            return False
        else:
            return True
        finally:
            with self._change:
                self._removed.discard(copy.locator)
                self._change.notify_all()
