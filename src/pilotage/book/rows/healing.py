"""What healing last recorded about a job, as its row keeps it."""

from __future__ import annotations

import msgspec

from pilotage.model.events.healing_payloads import HealingLearned


class JobHealing(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned, and when it was recorded."""

    learned_at: float
    learned: HealingLearned


_decode = msgspec.json.Decoder(JobHealing).decode
_encode = msgspec.json.Encoder().encode


def written_healing(healing: JobHealing) -> str:
    """Encode what was learned."""
    return _encode(healing).decode()


def read_healing(text: str) -> JobHealing | None:
    """Decode what was learned; None if there is nothing, or if it cannot be read."""
    try:
        return _decode(text) if text else None
    except msgspec.DecodeError:
        return None
