"""What runs on someone else's computer, with nothing but a Python interpreter: standard library only, Python 3.8 on.

Today: the spool, in which events wait for their server on a local disk, the producer that fills it, and the courier that
delivers it until everything is acknowledged.
"""

from __future__ import annotations

from pilotage.agent.courier import Backoff, Courier, Drained
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
from pilotage.agent.producer import Producer
from pilotage.agent.spool import EventId, Queue, Spool, default_spool

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
