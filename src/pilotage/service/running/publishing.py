"""From a durable grant to files under their names: published in the order of the book, and again after a crash.

A grant stands whatever the disk says. What cannot be published holds its job, which says why; when somebody has mended
it and releases the job, publishing goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pilotage.model.exchange import AttemptRef
from pilotage.ports import FileStore, StoreError
from pilotage.service.running.manifests import Manifests

log = logging.getLogger(__name__)

Hold = Callable[[str, str], None]
"""Hold a job, with a message."""


class Publisher:
    """Publishes what was granted, and throws away what was not; one thread uses it."""

    def __init__(self, store: FileStore, manifests: Manifests, *, hold: Hold) -> None:
        """Take the store, what attempts made, and how a job is held."""
        self._store = store
        self._manifests = manifests
        self._hold = hold
        self._waiting: dict[str, dict[AttemptRef, str]] = {}  # by job: what could not be published, and its folder
        self._faults: dict[str, tuple[str, str]] = {}  # by job: why not, and what to do

    def publish(self, folder: str, ref: AttemptRef) -> None:
        """Publish what a granted attempt made; where that cannot be, its job is held until somebody releases it."""
        manifest = self._manifests.of(ref) or ()
        try:
            self._store.publish(folder, ref, manifest)
        except StoreError as fault:
            self.postpone(folder, ref, fault)

    def postpone(self, folder: str, ref: AttemptRef, fault: StoreError) -> None:
        """What an attempt made cannot be published now: its job is held until somebody releases it."""
        log.warning("%s: %s", ref, fault)
        self._waiting.setdefault(ref.job, {})[ref] = folder
        told = f"what {ref.package} made cannot be published: {fault.subject}: {fault.what}"
        self._faults[ref.job] = (told, fault.next_step)
        self._hold(ref.job, told)

    def discard(self, folder: str, ref: AttemptRef) -> None:
        """Throw away what an attempt staged that nobody wants."""
        manifest = self._manifests.of(ref)
        try:
            self._store.discard(folder, ref, len(manifest or ()))
        except StoreError as fault:
            log.warning("%s: %s", ref, fault)  # it takes room, and nothing else: the next start tries again

    def waiting(self, job: str) -> int:
        """How many packages of a job are done and could not be published."""
        return len(self._waiting.get(job, ()))

    def fault(self, job: str) -> tuple[str, str]:
        """Why something of a job could not be published, and what to do about it; nothing where all could."""
        return self._faults.get(job, ("", ""))

    def take_waiting(self, job: str) -> list[AttemptRef]:
        """What waits of a job, now that it was released: it is tried again, and waits here no more."""
        self._faults.pop(job, None)
        return list(self._waiting.pop(job, {}))
