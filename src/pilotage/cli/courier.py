"""`pilotage courier`: delivers the events that wait in the spool."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.remote import address_of, json_option, local_addresses, server_option
from pilotage.cli.words import table
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client import Address
    from pilotage.client.delivering import Delivery

ONCE_SECONDS = 300.0


@click.command()
@click.option("--once", is_flag=True, help="Deliver what waits now, and end.")
@click.option("--spool", type=click.Path(), metavar="DIR", help="Where events wait; none: PILOTAGE_SPOOL.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0.1),
    default=ONCE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long --once takes for each server at most.",
)
@json_option
@server_option
def courier(
    spool: str | None,
    timeout_seconds: float,
    server: str | None,
    token_file: str | None,
    *,
    once: bool,
    as_json: bool,
) -> int:
    """Deliver events that wait in the spool, to each server its own.

    It goes on until interrupted, unless --once is given. Whatever cannot be delivered is kept and tried again. A server that refuses an event says why; it is set aside in
    refused.jsonl of its queue. Exit code of --once: 0 when nothing waits any more, 3 when something does.
    """
    from pilotage.client.delivering import deliver_for_ever, deliver_once, spool_at

    if as_json and not once:
        raise click.UsageError("--json goes with --once.")
    found = spool_at(spool, dict(os.environ))

    def known() -> Iterator[Address]:
        yield from local_addresses()
        if server is not None or os.environ.get("PILOTAGE_SERVER"):
            yield address_of(server, token_file)

    if not once:
        gc.enable()  # this goes on for days
        stop = threading.Event()
        try:
            deliver_for_ever(found, known, stop=stop, say=say_to_reader)
        except KeyboardInterrupt:
            stop.set()
            return ExitCode.INTERRUPTED
        return ExitCode.COMPLETE
    deliveries = deliver_once(found, known, timeout_seconds=timeout_seconds)
    _tell(deliveries, as_json=as_json)
    return ExitCode.STOPPED if any(each.waiting for each in deliveries) else ExitCode.COMPLETE


def _tell(deliveries: list[Delivery], *, as_json: bool) -> None:
    if as_json:
        from pilotage import app

        emit([app.json_text({"queues": deliveries})])
        return
    rows = [(each.server, each.delivered, each.refused, each.waiting) for each in deliveries]
    emit(table(rows, header=("SERVER", "DELIVERED", "REFUSED", "WAITING")))
    for each in deliveries:
        if each.problem and each.waiting:
            say_to_reader(f"{each.server}: {each.problem}")
        if each.refused:
            say_to_reader(f"{each.server}: what it refused, and why: {each.folder}/refused.jsonl")
