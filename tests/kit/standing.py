"""Jobs, packages and attempts as they really stand in a made-up history; what the book must find out from events alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WireEvent = dict[str, Any]

RANKS = {"application": 0, "client": 1, "site": 2, "agent": 3, "service": 4}
QUEUES = ("READY", "SCHEDULED", "RUNNING")


def total_key(event: WireEvent) -> tuple[int, int, int, int, str]:
    """The order that decides which of two values stands."""
    return (event["epoch"], event["seen"], RANKS[event["source"]], event["n"], event["stream"])


@dataclass
class Attempt:
    """One try, as it really went; `level` says how far it is while it can still win, were it not for what is `doubted`."""

    number: int
    epoch: int
    site: str
    level: int
    ends: list[WireEvent] = field(default_factory=list)
    doubts: list[WireEvent] = field(default_factory=list)
    staged: bool = False

    def doubt(self) -> str:
        """Whether it was last suspected, recovered or lost, by the word that stands."""
        return str(max(self.doubts, key=total_key)["type"]) if self.doubts else ""

    def lost(self) -> bool:
        """Whether nobody waits for it, and it has not come back."""
        return self.doubt() == "AttemptLost" and not self.ends

    def stands(self) -> int:
        """How far it is, as far as it counts."""
        return 0 if self.lost() else self.level

    def reason(self) -> str | None:
        """Why it failed, by the report that stands, or by the loss that does."""
        if self.ends:
            said = max(self.ends, key=total_key)["data"].get("reason")
            return None if said is None else str(said)
        return str(max(self.doubts, key=total_key)["data"]["reason"]) if self.lost() else None

    def exit_code(self) -> str | None:
        """What it ended with, by the report that stands."""
        return str(max(self.ends, key=total_key)["data"]["exit_code"]) if self.ends else None


@dataclass
class Package:
    """One package, as it really stands."""

    job: Job
    place: str
    epoch: int = 1
    heard: bool = False  # an event was about it
    moved: bool = False  # an event implies that its job was accepted
    bound: bool = False
    replicas: int = 0
    granted: list[int] = field(default_factory=list)
    cancelled: bool = False
    aborted: bool = False
    cleared: bool = False
    attempts: dict[int, Attempt] = field(default_factory=dict)
    hold: tuple[int, bool] = (-1, False)
    drop: tuple[int, bool] = (-1, False)

    def here(self) -> list[Attempt]:
        """The attempts of the present epoch."""
        return [attempt for attempt in self.attempts.values() if attempt.epoch == self.epoch]

    def over(self) -> bool:
        """Whether it has a final fact of its own."""
        return bool(self.granted) or self.cancelled or self.aborted or self.cleared

    def level(self) -> int:
        """How far its most advanced attempt is."""
        return max((attempt.stands() for attempt in self.here()), default=0)

    def state(self) -> str:
        """Where it stands."""
        for name, holds in (
            ("CLEARED", self.cleared),
            ("DONE", bool(self.granted)),
            ("CANCELLED", self.cancelled),
            ("ABORTED", self.aborted),
        ):
            if holds:
                return name
        if self.level():
            return QUEUES[self.level() - 1]
        if self.job.killed or self.job.aborted:
            return "CANCELLED" if self.job.killed else "ABORTED"
        if self.bound:
            return "READY"
        return "WAITING" if self.job.accepted or self.job.epoch > 1 or self.moved else "SUBMITTED"

    def shown(self) -> int | None:
        """The attempt whose outcome it shows."""
        numbers = [attempt.number for attempt in self.here()]
        return max(self.granted, default=max(numbers, default=None))


@dataclass
class Job:
    """One job, as it really stands."""

    name: str
    epoch: int = 1
    accepted: bool = False
    killed: bool = False
    aborted: bool = False
    cleared: bool = False
    stages: list[dict[str, Any]] = field(default_factory=list)
    packages: dict[str, Package] = field(default_factory=dict)
    operation: int = 0

    def package(self, place: str) -> Package:
        """A package by its place."""
        return self.packages.setdefault(place, Package(self, place))


def places(shape: dict[str, Any], stage: int) -> list[tuple[str, str]]:
    """The packages of a shape and their activities, counted out one by one."""
    found = []
    line = 0
    for _ in range(0 if shape.get("late") else shape.get("items", 1)):
        for template in shape.get("templates", ()):
            for _ in range(template["lines"]):
                line += 1
                found += [(f"{stage}.{line}.{at}", activity) for at, activity in enumerate(template["activities"], 1)]
    return found
