"""Simulates a job and prints the forecast, or the comparison of several settings."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from pilotage.cli.shared.output import duration, emit, one_line, plural, print_message, table, write_files
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pilotage.app.simulation import SimulatedJob
    from pilotage.model.sites.world import Observed, WorldFile
    from pilotage.simulator.runs.comparison import Difference, Makespan, Summary

_COLLECTED_EVERY = 10  # runs; their garbage has reference cycles, which only the collector frees
_TRACE_ENDINGS = (".swf", ".csv", ".tsv", ".tab", ".txt", ".gz", ".xz")


class SimulationRequest(NamedTuple):
    """The arguments of `pilotage simulate` for a job."""

    file: str
    sites: str
    runs: int
    world: tuple[bytes, str] | None
    sources: tuple[str, ...]
    comparisons: tuple[str, ...]
    svg: str
    save_world: str | None


def forecast(request: SimulationRequest, *, as_json: bool) -> int:
    """Simulate a job with each setting to compare, and print the results."""
    from pilotage.app import simulation
    from pilotage.simulator.runs.behaviour import unestimated
    from pilotage.simulator.runs.charts import chart_of
    from pilotage.simulator.runs.comparison import difference_of, run_many, summary_of, variants_of
    from pilotage.simulator.runs.run import Subject, usual_settings

    job = simulation.job_to_simulate(request.file, sites=request.sites)
    world = _world(request, job)
    notes = [*job.notes, *_unknown_times(unestimated(job.plan, world.packages))]
    if request.save_world is not None:
        write_files({request.save_world: [simulation.world_text(world)]})
    subject = Subject(plan=job.plan, registered=job.registered, sites=job.sites, world=world)
    variants = variants_of(request.comparisons, usual_settings(world, job.settings))
    for note in notes:
        print_message(f"note: {note}")
    with progress(request.runs * len(variants)) as each:
        summaries = [
            summary_of(variant.name, run_many(subject, variant.settings, runs=request.runs, each=each))
            for variant in variants
        ]
    differences = [difference_of(summaries[0], other) for other in summaries[1:]]
    if request.comparisons:
        write_files({request.svg: [chart_of(job.name, summaries, differences)]})
    if as_json:
        emit([_json(request, job, summaries, differences, notes)])
    elif request.comparisons:
        emit(comparison_lines(job, summaries, differences, drawing=request.svg))
    else:
        emit(summary_lines(job, summaries[0]))
    return ExitCode.COMPLETE


# --- the world --------------------------------------------------------------------------------------------------------


def _world(request: SimulationRequest, job: SimulatedJob) -> WorldFile:
    """The world of the file, updated from each source of observations in turn."""
    from pilotage.app import simulation
    from pilotage.model.sites.world import Observed, WorldFile
    from pilotage.simulator.runs.fitting import fit_jobs, fit_trace, read_trace

    names = [entry.name for entry in job.sites]
    world = WorldFile()
    if request.world is not None:
        data, file = request.world
        world = simulation.world_in(data, file=file, sites=job.sites)
    observed = Observed()
    for text in request.sources:
        site, what = _source(text, names)
        if _is_trace(what):
            with simulation.trace_lines(what) as lines:
                world = fit_trace(world, read_trace(lines, name=what), sites=[site] if site else names)
        elif site:
            raise click.UsageError(f"{what!r} is not a file; for a job, leave out {site}=: its events name their sites")
        else:
            _observe(what, observed)
    if observed.sites:
        strange = sorted(set(observed.sites) - set(names))
        if strange and len(strange) == len(observed.sites):
            unknown = ", ".join(strange)
            raise click.UsageError(f"the observations are of {unknown}, and none of these sites is simulated")
        if strange:
            print_message(f"note: observations at {', '.join(strange)} are ignored, which is not simulated")
        world = fit_jobs(world, observed, sites=job.sites)
    return world


def _source(text: str, sites: Sequence[str]) -> tuple[str, str]:
    """Split SITE=SOURCE; the site is empty if it is not given."""
    site, equals, what = text.partition("=")
    if equals and not Path(text).exists():
        if site not in sites:
            raise click.UsageError(f"no site is called {site!r}; the sites are {', '.join(sites)}")
        return site, what
    return "", text


def _is_trace(what: str) -> bool:
    return Path(what).is_file() or what.endswith(_TRACE_ENDINGS)


def _observe(word: str, observed: Observed) -> None:
    from pilotage.app.simulation import observe
    from pilotage.cli.shared.job_names import find_job_to_show
    from pilotage.cli.shared.server import connect_to_read

    with connect_to_read(None, None) as connection:
        observe(connection, find_job_to_show(connection, word), observed)


def _unknown_times(activities: Sequence[str]) -> Iterator[str]:
    if activities:
        shown = ", ".join(activities[:5]) + (", …" if len(activities) > 5 else "")
        yield (
            f"the run time of {shown} is unknown: the world's packages.run_time is used;"
            " give the document a run_time, or use --world-from JOB"
        )


@contextmanager
def progress(length: int) -> Iterator[Callable[[], object]]:
    """Show a progress bar on a terminal, and collect garbage now and then."""
    done = 0
    gc.collect()
    gc.freeze()

    def sweep() -> None:
        nonlocal done
        done += 1
        if done % _COLLECTED_EVERY == 0:
            gc.collect()

    try:
        if not sys.stderr.isatty():
            yield sweep
            return
        with click.progressbar(length=length, label="simulating", file=sys.stderr) as bar:

            def show_progress() -> None:
                sweep()
                bar.update(1)

            yield show_progress
    finally:
        gc.unfreeze()


# --- for people -------------------------------------------------------------------------------------------------------


def summary_lines(job: SimulatedJob, summary: Summary) -> Iterator[str]:
    """The statistics of many runs, as lines of text."""
    makespan = summary.makespan
    packages, sites = plural(job.plan.count, "package"), plural(len(job.sites), "site")
    yield f"{one_line(job.name)}: {packages} at {sites}, {plural(summary.runs, 'run')}\n"
    yield from _unfinished(summary)
    interval = _interval(makespan)
    rows = [
        ("median", _time(makespan.median_seconds), ""),
        ("mean", _time(makespan.mean_seconds), _between(makespan.mean_low_seconds, makespan.mean_high_seconds)),
        ("nine runs of ten", interval, ""),
    ]
    yield "  makespan\n"
    yield from table(rows, indent="    ")
    header = (
        "site",
        "attempts",
        "made",
        "failed",
        "in the queue",
        "setup",
        "inputs",
        "application",
        "outputs",
        "idle",
        "wasted",
    )
    yield "  a run, on average\n"
    yield from table(
        (
            (
                name,
                f"{site.attempts:,.1f}",
                f"{site.granted:,.1f}",
                f"{site.failed:,.1f}",
                _time(site.seconds["queue"] / site.batch_jobs) if site.batch_jobs else "",
                *(_hours(site.seconds[phase]) for phase in ("setup", "inputs", "application", "outputs", "idle")),
                _hours(site.wasted_core_seconds),
            )
            for name, site in summary.sites.items()
        ),
        header=header,
        indent="    ",
    )
    yield f"  {100 * summary.wasted_share:.1f} % of the core time is wasted"
    failed = ", ".join(f"{count:,.1f} {reason}" for reason, count in summary.failures.items())
    yield f"; failures of attempts: {failed}\n" if failed else "; no attempt fails\n"
    if summary.packages_failed:
        yield f"  {summary.packages_failed:,.1f} packages are given up\n"
    yield f"  ({summary.mean_method}; in the queue: for each batch job; the other times are sums, in hours)\n"


def comparison_lines(
    job: SimulatedJob, summaries: Sequence[Summary], differences: Sequence[Difference], *, drawing: str
) -> Iterator[str]:
    """A table that compares several settings."""
    first = summaries[0]
    packages, sites = plural(job.plan.count, "package"), plural(len(job.sites), "site")
    yield f"{one_line(job.name)}: {packages} at {sites}, {plural(first.runs, 'run')} each, with the same seeds\n"
    beside = {each.variant: each for each in differences}
    header = ("", "median", "mean", "nine runs of ten", "wasted", "given up", "beside the first", "", "shorter in")
    yield from table(
        (
            (
                summary.variant,
                _time(summary.makespan.median_seconds),
                _time(summary.makespan.mean_seconds),
                _interval(summary.makespan),
                f"{100 * summary.wasted_share:.1f} %",
                f"{summary.packages_failed:,.1f}",
                *_beside(beside.get(summary.variant)),
            )
            for summary in summaries
        ),
        header=header,
        indent="  ",
    )
    for summary in summaries:
        yield from _unfinished(summary, name=summary.variant)
    if any(round(each.packages_failed, 1) != round(first.packages_failed, 1) for each in summaries):
        yield "  the numbers of failed packages differ: a shorter run may have done less\n"
    unclear = [each.variant for each in differences if not each.is_clear]
    if unclear:
        yield f"  these runs do not show whether {', '.join(unclear)} is better or worse than {first.variant}\n"
    if differences:
        yield f"  ({differences[0].method})\n"
    yield f"  drawn in {one_line(drawing)}\n"


def _beside(difference: Difference | None) -> tuple[str, str, str]:
    if difference is None or difference.mean_seconds is None:
        return "", "", ""
    shorter = (
        f"{100 * difference.shorter_share:.0f} % of {difference.pairs:,}"
        if difference.shorter_share is not None
        else ""
    )
    low, high = difference.low_seconds, difference.high_seconds
    interval = f"({_signed(low)} to {_signed(high)})" if low is not None and high is not None else ""
    return _signed(difference.mean_seconds), interval, shorter


def _unfinished(summary: Summary, *, name: str = "") -> Iterator[str]:
    who = f"{name}: " if name else ""
    if summary.held:
        yield (
            f"  {who}in {summary.held:,} of {plural(summary.runs, 'run')} so much fails that the job or a package is held;"
            " the simulation releases it at once\n"
        )
    if summary.unfinished:
        yield f"  {who}{summary.unfinished:,} of {plural(summary.runs, 'run')} do not end within 30 days; the means are those of the others\n"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not known"
    return duration(round(seconds, 1) if seconds < 60 else round(seconds))


def _interval(makespan: Makespan) -> str:
    if makespan.high_seconds is not None:
        return f"{_time(makespan.low_seconds)} to {_time(makespan.high_seconds)}"
    return "not known" if makespan.low_seconds is None else f"from {_time(makespan.low_seconds)}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{_time(abs(seconds))}"


def _between(low: float | None, high: float | None) -> str:
    return f"({_time(low)} to {_time(high)})" if low is not None and high is not None else ""


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g}" if seconds else ""


# --- for other programs -----------------------------------------------------------------------------------------------


def _json(
    request: SimulationRequest,
    job: SimulatedJob,
    summaries: Sequence[Summary],
    differences: Sequence[Difference],
    notes: Sequence[str],
) -> str:
    import msgspec

    from pilotage import app

    report = {
        "job": job.name,
        "packages": job.plan.count,
        "sites": [entry.name for entry in job.sites],
        "runs": request.runs,
        "first_seed": 0,
        "variants": msgspec.to_builtins(list(summaries)),
        "differences": msgspec.to_builtins(list(differences)),
        "notes": list(notes),
    }
    if request.comparisons:
        report["svg"] = request.svg
    return app.json_text(report)
