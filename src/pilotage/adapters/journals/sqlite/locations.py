"""Where the rows of a job are stored: in the live book, or in a file of its own once it is sealed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pilotage.adapters.journals.sqlite import schema
from pilotage.adapters.journals.sqlite.connections import ReaderPool, journal_error, make_private, sealed_reader
from pilotage.book.rows.rows import JobRow, Row
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.ports import JournalError, JournalUnavailable, SealedLost

# The file name of a sealed job: its id, if every file system allows that name and no other id is alike.

FOLDER = "jobs"
UNFINISHED = ".unfinished"

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
# Reserved device names of other systems, whatever follows their first dot.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})


def sealed_path(folder: Path, job: str) -> Path:
    """The file of a sealed job in the folder of a book."""
    return folder / FOLDER / f"{sealed_name(job)}.sqlite"


def unfinished_path(folder: Path, job: str) -> Path:
    """The draft of that file."""
    return folder / FOLDER / f"{sealed_name(job)}{UNFINISHED}"


def sealed_name(job: str) -> str:
    """A file name for an id; an id with capitals, which may differ from another only in case, gets a part of its hash."""
    # No id contains a tilde.
    name = f"~{job}" if job.partition(".")[0].lower() in _DEVICES else job
    return name if _PLAIN.fullmatch(job) else f"{name}~{hashlib.sha256(job.encode()).hexdigest()[:12]}"


# Moves the rows of one job between the live book and a file of its own, which has the same tables and views.

SLICE_ROWS = 500
"""Packages per transaction that leave the live book, with their events: other writes wait that long."""

ARRIVING_ROWS = 5_000
"""Rows per transaction that return: a caller waits for all of them."""

PAGE_BYTES = 8192
SMALL_PACKAGES, PAGE_BYTES_SMALL = 100, 512
"""Each table and index takes at least one page: there may be many thousands of small jobs."""

_JOB_COLUMNS = ", ".join("'sealed'" if column == "place" else column for column in TABLE_BY_ROW[JobRow].columns)
_OF_JOB = "e.stage = 0 AND e.job_id IS NOT NULL AND e.job_id = ?"  # the condition of the partial index

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
    # Rows that stay in the live book are copied as far as the job refers to them, so that the file is self-contained.
    "INSERT INTO streams SELECT * FROM live.streams WHERE stream_id IN (SELECT stream_id FROM events)",
    "INSERT INTO nodes SELECT * FROM live.nodes WHERE node IN (SELECT node FROM attempts)",
    "INSERT INTO pilots SELECT * FROM live.pilots WHERE pilot IN (SELECT pilot FROM attempts)",
    "INSERT INTO sites SELECT * FROM live.sites WHERE site IN (SELECT site FROM attempts)",
)

_ARRIVING = (
    # Packages before events: removing a job that has half arrived finds its events through them.
    ("package_facts", "(job_id, stage, line, number)"),
    ("stages", "(job_id, stage)"),
    ("tags", "(job_id, stage, line, number, name)"),
    ("events", "(position)"),
    ("contents", "(sha256)"),
)


def write(path: Path, *, book: Path, row: JobRow, content: Callable[[str], bytes | None]) -> tuple[int, list[str]]:
    """Write the file of a job from a snapshot of the live book; returns its last position, and the contents in the file."""
    path.unlink(missing_ok=True)
    make_private(path)
    path.write_bytes(schema.sealed_file(PAGE_BYTES_SMALL if row.touched <= SMALL_PACKAGES else PAGE_BYTES))
    target = sqlite3.connect(path, isolation_level=None, uri=True)
    try:
        target.execute("PRAGMA journal_mode = OFF")  # not visible before it is complete and synced
        target.execute("PRAGMA synchronous = OFF")
        target.execute("ATTACH ? AS live", (f"{book.absolute().as_uri()}?mode=ro",))
        target.execute("BEGIN")
        (position,) = target.execute("SELECT value FROM live.counters WHERE name = 'position'").fetchone()
        for statement in _COPIES:
            target.execute(statement, {"job_id": row.job_id} if ":job_id" in statement else {})
        kept = []
        for sha256 in used_contents(target, row.job_id):
            found = content(sha256)  # it may be in the file of another sealed job
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
    """Open the file of a sealed job for reading, in the current schema; FileNotFoundError if there is none."""
    with sealed_reader(path) as book:
        try:
            version = schema.version_of(book)
        except sqlite3.DatabaseError as fault:
            raise _damaged(path, str(fault)) from fault
        if version == schema.SCHEMA_VERSION:
            yield book
            return
    if version == 0:
        raise _damaged(path, "it is empty, or not a book")
    if version > schema.SCHEMA_VERSION:
        raise JournalError(
            "the file of a sealed job was written by a newer pilotage",
            subject=str(path),
            expected=f"schema {schema.SCHEMA_VERSION} or older",
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
        next_step="restore it from a backup, or purge the job: pilotage book purge",
    )


def _modernise(path: Path) -> None:
    """Migrate a file to the current schema: a copy, which then replaces it atomically."""
    copy = path.with_suffix(f".{threading.get_ident()}{UNFINISHED}")
    make_private(copy)
    shutil.copyfile(path, copy)
    with closing(sqlite3.connect(copy, isolation_level=None)) as book:
        book.execute("BEGIN")
        schema.migrate(book, to=schema.SCHEMA_VERSION, migrations=schema.MIGRATIONS)
        schema.reindex(book, indexed=schema.SEALED_INDEXED, sealed=True)
        book.execute("COMMIT")
    put_in_place(copy, path)


def put_in_place(unfinished: Path, path: Path) -> None:
    """Rename a complete file to its final name, and sync."""
    _sync(unfinished)
    unfinished.rename(path)
    _sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, and sync."""
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
    """All rows of a sealed job in slices, each with the statement that inserts it into a book."""
    for table, key in _ARRIVING:
        found = sealed.execute(f"SELECT * FROM {table} ORDER BY {key.strip('()')}")
        places = ", ".join("?" * len(found.description))
        while rows := found.fetchmany(ARRIVING_ROWS):
            yield f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows


def clear_packages(book: sqlite3.Connection, job_id: int) -> tuple[int, int]:
    """Delete a slice of a job's packages with their events and tags; returns the numbers of packages and events."""
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
    """Delete the job's own events and stages; returns the number of events. Its tags stay for queries unless `tags_too`."""
    deleted = book.execute(f"DELETE FROM events AS e WHERE {_OF_JOB}", (job_id,)).rowcount
    book.execute("DELETE FROM stages WHERE job_id = ?", (job_id,))
    if tags_too:
        book.execute("DELETE FROM tags WHERE job_id = ?", (job_id,))
    return deleted


def used_contents(book: sqlite3.Connection, job_id: int) -> list[str]:
    """The hashes of the contents that a job refers to: its definition, and the lists of its stages."""
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
    """Tell whether another live job refers to a content."""
    found = book.execute(
        "SELECT 1 FROM jobs AS j INDEXED BY jobs_live CROSS JOIN events AS e ON e.job_id = j.job_id"
        f" WHERE j.{schema.LIVE} AND j.job_id <> ? AND e.stage = 0 AND e.job_id IS NOT NULL"
        " AND e.type IN ('JobRegistered', 'StageExpanded') AND instr(e.data, ?) > 0 LIMIT 1",
        (but_by, sha256),
    ).fetchone()
    return found is not None


def content_in(book: sqlite3.Connection, sha256: str) -> bytes | None:
    """A content that is in this file."""
    found = book.execute("SELECT content FROM contents WHERE sha256 = ?", (sha256,)).fetchone()
    return None if found is None else bytes(found[0])


BOOK = "book.sqlite"

_LOOKS_MAX = 20
AnyRow = TypeVar("AnyRow", bound=Row)
Answer = TypeVar("Answer")


class SqliteLocations:
    """The live book and the files of sealed jobs, for reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._readers = ReaderPool(folder / BOOK)

    def close(self) -> None:
        """Close every connection."""
        self._readers.close()

    def live(self) -> AbstractContextManager[sqlite3.Connection]:
        """A snapshot of the live book."""
        return self._readers.snapshot()

    @contextmanager
    def book_of(self, job_id: int) -> Iterator[sqlite3.Connection | None]:
        """The book with the rows of a job; None if there is none any more."""
        with ExitStack() as stack:
            yield self._look(lambda: self._enter(stack, job_id), what=f"job {job_id}")

    def _enter(self, stack: ExitStack, job_id: int) -> sqlite3.Connection | None:
        with ExitStack() as live:
            book = live.enter_context(self.live())
            found = book.execute("SELECT job, place FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
            if found is None or found[1] == "purged":
                return None
            if found[1] == "live":
                stack.enter_context(live.pop_all())
                return book
        return stack.enter_context(self._sealed(found[0]))

    def content(self, sha256: str) -> bytes | None:
        """Stored bytes, from the live book or a sealed job's file."""
        return self._look(lambda: self._content(sha256), what=sha256)

    def _content(self, sha256: str) -> bytes | None:
        with self.live() as book:
            found = content_in(book, sha256)
            if found is not None:
                return found
            keeper = book.execute("SELECT job FROM sealed_contents WHERE sha256 = ?", (sha256,)).fetchone()
        if keeper is not None:
            with self._sealed(keeper[0]) as sealed:
                found = content_in(sealed, sha256)
        return found

    @contextmanager
    def _sealed(self, job: str) -> Iterator[sqlite3.Connection]:
        path = sealed_path(self.folder, job)
        try:
            with opened(path) as book:
                yield book
        except sqlite3.Error as fault:
            raise journal_error(fault, path) from fault

    def _look(self, look: Callable[[], Answer], *, what: str) -> Answer:
        """Look again if a job was unsealed between the reads of its row and of its file."""
        for _ in range(_LOOKS_MAX):
            try:
                return look()
            except FileNotFoundError:
                continue
        raise JournalUnavailable(
            "the file of a sealed job is missing", subject=what, next_step=f"restore it to {self.folder / FOLDER}"
        )


def select(book: sqlite3.Connection, row: type[AnyRow], rest: str = "", values: Sequence[Any] = ()) -> Iterator[AnyRow]:
    """Rows of a table."""
    table = TABLE_BY_ROW[row]
    for found in book.execute(f"SELECT {', '.join(table.columns)} FROM {table.name} {rest}", values):
        yield row(**dict(zip(table.columns, found, strict=True)))


def jobs_named(book: sqlite3.Connection, names: Sequence[str]) -> list[JobRow]:
    """The existing jobs among some ids, in the order of registration."""
    found = [row for name in names for row in select(book, JobRow, "WHERE job = ?", (name,))]
    return sorted(found, key=lambda row: row.job_id)
