"""What holds of every forecast: it falls in the number of pilots, rises in work and faults, and never breaks on a table."""

from __future__ import annotations

import io
import re
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pilotage.app.forecasts.tables import read_finished_runs, read_latencies, read_measured, read_observed, read_runs
from pilotage.forecast.censoring import kaplan_meier
from pilotage.forecast.completion import Application, makespans
from pilotage.forecast.conditioning import USUAL_DRIFT, ConditionedPilots, ObservedPilots, learn_today
from pilotage.forecast.fault_ratio import USUAL_HISTORY, current_fault_ratio
from pilotage.forecast.latency import empirical_latency
from pilotage.forecast.makespan import expected_makespan
from pilotage.forecast.run_time import RUNS_MIN, size_estimate
from pilotage.forecast.sequential import sequential_submission
from pilotage.model.errors import PilotageError

SECONDS = st.floats(0.0, 1e5)
LATENCIES = st.lists(st.one_of(SECONDS, st.just(np.inf)), min_size=2, max_size=30)
WORK = st.floats(1e-3, 1e9)
COUNTS = st.integers(1, 10_000)


def some_start(latencies: list[float]) -> bool:
    return any(np.isfinite(latencies))


@given(LATENCIES.filter(some_start), WORK, COUNTS)
def test_the_makespan_falls_in_the_number_of_pilots_and_is_no_less_than_its_limit(
    latencies: list[float], work: float, pilots: int
) -> None:
    latency = empirical_latency(latencies)
    fewer, more = expected_makespan(latency, work_seconds=work, pilots=[pilots, pilots + 1])
    assert latency.lower_bound_seconds <= more <= fewer * (1 + 1e-12)


@given(LATENCIES.filter(some_start), WORK, COUNTS)
def test_the_makespan_rises_in_the_work(latencies: list[float], work: float, pilots: int) -> None:
    latency = empirical_latency(latencies)
    assert expected_makespan(latency, work_seconds=work, pilots=pilots) <= expected_makespan(
        latency, work_seconds=2 * work, pilots=pilots
    )


@given(LATENCIES.filter(some_start), WORK, COUNTS, st.integers(1, 5))
def test_the_makespan_rises_in_the_faults(latencies: list[float], work: float, pilots: int, faults: int) -> None:
    before = empirical_latency(latencies)
    after = empirical_latency([*latencies, *[np.inf] * faults])
    assert after.fault_ratio > before.fault_ratio - 1e-12
    assert expected_makespan(before, work_seconds=work, pilots=pilots) <= expected_makespan(
        after, work_seconds=work, pilots=pilots
    ) * (1 + 1e-12)


@given(LATENCIES.filter(some_start), WORK, COUNTS)
def test_the_work_below_the_makespan_is_the_work(latencies: list[float], work: float, pilots: int) -> None:
    latency = empirical_latency(latencies)
    end = expected_makespan(latency, work_seconds=work, pilots=pilots)
    tolerance = 1e-6 + pilots * 1e-9 * float(end)
    assert pilots * latency.started.area(end) == pytest.approx(work, rel=1e-6, abs=tolerance)


@given(st.lists(st.tuples(SECONDS, st.sampled_from(["start", "fault", "queued"])), min_size=2, max_size=30))
def test_a_censored_distribution_is_one(rows: list[tuple[float, str]]) -> None:
    assume(any(kind == "start" for _, kind in rows))
    latencies = [{"start": seconds, "fault": np.inf, "queued": np.nan}[kind] for seconds, kind in rows]
    censored = [seconds if kind == "queued" else np.nan for seconds, kind in rows]
    found = kaplan_meier(latencies_seconds=latencies, censored_at_seconds=censored)
    values = found.latency.started.values
    assert (np.diff(values) >= -1e-12).all()
    assert values[0] > 0.0
    assert values[-1] <= 1.0 + 1e-12
    assert (found.variances >= 0.0).all()


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.0, 500.0)), min_size=2, max_size=10), st.integers(1, 300))
def test_a_sequential_distribution_is_one_and_later_than_a_simultaneous_one(
    rows: list[tuple[float, float]], pilots: int
) -> None:
    submissions, rest = np.array(rows).T
    found = sequential_submission(latencies_seconds=submissions + rest, submissions_seconds=submissions)
    latency = found.latency(pilots=pilots)
    values = latency.started.values
    assert (np.diff(values) >= -1e-12).all()
    assert values[-1] == pytest.approx(1.0)
    times = np.linspace(0.0, 600.0, 13)
    assert (latency.at(times) <= found.rest.at(times + 0.5) + 1e-6).all()


@settings(max_examples=30)
@given(LATENCIES.filter(some_start), st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e4)), min_size=1, max_size=10))
def test_a_conditioned_forecast_keeps_to_what_is_possible(
    latencies: list[float], rows: list[tuple[float, float]]
) -> None:
    submitted, waits = np.array(rows).T
    now = 1000.0
    started = np.where(submitted + waits <= now, submitted + waits, np.inf)
    observed = ObservedPilots(now, submitted, started)
    found = ConditionedPilots(observed, learn_today(empirical_latency(latencies), observed, drift=USUAL_DRIFT))
    times = np.array([500.0, 1000.0, 2000.0, 1e6])
    mean = found.mean(times)
    assert (np.diff(mean) >= -1e-9).all()
    assert len(observed.starts_seconds) <= mean[2] + 1e-9
    assert mean[-1] <= len(rows) + 1e-9
    assert (found.sd(times) >= 0.0).all()
    assert 0.0 <= found.probability_at_least(1, [2000.0])[0] <= 1.0 + 1e-9


@given(st.lists(st.tuples(st.floats(0.0, 7200.0), st.booleans()), max_size=60))
def test_a_fault_ratio_is_between_0_and_1(rows: list[tuple[float, bool]]) -> None:
    times, faults = ([row[place] for row in rows] for place in (0, 1))
    found = current_fault_ratio(known_at_seconds=times, faults=faults, now_seconds=7200.0, history=USUAL_HISTORY)
    assert 0.0 < found < 1.0


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=8), st.floats(1.0, 1e5), st.integers(1, 40))
def test_whole_packages_take_at_least_as_long_as_work_that_splits(
    starts: list[float], work: float, packages: int
) -> None:
    row = np.array([starts])
    split, whole = (
        makespans(
            Application(
                work_seconds=work,
                work_sd=0.0,
                packages=each,
                start_cost_seconds=0.0,
                speeds=(1.0,),
                lifetime_seconds=np.inf,
            ),
            row,
        )[0]
        for each in (None, packages)
    )
    assert split <= whole * (1 + 1e-6) + 1e-6
    assert whole <= split + work / packages + 1e-6 * (1 + whole)


ROWS = st.lists(st.lists(st.one_of(SECONDS, st.just(np.inf)), min_size=3, max_size=3), min_size=1, max_size=5)


def of_packages(work: float, packages: int | None) -> Application:
    return Application(
        work_seconds=work,
        work_sd=0.0,
        packages=packages,
        start_cost_seconds=0.0,
        speeds=(1.0,),
        lifetime_seconds=np.inf,
    )


@given(ROWS, st.floats(1.0, 1e6), st.one_of(st.none(), st.integers(1, 50)), SECONDS)
def test_the_makespan_of_every_possible_run_falls_in_pilots_and_rises_in_work_and_faults(
    rows: list[list[float]], work: float, packages: int | None, start: float
) -> None:
    starts = np.array(rows)
    usual = makespans(of_packages(work, packages), starts)
    more = makespans(of_packages(work, packages), np.column_stack([starts, np.full(len(rows), start)]))
    assert (more <= usual * (1 + 1e-6) + 1e-6).all()
    assert (makespans(of_packages(2.0 * work, packages), starts) >= usual * (1 - 1e-6)).all()
    faulty = np.where(np.arange(3) == 0, np.inf, starts)
    assert (makespans(of_packages(work, packages), faulty) >= usual * (1 - 1e-6) - 1e-6).all()


@settings(max_examples=30)
@given(LATENCIES.filter(some_start), st.floats(1.0, 1e6), st.lists(st.floats(0, 1e3), min_size=1, max_size=8))
def test_given_what_has_started_the_makespan_falls_in_pilots_and_rises_in_work(
    latencies: list[float], work: float, waits: list[float]
) -> None:
    now = 600.0
    started = np.array([wait if wait <= now else np.inf for wait in waits])
    observed = ObservedPilots(now, np.zeros(len(waits)), started)
    today = learn_today(empirical_latency(latencies), observed, drift=USUAL_DRIFT)
    more = ObservedPilots(now, np.append(observed.submitted_seconds, now), np.append(started, np.inf))
    few, many = (ConditionedPilots(each, today) for each in (observed, more))
    assert many.makespan(work) <= few.makespan(work) * (1 + 1e-6)
    assert few.makespan(work) <= few.makespan(2.0 * work) * (1 + 1e-6)


CELLS = st.one_of(
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(["", "inf", "nan", "-1", "1e400", '"', "\0", "\N{ARABIC-INDIC DIGIT ONE}"]),
    st.text(),
)
TABLES = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.tuples(
        st.lists(
            st.sampled_from(
                [
                    "latency_seconds",
                    "submission_seconds",
                    "censored_at_seconds",
                    "submitted_seconds",
                    "started_seconds",
                    "n",
                    "makespan_seconds",
                    "packages",
                    "campaign",
                    "t",
                    "n_available",
                    "other",
                ]
            ),
            max_size=6,
        ),
        st.lists(st.lists(CELLS, max_size=6), max_size=6),
    ).map(lambda table: "\n".join(",".join(row) for row in [table[0], *table[1]]).encode("utf-8", "surrogatepass")),
)


@given(TABLES)
@example(b"")
@example(b"\xef\xbb\xbflatency_seconds\r\n1\r\n2\r\n")
@example(b"latency_seconds\n" + b"1" * 200_000)
def test_any_bytes_are_a_table_or_are_refused_with_a_line(data: bytes) -> None:
    for read in (
        read_latencies,
        read_runs,
        read_finished_runs,
        read_measured,
        lambda file: read_observed(file, now_seconds=5.0),
    ):
        stream, refusal = sys.stdin, None
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
        try:
            read("-")
        except PilotageError as error:
            refusal = error.subject
        finally:
            sys.stdin = stream
        assert refusal is None or re.fullmatch("-:[0-9]+", refusal)


SIZES = st.lists(st.integers(0, 2**50), min_size=RUNS_MIN, max_size=60)


@given(SIZES.filter(lambda sizes: len(set(sizes)) > 5), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_line_is_found_again_from_runs_on_it(sizes: list[int], base: int, per_gib: int) -> None:
    at = np.array(sizes, np.float64)
    values = base + per_gib * at / 2**30
    found = size_estimate(at, values)
    if found.by_size:  # many equal sizes say little
        assert found.at(at) == pytest.approx(values, rel=1e-6, abs=1e-6)
    else:
        assert len(set(sizes)) < len(sizes)


ANY_RUNS = st.lists(st.tuples(st.one_of(st.integers(0, 2**50), st.none()), SECONDS), min_size=1, max_size=60)
ALIKE_RUNS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3).map(float)), min_size=RUNS_MIN, max_size=20)


@given(st.one_of(ANY_RUNS, ALIKE_RUNS), st.randoms())
def test_an_estimate_is_of_the_measured_kind_and_never_falls_in_the_size(
    runs: list[tuple[int | None, float]], random: Random
) -> None:
    def estimated(order: list[tuple[int | None, float]]) -> list[float]:
        sizes = np.array([np.nan if size is None else float(size) for size, _ in order])
        found = size_estimate(sizes, np.array([value for _, value in order]))
        return [found.usual, *found.at(np.array([0.0, 2.0**20, 2.0**40, 2.0**50])).tolist()]

    usual, *by_size = estimated(runs)
    values = [value for _, value in runs]
    assert min(values) - 1e-6 <= usual <= max(values) + 1e-6
    assert by_size == sorted(by_size)
    assert min(by_size) >= min(values) - 1e-6
    shuffled = list(runs)
    random.shuffle(shuffled)
    assert estimated(shuffled) == pytest.approx([usual, *by_size], rel=1e-9, abs=1e-9)
