"""The index of results, in the database of a state folder: earlier results, and which files are ours."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.stores.work_database import WorkDatabase, WorkTables, place_of, retried_if_damaged
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports.job_tree import StoredFile, StoreError
from pilotage.ports.results_index import RUNS_KEPT, MadeFile, MadeWork, MeasuredRun, RunKind, SeenFile, WorkFields

# A cache of files that the index has as ours: most are looked up soon after they were stored.

_FILES_MAX = 16_384


class KeptFiles:
    """The last stored content of each name; for one thread at a time."""

    def __init__(self) -> None:
        self._contents: dict[str, dict[str, str]] = {}  # folder → name → sha256
        self._count = 0

    def add(self, made: Iterable[MadeWork]) -> None:
        """Note files that are in the index."""
        if self._count >= _FILES_MAX:
            self._contents, self._count = {}, 0
        for one in made:
            contents = self._contents.setdefault(one.folder, {})
            for file in one.manifest:
                contents[file.name] = file.sha256
            self._count += len(one.manifest)

    def others(self, folder: str, files: Collection[SeenFile]) -> list[SeenFile]:
        """The files that are not known to be in the index."""
        known = self._contents.get(folder, {}).get
        return [each for each in files if known(each.file.name) != each.sha256]


_PAGE = 10_000  # files per page
_CHUNK = 500  # values per statement; SQLite allows some thousand

_MADE = (
    "INSERT OR REPLACE INTO made (folder, key, document, stage, line, number, job, attempt, fields, manifest)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OURS = (
    "INSERT INTO ours VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET job = excluded.job"
    " WHERE excluded.job IS NOT NULL AND excluded.job IS NOT job"
)

_RUN_COLUMNS = MeasuredRun.__struct_fields__
_run_columns = attrgetter(*_RUN_COLUMNS)
_RUN = (
    f"INSERT INTO runs (folder, document, activity, software, size_class, {', '.join(_RUN_COLUMNS)})"
    f" VALUES (?, ?, ?, ?, ?, {', '.join('?' * len(_RUN_COLUMNS))})"
)
_ALIKE = "folder = ? AND document = ? AND activity = ? AND software = ? AND size_class = ?"
_RUNS_FORGOTTEN = (
    f"DELETE FROM runs WHERE {_ALIKE} AND run_id <="
    f" (SELECT run_id FROM runs WHERE {_ALIKE} ORDER BY run_id DESC LIMIT 1 OFFSET ?)"
)

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_fields = msgspec.msgpack.Decoder(WorkFields)
_manifest = msgspec.msgpack.Decoder(tuple[OutputFile, ...])


class SqliteResultsIndex(WorkTables):
    """The index of a state folder; safe for threads."""

    def __init__(self, database: WorkDatabase) -> None:
        super().__init__(database)
        self._used: dict[str, int] = {}  # folder → until when attempts used its files
        self._kept = KeptFiles()
        self._any_disposed: bool | None = None  # None: not known yet

    @property
    def path(self) -> Path:
        """The path of the database."""
        return self._database.path

    @property
    def beginnings(self) -> int:
        """How often it was started anew since it was opened."""
        return self._database.beginnings

    def lost(self) -> None:
        """Forget the cache: the database was started anew."""
        self._kept = KeptFiles()
        self._any_disposed = None

    # --- results ---

    @retried_if_damaged
    def keep(self, made: Sequence[MadeWork]) -> None:
        """Store granted attempts, and that their files are ours."""
        if not made:
            return
        with self._database.lock:
            with self._database.writing() as book:
                rows, files = self._rows_of(made)
                book.executemany(_MADE, rows)
                book.executemany(_OURS, files)
                if self._has_disposed(book):  # a content that is made again is there again
                    book.executemany(
                        "DELETE FROM disposed WHERE folder = ? AND name = ? AND sha256 = ?", [row[:3] for row in files]
                    )
            self._kept.add(made)

    @retried_if_damaged
    def claim(self, folder: str, job: str, files: Sequence[OutputFile]) -> None:
        """Store that these contents, which a job was granted, are ours."""
        with self._database.writing() as book:
            numbers = self._database.numbered(folder), self._database.numbered(job)
            rows = [(numbers[0], file.name, bytes.fromhex(file.sha256), file.size_bytes, numbers[1]) for file in files]
            book.executemany(_OURS, rows)

    def _rows_of(self, made: Sequence[MadeWork]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Results and their files, as rows."""
        rows: list[tuple[Any, ...]] = []
        files: list[tuple[Any, ...]] = []
        known, unhex = self._database.names.get, bytes.fromhex  # numbers of names are positive
        for one in made:
            ref = one.ref
            folder = known(one.folder) or self._database.numbered(one.folder)
            document = known(one.document) or self._database.numbered(one.document)
            job = known(ref.job) or self._database.numbered(ref.job)
            rows.append(
                (folder, unhex(one.key), document, *place_of(ref.package),
                 job, ref.attempt, _encode(one.fields), _encode(one.manifest))
            )  # fmt: skip
            files += [(folder, file.name, unhex(file.sha256), file.size_bytes, job) for file in one.manifest]
        return rows, files

    @retried_if_damaged
    def knows(self, folder: str, *, document: str | None = None) -> bool:
        """Tell whether a folder has results, of one document if given."""
        with self._database.reading() as book:
            numbers = [self._database.number(name) for name in (folder, document) if name is not None]
            if None in numbers:
                return False
            which = "folder = ?" if document is None else "folder = ? AND document = ?"
            return book.execute(f"SELECT 1 FROM made WHERE {which} LIMIT 1", numbers).fetchone() is not None

    @retried_if_damaged
    def knows_files(self, folder: str) -> bool:
        """Tell whether a folder has files of ours."""
        with self._database.reading() as book:
            number = self._database.number(folder)
            return book.execute("SELECT 1 FROM ours WHERE folder = ? LIMIT 1", (number,)).fetchone() is not None

    @retried_if_damaged
    def find(self, folder: str, keys: Collection[str]) -> dict[str, MadeWork]:
        """The results of a folder with these keys."""
        found: dict[str, MadeWork] = {}
        with self._database.reading() as book:
            number = self._database.number(folder)
            for some in _chunks(keys) if number is not None else ():
                statement = (
                    "SELECT key, fields, d.name, stage, line, number, j.name, attempt, manifest FROM made"
                    " JOIN names AS d ON d.name_id = document JOIN names AS j ON j.name_id = job"
                    f" WHERE folder = ? AND key IN ({_marks(some)})"
                )
                for row in book.execute(statement, (number, *map(bytes.fromhex, some))):
                    ref = AttemptRef(row[6], f"{row[3]}.{row[4]}.{row[5]}", row[7])
                    found[row[0].hex()] = MadeWork(
                        key=row[0].hex(),
                        fields=_fields.decode(row[1]),
                        folder=folder,
                        document=row[2],
                        ref=ref,
                        manifest=_manifest.decode(row[8]),
                    )
        return found

    @retried_if_damaged
    def latest(self, folder: str, document: str, packages: Collection[str]) -> dict[str, WorkFields]:
        """The fields of each package in the latest run of a document, by package number."""
        found: dict[str, WorkFields] = {}
        with self._database.reading() as book:
            numbers = (self._database.number(folder), self._database.number(document))
            if None in numbers:
                return {}
            for package in packages:
                row = book.execute(
                    "SELECT fields FROM made WHERE folder = ? AND document = ? AND stage = ? AND line = ? AND number = ?"
                    " ORDER BY made_id DESC LIMIT 1",
                    (*numbers, *place_of(package)),
                ).fetchone()
                if row is not None:
                    found[package] = _fields.decode(row[0])
        return found

    # --- files ---

    @retried_if_damaged
    def makers(self, folder: str, names: Collection[str]) -> dict[str, tuple[OutputFile, ...]]:
        """Which of these files are ours, with every content made under the name."""
        found: dict[str, tuple[OutputFile, ...]] = {}
        for name, sha256, size_bytes in self._rows("ours", "name, sha256, size_bytes", folder, names):
            one = OutputFile(name=name, size_bytes=size_bytes, sha256=sha256.hex())
            found[name] = (*found.get(name, ()), one)
        return found

    @retried_if_damaged
    def maker(self, folder: str, name: str, *, sha256: str) -> str:
        """The job that last made a content under a name; empty if unknown."""
        with self._database.reading() as book:
            statement = "SELECT j.name FROM ours JOIN names AS j ON j.name_id = job WHERE folder = ? AND ours.name = ? AND sha256 = ?"
            row = book.execute(statement, (self._database.number(folder), name, bytes.fromhex(sha256))).fetchone()
        return row[0] if row is not None else ""

    @retried_if_damaged
    def note_disposed(self, folder: str, files: Sequence[OutputFile]) -> None:
        """Store that files are removed on purpose."""
        with self._database.writing() as book:
            number = self._database.numbered(folder)
            rows = [(number, file.name, bytes.fromhex(file.sha256)) for file in files]
            book.executemany("INSERT OR IGNORE INTO disposed VALUES (?, ?, ?)", rows)
            self._any_disposed = self._any_disposed or bool(rows)

    @retried_if_damaged
    def disposed(self, folder: str, names: Collection[str]) -> dict[str, frozenset[str]]:
        """The contents of these names that were removed on purpose."""
        found: dict[str, frozenset[str]] = {}
        for name, sha256 in self._rows("disposed", "name, sha256", folder, names):
            found[name] = found.get(name, frozenset()) | {sha256.hex()}
        return found

    def _has_disposed(self, book: sqlite3.Connection) -> bool:
        if self._any_disposed is None:
            self._any_disposed = book.execute("SELECT 1 FROM disposed LIMIT 1").fetchone() is not None
        return self._any_disposed

    def made_files(self, folder: str) -> Iterator[MadeFile]:
        """All contents made in a folder, sorted by name; read in pages."""
        after = ("", b"")
        while page := self._made_page(folder, after):
            for name, sha256, size_bytes, job in page:
                file = OutputFile(name=name, size_bytes=size_bytes, sha256=sha256.hex())
                yield MadeFile(file=file, job=job or "")
            after = page[-1][0], page[-1][1]

    @retried_if_damaged
    def _made_page(self, folder: str, after: tuple[str, bytes]) -> list[tuple[Any, ...]]:
        with self._database.reading() as book:
            statement = (
                "SELECT ours.name, sha256, size_bytes, j.name FROM ours LEFT JOIN names AS j ON j.name_id = job"
                " WHERE folder = ? AND (ours.name, sha256) > (?, ?) ORDER BY ours.name, sha256 LIMIT ?"
            )
            return book.execute(statement, (self._database.number(folder), *after, _PAGE)).fetchall()

    @retried_if_damaged
    def saw(self, folder: str, files: Collection[SeenFile], *, made: bool) -> None:
        """Store the current checksums of files; `made` marks them as ours."""
        if not files:
            return
        with self._database.writing() as book:
            number, unhex = self._database.numbered(folder), bytes.fromhex
            rows = [
                (number, (file := s.file).name, unhex(s.sha256), file.size_bytes,
                 file.modified_ns, _signed(file.inode), file.changed_ns)
                for s in files
            ]  # fmt: skip
            book.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if made and (others := self._kept.others(folder, files)):
                book.executemany(
                    _OURS, [(number, s.file.name, unhex(s.sha256), s.file.size_bytes, None) for s in others]
                )

    @retried_if_damaged
    def known_files(self, folder: str, names: Collection[str]) -> dict[str, SeenFile]:
        """The stored checksums of these files."""
        rows = self._rows("files", "name, sha256, size_bytes, modified_ns, inode, changed_ns", folder, names)
        used_ns = self._used_until(folder) if rows else 0
        return {
            name: SeenFile(
                file=StoredFile(
                    name=name, size_bytes=size, modified_ns=modified_ns, inode=inode % 2**64, changed_ns=changed_ns
                ),
                sha256=sha256.hex(),
                used_ns=used_ns,
            )
            for name, sha256, size, modified_ns, inode, changed_ns in rows
        }

    def used(self, folder: str, *, until_ns: int) -> None:
        """Note until when attempts used files of a folder."""
        self._used[folder] = until_ns

    def _used_until(self, folder: str) -> int:
        known = self._used.get(folder)
        if known is None:
            with self._database.reading() as book:
                row = book.execute(
                    "SELECT used_ns FROM folders WHERE folder = ?", (self._database.number(folder),)
                ).fetchone()
            known = self._used[folder] = row[0] if row is not None else 0
        return known

    def _keep_used(self, book: sqlite3.Connection) -> None:
        """Write until when folders were used; until then it is only in memory."""
        rows = [
            (self._database.numbered(folder), until_ns) for folder, until_ns in list(self._used.items()) if until_ns
        ]
        book.executemany("INSERT OR REPLACE INTO folders VALUES (?, ?)", rows)

    def _rows(self, table: str, columns: str, folder: str, names: Collection[str]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        with self._database.reading() as book:
            number = self._database.number(folder)
            for some in _chunks(names) if number is not None else ():
                statement = f"SELECT {columns} FROM {table} WHERE folder = ? AND name IN ({_marks(some)})"
                rows += book.execute(statement, (number, *some)).fetchall()
        return rows

    # --- times ---

    @retried_if_damaged
    def note_times(self, folder: str, document: str, times: Mapping[str, tuple[int, float]]) -> None:
        """Add durations of packages: count and total seconds of each activity."""
        if not times:
            return
        with self._database.writing() as book:
            numbers = (self._database.numbered(folder), self._database.numbered(document))
            book.executemany(
                "INSERT INTO times VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " count = count + excluded.count, seconds = seconds + excluded.seconds",
                [(*numbers, activity, count, seconds) for activity, (count, seconds) in times.items()],
            )
            self._keep_used(book)

    @retried_if_damaged
    def mean_seconds(self, folder: str, document: str) -> dict[str, float]:
        """Mean duration of a package of each activity in earlier runs of a document."""
        with self._database.reading() as book:
            numbers = (self._database.number(folder), self._database.number(document))
            if None in numbers:
                return {}
            statement = "SELECT activity, seconds / count FROM times WHERE folder = ? AND document = ? AND count > 0"
            return dict(book.execute(statement, numbers).fetchall())

    # --- measured runs ---

    @retried_if_damaged
    def note_runs(self, folder: str, document: str, runs: Mapping[RunKind, Sequence[MeasuredRun]]) -> None:
        """Add measured runs, and remove those that are too many."""
        if not runs:
            return
        with self._database.writing() as book:
            numbers = (self._database.numbered(folder), self._database.numbered(document))
            for kind, measured in runs.items():
                rows = [(*numbers, *kind, _size_class(each.input_bytes), *_run_columns(each)) for each in measured]
                book.executemany(_RUN, rows)
                book.executemany(_RUNS_FORGOTTEN, sorted({(*row[:5], *row[:5], RUNS_KEPT) for row in rows}))

    def runs(self, folder: str, document: str, kind: RunKind) -> list[MeasuredRun]:
        """Runs of one kind in a document, the latest last."""
        where = "folder = ? AND document = ? AND activity = ? AND software = ?"
        return self._runs(where, (folder, document), kind)

    def software_runs(self, software: str) -> list[MeasuredRun]:
        """Runs of a software in any document, the latest last."""
        return self._runs("software = ? AND software <> ''", (), (software,))

    @retried_if_damaged
    def _runs(self, where: str, names: Sequence[str], more: Sequence[str]) -> list[MeasuredRun]:
        with self._database.reading() as book:
            numbers = [self._database.number(name) for name in names]
            if None in numbers:
                return []
            statement = f"SELECT {', '.join(_RUN_COLUMNS)} FROM runs WHERE {where} ORDER BY run_id"
            rows = book.execute(statement, (*numbers, *more)).fetchall()
        return [MeasuredRun(**dict(zip(_RUN_COLUMNS, row, strict=True))) for row in rows]

    def close(self) -> None:
        """Write until when folders were used, and close."""
        try:
            if any(self._used.values()):
                with self._database.writing() as book:
                    self._keep_used(book)
        except StoreError as fault:  # then files are read again
            log.warning("cannot store until when files were used: %s", fault)
        super().close()


def _size_class(size_bytes: int | None) -> int:
    """The class of inputs of about this size: from one power of two to the next."""
    return -1 if size_bytes is None else size_bytes.bit_length()


def _signed(inode: int) -> int:
    """An inode as a signed number, for SQLite: some file systems use all 64 bits."""
    return inode - 2**64 if inode >= 2**63 else inode


def _chunks(values: Iterable[str]) -> Iterator[list[str]]:
    found = list(values)
    return (found[start : start + _CHUNK] for start in range(0, len(found), _CHUNK))


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
