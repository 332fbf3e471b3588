"""Runs one world from beginning to end: assembles it, drives the schedule, and checks all the way.

Faults strike until their time is over; then everything must end within the horizon. The first broken promise or exception is
the violation of the run.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import asdict

from pilotage.book.codec import Checked
from pilotage.simulator.checkers.observer import Violation
from pilotage.simulator.trials.checked_world import CheckedWorld
from pilotage.simulator.trials.definition import World, make_world, packages_of_world
from pilotage.simulator.world.service_process import BusyLoop

_SHOWN = 40
_LOOK_SECONDS = 60.0  # how often to check whether everything is over
_QUIET_SECONDS = 900.0  # late messages still arrive after the end


class ViolationFound(msgspec.Struct, frozen=True, kw_only=True):
    """A violation: its checker, its subject, and when it happened."""

    checker: str
    message: str
    subject: str = ""
    at: float = 0.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a world."""

    seed: int
    event_hash: str  # over the durable events, in order
    fired: dict[str, int]  # how often each kind of fault had an effect
    tried: dict[str, int]  # how often each kind struck
    crash_points: dict[str, int]
    events: int
    packages: int
    steps: int
    virtual_seconds: float
    plans: dict[str, int] = {}  # for pilots by forecast: made, with a lower number, and pilots withdrawn
    violation: ViolationFound | None = None
    last_events: tuple[str, ...] = ()

    @property
    def crashes(self) -> int:
        """How often the service crashed."""
        return sum(self.crash_points.values())


class _EventRecorder:
    """Records durable events: the hash over all of them, and the last lines."""

    def __init__(self, *, keeps_all: bool) -> None:
        self.count = 0
        self.lines: deque[str] = deque(maxlen=None if keeps_all else _SHOWN)
        self._hash = hashlib.sha256()
        self._encode = msgspec.json.Encoder(order="sorted").encode

    def add(self, checked: Checked, now: float) -> None:
        event = checked.event
        self.count += 1
        text = self._encode(event)
        self._hash.update(text)
        self._hash.update(b"\n")
        about = "/".join(str(part) for part in (event.job, event.package, event.attempt) if part is not None)
        data = bytes(event.data).decode()
        self.lines.append(
            f"{self.count} at {now:.3f}: {event.stream} {event.n}, epoch {event.epoch}:"
            f" {event.type} {about or event.pilot or event.site or ''} {data}"
        )

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def simulate(
    world: World,
    *,
    steps_max: int = 2_000_000,
    check_every: int = 20,
    faults_stop_at: float | None = None,
    trace: bool = False,
) -> Result:
    """Run a world. `steps_max` limits the steps of the schedule, `check_every` counts steps of the service."""
    tape = _EventRecorder(keeps_all=trace)
    checked_world = CheckedWorld(world, on_durable=tape.add)
    violation: ViolationFound | None = None
    try:
        checked_world.begin()
        stops_at = world.faults_seconds if faults_stop_at is None else faults_stop_at
        _run(checked_world, stops_at=stops_at, steps_max=steps_max, check_every=check_every)
    except Violation as broken:
        violation = ViolationFound(
            checker=broken.checker, message=broken.message, subject=broken.subject, at=checked_world.elapsed_seconds
        )
    except BusyLoop as stuck:
        violation = ViolationFound(checker="sleeping", message=str(stuck), at=checked_world.elapsed_seconds)
    except Exception as error:  # noqa: BLE001 # any exception of production code is a finding, with its traceback
        violation = ViolationFound(
            checker=f"raised {type(error).__name__}",
            message="".join(traceback.format_exception(error)[-4:]),
            at=checked_world.elapsed_seconds,
        )
    return Result(
        seed=world.seed,
        event_hash=tape.digest,
        fired=checked_world.injector.fired,
        tried=checked_world.injector.tried,
        crash_points=dict(checked_world.driver.crashes),
        events=tape.count,
        packages=checked_world.packages,
        steps=checked_world.driver.steps,
        virtual_seconds=checked_world.elapsed_seconds,
        plans=checked_world.observer.plan_counts,
        violation=violation,
        last_events=tuple(tape.lines),
    )


def _run(checked_world: CheckedWorld, *, stops_at: float, steps_max: int, check_every: int) -> None:
    schedule, driver = checked_world.schedule, checked_world.driver
    look_at = 0.0
    checked = 0
    for _ in range(steps_max):
        if not schedule.step():
            break
        elapsed = checked_world.elapsed_seconds
        if elapsed >= stops_at and not checked_world.calm:
            checked_world.stop_faults()
        if driver.steps >= checked + check_every:
            checked = driver.steps
            checked_world.check()
        if checked_world.calm and elapsed >= look_at:
            look_at = elapsed + _LOOK_SECONDS
            if checked_world.is_over():
                break
    else:
        raise Violation("finishing", f"not finished after {steps_max} steps of the schedule", subject="")
    schedule.run(until=schedule.now + _QUIET_SECONDS)
    checked_world.finish()


# The report of a run: one line for a success, and enough to replay and understand a failure.


def line_of(result: Result) -> str:
    """One run in one line."""
    verdict = "ok" if result.violation is None else f"VIOLATION {result.violation.checker}"
    return (
        f"seed {result.seed}: {verdict}, {result.packages} packages, {result.events} events, {result.steps} steps,"
        f" {result.crashes} crashes, {result.virtual_seconds:.0f} virtual seconds, {result.event_hash[:16]}"
    )


def probabilities_line(world: World) -> str:
    """The probability of every fault that may strike in a world."""
    struck = [f"{kind} {value:g}" for kind, value in asdict(world.faults).items() if value]
    return f"  probabilities: {', '.join(struck) or 'no faults'}"


def failure_lines(world: World, result: Result, *, shrunk: World, shrunk_result: Result) -> Iterator[str]:
    """Everything about a failure: the seed, all probabilities, the smallest world that still fails, its last events."""
    yield line_of(result)
    yield from _violation_lines(result)
    yield "probabilities:"
    yield from (f"  {kind} {value:g}" for kind, value in asdict(world.faults).items() if value)
    packages, sites = packages_of_world(shrunk), len(shrunk.sites)
    yield f"the smallest world that still fails has {packages} packages, {sites} sites:"
    yield msgspec.json.encode(shrunk).decode()
    yield from _violation_lines(shrunk_result)
    yield "its last events:"
    yield from (f"  {line}" for line in shrunk_result.last_events)
    replay = f"pilotage simulate {f'--seed {world.seed}' if world == make_world(world.seed) else '--world FILE'}"
    yield f"replay it with: {replay} --trace"
    yield f"store this world, since a seed may give another one later: {replay} --save-world OUT"


def _violation_lines(result: Result) -> Iterator[str]:
    if result.violation is not None:
        yield f"  at {result.violation.at:.3f} s, {result.violation.subject or 'no subject'}: {result.violation.message}"


def fired_lines(results: Iterable[Result]) -> list[str]:
    """How often each kind of fault had an effect in some runs, and how often it struck if that was more."""
    fired: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for result in results:
        fired.update(result.fired)
        tried.update(result.tried)
    return [f"{kind} {count}" + _of(tried[kind], count) for kind, count in sorted(fired.items())]


def _of(tried: int, count: int) -> str:
    return f" of {tried}" if tried > count else ""
