"""Results of jobs over HTTP: logs, GASW's output object of a package, and the output files of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from pilotage.book.rows.derived_states import default_state
from pilotage.book.rows.rows import AttemptFacts, JobRow, PackageFacts
from pilotage.model.answers import LogPlace, Measured, OutputsPage, PackageOutput, PublishedFile
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import CORE_STREAM, LogText
from pilotage.model.jobs.layout import PackageId
from pilotage.reading.access import READ, Principal
from pilotage.reading.queries import package_place
from pilotage.reading.views import View
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.errors import UnknownContent
from pilotage.service.http.routing import (
    TEXT,
    ApiRequest,
    CursorText,
    JobPath,
    Limit,
    PackagePath,
    Reply,
    ServicesArgument,
    get,
    in_path,
    in_query,
)
from pilotage.service.http.services import Services, backend_of

AttemptPath = Annotated[str, in_path("The number of the attempt.")]
StreamPath = Annotated[
    str,
    in_path(
        "`stdout` or `stderr` of its binaries, `pre-…` or `post-…` of a script around them, `standard-…` of all together."
    ),
]
OfAttempt = Annotated[int | None, in_query("Only of this attempt.", name="attempt", ge=1)]
STREAMS = ("stdout", "stderr")
STANDARD = {f"standard-{stream}": (f"pre-{stream}", stream, f"post-{stream}") for stream in STREAMS}
"""The output of everything an attempt ran, in order: scripts and application."""


class LogView(View, frozen=True, kw_only=True):
    """What an attempt printed to one stream; `dropped_bytes` are missing in the middle."""

    attempt: int
    stream: str
    head: str
    tail: str
    dropped_bytes: int
    final: bool


class LogsView(View, frozen=True, kw_only=True):
    """The logs of a package, attempt by attempt."""

    logs: list[LogView]


class _Made(msgspec.Struct, frozen=True):
    manifest: tuple[OutputFile, ...] | None = None


_made = msgspec.json.Decoder(_Made)


def _found(
    services: Services, request: ApiRequest, job: str, package: str
) -> tuple[JobRow, PackageId, PackageFacts | None]:
    row = services.reader.job(request.user, job)
    place = package_place(package)
    return row, place, services.reader.package(row, place).facts


@get(
    "/v1/jobs/{job:str}/packages/{package:str}/logs",
    operation_id="logs",
    needs=(READ,),
    summary="The logs of a package",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def logs(
    request: ApiRequest, services: ServicesArgument, job: JobPath, package: PackagePath, attempt: OfAttempt = None
) -> LogsView:
    """Standard output and error of every attempt; for a running one, as far as received."""
    backend = backend_of(services)

    def answer() -> LogsView:
        _, place, _ = _found(services, request, job, package)
        kept = backend.jobs.logs.read(job, place.dotted)
        printed = [each for each in kept if not each.stream.startswith(CORE_STREAM)]
        return LogsView(logs=[_view(each) for each in printed if attempt in (None, each.ref.attempt)])

    return await services.ask(answer)


def _view(log: LogText) -> LogView:
    return LogView(
        attempt=log.ref.attempt,
        stream=log.stream,
        head=log.head,
        tail=log.tail,
        dropped_bytes=log.dropped_bytes,
        final=log.final,
    )


@get(
    "/v1/jobs/{job:str}/packages/{package:str}/logs/{attempt:str}/{stream:str}",
    operation_id="one_log",
    needs=(READ,),
    summary="One log, as text",
    tags=["running"],
    media_type=TEXT,
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def one_log(
    request: ApiRequest,
    services: ServicesArgument,
    job: JobPath,
    package: PackagePath,
    attempt: AttemptPath,
    stream: StreamPath,
) -> Reply[str]:
    """One stream of one attempt; a line says where bytes are missing."""
    backend = backend_of(services)

    def answer() -> str:
        _, place, _ = _found(services, request, job, package)
        kept = {
            each.stream: each for each in backend.jobs.logs.read(job, place.dotted) if str(each.ref.attempt) == attempt
        }
        found = [text_of(kept[each]) for each in STANDARD.get(stream, (stream,)) if each in kept]
        if found:
            return "".join(found)
        raise UnknownContent(
            "there is no such log", subject=f"{job}/{place.dotted} attempt {attempt[:16]} {stream[:16]}"
        )

    return Reply(body=await services.ask(answer), media_type=TEXT)


def text_of(log: LogText) -> str:
    """A log as one text."""
    if not log.dropped_bytes:
        return log.head + log.tail
    return f"{log.head}\n[… {log.dropped_bytes:,} bytes are missing here …]\n{log.tail}"


@get(
    "/v1/jobs/{job:str}/packages/{package:str}/outputs",
    operation_id="package_outputs",
    needs=(READ,),
    summary="The output object of a package",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def package_outputs(
    request: ApiRequest, services: ServicesArgument, job: JobPath, package: PackagePath
) -> PackageOutput:
    """GASW's output object: exit code and message, standard output and error, and the granted outputs."""
    backend = backend_of(services)

    def answer() -> PackageOutput:
        row, place, facts = _found(services, request, job, package)
        return _output(services, backend, row, place, facts)

    return await services.ask(answer)


def granted_files(services: Services, user: Principal, job: str, package: str) -> tuple[JobRow, tuple[OutputFile, ...]]:
    """A job, and the granted outputs of one of its packages; raises `UnknownJob` and `UnknownPackage`."""
    row = services.reader.job(user, job)
    place = package_place(package)
    facts = services.reader.package(row, place).facts
    granted = facts.attempts.get(facts.attempt or 0) if facts is not None else None
    is_granted = granted is not None and granted.granted_at is not None
    return row, _manifest(services, row, place, granted) if granted is not None and is_granted else ()


def _output(
    services: Services, backend: JobBackend, job: JobRow, place: PackageId, facts: PackageFacts | None
) -> PackageOutput:
    known = facts if facts is not None else PackageFacts(state=default_state(job))
    number = known.attempt or 0
    last = known.attempts.get(number, AttemptFacts())
    base = f"/v1/jobs/{job.job}/packages/{place.dotted}/logs/{number}"
    kept = {each.stream: each for each in backend.jobs.logs.read(job.job, place.dotted) if each.ref.attempt == number}
    places = {name: _log_place(f"{base}/{name}", kept.get(name)) for name in STREAMS}
    places |= {name: _together(base, name, kept) for name in STANDARD}
    return PackageOutput(
        id=f"{job.job}/{place.dotted}",
        path=place.path(job.name),
        state=known.state,
        attempt=known.attempt,
        exit_code=last.exit_code,
        exit_message=last.exit_message,
        exit_status=last.exit_status,
        signal=last.signal,
        standard_output=places["standard-stdout"],
        standard_error=places["standard-stderr"],
        application_output=places["stdout"],
        application_error=places["stderr"],
        folder=backend.folder_of(job) or "",
        outputs=_manifest(services, job, place, last) if last.granted_at is not None else (),
        measured=msgspec.convert(last, Measured, from_attributes=True),
    )


def _together(base: str, name: str, kept: Mapping[str, LogText]) -> LogPlace | None:
    """Where several logs are read as one; if only the application printed, its log."""
    there = [each for each in STANDARD[name] if each in kept]
    if len(there) == 1 and there[0] in STREAMS:
        name = there[0]
    places = [place for each in there if (place := _log_place("", kept[each])) is not None]
    if not places:
        return None
    return LogPlace(
        url=f"{base}/{name}",
        size_bytes=sum(each.size_bytes for each in places),
        dropped_bytes=sum(each.dropped_bytes for each in places),
    )


def _log_place(url: str, log: LogText | None) -> LogPlace | None:
    if log is None:
        return None
    size = len(log.head.encode()) + len(log.tail.encode()) + log.dropped_bytes
    return LogPlace(url=url, size_bytes=size, dropped_bytes=log.dropped_bytes)


def _manifest(services: Services, job: JobRow, place: PackageId, attempt: AttemptFacts) -> tuple[OutputFile, ...]:
    positions = [each for each in (attempt.staged_position, attempt.finished_position) if each is not None]
    for position in positions:
        for event in services.reader.outcome_events(job, place, frozenset([position])):
            found = _made.decode(event.row.data).manifest
            if found is not None:
                return found
    return ()


@get(
    "/v1/jobs/{job:str}/outputs",
    operation_id="job_outputs",
    needs=(READ,),
    summary="The output files of a job",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def job_outputs(
    request: ApiRequest, services: ServicesArgument, job: JobPath, cursor: CursorText = None, limit: Limit = 0
) -> OutputsPage:
    """The outputs of the granted attempts, each file with its size and sha256; `limit` packages per page."""
    backend = backend_of(services)

    def answer() -> OutputsPage:
        row = services.reader.job(request.user, job)
        found = services.reader.packages_of(row, "state in (DONE, CLEARED)", cursor=cursor, limit=limit)
        files = []
        for each in found.items:
            granted = each.facts.attempts.get(each.facts.attempt or 0) if each.facts is not None else None
            if granted is None or granted.granted_at is None:
                continue
            files += [
                PublishedFile(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256, package=each.place.dotted)
                for file in _manifest(services, row, each.place, granted)
            ]
        return OutputsPage(
            folder=backend.folder_of(row) or "",
            files=tuple(files),
            next=found.next,
            sent_from=backend.sent_from(row),
        )

    return await services.ask(answer)


OUTPUT_ROUTES = (logs, one_log, package_outputs, job_outputs)
