"""Reads the record out of a crate that `export` wrote, whoever brings it: nothing in it is believed unchecked.

The crate names the file of the record and its digest, the record names its parts and the files of the job by digest. Paths that leave the crate, other digests,
and files larger than they may be are refused, before anything is stored.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.events.events import JOB_ID
from pilotage.model.records import (
    SHA256,
    Annotation,
    JobRecord,
    RecordPart,
    check_foreign,
    decoded_record,
    foreign,
    is_part_name,
)
from pilotage.provenance.assembly import NotADump
from pilotage.provenance.exports.crate import ANNOTATIONS, FILES, METADATA, PARTS, RECORD, RECORD_FORMAT, WORKFLOW
from pilotage.provenance.exports.shared import is_below
from pilotage.provenance.foreign_records import verify_foreign
from pilotage.provenance.history import History

METADATA_BYTES_MAX = 1024 * 1024 * 1024
RECORD_BYTES_MAX = 64 * 1024 * 1024
PART_BYTES_MAX = 256 * 1024 * 1024
CRATE_BYTES_MAX = 64 * 1024 * 1024 * 1024
"""All parts of a record together."""


class BadCrate(PilotageError):
    """The crate has no record, or is damaged, or was made to do harm; nothing of it was stored."""


class CrateFiles(Protocol):
    """The files of a crate: a folder, or an archive."""

    def read(self, path: str, *, bytes_max: int) -> bytes:
        """The content of a file below the crate. Raises `BadCrate` if it is missing, no plain file, or larger."""
        ...

    def digest(self, path: str, *, bytes_max: int) -> str | None:
        """The sha256 of a file below the crate, None if it is missing. Raises `BadCrate` if it is no plain file, or larger."""
        ...


class CratedRecord:
    """The record of a crate, checked; its parts are read when they are asked for, and checked then."""

    def __init__(
        self, files: CrateFiles, record: JobRecord, annotations: tuple[Annotation, ...], *, folder: str
    ) -> None:
        """Made by `read_crate`."""
        self.other_files: tuple[str, ...] = ()  # in the crate, and not in the record
        self.record = record
        self.annotations = annotations
        self._files = files
        self._folder = folder
        extra = [each.part for each in annotations if each.part is not None]
        self._parts = {part.sha256: part for part in (*record.parts, *extra)}

    def read_part(self, sha256: str) -> bytes:
        """The content of a part, verified. Raises `BadCrate`."""
        part = self._parts.get(sha256)
        if part is None:
            raise BadCrate("the record does not name this part", subject=sha256[:80])
        content = self._files.read(f"{self._folder}{sha256}", bytes_max=part.size_bytes)
        if len(content) != part.size_bytes or hashlib.sha256(content).hexdigest() != sha256:
            raise BadCrate(
                "a part does not have the content that its name promises", subject=f"{part.kind} {part.name}"
            )
        return content


def read_crate(files: CrateFiles) -> CratedRecord:
    """The record of a crate. Raises `BadCrate`; the whole record was read and understood otherwise."""
    found = _find_record(files.read(METADATA, bytes_max=METADATA_BYTES_MAX))
    content = files.read(found.path, bytes_max=RECORD_BYTES_MAX)
    if hashlib.sha256(content).hexdigest() != found.sha256:
        raise BadCrate("the record does not have the digest that the crate states", subject=found.path)
    try:
        record = foreign(decoded_record(content))
        check_foreign(record)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as fault:
        raise BadCrate(f"the record cannot be read: {fault}", subject=found.path) from None
    annotations = _annotations(files.read(found.annotations, bytes_max=RECORD_BYTES_MAX)) if found.annotations else ()
    _check(record, annotations)
    folder = f"{posixpath.dirname(found.path)}/{posixpath.basename(PARTS.rstrip('/'))}/".lstrip("/")
    crated = CratedRecord(files, record, annotations, folder=folder)
    try:
        history = verify_foreign(record, crated.read_part)
    except NotADump as fault:
        raise BadCrate(str(fault), subject=found.path) from None
    crated.other_files = tuple(_checked_files(files, history))
    return crated


def _checked_files(files: CrateFiles, history: History) -> Iterator[str]:
    """The names of files of the job that are in the crate and not in the record. Raises `BadCrate` if any is not as recorded."""
    kept = {part.sha256 for part in history.record.parts}
    named: dict[str, dict[str, int]] = {}  # sizes by sha256: a job may make a file several times
    for package in history.packages():
        for use in package.files:
            if use.sha256 is not None and is_below(use.name):
                size = use.size_bytes if use.size_bytes is not None else CRATE_BYTES_MAX
                named.setdefault(use.name, {})[use.sha256] = size
    for name, contents in named.items():
        digest = _digest(files, f"{FILES}{name}", contents)
        if digest is not None and digest not in kept:
            yield name
    definition = history.job.definition_text.encode()
    _digest(files, WORKFLOW, {hashlib.sha256(definition).hexdigest(): len(definition)})


def _digest(files: CrateFiles, path: str, contents: Mapping[str, int]) -> str | None:
    digest = files.digest(path, bytes_max=max(contents.values()))
    if digest is not None and digest not in contents:
        raise BadCrate("a file of the crate does not have the content that was recorded", subject=path)
    return digest


class _Entity(msgspec.Struct, frozen=True, kw_only=True):
    id: str = msgspec.field(name="@id")
    conforms_to: Any = msgspec.field(name="conformsTo", default=None)
    sha256: Any = None


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    graph: list[_Entity] = msgspec.field(name="@graph")


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    sha256: str
    annotations: str = ""


def _find_record(metadata: bytes) -> _Found:
    """The file of the record, and that of annotations, by what the metadata of a crate says."""
    try:
        entities = msgspec.json.decode(metadata, type=_Metadata).graph
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadCrate(f"the metadata cannot be read: {fault}", subject=METADATA) from None
    records = [each for each in entities if _conforms(each.conforms_to)]
    if len(records) != 1:
        raise BadCrate(
            "there is no record in this crate" if not records else "the crate has more than one record",
            expected=f"one file that conforms to {RECORD_FORMAT}",
            next_step="export it with  pilotage provenance export JOB --format ro-crate",
        )
    sha256 = records[0].sha256
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise BadCrate("the crate does not state the sha256 of the record", subject=records[0].id[:200])
    path = _safe_path(records[0].id)
    beside = posixpath.join(posixpath.dirname(path), posixpath.basename(ANNOTATIONS))
    return _Found(path=path, sha256=sha256, annotations=beside if any(each.id == beside for each in entities) else "")


def _conforms(stated: Any) -> bool:
    values = stated if isinstance(stated, list) else [stated]
    return any(isinstance(each, dict) and each.get("@id") == RECORD_FORMAT for each in values)


def _safe_path(identifier: str) -> str:
    """The path of a file below the crate, from its identifier."""
    path = unquote(identifier).removeprefix("./")
    split = urlsplit(identifier)
    if split.scheme or split.netloc or not is_below(path):
        raise BadCrate("the path of the record leads out of the crate", subject=identifier[:200], expected=RECORD)
    return path


def _annotations(content: bytes) -> tuple[Annotation, ...]:
    try:
        return tuple(msgspec.json.decode(line, type=Annotation) for line in content.splitlines())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadCrate(f"the annotations cannot be read: {fault}", subject=ANNOTATIONS) from None


def _check(record: JobRecord, annotations: tuple[Annotation, ...]) -> None:
    if not JOB_ID.fullmatch(record.job) or record.revision < 1 or any(each.job != record.job for each in annotations):
        raise BadCrate("the record is of no job, or the annotations of another", subject=record.job[:80])
    parts: list[RecordPart] = [*record.parts, *(each.part for each in annotations if each.part is not None)]
    for part in parts:
        if not is_part_name(part.name):
            raise BadCrate("this cannot be the name of a part", subject=repr(part.name[:80]))
        if not 0 <= part.size_bytes <= PART_BYTES_MAX:
            raise BadCrate(
                "a part is larger than a part may be",
                subject=f"{part.kind} {part.name[:80]}",
                expected=f"at most {PART_BYTES_MAX} bytes",
                got=f"{part.size_bytes} bytes",
            )
    if sum(part.size_bytes for part in parts) > CRATE_BYTES_MAX:
        raise BadCrate("the parts are larger than a record may be", expected=f"at most {CRATE_BYTES_MAX} bytes")
