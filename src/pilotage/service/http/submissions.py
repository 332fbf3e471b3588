"""How a job comes in over HTTP: its submission is read, checked for its owner, and run once under one key."""

from __future__ import annotations

import asyncio

import msgspec

from pilotage.model.answers import CleanRequest
from pilotage.model.jobs.submission import Submission, SubmissionAnswer
from pilotage.reading.access import ANY_OWNER, Forbidden, Principal
from pilotage.reading.views import View
from pilotage.service.http.backend import Told
from pilotage.service.http.errors import Malformed
from pilotage.service.http.services import Services, running_of

_submission = msgspec.json.Decoder(Submission)
_clean_request = msgspec.json.Decoder(CleanRequest)


class ContentView(View, frozen=True, kw_only=True):
    """Under which name bytes were kept."""

    sha256: str


class ClearedView(View, frozen=True, kw_only=True):
    """That the outputs of a job were handed over."""

    job: str


async def submit(services: Services, principal: Principal, body: bytes, *, key: str | None) -> SubmissionAnswer:
    """Have a job run; done once under one key."""
    running = running_of(services)
    submission = await read_submission(services, principal, body)
    return await running.once(principal, key, lambda: asyncio.wrap_future(running.jobs.submit(submission)))


async def read_submission(services: Services, principal: Principal, body: bytes) -> Submission:
    """The submission in a body, with its owner; raises `Malformed` and `Forbidden`."""
    submission: Submission = await services.do(_decoded, _submission, body, "submission")
    return _owned(principal, submission)


async def read_clean_request(services: Services, principal: Principal, body: bytes) -> CleanRequest:
    """The request in a body, with the owner of its document; raises `Malformed` and `Forbidden`."""
    request: CleanRequest = await services.do(_decoded, _clean_request, body, "request to clean")
    return msgspec.structs.replace(request, submission=_owned(principal, request.submission))


def _decoded(decoder: msgspec.json.Decoder[Told], body: bytes, noun: str) -> Told:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Malformed(f"the body is no {noun}: {fault}") from None


def _owned(principal: Principal, submission: Submission) -> Submission:
    """A submission with its owner, who must be whoever sends it, unless that may act for others."""
    # What the document says counts, unless somebody said otherwise when submitting it.
    owner = submission.owner or str(submission.definition.get("owner") or "") or principal.user
    if owner != principal.user and ANY_OWNER not in principal.scopes:
        raise Forbidden(
            "jobs are submitted for oneself",
            subject=f"owner {owner[:64]}",
            expected=principal.user,
            next_step=f"leave the owner out, or show a token with {ANY_OWNER}",
        )
    return msgspec.structs.replace(submission, owner=owner)


async def keep_content(services: Services, body: bytes) -> ContentView:
    """Keep bytes that a job brings along."""
    running_of(services)
    return ContentView(sha256=await services.do(services.journal.put_content, body))
