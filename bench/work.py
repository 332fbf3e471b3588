"""A workload for the book: short attempts, three events each, with many packages in flight, as a busy service writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

SITES = ("lyon", "prague", "padova")
_PHASES = ("setup", "inputs", "application", "outputs")
_encode = msgspec.json.Encoder().encode


class Work:
    """Jobs of many packages, of which some are always in flight."""

    def __init__(self, *, started_at: float, in_flight: int) -> None:
        """Count streams from the beginning; `in_flight` packages are running at any time."""
        self._counters: dict[str, int] = {}
        self._now = started_at
        self._in_flight = in_flight

    def event(self, source: str, kind: str, data: dict[str, Any], **subject: Any) -> dict[str, Any]:
        """One event of a source, at the next tick of the clock."""
        stream = f"{source}-0f3a21c9"
        n = self._counters[stream] = self._counters.get(stream, 0) + 1
        self._now += 0.001
        seen = self._counters.get("service-0f3a21c9", 0)
        return {
            "source": source, "stream": stream, "n": n, "type": kind, "time": self._now, "seen": seen, **subject, "data": data,
        }  # fmt: skip

    def registered(self, job: str, packages: int) -> Iterator[dict[str, Any]]:
        """A job comes into being."""
        shape = {"items": packages, "templates": [{"lines": 1, "activities": ["reconstruction"]}]}
        yield self.event("service", "JobRegistered", {"owner": "ann", "name": "bench", "stages": [shape]}, job=job)
        yield self.event("service", "JobAccepted", {}, job=job)

    def created(self, job: str, number: int) -> dict[str, Any]:
        """A package starts."""
        data = {"site": SITES[number % 3], "pilot": f"pilot-{number % 50}", "lease_seconds": 60}
        return self.event("service", "AttemptCreated", data, job=job, package=f"1.{number}.1", attempt=1)

    def finished(self, job: str, number: int) -> Iterator[dict[str, Any]]:
        """A package ends well, and its outputs are granted."""
        subject = {"job": job, "package": f"1.{number}.1", "attempt": 1}
        data = {
            "exit_code": "SUCCESS",
            "node": f"node{number % 200:03}",
            "cpu_seconds": 1.5,
            "peak_memory_bytes": 250_000_000,
            "phases": [{"phase": phase, "started_at": self._now, "seconds": 0.25} for phase in _PHASES],
            "manifest": [{"name": f"out-{number}.dat", "size_bytes": 1_048_576, "sha256": f"{number:064x}"}],
        }
        yield self.event("agent", "AttemptFinished", data, **subject)
        yield self.event("service", "CommitGranted", {}, **subject)

    def events(self, job: str, packages: int) -> Iterator[dict[str, Any]]:
        """The whole life of a job."""
        yield from self.registered(job, packages)
        for number in range(1, packages + self._in_flight + 1):
            if number <= packages:
                yield self.created(job, number)
            if number > self._in_flight:
                yield from self.finished(job, number - self._in_flight)


def batches(events: Iterator[dict[str, Any]], *, size: int = 1000) -> Iterator[bytes]:
    """Events as bodies of `POST /v1/events`."""
    some: list[dict[str, Any]] = []
    for event in events:
        some.append(event)
        if len(some) == size:
            yield _encode({"events": some})
            some = []
    if some:
        yield _encode({"events": some})
