"""Answers that cost much, not made more often than they are worth."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

REMEMBERED_MAX = 10_000
PACE = 20

Told = TypeVar("Told")


class Pace:
    """Answers that cost much are given again for a while, which is a multiple of how long they took to make."""

    def __init__(self, *, seconds: Callable[[], float] = time.monotonic) -> None:
        """Measure with a clock that only goes on."""
        self._seconds = seconds
        self._known: OrderedDict[str, tuple[object, object, float, Any]] = OrderedDict()

    def paced(
        self, name: str, mark: object, make: Callable[[], Told], *, pace: int = PACE, phase: object = None
    ) -> Told:
        """What was made before, if nothing changed since (`mark` is the same) or it is too soon to make it again.

        It is too soon within `pace` times as long as it took, as long as it is the same `phase`: what was made in one is
        told in another only if nothing changed.
        """
        now = self._seconds()
        known = self._known.get(name)
        if known is not None and (known[0] == mark or (known[1] == phase and now < known[2])):
            told: Told = known[3]
            return told
        made = make()
        after = self._seconds()
        self._known[name] = (mark, phase, after + pace * (after - now), made)
        self._known.move_to_end(name)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return made
