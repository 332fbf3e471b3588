"""Events over HTTP: batches in, pages, long polls and streams out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from pilotage.agent.service_clock import SERVICE_TIME_FIELD, TIME_FIELD
from pilotage.book.codec import Checked, MalformedBatch, Refusal
from pilotage.book.fold.join import Receipt
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import TIME_MAX, is_doubtful, is_wrong
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import FoundEvent, Page
from pilotage.reading.access import READ, WRITE, Unauthenticated, allowed_events, left_to_engine, may_log_anything
from pilotage.reading.queries import UnknownPackage, package_place
from pilotage.reading.view_builders import event_view
from pilotage.reading.views import EventsAfter, EventsPage
from pilotage.service.http.errors import BadParameter, BatchTooLarge, ClockDoubted
from pilotage.service.http.routing import (
    EVENT_STREAM,
    WAIT_SECONDS_MAX,
    After,
    ApiRequest,
    CursorText,
    JobPath,
    LastEventId,
    Limit,
    PackagePath,
    QueryText,
    Reply,
    ServicesArgument,
    WaitSeconds,
    get,
    post,
)
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from pilotage.service.tokens import why_ended

# The sender's statement about its clock, in the headers of a batch.

__all__ = ["TIME_FIELD", "is_skewed"]


def is_skewed(header: Callable[[str], str], *, received: float, tolerance_seconds: float) -> bool:
    """Whether the clock of a sender is wrong by its own statement; without one it counts as right.

    Raises `ClockDoubted` if the sender says that it has not seen our time yet: then its clock cannot be judged.
    """
    time, service_time = _time(header(TIME_FIELD)), _time(header(SERVICE_TIME_FIELD))
    if time is None:
        return False
    if service_time is not None and is_doubtful(
        time, service_time=service_time, received=received, tolerance_seconds=tolerance_seconds
    ):
        raise ClockDoubted(received)
    return is_wrong(time, service_time=service_time or 0.0, received=received, tolerance_seconds=tolerance_seconds)


def _time(text: str) -> float | None:
    try:
        found = float(text) if text else None
    except ValueError:
        return None
    return found if found is not None and 0.0 <= found < TIME_MAX else None


# Whether the token of a package is still valid: until its attempt is over, according to the book.


def refuse_ended(services: Services, ref: AttemptRef) -> None:
    """Raise `Unauthenticated` if the attempt of a token is over, or never existed."""
    job = services.journal.job(ref.job)
    attempt = None
    if job is not None:
        try:
            facts = services.reader.package(job, package_place(ref.package)).facts
        except UnknownPackage:
            facts = None
        attempt = facts.attempts.get(ref.attempt) if facts is not None else None
    if why := why_ended(attempt, services.clock.now()):
        raise Unauthenticated(
            f"the token of a package ends with its attempt: {why}",
            subject=f"attempt {ref.attempt} of {ref.job}/{ref.package}",
        )


log = logging.getLogger(__name__)

STILL_HERE_SECONDS = 15.0
"""A stream sends a keep-alive when there is nothing else to send, so that no proxy closes it."""

_encode = msgspec.json.Encoder().encode


class _AnyBatch(msgspec.Struct):
    events: list[msgspec.Raw]


_any_batch = msgspec.json.Decoder(_AnyBatch)

_REFUSED = "Some events were refused, each by its index; every other event of the batch is stored."


@post(
    "/v1/events",
    status=200,
    operation_id="log_events",
    needs=(WRITE,),
    is_for_packages=True,
    body="batch",
    summary="Log a batch of events",
    tags=["events"],
    faults=(400, 401, 403, 413, 425, 503, 507),
    answers={409: (Receipt, _REFUSED), 422: (Receipt, _REFUSED)},
)
async def log_events(request: ApiRequest, services: ServicesArgument) -> Reply[Receipt]:
    """Store events. Every event not named in `refused` is durable when the answer comes; repeats are welcome."""
    if request.user.package is not None:
        await services.do(refuse_ended, services, request.user.package)
    now = services.clock.now()
    body = await request.body()
    skewed = is_skewed(request.header, received=now, tolerance_seconds=services.settings.book.skew_seconds)
    batch = await _read(request, services, body)
    if skewed:
        streams = frozenset((one.event.source, one.event.stream) for one in batch.checked)
        batch = Batch(batch.checked, batch.refused, streams)
    receipt = await asyncio.wrap_future(services.writer.submit(batch))
    return Reply(body=receipt, status=_status(receipt), headers={TIME_FIELD: f"{now:.3f}"})


async def _read(request: ApiRequest, services: Services, body: bytes) -> Batch:
    events_max = services.settings.service.batch_events_max
    try:
        # A batch has fewer events than commas, and few have that many: only those are counted before they are decoded.
        if body.count(b",") >= events_max:
            _check_count(body, events_max)
        checked, refused, count = services.codec.read_batch(body, count_max=events_max)
    except RecursionError:
        raise MalformedBatch("the body is not a batch of events: it is nested too deeply") from None
    if count > events_max:
        raise _too_many(count, events_max)
    allowed, forbidden = await _allowed(request, services, checked)
    return Batch(allowed, [*refused, *forbidden])


async def _allowed(
    request: ApiRequest, services: Services, checked: Sequence[Checked]
) -> tuple[Sequence[Checked], Sequence[Refusal]]:
    principal, find_job = request.user, services.journal.job
    runs = services.backend is not None
    if may_log_anything(principal) and not runs and principal.package is None:
        return checked, ()

    def judge() -> tuple[Sequence[Checked], Sequence[Refusal]]:
        left, refused = left_to_engine(checked, find_job=find_job) if runs else (checked, [])
        allowed, forbidden = allowed_events(principal, left, find_job=find_job)
        return allowed, [*refused, *forbidden]

    return await services.do(judge)


def _check_count(body: bytes, events_max: int) -> None:
    try:
        count = len(_any_batch.decode(body).events)
    except RecursionError:
        return  # an event is nested too deeply: count them by splitting
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise MalformedBatch(f"the body is not a batch of events: {fault}") from None
    if count > events_max:
        raise _too_many(count, events_max)


def _too_many(count: int, events_max: int) -> BatchTooLarge:
    return BatchTooLarge(
        "the batch is too large: nothing of it was stored",
        expected=f"at most {events_max:,} events",
        got=f"{count:,}",
        next_step="send smaller batches",
    )


def _status(receipt: Receipt) -> int:
    if not receipt.refused:
        return 200
    return 409 if all(each.code == "conflict" for each in receipt.refused) else 422


@get(
    "/v1/events",
    operation_id="find_events",
    needs=(READ,),
    summary="Find events of all jobs",
    tags=["events"],
    faults=(400, 401, 403, 422, 503),
)
async def find_events(
    request: ApiRequest, services: ServicesArgument, text: QueryText = "", cursor: CursorText = None, limit: Limit = 0
) -> EventsPage:
    """Events that match a query, by position."""

    def answer() -> EventsPage:
        found = services.reader.events(request.user, text, cursor=cursor, limit=limit)
        return EventsPage(events=[event_view(each) for each in found.items], next=found.next)

    return await services.ask(answer)


_FOLLOWED = {
    200: (
        EventsAfter,
        "Events after the position; with `Accept: text/event-stream`, a stream of them that does not end.",
    )
}


@get(
    "/v1/jobs/{job:str}/events",
    operation_id="job_events",
    needs=(READ,),
    summary="Events of a job",
    tags=["events"],
    answers=_FOLLOWED,
    faults=(400, 401, 403, 404, 410, 422, 503),
)
async def job_events(
    request: ApiRequest,
    services: ServicesArgument,
    job: JobPath,
    text: QueryText = "",
    after: After = 0,
    limit: Limit = 0,
    wait_seconds: WaitSeconds = 0.0,
    last_event_id: LastEventId = None,
) -> Reply[EventsAfter]:
    """The events of a job after a position; waits for them on request, or streams them as they are committed."""
    following = _Following(request, services, job, None, text=text, limit=limit)
    return await following.answer(after=after, wait_seconds=wait_seconds, last_event_id=last_event_id)


@get(
    "/v1/jobs/{job:str}/packages/{package:str}/events",
    operation_id="package_events",
    needs=(READ,),
    summary="Events of a package",
    tags=["events"],
    answers=_FOLLOWED,
    faults=(400, 401, 403, 404, 410, 422, 503),
)
async def package_events(
    request: ApiRequest,
    services: ServicesArgument,
    job: JobPath,
    package: PackagePath,
    text: QueryText = "",
    after: After = 0,
    limit: Limit = 0,
    wait_seconds: WaitSeconds = 0.0,
    last_event_id: LastEventId = None,
) -> Reply[EventsAfter]:
    """The events of a package and its attempts after a position; waits or streams like those of the job."""
    following = _Following(request, services, job, package_place(package), text=text, limit=limit)
    return await following.answer(after=after, wait_seconds=wait_seconds, last_event_id=last_event_id)


class _Following:
    """A client that follows the events of a job or a package."""

    def __init__(
        self, request: ApiRequest, services: Services, job: str, place: PackageId | None, *, text: str, limit: int
    ) -> None:
        self._request = request
        self._services = services
        self._job = job
        self._place = place
        self._text = text
        self._limit = limit

    async def answer(self, *, after: int, wait_seconds: float, last_event_id: str | None) -> Reply[EventsAfter]:
        streams = self._request.wants_stream
        if streams or self._place is not None:
            # Looked up before a stream begins: an unknown job is a 404, not a broken stream.
            await self._services.ask(self._check_existence)
        if streams:
            start = max(after, _position(last_event_id))
            return Reply(stream=self._stream(start), media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})
        page = await self._waited(after, wait_seconds=wait_seconds)
        events = [event_view(found) for found in page.items]
        last = events[-1].position if events else after
        if page.more and page.scanned_to is not None:
            last = page.scanned_to
        return Reply(body=EventsAfter(events=events, after=last, more=page.more))

    def _check_existence(self) -> None:
        row = self._services.reader.job(self._request.user, self._job)
        if self._place is not None:
            self._services.reader.package(row, self._place)

    def _look(self, after: int) -> Page[FoundEvent]:
        reader = self._services.reader
        # The job is looked up each time: it may be sealed, purged or closed to this user meanwhile.
        row = reader.job(self._request.user, self._job)
        return reader.job_events(row, self._text, after=after, limit=self._limit, place=self._place)

    async def _waited(self, after: int, *, wait_seconds: float) -> Page[FoundEvent]:
        commits = self._services.commits
        until = time.monotonic() + min(wait_seconds, WAIT_SECONDS_MAX)
        with commits.waiting_for(self._job) as waiter:
            page = await self._services.ask(self._look, after)
            while not page.items and not page.more and not commits.stopped and (left := until - time.monotonic()) > 0:
                if await waiter.wait(wait_seconds=left):
                    page = await self._services.ask(self._look, after)
        return page

    async def _stream(self, after: int) -> AsyncIterator[bytes]:
        commits = self._services.commits
        yield b"retry: 2000\n\n"
        with commits.waiting_for(self._job) as waiter:
            while not commits.stopped:
                try:
                    page = await self._services.ask(self._look, after)
                except PilotageError as fault:
                    # The status was sent long ago; the client learns the reason when it asks again.
                    log.info("the stream of job %s ends: %s", self._job, fault)
                    return
                for found in page.items:
                    after = found.row.position
                    yield b"id: %d\ndata: %s\n\n" % (after, _encode(event_view(found)))
                if page.more:
                    after = page.scanned_to if page.scanned_to is not None else after
                    continue
                if not await waiter.wait(wait_seconds=STILL_HERE_SECONDS):
                    yield b": still here\n\n"


def _position(last_event_id: str | None) -> int:
    if not last_event_id:
        return 0
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 15:
        raise BadParameter("not a position", subject="Last-Event-ID", got=repr(last_event_id[:40]))
    return int(last_event_id)


EVENT_ROUTES = (log_events, find_events, job_events, package_events)
