"""`pilotage reproduce`: runs published experiments again in the simulator, and compares them with their models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import WholeHelp
from pilotage.cli.shared.output import duration, emit, plural, table
from pilotage.cli.shared.server import json_option
from pilotage.cli.simulation.simulation_report import progress

if TYPE_CHECKING:
    from pilotage.app.forecasts.reproduction import Reproduction, SimulatedRun
    from pilotage.model.sites.experiment import PilotExperiment

SMALL_PACKAGE_SECONDS = 10.0
CAMPAIGNS = 100
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


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
