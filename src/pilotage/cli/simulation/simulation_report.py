"""A job that is simulated: what it comes to, printed; and several ways to run it, side by side."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from pilotage.cli.shared.output import duration, emit, one_line, plural, say_to_reader, table, write_files
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pilotage.app.simulation import SimulatedJob
    from pilotage.model.sites.world import Observed, WorldFile
    from pilotage.simulator.runs.comparison import Difference, Makespan, Summary

_COLLECTED_EVERY = 10  # runs: what they leave behind goes in circles, and is only found by looking for it
_TRACE_ENDINGS = (".swf", ".csv", ".tsv", ".tab", ".txt", ".gz", ".xz")


class Asked(NamedTuple):
    """What is to be simulated."""

    file: str
    sites: str
    runs: int
    world: tuple[bytes, str] | None
    sources: tuple[str, ...]
    comparisons: tuple[str, ...]
    svg: str
    save_world: str | None


def forecast(asked: Asked, *, as_json: bool) -> int:
    """Simulate a job as often as was asked, in each way that was asked for, and say what it came to."""
    from pilotage.app import simulation
    from pilotage.simulator.runs.behaviour import unestimated
    from pilotage.simulator.runs.charts import chart_of
    from pilotage.simulator.runs.comparison import difference_of, run_many, summary_of, variants_of
    from pilotage.simulator.runs.run import Subject, usual_settings

    job = simulation.job_to_simulate(asked.file, sites=asked.sites)
    world = _world(asked, job)
    notes = [*job.notes, *_unknown_times(unestimated(job.plan, world.packages))]
    if asked.save_world is not None:
        write_files({asked.save_world: [simulation.world_text(world)]})
    subject = Subject(plan=job.plan, registered=job.registered, sites=job.sites, world=world)
    variants = variants_of(asked.comparisons, usual_settings(world, job.settings))
    for note in notes:
        say_to_reader(f"note: {note}")
    with _progress(asked.runs * len(variants)) as each:
        summaries = [
            summary_of(variant.name, run_many(subject, variant.settings, runs=asked.runs, each=each))
            for variant in variants
        ]
    differences = [difference_of(summaries[0], other) for other in summaries[1:]]
    if asked.comparisons:
        write_files({asked.svg: [chart_of(job.name, summaries, differences)]})
    if as_json:
        emit([_json(asked, job, summaries, differences, notes)])
    elif asked.comparisons:
        emit(comparison_lines(job, summaries, differences, drawing=asked.svg))
    else:
        emit(summary_lines(job, summaries[0]))
    return ExitCode.COMPLETE


# --- the world --------------------------------------------------------------------------------------------------------


def _world(asked: Asked, job: SimulatedJob) -> WorldFile:
    """What the file says, and over it what was seen, in the order in which it was named."""
    from pilotage.app import simulation
    from pilotage.model.sites.world import Observed, WorldFile
    from pilotage.simulator.runs.fitting import fit_jobs, fit_trace, read_trace

    names = [entry.name for entry in job.sites]
    world = WorldFile()
    if asked.world is not None:
        data, file = asked.world
        world = simulation.world_in(data, file=file, sites=job.sites)
    seen = Observed()
    for text in asked.sources:
        site, what = _source(text, names)
        if _is_trace(what):
            with simulation.trace_lines(what) as lines:
                world = fit_trace(world, read_trace(lines, name=what), sites=[site] if site else names)
        elif site:
            raise click.UsageError(
                f"{what!r} is no file; a job tells of its sites by their own names: leave out {site}="
            )
        else:
            _observe(what, seen)
    if seen.sites:
        strange = sorted(set(seen.sites) - set(names))
        if strange and len(strange) == len(seen.sites):
            told = ", ".join(strange)
            raise click.UsageError(
                f"what was seen is of {told}, and none of these is among the sites that are simulated"
            )
        if strange:
            say_to_reader(f"note: seen at {', '.join(strange)}, which is not simulated")
        world = fit_jobs(world, seen, sites=job.sites)
    return world


def _source(text: str, sites: Sequence[str]) -> tuple[str, str]:
    """The site that a source is about, if it says so, and the source."""
    site, equals, what = text.partition("=")
    if equals and not Path(text).exists():
        if site not in sites:
            raise click.UsageError(f"no site is called {site!r}; there are {', '.join(sites)}")
        return site, what
    return "", text


def _is_trace(what: str) -> bool:
    return Path(what).is_file() or what.endswith(_TRACE_ENDINGS)


def _observe(word: str, seen: Observed) -> None:
    from pilotage.app.simulation import observe
    from pilotage.cli.shared.job_names import looked_at_job
    from pilotage.cli.shared.server import look

    with look(None, None) as connection:
        observe(connection, looked_at_job(connection, word), seen)


def _unknown_times(activities: Sequence[str]) -> Iterator[str]:
    if activities:
        shown = ", ".join(activities[:5]) + (", …" if len(activities) > 5 else "")
        yield (
            f"how long {shown} takes is not known: taken from the world's packages.run_time;"
            " give the document a run_time, or say --world-from JOB"
        )


@contextmanager
def _progress(length: int) -> Iterator[Callable[[], object]]:
    """Counts runs, before the eyes of whoever waits at a terminal; and what they leave behind is swept up."""
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

            def shown() -> None:
                sweep()
                bar.update(1)

            yield shown
    finally:
        gc.unfreeze()


# --- for people -------------------------------------------------------------------------------------------------------


def summary_lines(job: SimulatedJob, summary: Summary) -> Iterator[str]:
    """What many runs came to."""
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
        "inputs",
        "application",
        "outputs",
        "idle",
        "in vain",
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
                *(_hours(site.seconds[phase]) for phase in ("inputs", "application", "outputs", "idle")),
                _hours(site.wasted_core_seconds),
            )
            for name, site in summary.sites.items()
        ),
        header=header,
        indent="    ",
    )
    yield f"  {100 * summary.wasted_share:.1f} % of the time on cores is spent in vain"
    failed = ", ".join(f"{count:,.1f} {reason}" for reason, count in summary.failures.items())
    yield f"; failures of attempts: {failed}\n" if failed else "; no attempt fails\n"
    if summary.packages_failed:
        yield f"  {summary.packages_failed:,.1f} packages are given up\n"
    yield f"  ({summary.mean_method}; in the queue: for each batch job; the other times are sums, in hours)\n"


def comparison_lines(
    job: SimulatedJob, summaries: Sequence[Summary], differences: Sequence[Difference], *, drawing: str
) -> Iterator[str]:
    """Several ways to run a job, side by side."""
    first = summaries[0]
    packages, sites = plural(job.plan.count, "package"), plural(len(job.sites), "site")
    yield f"{one_line(job.name)}: {packages} at {sites}, {plural(first.runs, 'run')} each, with the same seeds\n"
    beside = {each.variant: each for each in differences}
    header = ("", "median", "mean", "nine runs of ten", "in vain", "given up", "beside the first", "", "shorter in")
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
        yield "  not as many packages are given up everywhere: one that is over earlier may have done less\n"
    unclear = [each.variant for each in differences if not each.is_clear]
    if unclear:
        yield f"  whether {', '.join(unclear)} is better or worse than {first.variant}, these runs do not say\n"
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
            " it is taken to be released at once\n"
        )
    if summary.unfinished:
        yield f"  {who}{summary.unfinished:,} of {plural(summary.runs, 'run')} not over in 30 days; means are over the others\n"


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
    asked: Asked,
    job: SimulatedJob,
    summaries: Sequence[Summary],
    differences: Sequence[Difference],
    notes: Sequence[str],
) -> str:
    import msgspec

    from pilotage import app

    told = {
        "job": job.name,
        "packages": job.plan.count,
        "sites": [entry.name for entry in job.sites],
        "runs": asked.runs,
        "first_seed": 0,
        "variants": msgspec.to_builtins(list(summaries)),
        "differences": msgspec.to_builtins(list(differences)),
        "notes": list(notes),
    }
    if asked.comparisons:
        told["svg"] = asked.svg
    return app.json_text(told)
