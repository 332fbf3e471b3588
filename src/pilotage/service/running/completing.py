"""Checksums of large inputs, worked out behind the back of those who run the job: their packages can be adopted, too."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from pilotage.ports import FileStore, MadeWork, StoreError, WorkFields, WorkIndex
from pilotage.service.running.keys import completed, key_of

log = logging.getLogger(__name__)

WAITING_MAX = 100_000
"""So many packages may wait for the checksums of their inputs; of more, the earliest run again next time."""


class Completer:
    """A thread that completes what was made with the checksums of its inputs, and has the index keep it."""

    def __init__(self, store: FileStore, index: WorkIndex, *, waiting_max: int = WAITING_MAX) -> None:
        """Nothing runs before the first is to be completed."""
        self._store = store
        self._index = index
        self._waiting: deque[MadeWork] = deque(maxlen=waiting_max)
        self._change = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="completer", daemon=True)

    def complete(self, made: Iterable[MadeWork]) -> None:
        """Complete these and keep them, some time soon."""
        with self._change:
            self._waiting.extend(made)
            if self._thread.ident is None and self._waiting:
                self._thread.start()
            self._change.notify_all()

    def settle(self) -> None:
        """Wait until nothing waits."""
        with self._change:
            self._change.wait_for(lambda: self._stopping or not (self._waiting or self._busy))

    def stop(self) -> None:
        """End after the one that is being worked on; the rest is not remembered."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _completed(self, made: MadeWork) -> WorkFields | None:
        """The fields with every checksum; None where an input is not the file any more that the package was given."""
        names = [name for name, sha256 in made.fields.inputs.items() if not sha256]
        if not self._is_as_placed(made, names):
            return None
        fields = completed(made.fields, partial(self._store.checksum, made.folder))
        return fields if self._is_as_placed(made, names) else None

    def _is_as_placed(self, made: MadeWork, names: Sequence[str]) -> bool:
        there, placed = self._store.look_up(made.folder, names), made.placed
        return there.keys() == placed.keys() and all(file.is_like(placed[name]) for name, file in there.items())

    def _run(self) -> None:
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._stopping or self._waiting)
                if self._stopping:
                    return
                made = self._waiting.popleft()
                self._busy = True
            try:
                fields = self._completed(made)
                if fields is not None:
                    self._index.keep([msgspec.structs.replace(made, key=key_of(fields), fields=fields)])
            except StoreError as fault:
                log.warning("%s is not remembered for later runs: %s", made.ref, fault)
