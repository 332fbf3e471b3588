"""Recorded jobs, opened: from a server, or from a folder of records; and which of them used or made a file."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.model.errors import PilotageError, extra
from pilotage.provenance.history import FileUse, History, history_of
from pilotage.provenance.trace import Direction

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.model.settings.settings import Settings
    from pilotage.ports.record_index import RecordIndex
    from pilotage.ports.records import RecordReader, RecordStore, StoredRecord

log = logging.getLogger(__name__)

HISTORIES_MAX = 8
"""Opened records that are held at once."""
SCANNED_MAX = 10_000
"""Records that are opened to find a file."""
_CHANGES_AT_ONCE = 1000


class UnknownRecordedJob(PilotageError):
    """There is no record of this job: it is not over, or its record is elsewhere."""


class TooManyRecords(PilotageError):
    """More records than can be opened one by one: name the job of the file, as JOB/NAME."""


class RecordedJobs:
    """The records of a storage, opened as values; those that were opened last are held."""

    def __init__(
        self,
        records: RecordReader,
        jobs: Callable[[], Sequence[str]],
        *,
        find: Callable[[str], str],
        folder: Path | None = None,
        listing: str = "pilotage provenance list",
    ) -> None:
        """`jobs` lists the recorded jobs, the earliest first; `find` returns the id of a job by its id or name.

        `listing` is the command that shows users what there is.

        `folder` has the records and their index, if they are on this computer; else every record is opened to find a file.
        """
        self.records = records
        self.find = find
        self._listing = listing
        self._folder = folder
        self._jobs = jobs
        self._histories: dict[str, History] = {}
        self._by_file: dict[Direction, dict[str, list[str]]] | None = None
        self._closing = ExitStack()
        self._index: RecordIndex | None = None

    def history(self, job: str) -> History | None:
        """The record of a job, opened; None if there is none. Raises `UnreadableRecord`."""
        found = self._histories.pop(job, None)
        if found is None:
            record = self.records.record(job)
            if record is None:
                return None
            found = history_of(record, self.records.content)
            if len(self._histories) >= HISTORIES_MAX:
                del self._histories[next(iter(self._histories))]
        self._histories[job] = found
        return found

    def opened(self, job: str) -> History:
        """The same; raises `UnknownRecordedJob` if there is none."""
        found = self.history(job)
        if found is None:
            raise UnknownRecordedJob(
                "there is no record of this job",
                subject=f"job {job}",
                next_step=f"see: {self._listing}",
            )
        return found

    def jobs_with_file(self, sha256: str, direction: Direction) -> Sequence[str]:
        """The recorded jobs that used or made a content, the earliest first."""
        if (found := self._indexed(f"{direction}.sha256", sha256)) is not None:
            return found
        if self._by_file is None:
            self._by_file = self._scanned()
        return self._by_file[direction].get(sha256, ())

    def jobs_with_name(self, name: str) -> Iterator[tuple[str, FileUse]]:
        """The recorded jobs that made a file of a name, the latest first, each with the file."""
        from pilotage.provenance.trace import file_in_job

        found = self._indexed("produced", name)
        for job in reversed(found if found is not None else self._some_jobs()):
            history = self.history(job)
            file = file_in_job(history, name) if history is not None else None
            if file is not None and file.direction == "produced":
                yield job, file

    def close(self) -> None:
        """Close the index."""
        self._closing.close()

    def _indexed(self, attribute: str, value: str) -> list[str] | None:
        """The jobs whose records have a value, by the index of the folder; None without one."""
        if self._folder is None:
            return None
        from pilotage.book.query import Operator
        from pilotage.ports.record_index import FOUND_MAX, IndexCondition, IndexQuery, RecordIndexError

        try:
            if self._index is None:
                self._index = self._closing.enter_context(_index_of(self._folder))
        except RecordIndexError as fault:  # such as of a copy that cannot be written
            log.info("every record is opened, since there is no index: %s", fault)
            self._folder = None
            return None
        condition = IndexCondition(attribute=attribute, operator=Operator.EQUAL, values=(value,))
        found: list[str] = []
        after: str | None = None
        while True:
            page = self._index.find(IndexQuery(((condition,),)), readable=None, limit=FOUND_MAX, after=after)
            found += [each.job for each in page.records]
            after = page.next
            if after is None:
                return found[::-1]

    def _some_jobs(self) -> Sequence[str]:
        jobs = self._jobs()
        if len(jobs) > SCANNED_MAX:
            raise TooManyRecords(f"there are {len(jobs):,} records; at most {SCANNED_MAX:,} are opened for one trace")
        return jobs

    def _scanned(self) -> dict[Direction, dict[str, list[str]]]:
        """Jobs by the checksums of their files; every record is opened once."""
        found: dict[Direction, dict[str, list[str]]] = {"consumed": {}, "produced": {}}
        for job in self._some_jobs():
            history = self.history(job)
            for package in history.packages() if history is not None else ():
                for file in package.files:
                    if file.sha256 is None:
                        continue
                    known = found[file.direction].setdefault(file.sha256, [])
                    if job not in known[-1:]:
                        known.append(job)
        return found


@contextmanager
def recorded_at(server: Server, find: Callable[[str], str], *, folder: Path | None) -> Iterator[RecordedJobs]:
    """The records of a server that the user may read; `find` returns the id of a job by its id or name.

    `folder` is where the server keeps them, if that is on this computer.
    """
    from pilotage.app.provenance.served_records import record_to_show, records_at

    records = records_at(server)

    def jobs() -> list[str]:
        return _by_time({each.job: each for each in records.find(owner="", submitted_from=0.0, submitted_before=0.0)})

    # A job that is over and has no record yet gets it now.
    found = RecordedJobs(records, jobs, find=lambda word: record_to_show(records, find(word)).job, folder=folder)
    with closing(found):
        yield found


@contextmanager
def recorded_in(folder: Path) -> Iterator[RecordedJobs]:
    """The records of a folder, such as a copy of a storage. Raises `RecordStoreError`."""
    store = _opened(folder)

    def find(word: str) -> str:
        newest = store.newest(word) if store.record(word) is None else None
        return newest.job if newest is not None else word

    listing = f"pilotage provenance list --records {shlex.quote(str(folder))}"
    jobs = RecordedJobs(store, lambda: _by_time(_stored(store)), find=find, folder=folder, listing=listing)
    with closing(store), closing(jobs) as found:
        yield found


def records_in(folder: Path, *, since: float = 0.0, until: float = 0.0) -> list[StoredRecord]:
    """The newest records of a folder whose jobs were submitted in an interval, by the time of submission; 0 is any time."""
    with closing(_opened(folder)) as store:
        found = _stored(store)
    records = (found[job] for job in _by_time(found))
    return [
        each for each in records if since <= (each.submitted_at or 0.0) and (each.submitted_at or 0.0) < (until or inf)
    ]


def never_deleted(settings: Settings) -> list[str]:
    """The jobs whose records retention never deletes, since `never_deleted` finds them. Raises `QueryError`."""
    from pilotage.app.provenance.records import records_folder
    from pilotage.service.journal.record_expiry import RecordExpiry, is_found

    RecordExpiry(settings.provenance)  # checks the query
    query = settings.provenance.never_deleted.strip()
    if not query:
        return []
    with closing(_opened(records_folder(settings))) as store:
        return [job for job in _by_time(_stored(store)) if is_found(store, job, query)]


def _stored(store: RecordStore) -> dict[str, StoredRecord]:
    """The newest record of each job."""
    found: dict[str, StoredRecord] = {}
    after = 0
    while changes := store.changes(after=after, limit=_CHANGES_AT_ONCE):
        after = changes[-1].position
        for each in changes:
            if each.change == "deletion":
                found.pop(each.job, None)
            elif each.change == "record":
                found[each.job] = each
    return found


def _opened(folder: Path) -> RecordStore:
    with extra("provenance", purpose="to read records of jobs"):
        from pilotage.adapters.records.folder import FolderRecords
    return FolderRecords(folder, writes=False)


def _index_of(folder: Path) -> AbstractContextManager[RecordIndex]:
    from pilotage.app.provenance.index import index_in

    return index_in(folder, open_store=lambda: _opened(folder))


def _by_time(found: Mapping[str, StoredRecord]) -> list[str]:
    return sorted(found, key=lambda job: (found[job].submitted_at or 0.0, found[job].position))
