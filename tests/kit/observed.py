"""A short way to tell an observer a story, event by event, true or false."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from pilotage.book.codec import Checked, Codec
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import Assignment, AttemptRef, InputSource
from pilotage.model.jobs.graph import EdgeKind, Graph, Segment
from pilotage.model.jobs.layout import StageLayout, TemplateLayout
from pilotage.model.jobs.plan import JobPlan, LatePlan, Template
from pilotage.model.resources import Capacity, Demand
from pilotage.simulator.checkers.observer import Observer, Rules, Violation

JOB = "job1"
PILOT = "pilot.1"
SITE = "lyon"
AWAITED_FILE = EdgeKind.FILE | EdgeKind.AWAITED
SHA256 = "0f" * 32
MANIFEST = [{"name": "a.dat", "size_bytes": 1, "sha256": SHA256}]
ONE, TWO, MERGE = "1.1.1", "1.2.1", "2.1.1"  # two producers, and what takes the files of both


_SUBJECT = ("package", "attempt", "pilot", "epoch")


def merging_plan(
    template: Template | None = None,
    *,
    kinds: EdgeKind = AWAITED_FILE,
    limits: Mapping[str, int] | None = None,
    hold: bool = False,
    late: tuple[LatePlan, ...] = (),
) -> JobPlan:
    """Two packages in lines of their own, and one that merges them."""
    segment = Segment(
        0,
        3,
        sources=np.array([0, 1], np.int32),
        targets=np.array([2, 2], np.int32),
        kinds=np.array([kinds, kinds], np.uint8),
    )
    return JobPlan(
        graph=Graph([segment]),
        templates=(template or Template(activity="work"), Template(activity="merge")),
        template_of=np.array([0, 0, 1], np.uint32),
        layouts={
            1: StageLayout(stage=1, first=0, items=1, templates=[TemplateLayout(lines=2, packages=1)]),
            2: StageLayout(stage=2, first=2, items=1, templates=[TemplateLayout(lines=1, packages=1)]),
        },
        limits=limits or {},
        hold=hold,
        late=late,
        late_waits={1: tuple(each.stage for each in late)} if late else {},
    )


class Story:
    """An observer that is told one thing after the other."""

    def __init__(self, plan: JobPlan | None = None, *, rules: Rules | None = None, begun: bool = True) -> None:
        self.observer = Observer(rules) if rules is not None else Observer()
        self.observer.on_plan(JOB, plan or merging_plan())
        self._codec = Codec()
        self._counters: dict[str, int] = {}
        self.now = 0.0
        if begun:
            self.say("JobRegistered", owner="ada", name="j")
            self.say("JobAccepted")

    def event(self, kind: str, *, stream: str = "engine", n: int = 0, **said: Any) -> Event:
        """The next event of a stream, or one with the number that is said."""
        subject: dict[str, Any] = {name: said.pop(name) for name in _SUBJECT if name in said}
        if n == 0:
            n = self._counters[stream] = self._counters.get(stream, 0) + 1
        source = "service" if stream.startswith("engine") else "agent"
        if "pilot" not in subject:
            subject["job"] = JOB
        data = msgspec.Raw(msgspec.json.encode(said.get("data", said)))
        fields: dict[str, Any] = {
            "source": source,
            "stream": stream,
            "n": n,
            "type": kind,
            "time": 1.0,
            "data": data,
            **subject,
        }
        return Event(**fields)

    def check(self, event: Event) -> Checked:
        """The event as the book takes it."""
        checked = self._codec.check(event)
        assert isinstance(checked, Checked), checked
        return checked

    def say(self, kind: str, package: str | None = None, attempt: int | None = None, **said: Any) -> Event:
        """Something is durable."""
        event = self.event(kind, package=package, attempt=attempt, **said)
        self.observer.on_written([self.check(event)], self.now)
        return event

    def at_site(self, kind: str, *files: Mapping[str, Any], **said: Any) -> Checked:
        """Something about the files of the site is durable."""
        event = self.event(kind, data=said or {"files": files})
        checked = self.check(msgspec.structs.replace(event, job=None, site=SITE))
        self.observer.on_written([checked], self.now)
        return checked

    def created(self, package: str, attempt: int = 1, *, epoch: int = 1, pilot: str = PILOT, **said: Any) -> None:
        """An attempt with a lease in a pilot."""
        lease: dict[str, Any] = {"pilot": pilot, "lease_seconds": 60.0} if pilot else {}
        data = {"site": SITE, **lease, **said}
        self.say("AttemptCreated", package, attempt, epoch=epoch, data=data)

    def finished(self, package: str, attempt: int = 1, *, epoch: int = 1, reason: str = "") -> None:
        """An attempt that succeeded, or failed for a reason."""
        data: dict[str, Any] = {"exit_code": "EXECUTION_FAILED", "reason": reason}
        if not reason:
            data = {"exit_code": "SUCCESS", "manifest": MANIFEST}
        self.say("AttemptFinished", package, attempt, epoch=epoch, stream=PILOT, data=data)

    def granted(self, package: str, attempt: int = 1, *, epoch: int = 1) -> None:
        """An attempt that won."""
        self.say("CommitGranted", package, attempt, epoch=epoch)

    def done(self, *packages: str, attempt: int = 1, epoch: int = 1) -> None:
        """Packages from their beginning to their grant."""
        for package in packages:
            self.created(package, attempt, epoch=epoch)
            self.finished(package, attempt, epoch=epoch)
            self.granted(package, attempt, epoch=epoch)

    def failed(self, package: str, attempt: int, reason: str) -> None:
        """An attempt from its beginning to its failure."""
        self.created(package, attempt)
        self.finished(package, attempt, reason=reason)

    def pilot(
        self, name: str = PILOT, *, cores: int = 1, backlog: int = 0, memory_bytes: int = 0, node: str = ""
    ) -> None:
        """A pilot really begins."""
        capacity = Capacity(cores_hundredths=100 * cores, memory_bytes=memory_bytes)
        self.observer.on_pilot(name, SITE, capacity, backlog, node=node)

    def assigned(self, package: str, attempt: int = 1, *, pilot: str = PILOT, **said: Any) -> None:
        """An assignment reaches a pilot."""
        self.observer.on_assigned(pilot, Assignment(ref=ref(package, attempt), **said), self.now)

    def started(self, package: str, attempt: int = 1, *, pilot: str = PILOT) -> None:
        """A pilot really runs an attempt."""
        self.observer.on_started(pilot, ref(package, attempt), self.now)

    def ended(self, package: str, attempt: int = 1, *, pilot: str = PILOT) -> None:
        """A pilot runs an attempt no longer."""
        self.observer.on_ended(pilot, ref(package, attempt), self.now)

    def read(self, reader: str, source: str, *, attempt: int = 1, reader_attempt: int = 1) -> None:
        """An attempt takes the files of another."""
        self.observer.on_read(ref(reader, reader_attempt), ref(source, attempt), self.now)


def ref(package: str, attempt: int = 1) -> AttemptRef:
    """An attempt of the one job."""
    return AttemptRef(JOB, package, attempt)


def inputs(**attempts: int) -> tuple[InputSource, ...]:
    """The files of both producers: `one=1, two=1`."""
    places = {"one": ONE, "two": TWO}
    return tuple(InputSource(places[name], attempt) for name, attempt in attempts.items())


def states(**said: str) -> dict[tuple[str, str], str]:
    """What the book says: `one="DONE", merge="WAITING"`."""
    places = {"one": ONE, "two": TWO, "merge": MERGE}
    return {(JOB, places[name]): state for name, state in said.items()}


def demanding(**said: Any) -> Template:
    """A template that takes something."""
    return Template(activity="work", demand=Demand(**said))


@contextmanager
def broken(checker: str, words: str = "") -> Iterator[None]:
    """What follows must break one promise, and no other."""
    with pytest.raises(Violation, match=words) as caught:
        yield
    assert caught.value.checker == checker, caught.value
