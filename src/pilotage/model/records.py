"""The record of a job: what was run, where and with what, as parts that are named by their content."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pilotage.model.events.events import TIME_MAX
from pilotage.model.events.payloads import AccessRule

RECORD_VERSION = 1
"""Raised when a field changes its meaning; records of every earlier version stay readable."""

SHA256 = re.compile(r"[0-9a-f]{64}")
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

REVISION_MAX = 2**31 - 1
Size = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Time = Annotated[float, Meta(ge=0, le=TIME_MAX)]

FOREIGN_REVISION_MAX = 1_000_000
"""The last revision that another service may send: later ones stay free for records that are made here."""
FOREIGN_PARTS_MAX = 100_000
FOREIGN_AHEAD_SECONDS = 86_400.0
"""How far the clock of another service may be ahead."""
NAME_MAX = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

PartKind = Literal["life-log", "definition", "list", "file", "input", "output", "log", "core", "environment", "custom"]
"""`file` is what came with the submission (programs, scripts), `input` and `output` are small files that were read and made."""


class RecordPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a record: what it is, its name within the record, and the digest by which it is stored."""

    kind: PartKind
    name: str
    sha256: Sha256
    size_bytes: Size


class RecordNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A computer on which attempts ran, as its agent described it."""

    node: str
    site: str = ""
    system: str = ""
    cores: Size = 0
    memory_bytes: Size = 0
    software: dict[str, str] = {}
    environment: dict[str, str] = {}
    os_release: str = ""
    kernel: str = ""
    cpu_model: str = ""
    libc: str = ""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a job that is over; a later event makes another revision, and the earlier ones stay."""

    version: int
    job: str
    revision: Annotated[int, Meta(ge=1, le=REVISION_MAX)]
    owner: str
    name: str
    state: str
    made_at: Time
    made_by: str = ""  # the version of pilotage
    heard_at: Time = 0.0  # when the last event was received that it has
    book_position: Size = 0  # of the book that it was made from, here; 0 for one that came from elsewhere
    submitted_at: Time | None = None
    ended_at: Time | None = None
    access: tuple[AccessRule, ...] = ()
    tags: dict[str, str] = {}
    sites: tuple[str, ...] = ()
    nodes: tuple[RecordNode, ...] = ()
    parts: tuple[RecordPart, ...] = ()

    def part(self, kind: PartKind, name: str = "") -> RecordPart | None:
        """The first part of a kind, or that with a name."""
        return next((each for each in self.parts if each.kind == kind and name in ("", each.name)), None)


class Annotation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user added to a record after it was made: a text, or a part with the content of a file."""

    job: str
    name: str
    at: Time
    author: str
    text: str | None = None
    part: RecordPart | None = None


class Deletion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That the record of a job was deleted: when and by whom, and who could read it, so that their indexes drop it."""

    job: str
    at: float
    author: str
    owner: str = ""
    access: tuple[AccessRule, ...] = ()


def encoded_record(record: JobRecord) -> bytes:
    """The canonical bytes of a record: the same record gives the same bytes."""
    return msgspec.json.encode(record, order="deterministic")


def decoded_record(content: bytes) -> JobRecord:
    """A record from its bytes. Raises `msgspec.DecodeError`, also for a version that is newer than this program."""
    try:
        about: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
        version = about.get("version", 0)
        if not isinstance(version, int) or not 1 <= version <= RECORD_VERSION:
            raise msgspec.DecodeError(f"a record of version {version}: this pilotage reads up to {RECORD_VERSION}")
        return msgspec.convert(about, JobRecord)
    except (RecursionError, UnicodeDecodeError) as fault:
        raise msgspec.DecodeError(str(fault)) from None


class BadForeignRecord(ValueError):
    """A record of another service says what none that was made by pilotage does."""


def foreign(record: JobRecord) -> JobRecord:
    """A record as one that was not made from the book here, whatever it says."""
    return msgspec.structs.replace(record, book_position=0)


def check_foreign(record: JobRecord) -> None:
    """Raise `BadForeignRecord` if a record that others made names what cannot be, or is too large to be taken."""
    if record.revision > FOREIGN_REVISION_MAX:
        raise BadForeignRecord(f"a record of another service has at most {FOREIGN_REVISION_MAX:,} revisions")
    if len(record.parts) > FOREIGN_PARTS_MAX:
        raise BadForeignRecord(f"a record of another service has at most {FOREIGN_PARTS_MAX:,} parts")
    texts = (
        record.owner,
        record.name,
        record.state,
        record.made_by,
        *record.sites,
        *(each.node for each in record.nodes),
    )
    for text in (*texts, *record.tags):
        if len(text) > NAME_MAX or _CONTROL.search(text):
            raise BadForeignRecord(f"this cannot be a name: {text[:80]!r}")
    sizes: dict[str, int] = {}
    for part in record.parts:
        if not is_part_name(part.name):
            raise BadForeignRecord(f"this cannot be the name of a part: {part.name[:80]!r}")
        if sizes.setdefault(part.sha256, part.size_bytes) != part.size_bytes:
            raise BadForeignRecord(f"the part {part.sha256[:12]} has two sizes")


def is_part_name(name: str) -> bool:
    """Whether a part may have this name: a path below a folder, of plain characters."""
    return (
        0 < len(name) <= NAME_MAX
        and not _CONTROL.search(name)
        and not name.startswith("/")
        and ".." not in name.split("/")
    )
