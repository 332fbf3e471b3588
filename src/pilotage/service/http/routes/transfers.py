"""Files on their way over HTTP: the transfers that run now, and what those with each store came to."""

from __future__ import annotations

from pilotage.reading.access import ANY_OWNER, READ
from pilotage.reading.views import View
from pilotage.service.http.routing import ApiRequest, ServicesArgument, get
from pilotage.service.http.services import Services, backend_of
from pilotage.service.transfers.transfers import Transfers


class TransferView(View, frozen=True, kw_only=True):
    """A transfer that runs: `kind` is fetch (to a site), store (of an output) or send (to a site agent).

    Only a token for all owners sees which file it is.
    """

    kind: str
    file: str
    store: str
    site: str
    bytes_done: int
    total_bytes: int | None
    bytes_per_second: float
    seconds: float
    tries: int
    fault: str


class TransfersView(View, frozen=True, kw_only=True):
    """The transfers that run now, the longest first."""

    transfers: list[TransferView]


class StoreView(View, frozen=True, kw_only=True):
    """What the transfers with a store came to since the service started; `failures` are counted by their reasons."""

    store: str
    under_way: int
    waiting: int
    files: int
    bytes: int
    seconds: float
    failures: dict[str, int]
    last_fault: str


class StoresView(View, frozen=True, kw_only=True):
    """The stores that the service has used, by name."""

    stores: list[StoreView]


@get(
    "/v1/transfers",
    operation_id="transfers",
    needs=(READ,),
    summary="Files on their way",
    tags=["files"],
    faults=(401, 403, 409, 503),
)
async def transfers(request: ApiRequest, services: ServicesArgument) -> TransfersView:
    """The transfers that run now, with their bytes, rate, tries and last fault."""
    moving, sees_files = _transfers(services), ANY_OWNER in request.user.scopes
    return TransfersView(
        transfers=[
            TransferView(
                kind=each.kind,
                file=each.locator if sees_files else "",
                store=each.store,
                site=each.site,
                bytes_done=each.bytes_done,
                total_bytes=each.total_bytes,
                bytes_per_second=each.bytes_per_second,
                seconds=each.seconds,
                tries=each.tries,
                fault=each.fault,
            )
            for each in (moving.under_way() if moving is not None else ())
        ]
    )


@get(
    "/v1/stores",
    operation_id="stores",
    needs=(READ,),
    summary="Stores",
    tags=["files"],
    faults=(401, 403, 409, 503),
)
async def stores(request: ApiRequest, services: ServicesArgument) -> StoresView:
    """The stores that were used: files, bytes and seconds of their transfers, and the failures by reason."""
    moving, sees_files = _transfers(services), ANY_OWNER in request.user.scopes
    return StoresView(
        stores=[
            StoreView(
                store=each.store,
                under_way=each.under_way,
                waiting=each.waiting,
                files=each.files,
                bytes=each.bytes,
                seconds=each.seconds,
                failures=each.failures,
                last_fault=each.last_fault if sees_files else "",
            )
            for each in (moving.stores() if moving is not None else ())
        ]
    )


def _transfers(services: Services) -> Transfers | None:
    return backend_of(services).jobs.transfers


TRANSFER_ROUTES = (transfers, stores)
