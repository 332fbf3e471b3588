"""Writes the records of jobs in the formats of others, and puts the record of a crate into a storage."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Literal, NamedTuple

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.events.events import TAG_NAME

if TYPE_CHECKING:
    from pilotage.app.provenance.served_records import ServedRecords
    from pilotage.model.records import JobRecord
    from pilotage.provenance.exports.crate import CrateFolder
    from pilotage.provenance.exports.crate_reader import CrateFiles
    from pilotage.provenance.history import FileUse

ExportFormat = Literal["ro-crate", "prov-json", "wfformat", "openlineage"]
IMPORTED = "imported-annotations"
"""The annotation with those that came with a crate: their authors and times are not ours to state."""

_PIECE_BYTES = 1024 * 1024
_ZIP = ".zip"
_ARCHIVE_FAULTS = (OSError, EOFError, ValueError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)
"""What reading a damaged or a forged archive raises, by its kind of damage."""
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the same record gives the same archive


class ExportTarget(PilotageError):
    """The export cannot be written there: choose another path with --to."""


class Exported(NamedTuple):
    """What an export wrote: where, how many files of the job were copied, and which were not there as they were recorded."""

    path: str
    files: int = 0
    missing: tuple[str, ...] = ()
    licensed: bool = True  # of a crate: it states a licence


class Imported(NamedTuple):
    """The record that was put into the storage; `new` is false if it was there. `files` of the job stay in the crate alone."""

    job: str
    revision: int
    parts: int
    new: bool
    files: tuple[str, ...] = ()


def export_text(records: ServedRecords, record: JobRecord, *, export_format: ExportFormat) -> Iterator[bytes]:
    """The export of a record in a format of one file, in pieces. Raises `NotExportable`, `ServerError`, `RecordStoreError`."""
    from pilotage.provenance.exports.openlineage import openlineage_events
    from pilotage.provenance.exports.prov_json import prov_json
    from pilotage.provenance.exports.wfformat import wfformat_trace
    from pilotage.provenance.history import history_of

    written = {"openlineage": openlineage_events, "prov-json": prov_json, "wfformat": wfformat_trace}[export_format]
    return written(history_of(record, records.content))


def export_file(records: ServedRecords, record: JobRecord, *, export_format: ExportFormat, path: Path) -> Exported:
    """Write such an export to a file, which must not exist."""
    with _new_file(path) as part, part.open("xb") as file:
        for piece in export_text(records, record, export_format=export_format):
            file.write(piece)
    return Exported(str(path))


def export_crate(records: ServedRecords, record: JobRecord, *, path: Path, with_contents: bool) -> Exported:
    """Write the crate of a record to a folder, or to an archive if the path ends with .zip; it must not exist.

    With contents, it also has the files of the job that are not in the record, as far as they are still where they were.
    """
    from pilotage.provenance.exports.crate import LICENSE_TAG, write_crate
    from pilotage.provenance.exports.shared import stated_properties
    from pilotage.provenance.history import history_of

    history, annotations = history_of(record, records.content), records.annotations(record.job)
    opened = _zip_crate if path.suffix == _ZIP else _folder_crate
    with _new_file(path) as part, opened(part) as folder:
        copied = _Copies(Path(history.job.folder), folder)
        write_crate(
            history,
            folder,
            read_part=records.content,
            annotations=annotations,
            copy_file=copied.copy if with_contents else None,
        )
    licensed = LICENSE_TAG in stated_properties(history.job, annotations)
    return Exported(str(path), copied.count, tuple(copied.missing), licensed)


def import_crate(records: ServedRecords, path: Path) -> Imported:
    """Upload the record of a crate, durable on return; what others added to it becomes one file that is added to it.

    Its texts are added again, too, by who imports them, so that they are found; the file tells who wrote them, and when.
    Raises `BadCrate`, `ServerError` and `RecordStoreError`.
    """
    from pilotage.model.records import foreign
    from pilotage.provenance.exports.crate_reader import read_crate

    with _crate_files(path) as files:
        crated = read_crate(files)
        record = crated.record
        stored = records.record(record.job, record.revision)
        if stored is not None and foreign(stored) == record:
            return Imported(record.job, record.revision, 0, new=False, files=crated.other_files)
        sent = records.upload(record, crated.read_part)
        if crated.annotations:
            lines = [msgspec.json.encode(each) + b"\n" for each in crated.annotations]
            records.attach(record.job, IMPORTED, b"".join(lines))
            known = {(each.name, each.text) for each in records.annotations(record.job)}
            for each in crated.annotations:
                if each.text is not None and TAG_NAME.fullmatch(each.name) and (each.name, each.text) not in known:
                    records.annotate(record.job, each.name, each.text)
    return Imported(record.job, record.revision, sent, new=True, files=crated.other_files)


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A path to write to, which gets its name when all is written."""
    if path.exists() or path.is_symlink():
        raise ExportTarget("there is a file or folder of this name already", subject=str(path))
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.rename(path)
    except OSError as fault:
        raise ExportTarget(f"it cannot be written: {fault.strerror or fault}", subject=str(path)) from fault
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


class _FolderCrate:
    """A crate in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as opened:
            for piece in pieces:
                opened.write(piece)


@contextmanager
def _folder_crate(folder: Path) -> Iterator[CrateFolder]:
    folder.mkdir(parents=True)
    yield _FolderCrate(folder)


class _ZipCrate:
    """A crate in an archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        about = zipfile.ZipInfo(path, _ZIP_DATE)
        about.compress_type = zipfile.ZIP_DEFLATED
        with self._archive.open(about, "w", force_zip64=True) as opened:
            for piece in pieces:
                opened.write(piece)


@contextmanager
def _zip_crate(path: Path) -> Iterator[CrateFolder]:
    with zipfile.ZipFile(path, "x") as archive:
        yield _ZipCrate(archive)


class _Copies:
    """Copies files of a job into its crate, if they are still what was recorded."""

    def __init__(self, source: Path, crate: CrateFolder) -> None:
        self._source = source
        self._crate = crate
        self.count = 0
        self.missing: list[str] = []

    def copy(self, use: FileUse, path: str) -> bool:
        """Copy a file; false if it is not there, or has another content."""
        file = self._source / use.name
        try:
            same = use.sha256 is not None and file.is_file() and _digest(_pieces(file)) == use.sha256
        except OSError:
            same = False
        if not same:
            self.missing.append(use.name)
            return False
        self._crate.write(path, _pieces(file))
        self.count += 1
        return True


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        yield from _pieces_of(opened)


def _pieces_of(opened: IO[bytes]) -> Iterator[bytes]:
    while piece := opened.read(_PIECE_BYTES):
        yield piece


def _digest(pieces: Iterable[bytes]) -> str:
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
    return hashed.hexdigest()


@contextmanager
def _crate_files(path: Path) -> Iterator[CrateFiles]:
    """The files of a crate that somebody brings."""
    from pilotage.provenance.exports.crate_reader import BadCrate

    if path.is_dir():
        yield _FolderFiles(path)
        return
    try:
        archive = zipfile.ZipFile(path)
    except _ARCHIVE_FAULTS as fault:
        raise BadCrate(f"this is neither a folder nor an archive: {fault}", subject=str(path)) from None
    with archive:
        yield _ZipFiles(archive)


class _FolderFiles:
    """A folder, of which no link is followed: it may lead anywhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str, *, bytes_max: int) -> bytes:
        from pilotage.provenance.exports.crate_reader import BadCrate

        try:
            with self._opened(path, bytes_max) as file:
                return file.read(bytes_max + 1)
        except OSError as fault:
            raise BadCrate(f"a file of the crate cannot be read: {fault.strerror or fault}", subject=path) from None

    def digest(self, path: str, *, bytes_max: int) -> str | None:
        from pilotage.provenance.exports.crate_reader import BadCrate

        try:
            with self._opened(path, bytes_max) as file:
                return _digest(_pieces_of(file))
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise BadCrate(f"a file of the crate cannot be read: {fault.strerror or fault}", subject=path) from None

    @contextmanager
    def _opened(self, path: str, bytes_max: int) -> Iterator[BinaryIO]:
        from pilotage.provenance.exports.crate_reader import BadCrate

        *folders, name = path.split("/")
        opened = []
        try:
            opened.append(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY))
            for each in folders:
                opened.append(os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
            opened.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1]))
            found = os.fstat(opened[-1])
            if not stat.S_ISREG(found.st_mode):
                raise BadCrate("this is no plain file", subject=path)
            if found.st_size > bytes_max:
                raise _too_large(path, found.st_size, bytes_max)
            with os.fdopen(opened.pop(), "rb") as file:
                yield file
        finally:
            for each_opened in opened:
                os.close(each_opened)


class _ZipFiles:
    """An archive; nothing of it is unpacked, and nothing is read beyond the size that is expected."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        from pilotage.provenance.exports.crate_reader import BadCrate

        self._archive = archive
        self._members = {each.filename: each for each in archive.infolist()}
        if len(self._members) != len(archive.infolist()):
            raise BadCrate("the archive has two files of one name")

    def read(self, path: str, *, bytes_max: int) -> bytes:
        from pilotage.provenance.exports.crate_reader import BadCrate

        if path not in self._members:
            raise BadCrate("a file of the crate is missing", subject=path)
        with self._opened(path, bytes_max) as file:
            return file.read(bytes_max + 1)

    def digest(self, path: str, *, bytes_max: int) -> str | None:
        if path not in self._members:
            return None
        with self._opened(path, bytes_max) as file:
            return _digest(_pieces_of(file))  # the archive gives no more than the size that it states

    @contextmanager
    def _opened(self, path: str, bytes_max: int) -> Iterator[IO[bytes]]:
        from pilotage.provenance.exports.crate_reader import BadCrate

        member = self._members[path]
        if member.file_size > bytes_max:
            raise _too_large(path, member.file_size, bytes_max)
        try:
            with self._archive.open(member) as opened:
                yield opened
        except _ARCHIVE_FAULTS as fault:
            raise BadCrate(f"a file of the crate cannot be read: {fault}", subject=path) from None


def _too_large(path: str, size_bytes: int, bytes_max: int) -> PilotageError:
    from pilotage.provenance.exports.crate_reader import BadCrate

    return BadCrate(
        "a file of the crate is larger than it may be",
        subject=path,
        expected=f"at most {bytes_max} bytes",
        got=f"{size_bytes} bytes",
    )
