"""What tests of SQLite books share: a book with a job in it, everything that is stored of a job, and copies of a book as
it would be found after a power cut."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.journals.sqlite.journal import BOOK, SqliteJournal
from pilotage.book.query import EVERYTHING
from pilotage.book.rows.rows import JobRow
from pilotage.model.events.events import Event
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import StandingClock


@contextmanager
def opened(folder: Path, **options: Any) -> Iterator[SqliteJournal]:
    """A journal that is closed at the end; not waiting for the disk, which no power cut of these tests takes away."""
    with closing(SqliteJournal(folder, **{"durable": False, **options})) as journal:
        yield journal


def keep(journal: SqliteJournal, events: Sequence[Event], *, at: float | None = None) -> None:
    """Take events in; none may be refused."""
    clock = StandingClock() if at is None else StandingClock(at)
    receipt = BatchCommitter(journal, clock=clock).take(events)
    assert not receipt.refused


def known(journal: SqliteJournal, job: str) -> dict[str, Any]:
    """Everything that reading tells of a job, wherever it is, but for where."""
    row = journal.job(job)
    assert row is not None
    packages = journal.find_packages(EVERYTHING, after=None, limit=100_000, job=row)
    events = journal.find_events(EVERYTHING, after=0, limit=100_000, job=row)
    assert not packages.more
    assert not events.more
    return {
        "job": msgspec.structs.replace(row, place=""),
        "stages": journal.stages(row),
        "packages": packages.items,
        "events": events.items,
        "tags": journal.tags(row, after=(-1, 0, 0, ""), limit=100_000),
        "contents": [journal.content(sha256) for sha256 in msgspec.json.decode(row.lists).values()],
    }


def everything(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the live book, by table."""
    with closing(sqlite3.connect(folder / BOOK)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in tables}


def rows_of(folder: Path, job: JobRow) -> dict[str, int]:
    """How many rows the live book has of a job, in the tables that it leaves when it is sealed."""
    with closing(sqlite3.connect(folder / BOOK)) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table} WHERE job_id = ?", (job.job_id,)).fetchone()[0]
            for table in ("events", "package_facts", "stages")
        }


def power_cuts(folder: Path, copies: Path, journal: SqliteJournal) -> Callable[[], list[Path]]:
    """Copy the book at every point of a move from now on; the copies are as the disk was, with no process behind them."""
    made: list[Path] = []

    def cut(point: str) -> None:
        copy = copies / f"{len(made):03}-{point.replace(' ', '-')}"
        shutil.copytree(folder, copy)
        made.append(copy)

    journal._sealing.reached = cut
    return lambda: made
