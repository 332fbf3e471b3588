"""Histories that are mostly short lives, told in batches of any size, and what a book counts of them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from pilotage.book.rows.rows import StatisticRow
from pilotage.book.rows.sketches import Sketch
from tests.kit.memory_ledger import Book
from tests.kit.standing import WireEvent

START = 1_700_000_000.0
SHA256 = "0f" * 32
_sketch = msgspec.msgpack.Decoder(Sketch)


class Teller:
    """Tells of a job whose packages live shortly, and now and then of something else."""

    def __init__(self, chance: random.Random) -> None:
        """Tell what chance says."""
        self.chance = chance
        self.calm = chance.choice((0.0, 0.02, 0.1, 0.3))  # how often something else is told
        self.events: list[WireEvent] = []
        self._counters: dict[tuple[str, str], int] = {}
        self._now = START

    def say(self, source: str, kind: str, subject: dict[str, Any], **data: Any) -> None:
        """Tell one thing."""
        stream = f"{source}-{self.chance.choice('ab') if source == 'agent' else 'a'}"
        self._counters[source, stream] = n = self._counters.get((source, stream), 0) + 1
        self._now += self.chance.choice((0.0, 0.001, 0.5, 7.0, -3.0))
        self.events.append({
            "source": source, "stream": stream, "n": n, "type": kind, "time": self._now, "epoch": 1,
            "seen": len(self.events) // 3,
            **subject, "data": data,
        })  # fmt: skip

    def tell(self, packages: int) -> list[WireEvent]:
        """Everything, each package's own events in their order, those of all packages mixed."""
        activities = ["sim", "reco"][: self.chance.randint(1, 2)]
        shapes = [{"items": packages, "templates": [{"lines": 1, "activities": activities}]}]
        self.say(
            "service", "JobRegistered", {"job": "J"}, owner="ada", name="n", stages=shapes, lists={}, expander_version=1
        )
        if self.chance.random() < 0.8:
            self.say("service", "JobAccepted", {"job": "J"})
        most = 2 if self.calm else len(activities)  # where there may be none by the shape of the job
        lives = [self._life(f"1.{line}.{self.chance.randint(1, most)}") for line in range(1, packages + 1)]
        under_way: list[list[tuple[str, str, dict[str, Any], dict[str, Any]]]] = []
        width = self.chance.randint(1, 6)
        while lives or under_way:
            if lives and len(under_way) < width:
                under_way.append(lives.pop(0))
                continue
            life = self.chance.choice(under_way) if self.chance.random() < 0.5 else under_way[0]
            source, kind, subject, data = life.pop(0)
            self.say(source, kind, subject, **data)
            if not life:
                under_way.remove(life)
            if self.chance.random() < self.calm / 4:
                self._of_the_job()
        return self.events

    def _life(self, place: str) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
        chance = self.chance
        subject = {"job": "J", "package": place}
        attempt = subject | {"attempt": 1 if chance.random() < 1 - self.calm else 2}
        life: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
            ("service", "AttemptCreated", attempt, self._created()),
            ("agent", "AttemptFinished", attempt, self._finished()),
            ("service", "CommitGranted", attempt, {}),
        ]
        while chance.random() < self.calm:
            life.insert(chance.randint(0, len(life)), self._else(subject, attempt))
        if chance.random() < self.calm:
            del life[chance.randrange(len(life))]
        if chance.random() < self.calm:
            chance.shuffle(life)
        return life or [("service", "Noted", subject, {"text": "nothing came of it"})]

    def _created(self) -> dict[str, Any]:
        chance = self.chance
        data: dict[str, Any] = {"site": chance.choice(("lyon", "desy")), "lease_seconds": chance.choice((0, 60.0))}
        if chance.random() < 0.8:
            data["pilot"] = "pilot1"
        if chance.random() < 0.3:
            data["remaining_seconds"] = 600.5
        odd = {"memory_bytes": 2**30, "wall_seconds": 90.5, "drop_revision": 3, "replica": True, "replaces": 7}
        data |= {name: value for name, value in odd.items() if chance.random() < self.calm / 4}
        if chance.random() < self.calm / 4:
            del data["lease_seconds"]
        return data

    def _finished(self) -> dict[str, Any]:
        chance = self.chance
        measures = {
            "node": "node7", "exit_status": 0, "peak_memory_bytes": 0, "peak_memory_below_bytes": 4096, "cpu_seconds": 1.5,
            "cpu_user_seconds": 1.0, "cpu_system_seconds": 0.0, "read_bytes": 0, "written_bytes": 17,
            "phases": [{"phase": "application", "started_at": self._now, "seconds": 2.5}],
            "manifest": [{"name": "out", "size_bytes": 1, "sha256": SHA256}] if chance.random() < 0.8 else [],
        }  # fmt: skip
        data: dict[str, Any] = {name: value for name, value in measures.items() if chance.random() < 0.8}
        odd = {"exit_message": "said so", "reason": "out-of-memory", "signal": 9}
        data |= {name: value for name, value in odd.items() if chance.random() < self.calm / 4}
        return data | {"exit_code": "SUCCESS" if chance.random() < 1 - self.calm else "EXECUTION_FAILED"}

    def _else(
        self, subject: dict[str, Any], attempt: dict[str, Any]
    ) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
        found: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
            ("agent", "PhaseEntered", attempt, {"phase": "application"}),
            ("agent", "AttemptStarted", attempt, {"node": "node8"}),
            ("service", "AttemptSuspected", attempt, {}),
            ("service", "AttemptCreated", attempt | {"attempt": 2}, {"site": "lyon", "lease_seconds": 60}),
            ("agent", "AttemptFinished", attempt | {"attempt": 2}, {"exit_code": "SUCCESS"}),
            ("service", "Bound", subject, {"site": "desy"}),
            ("service", "CancelAccepted", subject, {}),
            ("service", "Held", subject, {"operation": 1}),
            ("service", "Restarted", subject | {"epoch": 2}, {"cause": "by-hand"}),
            ("service", "CommitGranted", attempt | {"epoch": 2}, {}),
            ("client", "Tagged", subject, {"name": "study", "value": "A"}),
            ("client", "Cleared", subject, {"by": "user"}),
            ("service", "Noted", attempt, {"text": "worth a line"}),
        ]
        return self.chance.choice(found)

    def _of_the_job(self) -> None:
        job = {"job": "J"}
        shape = {"items": self.chance.randint(0, 40), "templates": [{"lines": 1, "activities": ["sim"]}]}
        told: list[tuple[str, dict[str, Any]]] = [
            ("JobAccepted", {}),
            ("CancelAccepted", {}),
            ("StageExpanded", {"stage": 1, "shape": shape}),
            ("Tagged", {"name": "study", "value": "B"}),
        ]
        kind, data = self.chance.choice(told)
        self.say("service", kind, job, **data)


def batches_of(chance: random.Random, events: list[WireEvent]) -> list[list[WireEvent]]:
    """Events in batches of any size, in their order or in none."""
    size = chance.choice((1, 3, 10, 40))
    if chance.random() < 0.2:
        chance.shuffle(events)
    found = []
    while events:
        cut = chance.randint(1, size)
        found.append(events[:cut])
        events = events[cut:]
    return found


def counted(book: Book) -> dict[tuple[Any, ...], tuple[Any, Any]]:
    """What each slice counts, and the sums of seconds, whose last digits depend on the order they were added in."""
    slices = {
        (row.width_seconds, row.slice, row.site, row.activity): _sketch.decode(row.sketch)
        for row in book.rows(StatisticRow)
    }
    return {
        key: (one.counts, {pair: pytest.approx(seconds, rel=1e-6, abs=1e-4) for pair, seconds in one.sums.items()})
        for key, one in slices.items()
    }
