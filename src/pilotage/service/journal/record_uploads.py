"""Records that other services upload: registered, then uploading their parts, then committed as a whole.

Nothing of an upload is visible before its commit. A part counts as sent if this user sent it with this upload, or may read it in an
earlier revision of the record: that others have stored the same content neither saves the sending, nor can it be found out.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Literal

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.records import JobRecord, RecordPart, foreign
from pilotage.ports.records import RecordStore, sound_record, sound_revisions
from pilotage.reading.access import Principal, may_use_record

UPLOADS_MAX = 1000
"""Uploads at once; the oldest is forgotten, and registered again by its sender."""
USER_UPLOADS_MAX = 100
"""Uploads of one user at once: nobody makes the service forget those of others."""
UPLOAD_PARTS_MAX = 1_000_000
"""Parts of all uploads at once."""

UploadState = Literal["registered", "uploading", "committed"]


class NotRegistered(PilotageError):
    """No upload of this record is registered, or it does not name this part: send the record first."""


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """How far an upload is, and which parts are still missing."""

    state: UploadState
    missing: tuple[str, ...] = ()


class _Registered:
    """A record whose parts are being sent."""

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        self.digests = {part.sha256 for part in record.parts}
        self.missing = set(self.digests)


class RecordUploads:
    """The uploads under way, each of one user and job."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._registered: OrderedDict[tuple[str, str], _Registered] = OrderedDict()

    def register(self, user: Principal, record: JobRecord, store: RecordStore) -> Upload:
        """Take a record: committed at once if all its parts were sent. Raises `NotADump` and `RecordStoreError`."""
        record = foreign(record)
        key = user.user, record.job
        with self._guard:
            found = self._registered.get(key)
            if found is None or found.record != record:
                found = self._registered[key] = _Registered(record)
            self._registered.move_to_end(key)
            self._forget_oldest(user.user)
        readable = _readable_before(user, record, store)
        with self._guard:
            found.missing -= readable
        return self._settle(user, found, store)

    def registered(self, user: Principal, job: str) -> JobRecord:
        """The record whose parts the user is sending. Raises `NotRegistered`."""
        return self._found(user, job).record

    def add_part(self, user: Principal, job: str, sha256: str, content: bytes, store: RecordStore) -> Upload:
        """Store a part of an upload; the last one commits the record."""
        found = self._found(user, job)
        part = _part(found.record, sha256)
        if hashlib.sha256(content).hexdigest() != sha256 or len(content) != part.size_bytes:
            raise NotRegistered("the content is not that of the part", subject=f"part {sha256[:12]} of job {job}")
        store.add_parts([(part.kind, content)])
        with self._guard:
            found.missing.discard(sha256)
        return self._settle(user, found, store)

    def _settle(self, user: Principal, found: _Registered, store: RecordStore) -> Upload:
        """Commit the record if all its parts are there."""
        with self._guard:
            if not found.missing:  # a collection may have removed what no record needed any more
                found.missing |= store.missing(found.digests)
            missing = tuple(sorted(found.missing))
        if missing:
            return Upload(state="uploading" if len(missing) < len(found.digests) else "registered", missing=missing)
        record = found.record
        # It expands the definition, and brings along numpy, which an idle service does without.
        from pilotage.provenance.foreign_records import verify_foreign

        verify_foreign(record, store.content)
        store.commit([record])
        with self._guard:
            if self._registered.get((user.user, record.job)) is found:
                del self._registered[user.user, record.job]
        return Upload(state="committed")

    def _found(self, user: Principal, job: str) -> _Registered:
        with self._guard:
            found = self._registered.get((user.user, job))
        if found is None:
            raise NotRegistered("no upload is registered", subject=f"job {job}", next_step="send the record first")
        return found

    def _forget_oldest(self, user: str) -> None:
        own = [key for key in self._registered if key[0] == user]
        for key in own[: max(0, len(own) - USER_UPLOADS_MAX)]:
            del self._registered[key]
        parts = sum(len(each.record.parts) for each in self._registered.values())
        while len(self._registered) > UPLOADS_MAX or (parts > UPLOAD_PARTS_MAX and len(self._registered) > 1):
            _, forgotten = self._registered.popitem(last=False)
            parts -= len(forgotten.record.parts)


def _readable_before(user: Principal, record: JobRecord, store: RecordStore) -> set[str]:
    """The parts that earlier revisions of the same record have, if the user may read it."""
    newest = sound_record(store, record.job)
    if newest is None or not may_use_record(user, "read", newest):
        return set()
    sizes = {part.sha256: part.size_bytes for part in record.parts}
    parts = (part for each in sound_revisions(store, record.job) for part in each.parts)
    return {part.sha256 for part in parts if sizes.get(part.sha256) == part.size_bytes}


def _part(record: JobRecord, sha256: str) -> RecordPart:
    for part in record.parts:
        if part.sha256 == sha256:
            return part
    raise NotRegistered("the record has no such part", subject=f"part {sha256[:12]} of job {record.job}")
