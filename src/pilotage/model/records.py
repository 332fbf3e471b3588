"""The record of a job: what was run, where and with what, as parts that are named by their content."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pilotage.model.events.payloads import AccessRule

RECORD_VERSION = 1
"""Raised when a field changes its meaning; records of every earlier version stay readable."""

SHA256 = re.compile(r"[0-9a-f]{64}")
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

PartKind = Literal["life-log", "definition", "list", "file", "input", "output", "log", "core", "environment", "custom"]
"""`file` is what came with the submission (programs, scripts), `input` and `output` are small files that were read and made."""


class RecordPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a record: what it is, its name within the record, and the digest by which it is stored."""

    kind: PartKind
    name: str
    sha256: Sha256
    size_bytes: int


class RecordNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A computer on which attempts ran, as its agent described it."""

    node: str
    site: str = ""
    system: str = ""
    cores: int = 0
    memory_bytes: int = 0
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
    revision: int
    owner: str
    name: str
    state: str
    made_at: float
    made_by: str = ""  # the version of pilotage
    heard_at: float = 0.0  # when the last event was received that it has
    submitted_at: float | None = None
    ended_at: float | None = None
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
    at: float
    author: str
    text: str | None = None
    part: RecordPart | None = None


def encoded_record(record: JobRecord) -> bytes:
    """The canonical bytes of a record: the same record gives the same bytes."""
    return msgspec.json.encode(record, order="deterministic")


def decoded_record(content: bytes) -> JobRecord:
    """A record from its bytes. Raises `msgspec.DecodeError`, also for a version that is newer than this program."""
    about: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    if not 1 <= int(about.get("version", 0)) <= RECORD_VERSION:
        raise msgspec.DecodeError(
            f"a record of version {about.get('version')}: this pilotage reads up to {RECORD_VERSION}"
        )
    return msgspec.convert(about, JobRecord)
