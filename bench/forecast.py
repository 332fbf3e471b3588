"""How fast forecasts are: the makespan of a thousand numbers of pilots over a million latencies; sequential submission.

Times are CPU seconds, the best of a few.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bench.figures import Figures
from pilotage.forecast.completion import QUICK_RUNS, Application, makespan_distribution, starts_of
from pilotage.forecast.conditioning import USUAL_DRIFT, ConditionedPilots, ObservedPilots, learn_today
from pilotage.forecast.latency import empirical_latency
from pilotage.forecast.makespan import Need, expected_makespan, provision
from pilotage.forecast.sequential import SequentialSubmission, sequential_submission

LATENCIES = 10**6
NUMBERS = 1000
REPEATS = 5
QUICK_REPEATS = 50
WORK_SECONDS = 39_600.0


def best(measure: Callable[[], object], *, repeats: int = REPEATS) -> float:
    """The least CPU seconds of a few runs."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        measure()
        seconds.append(time.process_time() - started)
    return min(seconds)


def main() -> None:
    """Measure and print every figure."""
    drawn = np.random.default_rng(1)
    latencies = 150.0 + drawn.lognormal(5.96, 0.96, LATENCIES)
    latencies[drawn.random(LATENCIES) < 0.068] = np.inf
    numbers = np.arange(1, NUMBERS + 1)

    def makespans() -> None:
        expected_makespan(empirical_latency(latencies), work_seconds=WORK_SECONDS, pilots=numbers)

    submissions = drawn.gamma(4.0, 1.5, 1000)

    def one_after_the_other() -> SequentialSubmission:
        return sequential_submission(latencies_seconds=latencies[:1000] + submissions, submissions_seconds=submissions)

    def solve() -> None:
        one_after_the_other().latency(pilots=10_000)

    sequential = one_after_the_other()
    history = empirical_latency(latencies[:1000])
    starts = np.sort(latencies[1000:1050])
    observed = ObservedPilots(600.0, np.zeros(50), np.where(starts <= 600.0, starts, np.inf))

    one_by_one = ObservedPilots(600.0, np.linspace(0.0, 100.0, 50), observed.started_seconds)
    application = Application(
        work_seconds=WORK_SECONDS,
        work_sd=0.0,
        packages=None,
        start_cost_seconds=0.0,
        speeds=(1.0,),
        lifetime_seconds=np.inf,
    )
    known = learn_today(history, observed, drift=USUAL_DRIFT)

    def given_starts(seen: ObservedPilots) -> None:
        today = learn_today(history, seen, drift=USUAL_DRIFT)
        ConditionedPilots(seen, today).makespan(WORK_SECONDS)

    def interval() -> None:
        today = learn_today(history, observed, drift=USUAL_DRIFT)
        starts = starts_of(
            today,
            pilots=50,
            queued_since_seconds=observed.queued_submitted_seconds,
            now_seconds=observed.now_seconds,
            started_seconds=observed.starts_seconds,
            runs=QUICK_RUNS,
        )
        makespan_distribution(application, starts)

    need = Need(
        work_seconds=WORK_SECONDS,
        package_seconds=88.0,
        running=((3.0, np.inf), (4.0, 3000.0)),
        queued_seconds=tuple(float(each) for each in drawn.uniform(0.0, 600.0, 20)),
        queued_max=150,
        lifetime_seconds=14_400.0,
        start_cost_seconds=0.0,
    )

    figures = Figures()
    print("forecasts")
    figures.show("eq. 3, 10^6 latencies, 1,000 n", best(makespans), "s", bound=0.3)
    figures.show("eq. 5, 10,000 pilots, whole", best(solve), "s", bound=1.0)
    figures.show(
        "eq. 5, 10,000 pilots, again", 1e6 * best(lambda: sequential.latency(pilots=10_000)), "µs", bound=200.0
    )
    # 1,000 forecasts a minute in 1 % of a core: 0.6 ms for each.
    asked = ConditionedPilots(observed, known)
    for name, measure, bound_ms in (
        ("learning what started", lambda: learn_today(history, observed, drift=USUAL_DRIFT), 0.3),
        ("its makespan", lambda: asked.makespan(WORK_SECONDS), 0.3),
        ("makespan given what started", lambda: given_starts(observed), 0.6),
        ("the same, submitted one by one", lambda: given_starts(one_by_one), 1.2),
        ("interval given what started", interval, 1.2),
        ("how many pilots to request", lambda: provision(history, need, within=0.1), 0.6),
    ):
        figures.show(name, 1000 * best(measure, repeats=QUICK_REPEATS), "ms", bound=bound_ms)
    figures.show(
        "eq. 3, one n", 1e6 * best(lambda: expected_makespan(history, work_seconds=1e4, pilots=50)), "µs", bound=200.0
    )
    figures.done()


if __name__ == "__main__":
    main()
