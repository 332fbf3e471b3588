"""Points in time: ISO 8601 with a zone, because a time without one means something else at every site."""

from __future__ import annotations

from datetime import datetime

import msgspec

from pilotage.language.reading.kinds import Place, Reading, Schema, Text
from pilotage.language.text.tree import Node


class Time(msgspec.Struct, frozen=True):
    """An ISO 8601 time with its zone, kept as it was written."""

    def read(self, node: Node, place: Place, reading: Reading) -> object:
        """The text, if it is a time with a zone."""
        text = Text().read(node, place, reading)
        if not isinstance(text, str):
            return text
        expected = "expected a time such as 2026-03-05T14:00:00Z"
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return reading.fault("wrong-type", node, f"{expected}, got {text!r}")
        if moment.tzinfo is None:
            return reading.fault(
                "wrong-type", node, f"{expected}, got {text!r}", hint="add Z or an offset such as +01:00"
            )
        return text

    def schema(self) -> Schema:
        """A date-time text."""
        return {"type": "string", "format": "date-time"}
