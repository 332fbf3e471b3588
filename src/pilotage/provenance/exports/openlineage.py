"""Writes OpenLineage run events, one on each line: a run for the job, and one within it for each attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pilotage.provenance.exports.shared import (
    PRODUCER,
    PROGRAM,
    command_line,
    fault_of,
    iso_time,
    job_fault,
    ran,
    run_uuid,
)
from pilotage.provenance.history import AttemptHistory, FileUse, History, PackageHistory

NAMESPACE = "pilotage"
EVENT_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = {
    "parent": "https://openlineage.io/spec/facets/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet",
    "errorMessage": "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
    "tags": "https://openlineage.io/spec/facets/1-0-0/TagsRunFacet.json#/$defs/TagsRunFacet",
    "jobType": "https://openlineage.io/spec/facets/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
    "documentation": "https://openlineage.io/spec/facets/1-1-0/DocumentationJobFacet.json#/$defs/DocumentationJobFacet",
    "version": "https://openlineage.io/spec/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet",
    "inputStatistics": (
        "https://openlineage.io/spec/facets/1-0-0/InputStatisticsInputDatasetFacet.json"
        "#/$defs/InputStatisticsInputDatasetFacet"
    ),
    "outputStatistics": (
        "https://openlineage.io/spec/facets/1-0-2/OutputStatisticsOutputDatasetFacet.json"
        "#/$defs/OutputStatisticsOutputDatasetFacet"
    ),
    "pilotage_attempt": f"{PROGRAM}#attempt-facet-1",
}

Values = dict[str, Any]

_encode = msgspec.json.Encoder().encode


def openlineage_events(history: History) -> Iterator[bytes]:
    """The events of the job and of its attempts."""
    job = history.job
    run: Values = {"runId": run_uuid(job.id)}
    about: Values = {"namespace": NAMESPACE, "name": job.name, "facets": _facets(jobType=_job_type("JOB"))}
    if job.description:
        about["facets"] |= _facets(documentation={"description": job.description})
    if job.tags:
        tags = [{"key": name, "value": value, "source": "USER"} for name, value in job.tags.items()]
        run["facets"] = _facets(tags={"tags": tags})
    times = (job.started_at, job.submitted_at, history.record.made_at)
    started = next(time for time in times if time is not None)
    yield _event("START", started, run, about)
    for package in history.packages():
        for attempt in ran(package):
            yield from _attempt(history, package, attempt)
    fault = job_fault(job)
    if fault:
        run = {**run, "facets": run.get("facets", {}) | _fault(fault)}
    ended = job.finished_at if job.finished_at is not None else job.ended_at
    kind = "COMPLETE" if not fault else "ABORT" if job.state == "CANCELLED" else "FAIL"
    yield _event(kind, started if ended is None else max(ended, started), run, about)


def _attempt(history: History, package: PackageHistory, attempt: AttemptHistory) -> Iterator[bytes]:
    job = history.job
    parent = {"run": {"runId": run_uuid(job.id)}, "job": {"namespace": NAMESPACE, "name": job.name}}
    told: Values = {
        "job": job.id,
        "package": package.id,
        "attempt": attempt.number,
        "site": attempt.site,
        "node": attempt.node,
        "exitStatus": attempt.exit_status,
        "container": package.container or None,
        "containerDigest": attempt.container_digest,
        "custom": attempt.custom,
        "command": command_line(package.commands),
        "parameters": package.parameters,
        "measured": msgspec.to_builtins(attempt.measured),
        "phases": {each.phase: each.seconds for each in attempt.phases},
    }
    facets = _facets(parent=parent, pilotage_attempt={name: value for name, value in told.items() if value is not None})
    identifier = run_uuid(job.id, package.id, str(attempt.number))
    about = {
        "namespace": NAMESPACE,
        "name": f"{job.name}.{package.name or package.id}",
        "facets": _facets(jobType=_job_type("TASK")),
    }
    inputs = [_dataset(history, use, "input") for use in package.consumed]
    granted = attempt.number == package.granted_attempt
    outputs = [_dataset(history, use, "output") for use in package.produced] if granted else []
    times = [time for time in (attempt.started_at, attempt.created_at, attempt.ended_at) if time is not None]
    started = times[0]
    fault = fault_of(attempt)
    yield _event("START", started, {"runId": identifier, "facets": facets}, about, inputs=inputs)
    ended = max(attempt.ended_at if attempt.ended_at is not None else started, started)
    run = {"runId": identifier, "facets": facets | _fault(fault)}
    yield _event("FAIL" if fault else "COMPLETE", ended, run, about, inputs=inputs, outputs=outputs)


def _event(
    kind: str,
    time: float,
    run: Values,
    job: Values,
    *,
    inputs: Iterable[Values] = (),
    outputs: Iterable[Values] = (),
) -> bytes:
    event = {
        "eventType": kind,
        "eventTime": iso_time(time),
        "run": run,
        "job": job,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "producer": PRODUCER,
        "schemaURL": EVENT_SCHEMA,
    }
    return _encode(event) + b"\n"


def _facets(**facets: Values) -> Values:
    return {name: {"_producer": PRODUCER, "_schemaURL": _FACETS[name], **values} for name, values in facets.items()}


def _job_type(kind: str) -> Values:
    return {"processingType": "BATCH", "integration": "PILOTAGE", "jobType": kind}


def _fault(message: str) -> Values:
    return _facets(errorMessage={"message": message, "programmingLanguage": "UNKNOWN"}) if message else {}


def _dataset(history: History, use: FileUse, role: str) -> Values:
    """A file by its place: a URL, or its path on the file system where the job was submitted."""
    place = urlsplit(use.locator)
    found: Values = {"namespace": "file", "name": f"{history.job.folder}/{use.name}"}
    if place.scheme and place.netloc:
        found = {"namespace": f"{place.scheme}://{place.netloc}", "name": place.path.lstrip("/") or "/"}
    found["facets"] = _facets(version={"datasetVersion": use.sha256}) if use.sha256 is not None else {}
    if use.size_bytes is not None:
        found[f"{role}Facets"] = _facets(**{f"{role}Statistics": {"size": use.size_bytes, "fileCount": 1}})
    return found
