"""`pilotage reproduce`: runs published experiments again in the simulator, and compares them with their models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import WholeHelp
from pilotage.cli.shared.output import duration, emit, plural, table, write_files
from pilotage.cli.shared.server import json_option
from pilotage.cli.simulation.simulation_report import progress

if TYPE_CHECKING:
    from pilotage.app.forecasts.reproduction import Reproduction, SimulatedRun
    from pilotage.model.sites.experiment import PilotExperiment
    from pilotage.model.sites.healing_experiment import WorldName
    from pilotage.simulator.runs.healing import HealingFigures

SMALL_PACKAGE_SECONDS = 10.0
CAMPAIGNS = 100
REPETITIONS = 5
WORLDS: tuple[WorldName, ...] = ("measured", "blocked", "calm")
BURST_RUNS = 4  # the paper's experiments 16 to 19
_FITS = {
    "divisible_paper": ("work that splits", "paper"),
    "packages_paper": ("whole packages", "paper"),
    "packages_full": ("whole packages", "full"),
}


@click.group(cls=WholeHelp)
def reproduce() -> None:
    """Run published experiments again in the simulator.

    Nothing is started anywhere, and the same seed gives the same answer.
    """


@reproduce.command()
@click.option("--seed", type=click.IntRange(0, 10**6), default=1, metavar="N", help="The seed; without it, 1.")
@click.option(
    "--campaigns",
    type=click.IntRange(0, 10_000),
    default=CAMPAIGNS,
    metavar="COUNT",
    help="Draw COUNT further campaigns of 19 runs and fit each; without it, 100.",
)
@click.option(
    "--submission",
    type=click.FloatRange(0.0, 1000.0),
    default=0.0,
    metavar="SECONDS",
    help="Submit pilots one after the other, each for SECONDS on average; without it, all at once.",
)
@click.option("--bursts", is_flag=True, help="Let pilots fail in bursts in the hour before the last four runs.")
@json_option
def pilots(seed: int, campaigns: int, submission: float, *, bursts: bool, as_json: bool) -> None:
    """Compare the model of pilot jobs with simulated runs on 25 to 150 pilots.

    The experiment is that of Glatard and Camarasu-Pop: 19 runs of 11 hours of work, with their latencies and faults. The
    production engine runs them at a simulated batch system; the campaigns are drawn from the same distributions without it.
    """
    import_numpy_quickly()
    import msgspec

    from pilotage import app
    from pilotage.app.forecasts.reproduction import reproduce as compare
    from pilotage.model.sites.experiment import PAPER_EXPERIMENT

    experiment = msgspec.structs.replace(
        PAPER_EXPERIMENT, submission_seconds=submission, burst_runs=BURST_RUNS if bursts else 0
    )
    with progress(2 * len(experiment.pilots) + campaigns) as each:
        runs = [_simulated(experiment, run, seed=seed, each=each) for run in range(len(experiment.pilots))]
        found = compare(experiment, runs, campaigns=campaigns, seed=seed, each=each)
    emit([app.json_text(found)] if as_json else _lines(experiment, found))


@reproduce.command()
@click.option("--seed", type=click.IntRange(0, 10**6), default=1, metavar="N", help="The first seed; without it, 1.")
@click.option(
    "--repetitions",
    type=click.IntRange(1, 1000),
    default=REPETITIONS,
    metavar="COUNT",
    help="Run each policy COUNT times, with as many seeds; without it, 5.",
)
@click.option(
    "--world",
    "worlds",
    multiple=True,
    type=click.Choice(WORLDS),
    help="The world, one or more; without it, measured and blocked.",
)
@click.option("--svg", metavar="OUT", help="Draw the makespans of the first five repetitions to the file OUT.")
@json_option
def healing(seed: int, repetitions: int, worlds: tuple[WorldName, ...], svg: str | None, *, as_json: bool) -> None:
    """Compare ways of copying late packages, and none, for two activities.

    The experiment is that of figure 8 of The VIP execution service: 100 packages of a quarter of an hour with much data, and 250 of an
    hour. In the world measured, hosts and queues behave as pilots on the Open Science Grid did; in blocked, also 3 % of the
    attempts stall while they fetch their inputs; in calm, no attempt is late.
    """
    import_numpy_quickly()
    from pilotage import app
    from pilotage.model.sites.healing_experiment import ACTIVITIES
    from pilotage.simulator.runs.healing import POLICIES, figures_of, run_all
    from pilotage.simulator.runs.healing_chart import chart_of

    chosen = tuple(dict.fromkeys(worlds)) or WORLDS[:2]
    seeds = range(seed, seed + repetitions)
    with progress(len(chosen) * len(ACTIVITIES) * len(POLICIES) * len(seeds)) as each:
        runs = run_all(chosen, ACTIVITIES, seeds=seeds, each=each)
    found = figures_of(runs)
    if svg is not None:
        write_files({svg: [chart_of(runs)]})
    emit(
        [app.json_text({"runs": runs, "figures": found})] if as_json else _healing_lines(found, repetitions, seed=seed)
    )


def _simulated(experiment: PilotExperiment, run: int, *, seed: int, each: Callable[[], object]) -> SimulatedRun:
    from pilotage.app.forecasts.reproduction import SimulatedRun
    from pilotage.simulator.runs.experiment import run_pilots, run_probes

    probes = run_probes(experiment, run=run, seed=seed)
    small = round(experiment.work_seconds / SMALL_PACKAGE_SECONDS)
    split = run_pilots(experiment, run=run, packages=small, seed=seed)
    each()
    whole = run_pilots(experiment, run=run, packages=experiment.packages, seed=seed)
    each()
    return SimulatedRun(
        pilots=split.pilots,
        makespan_seconds=split.makespan_seconds,
        packages_makespan_seconds=whole.makespan_seconds,
        starts_seconds=split.starts_seconds,
        probe_latencies_seconds=[probe.latency_seconds for probe in probes],
        probe_submissions_seconds=[probe.submission_seconds for probe in probes],
        probe_known_at_seconds=[probe.known_at_seconds for probe in probes],
    )


# --- for people -------------------------------------------------------------------------------------------------------


def _lines(experiment: PilotExperiment, found: Reproduction) -> Iterator[str]:
    runs = found.runs
    yield (
        f"{plural(len(runs), 'run')} of {found.work_seconds:,.0f} s of work ({duration(found.work_seconds)}),"
        f" seed {found.seed}; makespans in seconds\n"
    )
    yield from table(
        (
            (
                f"{run.n:,}",
                f"{100 * run.fault_ratio:.1f} %",
                f"{run.simulated:,.0f}",
                f"{run.modelled:,.0f}",
                f"{run.simulated_packages:,.0f}",
                f"{run.modelled_packages:,.0f}",
                f"{run.modelled_packages_full:,.0f}",
                f"{100 * run.pilots_error:.1f} %",
                f"{100 * run.pilots_error_now:.1f} %" if experiment.burst_runs else "",
            )
            for run in runs
        ),
        header=(
            "pilots",
            "faults",
            "split",
            "paper",
            f"{found.packages}",
            "paper",
            "full",
            "N(t) error",
            "with faults now",
        ),
        indent="  ",
    )
    yield f"split: packages of {SMALL_PACKAGE_SECONDS:g} s; {found.packages}: so many packages; paper, full: the models, with the work fitted to these runs\n"
    yield f"the engine takes {100 * found.engine_excess:.1f} % longer than the same starts of pilots would on paper\n\n"
    yield "fitted work\n"
    yield from table(
        (
            (*_FITS[name], f"{each.work_seconds:,.0f} s", _percent(each.bias), f"{each.mean_error_seconds:,.0f} s")
            for name, each in found.fitted.items()
        ),
        header=("", "model", "work", "bias", "mean error"),
        indent="  ",
    )
    if found.spread:
        yield f"\nfitted work over {found.campaigns:,} campaigns, drawn without the engine\n"
        yield from table(
            (
                (
                    *_FITS[name],
                    f"{each.mean:,.0f} s",
                    _percent(each.bias),
                    f"{each.sd:,.0f} s",
                    f"{each.least:,.0f} to {each.most:,.0f} s",
                )
                for name, each in found.spread.items()
            ),
            header=("", "model", "mean", "bias", "sd", "all of them"),
            indent="  ",
        )


def _healing_lines(found: list[HealingFigures], repetitions: int, *, seed: int) -> Iterator[str]:
    yield f"{plural(repetitions, 'repetition')} from seed {seed} on; medians, and in brackets the least and the greatest\n"
    for world in dict.fromkeys(each.world for each in found):
        yield f"\n{world}\n"
        yield from table(
            (
                (
                    each.activity,
                    each.policy,
                    duration(each.makespan_seconds),
                    f"{each.speed_up:.2f} ({each.speed_up_least:.2f} to {each.speed_up_most:.2f})",
                    _with_interval(each),
                    f"{each.slot_time:.2f}",
                    f"{each.copies:g}",
                    f"{100 * each.waste:.1f} % (at most {100 * each.waste_most:.1f} %)",
                )
                for each in found
                if each.world == world
            ),
            header=("activity", "policy", "makespan", "speed-up", "mean makespan", "slot time", "copies", "waste"),
            indent="  ",
        )
    yield "mean makespan and slot time: beside off with the same seeds, the former with its 95 % confidence interval\n"
    yield "waste: the share of slot time of attempts without a result, from when healing gave them a rival or gave them up\n"


def _with_interval(figures: HealingFigures) -> str:
    text = _percent(figures.longer)
    if figures.policy == "off" or figures.longer_low is None or figures.longer_high is None:
        return text if figures.policy != "off" else ""
    return f"{text} ({_percent(figures.longer_low)} to {_percent(figures.longer_high)})"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
