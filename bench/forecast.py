"""How fast forecasts are: the makespan of a thousand numbers of pilots over a million latencies; sequential submission.

Times are CPU seconds, the best of a few.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bench.figures import Figures
from pilotage.forecast.conditioning import USUAL_DRIFT, ConditionedPilots, ObservedPilots, learn_today
from pilotage.forecast.latency import empirical_latency
from pilotage.forecast.makespan import expected_makespan
from pilotage.forecast.sequential import sequential_submission

LATENCIES = 10**6
NUMBERS = 1000
REPEATS = 5
WORK_SECONDS = 39_600.0


def best(measure: Callable[[], object]) -> float:
    """The least CPU seconds of a few runs."""
    seconds = []
    for _ in range(REPEATS):
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
    sequential = sequential_submission(
        latencies_seconds=latencies[:1000] + submissions, submissions_seconds=submissions
    )
    history = empirical_latency(latencies[:1000])
    starts = np.sort(latencies[1000:1050])
    observed = ObservedPilots(600.0, np.zeros(50), np.where(starts <= 600.0, starts, np.inf))

    def given_starts() -> None:
        today = learn_today(history, observed, drift=USUAL_DRIFT)
        ConditionedPilots(observed, today).available().time_of_area(WORK_SECONDS)

    figures = Figures()
    print("forecasts")
    figures.show("eq. 3, 10^6 latencies, 1,000 n", best(makespans), "s", bound=0.3)
    figures.show("eq. 5, 10,000 pilots, whole", best(lambda: sequential.latency(pilots=10_000)), "s", bound=1.0)
    figures.show("makespan given what started", 1000 * best(given_starts), "ms", bound=20.0)
    figures.show(
        "eq. 3, one n", 1e6 * best(lambda: expected_makespan(history, work_seconds=1e4, pilots=50)), "µs", bound=200.0
    )
    figures.done()


if __name__ == "__main__":
    main()
