"""Makes the records of jobs that are over: the first when a job is quiet, a later revision when more was heard of it."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from pilotage.book.query.conditions import Query
from pilotage.book.rows.rows import JobRow
from pilotage.model.exchange.exchange import CORE_STREAM, LogText
from pilotage.model.records import JobRecord
from pilotage.model.states import FINAL_NAMES, State
from pilotage.ports import AttemptLogs, Journal
from pilotage.ports.records import RecordStore, sound_record
from pilotage.provenance.assembly import Extra, ReadFile, assemble

LOGS_BYTES = 4 * 1024 * 1024
"""Logs of a job are in parts of this size."""

CORE_BYTES_MAX = 256 * 1024 * 1024
"""Expanded size of a core file that is kept as a part of its own."""
CORE_NAME_MAX = 200
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+@=-]")

_encode = msgspec.json.Encoder().encode


def is_current(row: JobRow, store: RecordStore, journal: Journal) -> bool:
    """Whether the record of a job was made here, and has all that was heard of it."""
    last = sound_record(store, row.job)
    return last is not None and _has_all(last, row, journal)


def _has_all(record: JobRecord, row: JobRow, journal: Journal) -> bool:
    if not record.book_position or record.heard_at < row.heard_at:
        return False
    # The clock may have been set back since, positions only grow.
    later = journal.find_events(Query(), after=record.book_position, limit=1, job=row)
    return not later.items and not later.more


class Recorder:
    """Makes records of the jobs of a book."""

    def __init__(self, journal: Journal, store: RecordStore, *, now: Callable[[], float]) -> None:
        """Take the book, and the storage of records."""
        self._journal = journal
        self._store = store
        self._now = now

    def record(
        self,
        job: str,
        *,
        logs: AttemptLogs | None = None,
        read_file: ReadFile | None = None,
        sites: Callable[[str], bytes | None] = lambda _: None,
    ) -> JobRecord | None:
        """Make the record of a job that is over, durable on return, unless it is current; None if the job is not over."""
        position = self._journal.position()
        row = self._journal.job(job)
        if row is None or row.place == "purged" or row.state not in FINAL_NAMES:
            return None
        made = self.assembled(row, position, logs=logs, read_file=read_file, sites=sites)
        if made is None:
            return self._store.record(job)
        self._store.commit([made])
        return made

    def assembled(
        self,
        row: JobRow,
        position: int,
        *,
        logs: AttemptLogs | None = None,
        read_file: ReadFile | None = None,
        sites: Callable[[str], bytes | None] = lambda _: None,
    ) -> JobRecord | None:
        """The record of a job that is over, its parts stored, to be committed; None if the stored one is current.

        `position` is that of the book before the row was read: an event that came meanwhile is not claimed.
        """
        last = sound_record(self._store, row.job)
        if last is not None and _has_all(last, row, self._journal):
            return None
        is_own = last is not None and last.book_position > 0
        with self._journal.dump_parts(row) as dump:
            return assemble(
                row,
                dump,
                add_part=lambda kind, content: self._store.add_parts([(kind, content)])[0],
                nodes=self._journal.nodes_named,
                sites=sites,
                extras=() if logs is None else log_parts(logs.read_job(row.job)),
                read_file=read_file,
                made_at=self._now(),
                revision=max((each.revision for each in self._store.revisions(row.job)), default=0) + 1,
                book_position=position,
                ended_as=last.state if last is not None and is_own and row.state == State.CLEARED.value else "",
                cuts=()
                if last is None or not is_own
                else [part.size_bytes for part in last.parts if part.kind == "life-log"],
            )


def log_parts(logs: Iterable[LogText]) -> Iterator[Extra]:
    """Logs as lines of JSON, in parts of limited size, and core files; a core file that cannot be read stays among the logs."""
    lines: list[bytes] = []
    size = number = 0
    for each in logs:
        kept = each
        if each.stream.startswith(CORE_STREAM):
            try:
                content = _core_content(each.head)
            except (ValueError, zlib.error) as fault:
                kept = msgspec.structs.replace(each, stream=f"{each.stream} (no core file: {fault})")
            else:
                yield Extra("core", _core_name(each), content)
                continue
        lines.append(_encode(kept) + b"\n")
        size += len(lines[-1])
        if size >= LOGS_BYTES:
            number += 1
            yield Extra("log", f"logs-{number}.jsonl", b"".join(lines))
            lines, size = [], 0
    if lines:
        yield Extra("log", f"logs-{number + 1}.jsonl", b"".join(lines))


def _core_content(sent: str) -> bytes:
    """A core file as an agent sent it. Raises `ValueError` and `zlib.error`."""
    try:
        packed = base64.b64decode(sent, validate=True)
    except binascii.Error as fault:
        raise ValueError(f"not base64: {fault}") from None
    expanding = zlib.decompressobj()
    content = expanding.decompress(packed, CORE_BYTES_MAX)
    if not expanding.eof:
        larger = f"larger than {CORE_BYTES_MAX} bytes" if len(content) >= CORE_BYTES_MAX else "not whole"
        raise ValueError(larger)
    return content


def _core_name(log: LogText) -> str:
    """The name of a core file within the record: an agent may have sent any."""
    base = log.stream[len(CORE_STREAM) :].rpartition("/")[2]
    safe = _UNSAFE.sub("_", base)[:CORE_NAME_MAX].strip(".") or "core"
    return f"{log.ref.package}/{log.ref.attempt}/{safe}"
