"""What tests of the book share: streams that count, short ways to write events, and random histories of whole jobs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

from pilotage.model.events.events import Event, Source
from pilotage.model.events.payloads import (
    Aborted,
    AttemptCreated,
    AttemptFinished,
    AttemptLost,
    AttemptQueued,
    AttemptRecovered,
    AttemptStarted,
    AttemptSuspected,
    Bound,
    CancelAccepted,
    Cleared,
    CommitGranted,
    Dropped,
    Held,
    JobAccepted,
    JobRegistered,
    NodeDescribed,
    Noted,
    OutputFile,
    OutputsStaged,
    Payload,
    PhaseEntered,
    PhaseTimes,
    PilotEnded,
    PilotRequested,
    PilotStarted,
    Released,
    ReplicaWanted,
    Restarted,
    Restored,
    SiteDescribed,
    StageExpanded,
    StageShape,
    Tagged,
    TemplateShape,
    Unbound,
)
from pilotage.model.states import ExitCodeGasw

START = 1_700_000_000.0
SHA256 = "ab" * 32
# What breaks stores: quotes, a character of four bytes, a line separator, NUL and the control beside it, text that only
# looks like an escape, and the empty string.
AWKWARD = ("", "plain", 'it\'s "so"', "\\u0000", "a\x00b\x1a", "\U0001f600 é \u2028", "\\\\u001a\n\t", "x" * 3000)

_encode = msgspec.json.Encoder().encode


class StandingClock:
    """A clock that stands until it is set."""

    def __init__(self, at: float = START) -> None:
        self.at = at

    def now(self) -> float:
        """Seconds since 1970, as they were set."""
        return self.at


class Stream:
    """Somebody who counts: every event it writes has the next number."""

    def __init__(self, source: Source = "service", stream: str = "s1", *, seen: int = 0) -> None:
        self.source: Source = source
        self.stream = stream
        self.seen = seen
        self.n = 0

    def event(
        self,
        data: Payload,
        *,
        job: str | None = None,
        package: str | None = None,
        attempt: int | None = None,
        pilot: str | None = None,
        site: str | None = None,
        time: float = START,
        epoch: int = 1,
        seen: int | None = None,
    ) -> Event:
        """The next event, of the payload's type."""
        self.n += 1
        return Event(
            source=self.source,
            stream=self.stream,
            n=self.n,
            type=type(data).__name__,
            time=time,
            job=job,
            package=package,
            attempt=attempt,
            pilot=pilot,
            site=site,
            epoch=epoch,
            seen=self.seen if seen is None else seen,
            data=msgspec.Raw(_encode(data)),
        )


def shape(*activities: str, lines: int = 1, items: int = 1) -> StageShape:
    """A stage of one line template whose packages have these activities."""
    return StageShape(items=items, templates=(TemplateShape(lines=lines, activities=activities),))


def registered(*stages: StageShape, owner: str = "ada", name: str = "sweep", **more: object) -> JobRegistered:
    """The registration of a job; with no stages, of one stage with two lines of one package."""
    return msgspec.convert(
        {"owner": owner, "name": name, "stages": stages or (shape("simulate", lines=2),), **more},
        JobRegistered,
        from_attributes=True,
    )


def a_short_job(job: str = "j1", *, packages: int = 2, stream: Stream | None = None) -> list[Event]:
    """A job that was registered, accepted, and whose packages all ran once and were granted."""
    by = stream if stream is not None else Stream(stream=f"{job}-service")
    events = [by.event(registered(shape("simulate", lines=packages)), job=job), by.event(JobAccepted(), job=job)]
    for line in range(1, packages + 1):
        place = f"1.{line}.1"
        finished = AttemptFinished(exit_code=ExitCodeGasw.SUCCESS, phases=phases(START + line), manifest=manifest(line))
        events += [
            by.event(
                AttemptCreated(site="lyon", lease_seconds=60.0), job=job, package=place, attempt=1, time=START + line
            ),
            by.event(finished, job=job, package=place, attempt=1, time=START + line + 5),
            by.event(CommitGranted(), job=job, package=place, attempt=1, time=START + line + 6),
        ]
    return events


def phases(at: float) -> tuple[PhaseTimes, ...]:
    """Two phases that begin at a time."""
    first = PhaseTimes(phase="inputs", started_at=at, seconds=0.25)
    return first, PhaseTimes(phase="application", started_at=at + 0.25, seconds=4.5)


def manifest(number: int) -> tuple[OutputFile, ...]:
    """One output file."""
    return (OutputFile(name=f"out-{number}.dat", size_bytes=number, sha256=SHA256),)


def batch(events: Sequence[Event]) -> bytes:
    """Events as they come over the wire."""
    return _encode({"events": events})


def cut(events: Sequence[Event], chance: random.Random, *, size_max: int = 12) -> Iterator[list[Event]]:
    """The events in their order, in batches of random sizes."""
    at = 0
    while at < len(events):
        size = chance.randint(1, size_max)
        yield list(events[at : at + size])
        at += size


def delivered(events: Sequence[Event], chance: random.Random) -> list[Event]:
    """The same events as a bad network delivers them: in any order, some of them twice."""
    twice = [*events, *(event for event in events if chance.random() < 0.2)]
    chance.shuffle(twice)
    return twice


def random_history(chance: random.Random, *, jobs: int = 2, packages: int = 3, steps: int = 40) -> list[Event]:
    """What may have happened to some jobs, pilots and sites, in the order in which it was written down."""
    return _History(chance, jobs=[f"job-{number}" for number in range(1, jobs + 1)], packages=packages).events(steps)


class _History:
    """One random history. Values that a person or a machine may write are awkward now and then."""

    def __init__(self, chance: random.Random, *, jobs: list[str], packages: int) -> None:
        self._chance = chance
        self._jobs = jobs
        self._packages = packages
        self._time = START
        self._seen = 0
        self._operation = 0
        self._epochs: dict[tuple[str, str | None], int] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self._service = Stream("service", "core")
        self._agents = [Stream("agent", f"node{number}-3f9a") for number in (1, 2, 3)]
        self._client = Stream("client", "laptop")
        self._application = Stream("application", "app")

    def events(self, steps: int) -> list[Event]:
        """Every job is registered somewhere in it, most of them first."""
        events = [self._register(job) for job in self._jobs]
        steps_of: list[Callable[[], Event]] = [
            self._on_job, self._on_package, self._on_package, self._on_attempt, self._on_attempt, self._on_attempt,
            self._on_attempt, self._on_attempt, self._on_attempt, self._on_world,
        ]  # fmt: skip
        for _ in range(steps):
            self._time += self._chance.choice([0.0, 0.1, 1.5, 40.0, 1e-6])
            self._seen += self._chance.choice([0, 0, 1, 5])
            events.append(self._chance.choice(steps_of)())
        return events

    def _text(self) -> str:
        return self._chance.choice(AWKWARD)

    def _register(self, job: str) -> Event:
        stages = (
            shape("simulate", "check", lines=self._packages),
            StageShape(late=True) if self._chance.random() < 0.3 else shape("merge"),
        )
        about = registered(*stages, name=f"name of {job}", tags={"study": self._text()}, lists={"l": SHA256})
        return self._service.event(about, job=job, time=self._time, seen=self._seen)

    def _subject(self) -> tuple[str, str]:
        line, number = self._chance.randint(1, self._packages), self._chance.randint(1, 2)
        return self._chance.choice(self._jobs), f"1.{line}.{number}" if self._chance.random() < 0.9 else "2.1.1"

    def _epoch(self, job: str, package: str | None, *, opens: bool = False) -> int:
        key = (job, package)
        self._epochs[key] = self._epochs.get(key, 1) + int(opens)
        return self._epochs[key]

    def _next_operation(self) -> int:
        self._operation += 1
        return self._operation

    def _on_job(self) -> Event:
        job = self._chance.choice(self._jobs)
        choice = self._chance
        data: Payload = choice.choice([
            JobAccepted(), JobAccepted(), Tagged(name="study", value=self._text()), Noted(text=self._text()),
            Held(operation=self._next_operation()), Released(operation=self._next_operation()),
            StageExpanded(stage=2, shape=shape("merge", lines=2)), CancelAccepted(), Cleared(by="user"),
            Restarted(cause="by-hand"), Aborted(cause="quota"),
        ])  # fmt: skip
        epoch = self._epoch(job, None, opens=isinstance(data, Restarted))
        return self._service.event(data, job=job, time=self._time, epoch=epoch, seen=self._seen)

    def _on_package(self) -> Event:
        job, package = self._subject()
        data: Payload = self._chance.choice([
            Bound(site="lyon"), Unbound(), Dropped(operation=self._next_operation()),
            Restored(operation=self._next_operation()), Held(operation=self._next_operation()),
            Released(operation=self._next_operation()), CancelAccepted(), Aborted(cause="retries-exhausted"),
            Cleared(by="timeout"), Restarted(cause="deep-resubmission"), Tagged(name="colour", value=self._text()),
            ReplicaWanted(replicas=2),
        ])  # fmt: skip
        epoch = self._epoch(job, package, opens=isinstance(data, Restarted))
        return self._service.event(data, job=job, package=package, time=self._time, epoch=epoch, seen=self._seen)

    def _on_attempt(self) -> Event:
        job, package = self._subject()
        known = self._attempts.get((job, package), 0)
        creates = known == 0 or self._chance.random() < 0.25
        attempt = known + 1 if creates else self._chance.randint(1, known)
        self._attempts[job, package] = max(known, attempt)
        by, data = self._said_of_attempt(creates=creates, attempt=attempt)
        epoch = self._epoch(job, package)
        return by.event(data, job=job, package=package, attempt=attempt, time=self._time, epoch=epoch, seen=self._seen)

    def _said_of_attempt(self, *, creates: bool, attempt: int) -> tuple[Stream, Payload]:
        chance = self._chance
        agent = chance.choice(self._agents)
        if creates:
            lease = chance.choice([None, 60.0, 0.1])
            replaces = attempt - 1 if attempt > 1 and chance.random() < 0.5 else None
            site = chance.choice(["lyon", "prague"])
            return self._service, AttemptCreated(site=site, pilot="p/1", lease_seconds=lease, replaces=replaces)
        finished = AttemptFinished(
            exit_code=chance.choice(list(ExitCodeGasw)),
            exit_message=self._text(),
            reason=chance.choice([None, "out-of-memory"]),
            exit_status=chance.choice([None, 0, -9, 255]),
            phases=phases(self._time),
            manifest=chance.choice([None, manifest(attempt)]),
            peak_memory_bytes=chance.choice([None, 2**53 - 1]),
            peak_memory_below_bytes=chance.choice([None, 2**53 - 1]),
            cpu_seconds=chance.choice([None, 0.1, 1e-9]),
            cpu_user_seconds=chance.choice([None, 0.1, 1e-9]),
            cpu_system_seconds=chance.choice([None, 0.1, 1e-9]),
            read_bytes=chance.choice([None, 2**53 - 1]),
            written_bytes=chance.choice([None, 2**53 - 1]),
        )
        return chance.choice([
            (self._service, CommitGranted()),
            (agent, AttemptQueued(native_id="1234.pbs")),
            (agent, AttemptStarted(node="node-17", pilot="p/1")),
            (agent, AttemptSuspected(message=self._text())),
            (self._service, AttemptRecovered()),
            (self._service, AttemptLost(reason="preempted", message=self._text())),
            (agent, PhaseEntered(phase="application")),
            (agent, OutputsStaged(manifest=manifest(attempt))),
            (agent, finished),
            (agent, finished),
            (self._application, Tagged(name="step", value=self._text())),
        ])  # fmt: skip

    def _on_world(self) -> Event:
        by = self._chance.choice(self._agents)
        about_pilot = self._chance.random() < 0.6
        pilot_data: list[Payload] = [
            PilotRequested(site="lyon", slots=8), PilotStarted(site="lyon", node="node-17", slots=8),
            PilotEnded(reason="idle", stderr=self._text()),
            NodeDescribed(node="node-17", cores=64, memory_bytes=2**40, software={"gcc": self._text()}),
        ]  # fmt: skip
        if about_pilot:
            return by.event(self._chance.choice(pilot_data), pilot="p/1", time=self._time, seen=self._seen)
        described = SiteDescribed(kind="slurm", status="active", message=self._text())
        return self._client.event(described, site="lyon", time=self._time, seen=self._seen)
