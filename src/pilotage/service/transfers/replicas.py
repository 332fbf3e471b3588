"""Copies of outputs that another store takes, since theirs does not: which one, why, and what is said if none is left."""

from __future__ import annotations

import threading

from pilotage.model.errors import PilotageError
from pilotage.model.events.file_payloads import FailedCopy, StoredCopy
from pilotage.model.locators import shown_locator
from pilotage.model.texts import clipped
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import AccessDenied, CredentialExpired, StoreFull, StoreUnreachable
from pilotage.service.transfers.fetching import WrongChecksum
from pilotage.service.transfers.meter import Clock, TimedOut
from pilotage.service.transfers.storing import OutputCopy

UNRELIABLE_SECONDS = 600.0
"""How long a store that did not take a copy gets none that another store can take."""
MESSAGE_MAX = 1000
_NONE_LEFT = (
    "no other archive store is left for it: mend this one, or name one more in the setting files.archive and start the "
    "service again; then release the package"
)


class UnreliableStores:
    """The stores that failed lately, after all tries. Any thread may use it."""

    def __init__(self, clock: Clock) -> None:
        """Start with none."""
        self._clock = clock
        self._guard = threading.Lock()
        self._faults: dict[str, tuple[float, PilotageError]] = {}  # by store: until when, and why

    def note(self, store: str, fault: PilotageError) -> None:
        """A store did not take a copy."""
        with self._guard:
            self._faults[store] = (self._clock() + UNRELIABLE_SECONDS, fault)

    def forget(self, store: str) -> None:
        """A store took a copy."""
        with self._guard:
            self._faults.pop(store, None)

    def get(self, store: str) -> PilotageError | None:
        """What was wrong with a store; None if it has not failed lately."""
        with self._guard:
            until, fault = self._faults.get(store, (0.0, None))
            return fault if fault is not None and self._clock() < until else None

    def told(self) -> list[str]:
        """What is wrong with each of them, by name."""
        with self._guard:
            now = self._clock()
            return [f"{store}: {fault.on_one_line()}" for store, (until, fault) in self._faults.items() if now < until]


class CopyCourse:
    """A copy that an attempt owes, and the store where it is tried now."""

    def __init__(self, wanted: OutputCopy) -> None:
        """It is tried in its own store first."""
        self.wanted = self.now = wanted
        self._why: PilotageError | None = None  # why its own store did not take it

    def turn_to(self, spare: OutputCopy, fault: PilotageError) -> None:
        """Try another store, since the present one did not take it."""
        self._why = self._why or fault
        self.now = spare

    def stored(self) -> StoredCopy:
        """The copy, now that it is verified; and why it is not where it was to be."""
        copy, why = self.now, self._why
        return StoredCopy(
            name=copy.name,
            locator=copy.locator,
            size_bytes=copy.size_bytes,
            sha256=copy.sha256,
            instead_of=shown_locator(self.wanted.locator) if why is not None else "",
            message=clipped(why.on_one_line(), MESSAGE_MAX) if why is not None else "",
        )

    def failed(self, fault: PilotageError) -> FailedCopy:
        """The copy, if no store has taken it; `fault` is of the last one that was tried."""
        first = self._why or fault
        told = first.on_one_line()
        if self._why is not None:
            told += f"; then {shown_locator(self.now.locator)}: {fault.on_one_line()}"
        if is_of_store(first):
            told = f"{clipped(told, MESSAGE_MAX - len(_NONE_LEFT) - 2)}; {_NONE_LEFT}"
        return FailedCopy(
            name=self.wanted.name,
            locator=self.wanted.locator,
            reason=reason_of(first),
            message=clipped(told, MESSAGE_MAX),
        )


def is_of_store(fault: PilotageError) -> bool:
    """Whether a store is to blame, so that another one may take the copy."""
    return isinstance(fault, StoreUnreachable | StoreFull | AccessDenied | CredentialExpired | WrongChecksum | TimedOut)


def reason_of(fault: PilotageError) -> str:
    """The reason by which a fault is told."""
    return fault.reason if isinstance(fault, StoreError) else "bad-locator"
