"""The catalogue of a folder of records: which part is in which block, and which records there are.

It follows from the packs alone and can be lost: then it is written again from them. So it is not synced at every commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pilotage.adapters.journals.sqlite.connections import make_private
from pilotage.model.records import Annotation, JobRecord
from pilotage.ports.records import StoredRecord

VERSION = 1
_VARIABLES_MAX = 500

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


class Catalogue:
    """The tables, in one SQLite file."""

    def __init__(self, file: Path, *, writes: bool) -> None:
        """Open or create it. Raises `sqlite3.DatabaseError` for a damaged file or one of another version."""
        if writes:
            make_private(file)
        uri = f"{file.absolute().as_uri()}{'' if writes else '?mode=ro'}"
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            [(version,)] = self._connection.execute("PRAGMA user_version")
            if version == 0 and writes:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={VERSION};COMMIT;")
            elif version != VERSION:
                raise sqlite3.DatabaseError(f"a catalogue of version {version}")
            self._connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes within, or none."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    # --- packs and parts ---

    def ends(self) -> dict[int, int]:
        """How far each pack is catalogued."""
        return dict(self._connection.execute("SELECT pack, end FROM packs"))

    def add_block(self, pack: int, offset: int, end: int, parts: Iterable[tuple[bytes, int, int, int]]) -> None:
        """Catalogue a block with its parts (digest, start, size, position).

        A part that is elsewhere already stays there. What has a position counts where it was written last: a record may have been
        deleted, and come again.
        """
        block = self._connection.execute("INSERT INTO blocks (pack, offset) VALUES (?, ?)", (pack, offset)).lastrowid
        for sha256, start, size, position in parts:
            again = "UPDATE SET block = excluded.block, start = excluded.start" if position else "NOTHING"
            self._connection.execute(
                f"INSERT INTO parts VALUES (?, ?, ?, ?) ON CONFLICT (sha256) DO {again}", (sha256, block, start, size)
            )
        self._connection.execute(
            "INSERT INTO packs VALUES (?, ?) ON CONFLICT (pack) DO UPDATE SET end = excluded.end", (pack, end)
        )

    def move_block(self, parts: Iterable[tuple[bytes, int]], *, pack: int, offset: int) -> None:
        """Parts (digest, start) are in this block from now on."""
        [(block,)] = self._connection.execute("SELECT block FROM blocks WHERE pack = ? AND offset = ?", (pack, offset))
        self._connection.executemany(
            "UPDATE parts SET block = ?, start = ? WHERE sha256 = ?",
            ((block, start, sha256) for sha256, start in parts),
        )

    def remove_pack(self, pack: int) -> None:
        """Forget a pack and the parts that are still there."""
        self._connection.execute("DELETE FROM parts WHERE block IN (SELECT block FROM blocks WHERE pack = ?)", (pack,))
        self._connection.execute("DELETE FROM blocks WHERE pack = ?", (pack,))
        self._connection.execute("DELETE FROM packs WHERE pack = ?", (pack,))

    def known(self, digests: Collection[bytes]) -> set[bytes]:
        """Those of some digests that are stored."""
        found: set[bytes] = set()
        wanted = list(digests)
        for first in range(0, len(wanted), _VARIABLES_MAX):
            some = wanted[first : first + _VARIABLES_MAX]
            marks = ",".join("?" * len(some))
            found.update(
                sha256
                for (sha256,) in self._connection.execute(f"SELECT sha256 FROM parts WHERE sha256 IN ({marks})", some)
            )
        return found

    def place(self, sha256: bytes) -> Place | None:
        """Where a part is."""
        row = self._connection.execute(
            "SELECT pack, offset, start, size_bytes FROM parts JOIN blocks USING (block) WHERE sha256 = ?", (sha256,)
        ).fetchone()
        return None if row is None else Place(*row)

    # --- records ---

    def last_position(self) -> int:
        """The last position that was given."""
        [(position,)] = self._connection.execute(
            "SELECT max(coalesce((SELECT max(position) FROM records), 0),"
            " coalesce((SELECT max(position) FROM annotations), 0),"
            " coalesce((SELECT max(position) FROM deletions), 0))"
        )
        return int(position)

    def count(self) -> int:
        """How many records there are, every revision counted."""
        [(number,)] = self._connection.execute("SELECT count(*) FROM records")
        return int(number)

    def add_record(self, position: int, record: JobRecord, sha256: bytes) -> None:
        """A record, unless its job was deleted later; adding it again changes nothing."""
        if self._is_deleted(record.job, position):
            return
        self._connection.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (position) DO NOTHING"
            # One that was deleted, and whose deletion was not read yet.
            " ON CONFLICT (job, revision) DO UPDATE SET position = excluded.position, owner = excluded.owner,"
            " submitted_at = excluded.submitted_at, heard_at = excluded.heard_at, sha256 = excluded.sha256"
            " WHERE excluded.position > position",
            (position, record.job, record.revision, record.owner, record.submitted_at, record.heard_at, sha256),
        )

    def add_annotation(self, position: int, annotation: Annotation, sha256: bytes) -> None:
        """An annotation, unless its job was deleted later."""
        if not self._is_deleted(annotation.job, position):
            self._connection.execute(
                "INSERT INTO annotations VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (position, annotation.job, sha256)
            )

    def add_deletion(self, position: int, job: str, sha256: bytes) -> None:
        """The record of a job, as it was at this position, is no more."""
        for table in ("records", "annotations"):
            self._connection.execute(f"DELETE FROM {table} WHERE job = ? AND position < ?", (job, position))
        self._connection.execute(
            "INSERT INTO deletions VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (position, job, sha256)
        )

    def _is_deleted(self, job: str, position: int) -> bool:
        found = self._connection.execute("SELECT 1 FROM deletions WHERE job = ? AND position > ?", (job, position))
        return found.fetchone() is not None

    def last_deletion(self, job: str) -> bytes | None:
        """The digest of the last deletion of a job's record."""
        row = self._connection.execute(
            "SELECT sha256 FROM deletions WHERE job = ? ORDER BY position DESC LIMIT 1", (job,)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def revision(self, job: str, revision: int | None) -> bytes | None:
        """The digest of a record; the newest one unless a revision is named."""
        row = self._connection.execute(
            "SELECT sha256 FROM records WHERE job = ? AND revision = coalesce(?, revision) ORDER BY revision DESC LIMIT 1",
            (job, revision),
        ).fetchone()
        return None if row is None else bytes(row[0])

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
        rows = self._connection.execute(
            "SELECT job FROM records WHERE job >= ?1 AND job < ?2 GROUP BY job ORDER BY max(submitted_at) DESC, max(position) DESC",
            (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)),
        )
        return [job for (job,) in rows]

    def unheard_since(self, before: float) -> list[str]:
        """The jobs whose records have no later event."""
        rows = self._connection.execute(
            "SELECT job FROM records GROUP BY job HAVING max(heard_at) < ? ORDER BY min(position)", (before,)
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
        rows = self._connection.execute("SELECT sha256 FROM annotations WHERE job = ? ORDER BY position", (job,))
        return [bytes(sha256) for (sha256,) in rows]

    def all_records(self) -> Iterator[tuple[int, str, bytes]]:
        """The position, job and digest of every record, in order."""
        return self._all("records")

    def all_annotations(self) -> Iterator[tuple[int, str, bytes]]:
        """The position, job and digest of every annotation, in order."""
        return self._all("annotations")

    def all_deletions(self) -> Iterator[tuple[int, str, bytes]]:
        """The position, job and digest of every deletion, in order."""
        return self._all("deletions")

    def _all(self, table: str) -> Iterator[tuple[int, str, bytes]]:
        rows = self._connection.execute(f"SELECT position, job, sha256 FROM {table} ORDER BY position")
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
            for position, job, revision, owner, submitted_at, heard_at, sha256, change in self._connection.execute(
                query, values
            )
        ]

    def faults(self) -> list[str]:
        """What SQLite finds wrong with the file."""
        return [line for (line,) in self._connection.execute("PRAGMA integrity_check") if line != "ok"]
