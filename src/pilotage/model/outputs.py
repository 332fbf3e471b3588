"""What a package left behind, as its owner is told of it: GASW's output object, and the files that were published."""

from __future__ import annotations

import msgspec

from pilotage.model.payloads import OutputFile


class LogPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where what a program wrote can be read: under a path of the service, whole or with a gap in the middle."""

    url: str
    size_bytes: int = 0
    dropped_bytes: int = 0  # in the middle: too much was written to keep it all


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt used, as far as its computer told: time and disk of its commands and the children they waited for."""

    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None  # where no more is known than that it was less
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: int | None = None  # from a disk: what the system had in memory is not read
    written_bytes: int | None = None


class PackageOutput(msgspec.Struct, frozen=True, kw_only=True):
    """GASW's output object: what became of a package, and where everything is that it wrote.

    All are those of the attempt that counts: the granted one, or else the last. The standard output and error are of
    everything that was run for it, the scripts around the package among them; the application's are of its binaries alone.
    Where the document gives these files of their own, they are among `outputs`.
    """

    id: str  # JOB/1.2.1
    path: str
    state: str
    attempt: int | None
    exit_code: str | None  # GASW's
    exit_message: str | None
    exit_status: int | None
    signal: int | None
    standard_output: LogPlace | None
    standard_error: LogPlace | None
    application_output: LogPlace | None
    application_error: LogPlace | None
    folder: str  # under which the outputs have their names
    outputs: tuple[OutputFile, ...]  # those that were granted
    measured: Measured = Measured()


class PublishedFile(OutputFile, frozen=True, kw_only=True):
    """A file of a job's results, and which package made it."""

    package: str


class OutputsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some files of a job's results, package by package; `next` is the cursor of the next page, where there is one."""

    folder: str
    files: tuple[PublishedFile, ...]
    next: str | None
