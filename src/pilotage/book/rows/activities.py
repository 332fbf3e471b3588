"""The activities of a job that were stopped or opened again, as its row keeps them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pilotage.book.rows.rows import StoredKey


class ActivityStanding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether an activity is stopped, since when, and why."""

    stopped: bool
    at: float
    operation: int
    failed_attempts: int = 0
    failed_packages: int = 0
    message: str = ""


Keyed = dict[str, tuple[ActivityStanding, StoredKey]]
"""By name of the activity; of several events the one with the greatest key counts."""

_decode = msgspec.json.Decoder(Keyed).decode
_encode = msgspec.json.Encoder().encode


def with_activity(text: str, name: str, standing: ActivityStanding, key: StoredKey) -> str:
    """The stored text after an event about an activity."""
    known = _decode(text) if text else {}
    if name in known and known[name][1] >= key:
        return text
    known[name] = (standing, key)
    return _encode(dict(sorted(known.items()))).decode()


def read_activities(text: str) -> Mapping[str, ActivityStanding]:
    """Decode the stored text; activities of which nothing was ever said are open."""
    return {name: standing for name, (standing, _) in _decode(text).items()} if text else {}
