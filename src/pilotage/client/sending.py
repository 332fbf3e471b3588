"""Logs events for scripts: into the spool, and from there to the server, at once or soon."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from pilotage.agent import AgentError, EventId, NotDelivered, Producer
from pilotage.agent.courier import acknowledged
from pilotage.agent.errors import TokenRefused
from pilotage.agent.spool import is_pilots_own
from pilotage.client.composing import Composed
from pilotage.client.finding import Address
from pilotage.client.server import Server, path_of
from pilotage.model.errors import PilotageError

POSITION_SECONDS = 2.0
QUICKLY_SECONDS = 0.2
"""How long a script is kept waiting for a delivery that it did not ask to wait for."""


REGISTERS = frozenset({"Tagged", "OwnerSet", "AccessSet"})
"""What takes the place of an older value: it must have seen that one, or the older one stands."""


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the spool: whether the server has it by now, or why it will not have it."""

    source: str
    stream: str
    n: int
    delivered: bool
    refused: str = ""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of events: each of them, why some did not go, and what the server said of all that went."""

    events: list[Logged]
    problem: str
    denied: bool  # the token is the problem: waiting does not help
    delivered: int  # with those that waited in the spool before
    parked: int  # how many of the delivered are of jobs that are not registered yet


def log_events(
    events: Sequence[Composed],
    *,
    address: Address,
    source: str,
    spool: str | None,
    environment: Mapping[str, str],
    deliver_seconds: float,
) -> Sent:
    """Bring events to the disk of this host, then give the server that long to take them.

    What it has not taken by then is kept, and goes with the next delivery to that server.
    """
    producer = Producer(
        address.url,
        source=source,
        spool=spool,
        token=address.token,
        token_file=address.token_file,
        ca_file=address.ca_file,
        deliver=False,
        environment=dict(environment),
    )
    try:
        is_reached = not is_pilots_own(address.url)
        if (
            deliver_seconds > 0
            and is_reached
            and (not producer.queue.seen() or any(event.type in REGISTERS for event in events))
        ):
            _learn_position(producer, address, seconds=deliver_seconds)
        logged = [_log(producer, event) for event in events]
        producer.sync()
        problem, denied = "", False
        if deliver_seconds > 0:
            try:
                producer.flush(deliver_seconds)
            except NotDelivered as error:  # each event tells for itself whether it went
                problem = producer.last_error.removeprefix(f"{address.url}: ")
                denied = isinstance(error, TokenRefused)
        return Sent(
            events=[_outcome(producer, each) for each in logged],
            problem=problem,
            denied=denied,
            delivered=producer.delivered,
            parked=producer.parked,
        )
    finally:
        producer.close(flush_seconds=0)


def _learn_position(producer: Producer, address: Address, *, seconds: float) -> None:
    """Note how far the book of the server is, if it answers: what is logged now comes after all of that."""
    limit_seconds = min(seconds, POSITION_SECONDS)
    server = Server(address.url, token=address.token_source(), answer_seconds=limit_seconds, ca_file=address.ca_file)
    with contextlib.suppress(PilotageError, AgentError, OSError), server:
        producer.queue.note_seen(int(server.get(path_of("position"))["position"]))


def _log(producer: Producer, event: Composed) -> EventId:
    about = event.subject
    return producer.log(
        event.type,
        event.data,
        job=about.job,
        package=about.package,
        attempt=about.attempt,
        pilot=about.pilot,
        site=about.site,
        epoch=event.epoch,
        time=event.time,
        version=event.version,
    )


def _outcome(producer: Producer, event: EventId) -> Logged:
    done = acknowledged(producer.queue, event)
    refusal = producer.queue.refusal(event) if done else None
    return Logged(
        source=event.source,
        stream=event.stream,
        n=event.n,
        delivered=done and refusal is None,
        refused="" if refusal is None else f"{refusal['reason']} [{refusal['code']}]",
    )
