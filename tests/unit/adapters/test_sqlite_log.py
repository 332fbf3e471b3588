"""The log beside a book (its WAL) stays short, whoever reads meanwhile; and is cut off when a reader that held it up is gone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import BOOK, SqliteJournal
from tests.kit.events import a_short_job
from tests.kit.sqlite_books import keep, opened

BYTES_MAX = 8_000_000
COMMITS, COMMIT_BYTES = 40, 300_000


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    with opened(tmp_path) as journal:
        yield journal


def written(journal: SqliteJournal) -> int:
    """Write many times what the log may hold, in commits of the size of a busy service's; how long the log was at most."""
    log = journal.folder / f"{BOOK}-wal"
    longest = 0
    for _ in range(COMMITS):
        journal.put_content(os.urandom(COMMIT_BYTES))
        longest = max(longest, log.stat().st_size)
    return longest


def test_the_log_stays_short(journal: SqliteJournal) -> None:
    assert written(journal) < BYTES_MAX


def test_the_log_stays_short_while_somebody_takes_a_dump_slowly(journal: SqliteJournal) -> None:
    keep(journal, a_short_job("j"))
    dump = journal.dump("j")
    next(dump)
    assert written(journal) < BYTES_MAX
    assert sum(1 for _ in dump) > 1


def test_a_log_that_a_reader_held_up_is_cut_off_when_that_is_gone(journal: SqliteJournal) -> None:
    with closing(sqlite3.connect(journal.folder / BOOK, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        assert written(journal) > COMMITS * COMMIT_BYTES  # nothing of it could be left out
    journal.put_content(os.urandom(COMMIT_BYTES))
    journal.put_content(os.urandom(COMMIT_BYTES))
    assert (journal.folder / f"{BOOK}-wal").stat().st_size < BYTES_MAX
