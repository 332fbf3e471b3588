"""Figures out of the book of a service, from its events as they lie on disk: who held what when, and who committed what."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pilotage.adapters.journals.sqlite.journal import BOOK

_OVER = ("AttemptFinished", "AttemptLost")


class StoredEvent(NamedTuple):
    """One event."""

    position: int
    type: str
    time: float
    package: tuple[int, int, int]
    attempt: int
    pilot: str
    site: str
    data: dict[str, Any]


class Figures:
    """The events of a book up to the moment of reading."""

    def __init__(self, state: Path) -> None:
        """Read them, while the service goes on."""
        with closing(sqlite3.connect(f"file:{state / BOOK}?mode=ro", uri=True)) as connection:
            rows = connection.execute(
                "SELECT position, type, time, stage, line, number, attempt, pilot, site, data FROM events ORDER BY position"
            ).fetchall()
        self.events = [
            StoredEvent(position, kind, time, (stage, line, number), attempt, pilot or "", site or "", json.loads(data))
            for position, kind, time, stage, line, number, attempt, pilot, site, data in rows
        ]
        self._sites = {(each.package, each.attempt): str(each.data["site"]) for each in self.of("AttemptCreated")}

    @property
    def position(self) -> int:
        """How far the book goes."""
        return self.events[-1].position if self.events else 0

    def of(self, *kinds: str) -> list[StoredEvent]:
        """The events of some types."""
        return [each for each in self.events if each.type in kinds]

    def live(self, site: str, *, position: int | None = None) -> int:
        """How many leases were held at a site when the book went so far: given, not run out, and neither ended nor given up."""
        held, suspect = set(), set()
        for each in self.events:
            if position is not None and each.position > position:
                break
            key = (each.package, each.attempt)
            if each.type == "AttemptCreated" and each.data["site"] == site and each.data.get("lease_seconds"):
                held.add(key)
            elif each.type == "AttemptSuspected" and key in held:
                held.remove(key)
                suspect.add(key)
            elif each.type == "AttemptRecovered" and key in suspect:
                suspect.remove(key)
                held.add(key)
            elif each.type in _OVER:
                held.discard(key)
                suspect.discard(key)
        return len(held)

    def grants(self) -> Counter[tuple[int, int, int]]:
        """How often each package was granted."""
        return Counter(each.package for each in self.of("CommitGranted"))

    def site_of(self, event: StoredEvent) -> str:
        """Where the attempt was that an event is about."""
        return self._sites[event.package, event.attempt]

    def committed(self) -> Counter[str]:
        """How many packages each site committed."""
        return Counter(self.site_of(each) for each in self.of("CommitGranted"))

    def lost(self) -> Counter[str]:
        """How many attempts were given up at each site."""
        return Counter(self.site_of(each) for each in self.of("AttemptLost"))

    def suspected(self) -> Counter[str]:
        """How often a lease ran out at each site."""
        return Counter(self.site_of(each) for each in self.of("AttemptSuspected"))
