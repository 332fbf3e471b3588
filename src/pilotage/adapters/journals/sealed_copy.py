"""The rows of one job between the live book and a file of its own, which has the same tables and views."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.journals import sqlite_schema
from pilotage.adapters.journals.sealed_files import UNFINISHED
from pilotage.adapters.journals.sqlite_connections import make_private, sealed_reader
from pilotage.book.rows import JobRow
from pilotage.book.tables import TABLE_BY_ROW
from pilotage.ports import JournalError, SealedLost

SLICE_ROWS = 500
"""Packages that one short transaction takes out of the live book, with their events: others wait for so long."""

ARRIVING_ROWS = 5_000
"""Rows that one short transaction puts back: here somebody waits for the whole."""

PAGE_BYTES = 8192
SMALL_PACKAGES, PAGE_BYTES_SMALL = 100, 512
"""Every table and index takes a page at least: there may be many thousands of jobs that have a few rows in each."""

_JOB_COLUMNS = ", ".join("'sealed'" if column == "place" else column for column in TABLE_BY_ROW[JobRow].columns)
_OF_JOB = "e.stage = 0 AND e.job_id IS NOT NULL AND e.job_id = ?"  # as the index of such events is limited

_COPIES = (
    f"INSERT INTO jobs SELECT {_JOB_COLUMNS} FROM live.jobs WHERE job_id = :job_id",
    "INSERT INTO stages SELECT * FROM live.stages WHERE job_id = :job_id",
    "INSERT INTO tags SELECT * FROM live.tags WHERE job_id = :job_id",
    "INSERT INTO package_facts SELECT * FROM live.package_facts WHERE job_id = :job_id",
    f"INSERT INTO events SELECT e.* FROM live.events AS e WHERE {_OF_JOB.replace('?', ':job_id')}",
    (
        "INSERT INTO events SELECT e.* FROM"
        " (SELECT x.value AS position FROM package_facts AS p, json_each(p.facts, '$.positions') AS x ORDER BY x.value) AS w"
        " CROSS JOIN live.events AS e ON e.position = w.position"
    ),
    # What stays in the live book is copied as far as the job speaks of it, so that the file can be read by itself.
    "INSERT INTO streams SELECT * FROM live.streams WHERE stream_id IN (SELECT stream_id FROM events)",
    "INSERT INTO nodes SELECT * FROM live.nodes WHERE node IN (SELECT node FROM attempts)",
    "INSERT INTO pilots SELECT * FROM live.pilots WHERE pilot IN (SELECT pilot FROM attempts)",
    "INSERT INTO sites SELECT * FROM live.sites WHERE site IN (SELECT site FROM attempts)",
)

_ARRIVING = (
    # Packages before events: who removes a job that has half arrived finds its events through them.
    ("package_facts", "(job_id, stage, line, number)"),
    ("stages", "(job_id, stage)"),
    ("tags", "(job_id, stage, line, number, name)"),
    ("events", "(position)"),
    ("contents", "(sha256)"),
)


def write(path: Path, *, book: Path, row: JobRow, content: Callable[[str], bytes | None]) -> tuple[int, list[str]]:
    """Write the file of a job from one snapshot of the live book; its last position, and the contents in the file."""
    path.unlink(missing_ok=True)
    make_private(path)
    target = sqlite3.connect(path, isolation_level=None, uri=True)
    try:
        target.execute(f"PRAGMA page_size = {PAGE_BYTES_SMALL if row.touched <= SMALL_PACKAGES else PAGE_BYTES}")
        target.execute("PRAGMA journal_mode = OFF")  # nobody knows of it before it is whole and on disk
        target.execute("PRAGMA synchronous = OFF")
        target.execute("ATTACH ? AS live", (f"{book.absolute().as_uri()}?mode=ro",))
        target.execute("BEGIN")
        (position,) = target.execute("SELECT value FROM live.counters WHERE name = 'position'").fetchone()
        sqlite_schema.create(target, indexed=sqlite_schema.SEALED_INDEXED)
        for statement in _COPIES:
            target.execute(statement, {"job_id": row.job_id} if ":job_id" in statement else {})
        kept = []
        for sha256 in used_contents(target, row.job_id):
            found = content(sha256)  # which may be with another sealed job
            if found is not None:
                target.execute("INSERT INTO contents VALUES (?, ?)", (sha256, found))
                kept.append(sha256)
        target.execute("UPDATE counters SET value = ? WHERE name = 'position'", (position,))
        target.execute("COMMIT")
    finally:
        target.close()
    return int(position), kept


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The file of a sealed job for reading, in the present schema; FileNotFoundError where there is no file."""
    with sealed_reader(path) as book:
        try:
            version = sqlite_schema.version_of(book)
        except sqlite3.DatabaseError as fault:
            raise _damaged(path, str(fault)) from fault
        if version == sqlite_schema.SCHEMA_VERSION:
            yield book
            return
    if version == 0:
        raise _damaged(path, "it is empty, or not a book")
    if version > sqlite_schema.SCHEMA_VERSION:
        raise JournalError(
            "the file of a sealed job was written by a newer pilotage",
            subject=str(path),
            expected=f"schema {sqlite_schema.SCHEMA_VERSION} or older",
            got=f"schema {version}",
            next_step="use the newer pilotage",
        )
    _modernise(path)
    with sealed_reader(path) as book:
        yield book


def _damaged(path: Path, why: str) -> SealedLost:
    return SealedLost(
        f"the file of a sealed job cannot be read: {why}",
        subject=str(path),
        next_step="put it back from a copy, or purge the job: pilotage book purge",
    )


def _modernise(path: Path) -> None:
    """Bring a file to the present schema: a copy of it, which then takes its place, so that nobody reads half of it."""
    copy = path.with_suffix(f".{threading.get_ident()}{UNFINISHED}")
    make_private(copy)
    shutil.copyfile(path, copy)
    with closing(sqlite3.connect(copy, isolation_level=None)) as book:
        book.execute("BEGIN")
        sqlite_schema.migrate(book, to=sqlite_schema.SCHEMA_VERSION, migrations=sqlite_schema.MIGRATIONS)
        sqlite_schema.reindex(book, indexed=sqlite_schema.SEALED_INDEXED)
        book.execute("COMMIT")
    put_in_place(copy, path)


def put_in_place(unfinished: Path, path: Path) -> None:
    """Give a whole file its name, durably."""
    _sync(unfinished)
    unfinished.rename(path)
    _sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, durably."""
    if path.exists():
        path.unlink()
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def slices(sealed: sqlite3.Connection) -> Iterator[tuple[str, Sequence[tuple[Any, ...]]]]:
    """Everything that a file holds of its job, a slice at a time, each with the statement that puts it into a book."""
    for table, key in _ARRIVING:
        found = sealed.execute(f"SELECT * FROM {table} ORDER BY {key.strip('()')}")
        places = ", ".join("?" * len(found.description))
        while rows := found.fetchmany(ARRIVING_ROWS):
            yield f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows


def clear_packages(book: sqlite3.Connection, job_id: int) -> tuple[int, int]:
    """Delete a slice of a job's packages with their events and tags; how many packages and events it were."""
    rows = book.execute(
        "SELECT stage, line, number, facts -> 'positions' FROM package_facts WHERE job_id = ? LIMIT ?",
        (job_id, SLICE_ROWS),
    ).fetchall()
    positions = [(position,) for row in rows for position in (msgspec.json.decode(row[3]) if row[3] else ())]
    keys = [(job_id, *row[:3]) for row in rows]
    of_package = "WHERE job_id = ? AND stage = ? AND line = ? AND number = ?"
    deleted = book.executemany("DELETE FROM events WHERE position = ?", positions).rowcount if positions else 0
    book.executemany(f"DELETE FROM tags {of_package}", keys)
    book.executemany(f"DELETE FROM package_facts {of_package}", keys)
    return len(rows), deleted


def clear_job(book: sqlite3.Connection, job_id: int, *, tags_too: bool) -> int:
    """Delete what is of the job itself, but for its row; how many events it were. Its tags stay for those who look for it."""
    deleted = book.execute(f"DELETE FROM events AS e WHERE {_OF_JOB}", (job_id,)).rowcount
    book.execute("DELETE FROM stages WHERE job_id = ?", (job_id,))
    if tags_too:
        book.execute("DELETE FROM tags WHERE job_id = ?", (job_id,))
    return deleted


def used_contents(book: sqlite3.Connection, job_id: int) -> list[str]:
    """The hashes of the contents that a job speaks of: its definition, and the lists of its stages."""
    found: set[str] = set()
    texts = book.execute(
        f"SELECT e.data FROM events AS e WHERE {_OF_JOB} AND e.type IN ('JobRegistered', 'StageExpanded')", (job_id,)
    )
    for (text,) in texts:
        data = msgspec.json.decode(text)
        lists = data.get("lists")
        named = [data.get("definition"), *(lists.values() if isinstance(lists, dict) else ())]
        found.update(each for each in named if isinstance(each, str))
    return sorted(found)


def is_used(book: sqlite3.Connection, sha256: str, *, but_by: int) -> bool:
    """Whether another live job speaks of a content."""
    found = book.execute(
        "SELECT 1 FROM jobs AS j INDEXED BY jobs_live CROSS JOIN events AS e ON e.job_id = j.job_id"
        f" WHERE j.{sqlite_schema.LIVE} AND j.job_id <> ? AND e.stage = 0 AND e.job_id IS NOT NULL"
        " AND e.type IN ('JobRegistered', 'StageExpanded') AND instr(e.data, ?) > 0 LIMIT 1",
        (but_by, sha256),
    ).fetchone()
    return found is not None
