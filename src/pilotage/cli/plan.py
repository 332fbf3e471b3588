"""`pilotage plan`: what a run would do, and what it would cost; nothing is spent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import chosen_format, format_option, parameter_options, target_arguments
from pilotage.cli.output import emit
from pilotage.cli.words import duration, one_line, plural, table

if TYPE_CHECKING:
    from pilotage.app import LoadedJob
    from pilotage.app.running import Source
    from pilotage.model.submission import RunPlan, StagePlan

SHOWN_MAX = 20


@click.command()
@target_arguments
@format_option
@parameter_options
@click.option(
    "--slots", type=click.IntRange(1, 100_000), metavar="N", help="Packages at once; none: one for each core."
)
@click.option("--fresh", is_flag=True, help="As if nothing had been made by an earlier run.")
@click.option("--all", "all_packages", is_flag=True, help=f"Name every package, and not only the first {SHOWN_MAX}.")
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
    """Say what a run would do, why, and what it would cost; nothing is run.

    FILE is a document; none: the one of the current folder. TARGET is a file that it makes, or a quoted pattern of such:
    only what it needs is looked at. It tells what would run, what is there already, the core-hours and the time. Nothing is written.
    """
    import_numpy_quickly()
    from pilotage.app.planning import plan_run
    from pilotage.app.running import HowToRun
    from pilotage.app.targets import source_for

    source = _telling_warnings(source_for(words, source_format=chosen_format(source_format), parameters=parameters))
    found = plan_run(source, HowToRun(slots=slots, fresh=fresh))
    if as_json:
        import msgspec

        from pilotage import app

        plain = {name: msgspec.to_builtins(getattr(found, name)) for name in found.__struct_fields__}
        emit([app.json_text(plain)])
    else:
        emit(plan_lines(found, shown_max=None if all_packages else SHOWN_MAX))


def _telling_warnings(source: Source) -> Source:
    """The same document, whose warnings are shown when it is read."""
    import msgspec

    from pilotage.cli.problems import show_problems

    def load() -> LoadedJob:
        loaded = source.load()
        show_problems(loaded.warnings, severity="warning")
        return loaded

    return msgspec.structs.replace(source, load=load)


def plan_lines(found: RunPlan, *, shown_max: int | None) -> Iterator[str]:
    """A plan, for people."""
    if not found.would_run and not any(stage.late for stage in found.stages):
        yield f"{one_line(found.job)}: nothing would run: {plural(found.there, 'package')} there already\n"
        return
    there = f", {found.there:,} there already" if found.there else ""
    left_out = f", {found.left_out:,} left out" if found.left_out else ""
    yield f"{one_line(found.job)}: {found.would_run:,} of {plural(found.packages, 'package')} would run{there}{left_out}\n"
    yield from _about(found)
    header = ("stage", "name", "packages", "would run", "there", "core-hours")
    yield from table(map(_stage_row, found.stages), header=header, indent="  ")
    yield from _costs(found)
    yield from _why(found, shown_max=shown_max)
    yield from (f"  note: {one_line(note)}\n" for note in found.notes)


def _about(found: RunPlan) -> Iterator[str]:
    """What the document says of itself, and of the software that it uses."""
    if found.description or found.created:
        made = f"made {found.created}" if found.created else ""
        yield f"  {one_line('; '.join(filter(None, (found.description, made))))}\n"
    for name, description in found.software.items():
        yield f"  {one_line(name)}: {one_line(description)}\n"
    for each in found.parameters:
        notes = "; ".join(filter(None, ("" if each.chosen else "default", each.description)))
        yield f"  {one_line(each.name)} = {one_line(each.value)}{f' ({one_line(notes)})' if notes else ''}\n"


def _why(found: RunPlan, *, shown_max: int | None) -> Iterator[str]:
    """What changed, package by package; where it is the same for all, once."""
    if len(found.changed) == 1 and len({each.changed for each in found.listed}) == 1:
        yield f"  why: {one_line(found.listed[0].changed)}\n"
        return
    listed = found.listed if shown_max is None else found.listed[:shown_max]
    yield "  why\n"
    yield from table(((each.package, each.name, each.changed) for each in listed), indent="    ")
    if found.would_run > len(listed):
        kinds = ", ".join(f"{count:,} for {kind}" for kind, count in found.changed.items())
        yield f"    … and {found.would_run - len(listed):,} more; in all {one_line(kinds)}\n"


def _stage_row(stage: StagePlan) -> tuple[object, ...]:
    if stage.late and not stage.packages:
        return (stage.stage, stage.name, "not known yet", "", "", "")
    return (
        stage.stage,
        stage.name,
        f"{stage.packages:,}",
        f"{stage.would_run:,}",
        f"{stage.there:,}",
        "" if stage.core_hours is None else f"{stage.core_hours:.3g}",
    )


def _costs(found: RunPlan) -> Iterator[str]:
    if found.core_hours is None or found.seconds is None:
        yield "  how long it takes is not known: no run_time is given, and none of it was run before\n"
        return
    slots = plural(found.slots, "slot")
    part = f", without {plural(found.unknown, 'package')} of which nothing is known" if found.unknown else ""
    took = duration(round(found.seconds, 1 if found.seconds < 60 else 0))
    yield f"  {found.core_hours:.3g} core-hours, {took} with {slots}{part}\n"
