"""The three states of a site, and the transitions between them (swift-site-selection, "Switching Conditions").

A candidate may be picked. A hibernated site may not; it is in a queue, in order of arrival. An overloaded site is full; as room
is per shape, so is this. Transitions, by their numbers in the source:

- 1a: an attempt failed because of the platform (a1: no other attempt is there; a2: others are, and go on). We depart from
  the source for application failures: they alone do not hibernate a site, because a program that also fails elsewhere is
  at fault itself; a site where it fails far faster than elsewhere is hibernated as a black hole.
- 1b: it queued for longer than the throttle; checked when a replica elsewhere starts, when an attempt of its own succeeds,
  and when the engine asks about one that is still queued.
- 2a: no site is left to pick: the first in the queue that is due gets a new chance, with one canary.
- 2b: it finished another of its attempts: it comes back at once, and that attempt was the canary.
- 3, 4: reserved and active packages reached its room, or fell below it, for whatever reason.

A probe or a person can hibernate and wake a site, too. Only a person wakes a site that a person hibernated.
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
    """Why a site is hibernated, since when, and its place in the queue."""

    reason: SleepReason
    message: str
    since: float
    order: int
    others: int = 0  # attempts that were active there: a1 without, a2 with some


class Hibernated(msgspec.Struct, frozen=True, kw_only=True):
    """A site was hibernated."""

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
    """A pilot or a node gets no more work."""

    site: str
    kind: Literal["pilot", "node"]
    name: str
    message: str


Change = Hibernated | Woken | Drained


def wakes_at(sleep: Sleep, times: int, settings: SelectionSettings, *, alone: bool) -> float:
    """When a site may be woken (condition 2a), after `times` hibernations since its last success.

    If every other site is hibernated too, the first chance comes at once and the later ones soon. If pilots fail to start,
    nothing more is submitted for the longest pause, even without another site.
    """
    if sleep.reason == "dead-starts":
        return sleep.since + settings.hibernation_seconds_max
    steps = times - 2 if alone else times - 1
    if steps < 0:
        return sleep.since
    # After this many steps the growth is over its limit anyway, and the power would overflow.
    longest = min(settings.hibernation_seconds_max, settings.hibernation_seconds_max_alone if alone else float("inf"))
    return sleep.since + min(longest, settings.hibernation_seconds * settings.hibernation_growth ** min(steps, 64))


class SleepQueue:
    """The hibernated sites, by index, in order of arrival."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        """Start without a site."""
        self.queue: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[int]:
        return (index for _, index in self.queue)

    @property
    def next_order(self) -> int:
        """The place of the next site."""
        return self.queue[-1][0] + 1 if self.queue else 1

    def add(self, index: int, order: int) -> None:
        """Add a site; at its former place if it had one, as after a restart."""
        insort(self.queue, (order, index))

    def remove(self, index: int, order: int) -> None:
        """One less."""
        position = bisect_left(self.queue, (order, index))
        if position < len(self.queue) and self.queue[position] == (order, index):
            del self.queue[position]
