"""Feeds of index servers over HTTP: an index registers what it wants of the records here, and fetches it in batches."""

from __future__ import annotations

from typing import Annotated

from pilotage.model.events.events import COUNTER_MAX
from pilotage.provenance.index.feed import CHANGES_MAX, FeedBatch, FeedRegistration, feed_batch
from pilotage.reading.access import READ, SUBSCRIBE, may
from pilotage.reading.views import View
from pilotage.service.http.routes.records import keeping_of, refuse_bound
from pilotage.service.http.routing import (
    ApiRequest,
    ServicesArgument,
    end,
    get,
    in_body,
    in_path,
    in_query,
    post,
)

FeedPath = Annotated[str, in_path("The name of the index.")]
AfterChange = Annotated[
    int, in_query("Only changes after this position; 0 for all.", name="after", ge=0, le=COUNTER_MAX)
]
ChangeLimit = Annotated[int, in_query("The most changes to look at.", name="limit", ge=1, le=CHANGES_MAX)]


class FeedsView(View, frozen=True, kw_only=True):
    """What your indexes registered."""

    feeds: list[FeedRegistration]


@get(
    "/v1/feeds",
    operation_id="list_feeds",
    needs=(READ, SUBSCRIBE),
    summary="The indexes that are fed from here",
    tags=["records"],
    faults=(400, 401, 403, 409, 503),
)
async def list_feeds(request: ApiRequest, services: ServicesArgument) -> FeedsView:
    """What your index servers registered since the service started."""
    refuse_bound(request.user)
    return FeedsView(feeds=keeping_of(services).feeds.registrations(request.user.user))


@post(
    "/v1/feeds",
    operation_id="register_feed",
    needs=(READ, SUBSCRIBE),
    summary="Register an index",
    tags=["records"],
    faults=(400, 401, 403, 409, 503),
    answered_by="framework",
)
async def register_feed(
    request: ApiRequest, services: ServicesArgument, data: Annotated[FeedRegistration, in_body()]
) -> FeedRegistration:
    """Register the name of an index, the attributes that it keeps, and the query of the records that it wants.

    A registration replaces the one of the same name. After a restart of the service it is made again.
    """
    refuse_bound(request.user)
    keeping_of(services).feeds.register(request.user.user, data)
    return data


@get(
    "/v1/feeds/{name:str}",
    operation_id="feed_index",
    needs=(READ, SUBSCRIBE),
    summary="What changed for an index",
    tags=["records"],
    faults=(400, 401, 403, 404, 409, 503),
)
async def feed_index(
    request: ApiRequest,
    services: ServicesArgument,
    name: FeedPath,
    after: AfterChange = 0,
    limit: ChangeLimit = CHANGES_MAX,
) -> FeedBatch:
    """Entries of the records that changed after a position, of those that the index wants and you may read.

    Ask again with `after` set to the `position` of the answer; at the `end`, later. With `restart`, the storage has less than the
    index read of it: forget its entries, and begin with 0.
    """
    refuse_bound(request.user)
    keeping = keeping_of(services)
    feed = keeping.feeds.feed(request.user.user, name)

    def could_read(job: str) -> bool:
        row = services.journal.job(job)
        return row is not None and may(request.user, "read", row)

    def answer() -> FeedBatch:
        store = keeping.store()
        return feed_batch(store, feed, principal=request.user, after=after, limit=limit, could_read=could_read)

    return await services.do(answer)


@end(
    "/v1/feeds/{name:str}",
    operation_id="end_feed",
    needs=(READ, SUBSCRIBE),
    summary="Forget an index",
    tags=["records"],
    faults=(400, 401, 403, 404, 409, 503),
)
async def end_feed(request: ApiRequest, services: ServicesArgument, name: FeedPath) -> None:
    """Forget what an index registered."""
    refuse_bound(request.user)
    keeping_of(services).feeds.remove(request.user.user, name)


FEED_ROUTES = (list_feeds, register_feed, feed_index, end_feed)
