"""Submission over HTTP: decodes a submission, checks its owner, and submits it once per key."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from pilotage.model.answers import CleanRequest
from pilotage.model.jobs.submission import Submission, SubmissionAnswer
from pilotage.ports import ContentStore, StoreError
from pilotage.reading.access import ANY_OWNER, Forbidden, Principal
from pilotage.reading.views import View
from pilotage.service.http.backend import Result
from pilotage.service.http.errors import BookOnly, Malformed
from pilotage.service.http.services import Services, backend_of

_submission = msgspec.json.Decoder(Submission)
FOLDER_DIGITS = 32
_deterministic = msgspec.json.Encoder(order="deterministic").encode
_clean_request = msgspec.json.Decoder(CleanRequest)


class ContentView(View, frozen=True, kw_only=True):
    """The name that bytes were stored under."""

    sha256: str


class ClearedView(View, frozen=True, kw_only=True):
    """The outputs of a job were handed over."""

    job: str


async def submit(services: Services, principal: Principal, body: bytes, *, key: str | None) -> SubmissionAnswer:
    """Submit a job, once per key."""
    backend = backend_of(services)
    submission = await read_submission(services, principal, body)
    if submission.sent_from:
        submission = await services.do(_placed, services, content_of(services), principal, submission)
    return await backend.once(principal, key, lambda: asyncio.wrap_future(backend.jobs.submit(submission)))


async def read_submission(services: Services, principal: Principal, body: bytes) -> Submission:
    """Decode a submission and set its owner; raises `Malformed` and `Forbidden`."""
    submission: Submission = await services.do(_decoded, _submission, body, "submission")
    return _owned(principal, submission)


async def read_clean_request(services: Services, principal: Principal, body: bytes) -> CleanRequest:
    """Decode a clean request and set the owner of its document; raises `Malformed` and `Forbidden`."""
    request: CleanRequest = await services.do(_decoded, _clean_request, body, "request to clean")
    return msgspec.structs.replace(request, submission=_owned(principal, request.submission))


def _decoded(decoder: msgspec.json.Decoder[Result], body: bytes, noun: str) -> Result:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Malformed(f"the body is not a {noun}: {fault}") from None


def _owned(principal: Principal, submission: Submission) -> Submission:
    """A submission with its owner, who must be the sender unless the sender may act for others."""
    # The owner in the document counts, unless the submission names another.
    owner = submission.owner or str(submission.definition.get("owner") or "") or principal.user
    if owner != principal.user and ANY_OWNER not in principal.scopes:
        raise Forbidden(
            "jobs can only be submitted for yourself",
            subject=f"owner {owner[:64]}",
            expected=principal.user,
            next_step=f"leave the owner out, or show a token with {ANY_OWNER}",
        )
    return msgspec.structs.replace(submission, owner=owner)


def content_of(services: Services) -> ContentStore:
    """The content store of a service; raises `BookOnly` if it has none."""
    content = backend_of(services).content
    if content is None:
        raise BookOnly("this service stores no files of jobs", next_step="start one that does: pilotage serve")
    return content


def _placed(services: Services, content: ContentStore, principal: Principal, submission: Submission) -> Submission:
    """A submission from elsewhere, in a folder of its own with the inputs that were sent.

    The same submission again gets the same folder, so that it continues; any other one gets another, so that no job loses
    its inputs or results to a later one.
    """
    from pilotage.language.text.names import why_outside  # a service of the book alone does without the language

    for name, file in submission.captured.items():
        if why := why_outside(name):
            raise Malformed(f"a file of the job cannot have this name: {why}", subject=name[:256])
        if content.is_held(file.sha256, by=principal.user):
            continue
        data = services.journal.content(file.sha256) if file.content else None
        if data is None:
            raise StoreError("an input of the job was not sent", subject=name[:256], next_step="send its content first")
        content.append(file.sha256, data, by=principal.user, offset=0, size_bytes=len(data))
        content.complete(file.sha256, by=principal.user, size_bytes=len(data))
    told = (submission.owner, submission.document, submission.definition, submission.lists, submission.captured)
    key = hashlib.sha256(_deterministic(told)).hexdigest()[:FOLDER_DIGITS]
    return msgspec.structs.replace(submission, folder=content.place(key, submission.captured))


async def keep_content(services: Services, body: bytes) -> ContentView:
    """Store bytes that a job brings along."""
    backend_of(services)
    return ContentView(sha256=await services.do(services.journal.put_content, body))
