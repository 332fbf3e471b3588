"""What is said of a run: in a line where all went well, and enough to replay and understand it where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import asdict

from pilotage.simulator.run import Result
from pilotage.simulator.world import World, make_world, packages_of_world


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
    return f"  probabilities: {', '.join(struck) or 'nothing strikes'}"


def failure_lines(world: World, result: Result, *, shrunk: World, shrunk_result: Result) -> Iterator[str]:
    """Everything about a failure: the seed, every probability, the smallest world that still fails, its last events."""
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
    yield f"keep it, whatever a seed makes later, with: {replay} --save-world OUT"


def _violation_lines(result: Result) -> Iterator[str]:
    if result.violation is not None:
        yield f"  at {result.violation.at:.3f} s, {result.violation.subject or 'no subject'}: {result.violation.message}"


def fired_lines(results: Iterable[Result]) -> list[str]:
    """How often something came of each kind of fault in some runs, and of how many strikes, where there were more."""
    fired: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for result in results:
        fired.update(result.fired)
        tried.update(result.tried)
    return [f"{kind} {count}" + _of(tried[kind], count) for kind, count in sorted(fired.items())]


def _of(tried: int, count: int) -> str:
    return f" of {tried}" if tried > count else ""
