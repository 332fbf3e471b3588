"""Maintains a book without a service: check, repair, seal, load and purge; a dump works next to a service, too."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.app.provenance.records import records_beside
from pilotage.app.state_folder import SystemClock, local_user, open_journal, open_reader
from pilotage.model.errors import PilotageError
from pilotage.model.settings.settings import Settings
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import JournalError

if TYPE_CHECKING:
    from pilotage.adapters.journals.sqlite.backup import BookCopy as BookCopy  # noqa: PLC0414 # offered on
    from pilotage.book.rows.rows import JobRow
    from pilotage.book.ulm import Imported
    from pilotage.ports import Journal
    from pilotage.service.journal.rebuild import BookCheck as BookCheck  # noqa: PLC0414 # offered on
    from pilotage.service.journal.retention import Plan

_JOBS_AT_ONCE = 1_000
_KEPT_BESIDE = ("token", "keys", "tls", "dialects")
"""The files of a state folder, besides its databases, that cannot be made again."""


class NoBook(PilotageError):
    """There is no book at that address: name one with --journal, or go to its folder."""


class StillRunning(PilotageError):
    """The job is not over: its further events would be lost."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was purged, or would be."""

    job: str
    state: str
    packages: int


@contextmanager
def book_of(settings: Settings) -> Iterator[Journal]:
    """The book of the settings, locked for this process; raises `NoBook`, or `JournalBusy` if it is served."""
    _need_book(settings)
    with _own(settings) as journal:
        yield journal


def _need_book(settings: Settings) -> None:
    address = settings.journal.address
    if address.kind == "sqlite" and not Path(address.folder, "book.sqlite").is_file():
        raise NoBook(
            "there is no book here",
            subject=str(address),
            next_step="go to the folder that has it, or name it with --journal sqlite:DIR",
        )


@contextmanager
def _own(settings: Settings) -> Iterator[Journal]:
    from pilotage.service.announcement import refuse_second

    folder = state_folder(settings, folder=Path.cwd())
    # Its file has the process id and the address; the lock of the journal says only that there is one.
    refuse_second(folder)
    if settings.journal.address.kind == "sqlite":
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    journal = open_journal(settings)
    try:
        yield journal
    finally:
        journal.close()


@contextmanager
def _scratch() -> Iterator[Journal]:
    """An empty temporary journal."""
    from pilotage.adapters.journals.sqlite.journal import SqliteJournal

    with tempfile.TemporaryDirectory(prefix="pilotage-fold-") as folder:
        journal = SqliteJournal(Path(folder), durable=False)
        try:
            yield journal
        finally:
            journal.close()


def check_book(settings: Settings) -> BookCheck:
    """Whether every row of the book follows from its events."""
    from pilotage.service.journal.rebuild import check

    with book_of(settings) as journal, _scratch() as scratch:
        return check(journal, scratch)


def rebuild_book(settings: Settings) -> BookCheck:
    """Fold all events again, and correct differences; returns what was found."""
    from pilotage.service.journal.rebuild import rebuild

    with book_of(settings) as journal, _scratch() as scratch:
        return rebuild(journal, scratch)


def _job(journal: Journal, settings: Settings, job: str) -> JobRow:
    """A job of the book; for an unknown one, the error suggests another."""
    from pilotage.reading.access import local_principal
    from pilotage.reading.queries import BookReader

    reader = BookReader(journal, clock=SystemClock(), settings=settings.query)
    return reader.job(local_principal(local_user()), job)


def seal_jobs(settings: Settings, jobs: Sequence[str]) -> None:
    """Move finished jobs out of the live book."""
    with book_of(settings) as journal:
        for job in jobs:
            journal.seal(_job(journal, settings, job).job)


@contextmanager
def _read(settings: Settings) -> Iterator[Journal]:
    """The book of the settings, for reading, also while a service writes it. An older one is upgraded first."""
    _need_book(settings)
    reader = open_reader(settings)
    if reader is None:
        with book_of(settings) as journal:
            yield journal
        return
    try:
        yield reader
    finally:
        reader.close()


def dump_job(settings: Settings, job: str) -> Iterator[bytes]:
    """Everything stored about a job, as lines."""
    with _read(settings) as journal:
        yield from journal.dump(_job(journal, settings, job).job)


def dump_all(settings: Settings) -> Iterator[bytes]:
    """The same for all jobs that are not purged, one after another."""
    from pilotage.book.query import EVERYTHING

    with _read(settings) as journal:
        after: str | None = None
        more = True
        while more:
            page = journal.find_jobs(EVERYTHING, after=after, limit=_JOBS_AT_ONCE)
            for row in page.items:
                if row.place != "purged":
                    yield from _dump_unless_purged(journal, row.job)
            more = page.more
            if more:
                after = page.scanned_to if page.scanned_to is not None else page.items[-1].job


def _dump_unless_purged(journal: Journal, job: str) -> Iterator[bytes]:
    lines = journal.dump(job)
    try:
        first = next(lines)
    except JournalError:
        row = journal.job(job)
        if row is not None and row.place == "purged":  # a service has just done it
            return
        raise
    yield first
    yield from lines


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded job."""

    job: str
    held: bool  # it is unfinished, and another service may run it: held here until released


def load_jobs(settings: Settings, lines: Iterable[bytes]) -> list[Loaded]:
    """Load dumped jobs into a book, which is created if necessary.

    Nothing is loaded if one of the dumps is incomplete, or one of the jobs exists there already.
    """
    folder = state_folder(settings, folder=Path.cwd())
    with tempfile.TemporaryFile(prefix="pilotage-load-") as spool:
        spool.writelines(lines)
        if settings.journal.address.kind != "sqlite" or folder.exists():
            with _own(settings) as journal:
                return _load(journal, spool)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A new book is made aside, so that a failed load leaves none behind.
        with tempfile.TemporaryDirectory(prefix=".pilotage-load-", dir=folder.parent) as aside:
            made = Path(aside, "book")
            url = f"sqlite:{made}"
            replaced = msgspec.structs.replace(settings.journal, url=url)
            with _own(msgspec.structs.replace(settings, journal=replaced)) as new:
                jobs = _load(new, spool)
            made.rename(folder)
        return jobs


def _load(journal: Journal, spool: IO[bytes]) -> list[Loaded]:
    from pilotage.adapters.journals.dump import DumpError, check_lines, split_dumps

    spool.seek(0)
    jobs = [check_lines(dump) for dump in split_dumps(spool)]
    for job in jobs:
        if journal.job(job) is not None or jobs.count(job) > 1:
            raise DumpError(
                "a job of this id is known here already" if jobs.count(job) == 1 else "this job is in the dump twice",
                subject=f"job {job}",
                next_step="nothing was loaded: load it into another book, or leave it out; ids are unique",
            )
    if not jobs:
        raise DumpError("it contains no dump of a job", next_step="dump again: `pilotage book dump`")
    spool.seek(0)
    return [Loaded(job=job, held=_hold_unfinished(journal, job)) for job in map(journal.load, split_dumps(spool))]


def _hold_unfinished(journal: Journal, job: str) -> bool:
    """Hold a job that this book could run: another service may still run it. Whether it was necessary."""
    from pilotage.engine.restore import next_number
    from pilotage.model.events.events import Event
    from pilotage.model.events.payloads import Held
    from pilotage.service.journal.writer import Batch, BatchCommitter

    row = journal.job(job)
    if row is None or row.definition is None or row.state in FINAL_NAMES:
        return False
    clock = SystemClock()
    held = Held(
        operation=next_number(journal.streams("service")),
        message="it was loaded unfinished: release it if no other service runs it",
    )
    event = Event(
        source="service",
        stream=f"load-{secrets.token_hex(6)}",  # a stream of its own
        n=1,
        type="Held",
        time=clock.now(),
        epoch=row.epoch,
        seen=journal.position(),
        job=job,
        data=msgspec.Raw(msgspec.json.encode(held)),
    )
    committer = BatchCommitter(journal, clock=clock)
    checked, refused = committer.codec.check_all([event])
    committer.commit_together([Batch(checked, refused, own=True)])
    return True


def backup_book(settings: Settings, target: Path) -> BookCopy:
    """Copy the book of the settings into a new folder, with everything a service needs to continue from there.

    A service may write it meanwhile. The copy is a state folder, which appears under its name when it is complete.
    """
    from pilotage.adapters.journals.sqlite.backup import copy_book, copy_database, sync
    from pilotage.adapters.stores.work_database import FILE as WORK_FILE

    address = settings.journal.address
    if address.kind != "sqlite":
        raise PilotageError(
            "PostgreSQL has its own backups",
            subject=str(address),
            next_step="back it up with pg_dump, and restore it with pg_restore: see docs/howto/backup.md",
        )
    _need_book(settings)
    if target.exists():
        raise PilotageError("it exists already", subject=str(target), next_step="name a new folder")
    folder = Path(address.folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pilotage-backup-", dir=target.parent) as aside:
        made = Path(aside, "book")
        made.mkdir(mode=0o700)
        for name in _KEPT_BESIDE:
            _copy_beside(folder / name, made / name)
        for each in made.rglob("*"):
            sync(each)
        if (folder / WORK_FILE).is_file():
            copy_database(folder / WORK_FILE, made / WORK_FILE)  # first, so that the book knows everything in it
        copied = copy_book(folder, made)
        sync(made)
        made.rename(target)
        sync(target.parent)
    return copied


def _copy_beside(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.is_file():
        shutil.copy2(source, target)


def purge_jobs(settings: Settings, jobs: Sequence[str], *, force: bool, dry_run: bool) -> list[Purged]:
    """Delete jobs from the book except for their rows; all of them, or none if one is unknown or unfinished."""
    with book_of(settings) as journal:
        rows = [_job(journal, settings, job) for job in jobs]
        for row in rows:
            if row.state not in FINAL_NAMES and not force:
                raise StillRunning(
                    "this job is not over",
                    subject=f"job {row.job}",
                    got=row.state,
                    next_step="purge it all the same with --force",
                )
        if not dry_run:
            now = SystemClock().now()
            with records_beside(settings, journal) as records:
                for row in rows:
                    if records is not None:
                        records.record(row.job)
                    journal.purge(row.job, at=now)
    return [Purged(job=row.job, state=row.state, packages=row.expected) for row in rows]


def retain_jobs(settings: Settings, *, dry_run: bool) -> Plan:
    """Carry out due retention actions for finished jobs, or only list them."""
    from pilotage.service.journal.retention import Retention
    from pilotage.service.journal.writer import BatchCommitter

    # A stream of its own for each run.
    stream = f"retain-{secrets.token_hex(6)}"
    numbers = count(1)
    with book_of(settings) as journal, records_beside(settings, journal) as records:
        clock = SystemClock()
        retention = Retention(
            journal,
            settings=settings.retention,
            keep=BatchCommitter(journal, clock=clock).take,
            identity=lambda: (stream, next(numbers)),
            records=records,
        )
        now = clock.now()
        return retention.plan(now) if dry_run else retention.apply(now)


def import_ulm(source: str) -> Imported:
    """The jobs in a file of L&B's ULM lines."""
    from pilotage.app.documents.documents import read_source, shown_name
    from pilotage.book.ulm import read_ulm

    return read_ulm(read_source(source), file=shown_name(source))
