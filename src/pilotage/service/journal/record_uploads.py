"""Records that other services upload: registered, then uploading their parts, then committed as a whole.

Nothing of an upload is visible before its commit. Parts that were stored before a crash are not uploaded again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Literal

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.records import JobRecord, RecordPart
from pilotage.ports.records import RecordStore
from pilotage.provenance.assembly import verify

UPLOADS_MAX = 1000
"""Uploads at once; the oldest is forgotten, and registered again by its sender."""

UploadState = Literal["registered", "uploading", "committed"]


class NotRegistered(PilotageError):
    """No upload of this record is registered, or it does not name this part: send the record first."""


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """How far an upload is, and which parts are still missing."""

    state: UploadState
    missing: tuple[str, ...] = ()


class RecordUploads:
    """The uploads under way."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._registered: OrderedDict[str, JobRecord] = OrderedDict()

    def register(self, record: JobRecord, store: RecordStore) -> Upload:
        """Take a record: committed at once if all its parts are stored. Raises `NotADump` and `RecordStoreError`."""
        digests = {part.sha256 for part in record.parts}
        missing = store.missing(digests)
        if missing:
            with self._guard:
                self._registered[record.job] = record
                self._registered.move_to_end(record.job)
                while len(self._registered) > UPLOADS_MAX:
                    self._registered.popitem(last=False)
            state: UploadState = "registered" if len(missing) == len(digests) else "uploading"
            return Upload(state=state, missing=tuple(sorted(missing)))
        verify(record, store.content)
        store.commit([record])
        with self._guard:
            self._registered.pop(record.job, None)
        return Upload(state="committed")

    def registered(self, job: str) -> JobRecord:
        """The record whose parts are being uploaded. Raises `NotRegistered`."""
        with self._guard:
            found = self._registered.get(job)
        if found is None:
            raise NotRegistered("no upload is registered", subject=f"job {job}", next_step="send the record first")
        return found

    def add_part(self, record: JobRecord, sha256: str, content: bytes, store: RecordStore) -> Upload:
        """Store a part of an upload; the last one commits the record."""
        part = _part(record, sha256)
        if hashlib.sha256(content).hexdigest() != sha256 or len(content) != part.size_bytes:
            raise NotRegistered(
                "the content is not that of the part", subject=f"part {sha256[:12]} of job {record.job}"
            )
        store.add_parts([(part.kind, content)])
        return self.register(record, store)


def _part(record: JobRecord, sha256: str) -> RecordPart:
    for part in record.parts:
        if part.sha256 == sha256:
            return part
    raise NotRegistered("the record has no such part", subject=f"part {sha256[:12]} of job {record.job}")
