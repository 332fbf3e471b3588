"""The record of a job from its dump, and the dump from the record: nothing of a dump is lost on the way.

The events of a dump, with its first line, are one part, the life log. Each content is a part of its own, so that jobs which share
a program or a definition share it in the storage, too. What is not in a dump (logs, files that were made) is added by the caller.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from pilotage.book.fold.facts import read_tags, tags_of
from pilotage.book.rows.rows import JobRow, NodeRow
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import AccessRule
from pilotage.model.jobs.submission import DEFINITION, FILE, ORIGIN, Origin
from pilotage.model.records import RECORD_VERSION, JobRecord, PartKind, RecordNode, RecordPart

NODES_MAX = 1000
"""Nodes that a record describes; the life log names all."""

_CONTENT = re.compile(rb'\{"content":"([0-9a-f]{64})","base64":"([A-Za-z0-9+/=]*)"\}\n')
_NODE = re.compile(rb'"node":("(?:[^"\\]|\\.)*")')
_SITE = re.compile(rb'"site":("(?:[^"\\]|\\.)*")')
_EVENT, _END = b'{"event":', b'{"end":'
_text = msgspec.json.Decoder(str).decode


class NotADump(PilotageError):
    """The lines are not the dump of this job."""


class _End(msgspec.Struct, frozen=True, kw_only=True):
    end: bool
    contents: int
    events: int
    sha256: str


class Extra(NamedTuple):
    """A part that is in no dump: a log, a core file, a small output."""

    kind: PartKind
    name: str
    content: bytes


class Assembled(NamedTuple):
    """A record, and the contents of its parts with their kinds."""

    record: JobRecord
    contents: list[tuple[str, bytes]]


def assemble(
    row: JobRow,
    lines: Iterable[bytes],
    *,
    nodes: Callable[[Iterable[str]], Iterable[NodeRow]],
    extras: Iterable[Extra] = (),
    made_at: float,
    revision: int,
) -> Assembled:
    """The record of a job that is over, from its row and its dump; `nodes` describes computers by name. Raises `NotADump`."""
    life_log, stored = _split(row.job, lines)
    kinds = _kinds(row, stored)
    parts = [_part("life-log", "events.jsonl", life_log)]
    contents: list[tuple[str, bytes]] = [("life-log", life_log)]
    for sha256, content in stored.items():
        kind, name = kinds.get(sha256, ("list", sha256[:12]))
        parts.append(RecordPart(kind=kind, name=name, sha256=sha256, size_bytes=len(content)))
        contents.append((kind, content))
    for extra in extras:
        parts.append(_part(extra.kind, extra.name, extra.content))
        contents.append((extra.kind, extra.content))
    record = JobRecord(
        version=RECORD_VERSION,
        job=row.job,
        revision=revision,
        owner=row.owner,
        name=row.name,
        state=row.state,
        made_at=made_at,
        submitted_at=row.submitted_at,
        ended_at=row.entered_at,
        access=msgspec.json.decode(row.access, type=tuple[AccessRule, ...]),
        tags=tags_of(read_tags(row.tags)),
        sites=tuple(_names(_SITE, life_log)),
        nodes=tuple(_node(each) for each in nodes(_names(_NODE, life_log)[:NODES_MAX])),
        parts=tuple(parts),
    )
    return Assembled(record, contents)


def dump_of(record: JobRecord, read_part: Callable[[str], bytes]) -> Iterator[bytes]:
    """The lines of the dump that a record was made from. Raises what `read_part` does, and `NotADump`."""
    log = record.part("life-log")
    if log is None:
        raise NotADump("the record has no life log", subject=f"job {record.job}")
    whole = read_part(log.sha256)
    head, _, events = whole.partition(b"\n")
    hashed = hashlib.sha256()
    contents = 0

    def line(text: bytes) -> bytes:
        hashed.update(text)
        return text

    yield line(head + b"\n")
    for part in record.parts:
        if part.kind in ("definition", "list", "file"):
            contents += 1
            encoded = base64.b64encode(read_part(part.sha256))
            yield line(b'{"content":"%s","base64":"%s"}\n' % (part.sha256.encode(), encoded))
    for each in events.splitlines(keepends=True):
        yield line(each)
    end = _End(end=True, contents=contents, events=events.count(b"\n"), sha256=hashed.hexdigest())
    yield msgspec.json.encode(end) + b"\n"


def _split(job: str, lines: Iterable[bytes]) -> tuple[bytes, dict[str, bytes]]:
    """The life log of a dump, and its contents by digest; checked against its last line."""
    hashed, kept, contents, end = hashlib.sha256(), list[bytes](), dict[str, bytes](), b""
    for line in lines:
        if line.startswith(_END):
            end = line
            break
        hashed.update(line)
        if line.startswith(_EVENT) or not kept:
            kept.append(line)
            continue
        found = _CONTENT.fullmatch(line)
        if found is None:
            raise NotADump("a line is neither an event nor a content", subject=f"job {job}")
        try:
            contents[found[1].decode()] = base64.b64decode(found[2], validate=True)
        except binascii.Error as fault:
            raise NotADump(f"a content cannot be decoded: {fault}", subject=f"job {job}") from None
    try:
        last = msgspec.json.decode(end, type=_End)
        header: Any = msgspec.json.decode(kept[0])
    except (msgspec.DecodeError, IndexError) as fault:
        raise NotADump(f"it is not whole: {fault}", subject=f"job {job}") from None
    if not isinstance(header, dict) or header.get("job") != job:
        raise NotADump("it is the dump of another job", subject=f"job {job}")
    if (last.contents, last.events, last.sha256) != (len(contents), len(kept) - 1, hashed.hexdigest()):
        raise NotADump("it does not match its last line", subject=f"job {job}")
    for sha256, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sha256:
            raise NotADump("a content does not match its digest", subject=f"job {job}", got=sha256)
    return b"".join(kept), contents


def _kinds(row: JobRow, contents: Mapping[str, bytes]) -> dict[str, tuple[PartKind, str]]:
    """What each content of a job is, and its name: that of the document's folder for a file."""
    named = _texts(row.lists)
    files: dict[str, str] = {}
    if (origin := contents.get(named.get(ORIGIN, ""))) is not None:
        try:
            captured = msgspec.json.decode(origin, type=Origin).captured
            files = {each.sha256: name for name, each in captured.items() if each.content}
        except msgspec.DecodeError:
            pass  # of a version with other fields: the files keep their numbers as names
    found: dict[str, tuple[PartKind, str]] = {}
    for name, sha256 in named.items():
        found[sha256] = ("file", files.get(sha256, name)) if name.startswith(FILE) else ("list", name)
    for sha256, name in files.items():
        found.setdefault(sha256, ("file", name))
    if row.definition is not None:
        found[row.definition] = "definition", DEFINITION
    return found


def _part(kind: PartKind, name: str, content: bytes) -> RecordPart:
    return RecordPart(kind=kind, name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def _names(pattern: re.Pattern[bytes], life_log: bytes) -> list[str]:
    return sorted({_text(each) for each in set(pattern.findall(life_log))})


def _texts(encoded: str) -> dict[str, str]:
    return msgspec.json.decode(encoded, type=dict[str, str])


def _node(row: NodeRow) -> RecordNode:
    return RecordNode(
        node=row.node,
        site=row.site or "",
        system=row.system,
        cores=row.cores,
        memory_bytes=row.memory_bytes,
        software=_texts(row.software),
        environment=_texts(row.environment),
    )
