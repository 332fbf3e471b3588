"""Subscriptions over HTTP: create, list, refresh, rebind and drop them; fetch notices by long poll or stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from pilotage.book.notices.notices import START, Number, cloud_event, notice_of, number_of, number_text, read_number
from pilotage.book.query import STATES
from pilotage.book.rows.tables import NoticeRow, SubscriptionRow
from pilotage.model.errors import PilotageError
from pilotage.reading.access import READ, SUBSCRIBE
from pilotage.reading.views import View
from pilotage.service.http.errors import BadParameter
from pilotage.service.http.routing import (
    EVENT_STREAM,
    WAIT_SECONDS_MAX,
    ApiRequest,
    LastEventId,
    Reply,
    ServicesArgument,
    WaitSeconds,
    change,
    end,
    get,
    in_body,
    in_path,
    in_query,
    post,
)
from pilotage.service.http.services import Services
from pilotage.service.notifications.notifications import Notifications, signal_name
from pilotage.service.notifications.subscriptions import SubscriptionRequest

NOTICES_MAX = 1000
STREAM_NOTICES_MAX = 1000
STREAM_SECONDS_MAX = 600.0
"""A stream ends after so many notices or seconds; the client comes back with `Last-Event-ID`, which acknowledges."""

STILL_HERE_SECONDS = 15.0

Answer = TypeVar("Answer")
Name = Annotated[str, Meta(max_length=200)]
Names = Annotated[tuple[Name, ...], Meta(max_length=100)]
Seconds = Annotated[
    float, Meta(gt=0, description="How long it is valid from now on; never longer than the setting allows.")
]
SubscriptionPath = Annotated[str, in_path("The id of the subscription.")]
AfterNumber = Annotated[
    str,
    in_query(
        "Only notices after this number, the `after` of the last answer; earlier ones are acknowledged.",
        name="after",
        max_length=40,
    ),
]
NoticeLimit = Annotated[int, in_query("The most notices to return.", name="limit", ge=1, le=NOTICES_MAX)]

_encode = msgspec.json.Encoder().encode


class SubscribeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to be notified of, and how. With neither states nor attributes, of every change of state."""

    query: Annotated[str, Meta(max_length=8192, description="Only what this query matches; all without it.")] = ""
    target: Annotated[str, Meta(max_length=20, description="`packages` or `jobs`.")] = "packages"
    states: Annotated[Names, Meta(description="Notify on entering one of these states.")] = ()
    attributes: Annotated[Names, Meta(description="Notify on a change of one of these attributes.")] = ()
    validity_seconds: Seconds | None = None
    transport: Annotated[str, Meta(max_length=20, description="`poll`, `webhook` or `mail`.")] = "poll"
    address: Annotated[str, Meta(max_length=2048, description="The URL or the mail address; none for `poll`.")] = ""
    secret: Annotated[str, Meta(max_length=256, description="Signs webhooks; generated if omitted.")] = ""


class RefreshBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new validity; the default one if omitted."""

    validity_seconds: Seconds | None = None


class RebindBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to send notices from now on, including queued ones; the secret stays if none is given."""

    transport: Annotated[str, Meta(max_length=20)]
    address: Annotated[str, Meta(max_length=2048)] = ""
    secret: Annotated[str, Meta(max_length=256)] = ""


class SubscriptionView(View, frozen=True, kw_only=True):
    """A subscription; the last `tries` deliveries failed, the last one with `fault`, and the next is at `next_at`."""

    id: str
    target: str
    query: str
    states: list[str]
    attributes: list[str]
    transport: str
    address: str
    created_at: float
    expires_at: float
    tries: int
    next_at: float | None
    fault: str


class CreatedView(View, frozen=True, kw_only=True):
    """A new subscription, and the secret that signs its webhooks, which is not shown again."""

    subscription: SubscriptionView
    secret: str


class SubscriptionsView(View, frozen=True, kw_only=True):
    """All your subscriptions, oldest first."""

    subscriptions: list[SubscriptionView]


class NoticeView(View, frozen=True, kw_only=True):
    """A notice, in the JSON form of CloudEvents 1.0."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str
    data: dict[str, Any]


class NoticesView(View, frozen=True, kw_only=True):
    """Notices after a number; ask again with `after` for the next ones, which acknowledges these."""

    notices: list[NoticeView]
    after: str
    more: bool


def _view(row: SubscriptionRow) -> SubscriptionView:
    states, attributes = json.loads(row.states), json.loads(row.attributes)
    if len(states) == len(STATES):
        # All states: the client asked for every change of state.
        states, attributes = [], ["state", *attributes]
    return SubscriptionView(
        id=row.subscription,
        target=row.target,
        query=row.query,
        states=states,
        attributes=attributes,
        transport=row.transport,
        address=row.address,
        created_at=row.created_at,
        expires_at=row.expires_at,
        tries=row.attempts,
        next_at=row.next_at or None,
        fault=row.fault,
    )


def _notifications(services: Services) -> Notifications:
    if services.notifications is None:
        raise BadParameter("this service has no subscriptions")
    return services.notifications


async def _ask(services: Services, question: Callable[[], Answer]) -> Answer:
    answer = await asyncio.get_running_loop().run_in_executor(_notifications(services).threads, question)
    await services.settled()
    return answer


@post(
    "/v1/subscriptions",
    operation_id="subscribe",
    answered_by="framework",
    needs=(READ, SUBSCRIBE),
    summary="Subscribe",
    tags=["subscriptions"],
    faults=(400, 401, 403, 409, 503, 507),
)
async def subscribe(
    request: ApiRequest, services: ServicesArgument, data: Annotated[SubscribeBody, in_body()]
) -> CreatedView:
    """Be notified of changes from now on; durable until the validity ends."""
    asked = msgspec.convert(data, SubscriptionRequest, from_attributes=True)
    row = await _ask(services, lambda: _notifications(services).subscriptions.create(request.user, asked))
    return CreatedView(subscription=_view(row), secret=row.secret)


@get(
    "/v1/subscriptions",
    operation_id="subscriptions",
    needs=(READ,),
    summary="Your subscriptions",
    tags=["subscriptions"],
    faults=(400, 401, 403, 503),
)
async def list_subscriptions(request: ApiRequest, services: ServicesArgument) -> SubscriptionsView:
    """The sender's subscriptions that have not expired."""
    rows = _notifications(services).subscriptions.of(request.user)
    return SubscriptionsView(subscriptions=[_view(row) for row in rows])


@get(
    "/v1/subscriptions/{subscription:str}",
    operation_id="subscription",
    needs=(READ,),
    summary="A subscription",
    tags=["subscriptions"],
    faults=(400, 401, 403, 404, 503),
)
async def one_subscription(
    request: ApiRequest, services: ServicesArgument, subscription: SubscriptionPath
) -> SubscriptionView:
    """One subscription, with the outcome of its last delivery."""
    return _view(_notifications(services).subscriptions.get(request.user, subscription))


@post(
    "/v1/subscriptions/{subscription:str}/refresh",
    status=200,
    operation_id="refresh_subscription",
    answered_by="framework",
    needs=(READ, SUBSCRIBE),
    summary="Extend a subscription",
    tags=["subscriptions"],
    faults=(400, 401, 403, 404, 503, 507),
)
async def refresh_subscription(
    request: ApiRequest,
    services: ServicesArgument,
    subscription: SubscriptionPath,
    data: Annotated[RefreshBody, in_body()],
) -> SubscriptionView:
    """Set a new end of validity, counted from now."""
    found = _notifications(services).subscriptions
    row = await _ask(
        services, lambda: found.refresh(request.user, subscription, validity_seconds=data.validity_seconds)
    )
    return _view(row)


@change(
    "/v1/subscriptions/{subscription:str}",
    operation_id="rebind_subscription",
    needs=(READ, SUBSCRIBE),
    summary="Send notices elsewhere",
    tags=["subscriptions"],
    faults=(400, 401, 403, 404, 503, 507),
)
async def rebind_subscription(
    request: ApiRequest,
    services: ServicesArgument,
    subscription: SubscriptionPath,
    data: Annotated[RebindBody, in_body()],
) -> SubscriptionView:
    """Change the transport or the address; queued notices go to the new one, at once."""
    found = _notifications(services).subscriptions
    row = await _ask(
        services,
        lambda: found.rebind(
            request.user, subscription, transport=data.transport, address=data.address, secret=data.secret
        ),
    )
    return _view(row)


@end(
    "/v1/subscriptions/{subscription:str}",
    operation_id="drop_subscription",
    needs=(READ, SUBSCRIBE),
    summary="End a subscription",
    tags=["subscriptions"],
    faults=(400, 401, 403, 404, 503, 507),
)
async def drop_subscription(request: ApiRequest, services: ServicesArgument, subscription: SubscriptionPath) -> None:
    """End a subscription and discard its queued notices."""
    await _ask(services, lambda: _notifications(services).subscriptions.drop(request.user, subscription))


@get(
    "/v1/subscriptions/{subscription:str}/notices",
    operation_id="notices",
    needs=(READ, SUBSCRIBE),
    summary="Notices of a polled subscription",
    tags=["subscriptions"],
    faults=(400, 401, 403, 404, 409, 503, 507),
    answers={200: (NoticesView, "Notices in order; with `Accept: text/event-stream`, a stream of them as they come.")},
)
async def subscription_notices(
    request: ApiRequest,
    services: ServicesArgument,
    subscription: SubscriptionPath,
    after: AfterNumber = "",
    limit: NoticeLimit = 100,
    wait_seconds: WaitSeconds = 0.0,
    last_event_id: LastEventId = None,
) -> Reply[NoticesView]:
    """Queued notices after a number, which acknowledges: notices up to it are discarded."""
    polling = _Polling(request, services, subscription)
    if request.wants_stream:
        start = max(_number(after, "after"), _number(last_event_id or "", "Last-Event-ID"))
        await polling.acknowledge(start)
        first = await polling.look(start, limit=limit)
        return Reply(
            stream=polling.stream(first, start), media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"}
        )
    start = _number(after, "after")
    await polling.acknowledge(start)
    found = await polling.wait(start, limit=limit, wait_seconds=wait_seconds)
    views = [polling.view(row) for row in found[:limit]]
    last = number_of(found[:limit][-1]) if views else start
    answer = NoticesView(notices=views, after=number_text(last), more=len(found) > limit)
    return Reply(body=answer)


def _number(text: str, name: str) -> Number:
    if not text:
        return START
    found = read_number(text)
    if found is None:
        raise BadParameter("not the number of a notice", subject=name, got=repr(text[:40]))
    return found


class _Polling:
    """A client that fetches the notices of a subscription."""

    def __init__(self, request: ApiRequest, services: Services, subscription: str) -> None:
        self._request = request
        self._services = services
        self._subscription = subscription
        self._base_url = _notifications(services).base_url

    async def acknowledge(self, through: Number) -> None:
        """Acknowledge all notices up to a number."""
        found = _notifications(self._services).subscriptions
        user, name = self._request.user, self._subscription
        if through > START:
            await _ask(self._services, lambda: found.acknowledge(user, name, through=through))

    async def look(self, after: Number, *, limit: int) -> Sequence[NoticeRow]:
        """The notices after a number, and one more if there is."""
        found = _notifications(self._services).subscriptions
        user, name = self._request.user, self._subscription
        return await _ask(self._services, lambda: found.notices(user, name, after=after, limit=limit + 1))

    async def wait(self, after: Number, *, limit: int, wait_seconds: float) -> Sequence[NoticeRow]:
        """The same, but wait if there are none."""
        commits = self._services.commits
        until = time.monotonic() + min(wait_seconds, WAIT_SECONDS_MAX)
        with commits.waiting_for(signal_name(self._subscription)) as waiter:
            found = await self.look(after, limit=limit)
            while not found and not commits.stopped and (left := until - time.monotonic()) > 0:
                if await waiter.wait(wait_seconds=left):
                    found = await self.look(after, limit=limit)
        return found

    async def stream(self, first: Sequence[NoticeRow], after: Number) -> AsyncIterator[bytes]:
        """Stream server-sent events. Only the number that the client comes back with acknowledges."""
        commits = self._services.commits
        until = time.monotonic() + STREAM_SECONDS_MAX
        sent, found = 0, first
        yield b"retry: 2000\n\n"
        with commits.waiting_for(signal_name(self._subscription)) as waiter:
            while not commits.stopped:
                for row in found:
                    after = number_of(row)
                    yield _sse(self.view(row))
                    sent += 1
                left = min(STILL_HERE_SECONDS, until - time.monotonic())
                if sent >= STREAM_NOTICES_MAX or left <= 0:
                    return
                if not found and not await waiter.wait(wait_seconds=left):
                    yield b": still here\n\n"
                try:
                    found = await self.look(after, limit=NOTICES_MAX)
                except PilotageError:
                    # Dropped, rebound, expired, or the journal is gone: the client learns which when it comes back.
                    return

    def view(self, row: NoticeRow) -> NoticeView:
        """The view of a notice."""
        event = cloud_event(notice_of(row, base_url=self._base_url))
        return NoticeView(
            specversion=event.specversion,
            id=event.id,
            source=event.source,
            type=event.type,
            subject=event.subject,
            time=event.time,
            datacontenttype=event.datacontenttype,
            data=json.loads(row.data),
        )


def _sse(view: NoticeView) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (view.id.encode(), view.type.encode(), _encode(view))


SUBSCRIPTION_ROUTES = (
    subscribe,
    list_subscriptions,
    one_subscription,
    refresh_subscription,
    rebind_subscription,
    drop_subscription,
    subscription_notices,
)
