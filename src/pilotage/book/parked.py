"""The text of an event that waits for its job: the event as it came, and whether a wrong clock sent it."""

from __future__ import annotations

import msgspec

from pilotage.model.events import Event


class ParkedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """An event that waits."""

    skewed: bool = False


_decoder = msgspec.json.Decoder(ParkedEvent)
_encode = msgspec.json.Encoder().encode


def parked_text(event: Event, *, skewed: bool) -> str:
    """An event as it is stored while it waits; what is not skewed reads as it does on the wire."""
    text = _encode(event).decode()
    return f'{{"skewed":true,{text[1:]}' if skewed else text


def read_parked(text: str) -> ParkedEvent:
    """The event of such a text."""
    return _decoder.decode(text)
