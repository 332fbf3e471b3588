"""Traces a file on disk, of a job, or by its checksum, through recorded jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pilotage.app.provenance.recorded_jobs import RecordedJobs
from pilotage.app.provenance.rerun import checksum
from pilotage.model.errors import PilotageError
from pilotage.model.exit_codes import ExitCode
from pilotage.model.records import SHA256
from pilotage.provenance.history import FileUse
from pilotage.provenance.trace import TraceLine as TraceLine  # noqa: PLC0414 # offered on
from pilotage.provenance.trace import file_in_job, trace_back, trace_forward


class UnknownFile(PilotageError):
    """No file on disk and no file of a recorded job has this name."""

    exit_code = ExitCode.FAILED


def traced(recorded: RecordedJobs, word: str, *, forward: bool, lines_max: int) -> Iterator[TraceLine]:
    """What made a file, or with `forward` what used it. Raises `UnknownFile`."""
    start = [_start(recorded, word)]
    trace = trace_forward if forward else trace_back
    return trace(recorded, start, lines_max=lines_max)


def _start(recorded: RecordedJobs, word: str) -> tuple[str, FileUse]:
    """The file that a word names, with the job that knows it."""
    if SHA256.fullmatch(word):
        return "", FileUse(name=word[:12], direction="produced", source="outside", sha256=word)
    path = Path(word)
    if path.is_file():
        found = FileUse(
            name=path.name,
            direction="produced",
            source="outside",
            sha256=checksum(path),
            size_bytes=path.stat().st_size,
        )
        return "", found
    job, slash, name = word.partition("/")
    if slash and (history := recorded.history(recorded.find(job))) is not None:
        file = file_in_job(history, name)
        if file is not None:
            return history.job.id, file
    for found_in, file in recorded.jobs_with_name(word):
        return found_in, file
    raise UnknownFile(
        "no file here, and no file of a recorded job, has this name",
        subject=word,
        next_step="name a file on disk, a file of a job as JOB/NAME, or a sha256",
    )
