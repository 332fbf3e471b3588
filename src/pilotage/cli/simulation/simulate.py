"""`pilotage simulate`: simulates a job at modelled sites, or tests pilotage in random worlds with checkers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.output import emit, printable, write_files
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.simulator.trials.definition import World
    from pilotage.simulator.trials.trial import Result

RUNS = 200
DRAWING = "simulation.svg"
SHRINKING_RUNS_MAX = 60  # each may take as long as the failed run


@click.command()
@click.argument("file", required=False, metavar="[JOB.yaml]", type=click.Path(allow_dash=True))
@click.option(
    "--sites",
    metavar="FILE",
    default="",
    help="With a job: read the sites from FILE; without it, the sites.yaml that applies here.",
)
@click.option(
    "--runs", type=click.IntRange(1, 100_000), metavar="COUNT", help="With a job: simulate COUNT runs; without it, 200."
)
@click.option(
    "--world-from",
    "sources",
    multiple=True,
    metavar="[SITE=]WHAT",
    help="With a job: model the sites after real runs: a job in the book of this folder, or a trace file.",
)
@click.option(
    "--compare",
    "comparisons",
    multiple=True,
    metavar="NAME=VALUE,…",
    help="With a job: compare several settings, such as selection=best,thompson, and draw the results.",
)
@click.option("--svg", metavar="OUT", help="With --compare: draw to the file OUT; without it, simulation.svg.")
@click.option(
    "--save-world", metavar="OUT", help="Write the world to the file OUT, to read it, change it, or run it again."
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Run only the world of seed N.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="COUNT", help="Run COUNT worlds; without it, 1.")
@click.option("--from", "first", type=click.IntRange(min=0), metavar="N", help="Start with seed N; without it, 1.")
@click.option(
    "--world",
    "world_file",
    type=click.File("rb"),
    metavar="FILE",
    help="With a job: how its sites behave. Without: run the world that a failure printed, not that of a seed.",
)
@click.option("--trace", is_flag=True, help="Also print every event of the book.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs.")
def simulate(
    file: str | None,
    sites: str,
    runs: int | None,
    sources: tuple[str, ...],
    comparisons: tuple[str, ...],
    svg: str | None,
    save_world: str | None,
    seed: int | None,
    seeds: int | None,
    first: int | None,
    world_file: BinaryIO | None,
    *,
    trace: bool,
    as_json: bool,
) -> int:
    """Forecast how long a job takes at your sites; without a job, test pilotage itself.

    With a job, it is simulated many times in virtual time, with seeds from 0 on; nothing is started anywhere. Without one,
    random worlds with all kinds of faults are simulated, and checkers verify the invariants; exit code 1: one was violated.
    """
    of_worlds = seed is not None or seeds is not None or first is not None or trace
    of_jobs = {"--sites": sites, "--runs": runs, "--world-from": sources, "--compare": comparisons, "--svg": svg}
    if file is not None:
        if of_worlds:
            raise click.UsageError(
                "--seed, --seeds, --from and --trace are for random worlds: leave out them or the job"
            )
        if svg is not None and not comparisons:
            raise click.UsageError("--svg draws a comparison: use --compare")
        from pilotage.cli.simulation.simulation_report import SimulationRequest, forecast

        import_numpy_quickly()
        request = SimulationRequest(
            file=file,
            sites=sites,
            runs=runs or RUNS,
            world=(world_file.read(), world_file.name) if world_file is not None else None,
            sources=sources,
            comparisons=comparisons,
            svg=svg or DRAWING,
            save_world=save_world,
        )
        return forecast(request, as_json=as_json)
    if given := [name for name, value in of_jobs.items() if value]:
        raise click.UsageError(f"{given[0]} is for a job: name its document")
    if seed is not None and (seeds is not None or first is not None):
        raise click.UsageError("--seed names a single world: leave out --seeds and --from, or --seed")
    if world_file is not None and (seed is not None or seeds is not None or first is not None):
        raise click.UsageError("--world names the world to run: leave out --seed, --seeds and --from")
    if save_world is not None and (seeds or 1) > 1:
        raise click.UsageError("--save-world writes a single world: choose it with --seed")
    import_numpy_quickly()
    import msgspec

    from pilotage.simulator.trials.shrink import stored
    from pilotage.simulator.trials.trial import simulate as run

    worlds = _worlds(world_file, seed=seed, seeds=seeds or 1, first=1 if first is None else first)
    if save_world is not None:
        write_files({save_world: [stored(worlds[0]).decode()]})
    failed = 0
    results = []
    for world in worlds:
        result = run(world, trace=trace)
        results.append(result)
        failed += result.violation is not None
        if as_json:
            emit([msgspec.json.encode(result).decode(), "\n"])
        else:
            emit(f"{printable(line)}\n" for line in _lines(world, result, trace=trace))
    if not as_json:
        emit(f"{printable(line)}\n" for line in _summary(results))
    return ExitCode.FAILED if failed else ExitCode.COMPLETE


def _worlds(file: BinaryIO | None, *, seed: int | None, seeds: int, first: int) -> list[World]:
    """The world of a file, of a seed, or of each of many seeds."""
    from pilotage.simulator.trials.definition import make_world
    from pilotage.simulator.trials.shrink import read_world

    if file is not None:
        return [read_world(file.read(), name=file.name)]
    return [make_world(number) for number in ([seed] if seed is not None else range(first, first + seeds))]


def _lines(world: World, result: Result, *, trace: bool) -> Iterator[str]:
    from pilotage.simulator.trials.shrink import shrink
    from pilotage.simulator.trials.trial import failure_lines, line_of, probabilities_line
    from pilotage.simulator.trials.trial import simulate as run

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
    from pilotage.simulator.trials.trial import fired_lines

    worlds = "1 world" if len(results) == 1 else f"{len(results)} worlds"
    yield f"{worlds}, {sum(result.violation is not None for result in results)} with a violation"
    yield f"faults: {', '.join(fired_lines(results))}"
