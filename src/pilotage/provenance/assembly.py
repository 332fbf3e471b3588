"""The record of a job from its dump, and the dump from the record: nothing of a dump is lost on the way.

The events of a dump, with its first line, are the life log, in parts of a few megabytes: a later revision of a long job shares
all but the last with the one before. Each content is a part of its own, so that jobs which share a program or a definition
share it in the storage, too. What is not in a dump (logs, files that were made) is added by the caller.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from pilotage.book.fold.facts import read_tags, tags_of
from pilotage.book.rows.rows import JobRow, NodeRow
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import AccessRule, InputInPlace, NodeDescribed, OutputFile
from pilotage.model.jobs.submission import CAPTURED, CUSTOM, DEFINITION, FILE, Captured
from pilotage.model.records import RECORD_VERSION, JobRecord, PartKind, RecordNode, RecordPart
from pilotage.model.version import VERSION
from pilotage.ports import DumpParts

NODES_MAX = 1000
"""Nodes that a record describes; the life log names all."""
FILES_BYTES_MAX = 64 * 1024 * 1024
"""Total size of the inputs and outputs that a record keeps."""
FILES_MAX = 50_000
"""Inputs and outputs that a record keeps: other services take no records of too many parts."""
LIFE_LOG_BYTES = 4 * 1024 * 1024
"""Size of a part of a life log."""

_CONTENT = re.compile(rb'\{"content":"([0-9a-f]{64})","base64":"([A-Za-z0-9+/=]*)"\}\n')
_NODE, _SITE = b'"node":"', b'"site":"'
_REST = re.compile(rb'(?:[^"\\]|\\.)*"')  # of a text, up to its end
_MANIFEST, _DESCRIBED = b'"manifest":[', b'"type":"InputsDescribed"'
_NODE_DESCRIBED = b'"type":"NodeDescribed"'
_EVENT, _END = b'{"event":', b'{"end":'
_CONTENT_KINDS = ("definition", "list", "file", "custom")
_text = msgspec.json.Decoder(str).decode


class NotADump(PilotageError):
    """The lines are not the dump of this job."""


class _End(msgspec.Struct, frozen=True, kw_only=True):
    end: bool
    contents: int
    events: int
    sha256: str


class _DataWithFiles(msgspec.Struct, frozen=True, kw_only=True):
    manifest: tuple[OutputFile, ...] | None = None
    files: tuple[InputInPlace, ...] = ()


class _EventWithFiles(msgspec.Struct, frozen=True, kw_only=True):
    data: _DataWithFiles


class _WithFiles(msgspec.Struct, frozen=True, kw_only=True):
    event: _EventWithFiles


class _NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    data: NodeDescribed


class _Described(msgspec.Struct, frozen=True, kw_only=True):
    event: _NodeEvent


class _OfJob(msgspec.Struct, frozen=True, kw_only=True):
    job: str | None = None


class _EventOfJob(msgspec.Struct, frozen=True, kw_only=True):
    event: _OfJob


_event_of = msgspec.json.Decoder(_EventOfJob).decode


class Extra(NamedTuple):
    """A part that is in no dump: a log, a core file, a small output."""

    kind: PartKind
    name: str
    content: bytes


ReadFile = Callable[[str, int], "bytes | None"]
"""Reads an input or output by its name and size, if it is small and still there."""

AddPart = Callable[[str, bytes], str]
"""Stores a content of a kind, and returns its sha256."""


def assemble(
    row: JobRow,
    dump: Iterable[bytes] | DumpParts,
    *,
    add_part: AddPart,
    nodes: Callable[[Sequence[str]], Iterable[NodeRow]],
    sites: Callable[[str], bytes | None] = lambda _: None,
    extras: Iterable[Extra] = (),
    read_file: ReadFile | None = None,
    made_at: float,
    revision: int,
    book_position: int = 0,
    cuts: Sequence[int] = (),
    ended_as: str = "",
) -> JobRecord:
    """The record of a job that is over, from its row and its dump; `nodes` describes computers by name, `sites` the sites.

    The lines of a dump are checked against its last line; the parts of one come from the book itself.
    Inputs and outputs that `read_file` gives are kept, up to a total size. `cuts` are the sizes of the parts of an earlier life log: cut in the same places, the new one shares them.
    `ended_as` is the state in which the job ended, if it was cleared since. Raises `NotADump`; parts that were added by then belong to no record.
    """
    taken = _Dump(row.job, add_part, cuts)
    if isinstance(dump, DumpParts):
        taken.take_parts(dump, files=read_file is not None)
    else:
        for line in dump:
            taken.take(line)
        taken.finish()
    kinds = _kinds(row, taken.read_content)
    parts = list(taken.life_log)
    for sha256, content in taken.contents.items():
        for kind, name in kinds.get(sha256, [("list", sha256[:12])]):
            if add_part(kind, content) != sha256:
                raise taken.fault("a content does not match its digest")
            parts.append(RecordPart(kind=kind, name=name, sha256=sha256, size_bytes=len(content)))
    described = ((site, sites(site)) for site in sorted(taken.sites))
    configured = [Extra("environment", f"sites/{site}.json", told) for site, told in described if told is not None]
    for extra in chain(configured, extras, _files(taken, read_file)):
        sha256 = add_part(extra.kind, extra.content)
        parts.append(RecordPart(kind=extra.kind, name=extra.name, sha256=sha256, size_bytes=len(extra.content)))
    return JobRecord(
        version=RECORD_VERSION,
        job=row.job,
        revision=revision,
        owner=row.owner,
        name=row.name,
        state=ended_as or row.state,
        made_at=made_at,
        made_by=VERSION,
        heard_at=row.heard_at,
        book_position=book_position,
        submitted_at=row.submitted_at,
        ended_at=row.entered_at,
        access=msgspec.json.decode(row.access, type=tuple[AccessRule, ...]),
        tags=tags_of(read_tags(row.tags)),
        sites=tuple(sorted(taken.sites)),
        nodes=tuple(_node(each, taken.software) for each in nodes(sorted(taken.nodes)[:NODES_MAX])),
        parts=tuple(parts),
    )


def verify(record: JobRecord, read_part: Callable[[str], bytes]) -> None:
    """Raise `NotADump` unless the parts of a record are the whole life of its job, and of no other; and what `read_part` raises."""
    dump = _Dump(record.job, lambda _, content: hashlib.sha256(content).hexdigest(), ())
    for line in dump_of(record, read_part):
        try:
            if line.startswith(_EVENT) and _event_of(line).event.job != record.job:
                raise dump.fault("it has an event of another job")
            dump.take(line)
        except (msgspec.DecodeError, RecursionError) as fault:
            raise dump.fault(f"a line cannot be read: {fault}") from None
    dump.finish()


def dump_of(record: JobRecord, read_part: Callable[[str], bytes]) -> Iterator[bytes]:
    """The lines of the dump that a record was made from. Raises what `read_part` does, and `NotADump`."""
    log = [part for part in record.parts if part.kind == "life-log"]
    if not log:
        raise NotADump("the record has no life log", subject=f"job {record.job}")
    hashed = hashlib.sha256()
    contents = events = 0

    def line(text: bytes) -> bytes:
        hashed.update(text)
        return text

    head, *first = read_part(log[0].sha256).splitlines(keepends=True) or [b""]
    yield line(head)
    contained: set[str] = set()
    for part in record.parts:
        if part.kind in _CONTENT_KINDS and part.sha256 not in contained:
            contained.add(part.sha256)
            contents += 1
            encoded = base64.b64encode(read_part(part.sha256))
            yield line(b'{"content":"%s","base64":"%s"}\n' % (part.sha256.encode(), encoded))
    for number, part in enumerate(log):
        for each in first if number == 0 else read_part(part.sha256).splitlines(keepends=True):
            events += 1
            yield line(each)
    yield msgspec.json.encode(_End(end=True, contents=contents, events=events, sha256=hashed.hexdigest())) + b"\n"


def _files(dump: _Dump, read_file: ReadFile | None) -> Iterator[Extra]:
    """Those inputs and outputs that are still as they were read and staged."""
    if read_file is None:
        return
    left_bytes, left_files = FILES_BYTES_MAX, FILES_MAX
    for kind, name, size_bytes, sha256 in dump.files():
        if size_bytes > left_bytes or not left_files:
            continue
        content = read_file(name, size_bytes)
        if content is not None and hashlib.sha256(content).hexdigest() == sha256:
            left_bytes, left_files = left_bytes - len(content), left_files - 1
            yield Extra(kind, name, content)


class _Dump:
    """A dump on its way into parts, checked against its last line."""

    def __init__(self, job: str, add_part: AddPart, cuts: Sequence[int]) -> None:
        self.life_log: list[RecordPart] = []
        self.contents: dict[str, bytes] = {}
        self.sites: set[str] = set()
        self.nodes: set[str] = set()
        self.software: dict[str, dict[str, str]] = {}  # by node, as attempts told it
        self._inputs: dict[str, InputInPlace] = {}
        self._outputs: dict[str, OutputFile] = {}
        self._job = job
        self._add_part = add_part
        self._cuts = list(reversed(cuts))
        self._hashed = hashlib.sha256()
        self._pieces: list[bytes] = []  # each of whole lines
        self._bytes = 0
        self._events = -1  # without the first line
        self._end: _End | None = None

    def take(self, line: bytes) -> None:
        """Take the next line."""
        if self._end is not None:
            raise self.fault("there are more lines after the last one")
        if line.startswith(_END):
            self._end = self._decoded(line)
            return
        self._hashed.update(line)
        if self._events < 0:
            self._check_header(line)
        elif not line.startswith(_EVENT):
            self._take_content(line)
            return
        elif _MANIFEST in line or _DESCRIBED in line:
            self._take_files(line)
        self._events += 1
        self._add(line)

    def take_parts(self, dump: DumpParts, *, files: bool) -> None:
        """Take a dump that the book gave in parts; `files` says whether inputs and outputs are asked for later."""
        self._add(dump.header)
        self.contents.update(dump.contents)
        for piece in dump.events:
            if files and (_MANIFEST in piece or _DESCRIBED in piece):
                for line in piece.splitlines():
                    if _MANIFEST in line or _DESCRIBED in line:
                        self._take_files(line)
            if self._bytes + len(piece) < self._limit:
                self._add(piece)
            else:
                for line in piece.splitlines(keepends=True):
                    self._add(line)
        self._cut()

    @property
    def _limit(self) -> int:
        """The size of the part of the life log that is being filled."""
        return self._cuts[-1] if self._cuts else LIFE_LOG_BYTES

    def _add(self, lines: bytes) -> None:
        self._pieces.append(lines)
        self._bytes += len(lines)
        if self._bytes >= self._limit:
            self._cut()

    def _decoded(self, line: bytes) -> _End:
        try:
            return msgspec.json.decode(line, type=_End)
        except msgspec.DecodeError as fault:
            raise self.fault(f"its last line cannot be read: {fault}") from None

    def _check_header(self, line: bytes) -> None:
        try:
            header: Any = msgspec.json.decode(line)
        except msgspec.DecodeError as fault:
            raise self.fault(f"its first line cannot be read: {fault}") from None
        if not isinstance(header, dict) or header.get("job") != self._job:
            raise self.fault("it is the dump of another job")

    def _take_content(self, line: bytes) -> None:
        found = _CONTENT.fullmatch(line)
        if found is None:
            raise self.fault("a line is neither an event nor a content")
        try:
            content = base64.b64decode(found[2], validate=True)
        except binascii.Error as fault:
            raise self.fault(f"a content cannot be decoded: {fault}") from None
        if hashlib.sha256(content).hexdigest() != found[1].decode():
            raise self.fault("a content does not match its digest")
        self.contents[found[1].decode()] = content

    def _take_files(self, line: bytes) -> None:
        try:
            data = msgspec.json.decode(line, type=_WithFiles).event.data
        except msgspec.DecodeError as fault:
            raise self.fault(f"an event cannot be read: {fault}") from None
        for made in data.manifest or ():
            self._outputs[made.name] = made
        for read in data.files:
            self._inputs[read.name] = read

    def files(self) -> Iterator[tuple[PartKind, str, int, str]]:
        """The kind, name, size and checksum of inputs that were read in place, and of outputs."""
        for read in self._inputs.values():
            if read.sha256 is not None and read.size_bytes is not None:
                yield "input", read.name, read.size_bytes, read.sha256
        for made in self._outputs.values():
            yield "output", made.name, made.size_bytes, made.sha256

    def _cut(self) -> None:
        """End a part of the life log, unless it is empty."""
        if not self._pieces:
            return
        if self._cuts:
            self._cuts.pop()
        content = b"".join(self._pieces)
        self.sites.update(_texts_after(_SITE, content))
        self.nodes.update(_texts_after(_NODE, content))
        if _NODE_DESCRIBED in content:
            for line in content.splitlines():
                if _NODE_DESCRIBED in line:
                    event = msgspec.json.decode(line, type=_Described).event
                    self.software.setdefault(event.data.node, {}).update(event.data.software)
        sha256 = self._add_part("life-log", content)
        name = f"events-{len(self.life_log) + 1}.jsonl"
        self.life_log.append(RecordPart(kind="life-log", name=name, sha256=sha256, size_bytes=len(content)))
        self._pieces, self._bytes = [], 0

    def finish(self) -> None:
        """The last line was taken."""
        end = self._end
        if end is None:
            raise self.fault("it is not whole")
        if (end.contents, end.events, end.sha256) != (len(self.contents), self._events, self._hashed.hexdigest()):
            raise self.fault("it does not match its last line")
        self._cut()

    def read_content(self, sha256: str) -> bytes | None:
        """A content of the dump."""
        return self.contents.get(sha256)

    def fault(self, what: str) -> NotADump:
        """What is wrong with it."""
        return NotADump(what, subject=f"job {self._job}")


def _kinds(row: JobRow, read_content: Callable[[str], bytes | None]) -> dict[str, list[tuple[PartKind, str]]]:
    """What each content of a job is, and its name: that of the document's folder for a file. A content may be several things."""
    named = _texts(row.lists)
    files: dict[str, str] = {}
    if (content := read_content(named.get(CAPTURED, ""))) is not None:
        try:
            captured = msgspec.json.decode(content, type=dict[str, Captured])
            files = {name: each.sha256 for name, each in captured.items() if each.content}
        except msgspec.DecodeError:
            pass  # of a version with other fields: the files keep their numbers as names
    found: dict[str, list[tuple[PartKind, str]]] = {}
    if row.definition is not None:
        found[row.definition] = [("definition", DEFINITION)]
    for name, sha256 in files.items():
        found.setdefault(sha256, []).append(("file", name))
    for name, sha256 in named.items():
        if name.startswith(CUSTOM):
            found.setdefault(sha256, []).append(("custom", name[len(CUSTOM) :]))
        elif not name.startswith(FILE):
            found.setdefault(sha256, []).append(("list", name))
        elif sha256 not in found:
            found[sha256] = [("file", name)]
    return found


def _texts_after(key: bytes, content: bytes) -> set[str]:
    """The texts that follow a key with a quotation mark, in lines of JSON."""
    found: set[bytes] = set()
    for rest in content.split(key)[1:]:
        text = rest[: rest.find(b'"') + 1]
        if b"\\" in text:  # the quotation mark may be escaped
            whole = _REST.match(rest)
            text = whole[0] if whole is not None else b""
        found.add(text)
    return {_text(b'"' + each) for each in found if each}


def _texts(encoded: str) -> dict[str, str]:
    return msgspec.json.decode(encoded, type=dict[str, str])


def _node(row: NodeRow, told: Mapping[str, Mapping[str, str]]) -> RecordNode:
    """A node as it is known, with the versions of software that attempts of the job told of it."""
    return RecordNode(
        node=row.node,
        site=row.site or "",
        system=row.system,
        cores=row.cores,
        memory_bytes=row.memory_bytes,
        software={**_texts(row.software), **told.get(row.node, {})},
        environment=_texts(row.environment),
        os_release=row.os_release,
        kernel=row.kernel,
        cpu_model=row.cpu_model,
        libc=row.libc,
    )
