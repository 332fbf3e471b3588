"""The catalogue of a folder of records: which part is in which block, and which records there are.

It follows from the packs alone and can be lost: then it is written again from them. So it is not synced at every commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.adapters.journals.sqlite.connections import make_private
from pilotage.model.records import Annotation, JobRecord
from pilotage.ports.records import StoredRecord

VERSION = 1
_VARIABLES_MAX = 500
_NO_DAMAGE = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
)  # fmt: skip
"""Errors of SQLite that say nothing about the content of the file."""

_SCHEMA = """
CREATE TABLE packs (pack INTEGER PRIMARY KEY, end INTEGER NOT NULL);
CREATE TABLE blocks (
    block INTEGER PRIMARY KEY, pack INTEGER NOT NULL, offset INTEGER NOT NULL, UNIQUE (pack, offset));
CREATE TABLE parts (
    sha256 BLOB PRIMARY KEY, block INTEGER NOT NULL, start INTEGER NOT NULL, size_bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    position INTEGER PRIMARY KEY, job TEXT NOT NULL, revision INTEGER NOT NULL, owner TEXT NOT NULL,
    submitted_at REAL, heard_at REAL NOT NULL, sha256 BLOB NOT NULL, UNIQUE (job, revision));
CREATE INDEX records_owners ON records (owner, submitted_at);
CREATE TABLE annotations (position INTEGER PRIMARY KEY, job TEXT NOT NULL, sha256 BLOB NOT NULL);
CREATE INDEX annotations_jobs ON annotations (job);
CREATE TABLE deletions (position INTEGER PRIMARY KEY, job TEXT NOT NULL, sha256 BLOB NOT NULL);
"""


class Place(NamedTuple):
    """Where a part is: the pack, the offset of its block, and where it begins in the expanded block."""

    pack: int
    offset: int
    start: int
    size_bytes: int


class DamagedCatalogue(sqlite3.DatabaseError):
    """The file has values that no catalogue has."""


def is_damage(fault: Exception) -> bool:
    """Whether an error of SQLite says that the content of the file is damaged."""
    if not isinstance(fault, sqlite3.DatabaseError) or isinstance(fault, sqlite3.ProgrammingError):
        return False
    return getattr(fault, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _NO_DAMAGE


_NUMBER = (int, float)
_PERHAPS_NUMBER = (int, float, type(None))
_PERHAPS_INT = (int, type(None))
_RECORD = (int, str, int, str, _PERHAPS_NUMBER, _NUMBER, bytes)
_MARK = (int, str, bytes)
_Type = type | tuple[type, ...]


class Catalogue:
    """The tables, in one SQLite file."""

    def __init__(self, file: Path | None, *, writes: bool) -> None:
        """Open or create it, temporarily without a file. Raises `sqlite3.DatabaseError` if it is damaged or of another version."""
        if file is not None and writes:
            make_private(file)
        uri = "" if file is None else f"{file.absolute().as_uri()}{'' if writes else '?mode=ro'}"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            [(version,)] = self._rows("PRAGMA user_version", (), int)
            if version == 0 and writes:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={VERSION};COMMIT;")
            elif version != VERSION:
                raise DamagedCatalogue(f"a catalogue of version {version}")
            self._execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(query, values)
        except UnicodeDecodeError as fault:  # in the text of an error
            raise DamagedCatalogue(str(fault)) from fault

    def _execute_many(self, query: str, values: Iterable[Sequence[object]]) -> None:
        try:
            self._connection.executemany(query, values)
        except UnicodeDecodeError as fault:
            raise DamagedCatalogue(str(fault)) from fault

    def _rows(self, query: str, values: Sequence[object], *types: _Type) -> Iterator[tuple[Any, ...]]:
        """Rows whose values have these types. Raises `DamagedCatalogue` where one has another."""
        try:
            for row in self._execute(query, values):
                if len(row) != len(types) or not all(map(isinstance, row, types)):
                    raise DamagedCatalogue(f"it has values of wrong types: {row!r:.200}")
                yield row
        except UnicodeDecodeError as fault:
            raise DamagedCatalogue(str(fault)) from fault

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes within, or none."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # SQLite may have rolled it back itself
                self._connection.execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read within is of one moment, whatever is written meanwhile."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    # --- packs and parts ---

    def ends(self) -> dict[int, int]:
        """How far each pack is catalogued."""
        return dict(self.all_packs())

    def all_packs(self) -> Iterator[tuple[int, int]]:
        """Each pack, and how far it is catalogued, in order."""
        return ((pack, end) for pack, end in self._rows("SELECT pack, end FROM packs ORDER BY pack", (), int, int))

    def all_blocks(self) -> Iterator[tuple[int, int]]:
        """The pack and offset of every block, in order."""
        rows = self._rows("SELECT pack, offset FROM blocks ORDER BY pack, offset", (), int, int)
        return ((pack, offset) for pack, offset in rows)

    def all_parts(self) -> Iterator[tuple[bytes, Place | None]]:
        """Every part and its place, None where its block is not catalogued, in the order of digests."""
        rows = self._rows(
            "SELECT sha256, start, size_bytes, pack, offset FROM parts LEFT JOIN blocks USING (block) ORDER BY sha256",
            (),
            *(bytes, int, int, _PERHAPS_INT, _PERHAPS_INT),
        )
        for sha256, start, size_bytes, pack, offset in rows:
            yield sha256, None if pack is None or offset is None else Place(pack, offset, start, size_bytes)

    def last_blocks(self) -> dict[int, int]:
        """The offset of the last block of each pack."""
        return dict(self._rows("SELECT pack, max(offset) FROM blocks GROUP BY pack", (), int, int))

    def parts_in(self, pack: int) -> Iterator[bytes]:
        """The parts that are in a pack."""
        rows = self._rows(
            "SELECT sha256 FROM parts WHERE block IN (SELECT block FROM blocks WHERE pack = ?)", (pack,), bytes
        )
        return (sha256 for (sha256,) in rows)

    def parts_at(self, pack: int, offset: int) -> Iterator[bytes]:
        """The parts that are in a block."""
        rows = self._rows(
            "SELECT sha256 FROM parts WHERE block IN (SELECT block FROM blocks WHERE pack = ? AND offset = ?)",
            (pack, offset),
            bytes,
        )
        return (sha256 for (sha256,) in rows)

    def is_emptied(self, pack: int, start: int, end: float) -> bool:
        """Whether blocks are catalogued between two offsets of a pack, and all their parts are elsewhere by now."""
        blocks = "SELECT block FROM blocks WHERE pack = ? AND offset >= ? AND offset < ?"
        where = (pack, start, end)
        if next(self._rows(f"{blocks} LIMIT 1", where, int), None) is None:
            return False
        return next(self._rows(f"SELECT 1 FROM parts WHERE block IN ({blocks}) LIMIT 1", where, int), None) is None

    def add_block(
        self,
        pack: int,
        offset: int,
        end: int,
        parts: Iterable[tuple[bytes, int, int, int]],
        *,
        damaged: Collection[bytes] = (),
    ) -> None:
        """Catalogue a block with its parts (digest, start, size, position).

        A part that is elsewhere already stays there, unless it is damaged there. What has a position counts where it was written
        last: a record may have been deleted, and come again.
        """
        block = self._execute("INSERT INTO blocks (pack, offset) VALUES (?, ?)", (pack, offset)).lastrowid
        for sha256, start, size, position in parts:
            moves = position or sha256 in damaged
            again = "UPDATE SET block = excluded.block, start = excluded.start" if moves else "NOTHING"
            self._execute(
                f"INSERT INTO parts VALUES (?, ?, ?, ?) ON CONFLICT (sha256) DO {again}", (sha256, block, start, size)
            )
        self._execute(
            "INSERT INTO packs VALUES (?, ?) ON CONFLICT (pack) DO UPDATE SET end = excluded.end", (pack, end)
        )

    def move_block(self, parts: Iterable[tuple[bytes, int]], *, pack: int, offset: int) -> None:
        """Parts (digest, start) are in this block from now on."""
        [(block,)] = self._rows("SELECT block FROM blocks WHERE pack = ? AND offset = ?", (pack, offset), int)
        self._execute_many(
            "UPDATE parts SET block = ?, start = ? WHERE sha256 = ?",
            ((block, start, sha256) for sha256, start in parts),
        )

    def remove_pack(self, pack: int) -> None:
        """Forget a pack and the parts that are still there."""
        self._execute("DELETE FROM parts WHERE block IN (SELECT block FROM blocks WHERE pack = ?)", (pack,))
        self._execute("DELETE FROM blocks WHERE pack = ?", (pack,))
        self._execute("DELETE FROM packs WHERE pack = ?", (pack,))

    def known(self, digests: Collection[bytes]) -> set[bytes]:
        """Those of some digests that are stored."""
        found: set[bytes] = set()
        wanted = list(digests)
        for first in range(0, len(wanted), _VARIABLES_MAX):
            some = wanted[first : first + _VARIABLES_MAX]
            marks = ",".join("?" * len(some))
            found.update(
                sha256 for (sha256,) in self._rows(f"SELECT sha256 FROM parts WHERE sha256 IN ({marks})", some, bytes)
            )
        return found

    def place(self, sha256: bytes) -> Place | None:
        """Where a part is."""
        rows = self._rows(
            "SELECT pack, offset, start, size_bytes FROM parts JOIN blocks USING (block) WHERE sha256 = ?",
            (sha256,),
            *(int, int, int, int),
        )
        return next((Place(*row) for row in rows), None)

    # --- records ---

    def last_position(self) -> int:
        """The last position that was given."""
        [(position,)] = self._rows(
            "SELECT max(coalesce((SELECT max(position) FROM records), 0),"
            " coalesce((SELECT max(position) FROM annotations), 0),"
            " coalesce((SELECT max(position) FROM deletions), 0))",
            (),
            int,
        )
        return int(position)

    def count(self) -> int:
        """How many records there are, every revision counted."""
        [(number,)] = self._rows("SELECT count(*) FROM records", (), int)
        return int(number)

    def add_record(self, position: int, record: JobRecord, sha256: bytes) -> None:
        """A record, unless its job was deleted later; adding it again changes nothing."""
        if self.is_deleted(record.job, position):
            return
        self._execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (position) DO NOTHING"
            # One that was deleted, and whose deletion was not read yet.
            " ON CONFLICT (job, revision) DO UPDATE SET position = excluded.position, owner = excluded.owner,"
            " submitted_at = excluded.submitted_at, heard_at = excluded.heard_at, sha256 = excluded.sha256"
            " WHERE excluded.position > position",
            (position, record.job, record.revision, record.owner, record.submitted_at, record.heard_at, sha256),
        )

    def add_annotation(self, position: int, annotation: Annotation, sha256: bytes) -> None:
        """An annotation, unless its job was deleted later."""
        if not self.is_deleted(annotation.job, position):
            self._execute(
                "INSERT INTO annotations VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (position, annotation.job, sha256)
            )

    def add_deletion(self, position: int, job: str, sha256: bytes) -> None:
        """The record of a job, as it was at this position, is no more."""
        for table in ("records", "annotations", "deletions"):  # the last deletion of a job says it all
            self._execute(f"DELETE FROM {table} WHERE job = ? AND position < ?", (job, position))
        if not self.is_deleted(job, position):
            self._execute("INSERT INTO deletions VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (position, job, sha256))

    def is_deleted(self, job: str, position: int) -> bool:
        """Whether the record of a job was deleted after a position."""
        found = self._rows("SELECT 1 FROM deletions WHERE job = ? AND position > ?", (job, position), int)
        return next(found, None) is not None

    def last_deletion(self, job: str) -> bytes | None:
        """The digest of the last deletion of a job's record."""
        rows = self._rows("SELECT sha256 FROM deletions WHERE job = ? ORDER BY position DESC LIMIT 1", (job,), bytes)
        return next((bytes(sha256) for (sha256,) in rows), None)

    def revision(self, job: str, revision: int | None) -> bytes | None:
        """The digest of a record; the newest one unless a revision is named."""
        rows = self._rows(
            "SELECT sha256 FROM records WHERE job = ? AND revision = coalesce(?, revision) ORDER BY revision DESC LIMIT 1",
            (job, revision),
            bytes,
        )
        return next((bytes(sha256) for (sha256,) in rows), None)

    def revisions(self, job: str) -> list[StoredRecord]:
        """Every revision of a job's record."""
        return self._stored("SELECT *, 'record' FROM records WHERE job = ? ORDER BY revision", (job,))

    def owned(self, owner: str, submitted_from: float, submitted_before: float) -> list[StoredRecord]:
        """The newest records of an owner's jobs of some time."""
        return self._stored(
            "SELECT *, 'record' FROM records AS one WHERE owner = ? AND submitted_at >= ? AND submitted_at < ?"
            " AND NOT EXISTS (SELECT 1 FROM records WHERE job = one.job AND revision > one.revision)"
            " ORDER BY submitted_at, job",
            (owner, submitted_from, submitted_before),
        )

    def beginning(self, prefix: str) -> list[str]:
        """The jobs whose ids begin with a text, the latest first."""
        rows = self._rows(
            "SELECT job FROM records WHERE job >= ?1 AND job < ?2 GROUP BY job ORDER BY max(submitted_at) DESC, max(position) DESC",
            (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)),
            str,
        )
        return [job for (job,) in rows]

    def last_heard(self) -> float | None:
        """When the last event was received that a record has; None without records."""
        [(at,)] = self._rows("SELECT max(heard_at) FROM records", (), _PERHAPS_NUMBER)
        return None if at is None else float(at)

    def unheard_since(self, before: float) -> list[str]:
        """The jobs whose records have no later event."""
        rows = self._rows(
            "SELECT job FROM records GROUP BY job HAVING max(heard_at) < ? ORDER BY min(position)", (before,), str
        )
        return [job for (job,) in rows]

    def changes(self, after: int, limit: int) -> list[StoredRecord]:
        """Commits after a position."""
        return self._stored(
            "SELECT * FROM ("
            "SELECT *, 'record' AS change FROM records WHERE position > ?1"
            " UNION ALL SELECT position, job, 0, '', NULL, 0, sha256, 'annotation' FROM annotations WHERE position > ?1"
            " UNION ALL SELECT position, job, 0, '', NULL, 0, sha256, 'deletion' FROM deletions WHERE position > ?1"
            ") ORDER BY position LIMIT ?2",
            (after, limit),
        )

    def annotations(self, job: str) -> list[bytes]:
        """The digests of what was added to a record, in order."""
        rows = self._rows("SELECT sha256 FROM annotations WHERE job = ? ORDER BY position", (job,), bytes)
        return [bytes(sha256) for (sha256,) in rows]

    def all_records(self) -> Iterator[tuple[int, str, bytes]]:
        """The position, job and digest of every record, in order."""
        return self._all("records")

    def whole_records(self) -> Iterator[tuple[Any, ...]]:
        """The rows of all records, in the order of their positions."""
        return self._rows("SELECT * FROM records ORDER BY position", (), *_RECORD)

    def all_annotations(self) -> Iterator[tuple[int, str, bytes]]:
        """The position, job and digest of every annotation, in order."""
        return self._all("annotations")

    def all_deletions(self) -> Iterator[tuple[int, str, bytes]]:
        """The position, job and digest of every deletion, in order."""
        return self._all("deletions")

    def _all(self, table: str) -> Iterator[tuple[int, str, bytes]]:
        rows = self._rows(f"SELECT position, job, sha256 FROM {table} ORDER BY position", (), *_MARK)
        return ((position, job, bytes(sha256)) for position, job, sha256 in rows)

    def latest(self, limit: int) -> list[StoredRecord]:
        """The latest records."""
        return self._stored("SELECT *, 'record' FROM records ORDER BY position DESC LIMIT ?", (limit,))

    def _stored(self, query: str, values: Sequence[object]) -> list[StoredRecord]:
        return [
            StoredRecord(
                position=position,
                job=job,
                revision=revision,
                owner=owner,
                submitted_at=submitted_at,
                heard_at=heard_at,
                sha256=bytes(sha256).hex(),
                change=change,
            )
            for position, job, revision, owner, submitted_at, heard_at, sha256, change in self._rows(
                query, values, *_RECORD, str
            )
        ]

    def schema(self) -> list[tuple[Any, ...]]:
        """The definitions of tables and indices, which a catalogue of one version has in common with all others."""
        rows = self._rows(
            "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master ORDER BY rowid", (), str, str, str, str
        )
        return list(rows)

    def faults(self) -> list[str]:
        """What SQLite finds wrong with the file."""
        return [line for (line,) in self._rows("PRAGMA integrity_check", (), str) if line != "ok"]
