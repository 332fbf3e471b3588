"""`pilotage check`: what is wrong with a document, or what it comes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import chosen_format, command_with, document_argument, format_option, parameter_options
from pilotage.cli.output import emit, shown
from pilotage.cli.words import duration, plural
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app import Verdict


@click.command()
@document_argument
@format_option
@parameter_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for other programs.")
def check(file: str | None, source_format: str, *, parameters: dict[str, str], as_json: bool) -> int:
    """Check a document and count what it comes to.

    Every error is shown at once. Exit code 0: valid, also with warnings; 2: it has errors.
    """
    import_numpy_quickly()
    from pilotage import app
    from pilotage.cli.problems import show_problems

    verdict = app.check(file, source_format=chosen_format(source_format), parameters=parameters)
    if as_json:
        emit([app.verdict_json(verdict)])
    else:
        show_problems(verdict.errors, severity="error")
        show_problems(verdict.warnings, severity="warning")
        emit(f"{shown(line)}\n" for line in _summary(verdict, file or verdict.file))
    return ExitCode.COMPLETE if verdict.valid else ExitCode.BAD_INPUT


def _summary(verdict: Verdict, name: str) -> Iterator[str]:
    source = verdict.file
    problems = [plural(len(verdict.errors), "error"), plural(len(verdict.warnings), "warning")]
    if not verdict.valid:
        yield f"{source}: {', '.join(problems if verdict.warnings else problems[:1])}"
        return
    warned = f", {problems[1]}" if verdict.warnings else ""
    yield f"{source}: valid{warned}"
    counts = [
        plural(verdict.stages or 0, "stage"),
        plural(verdict.lines or 0, "line"),
        plural(verdict.packages or 0, "package"),
        plural(verdict.binaries or 0, "binary"),
        plural(verdict.files or 0, "file"),
        plural(verdict.edges or 0, "edge"),
    ]
    yield f"  {verdict.job}: {', '.join(counts)}"
    if verdict.critical_path_seconds is not None:
        known = " of what is known" if verdict.late else ""
        yield f"  critical path{known}: {duration(verdict.critical_path_seconds)}"
    for late in verdict.late:
        yield f"  stage {late.stage} ({late.name}) grows later, over {', '.join(late.patterns)}: it is not counted yet"
    if verdict.losses:
        things = f"{verdict.losses:,} thing{'' if verdict.losses == 1 else 's'}"
        yield f"  {things} in it {'has' if verdict.losses == 1 else 'have'} no meaning here; {command_with('pilotage convert', name)} --to yaml --report FILE lists them"
