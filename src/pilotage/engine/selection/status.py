"""The three sets a site can be in, and what moves it from one to another (swift-site-selection, "Switching Conditions").

A candidate may be picked. A hibernated one may not; it stands in a queue, in the order in which sites came there. An overloaded one
has as much as it may: as room is for each shape, so is this. Moves, by their numbers in the source:

- 1a: an attempt failed by the fault of the platform (a1: nothing else is there; a2: other attempts are, and go on). We depart from
  the source for failures of the application: they do not hibernate a site by themselves, because what fails elsewhere too is
  the application's fault; a site where they come far quicker than elsewhere is hibernated as a black hole.
- 1b: it queued for longer than the throttle; looked at when a replica elsewhere begins, when an attempt of its own ends well, and
  when the engine asks about one that is still queued.
- 2a: no site is left that could be picked: the first in the queue whose time has come gets a new chance, with one canary.
- 2b: it finished another of its attempts well: it comes back at once, and the attempt was the canary.
- 3, 4: what is reserved or under way there reached its room, or fell below it, for whatever reason.

Besides, a probe or a person can put a site to sleep and wake it. Only a person wakes what a person put to sleep.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Literal

import msgspec

from pilotage.model.settings.engine import SelectionSettings

Status = Literal["candidate", "hibernated", "overloaded"]
SleepReason = Literal[
    "platform-failure", "attempt-failed", "long-queue", "black-hole", "probe-failed", "dead-starts", "by-hand"
]
WakeRule = Literal["no-candidate", "finished-another", "pilot-began", "probe-passed", "by-hand"]


class Sleep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a site hibernates, since when, and where it stands in the queue."""

    reason: SleepReason
    message: str
    since: float
    order: int
    others: int = 0  # attempts that were under way there: a1 without, a2 with some


class Hibernated(msgspec.Struct, frozen=True, kw_only=True):
    """A site was put to sleep."""

    site: str
    reason: SleepReason
    message: str
    others: int


class Woken(msgspec.Struct, frozen=True, kw_only=True):
    """A site is a candidate again."""

    site: str
    rule: WakeRule
    message: str
    score: float
    canary: bool


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """A pilot or a node is to be given nothing more."""

    site: str
    kind: Literal["pilot", "node"]
    name: str
    message: str


Change = Hibernated | Woken | Drained


def wakes_at(sleep: Sleep, times: int, settings: SelectionSettings, *, alone: bool) -> float:
    """From when on a site may get a new chance (2a), having been put to sleep so many times since it last did well.

    Where every other site sleeps too, the first chance comes at once and the later ones soon. Where pilots cannot even start,
    nothing more is submitted for as long as any site ever sleeps, whether or not there is another.
    """
    if sleep.reason == "dead-starts":
        return sleep.since + settings.hibernation_seconds_max
    steps = times - 2 if alone else times - 1
    if steps < 0:
        return sleep.since
    # Beyond so many steps any growth is over its limit, and the power would overflow.
    longest = min(settings.hibernation_seconds_max, settings.hibernation_seconds_max_alone if alone else float("inf"))
    return sleep.since + min(longest, settings.hibernation_seconds * settings.hibernation_growth ** min(steps, 64))


class SleepQueue:
    """The sites that hibernate, by index, in the order in which they came."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        """Begin with none."""
        self.queue: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[int]:
        return (index for _, index in self.queue)

    @property
    def next_order(self) -> int:
        """The place of whoever comes next."""
        return self.queue[-1][0] + 1 if self.queue else 1

    def add(self, index: int, order: int) -> None:
        """One more; at its place where it had one, as after a restart."""
        insort(self.queue, (order, index))

    def remove(self, index: int, order: int) -> None:
        """One less."""
        position = bisect_left(self.queue, (order, index))
        if position < len(self.queue) and self.queue[position] == (order, index):
            del self.queue[position]
