"""Records of jobs that are over, over HTTP: read, make, annotate, upload and delete them.

Reading needs the right `read` by the access list that the record carries; annotating and deleting need `modify`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from pilotage.model.events.events import JOB_ID, TIME_MAX
from pilotage.model.events.payloads import TagName
from pilotage.model.records import (
    FOREIGN_AHEAD_SECONDS,
    REVISION_MAX,
    Annotation,
    JobRecord,
    RecordPart,
    check_foreign,
    decoded_record,
)
from pilotage.model.states import FINAL_NAMES
from pilotage.ports.records import RecordStore, StoredRecord, sound_record, sound_revisions
from pilotage.reading.access import ANY_OWNER, OPERATE, READ, WRITE, Forbidden, Principal, may_use_record, require
from pilotage.reading.views import View
from pilotage.service.http.backend import CONTENT_BYTES_MAX
from pilotage.service.http.errors import Malformed, NoRecordKeeping, UnknownContent, UnknownRecord
from pilotage.service.http.routing import (
    OCTETS,
    ApiRequest,
    JobPath,
    Reply,
    ServicesArgument,
    end,
    get,
    in_body,
    in_path,
    in_query,
    post,
    put,
)
from pilotage.service.http.services import Services
from pilotage.service.journal.record_uploads import Upload
from pilotage.service.journal.recording import RecordKeeping

RECORD_BYTES_MAX = 64 * 2**20
TEXT_BYTES_MAX = 64 * 1024

PartPath = Annotated[str, in_path("The sha256 of the part.")]
NamePath = Annotated[str, in_path("The name of the annotation: letters, digits, `_`, `.` and `-`.")]
Revision = Annotated[int, in_query("This revision; 0 for the newest.", ge=0, le=REVISION_MAX)]
Owner = Annotated[str, in_query("Jobs of this owner; without it, your own.", max_length=256)]
SubmittedFrom = Annotated[float, in_query("Submitted at this time or later, in seconds since 1970.", ge=0, le=TIME_MAX)]
SubmittedBefore = Annotated[float, in_query("Submitted before this time; 0 for any.", ge=0, le=TIME_MAX)]


JobName = Annotated[
    str, in_query("Only the newest record of a job of this name; without an owner, of any owner.", max_length=256)
]


class RecordView(View, frozen=True, kw_only=True):
    """A record, every revision that there is of it, and what was added to it later."""

    record: JobRecord
    revisions: list[StoredRecord]
    annotations: list[Annotation]


class RecordsView(View, frozen=True, kw_only=True):
    """The newest records of an owner's jobs, by the time of their submission."""

    records: list[StoredRecord]


class UploadView(View, frozen=True, kw_only=True):
    """How far an upload is: registered, uploading or committed; and the sha256 of parts that are missing."""

    state: str
    missing: list[str]


class AnnotateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name and a text."""

    name: TagName
    text: Annotated[str, Meta(max_length=TEXT_BYTES_MAX)]


def keeping_of(services: Services) -> RecordKeeping:
    """What keeps records here; raises `NoRecordKeeping` if nothing does."""
    if services.records is None:
        raise NoRecordKeeping(
            "this service keeps no records of jobs",
            next_step="leave the setting provenance.records at auto there, and install pilotage[provenance]",
        )
    return services.records


def _readable(store: RecordStore, user: Principal, job: str, revision: int = 0) -> JobRecord:
    """A record that the user may read. Raises `UnknownRecord`: others are not even told that it exists."""
    newest = store.record(job) if JOB_ID.fullmatch(job) else None
    what = "there is no record of this job"
    if newest is not None and may_use_record(user, "read", newest):
        found = newest if revision in (0, newest.revision) else store.record(job, revision)
        if found is not None:
            return found
        what = f"there is no revision {revision}"
    raise UnknownRecord(
        what, subject=f"job {job[:64]}", next_step="a record is made some seconds after the end of its job"
    )


def refuse_bound(user: Principal) -> None:
    """Raise `Forbidden` for a token that is bound to a package or a site: records are none of its business."""
    if user.is_bound:
        raise Forbidden(
            "a token of an attempt or a site may not use records", subject=user.user, next_step="use a token of a user"
        )


def _changeable(store: RecordStore, user: Principal, job: str) -> JobRecord:
    """A record that the user may annotate and delete. Raises `UnknownRecord` and `Forbidden`."""
    record = _readable(store, user, job)
    if not may_use_record(user, "modify", record):
        raise Forbidden(f"{user.user} may not modify this record", subject=f"job {job}", next_step="ask its owner")
    return record


def _view(store: RecordStore, record: JobRecord) -> RecordView:
    return RecordView(record=record, revisions=store.revisions(record.job), annotations=store.annotations(record.job))


@get(
    "/v1/records",
    operation_id="find_records",
    needs=(READ,),
    summary="The records of an owner, by time",
    tags=["records"],
    faults=(400, 401, 403, 409, 503),
)
async def find_records(
    request: ApiRequest,
    services: ServicesArgument,
    owner: Owner = "",
    submitted_from: SubmittedFrom = 0.0,
    submitted_before: SubmittedBefore = 0.0,
    name: JobName = "",
) -> RecordsView:
    """The newest revision of each record that you may read, of one owner and an interval of submission; or the newest of a name."""
    refuse_bound(request.user)
    keeping = keeping_of(services)

    def answer() -> RecordsView:
        store, of = keeping.store(), owner or request.user.user
        if name:
            # Who shares a record with you does not put it before your own.
            newest = store.newest(name, readable=lambda record: record.owner == of) or store.newest(
                name, readable=lambda record: _may_use(request.user, record, owner)
            )
            return RecordsView(records=store.revisions(newest.job)[-1:] if newest is not None else [])
        found = store.find(owner=of, submitted_from=submitted_from, submitted_before=submitted_before or TIME_MAX)
        if of != request.user.user and ANY_OWNER not in request.user.scopes:
            found = [each for each in found if _may_read(store, request.user, each.job)]
        return RecordsView(records=found)

    return await services.do(answer)


def _may_use(user: Principal, record: JobRecord, owner: str) -> bool:
    return owner in ("", record.owner) and may_use_record(user, "read", record)


def _may_read(store: RecordStore, user: Principal, job: str) -> bool:
    record = sound_record(store, job)
    return record is not None and may_use_record(user, "read", record)


@get(
    "/v1/records/{job:str}",
    operation_id="get_record",
    needs=(READ,),
    summary="The record of a job",
    tags=["records"],
    faults=(400, 401, 403, 404, 409, 503),
)
async def get_record(
    request: ApiRequest, services: ServicesArgument, job: JobPath, revision: Revision = 0
) -> RecordView:
    """A record with its parts, its revisions, and what was added later."""
    keeping = keeping_of(services)

    def answer() -> RecordView:
        store = keeping.store()
        return _view(store, _readable(store, request.user, job, revision))

    return await services.do(answer)


@get(
    "/v1/records/{job:str}/parts/{sha256:str}",
    operation_id="get_record_part",
    needs=(READ,),
    summary="A part of a record",
    tags=["records"],
    media_type=OCTETS,
    faults=(400, 401, 403, 404, 409, 503),
)
async def get_record_part(
    request: ApiRequest, services: ServicesArgument, job: JobPath, sha256: PartPath
) -> Reply[bytes]:
    """The content of a part of any revision, or of an annotation, verified against its sha256."""
    keeping = keeping_of(services)

    def answer() -> bytes:
        store = keeping.store()
        newest = _readable(store, request.user, job)
        if not _has_part(store, newest, sha256):
            raise UnknownContent("the record has no such part", subject=f"job {job}")
        return store.content(sha256)

    return Reply(body=await services.do(answer), media_type=OCTETS)


def _has_part(store: RecordStore, newest: JobRecord, sha256: str) -> bool:
    if any(part.sha256 == sha256 for part in newest.parts):
        return True
    if any(each.part is not None and each.part.sha256 == sha256 for each in store.annotations(newest.job)):
        return True
    return any(part.sha256 == sha256 for record in sound_revisions(store, newest.job) for part in record.parts)


@post(
    "/v1/jobs/{job:str}/record",
    status=200,
    operation_id="make_record",
    needs=(READ, WRITE),
    summary="Make the record of a job now",
    tags=["records"],
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def make_record(request: ApiRequest, services: ServicesArgument, job: JobPath) -> RecordView:
    """Make the record of a job that is over, without waiting until it is quiet; one that is current stays."""
    keeping = keeping_of(services)
    row = await services.ask(services.reader.job_to_change, request.user, job, "modify")

    def answer() -> RecordView:
        made = keeping.record(job)
        if made is None:
            is_over = row.state in FINAL_NAMES
            what = "its record was deleted" if is_over else "the job is not over"
            raise UnknownRecord(what, subject=f"job {job}", next_step="" if is_over else "wait for its end")
        return _view(keeping.store(), made)

    # It may take long, or wait for another record that is being made: no thread that answers others is held by that.
    return await asyncio.to_thread(answer)


@post(
    "/v1/records/{job:str}/annotations",
    operation_id="annotate_record",
    needs=(READ, WRITE),
    summary="Add a text to a record",
    tags=["records"],
    faults=(400, 401, 403, 404, 409, 503, 507),
    answered_by="framework",
)
async def annotate_record(
    request: ApiRequest, services: ServicesArgument, job: JobPath, data: Annotated[AnnotateBody, in_body()]
) -> Annotation:
    """Add a name and a text, with your name and the time; earlier annotations stay."""
    keeping = keeping_of(services)

    def answer() -> Annotation:
        with keeping.writing() as store:
            record = _changeable(store, request.user, job)
            made = Annotation(
                job=record.job, name=data.name, at=services.clock.now(), author=request.user.user, text=data.text
            )
            store.annotate(made)
            return made

    return await services.do(answer)


@post(
    "/v1/records/{job:str}/annotations/{name:str}",
    operation_id="attach_to_record",
    needs=(READ, WRITE),
    body="content",
    summary="Add a file to a record",
    tags=["records"],
    faults=(400, 401, 403, 404, 409, 413, 503, 507),
    body_bytes_max=CONTENT_BYTES_MAX,
)
async def attach_to_record(request: ApiRequest, services: ServicesArgument, job: JobPath, name: NamePath) -> Annotation:
    """Add the content of a file under a name, with your name and the time."""
    keeping = keeping_of(services)
    if _NAME.fullmatch(name) is None:
        raise Malformed("this cannot be the name of an annotation", got=repr(name[:128]))
    content = await request.body()

    def answer() -> Annotation:
        with keeping.writing() as store:
            record = _changeable(store, request.user, job)
            [sha256] = store.add_parts([("custom", content)])
            part = RecordPart(kind="custom", name=name, sha256=sha256, size_bytes=len(content))
            made = Annotation(job=record.job, name=name, at=services.clock.now(), author=request.user.user, part=part)
            store.annotate(made)
            return made

    return await services.do(answer)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


@put(
    "/v1/records/{job:str}",
    operation_id="upload_record",
    needs=(READ, WRITE),
    body="record",
    summary="Upload the record of a job of another service",
    tags=["records"],
    faults=(400, 401, 403, 409, 413, 503, 507),
    body_bytes_max=RECORD_BYTES_MAX,
)
async def upload_record(request: ApiRequest, services: ServicesArgument, job: JobPath) -> UploadView:
    """Register a record: the answer names the parts to upload. With all parts stored, it is committed, as a whole."""
    keeping = keeping_of(services)
    record = _decoded(await request.body(), job, now=services.clock.now())
    return await services.do(lambda: _uploaded(_admitted(services, keeping, request.user, record)))


@put(
    "/v1/records/{job:str}/parts/{sha256:str}",
    operation_id="upload_record_part",
    needs=(READ, WRITE),
    body="content",
    summary="Upload a part of a registered record",
    tags=["records"],
    faults=(400, 401, 403, 409, 413, 503, 507),
    body_bytes_max=CONTENT_BYTES_MAX,
)
async def upload_record_part(
    request: ApiRequest, services: ServicesArgument, job: JobPath, sha256: PartPath
) -> UploadView:
    """Store a part; the last one commits the record."""
    keeping = keeping_of(services)
    content = await request.body()

    def answer() -> UploadView:
        record = keeping.uploads.registered(request.user, job)
        _refuse_foreign(services, keeping.store(), request.user, record)
        return _uploaded(keeping.uploads.add_part(request.user, job, sha256, content, keeping.store()))

    return await services.do(answer)


def _decoded(content: bytes, job: str, *, now: float) -> JobRecord:
    try:
        record = decoded_record(content)
        check_foreign(record)
    except (msgspec.DecodeError, ValueError, TypeError) as fault:
        raise Malformed(f"the body is not a record: {fault}") from None
    if record.job != job or JOB_ID.fullmatch(job) is None:
        raise Malformed("the record is of another job", expected=job[:64], got=record.job[:64])
    if max(record.made_at, record.heard_at, record.submitted_at or 0.0) > now + FOREIGN_AHEAD_SECONDS:
        raise Malformed(
            "the record is of the future", subject=f"job {job}", next_step="compare the clocks of both services"
        )
    return record


def _admitted(services: Services, keeping: RecordKeeping, user: Principal, record: JobRecord) -> Upload:
    store = keeping.store()
    _refuse_foreign(services, store, user, record)
    return keeping.uploads.register(user, record, store)


def _refuse_foreign(services: Services, store: RecordStore, user: Principal, record: JobRecord) -> None:
    """Raise `Forbidden` unless the record is of the user's own job, and not one of this book."""
    refuse_bound(user)
    before = sound_record(store, record.job)
    if before is None:  # none, or damaged: then it may come again from its owner
        is_allowed = {record.owner, *(each.owner for each in store.revisions(record.job))} == {user.user}
    else:  # who may modify the record adds a revision, but only its owner gives it to others
        is_allowed = may_use_record(user, "modify", before) and record.owner == before.owner
        is_allowed &= user.user == before.owner or record.access == before.access
    if not is_allowed and ANY_OWNER not in user.scopes:
        raise Forbidden(
            "this is the record of another owner's job",
            subject=f"job {record.job}",
            expected=f"the owner {user.user}, or the scope {ANY_OWNER}",
        )
    if services.journal.job(record.job) is not None:
        raise Forbidden("this service records the job itself", subject=f"job {record.job}")


def _uploaded(upload: Upload) -> UploadView:
    return UploadView(state=upload.state, missing=list(upload.missing))


@end(
    "/v1/records/{job:str}",
    operation_id="delete_record",
    needs=(READ, OPERATE),
    summary="Delete the record of a job",
    tags=["records"],
    faults=(400, 401, 403, 404, 409, 503, 507),
)
async def delete_record(request: ApiRequest, services: ServicesArgument, job: JobPath) -> None:
    """Delete every revision and annotation of a record; parts that no other record shares are freed by a collection."""
    keeping = keeping_of(services)

    def answer() -> None:
        with keeping.writing() as store:
            _changeable(store, request.user, job)
            row = services.journal.job(job)
            if row is not None:  # whoever uploaded a record of its id may not delete that of the job
                require(request.user, "modify", row)
            store.delete(job, at=services.clock.now(), author=request.user.user)

    await services.do(answer)


RECORD_ROUTES = (
    find_records,
    get_record,
    get_record_part,
    make_record,
    annotate_record,
    attach_to_record,
    upload_record,
    upload_record_part,
    delete_record,
)
