"""Delivers spooled events: from every queue whose server and token are known, once or until told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec

from pilotage.agent import BadSetting, Courier, Queue, Spool
from pilotage.agent.delivery.spool import is_pilots_own
from pilotage.agent.link.http import Connection
from pilotage.client.finding import Address

LOOK_SECONDS = 2.0

Known = Callable[[], Iterable[Address]]
"""The servers known now, each with its token."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one delivery from one queue."""

    server: str
    folder: str
    delivered: int = 0
    refused: int = 0
    waiting: int = 0
    problem: str = ""


def deliver_once(spool: Spool, known: Known, *, timeout_seconds: float) -> list[Delivery]:
    """Deliver queue by queue, each up to its first failure; empty queues of old addresses are left out."""
    addresses = {address.url: address for address in known()}
    queues = [queue for queue in spool.queues() if queue.server in addresses or queue.pending()]
    return [_deliver(queue, addresses.get(queue.server), timeout_seconds) for queue in queues]


def _deliver(queue: Queue, address: Address | None, timeout_seconds: float) -> Delivery:
    delivery = Delivery(server=queue.server, folder=str(queue.folder))
    if address is None or not address.runs or is_pilots_own(queue.server):
        waiting = queue.pending()
        problem = _no_way(queue, address) if waiting else ""
        return msgspec.structs.replace(delivery, waiting=waiting, problem=problem)
    courier = _courier(queue, address)
    try:
        drained = courier.drain_once(timeout_seconds=timeout_seconds)
    finally:
        courier.close()
    waiting = queue.pending()
    problem = "another courier is at work" if drained.busy else drained.problem
    return msgspec.structs.replace(
        delivery,
        delivered=drained.delivered - drained.refused,
        refused=drained.refused,
        waiting=waiting,
        problem=problem or ("timed out" if waiting else ""),
    )


def _courier(queue: Queue, address: Address) -> Courier:
    connection = Connection(queue.server, ca_file=address.ca_file)
    return Courier(queue, token=address.token_source(), connection=connection)


def _no_way(queue: Queue, address: Address | None) -> str:
    if is_pilots_own(queue.server):
        return "only the pilot of a package reaches it, and delivers this"
    if address is not None:
        return f"the service of {address.origin} does not run"
    return f"no token is known for it: --server {queue.server} --token-file FILE"


def deliver_for_ever(spool: Spool, known: Known, *, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Deliver spooled and new events until `stop` is set; report each problem once."""
    couriers: dict[str, Courier] = {}
    threads: list[threading.Thread] = []
    reported: dict[str, str] = {}
    try:
        while not stop.is_set():
            addresses = {address.url: address for address in known()}
            for queue in spool.queues():
                address = addresses.get(queue.server)
                courier = couriers.get(queue.server)
                if courier is None and address is not None and address.runs and not is_pilots_own(queue.server):
                    courier = couriers[queue.server] = _courier(queue, address)
                    threads.append(threading.Thread(target=courier.run, args=(stop,), daemon=True))
                    threads[-1].start()
                if courier is None:
                    problem = _no_way(queue, address) if queue.pending() else ""
                else:
                    problem = courier.last_error
                if problem and problem != reported.get(queue.server):
                    say(f"{queue.server}: {problem}")
                reported[queue.server] = problem
            stop.wait(LOOK_SECONDS)
    finally:
        stop.set()
        for courier in couriers.values():
            courier.stop()
        for thread in threads:
            thread.join()


def spool_at(folder: str | None, environment: dict[str, str]) -> Spool:
    """The spool of this user, or the one in the named folder."""
    from pathlib import Path

    from pilotage.agent import default_spool

    if folder is not None and not Path(folder).is_dir():
        raise BadSetting("there is no such spool", subject=folder, expected="a folder")
    return Spool(Path(folder) if folder is not None else default_spool(environment))
