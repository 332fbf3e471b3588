"""The pilot-job model beside the runs of its own experiment: makespans, pilots over time, and the total work that is fitted.

Simulated runs are given. Whole campaigns of runs are drawn here from the same distributions, without the engine: a hundred of
them take seconds, and hours in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from pilotage.forecast.completion import (
    QUICK_RUNS,
    Application,
    makespans,
    sequential_starts,
    starts_of,
)
from pilotage.forecast.conditioning import USUAL_DRIFT, possible_days
from pilotage.forecast.fault_ratio import USUAL_HISTORY, current_fault_ratio
from pilotage.forecast.fit import FittedWork, MeasuredRun, fit_modelled, fit_work, model_error
from pilotage.forecast.latency import LatencyDistribution, empirical_latency
from pilotage.forecast.sequential import SequentialSubmission, sequential_submission
from pilotage.forecast.steps import Floats
from pilotage.model.sites.experiment import PilotExperiment

_SAMPLE_SECONDS = 10.0  # between two looks at the number of available pilots


class SimulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated run: makespans with work in small packages and in those of the experiment, starts of pilots, and its probes.

    A probe that is a fault has an infinite latency.
    """

    pilots: int
    makespan_seconds: float
    packages_makespan_seconds: float
    starts_seconds: Sequence[float]
    probe_latencies_seconds: Sequence[float]
    probe_submissions_seconds: Sequence[float]
    probe_known_at_seconds: Sequence[float]


class ReproducedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run beside the model: makespans of work that splits and of whole packages, and the paper's error on N(t).

    `fault_ratio` is the share of faults among the probes, `fault_ratio_now` the one that pilots submitted now are thought to meet.
    """

    n: int
    probes: int
    fault_ratio: float
    fault_ratio_now: float
    simulated: float
    modelled: float
    simulated_packages: float
    modelled_packages: float
    modelled_packages_full: float
    pilots_error: float
    pilots_error_now: float


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted total work, its distance from the true one as a share of it, and the mean error of makespans."""

    work_seconds: float
    bias: float
    mean_error_seconds: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted total work over many campaigns: mean, standard deviation, least, most, and the bias of the mean."""

    mean: float
    sd: float
    least: float
    most: float
    bias: float


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """The whole experiment: its runs, the total work fitted to them, and the same over many drawn campaigns.

    `divisible` is work that splits, `packages` whole packages; `paper` and `full` are the models that the work is fitted with.
    `engine_excess` is how much longer the simulated runs took than the same starts of pilots would on paper.
    """

    seed: int
    work_seconds: float
    packages: int
    runs: list[ReproducedRun]
    engine_excess: float
    fitted: dict[str, Fitted]
    campaigns: int
    spread: dict[str, Spread]


class _Model:
    """What the probes of one run say of its makespan."""

    def __init__(self, experiment: PilotExperiment, *, latencies: Floats, submissions: Floats, pilots: int) -> None:
        self.pilots = pilots
        self._packages = experiment.packages
        self._submission: SequentialSubmission | None = None
        if experiment.submission_seconds:
            self._submission = sequential_submission(latencies_seconds=latencies, submissions_seconds=submissions)
        self._single = empirical_latency(latencies)
        self._starts: Floats | None = None

    @property
    def latency(self) -> LatencyDistribution:
        """F_L, by eq. 5 where pilots are submitted one after the other."""
        return self._single if self._submission is None else self._submission.latency(pilots=self.pilots)

    def measured(self, makespan_seconds: float) -> MeasuredRun:
        """The run as the paper's fit takes it (eq. 1 and 3)."""
        return MeasuredRun(self.latency.started.scaled(float(self.pilots)), makespan_seconds)

    def full_makespan(self, work_seconds: float) -> float:
        """The mean makespan of whole packages over possible runs."""
        if self._starts is None:
            if self._submission is None:
                self._starts = starts_of(
                    possible_days(self._single, drift=USUAL_DRIFT),
                    pilots=self.pilots,
                    queued_since_seconds=np.zeros(self.pilots),
                    now_seconds=-1.0,
                    started_seconds=np.zeros(0),
                    runs=QUICK_RUNS,
                )
            else:
                today = possible_days(self._submission.rest, drift=USUAL_DRIFT)
                self._starts = sequential_starts(self._submission, today, pilots=self.pilots, runs=QUICK_RUNS)
        return float(makespans(_application(work_seconds, packages=self._packages), self._starts).mean())


def reproduce(
    experiment: PilotExperiment,
    runs: Sequence[SimulatedRun],
    *,
    campaigns: int,
    seed: int,
    each: Callable[[], object] = lambda: None,
) -> Reproduction:
    """Fit the models to simulated runs, and to campaigns that are drawn; `each` is called after each campaign."""
    models = [
        _Model(
            experiment,
            latencies=np.array(run.probe_latencies_seconds),
            submissions=np.array(run.probe_submissions_seconds),
            pilots=run.pilots,
        )
        for run in runs
    ]
    divisible = _paper_fit(models, [run.makespan_seconds for run in runs])
    packages = _paper_fit(models, [run.packages_makespan_seconds for run in runs])
    full = _full_fit(models, [run.packages_makespan_seconds for run in runs], near_seconds=packages.work_seconds)
    on_paper = [_on_paper(experiment, run) for run in runs]
    fits = {"divisible_paper": divisible, "packages_paper": packages, "packages_full": full}
    drawn: dict[str, list[float]] = {name: [] for name in fits}
    for number in range(campaigns):
        for name, work_seconds in draw_campaign(experiment, seed=seed, number=number).items():
            drawn[name].append(work_seconds)
        each()
    return Reproduction(
        seed=seed,
        work_seconds=experiment.work_seconds,
        packages=experiment.packages,
        runs=[
            _reproduced(experiment, run, models[place], divisible, packages, full, place)
            for place, run in enumerate(runs)
        ],
        engine_excess=float(
            np.mean([run.makespan_seconds / least - 1.0 for run, least in zip(runs, on_paper, strict=True)])
        ),
        fitted={
            name: Fitted(
                work_seconds=found.work_seconds,
                bias=found.work_seconds / experiment.work_seconds - 1.0,
                mean_error_seconds=found.mean_error_seconds,
            )
            for name, found in fits.items()
        },
        campaigns=campaigns,
        spread={name: _spread(np.array(works), experiment.work_seconds) for name, works in drawn.items() if works},
    )


def draw_campaign(experiment: PilotExperiment, *, seed: int, number: int) -> dict[str, float]:
    """The total work fitted to one campaign that is drawn from the distributions of the experiment."""
    drawn = np.random.default_rng([seed, number])
    models: list[_Model] = []
    splits: list[float] = []
    wholes: list[float] = []
    for run, pilots in enumerate(experiment.pilots):
        latencies, submissions = _drawn_latencies(experiment, drawn, experiment.probes_of(run))
        models.append(_Model(experiment, latencies=latencies, submissions=submissions, pilots=pilots))
        latencies, submissions = _drawn_latencies(experiment, drawn, pilots)
        starts = (latencies - submissions + np.cumsum(submissions))[None, :]
        for found, packages in ((splits, None), (wholes, experiment.packages)):
            found.append(float(makespans(_application(experiment.work_seconds, packages=packages), starts)[0]))
    packages_fit = _paper_fit(models, wholes).work_seconds
    return {
        "divisible_paper": _paper_fit(models, splits).work_seconds,
        "packages_paper": packages_fit,
        "packages_full": _full_fit(models, wholes, near_seconds=packages_fit).work_seconds,
    }


def _drawn_latencies(experiment: PilotExperiment, drawn: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Latencies of single pilots and the times of their submissions; a fault has an infinite latency."""
    latency = experiment.latency
    assert latency.median_seconds is not None
    assert latency.sigma is not None
    rest = drawn.lognormal(np.log(latency.median_seconds), latency.sigma, count)
    submissions = drawn.exponential(experiment.submission_seconds, count)
    found = submissions + experiment.latency_least_seconds + rest
    return np.where(drawn.random(count) < experiment.fault_ratio, np.inf, found), submissions


def _application(work_seconds: float, *, packages: int | None) -> Application:
    return Application(
        work_seconds=work_seconds,
        work_sd=0.0,
        packages=packages,
        start_cost_seconds=0.0,
        speeds=(1.0,),
        lifetime_seconds=np.inf,
    )


def _paper_fit(models: Sequence[_Model], makespans_seconds: Sequence[float]) -> FittedWork:
    return fit_work([model.measured(each) for model, each in zip(models, makespans_seconds, strict=True)])


def _full_fit(models: Sequence[_Model], makespans_seconds: Sequence[float], *, near_seconds: float) -> FittedWork:
    def modelled(work_seconds: float) -> Floats:
        return np.array([model.full_makespan(work_seconds) for model in models])

    return fit_modelled(modelled, measured_seconds=np.array(makespans_seconds), near_seconds=near_seconds)


def _on_paper(experiment: PilotExperiment, run: SimulatedRun) -> float:
    """The end of work that splits, on the pilots of a simulated run."""
    starts = np.array(run.starts_seconds)[None, :]
    return float(makespans(_application(experiment.work_seconds, packages=None), starts)[0])


def _reproduced(
    experiment: PilotExperiment,
    run: SimulatedRun,
    model: _Model,
    divisible: FittedWork,
    packages: FittedWork,
    full: FittedWork,
    place: int,
) -> ReproducedRun:
    faults = np.isinf(np.array(run.probe_latencies_seconds))
    now_ratio = current_fault_ratio(
        known_at_seconds=run.probe_known_at_seconds,
        faults=faults,
        now_seconds=experiment.probe_window_seconds,
        history=USUAL_HISTORY,
    )
    latency = model.latency
    at = np.arange(0.0, run.makespan_seconds, _SAMPLE_SECONDS)
    available = np.searchsorted(np.sort(np.array(run.starts_seconds)), at, side="right")
    expected = run.pilots * latency.at(at)
    errors = [
        model_error(modelled=expected * scale, measured=available, pilots=run.pilots)
        for scale in (1.0, (1.0 - now_ratio) / (1.0 - latency.fault_ratio))
    ]
    return ReproducedRun(
        n=run.pilots,
        probes=len(faults),
        fault_ratio=float(faults.mean()),
        fault_ratio_now=now_ratio,
        simulated=run.makespan_seconds,
        modelled=float(divisible.makespans_seconds[place]),
        simulated_packages=run.packages_makespan_seconds,
        modelled_packages=float(packages.makespans_seconds[place]),
        modelled_packages_full=float(full.makespans_seconds[place]),
        pilots_error=errors[0],
        pilots_error_now=errors[1],
    )


def _spread(works: Floats, true_seconds: float) -> Spread:
    return Spread(
        mean=float(works.mean()),
        sd=float(works.std(ddof=1)) if len(works) > 1 else 0.0,
        least=float(works.min()),
        most=float(works.max()),
        bias=float(works.mean()) / true_seconds - 1.0,
    )
