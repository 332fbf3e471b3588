"""The record of a small job with a definition, made without running anything, and crates in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pilotage.model.events.payloads import AttemptCreated, AttemptFinished, CommitGranted, JobAccepted, OutputFile
from pilotage.model.records import Annotation, JobRecord
from pilotage.model.states import ExitCodeGasw
from pilotage.provenance.assembly import Extra, assemble
from pilotage.provenance.exports.crate import write_crate
from pilotage.provenance.exports.crate_reader import BadCrate
from pilotage.provenance.history import history_of
from tests.kit.earlier_work import place
from tests.kit.events import START, Stream, phases
from tests.kit.sqlite_books import keep

DOCUMENT = """\
pilotage: 1
job: small
parameters:
  factor: {type: number, default: "0.5"}
stages:
  - each: {n: 1..2}
    run: [sh, make.sh, "{n}", "{factor}"]
    outputs: ["{n}.dat"]
  - run: [cat, "{inputs}"]
    inputs: ["*.dat"]
    stdout: all.txt
"""
CONTENT = b"a result\n"


def sha256(content: bytes) -> str:
    """The digest of a content."""
    return hashlib.sha256(content).hexdigest()


def small_record(
    folder: Path, document: str = DOCUMENT, *, names: Iterable[str] = ()
) -> tuple[JobRecord, dict[str, bytes]]:
    """The record of such a job, all packages of which are done, and its parts; `names` are further files of the first package."""
    contents: dict[str, bytes] = {}

    def add(kind: str, content: bytes) -> str:
        contents[sha256(content)] = content
        return sha256(content)

    (folder / "make.sh").write_text("echo $1 > $1.dat\n")
    made = {"1.1.1": ["1.dat", *names], "1.2.1": ["2.dat"], "2.1.1": ["all.txt"]}
    by = Stream("service", "core")
    with place(folder) as here:
        prepared = here.prepare(document, id="small-1")
        events = [by.event(prepared.registered, job="small-1"), by.event(JobAccepted(), job="small-1")]
        for number, (package, files) in enumerate(made.items()):
            at = START + 10.0 * number
            manifest = tuple(OutputFile(name=name, size_bytes=len(CONTENT), sha256=sha256(CONTENT)) for name in files)
            finished = AttemptFinished(
                exit_code=ExitCodeGasw.SUCCESS, exit_status=0, phases=phases(at), manifest=manifest, node="n1"
            )
            for data, time in (
                (AttemptCreated(site="lyon", lease_seconds=60.0), at),
                (finished, at + 5),
                (CommitGranted(), at + 6),
            ):
                events.append(by.event(data, job="small-1", package=package, attempt=1, time=time))
        keep(here.journal, events)
        row = here.journal.job("small-1")
        assert row is not None
        extras = [Extra("output", name, CONTENT) for name in ("1.dat",)]
        record = assemble(
            row,
            here.journal.dump("small-1"),
            add_part=add,
            nodes=lambda _: [],
            extras=extras,
            made_at=START,
            revision=1,
        )
    return record, contents


class MemoryCrate:
    """A crate in a dictionary; paths are taken as they are."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = files or {}

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file; each path is written once."""
        assert path not in self.files
        self.files[path] = b"".join(pieces)

    def read(self, path: str, *, bytes_max: int) -> bytes:
        """The content of a file."""
        content = self.files.get(path)
        if content is None or len(content) > bytes_max:
            raise BadCrate("missing or too large", subject=path)
        return content

    def digest(self, path: str, *, bytes_max: int) -> str | None:
        """The sha256 of a file."""
        return sha256(self.read(path, bytes_max=bytes_max)) if path in self.files else None


def crate_of(record: JobRecord, contents: dict[str, bytes], annotations: tuple[Annotation, ...] = ()) -> MemoryCrate:
    """The crate of a record."""
    made = MemoryCrate()
    write_crate(history_of(record, contents.__getitem__), made, read_part=contents.__getitem__, annotations=annotations)
    return made
