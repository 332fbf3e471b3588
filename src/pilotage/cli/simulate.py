"""`pilotage simulate`: the engine and the core in virtual time, with faults, against their checkers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.output import emit, shown
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.simulator.run import Result
    from pilotage.simulator.world import World

SHRINKING_RUNS_MAX = 60  # each may take as long as the run that failed


@click.command()
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="The one world to run; everything follows from it."
)
@click.option("--seeds", type=click.IntRange(min=1), metavar="COUNT", default=1, help="How many worlds to run.")
@click.option("--from", "first", type=click.IntRange(min=0), metavar="N", default=1, help="The first of them.")
@click.option(
    "--world",
    "world_file",
    type=click.File("rb"),
    metavar="FILE",
    help="Run a world that a failure printed, instead of one made from a seed.",
)
@click.option("--trace", is_flag=True, help="Print every event of the book as well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each world, for other programs.")
def simulate(
    seed: int | None,
    seeds: int,
    first: int,
    world_file: BinaryIO | None,
    *,
    trace: bool,
    as_json: bool,
) -> int:
    """Run made-up worlds in virtual time, with every fault there is, and check what must hold.

    A seed fixes everything: the same seed gives the same events. Exit code 0: everything held; 1: something did not,
    and it is said how to see it again.
    """
    import_numpy_quickly()
    import msgspec

    from pilotage.model.errors import PilotageError
    from pilotage.simulator.run import simulate as run
    from pilotage.simulator.world import World, make_world

    if world_file is not None:
        try:
            worlds = [msgspec.json.decode(world_file.read(), type=World)]
        except msgspec.DecodeError as fault:
            raise PilotageError(f"is not a world: {fault}", subject=world_file.name) from None
    else:
        numbers = [seed] if seed is not None else range(first, first + seeds)
        worlds = [make_world(number) for number in numbers]
    failed = 0
    results = []
    for world in worlds:
        result = run(world, trace=trace)
        results.append(result)
        failed += result.violation is not None
        if as_json:
            emit([msgspec.json.encode(result).decode(), "\n"])
        else:
            emit(f"{shown(line)}\n" for line in _lines(world, result, trace=trace))
    if not as_json:
        emit(f"{shown(line)}\n" for line in _summary(results))
    return ExitCode.FAILED if failed else ExitCode.COMPLETE


def _lines(world: World, result: Result, *, trace: bool) -> Iterator[str]:
    from pilotage.simulator.report import failure_lines, line_of
    from pilotage.simulator.run import simulate as run
    from pilotage.simulator.shrink import shrink

    if trace:
        yield from result.last_events
    if result.violation is None:
        yield line_of(result)
        return
    checker = result.violation.checker

    def fails(candidate: World) -> bool:
        found = run(candidate).violation
        return found is not None and found.checker == checker

    smallest = shrink(world, fails, runs_max=SHRINKING_RUNS_MAX)
    yield from failure_lines(world, result, shrunk=smallest, shrunk_result=run(smallest))


def _summary(results: list[Result]) -> Iterator[str]:
    from pilotage.simulator.report import fired_lines

    yield f"{len(results)} worlds, {sum(result.violation is not None for result in results)} with a violation"
    yield f"faults: {', '.join(fired_lines(results))}"
