"""From a durable grant to files under their names: published in the order of the book, and again after a crash.

A grant stands whatever the disk says. What cannot be published holds its job, which says why; when somebody has mended
it and releases the job, publishing goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from pilotage.model.exchange import Assignment, AttemptRef
from pilotage.model.operations import HoldResults
from pilotage.ports import FileStore, InTheWay, StoreError
from pilotage.service.running.manifests import Manifests

log = logging.getLogger(__name__)

Hold = Callable[[str, str], None]
"""Hold a job, with a message."""
AreRivals = Callable[[str, str], bool]
"""Whether the first of two jobs must not replace what the second has made."""


def hold_for(job: str, message: str) -> HoldResults:
    """What the service asks for when something of a job cannot be published: also of one that is over, which waits for it."""
    return HoldResults(job=job, message=message)


class Unpublished(msgspec.Struct, frozen=True, kw_only=True):
    """A package whose files could not get their names: why, and what to do about it before its job is released."""

    package: str  # dotted
    attempt: int
    what: str
    next_step: str = ""
    count: int = 1  # of packages of its job with which it is so


class Publisher:
    """Publishes what was granted, and throws away what was not; one thread uses it."""

    def __init__(self, store: FileStore, manifests: Manifests, *, hold: Hold, are_rivals: AreRivals) -> None:
        """Take the store, what attempts made, how a job is held, and which jobs must leave each other's files alone."""
        self._store = store
        self._manifests = manifests
        self._hold = hold
        self._are_rivals = are_rivals
        self._waiting: dict[str, dict[AttemptRef, str]] = {}  # by job: what could not be published, and its folder
        self._faults: dict[str, Unpublished] = {}  # by job: the last of them

    def publish(self, folder: str, ref: AttemptRef, *, in_the_way: InTheWay = "refuse") -> None:
        """Publish what a granted attempt made; where that cannot be, its job is held until somebody releases it."""
        manifest = self._manifests.of(ref) or ()
        try:
            rivals = partial(self._are_rivals, ref.job)
            self._store.publish(folder, ref, manifest, is_rival=rivals, in_the_way=in_the_way)
        except StoreError as fault:
            self.postpone(folder, ref, fault)

    def postpone(self, folder: str, ref: AttemptRef, fault: StoreError) -> None:
        """What an attempt made cannot be published now: its job is held until somebody releases it."""
        log.warning("%s: %s", ref, fault)
        self._waiting.setdefault(ref.job, {})[ref] = folder
        told = f"what {ref.package} made cannot be published: {fault.subject}: {fault.what}"
        self._faults[ref.job] = Unpublished(
            package=ref.package, attempt=ref.attempt, what=told, next_step=fault.next_step
        )
        self._hold(ref.job, told)

    def discard(self, folder: str, ref: AttemptRef) -> None:
        """Throw away what an attempt staged that nobody wants."""
        manifest = self._manifests.of(ref)
        try:
            self._store.discard(folder, ref, len(manifest or ()))
        except StoreError as fault:
            log.warning("%s: %s", ref, fault)  # it takes room, and nothing else: the next start tries again

    def forget(self, folder: str, job: str, package: str) -> None:
        """What a package made counts no longer: what of it waits here never gets its names."""
        waiting = self._waiting.get(job, {})
        for ref in [ref for ref in waiting if ref.package == package]:
            del waiting[ref]
            self.discard(folder, ref)
        if job in self._waiting and not waiting:
            self.take_waiting(job)

    def waiting(self, job: str) -> int:
        """How many packages of a job are done and could not be published."""
        return len(self._waiting.get(job, ()))

    def fault(self, job: str) -> Unpublished | None:
        """What of a job could not be published, and why: the last of it; None where all could."""
        found = self._faults.get(job)
        return msgspec.structs.replace(found, count=self.waiting(job)) if found is not None else None

    def jobs(self) -> set[str]:
        """The jobs of which something could not be published."""
        return {*self._waiting}

    def holds_back(self, assignment: Assignment) -> bool:
        """Whether an attempt would read files that wait here: something else may be under their names."""
        if not self._waiting:
            return False
        job = assignment.ref.job
        waiting = self._waiting.get(job, ())
        return any(AttemptRef(job, source.package, source.attempt) in waiting for source in assignment.inputs)

    def take_waiting(self, job: str) -> list[AttemptRef]:
        """What waits of a job, now that it was released: it is tried again, and waits here no more."""
        self._faults.pop(job, None)
        return list(self._waiting.pop(job, {}))
