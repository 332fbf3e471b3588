"""Runs on other computers, with the standard library of Python 3.8 alone: pilots, site agents, delivery of events.

A pilot holds the slots of a node and runs attempts in them. Applications log events with a producer into a spool on a
local disk, and a courier delivers them to the server. Public names are imported at first use, so that a pilot starts
quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotage.agent.delivery.courier import Backoff, Courier, DeliveryResult
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
    "DeliveryResult",
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
    **dict.fromkeys(("Backoff", "Courier", "DeliveryResult"), "delivery.courier"),
    **dict.fromkeys(("EventId", "Queue", "Spool", "default_spool"), "delivery.spool"),
    "Producer": "delivery.producer",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
