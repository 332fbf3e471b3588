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
@click.option("--seeds", type=click.IntRange(min=1), metavar="COUNT", help="How many worlds to run; 1 unless given.")
@click.option("--from", "first", type=click.IntRange(min=0), metavar="N", help="The first of them; 1 unless given.")
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
    seeds: int | None,
    first: int | None,
    world_file: BinaryIO | None,
    *,
    trace: bool,
    as_json: bool,
) -> int:
    """Run made-up worlds in virtual time, with every fault there is, and check what must hold.

    A seed fixes everything: the same seed gives the same events. Exit code 0: everything held; 1: something did not,
    and it is said how to see it again.
    """
    if seed is not None and (seeds is not None or first is not None):
        raise click.UsageError("--seed names one world: leave out --seeds and --from, or --seed")
    if world_file is not None and (seed is not None or seeds is not None or first is not None):
        raise click.UsageError("--world is the world to run: leave out --seed, --seeds and --from")
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
        begin = 1 if first is None else first
        numbers = [seed] if seed is not None else range(begin, begin + (seeds or 1))
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
    from pilotage.simulator.report import failure_lines, line_of, probabilities_line
    from pilotage.simulator.run import simulate as run
    from pilotage.simulator.shrink import shrink

    if trace:
        yield from result.last_events
    if result.violation is None:
        yield line_of(result)
        yield probabilities_line(world)
        return
    checker = result.violation.checker

    def fails(candidate: World) -> bool:
        found = run(candidate).violation
        return found is not None and found.checker == checker

    smallest = shrink(world, fails, runs_max=SHRINKING_RUNS_MAX)
    yield from failure_lines(world, result, shrunk=smallest, shrunk_result=run(smallest))


def _summary(results: list[Result]) -> Iterator[str]:
    from pilotage.simulator.report import fired_lines

    worlds = "1 world" if len(results) == 1 else f"{len(results)} worlds"
    yield f"{worlds}, {sum(result.violation is not None for result in results)} with a violation"
    yield f"faults: {', '.join(fired_lines(results))}"
