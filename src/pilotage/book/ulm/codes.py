"""Sequence codes: how many events each component of the workload management had logged when an event was written.

A component counts its own events and carries the counters that it was handed with the job. Codes are compared counter by
counter, in the order in which a job passes the components; that order is all there is, since clocks differ.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class SequenceCode(NamedTuple):
    """The nine counters, named as they are written; as a tuple, codes compare the way L&B compares them."""

    ui: int
    ns: int
    wm: int
    bh: int
    jss: int
    lm: int
    lrms: int
    app: int
    lbs: int

    def __str__(self) -> str:
        """As it stands in a line, with L&B's own widths."""
        return (
            f"UI={self.ui:06}:NS={self.ns:010}:WM={self.wm:06}:BH={self.bh:010}:JSS={self.jss:06}"
            f":LM={self.lm:06}:LRMS={self.lrms:06}:APP={self.app:06}:LBS={self.lbs:06}"
        )


# Eighteen digits are more than any counter needs and cannot run into Python's limit on long numbers.
_CODE = re.compile(
    ":".join(rf"{name}=([0-9]{{1,18}})" for name in ("UI", "NS", "WM", "BH", "JSS", "LM", "LRMS", "APP"))
    + r"(?::LBS=([0-9]{1,18}))?"
)


def parse_code(text: str) -> SequenceCode | None:
    """The code that a text spells, or None; old components write none for the L&B server, which then is 0."""
    found = _CODE.fullmatch(text)
    return None if found is None else SequenceCode._make(map(int, found.groups("0")))
