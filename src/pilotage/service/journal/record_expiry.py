"""Which records retention deletes: those whose time is over, but never one that the settings keep."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.settings.settings import ProvenanceSettings

if TYPE_CHECKING:
    from pilotage.ports.records import RecordStore

log = logging.getLogger(__name__)

DAY_SECONDS = 86_400.0
STARTING_SHARE = 0.1
"""Share of `kept_days` by which the time of records may move on when a service starts: nobody knows how long none ran."""
_CHANGES_AT_ONCE = 1000


class ExpiredRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs whose records have had their time: those that are to be deleted, and those that are never deleted."""

    deleted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class RecordExpiry:
    """Tells which records have had their time, as a clock and the time that really passed say."""

    def __init__(self, settings: ProvenanceSettings) -> None:
        """Take the settings. Raises `QueryError` where `never_deleted` is no query."""
        self._kept_seconds = settings.kept_days * DAY_SECONDS
        self._never = settings.never_deleted.strip()
        self._expired_at: float | None = None  # when records last expired here, in seconds that really passed
        self._kept: set[str] = set()  # jobs whose records were found to be kept, as they were at the position
        self._position = 0
        if self._never:
            from pilotage.provenance.index.query import parse

            try:
                parse(self._never, now=None)
            except PilotageError as fault:
                fault.subject = f"provenance.never_deleted: {fault.subject}".removesuffix(": ")
                raise

    @property
    def is_set(self) -> bool:
        """Whether any record expires."""
        return self._kept_seconds > 0

    def expired(self, store: RecordStore, *, now: float, elapsed: float, advances: bool) -> ExpiredRecords:
        """The records that have had their time; `advances` moves the time of records on, else nothing is written."""
        if not self.is_set:
            return ExpiredRecords()
        at = self._time(store, now=now, elapsed=elapsed, advances=advances)
        expired = store.unheard_since(at - self._kept_seconds)
        if not self._never or not expired:
            return ExpiredRecords(deleted=tuple(expired))
        self._forget_changed(store)
        kept = {job for job in expired if self._is_kept(store, job)}
        return ExpiredRecords(
            deleted=tuple(job for job in expired if job not in kept), kept=tuple(job for job in expired if job in kept)
        )

    def _time(self, store: RecordStore, *, now: float, elapsed: float, advances: bool) -> float:
        """The time by which records expire: a clock that was set forward by mistake must not delete them.

        So it follows the clock by the time that really passed, and by at most a tenth of their time when a service starts.
        """
        passed = STARTING_SHARE * self._kept_seconds
        if self._expired_at is not None:
            passed = elapsed - self._expired_at
        at = store.expiry_time(now, seconds_max=passed, advances=advances)
        if advances:
            self._expired_at = elapsed
        if now - at > DAY_SECONDS:
            log.warning(
                "records expire as if it was %.0f days ago: the clock went on by more than the time that passed here",
                (now - at) / DAY_SECONDS,
            )
        return at

    def _forget_changed(self, store: RecordStore) -> None:
        """Forget what was found of records that have changed since, such as by an annotation."""
        while changes := store.changes(after=self._position, limit=_CHANGES_AT_ONCE):
            self._kept.difference_update(each.job for each in changes)
            self._position = changes[-1].position

    def _is_kept(self, store: RecordStore, job: str) -> bool:
        """Whether the record of a job is never deleted; one that cannot be read is kept, since nobody can tell."""
        if job not in self._kept and (not self._never or not is_found(store, job, self._never)):
            return False
        self._kept.add(job)
        return True


def is_found(store: RecordStore, job: str, query: str) -> bool:
    """Whether a query finds the record of a job, or it cannot be read."""
    from pilotage.provenance.index.feed import FeedRegistration, check_feed, entry_of

    feed = check_feed(FeedRegistration(name="never-deleted", attributes=("job",), query=query))
    try:
        record = store.record(job)
        if record is None:
            return False
        annotations = store.annotations(job)
        return entry_of(record, annotations, position=0, read_part=store.content, feed=feed) is not None
    except PilotageError as fault:
        log.warning("the record of job %s is not deleted, since it cannot be read: %s", job, fault)
        return True
