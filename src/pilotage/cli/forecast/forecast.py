"""`pilotage forecast`: from measured latencies of pilots to the number of available pilots and the makespan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import WholeHelp
from pilotage.cli.shared.output import duration, emit, plural, print_message, table, write_files
from pilotage.cli.shared.server import connect_to_read, json_option, server_option

if TYPE_CHECKING:
    from pilotage.app.forecasts.answers import FromLatencies, Model, Observation, PilotsAnswer, ScoreAnswer
    from pilotage.app.forecasts.site_latencies import SiteLatencyView

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PILOTS_MAX = 1_000_000
SECONDS_MAX = 1e9
WORK_MAX = 1e15
RECOMMENDED_MAX = 10_000
DRAWING = "forecast"


def number(*, most: float, above_zero: bool) -> Callable[[str], float]:
    """How an option reads a number from 0 on, or above 0; what is not finite is refused."""

    def read(word: str) -> float:
        try:
            found = float(word)
        except ValueError:
            raise click.BadParameter(f"{word!r} is not a number.") from None
        if math.isnan(found) or found < 0.0 or found > most or (above_zero and not found):
            low = "more than 0" if above_zero else "from 0 on"
            raise click.BadParameter(f"{word} is not {low}, at most {most:g}.")
        return found

    return read


def count(word: str) -> int:
    """How an option reads a number of pilots."""
    try:
        found = int(word)
    except ValueError:
        raise click.BadParameter(f"{word!r} is not a whole number.") from None
    if not 1 <= found <= PILOTS_MAX:
        raise click.BadParameter(f"{word} is not from 1 to {PILOTS_MAX:,}.")
    return found


def listed(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """How an option reads values with commas between them."""
    return lambda word: tuple(read(part.strip()) for part in word.split(","))


TIME = number(most=SECONDS_MAX, above_zero=False)
WORK = number(most=WORK_MAX, above_zero=True)
SHARE = number(most=1e6, above_zero=False)


@click.group(cls=WholeHelp)
def forecast() -> None:
    """Forecast how many pilots start by when, and how long work takes on them.

    Everything follows from measured latencies: from the request of a pilot to its start.
    """


# --- options ----------------------------------------------------------------------------------------------------------


def latencies_option(command: Decorated) -> Decorated:
    """`--latencies`, what was measured, or `--site`, what the book knows of the pilots of a site."""
    command = server_option(command)
    site_help = "Take the latencies of the pilots of this site from the book, instead of --latencies."
    command = click.option("--site", metavar="NAME", help=site_help)(command)
    help_text = (
        "CSV: latency_seconds (empty or inf: never started) and, if known, submission_seconds, censored_at_seconds."
    )
    return click.option("--latencies", metavar="FILE", help=help_text)(command)


class Measurements(NamedTuple):
    """Where the latencies come from: a file, or the book of a server."""

    latencies: str | None
    site: str | None
    server: str | None
    token_file: str | None

    def get(self) -> str | SiteLatencyView:
        """The file, or what the book knows; exactly one of the two must be named."""
        if (self.latencies is None) == (self.site is None):
            raise click.UsageError("say where the latencies come from: --latencies FILE, or --site NAME")
        if self.site is None:
            assert self.latencies is not None
            return self.latencies
        return self._of_site(self.site)

    def get_if_any(self) -> str | SiteLatencyView | None:
        """The same, where none of the two need be named."""
        return None if self.latencies is None and self.site is None else self.get()

    def _of_site(self, site: str) -> SiteLatencyView:
        from pilotage.app.forecasts.site_latencies import site_latencies

        with connect_to_read(self.server, self.token_file) as connection:
            return site_latencies(connection, site)


def sequential_option(command: Decorated) -> Decorated:
    """`--sequential`: pilots wait for each other's submission."""
    help_text = "Pilots are submitted one after the other; the file then has submission_seconds."
    return click.option("--sequential", is_flag=True, help=help_text)(command)


def cut_option(command: Decorated) -> Decorated:
    """`--work` where it only says when submission ends."""
    help_text = "The total work: pilots that --sequential would submit after its end are left out."
    return click.option("--work", "work", type=WORK, metavar="SECONDS", help=help_text)(command)


def model_option(command: Decorated) -> Decorated:
    """`--model`: the paper's, or ours."""
    help_text = "paper, unless given: sd by its equation 2; full: with --sequential, sd of pilots that differ by rank."
    return click.option(
        "--model", type=click.Choice(["paper", "full"]), default="paper", metavar="paper|full", help=help_text
    )(command)


def now_options(command: Decorated) -> Decorated:
    """`--now` and `--observed`: what has happened of the run that is forecast."""
    observed_help = "CSV of the pilots submitted so far: submitted_seconds, started_seconds (empty: still queued)."
    command = click.option("--observed", metavar="FILE", help=observed_help)(command)
    now_help = "Forecast from this time on, given what has started by then; others than --observed are submitted now."
    return click.option("--now", type=TIME, metavar="SECONDS", help=now_help)(command)


def _observation(now: float | None, observed: str | None) -> Observation | None:
    if (now is None) != (observed is None):
        raise click.UsageError("--now and --observed belong together")
    if now is None or observed is None:
        return None
    from pilotage.app.forecasts.answers import Observation

    return Observation(observed, now)


def _refuse_work_at_once(work: float | None, *, sequential: bool) -> None:
    if work is not None and not sequential:
        raise click.UsageError("--work ends the submission one after the other: say --sequential, or leave it out")


# --- commands ---------------------------------------------------------------------------------------------------------


@forecast.command()
@latencies_option
@click.option("-n", "pilots", type=count, required=True, metavar="COUNT", help="How many pilots are submitted.")
@click.option("--at", type=listed(TIME), required=True, metavar="SECONDS,…", help="Times after the first submission.")
@click.option(
    "--at-least", type=click.IntRange(0, PILOTS_MAX), metavar="COUNT", help="How likely so many are available, too."
)
@sequential_option
@cut_option
@model_option
@now_options
@json_option
def pilots(
    latencies: str | None,
    site: str | None,
    server: str | None,
    token_file: str | None,
    pilots: int,
    at: tuple[float, ...],
    at_least: int | None,
    work: float | None,
    model: Model,
    now: float | None,
    observed: str | None,
    *,
    sequential: bool,
    as_json: bool,
) -> None:
    """Forecast how many pilots are available at some times: mean and standard deviation."""
    _refuse_work_at_once(work, sequential=sequential)
    if work is not None and now is not None:
        raise click.UsageError("--observed says what was submitted: leave --work out, or --now")
    import_numpy_quickly()
    from pilotage.app.forecasts.answers import forecast_pilots

    found = forecast_pilots(
        Measurements(latencies, site, server, token_file).get(),
        pilots=pilots,
        at_seconds=at,
        at_least=at_least,
        sequential=sequential,
        work_seconds=work,
        model=model,
        observation=_observation(now, observed),
    )
    if as_json:
        _emit_json(found)
        return
    emit([_about(found)])
    rows = (
        (
            _seconds(each.t),
            f"{each.mean:,.2f}",
            f"± {each.sd:.2f}",
            "" if each.mean_sd is None else f"± {each.mean_sd:.2f}",
            "" if each.p_at_least is None else f"{100 * each.p_at_least:.1f} %",
        )
        for each in found.points
    )
    emit(table(rows, header=("at", "available", "sd", "mean known to", f"at least {at_least}"), indent="  "))


@forecast.command()
@latencies_option
@click.option("--work", type=WORK, required=True, metavar="SECONDS", help="The total work, as time of one pilot.")
@click.option("-n", "pilots", type=listed(count), required=True, metavar="COUNT,…", help="Numbers of submitted pilots.")
@sequential_option
@click.option(
    "--model",
    type=click.Choice(["paper", "full"]),
    default="paper",
    metavar="paper|full",
    help="paper, unless given: its mean; full: mean, median and an interval that holds nine runs of ten.",
)
@click.option(
    "--packages", type=count, metavar="COUNT", help="full: the work is so many equal packages; none: it splits freely."
)
@click.option("--start-cost", type=TIME, metavar="SECONDS", help="full: what each pilot spends before its first work.")
@click.option(
    "--speeds",
    type=listed(number(most=1e6, above_zero=True)),
    metavar="FACTOR,…",
    help="full: speeds of hosts, each as likely; the work is for a host of 1.",
)
@click.option(
    "--work-sd",
    type=number(most=10.0, above_zero=False),
    metavar="SD",
    help="full: how much the work varies from run to run, as standard deviation of its logarithm.",
)
@click.option(
    "--lifetime",
    type=number(most=SECONDS_MAX, above_zero=True),
    metavar="SECONDS",
    help="full: pilots end so long after their start.",
)
@click.option(
    "--past-runs",
    metavar="FILE",
    help="full, with --packages: CSV of runs of such packages: n, packages, makespan_seconds and, if known, campaign.",
)
@now_options
@json_option
def makespan(
    latencies: str | None,
    site: str | None,
    server: str | None,
    token_file: str | None,
    work: float,
    pilots: tuple[int, ...],
    model: Model,
    packages: int | None,
    start_cost: float | None,
    speeds: tuple[float, ...] | None,
    work_sd: float | None,
    lifetime: float | None,
    past_runs: str | None,
    now: float | None,
    observed: str | None,
    *,
    sequential: bool,
    as_json: bool,
) -> None:
    """Forecast how long work takes with some numbers of pilots, and what more pilots could reach at best."""
    only_full = {
        "--packages": packages,
        "--start-cost": start_cost,
        "--speeds": speeds,
        "--work-sd": work_sd,
        "--lifetime": lifetime,
        "--past-runs": past_runs,
    }
    if model == "paper" and (given := [name for name, value in only_full.items() if value is not None]):
        raise click.UsageError(f"the paper's model knows no {given[0]}: say --model full")
    if past_runs is not None and packages is None:
        raise click.UsageError("--past-runs compares runs by their packages: say --packages")
    import_numpy_quickly()
    from pilotage.app.forecasts.answers import Application, forecast_makespan

    application = Application(
        work_seconds=work,
        work_sd=work_sd or 0.0,
        packages=packages,
        start_cost_seconds=start_cost or 0.0,
        speeds=speeds or (1.0,),
        lifetime_seconds=math.inf if lifetime is None else lifetime,
    )
    found = forecast_makespan(
        Measurements(latencies, site, server, token_file).get(),
        application=application,
        pilots=pilots,
        sequential=sequential,
        model=model,
        observation=_observation(now, observed),
        past_runs=past_runs,
    )
    if as_json:
        _emit_json(found)
        return
    rows = (
        (
            f"{each.n:,}",
            _seconds(each.mean),
            *(("", "") if model == "paper" else (_seconds(each.median), f"{_short(each.low)} to {_short(each.high)}")),
            f"{each.submitted:,}",
        )
        for each in found.makespan
    )
    emit(table(rows, header=("pilots", "mean", "median", "nine of ten", "submitted"), indent="  "))
    emit(
        f"with {plural(each.n, 'pilot')} the work is never done in {100 * each.never:.1f} % of the runs, which the mean leaves out\n"
        for each in found.makespan
        if each.never
    )
    if found.basis != "file":
        emit([f"from {_of_site(found)}\n"])
    reached = f"; {plural(found.limit_n, 'pilot')} within a second of it" if found.limit_n is not None else ""
    emit([f"limit for many pilots: {_seconds(found.limit)}{reached}\n"])


@forecast.command()
@latencies_option
@click.option("--work", type=WORK, required=True, metavar="SECONDS", help="The total work, as time of one pilot.")
@click.option(
    "--within",
    type=SHARE,
    default=0.1,
    metavar="SHARE",
    help="How much longer than the best it may take: 0.1 unless given.",
)
@click.option(
    "--at-most",
    type=click.IntRange(1, RECOMMENDED_MAX),
    default=RECOMMENDED_MAX,
    metavar="COUNT",
    help="The most pilots there may be, which reach the best: 10,000 unless given.",
)
@sequential_option
@json_option
def recommend(
    latencies: str | None,
    site: str | None,
    server: str | None,
    token_file: str | None,
    work: float,
    within: float,
    at_most: int,
    *,
    sequential: bool,
    as_json: bool,
) -> None:
    """Find the smallest number of pilots that finishes nearly as soon as the most pilots would."""
    import_numpy_quickly()
    from pilotage.app.forecasts.answers import recommend_pilots

    measurements = Measurements(latencies, site, server, token_file).get()
    found = recommend_pilots(measurements, work_seconds=work, within=within, at_most=at_most, sequential=sequential)
    if as_json:
        _emit_json(found)
        return
    if found.basis != "file":
        emit([f"from {_of_site(found)}\n"])
    best = f"{_seconds(found.best)} with {plural(found.at_most, 'pilot')}"
    emit([f"{plural(found.n, 'pilot')}: {_seconds(found.makespan)}, within {100 * found.within:g} % of {best}\n"])


@forecast.command()
@click.option(
    "--runs",
    required=True,
    metavar="FILE",
    help="CSV with n, makespan_seconds and, if each run has its own, latencies.",
)
@latencies_option
@sequential_option
@json_option
def fit(
    runs: str,
    latencies: str | None,
    site: str | None,
    server: str | None,
    token_file: str | None,
    *,
    sequential: bool,
    as_json: bool,
) -> None:
    """Fit the total work of an application to the makespans of its runs, by least squares.

    --latencies or --site is for the runs that name no file of their own.
    """
    measurements = Measurements(latencies, site, server, token_file)
    import_numpy_quickly()
    from pilotage.app.forecasts.answers import fit_runs

    found = fit_runs(runs, latencies=measurements.get_if_any(), sequential=sequential)
    if as_json:
        _emit_json(found)
        return
    rows = ((f"{each.n:,}", _seconds(each.measured_seconds), _seconds(each.modelled_seconds)) for each in found.runs)
    emit(table(rows, header=("pilots", "measured", "modelled"), indent="  "))
    emit([f"work: {_seconds(found.work_seconds)}; mean error: {_seconds(found.mean_error_seconds)}\n"])


@forecast.command()
@click.argument("jobs", metavar="[JOB]…", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Score the forecasts of all jobs of the book.")
@click.option("--plot", metavar="FILE", help="Draw the calibration, and errors by the time left, as SVG.")
@latencies_option
@click.option("--measured", metavar="FILE", help="CSV with t and n_available.")
@click.option(
    "-n", "pilots", type=count, metavar="COUNT", help="How many pilots were submitted; estimated unless given."
)
@sequential_option
@cut_option
@model_option
@json_option
def score(
    jobs: tuple[str, ...],
    plot: str | None,
    latencies: str | None,
    site: str | None,
    server: str | None,
    token_file: str | None,
    measured: str | None,
    pilots: int | None,
    work: float | None,
    model: Model,
    *,
    every: bool,
    sequential: bool,
    as_json: bool,
) -> None:
    """Compare forecasts with what came of them: the ends of jobs, or measured numbers of available pilots.

    With JOB, or --all: how far the forecasts of the end of a job were from it, by the time that was left, and how many of their
    intervals held it. JOB is an id, or a name for the newest job of that name.

    With --measured: the number of available pilots. Without -n, the number of pilots is the one whose asymptote is the most
    that was ever available.
    """
    if jobs or every:
        if latencies is not None or site is not None or measured is not None:
            raise click.UsageError("JOB scores forecasts of the book: leave --latencies, --site and --measured out")
        if jobs and every:
            raise click.UsageError("name jobs, or say --all")
        from pilotage.cli.forecast.job_scores import show_job_scores

        show_job_scores(jobs, server, token_file, plot=plot, as_json=as_json)
        return
    if measured is None:
        raise click.UsageError("Missing option '--measured'; or name a JOB whose forecasts to score, or say --all.")
    if plot is not None:
        raise click.UsageError("--plot draws the scores of jobs; for pilots, say: pilotage forecast plot")
    _refuse_work_at_once(work, sequential=sequential)
    import_numpy_quickly()
    from pilotage.app.forecasts.answers import score_pilots

    measurements = Measurements(latencies, site, server, token_file).get()
    found = score_pilots(
        measurements, measured=measured, pilots=pilots, sequential=sequential, work_seconds=work, model=model
    )
    if found.n_estimated:
        print_message(f"note: {plural(found.n, 'pilot')}, estimated from the most that was available; say -n")
    if as_json:
        _emit_json(found)
        return
    emit([_about(found)])
    rows = (
        ("mean error", f"{100 * found.error:.1f} % of n"),
        ("inside ± sd", f"{100 * found.within_sd:.1f} % of {plural(found.samples, 'sample')}"),
        ("inside ± 3 sd", f"{100 * found.within_3_sd:.1f} %"),
    )
    emit(table(rows, indent="  "))


@forecast.command()
@latencies_option
@click.option("-n", "pilots", type=count, metavar="COUNT", help="Draw the available pilots of so many over time.")
@click.option("--measured", metavar="FILE", help="CSV with t and n_available: drawn beside them, with the error.")
@click.option("--runs", metavar="FILE", help="CSV with n and makespan_seconds: draw measured and modelled makespans.")
@click.option(
    "--until", type=number(most=SECONDS_MAX, above_zero=True), metavar="SECONDS", help="Where the time axis ends."
)
@sequential_option
@cut_option
@model_option
@click.option(
    "--svg", metavar="PREFIX", default=DRAWING, help="PREFIX-pilots.svg, PREFIX-makespan.svg; forecast unless given."
)
@json_option
def plot(
    latencies: str | None,
    site: str | None,
    server: str | None,
    token_file: str | None,
    pilots: int | None,
    measured: str | None,
    runs: str | None,
    until: float | None,
    work: float | None,
    model: Model,
    svg: str,
    *,
    sequential: bool,
    as_json: bool,
) -> None:
    """Draw available pilots over time, or makespans beside the number of pilots, as SVG."""
    _refuse_work_at_once(work, sequential=sequential)
    if pilots is None and measured is None and runs is None:
        raise click.UsageError("nothing to draw: say -n or --measured for pilots over time, --runs for makespans")
    import_numpy_quickly()
    from pilotage.app.forecasts.drawings import draw_makespans, draw_pilots

    measurements = Measurements(latencies, site, server, token_file).get()
    drawings: dict[str, list[str]] = {}
    if pilots is not None or measured is not None:
        drawings[f"{svg}-pilots.svg"] = [
            draw_pilots(
                measurements,
                pilots=pilots,
                measured=measured,
                until_seconds=until,
                sequential=sequential,
                work_seconds=work,
                model=model,
            )
        ]
    if runs is not None:
        drawings[f"{svg}-makespan.svg"] = [draw_makespans(runs, latencies=measurements, sequential=sequential)]
    write_files(drawings)
    if as_json:
        _emit_json({"files": list(drawings)})
        return
    emit(f"{name}\n" for name in drawings)


# --- words ------------------------------------------------------------------------------------------------------------


def _emit_json(found: object) -> None:
    from pilotage import app

    emit([app.json_text(found)])


def _about(found: PilotsAnswer | ScoreAnswer) -> str:
    """How many pilots, and what the forecast is made from."""
    if found.basis == "file":
        known = f"{plural(found.observations, 'latency')} measured"
    else:
        known = _of_site(found)
    return f"{plural(found.submitted, 'pilot')}, {known}, {100 * found.fault_ratio:.1f} % faults\n"


def _of_site(found: FromLatencies) -> str:
    """Which starts of a site a forecast is made from."""
    whose = {"user and shape": "like these", "site": "at the site", "probes": "at the site, probes included"}
    hour = "" if found.hour_of_week is None else ", in this hour of the week"
    return f"{plural(found.starts, 'start')} {whose[found.basis]}{hour}"


def _short(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:,.4g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _seconds(seconds: float | None) -> str:
    words = _short(seconds)
    return words if seconds is None or seconds < 600 else f"{words} ({duration(seconds)})"
