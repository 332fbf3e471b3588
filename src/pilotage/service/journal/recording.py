"""Makes the record of each job that is over and quiet, in a thread of its own, and holds the storage of records open.

The storage is opened when the first job is over: a service without finished jobs does not even import it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Protocol

from pilotage.book.rows.rows import JobRow
from pilotage.model.errors import PilotageError
from pilotage.model.settings.settings import ProvenanceSettings
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import AttemptLogs, Clock, Journal
from pilotage.service.journal.record_expiry import ExpiredRecords, RecordExpiry
from pilotage.service.journal.record_feeds import RecordFeeds
from pilotage.service.journal.record_uploads import RecordUploads

if TYPE_CHECKING:
    from pilotage.model.records import JobRecord
    from pilotage.ports.records import RecordStore
    from pilotage.provenance.recorder import Recorder

log = logging.getLogger(__name__)

STOPPING_SECONDS = 10.0
"""How long a service that stops goes on making records; the next service makes the rest."""
STOPPING_PACKAGES_MAX = 20_000
"""Jobs with more packages are left to the next service then."""
COMMITTED_AT_ONCE, COMMITTED_BYTES = 100, 64 * 1024 * 1024
"""Records that are committed together, and the size of their parts from which on no more are waited for."""


class OpenRecords(Protocol):
    """Opens the storage of records."""

    def __call__(self, *, writes: bool) -> RecordStore:
        """Open it for writing, or for reading next to a writer. Raises a `PilotageError`."""
        ...


ReadFiles = Callable[[JobRow], "Callable[[str, int], bytes] | None"]
"""Gives, for a job that ran here, what reads its files by name and size; raises `PilotageError` or `OSError`."""


class RecordKeeping:
    """Makes records when jobs are over, and again when more is heard of them."""

    def __init__(
        self,
        journal: Journal,
        *,
        settings: ProvenanceSettings,
        open_store: OpenRecords,
        clock: Clock,
        logs: Callable[[], AttemptLogs | None] = lambda: None,
        files: ReadFiles = lambda _: None,
        is_incomplete: Callable[[str], bool] = lambda _: False,
        sites: Callable[[str], bytes | None] = lambda _: None,
        writes: bool = True,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is opened and nothing runs yet; raises `QueryError` where `never_deleted` is no query.

        Without `writes`, the storage is opened for reading until a record is made.

        `is_incomplete` says whether something of a finished job is still being worked out, such as checksums of its inputs;
        `sites` describes a site by name; `elapsed` counts the seconds that pass, however the clock is set.
        """
        self._journal = journal
        self._settings = settings
        self._open_store = open_store
        self._clock = clock
        self._logs = logs
        self._files = files
        self._is_incomplete = is_incomplete
        self._sites = sites
        self._writes = writes
        self._elapsed = elapsed
        self._expiry = RecordExpiry(settings)
        self.uploads = RecordUploads()
        self.feeds = RecordFeeds()
        self._guard = threading.RLock()  # opening and closing: short, as readers wait for it
        self._making = threading.Lock()  # one record is made at a time, and none while parts are removed
        self._opened: RecordStore | None = None
        # Jobs whose records wait until the storage can be written, and why it cannot.
        self._unstored: dict[str, str] = {}
        self._hearing = threading.Lock()
        self._heard: set[str] = set()  # jobs of commits since the last look
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)

    # --- the storage ---

    def store(self) -> RecordStore:
        """The storage of records, for reading. Raises a `PilotageError` if it cannot be opened."""
        with self._guard:
            if self._opened is not None and self._opened.broken:
                self.close()  # opened again, it reads what the disk has
            if self._opened is None:
                self._opened = self._open_store(writes=self._writes)
            return self._opened

    def close(self) -> None:
        """Close the storage; it is opened again when it is needed."""
        with self._guard:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    @contextmanager
    def writing(self) -> Iterator[RecordStore]:
        """The storage, opened for writing: for a moment where no service runs. Raises a `PilotageError`."""
        if self._writes:
            yield self.store()
            return
        with self._guard:
            self.close()
            with closing(self._open_store(writes=True)) as store:
                yield store

    # --- records ---

    def is_recorded(self, row: JobRow) -> bool:
        """Whether the record of a job has all that was heard of it, or had it and was deleted."""
        from pilotage.ports.records import NoRecords
        from pilotage.provenance.recorder import is_current

        try:
            return self._was_deleted(row) or is_current(row, self.store(), self._journal)
        except NoRecords:
            return False  # it is not there to be read, and made when the first record is

    def record(self, job: str) -> JobRecord | None:
        """Make the record of a job that is over, unless it is current; None if the job is not over, or its record was deleted.

        Raises `RecordNotReady` while something of it is still being worked out.
        """
        from pilotage.ports.records import RecordNotReady

        if self._is_incomplete(job):
            raise RecordNotReady("the checksums of its inputs are still being worked out", subject=f"job {job}")

        row = self._journal.job(job)
        if row is None or self._was_deleted(row):
            return None
        small = self._small_files(row)
        with self._making, self.writing() as store:
            made = self._recorder(store).record(job, logs=self._logs(), read_file=small, sites=self._sites)
        self._unstored.pop(job, None)
        if made is not None:
            log.debug("job %s is recorded: revision %d", job, made.revision)
        return made

    def _small_files(self, row: JobRow) -> Callable[[str, int], bytes | None] | None:
        """Reads the small files of a job that ran here."""
        read = self._files(row)
        return None if read is None else self._small(read)

    def _small(self, read: Callable[[str, int], bytes]) -> Callable[[str, int], bytes | None]:
        """Reads a file unless it is too large, or no longer there."""

        def read_small(name: str, size_bytes: int) -> bytes | None:
            if size_bytes > self._settings.file_bytes_max:
                return None
            try:
                return read(name, size_bytes)
            except (PilotageError, OSError):
                return None  # removed or replaced since: its checksum is in the life log

        return read_small

    def expired(self) -> ExpiredRecords:
        """The records whose time is over, as far as they are there to be read; nothing is changed."""
        from pilotage.ports.records import NoRecords

        if not self._expiry.is_set:
            return ExpiredRecords()
        try:
            return self._expiry.expired(self.store(), now=self._clock.now(), elapsed=self._elapsed(), advances=False)
        except NoRecords:
            return ExpiredRecords()

    def delete_expired(self) -> int:
        """Delete the records whose time is over, with the parts that no other record shares; return how many."""
        if not self._expiry.is_set:
            return 0
        now = self._clock.now()
        with self._making, self.writing() as store:
            expired = self._expiry.expired(store, now=now, elapsed=self._elapsed(), advances=True).deleted
            for job in expired:
                store.delete(job, at=now, author="service")
            freed_bytes = store.collect(dry_run=False).freed_bytes if expired else 0
        if expired:
            log.info(
                "the records of %d jobs were deleted: their time is over; %d bytes are free", len(expired), freed_bytes
            )
        return len(expired)

    def _was_deleted(self, row: JobRow) -> bool:
        """Whether the record of a job was deleted, and nothing was heard of the job since: it is not made again."""
        from pilotage.ports.records import NoRecords

        try:
            deletion = self.store().deletion(row.job)
        except NoRecords:
            return False
        return deletion is not None and deletion.at >= row.heard_at

    def trouble_of(self, job: str) -> str:
        """Why the record of a job cannot be made at present, such as a full disk; empty if nothing is known to prevent it."""
        return self._unstored.get(job, "")

    # --- the thread ---

    def note(self, jobs: Iterable[str]) -> None:
        """Events of these jobs are durable; from any thread."""
        with self._hearing:
            self._heard.update(jobs)
        if not self._news.is_set():
            self._news.set()

    def start(self) -> None:
        """Start to make records, also of jobs that ended under an earlier service."""
        self._thread.start()

    def stop(self) -> None:
        """Make the records of jobs that have ended, as far as that is quick, and close the storage."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self.close()

    def _run(self) -> None:
        quiet_seconds = self._settings.recorded_after_seconds
        waiting: set[str] = set()
        is_first = True
        while not self._stop.is_set():
            if not waiting and not is_first:
                self._news.wait()
            self._stop.wait(quiet_seconds)
            heard = self._taken()
            if is_first:
                waiting, is_first = self._left_over(), False
            due, waiting = waiting - heard, heard
            waiting |= self.record_all(due, enough=self._stop.is_set)
        deadline = time.monotonic() + STOPPING_SECONDS
        self.record_all(waiting | self._taken(), enough=lambda: time.monotonic() > deadline, stopping=True)

    def _taken(self) -> set[str]:
        with self._hearing:
            self._news.clear()
            heard, self._heard = self._heard, set()
        return heard

    def _left_over(self) -> set[str]:
        """The finished jobs of the live book; those whose record is current cost a look each."""
        try:
            return {row.job for row in self._journal.live_jobs() if row.state in FINAL_NAMES}
        except PilotageError as fault:
            log.warning("records of jobs that ended under an earlier service are made by retention: %s", fault)
            return set()

    def record_all(
        self, jobs: Iterable[str], *, enough: Callable[[], bool] = lambda: False, stopping: bool = False
    ) -> set[str]:
        """Make the records of those jobs that are over, many in a commit, and return the jobs that must be tried again."""
        again: set[str] = set()
        waiting = deque(sorted(jobs))
        while waiting:
            if enough():
                return again.union(waiting)
            again |= self._try_some(waiting, enough=enough, stopping=stopping)
            if not again.isdisjoint(self._unstored):  # what could not be stored is tried again together with the rest
                return again.union(waiting)
        return again

    def _try_some(self, jobs: deque[str], *, enough: Callable[[], bool], stopping: bool) -> set[str]:
        """Make the records of the next jobs and commit them together: one sync for all."""
        again: set[str] = set()
        made: list[JobRecord] = []
        size_bytes = 0
        with ExitStack() as stack:
            recorder: Recorder | None = None
            store: RecordStore | None = None
            while jobs and len(made) < COMMITTED_AT_ONCE and size_bytes < COMMITTED_BYTES and not enough():
                if not again.isdisjoint(self._unstored):
                    break
                job = jobs.popleft()
                with self._reported([job], again):
                    position = self._journal.position()
                    row = self._journal.job(job)
                    if row is None or row.state not in FINAL_NAMES or row.place == "purged" or self._was_deleted(row):
                        continue
                    if stopping and row.expected > STOPPING_PACKAGES_MAX:
                        continue
                    if self._is_incomplete(job):
                        again.add(job)
                        continue
                    if recorder is None:
                        store = stack.enter_context(self._written())
                        recorder = self._recorder(store)
                    record = recorder.assembled(
                        row, position, logs=self._logs(), read_file=self._small_files(row), sites=self._sites
                    )
                    if record is not None:
                        made.append(record)
                        size_bytes += sum(part.size_bytes for part in record.parts)
            if store is not None and made:
                waiting = [record.job for record in made]
                if again.isdisjoint(self._unstored):
                    with self._reported(waiting, again):
                        self._commit(store, made, again)
                else:  # what the storage could not take may be parts of these
                    why = next(self._unstored[job] for job in again if job in self._unstored)
                    self._wait_for_storage(waiting, again, why)
        return again

    @contextmanager
    def _written(self) -> Iterator[RecordStore]:
        with self._making, self.writing() as store:
            yield store

    def _recorder(self, store: RecordStore) -> Recorder:
        from pilotage.provenance.recorder import Recorder

        return Recorder(self._journal, store, now=self._clock.now)

    def _commit(self, store: RecordStore, made: Sequence[JobRecord], again: set[str]) -> None:
        from pilotage.ports.records import IncompleteRecord, RecordTaken

        try:
            store.commit(made)
            log.debug("%d jobs are recorded", len(made))
        except (IncompleteRecord, RecordTaken):  # one of them is refused, and the others need not wait for it
            for each in made:
                with self._reported([each.job], again):
                    store.commit([each])
        if self._unstored:
            log.info("records are stored again")
            self._unstored.clear()

    @contextmanager
    def _reported(self, jobs: Sequence[str], again: set[str]) -> Iterator[None]:
        """Report a fault and go on. Where the storage cannot be written the jobs wait; else housekeeping tries again, and purges none."""
        from pilotage.ports.records import DamagedPart, IncompleteRecord, RecordStoreError, RecordTaken

        subject = f"job {jobs[0]}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
        try:
            yield
        except RecordStoreError as fault:
            if isinstance(fault, DamagedPart | IncompleteRecord | RecordTaken):
                log.warning("the record of %s could not be made yet: %s", subject, fault)
            else:
                self._wait_for_storage(jobs, again, str(fault))
        except PilotageError as fault:
            log.warning("the record of %s could not be made yet: %s", subject, fault)
        except Exception:
            log.exception("the record of %s could not be made", subject)

    def _wait_for_storage(self, jobs: Sequence[str], again: set[str], why: str) -> None:
        """These jobs are tried again soon; the reason is logged when it is new."""
        why = f"their records cannot be stored yet, and this is tried again: {why}"
        if why not in self._unstored.values():
            log.warning("jobs such as %s: %s", jobs[0], why)
        again.update(jobs)
        self._unstored.update(dict.fromkeys(jobs, why))
