"""Records read over HTTP: from a service, or from the folder of one that has stopped, through the same routes."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from pilotage.client.errors import ServerError, ServerRefused
from pilotage.client.server import path_of
from pilotage.model.events.events import parse_dotted
from pilotage.model.records import Annotation, JobRecord, encoded_record
from pilotage.ports.records import DamagedPart, RecordNotReady, StoredRecord
from pilotage.provenance.script_results import ScriptResult as ScriptResult  # noqa: PLC0414 # offered on
from pilotage.provenance.script_results import result_values as result_values  # noqa: PLC0414 # offered on
from pilotage.provenance.script_results import script_results

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.ports.records import RecordReader

log = logging.getLogger(__name__)

READY_SECONDS, READY_SECONDS_MAX = 0.05, 2.0
"""Pauses between questions whether the checksums of a job are there."""


def script_results_in(record: JobRecord, records: RecordReader) -> list[ScriptResult]:
    """What the provenance script of a job said, by package and attempt; nothing where the life log is damaged, which is told."""
    try:
        found = script_results(record, records.content)
        named = [(place, each) for each in found if (place := parse_dotted(each.package)) is not None]
        return [each for _, each in sorted(named, key=lambda one: (one[0], one[1].attempt))]
    except DamagedPart as fault:
        log.warning("what the provenance script said cannot be read: %s", fault)
        return []


class ServedRecords:
    """The records of one server; parts are asked for by the job that was read last and has them."""

    def __init__(self, server: Server) -> None:
        """Take the connection, which stays open until `close`."""
        self._server = server
        self._jobs: dict[str, str] = {}  # a job that has each part

    def record(self, job: str, revision: int | None = None) -> JobRecord | None:
        """A record, the newest revision unless another is named; None if there is none."""
        answer = self._answer(job, revision)
        if answer is None:
            return None
        record = msgspec.convert(answer["record"], JobRecord)
        self._jobs |= {part.sha256: job for part in record.parts}
        return record

    def revisions(self, job: str) -> list[StoredRecord]:
        """Every revision of a job's record, the oldest first."""
        answer = self._answer(job, None)
        return msgspec.convert(answer["revisions"], list[StoredRecord]) if answer is not None else []

    def annotations(self, job: str) -> list[Annotation]:
        """What was added to a record, in the order of time."""
        answer = self._answer(job, None)
        found = msgspec.convert(answer["annotations"], list[Annotation]) if answer is not None else []
        self._jobs |= {each.part.sha256: job for each in found if each.part is not None}
        return found

    def content(self, sha256: str) -> bytes:
        """The content of a part of a record that was read before, verified."""
        job = self._jobs.get(sha256)
        if job is None:
            raise DamagedPart("no record that was read has it", subject=f"part {sha256}")
        content = self._server.content(path_of("records", job, "parts", sha256))
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DamagedPart("its content does not match its digest", subject=f"part {sha256}")
        return content

    def find(self, *, owner: str, submitted_from: float, submitted_before: float) -> list[StoredRecord]:
        """The newest records of an owner whose jobs were submitted in an interval; of an empty owner, your own."""
        parameters: dict[str, str | int | float | None] = {
            "owner": owner or None,
            "submitted_from": submitted_from,
            "submitted_before": submitted_before,
        }
        return msgspec.convert(self._server.get(path_of("records"), parameters)["records"], list[StoredRecord])

    def newest(self, name: str) -> str | None:
        """The job of the newest record of a name, of any owner whose records the user may read; None if there is none."""
        found = self._server.get(path_of("records"), {"name": name})["records"]
        return msgspec.convert(found, list[StoredRecord])[-1].job if found else None

    def make(self, job: str) -> JobRecord:
        """Have the record of a job made that is over, unless it is current."""
        return msgspec.convert(self._server.post(path_of("jobs", job, "record"))["record"], JobRecord)

    def make_when_ready(self, job: str) -> JobRecord:
        """The same, as soon as all of its inputs have their checksums."""
        pause_seconds = READY_SECONDS
        while True:
            try:
                return self.make(job)
            except ServerRefused as refused:
                if refused.code != RecordNotReady.code:
                    raise
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, READY_SECONDS_MAX)

    def annotate(self, job: str, name: str, text: str) -> None:
        """Add a text to a record."""
        self._server.post(path_of("records", job, "annotations"), {"name": name, "text": text})

    def attach(self, job: str, name: str, content: bytes) -> None:
        """Add the content of a file to a record."""
        self._server.upload(path_of("records", job, "annotations", name), content)

    def upload(self, record: JobRecord, read_part: Callable[[str], bytes]) -> int:
        """Upload a record with the parts that are missing there, and return how many; stored on return. Raises `ServerError`."""
        sent = 0
        answer = self._server.upload(path_of("records", record.job), encoded_record(record), method="PUT")
        for sha256 in answer["missing"]:
            path = path_of("records", record.job, "parts", sha256)
            answer = self._server.upload(path, read_part(sha256), method="PUT")
            sent += 1
        if answer["state"] != "committed":
            raise ServerError(
                "the record is not stored: parts of it are missing there",
                subject=f"job {record.job}",
                next_step="upload it again",
            )
        return sent

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _answer(self, job: str, revision: int | None) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._server.get(path_of("records", job), {"revision": revision})
        except ServerRefused as refused:
            if refused.status == 404:
                return None
            raise
        return found


def records_at(server: Server) -> ServedRecords:
    """The records of a server."""
    return ServedRecords(server)


def record_to_show(records: ServedRecords, job: str, revision: int | None = None) -> JobRecord:
    """The record of a job, made now if the job is over and its record is missing or not current. Raises `ServerError`."""
    if revision is not None:
        found = records.record(job, revision)
        if found is None:
            raise ServerRefused(
                f"there is no revision {revision} of the record",
                subject=f"job {job}",
                status=404,
                code="unknown_record",
            )
        return found
    try:
        records.make(job)
    except ServerError as fault:  # purged, of another service, or not to be changed by this user: what there is will do
        found = records.record(job)
        if found is not None:
            return found
        if not isinstance(fault, ServerRefused) or fault.code != RecordNotReady.code:
            raise
        records.make_when_ready(job)
    made = records.record(job)
    assert made is not None
    return made
