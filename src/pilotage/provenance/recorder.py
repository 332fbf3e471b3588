"""Makes the records of jobs that are over: the first when a job is quiet, a later revision when more was heard of it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from pilotage.book.rows.rows import JobRow, NodeRow
from pilotage.model.exchange.exchange import CORE_STREAM, LogText
from pilotage.model.records import JobRecord
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import AttemptLogs, Journal
from pilotage.ports.records import RecordStore
from pilotage.provenance.assembly import Extra, ReadFile, assemble

LOGS_BYTES = 4 * 1024 * 1024
"""Logs of a job are in parts of this size."""

_encode = msgspec.json.Encoder().encode


def is_current(row: JobRow, store: RecordStore) -> bool:
    """Whether the record of a job has all that was heard of it."""
    revisions = store.revisions(row.job)
    return bool(revisions) and revisions[-1].heard_at >= row.heard_at


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
        row = self._journal.job(job)
        if row is None or row.place == "purged" or row.state not in FINAL_NAMES:
            return None
        before = self._store.revisions(job)
        last = self._store.record(job) if before else None
        if last is not None and last.heard_at >= row.heard_at:
            return last
        made = assemble(
            row,
            self._journal.dump(job),
            add_part=lambda kind, content: self._store.add_parts([(kind, content)])[0],
            nodes=self._nodes,
            sites=sites,
            extras=() if logs is None else log_parts(logs.read_job(job)),
            read_file=read_file,
            made_at=self._now(),
            revision=last.revision + 1 if last is not None else 1,
            cuts=() if last is None else [part.size_bytes for part in last.parts if part.kind == "life-log"],
        )
        self._store.commit([made])
        return made

    def _nodes(self, names: Iterable[str]) -> Iterator[NodeRow]:
        for name in names:
            row = self._journal.node(name)
            if row is not None:
                yield row


def log_parts(logs: Iterable[LogText]) -> Iterator[Extra]:
    """Logs as lines of JSON, in parts of limited size, and core files."""
    lines: list[bytes] = []
    size = number = 0
    for each in logs:
        if each.stream.startswith(CORE_STREAM):
            name = f"{each.ref.package}/{each.ref.attempt}/{each.stream[len(CORE_STREAM) :]}"
            yield Extra("core", name, zlib.decompress(base64.b64decode(each.head)))
            continue
        lines.append(_encode(each) + b"\n")
        size += len(lines[-1])
        if size >= LOGS_BYTES:
            number += 1
            yield Extra("log", f"logs-{number}.jsonl", b"".join(lines))
            lines, size = [], 0
    if lines:
        yield Extra("log", f"logs-{number + 1}.jsonl", b"".join(lines))
