"""Runs on other people's computers, with the standard library of Python 3.8 alone: pilots, site agents, delivery of events.

The pilot, which holds the slots of a node and runs attempts in them; and the spool, in which events of applications wait
for their server on a local disk, the producer that fills it, and the courier that delivers it. The public names are
imported when they are first used: a pilot starts quickly because it pays for none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotage.agent.delivery.courier import Backoff, Courier, Drained
    from pilotage.agent.delivery.producer import Producer
    from pilotage.agent.delivery.spool import EventId, Queue, Spool, default_spool
    from pilotage.agent.errors import (
        AgentError,
        BadEvent,
        BadSetting,
        EventRefused,
        NotDelivered,
        SpoolError,
        SpoolFull,
        TokenRefused,
    )

__all__ = [
    "AgentError",
    "Backoff",
    "BadEvent",
    "BadSetting",
    "Courier",
    "Drained",
    "EventId",
    "EventRefused",
    "NotDelivered",
    "Producer",
    "Queue",
    "Spool",
    "SpoolError",
    "SpoolFull",
    "TokenRefused",
    "default_spool",
]

_HOMES = {
    **dict.fromkeys(("Backoff", "Courier", "Drained"), "delivery.courier"),
    **dict.fromkeys(("EventId", "Queue", "Spool", "default_spool"), "delivery.spool"),
    "Producer": "delivery.producer",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for; most of them are errors."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
