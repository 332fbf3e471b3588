"""What was made before, which files are ours, and the logs, in one SQLite file beside the book.

It can be lost without harm: then nothing is adopted, logs are gone, and which files are ours is learned from the book. So it
does not wait for the disk at every write, and one that is damaged is set aside for a new one.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from pilotage.adapters.closed_folders import make_closed
from pilotage.adapters.journals.network_folders import MOUNTS, network_kind
from pilotage.adapters.journals.sqlite.connections import make_private
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.ports.files import MadeFile, MadeWork, SeenFile, StoredFile, StoreError, WorkFields

# Files that the index has as ours, remembered for a while: what is kept is seen soon after, and need not be kept
# again.

_FILES_MAX = 16_384


class KeptFiles:
    """The last content that was kept under each name; one thread asks at a time."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._contents: dict[str, dict[str, str]] = {}  # folder → name → sha256
        self._count = 0

    def add(self, made: Iterable[MadeWork]) -> None:
        """These are in the index."""
        if self._count >= _FILES_MAX:
            self._contents, self._count = {}, 0
        for one in made:
            contents = self._contents.setdefault(one.folder, {})
            for file in one.manifest:
                contents[file.name] = file.sha256
            self._count += len(one.manifest)

    def others(self, folder: str, files: Collection[SeenFile]) -> list[SeenFile]:
        """Which of some files are not known to be in the index."""
        known = self._contents.get(folder, {}).get
        return [each for each in files if known(each.file.name) != each.sha256]


# Texts as they lie in a database: packed where that pays, and where they hold what no text there may hold.

_PACKED_MIN = 200  # a shorter text is not worth packing


def packed(text: str) -> str | bytes:
    """A text as it is stored."""
    if len(text) < _PACKED_MIN and text.isascii():
        return text
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpacked(stored: str | bytes) -> str:
    """A text from what is stored of it."""
    return stored if isinstance(stored, str) else zlib.decompress(stored).decode("utf-8", "surrogatepass")


# The tables of the index of earlier work, and how those of an earlier version become these.

VERSION = 3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (name_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS made (
    made_id INTEGER PRIMARY KEY,  -- a later one has the greater number
    folder INTEGER NOT NULL, key BLOB NOT NULL, document INTEGER NOT NULL,
    stage INTEGER NOT NULL, line INTEGER NOT NULL, number INTEGER NOT NULL,
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, fields BLOB NOT NULL, manifest BLOB NOT NULL,
    UNIQUE (folder, key));
CREATE INDEX IF NOT EXISTS made_places ON made (folder, document, stage, line, number);
CREATE TABLE IF NOT EXISTS files (
    folder INTEGER NOT NULL, name TEXT NOT NULL, sha256 BLOB NOT NULL, size_bytes INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL, inode INTEGER NOT NULL, changed_ns INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (folder, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS folders (folder INTEGER PRIMARY KEY, used_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ours (  -- every content that was made under a name: the one before may still be there
    folder INTEGER NOT NULL, name TEXT NOT NULL, sha256 BLOB NOT NULL, size_bytes INTEGER NOT NULL,
    job INTEGER,  -- the last that made it
    PRIMARY KEY (folder, name, sha256)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS times (
    folder INTEGER NOT NULL, document INTEGER NOT NULL, activity TEXT NOT NULL,
    count INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (folder, document, activity)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (
    job INTEGER NOT NULL, stage INTEGER NOT NULL, line INTEGER NOT NULL, number INTEGER NOT NULL,
    attempt INTEGER NOT NULL, stream TEXT NOT NULL,
    head BLOB NOT NULL, tail BLOB NOT NULL, dropped_bytes INTEGER NOT NULL, final INTEGER NOT NULL,
    PRIMARY KEY (job, stage, line, number, attempt, stream)) WITHOUT ROWID;
"""

_MORE = {
    1: "ALTER TABLE ours ADD COLUMN job INTEGER;",
    2: "ALTER TABLE files ADD COLUMN changed_ns INTEGER NOT NULL DEFAULT 0;",
}


def to_version(version: int) -> str:
    """The statements that make the tables of this version of those of another, or of none (0)."""
    more = " ".join(_MORE[each] for each in range(version, VERSION)) if version else ""
    return f"{_SCHEMA} {more} PRAGMA user_version = {VERSION};"


FILE = "work.sqlite"
DAMAGED = f"{FILE}.damaged"
"""What a damaged index is called from then on."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PAGE = 10_000  # files in one answer
_CHUNK = 500  # values in one question; SQLite takes no more than some thousand

_MADE = (
    "INSERT OR REPLACE INTO made (folder, key, document, stage, line, number, job, attempt, fields, manifest)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OURS = (
    "INSERT INTO ours VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET job = excluded.job"
    " WHERE excluded.job IS NOT NULL AND excluded.job IS NOT job"
)

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_fields = msgspec.msgpack.Decoder(WorkFields)
_manifest = msgspec.msgpack.Decoder(tuple[OutputFile, ...])


Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def _mending(
    method: Callable[Concatenate[SqliteWorkIndex, Given], Answer],
) -> Callable[Concatenate[SqliteWorkIndex, Given], Answer]:
    """A question that is asked again of a new index where the one that there was turns out to be damaged."""

    @wraps(method)
    def mended(self: SqliteWorkIndex, /, *words: Given.args, **more: Given.kwargs) -> Answer:
        try:
            return method(self, *words, **more)
        except StoreError as fault:
            if not _is_damage(fault.__cause__):
                raise
            self.begin_anew(fault)
            return method(self, *words, **more)

    return mended


class SqliteWorkIndex:
    """The index of a state folder. It may be asked from several threads, one at a time."""

    def __init__(self, folder: Path, *, mounts: Path = MOUNTS) -> None:
        """Open the index of a state folder; it is made where there is none, and anew where it is damaged."""
        self.path = folder / FILE
        self.beginnings = 0  # how often it was begun anew: what it knew is gone then
        self._mounts = mounts
        self._lock = threading.RLock()
        self._names: dict[str, int] = {}
        self._used: dict[str, int] = {}  # folder → until when attempts used its files
        self._kept = KeptFiles()
        try:
            self._book = self._open()
        except StoreError as fault:
            if not _is_damage(fault.__cause__):
                raise
            self._set_aside(fault)
            self._book = self._open()

    def begin_anew(self, damage: StoreError) -> None:
        """Set a damaged index aside and begin with an empty one."""
        with self._lock:
            self._book.close()
            self._set_aside(damage)
            self._names.clear()
            self._kept = KeptFiles()
            self._book = self._open()
            self.beginnings += 1

    def _set_aside(self, damage: StoreError) -> None:
        try:
            self.path.replace(self.path.with_name(DAMAGED))
            for ending in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    self.path.with_name(f"{FILE}{ending}").unlink()
        except OSError as fault:
            raise _told(fault, self.path) from fault
        log.warning(
            "%s: %s; it is kept as %s, and a new one begins: nothing made so far is adopted, and its logs are gone",
            self.path,
            damage.what,
            DAMAGED,
        )

    def _open(self) -> sqlite3.Connection:
        folder = self.path.parent
        try:
            make_closed(folder)
            make_private(self.path)
            book = self._book = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as fault:
            raise _told(fault, self.path) from fault
        try:
            network = network_kind(folder, mounts=self._mounts)
            if network:
                log.warning("%s is on %s, a network file system: slower, with a rollback journal", folder, network)
            self._book.execute(f"PRAGMA journal_mode = {'DELETE' if network else 'WAL'}")
            self._book.execute("PRAGMA synchronous = NORMAL")
            self._book.execute("PRAGMA cache_size = -16384")
            # Keys are in no order, so every write touches many pages: the more of them are moved together, the better.
            self._book.execute("PRAGMA wal_autocheckpoint = 4000")
            self._prepare()
        except sqlite3.Error as fault:
            self._book.close()
            raise _told(fault, self.path) from fault
        except StoreError:
            self._book.close()
            raise
        return book

    def _prepare(self) -> None:
        version = int(self._book.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise StoreError(
                "the index of earlier work was written by a later version of pilotage",
                subject=str(self.path),
                next_step="use that version, or remove the file: only what could be adopted is forgotten",
            )
        self._book.executescript(f"BEGIN IMMEDIATE; {to_version(version)} COMMIT;")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as book:
            book.execute("BEGIN IMMEDIATE")
            try:
                yield book
            except BaseException:
                if book.in_transaction:
                    book.execute("ROLLBACK")
                self._names.clear()  # some may have been new
                raise
            book.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._book
            except (sqlite3.Error, OverflowError) as fault:
                raise _told(fault, self.path) from fault

    def _number(self, name: str) -> int | None:
        """The number of a name, if it has one."""
        if name not in self._names:
            row = self._book.execute("SELECT name_id FROM names WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            self._names[name] = row[0]
        return self._names[name]

    def _numbered(self, name: str) -> int:
        """The number of a name; it gets one where it has none."""
        found = self._number(name)
        if found is None:
            row = self._book.execute("INSERT INTO names (name) VALUES (?) RETURNING name_id", (name,)).fetchone()
            found = self._names[name] = int(row[0])
        return found

    # --- what was made ---

    @_mending
    def keep(self, made: Sequence[MadeWork]) -> None:
        """Remember granted attempts, and that their files are ours."""
        if not made:
            return
        with self._lock:
            with self._writing() as book:
                rows, files = self._rows_of(made)
                book.executemany(_MADE, rows)
                book.executemany(_OURS, files)
            self._kept.add(made)

    @_mending
    def claim(self, folder: str, job: str, files: Sequence[OutputFile]) -> None:
        """Remember that these contents, which a job was granted, are ours."""
        with self._writing() as book:
            numbers = self._numbered(folder), self._numbered(job)
            rows = [(numbers[0], file.name, bytes.fromhex(file.sha256), file.size_bytes, numbers[1]) for file in files]
            book.executemany(_OURS, rows)

    def _rows_of(self, made: Sequence[MadeWork]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """What was made, and its files, as they are stored."""
        rows: list[tuple[Any, ...]] = []
        files: list[tuple[Any, ...]] = []
        known, unhex = self._names.get, bytes.fromhex  # a name has a number greater than 0
        for one in made:
            ref = one.ref
            folder = known(one.folder) or self._numbered(one.folder)
            document = known(one.document) or self._numbered(one.document)
            job = known(ref.job) or self._numbered(ref.job)
            rows.append(
                (folder, unhex(one.key), document, *_place(ref.package),
                 job, ref.attempt, _encode(one.fields), _encode(one.manifest))
            )  # fmt: skip
            files += [(folder, file.name, unhex(file.sha256), file.size_bytes, job) for file in one.manifest]
        return rows, files

    @_mending
    def knows(self, folder: str, *, document: str | None = None) -> bool:
        """Whether anything was made in a folder, by a document where one is named."""
        with self._reading() as book:
            numbers = [self._number(name) for name in (folder, document) if name is not None]
            if None in numbers:
                return False
            which = "folder = ?" if document is None else "folder = ? AND document = ?"
            return book.execute(f"SELECT 1 FROM made WHERE {which} LIMIT 1", numbers).fetchone() is not None

    @_mending
    def knows_files(self, folder: str) -> bool:
        """Whether any file was made in a folder."""
        with self._reading() as book:
            number = self._number(folder)
            return book.execute("SELECT 1 FROM ours WHERE folder = ? LIMIT 1", (number,)).fetchone() is not None

    @_mending
    def find(self, folder: str, keys: Collection[str]) -> dict[str, MadeWork]:
        """What was made in a folder under these keys."""
        found: dict[str, MadeWork] = {}
        with self._reading() as book:
            number = self._number(folder)
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

    @_mending
    def latest(self, folder: str, document: str, packages: Collection[str]) -> dict[str, WorkFields]:
        """What the latest run of a document was asked for, by the dotted place of each package."""
        found: dict[str, WorkFields] = {}
        with self._reading() as book:
            numbers = (self._number(folder), self._number(document))
            if None in numbers:
                return {}
            for package in packages:
                row = book.execute(
                    "SELECT fields FROM made WHERE folder = ? AND document = ? AND stage = ? AND line = ? AND number = ?"
                    " ORDER BY made_id DESC LIMIT 1",
                    (*numbers, *_place(package)),
                ).fetchone()
                if row is not None:
                    found[package] = _fields.decode(row[0])
        return found

    # --- files ---

    @_mending
    def makers(self, folder: str, names: Collection[str]) -> dict[str, tuple[OutputFile, ...]]:
        """Which of these files are ours, with every content that was made under the name."""
        found: dict[str, tuple[OutputFile, ...]] = {}
        for name, sha256, size_bytes in self._rows("ours", "name, sha256, size_bytes", folder, names):
            one = OutputFile(name=name, size_bytes=size_bytes, sha256=sha256.hex())
            found[name] = (*found.get(name, ()), one)
        return found

    @_mending
    def maker(self, folder: str, name: str, *, sha256: str) -> str:
        """The job that made a content under a name, the last if several did; empty where none is known."""
        with self._reading() as book:
            statement = "SELECT j.name FROM ours JOIN names AS j ON j.name_id = job WHERE folder = ? AND ours.name = ? AND sha256 = ?"
            row = book.execute(statement, (self._number(folder), name, bytes.fromhex(sha256))).fetchone()
        return row[0] if row is not None else ""

    def made_files(self, folder: str) -> Iterator[MadeFile]:
        """Every content that was made in a folder, sorted by name; read a page at a time."""
        after = ("", b"")
        while page := self._made_page(folder, after):
            for name, sha256, size_bytes, job in page:
                file = OutputFile(name=name, size_bytes=size_bytes, sha256=sha256.hex())
                yield MadeFile(file=file, job=job or "")
            after = page[-1][0], page[-1][1]

    @_mending
    def _made_page(self, folder: str, after: tuple[str, bytes]) -> list[tuple[Any, ...]]:
        with self._reading() as book:
            statement = (
                "SELECT ours.name, sha256, size_bytes, j.name FROM ours LEFT JOIN names AS j ON j.name_id = job"
                " WHERE folder = ? AND (ours.name, sha256) > (?, ?) ORDER BY ours.name, sha256 LIMIT ?"
            )
            return book.execute(statement, (self._number(folder), *after, _PAGE)).fetchall()

    @_mending
    def saw(self, folder: str, files: Collection[SeenFile], *, made: bool) -> None:
        """Remember the checksums of files as they are; those `made` are ours from now on."""
        if not files:
            return
        with self._writing() as book:
            number, unhex = self._numbered(folder), bytes.fromhex
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

    @_mending
    def seen(self, folder: str, names: Collection[str]) -> dict[str, SeenFile]:
        """What is remembered of the checksums of these files."""
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
        """Attempts have used files of a folder until then."""
        self._used[folder] = until_ns

    def _used_until(self, folder: str) -> int:
        known = self._used.get(folder)
        if known is None:
            with self._reading() as book:
                row = book.execute("SELECT used_ns FROM folders WHERE folder = ?", (self._number(folder),)).fetchone()
            known = self._used[folder] = row[0] if row is not None else 0
        return known

    def _keep_used(self, book: sqlite3.Connection) -> None:
        """Write down until when folders were used; it is known here meanwhile, and not after a crash."""
        rows = [(self._numbered(folder), until_ns) for folder, until_ns in list(self._used.items()) if until_ns]
        book.executemany("INSERT OR REPLACE INTO folders VALUES (?, ?)", rows)

    def _rows(self, table: str, columns: str, folder: str, names: Collection[str]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        with self._reading() as book:
            number = self._number(folder)
            for some in _chunks(names) if number is not None else ():
                statement = f"SELECT {columns} FROM {table} WHERE folder = ? AND name IN ({_marks(some)})"
                rows += book.execute(statement, (number, *some)).fetchall()
        return rows

    # --- times ---

    @_mending
    def note_times(self, folder: str, document: str, times: Mapping[str, tuple[int, float]]) -> None:
        """Remember how long packages took: for each activity how many there were, and their seconds in all."""
        if not times:
            return
        with self._writing() as book:
            numbers = (self._numbered(folder), self._numbered(document))
            book.executemany(
                "INSERT INTO times VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " count = count + excluded.count, seconds = seconds + excluded.seconds",
                [(*numbers, activity, count, seconds) for activity, (count, seconds) in times.items()],
            )
            self._keep_used(book)

    @_mending
    def mean_seconds(self, folder: str, document: str) -> dict[str, float]:
        """How long a package of each activity took on average in earlier runs of a document."""
        with self._reading() as book:
            numbers = (self._number(folder), self._number(document))
            if None in numbers:
                return {}
            statement = "SELECT activity, seconds / count FROM times WHERE folder = ? AND document = ? AND count > 0"
            return dict(book.execute(statement, numbers).fetchall())

    # --- logs ---

    @_mending
    def put_logs(self, logs: Sequence[LogText]) -> None:
        """Keep logs; what was kept of the same attempt and stream before is replaced."""
        if not logs:
            return
        with self._writing() as book:
            book.executemany(
                "INSERT OR REPLACE INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (self._numbered(one.ref.job), *_place(one.ref.package), one.ref.attempt, one.stream,
                     packed(one.head), packed(one.tail), one.dropped_bytes, one.final)
                    for one in logs if parse_dotted(one.ref.package) is not None  # of no package: nobody could ask for it
                ],
            )  # fmt: skip

    @_mending
    def logs(self, job: str, package: str) -> list[LogText]:
        """The logs of every attempt of a package, in order."""
        with self._reading() as book:
            number = self._number(job)
            if number is None:
                return []
            rows = book.execute(
                "SELECT attempt, stream, head, tail, dropped_bytes, final FROM logs"
                " WHERE job = ? AND stage = ? AND line = ? AND number = ? ORDER BY attempt, stream DESC",
                (number, *_place(package)),
            ).fetchall()
        return [
            LogText(
                ref=AttemptRef(job, package, attempt),
                stream=stream,
                head=unpacked(head),
                tail=unpacked(tail),
                dropped_bytes=dropped_bytes,
                final=bool(final),
            )
            for attempt, stream, head, tail, dropped_bytes, final in rows
        ]

    @_mending
    def forget(self, job: str) -> None:
        """Let go of the logs of a job."""
        with self._writing() as book:
            number = self._number(job)
            if number is not None:
                book.execute("DELETE FROM logs WHERE job = ?", (number,))

    def close(self) -> None:
        """Close it."""
        with self._lock:
            try:
                if any(self._used.values()):
                    with self._writing() as book:
                        self._keep_used(book)
            except StoreError as fault:  # then files are read again
                log.warning("until when files were used is not remembered: %s", fault)
            self._book.close()


def _place(package: str) -> tuple[int, int, int]:
    place = parse_dotted(package)
    if place is None:
        raise StoreError("this is no place of a package", subject=package[:80], expected="a place such as 1.2.1")
    return place.stage, place.line, place.number


def _signed(inode: int) -> int:
    """An inode as SQLite can keep it: some file systems use all 64 bits."""
    return inode - 2**64 if inode >= 2**63 else inode


def _chunks(values: Iterable[str]) -> Iterator[list[str]]:
    found = list(values)
    return (found[start : start + _CHUNK] for start in range(0, len(found), _CHUNK))


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _is_damage(fault: BaseException | None) -> bool:
    """Whether SQLite says that a file is not what it was written as."""
    return getattr(fault, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _told(fault: Exception, path: Path) -> StoreError:
    error = StoreError(
        f"the index of earlier work cannot be used: {fault}",
        subject=str(path),
        next_step="make room or let this user write there",
    )
    error.retryable = getattr(fault, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
    return error
