"""How good forecasts are on real pilots: the AIMES experiments on the Open Science Grid, the paper's model beside ours.

Run with `python -m bench.forecast_report`, where PILOTAGE_REFERENCE_DATA says where the data is; `--write` puts the
tables into docs/explanation/forecast.md. Nothing here is measured by a clock.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pilotage.forecast.available import expected_available, sd_available
from pilotage.forecast.completion import Application, makespan_distribution, starts_of
from pilotage.forecast.conditioning import (
    USUAL_DRIFT,
    ConditionedPilots,
    ObservedPilots,
    Today,
    learn_today,
    possible_days,
)
from pilotage.forecast.fault_ratio import USUAL_HISTORY, current_fault_ratio
from pilotage.forecast.fit import MeasuredRun, PastRun, PastRuns, fit_work
from pilotage.forecast.latency import LatencyDistribution, empirical_latency
from pilotage.forecast.makespan import expected_makespan
from pilotage.forecast.steps import StepFunction

Floats = NDArray[np.float64]

NOW_SECONDS = 300.0
TIMES = np.arange(0.0, 1801.0, 10.0)
LATER = TIMES[TIMES >= NOW_SECONDS]
MAKESPAN_MAX_SECONDS = 86_400.0  # one session of exp8 gives the time since 1970 instead
RUNS_MAX = 251
NINE_OF_TEN_SDS = 1.645
ROUNDS = 200
MINUS = "\N{MINUS SIGN}"
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "forecast.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


@dataclass(frozen=True, eq=False)
class Session:
    """One run: its experiment, pilots, packages and time to completion; the starts of its pilots, where they are known.

    `pilots_table` is the name of its experiment among those whose pilots are known one by one, or empty.
    """

    experiment: str
    pilots_table: str
    pilots: int
    packages: int
    makespan_seconds: float
    started: int
    last_start_seconds: float
    starts_seconds: Floats | None


def sessions_in(folder: Path) -> tuple[list[Session], dict[str, list[Floats]]]:
    """All sessions with a time to completion, and the starts of every session of osg1 and osg2."""
    starts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows(folder / "aimes_osg_pilots.csv"):
        active = float(row["t_active"]) if row["t_active"] else np.inf
        starts[row["experiment"]][row["session"]].append(active)
    known = {name: np.array(each) for sessions in starts.values() for name, each in sessions.items()}
    tables = {name: table for table, sessions in starts.items() for name in sessions}
    found = []
    for row in _rows(folder / "aimes_osg_sessions.csv"):
        if float(row["TTC"]) > MAKESPAN_MAX_SECONDS:
            continue
        waits = ("P_PMGR_QUEUING", "P_PMGR_SCHEDULING", "P_LRMS_SUBMITTING", "P_LRMS_QUEUING")
        found.append(
            Session(
                experiment="exp1+2" if row["experiment"] in ("exp1", "exp2") else row["experiment"],
                pilots_table=tables.get(row["sid"], ""),
                pilots=int(row["npilot"]),
                packages=int(row["nunit"]),
                makespan_seconds=float(row["TTC"]),
                started=int(row["npilot_active"]),
                last_start_seconds=sum(float(row[wait] or 0.0) for wait in waits),
                starts_seconds=known.get(row["sid"]),
            )
        )
    return found, {name: [np.array(each) for each in sessions.values()] for name, sessions in starts.items()}


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


def latency_of(sessions: Sequence[Session]) -> LatencyDistribution:
    """The latency of sessions of which some tell every start, and others how many started and when the last one did.

    The starts before a last one are somewhere before it: they are spread over the times that are known, again and again
    until nothing changes (the self-consistent estimate of Turnbull).
    """
    exact: list[float] = []
    before: list[tuple[float, int]] = []
    faults = 0
    for session in sessions:
        if session.starts_seconds is not None:
            exact += [each for each in session.starts_seconds if np.isfinite(each)]
            faults += int(np.isinf(session.starts_seconds).sum())
        elif session.started:
            exact.append(session.last_start_seconds)
            before.append((session.last_start_seconds, session.started - 1))
            faults += session.pilots - session.started
    times = np.sort(np.array(exact))
    masses = np.ones(len(times))
    for _ in range(ROUNDS if before else 0):
        spread = np.ones(len(times))
        for until, count in before:
            inside = np.where(times <= until, masses, 0.0)
            spread += count * inside / inside.sum()
        masses = spread
    total = float(masses.sum()) + faults
    return LatencyDistribution(StepFunction(times, np.cumsum(masses) / total), observations=round(total))


def package_seconds(latency: LatencyDistribution, sessions: Sequence[Session]) -> float:
    """The work of one package by least squares over makespans, as the paper fits the total work."""
    runs = [
        MeasuredRun(latency.started.scaled(each.pilots / each.packages), each.makespan_seconds) for each in sessions
    ]
    return fit_work(runs).work_seconds


def paper_makespan(latency: LatencyDistribution, session: Session, seconds: float) -> float:
    """E_M(n) of a session (eq. 3)."""
    return float(expected_makespan(latency, work_seconds=seconds * session.packages, pilots=session.pilots))


class Full:
    """Our forecast of a session's makespan: possible runs on possible days, or on today given what has started."""

    def __init__(self, latency: LatencyDistribution, *, is_conditioned: bool) -> None:
        """Take the history, and whether what has started counts."""
        self._latency = latency
        self._is_conditioned = is_conditioned
        self._starts: dict[int, Floats] = {}
        self._past: PastRuns | None = None

    def interval(self, session: Session, seconds: float) -> tuple[float, float, float]:
        """The lower end, the median and the upper end."""
        assert self._past is not None
        factor, log_sd = self._past.correction(pilots=session.pilots, packages=session.packages)
        median = factor * self._by_latencies(session, seconds)
        reach = float(np.exp(NINE_OF_TEN_SDS * log_sd))
        return median / reach, median, median * reach

    def learn_runs(self, sessions: Sequence[Session], seconds: float) -> None:
        """Learn from earlier sessions how their makespans differ from what latencies alone say."""
        self._past = PastRuns(
            [
                PastRun(
                    each.experiment,
                    each.pilots,
                    each.packages,
                    self._by_latencies(each, seconds),
                    each.makespan_seconds,
                )
                for each in sessions
            ]
        )

    def _by_latencies(self, session: Session, seconds: float) -> float:
        """The median by latencies alone."""
        application = Application(
            work_seconds=seconds * session.packages,
            packages=session.packages,
            start_cost_seconds=0.0,
            speeds=(1.0,),
            work_sd=0.0,
            lifetime_seconds=np.inf,
        )
        return makespan_distribution(application, self._possible_starts(session)).median_seconds

    def _possible_starts(self, session: Session) -> Floats:
        if self._is_conditioned:
            observed = observed_at(session.starts_seconds)
            today = learn_today(self._latency, observed, drift=USUAL_DRIFT)
            return _thinned(today, observed, session.pilots)
        if session.pilots not in self._starts:
            nothing = ObservedPilots(-1.0, np.zeros(session.pilots), np.full(session.pilots, np.inf))
            today = possible_days(self._latency, drift=USUAL_DRIFT)
            self._starts[session.pilots] = _thinned(today, nothing, session.pilots)
        return self._starts[session.pilots]


def _thinned(today: Today, observed: ObservedPilots, pilots: int) -> Floats:
    starts = starts_of(
        today,
        pilots=pilots,
        queued_since_seconds=observed.queued_submitted_seconds,
        now_seconds=observed.now_seconds,
        started_seconds=observed.starts_seconds,
    )
    return starts[:: max(1, len(starts) // RUNS_MAX)]


def observed_at(starts: Floats | None) -> ObservedPilots:
    """What is known of a session at 300 s."""
    assert starts is not None
    return ObservedPilots(NOW_SECONDS, np.zeros(len(starts)), np.where(starts <= NOW_SECONDS, starts, np.inf))


# --- the tables -------------------------------------------------------------------------------------------------------


def pilots_tables(starts: dict[str, list[Floats]]) -> Iterator[str]:
    """The error on N(t), before anything has started and given what has by 300 s; and the shares inside three sd."""
    yield f"**Available pilots**, mean of |forecast {MINUS} measured| / n over times and sessions\n\n"
    yield "| history → test | from 0 s: paper | floor | from 300 s: paper | floor | ours | to beat |"
    yield " inside 3 sd: paper | ours |\n|---|---|---|---|---|---|---|---|---|\n"
    for history, test in (("osg1", "osg2"), ("osg2", "osg1")):
        latency, own = (empirical_latency(np.concatenate(starts[name])) for name in (history, test))
        whole, floor = (pilots_error(starts[test], each, TIMES) for each in (latency, own))
        later, later_floor = (pilots_error(starts[test], each, LATER) for each in (latency, own))
        ours, inside, paper_inside = [], [], []
        for each in starts[test]:
            observed = observed_at(each)
            found = ConditionedPilots(observed, learn_today(latency, observed, drift=USUAL_DRIFT))
            apart = np.abs(found.mean(LATER) - available_at(each, LATER))
            ours.append(apart.mean() / len(each))
            inside.append((apart <= 3.0 * found.sd(LATER) + 1e-9).mean())
            plain = np.abs(expected_available(latency, pilots=len(each), at_seconds=LATER) - available_at(each, LATER))
            sd = sd_available(latency, pilots=len(each), at_seconds=LATER)
            paper_inside.append((plain <= 3.0 * sd + 1e-9).mean())
        beat = later - (later - later_floor) / 3.0
        yield f"| {history} → {test} | {whole:.3f} | {floor:.3f} | {later:.3f} | {later_floor:.3f} | {np.mean(ours):.3f} | {beat:.3f} |"
        yield f" {100 * np.mean(paper_inside):.0f} % | {100 * np.mean(inside):.0f} % |\n"
    yield "\n"


def pilots_error(sessions: Sequence[Floats], latency: LatencyDistribution, at: Floats) -> float:
    """The error of the paper's model on N(t), as the mean over sessions."""
    errors = [
        np.abs(expected_available(latency, pilots=len(each), at_seconds=at) - available_at(each, at)).mean() / len(each)
        for each in sessions
    ]
    return float(np.mean(errors))


def available_at(starts: Floats, at: Floats) -> Floats:
    """How many pilots had started at some times."""
    return np.searchsorted(np.sort(starts), at, side="right").astype(np.float64)


def makespan_tables(sessions: Sequence[Session]) -> Iterator[str]:
    """The error on the time to completion, one experiment left out at a time, and the coverage of our intervals."""
    yield f"**Time to completion**, mean of |forecast {MINUS} measured| / measured; the history is all other experiments\n\n"
    yield "| test | sessions | paper | floor | ours | inside our nine of ten |\n|---|---|---|---|---|---|\n"
    rows = []
    for name in sorted({each.experiment for each in sessions}):
        test = [each for each in sessions if each.experiment == name]
        train = [each for each in sessions if each.experiment != name]
        rows.append(compared(test, train, is_conditioned=False))
        yield _row(name, len(test), rows[-1])
    yield _row("mean", len(sessions), tuple(float(np.mean(column)) for column in zip(*rows, strict=True)))
    yield "\n**Time to completion at 300 s**, given what has started; the history is the other experiment alone\n\n"
    yield "| test | sessions | paper | floor | ours | inside our nine of ten |\n|---|---|---|---|---|---|\n"
    for history, tested in (("osg1", "osg2"), ("osg2", "osg1")):
        train, test = ([each for each in sessions if each.pilots_table == table] for table in (history, tested))
        yield _row(f"{history} → {tested}", len(test), compared(test, train, is_conditioned=True))


def compared(
    test: Sequence[Session], train: Sequence[Session], *, is_conditioned: bool
) -> tuple[float, float, float, float]:
    """The errors of the paper's model, of the same fitted on the test itself, of ours, and the coverage of ours."""
    latency, own = latency_of(train), latency_of(test)
    fitted, own_fitted = package_seconds(latency, train), package_seconds(own, test)
    full = Full(latency, is_conditioned=is_conditioned)
    full.learn_runs(train, fitted)
    paper, floor, ours, inside = [], [], [], []
    for each in test:
        measured = each.makespan_seconds
        paper.append(abs(paper_makespan(latency, each, fitted) - measured) / measured)
        floor.append(abs(paper_makespan(own, each, own_fitted) - measured) / measured)
        low, median, high = full.interval(each, fitted)
        ours.append(abs(median - measured) / measured)
        inside.append(low <= measured <= high)
    return float(np.mean(paper)), float(np.mean(floor)), float(np.mean(ours)), float(np.mean(inside))


# --- faults -----------------------------------------------------------------------------------------------------------

CALM, OUTAGE, LATER_RATIO = 0.05, 0.6, 0.4
OUTAGE_SECONDS, CHANGE_SECONDS, HOUR = 600.0, 1800.0, 3600.0
FAULT_PILOTS, FAULT_SEEDS, FAULT_RUNS = 50, 200, 5


def fault_table() -> Iterator[str]:
    """Errors of forecasts under fault ratios that burst or change, by how many probes there were in the hour before."""
    yield "\n**Fault ratios** that burst in the hour before, or changed half an hour ago and stay: errors on available pilots relative"
    yield " to a calm hour, and to an oracle that knows the ratio\n\n"
    yield "| probes a minute | outage: plain share | ours | change: plain share | ours | told when it changed |\n"
    yield "|---|---|---|---|---|---|\n"
    latencies = np.sort(150.0 + np.random.default_rng(9).lognormal(5.9, 0.9, 1000))
    for rate in (4, 2, 1):
        figures = np.mean([_fault_errors(latencies, 60 * rate, seed) for seed in range(FAULT_SEEDS)], axis=0)
        calm, struck, struck_plain, oracle, changed, changed_plain, told = figures
        ratios = (struck_plain / calm, struck / calm, changed_plain / oracle, changed / oracle, told / oracle)
        yield f"| {rate} | {' | '.join(f'{each:.2f}' for each in ratios)} |\n"


def _fault_errors(latencies: Floats, probes: int, seed: int) -> tuple[float, ...]:
    drawn = np.random.default_rng(seed)
    times, chance = np.sort(drawn.uniform(0.0, HOUR, probes)), drawn.random(probes)
    began = drawn.uniform(0.0, HOUR - OUTAGE_SECONDS)
    in_outage = (times >= began) & (times < began + OUTAGE_SECONDS)
    since = times >= HOUR - CHANGE_SECONDS
    struck, changed = chance < np.where(in_outage, OUTAGE, CALM), chance < np.where(since, LATER_RATIO, CALM)

    def error(ratio: float, truth: float) -> float:
        return _ratio_error(latencies, ratio, truth, seed)

    def now(faults: NDArray[np.bool_]) -> float:
        return current_fault_ratio(known_at_seconds=times, faults=faults, now_seconds=HOUR, history=USUAL_HISTORY)

    return (
        error(now(chance < CALM), CALM),
        error(now(struck), CALM),
        error(float(struck.mean()), CALM),
        error(LATER_RATIO, LATER_RATIO),
        error(now(changed), LATER_RATIO),
        error(float(changed.mean()), LATER_RATIO),
        error((float(changed[since].sum()) + 0.5) / (float(since.sum()) + 1.0), LATER_RATIO),
    )


def _ratio_error(latencies: Floats, ratio: float, truth: float, seed: int) -> float:
    """The error on available pilots under a fault ratio, over a few runs with the true one."""
    drawn = np.random.default_rng([seed, 1])
    expected = FAULT_PILOTS * (1.0 - ratio) * np.searchsorted(latencies, TIMES, side="right") / len(latencies)
    errors = []
    for _ in range(FAULT_RUNS):
        starts = drawn.choice(latencies, FAULT_PILOTS)
        starts[drawn.random(FAULT_PILOTS) < truth] = np.inf
        errors.append(np.abs(expected - available_at(starts, TIMES)).mean() / FAULT_PILOTS)
    return float(np.mean(errors))


def _row(name: str, count: int, figures: tuple[float, ...]) -> str:
    paper, floor, ours, inside = figures
    return f"| {name} | {count} | {paper:.2f} | {floor:.2f} | {ours:.2f} | {100 * inside:.0f} % |\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and write them into the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    asked = parser.parse_args(arguments)
    if "PILOTAGE_REFERENCE_DATA" not in os.environ:
        raise SystemExit("PILOTAGE_REFERENCE_DATA does not say where the data is")
    sessions, starts = sessions_in(Path(os.environ["PILOTAGE_REFERENCE_DATA"]) / "pilots")
    text = "".join([*pilots_tables(starts), *makespan_tables(sessions), *fault_table()])
    print(text)
    if asked.write:
        before, begin, rest = PAGE.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        PAGE.write_text(before + begin + text + end + after)


if __name__ == "__main__":
    main()
