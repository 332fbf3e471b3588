"""`pilotage run`, `map` and `plan`: run a document or one command over many items, or show what would run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.job_run import end_options, run_options
from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import chosen_format, format_option, parameter_options, target_arguments
from pilotage.cli.shared.output import duration, emit, one_line, plural, table
from pilotage.model.texts import moment, size_text

if TYPE_CHECKING:
    from pilotage.app import LoadedJob
    from pilotage.app.jobs.submit import RunSettings, Source
    from pilotage.model.jobs.submission import PlannedPackage, RunPlan, StagePlan


@click.command()
@target_arguments
@format_option
@parameter_options
@run_options
@end_options
def run(
    words: tuple[str, ...],
    source_format: str,
    *,
    parameters: dict[str, str],
    how: RunSettings,
    detach: bool,
    as_json: bool,
) -> int:
    """Run a document here and wait until it ends.

    FILE is a document; without it, the document of the current folder runs. TARGET is a file that the document makes, or a
    quoted pattern of such files: only the packages that it needs run. Outputs of earlier runs are reused. Ctrl-C stops the
    job cleanly, and the same command continues it; a job keeps running when its terminal is closed. Exit code 0: complete;
    1: packages failed, or a TARGET was not made; 2: bad input; 3: stopped; 130: interrupted twice.
    """
    from pilotage.app.jobs.targets import source_for
    from pilotage.cli.shared.job_run import run_job

    source = source_for(words, source_format=chosen_format(source_format), parameters=parameters)
    return run_job(source, how, before_load=import_numpy_quickly, detach=detach, as_json=as_json)


# `pilotage map`: one command for many files or values, without a document.


@click.command(name="map")
@click.argument("words", nargs=-1, metavar="COMMAND ITEM…")
@click.option(
    "--each-line",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Take the lines of FILE as items; without COMMAND, as commands. - is standard input.",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="NAME",
    help="Keep this file of each package, such as {/.}.png; without it, all files.",
)
@click.option("--shell", is_flag=True, help="Run each command in /bin/sh, for pipes and redirection.")
@click.option("--print", "prints", is_flag=True, help="Print the output of each command, in the order of the items.")
@click.option("--job", metavar="NAME", help="Name the job NAME, instead of after the command.")
@run_options
@end_options
def map_command(
    words: tuple[str, ...],
    each_line: str | None,
    outputs: tuple[str, ...],
    job: str | None,
    *,
    shell: bool,
    prints: bool,
    how: RunSettings,
    detach: bool,
    as_json: bool,
) -> int:
    """Run one command for each of many files or values.

    Example: pilotage map 'convert {} {/.}.png' *.tif.

    In COMMAND and in --output, {} is the item, {.} the item without its extension, {/} its name without its folder, {//}
    its folder, {/.} its name without folder and extension, and {#} its number. Without any of them the item is the last
    argument. No document is needed. Each package runs in a folder of its own, which contains its item if that is a file; the
    files that it makes are copied into the current folder. --each-line skips empty lines. Everything else is as for
    `pilotage run`.
    """
    if prints and (as_json or detach):
        raise click.UsageError("--print cannot be combined with --json or --detach.")
    items = words[1:] if each_line is None else (*words[1:], *_lines(each_line))
    if not words:  # a shell would do nothing with an empty line
        items = tuple(line for line in items if not line.lstrip().startswith("#"))
    if not items:
        raise click.UsageError("Name a command and its items: pilotage map 'convert {} {/.}.png' *.tif.")
    import_numpy_quickly()
    from pilotage.app.documents.map import MapRequest, map_job
    from pilotage.app.jobs.submit import Source
    from pilotage.cli.jobs.logs import print_logs
    from pilotage.cli.shared.job_run import run_job

    command = words[0] if words else None
    asked = MapRequest(command=command, items=items, job=job or "", outputs=outputs, shell=shell)
    folder = Path.cwd()
    source = Source(folder=folder, document="", load=lambda: map_job(asked, folder=folder))
    at_end = print_logs if prints else None
    return run_job(source, how, before_load=lambda: None, detach=detach, as_json=as_json, at_end=at_end)


def _lines(name: str) -> tuple[str, ...]:
    from pilotage import app

    text = app.read_source(name).decode("utf-8", "surrogateescape")
    return tuple(line for line in text.split("\n") if line.strip())


# `pilotage plan`: what a run would do and cost, without running it.

SHOWN_MAX = 20


@click.command()
@target_arguments
@format_option
@parameter_options
@click.option(
    "--slots",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Assume N packages at once; without it, one for each core.",
)
@click.option("--fresh", is_flag=True, help="Plan as if there were no outputs of earlier runs.")
@click.option("--all", "all_packages", is_flag=True, help=f"List all packages, not only the first {SHOWN_MAX}.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for other programs.")
def plan(
    words: tuple[str, ...],
    source_format: str,
    slots: int | None,
    *,
    parameters: dict[str, str],
    fresh: bool,
    all_packages: bool,
    as_json: bool,
) -> None:
    """Show what a run would do, why, and what it would cost.

    FILE is a document; without it, the document of the current folder is planned. TARGET is a file that the document makes,
    or a quoted pattern of such files: only the packages that it needs are planned. The plan tells which packages would run
    and why, which outputs are there already, the core-hours and the time. Nothing runs, and nothing is written.
    """
    import_numpy_quickly()
    from pilotage.app.jobs.submit import RunSettings
    from pilotage.app.jobs.targets import source_for
    from pilotage.app.preview import plan_run

    source = _with_warnings(source_for(words, source_format=chosen_format(source_format), parameters=parameters))
    found = plan_run(source, RunSettings(slots=slots, fresh=fresh))
    if as_json:
        import msgspec

        from pilotage import app

        plain = {name: msgspec.to_builtins(getattr(found, name)) for name in found.__struct_fields__}
        emit([app.json_text(plain)])
    else:
        emit(plan_lines(found, shown_max=None if all_packages else SHOWN_MAX))


def _with_warnings(source: Source) -> Source:
    """The same document, which prints its warnings when it is loaded."""
    import msgspec

    from pilotage.cli.shared.problems import show_problems

    def load() -> LoadedJob:
        loaded = source.load()
        show_problems(loaded.warnings, severity="warning")
        return loaded

    return msgspec.structs.replace(source, load=load)


def plan_lines(found: RunPlan, *, shown_max: int | None) -> Iterator[str]:
    """A plan as lines of text."""
    if not found.would_run and not any(stage.late for stage in found.stages):
        yield f"{one_line(found.job)}: nothing would run: {plural(found.there, 'package')} there already\n"
        yield from (f"  note: {one_line(note)}\n" for note in found.notes)
        return
    there = f", {found.there:,} there already" if found.there else ""
    left_out = f", {found.left_out:,} left out" if found.left_out else ""
    yield f"{one_line(found.job)}: {found.would_run:,} of {plural(found.packages, 'package')} would run{there}{left_out}\n"
    yield from _about(found)
    yield from table(_stage_rows(found.stages), header=_STAGE_HEADER, indent="  ")
    yield from _costs(found)
    yield from _why(found, shown_max=shown_max)
    yield from (f"  note: {one_line(note)}\n" for note in found.notes)


def _about(found: RunPlan) -> Iterator[str]:
    """The description of the document, of its software, and its parameters."""
    if found.description or found.created:
        made = f"made {found.created}" if found.created else ""
        yield f"  {one_line('; '.join(filter(None, (found.description, made))))}\n"
    for name, description in found.software.items():
        yield f"  {one_line(name)}: {one_line(description)}\n"
    for each in found.parameters:
        notes = "; ".join(filter(None, ("" if each.chosen else "default", each.description)))
        yield f"  {one_line(each.name)} = {one_line(each.value)}{f' ({one_line(notes)})' if notes else ''}\n"


def _why(found: RunPlan, *, shown_max: int | None) -> Iterator[str]:
    """Why each package would run, one line if the reason is the same for all; and when, if that is not at once."""
    listed = found.listed if shown_max is None else found.listed[:shown_max]
    times = [
        _expected(each) if shown_max is None or (found.seconds or 0.0) >= _SHOWN_SECONDS_MIN else "" for each in listed
    ]
    if len(found.changed) == 1 and len({each.changed for each in found.listed}) == 1:
        yield f"  why: {one_line(found.listed[0].changed)}\n"
        if not any(times):
            return
        yield "  when, if it were submitted now\n"
        rows: Iterator[tuple[object, ...]] = (
            (each.package, each.name, at) for each, at in zip(listed, times, strict=True)
        )
    else:
        yield "  why\n"
        rows = ((each.package, each.name, each.changed, at) for each, at in zip(listed, times, strict=True))
    yield from table(rows, indent="    ")
    if found.would_run > len(listed):
        kinds = ", ".join(f"{count:,} for {kind}" for kind, count in found.changed.items())
        yield f"    … and {found.would_run - len(listed):,} more; in all {one_line(kinds)}\n"


_SHOWN_SECONDS_MIN = 60.0  # a plan that is over sooner shows no times, unless all packages are listed


def _expected(package: PlannedPackage) -> str:
    """When a package would start and end."""
    if package.expected_start_at is None or package.expected_end_at is None:
        return ""
    return f"{moment(package.expected_start_at)} to {moment(package.expected_end_at)}"


_STAGE_HEADER = ("stage", "name", "packages", "would run", "there", "core-hours", "memory", "scratch", "outputs")


def _stage_rows(stages: Sequence[StagePlan]) -> Iterator[tuple[object, ...]]:
    """The rows of the stages; a column without any value is left out."""
    for stage in stages:
        if stage.late and not stage.packages:
            yield (stage.stage, stage.name, "not known yet", *[""] * 6)
            continue
        yield (
            stage.stage,
            stage.name,
            f"{stage.packages:,}",
            f"{stage.would_run:,}",
            f"{stage.there:,}",
            "" if stage.core_hours is None else f"{stage.core_hours:.3g}",
            *(
                "" if size is None else size_text(size)
                for size in (stage.memory_bytes, stage.scratch_bytes, stage.output_bytes)
            ),
        )


def _costs(found: RunPlan) -> Iterator[str]:
    if found.core_hours is None or found.seconds is None:
        yield "  the duration is unknown: the document gives no run_time, and no package ran before\n"
        return
    slots = plural(found.slots, "slot")
    part = f", without {plural(found.unknown, 'package')} of unknown duration" if found.unknown else ""
    took = duration(round(found.seconds, 1 if found.seconds < 60 else 0))
    at_end = found.expected_end_at if found.seconds >= _SHOWN_SECONDS_MIN else None
    until = f": until {moment(at_end)}, if it were submitted now" if at_end is not None else ""
    yield f"  {found.core_hours:.3g} core-hours, {took} with {slots}{part}{until}\n"
