"""What all exports share: times, identifiers, and the command of a package as one line."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit
from uuid import UUID, uuid5

from pilotage.model.errors import PilotageError
from pilotage.model.records import Annotation
from pilotage.model.version import VERSION
from pilotage.provenance.history import AttemptHistory, Command, FileUse, History, JobHistory, PackageHistory

PROGRAM = "pkg:generic/pilotage"
"""Identifies the program; a purl, since it has no page of its own."""
PRODUCER = f"{PROGRAM}@{VERSION}"
"""What wrote an export."""

_NAMESPACE = UUID("6f4c1f3e-52a1-5c0e-9a6b-0b7f7b7c1d0a")


class NotExportable(PilotageError):
    """The format cannot express this job: nothing of it ran, or it has no definition."""


def iso_time(time: float) -> str:
    """A time in UTC, to the millisecond."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")


def stated_properties(job: JobHistory, annotations: Iterable[Annotation]) -> dict[str, str]:
    """The tags of a job and the texts that were added later; the latest of a name counts."""
    return job.tags | {each.name: each.text for each in annotations if each.text is not None}


def run_uuid(*names: str) -> str:
    """The same UUID for the same names: of a job, a package, an attempt."""
    return str(uuid5(_NAMESPACE, "/".join(names)))


def file_uri(history: History, use: FileUse) -> str:
    """An identifier of a file: its locator if that is a URL, or else its name in the tree of the job."""
    if use.locator and urlsplit(use.locator).scheme in ("http", "https", "ftp", "ftps"):
        return use.locator
    return f"arcp://uuid,{run_uuid(history.job.id)}/{quote(use.name)}"


def is_below(path: str) -> bool:
    """Whether a path names a file below a folder, and nothing else; names in a record of others may lead anywhere."""
    return not {"\0", "\\"} & set(path) and not any(each in ("", ".", "..") for each in path.split("/"))


def command_line(commands: Iterable[Command]) -> str:
    """The commands of a package for a shell, with their redirections."""
    return " && ".join(_line(each) for each in commands)


def _line(command: Command) -> str:
    line = shlex.join(command.argv)
    for sign, name in (("<", command.stdin), (">", command.stdout)):
        if name:
            line += f" {sign} {shlex.quote(name)}"
    if command.stderr:
        line += " 2>&1" if command.stderr == command.stdout else f" 2> {shlex.quote(command.stderr)}"
    return line


def ran(package: PackageHistory) -> tuple[AttemptHistory, ...]:
    """The attempts at a package that ran, or took over the results of an earlier job."""
    return tuple(each for each in package.attempts if each.started_at is not None or each.ended_at is not None)


def fault_of(attempt: AttemptHistory) -> str:
    """Why an attempt failed, in words; empty if it did not."""
    if attempt.granted or (attempt.exit_status == 0 and attempt.reason is None):
        return ""
    said = [attempt.reason or attempt.exit_code or "no end was reported"]
    if attempt.exit_status is not None:
        said.append(f"exit status {attempt.exit_status}")
    if attempt.signal is not None:
        said.append(f"signal {attempt.signal}")
    if attempt.message:
        said.append(attempt.message)
    return "; ".join(said)


def job_fault(job: JobHistory) -> str:
    """Why a job did not end well, in words; empty if it did."""
    if job.state not in ("DONE", "CLEARED"):
        return "; ".join(filter(None, (job.state.lower(), job.cause)))
    return f"{job.failed} of its packages failed" if job.failed else ""


_SPOOLED_BYTES_MAX = 4 * 1024 * 1024
_READ_BYTES = 1024 * 1024


class Section:
    """Items of a JSON list or object that are collected while others are, on disk if they are many."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES_MAX)  # noqa: SIM115  # it is closed when read
        self.count = 0

    def add(self, item: bytes) -> None:
        """Append an item."""
        self._file.write((b",\n" if self.count else b"\n") + item)
        self.count += 1

    def pieces(self) -> Iterator[bytes]:
        """All items, with commas between them."""
        self._file.seek(0)
        while piece := self._file.read(_READ_BYTES):
            yield piece
        self._file.close()
