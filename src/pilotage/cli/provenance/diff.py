"""`pilotage provenance diff`: what differs between two recorded jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.provenance.record_sources import recorded_jobs, records_options
from pilotage.cli.provenance.rerun import SHOWN_MAX, difference_lines, output_lines
from pilotage.cli.shared.output import emit, table
from pilotage.cli.shared.server import json_option
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.provenance.rerun import JobDifferences


@click.command()
@click.argument("first", metavar="JOB1")
@click.argument("second", metavar="JOB2")
@json_option
@records_options
def diff(
    first: str, second: str, folder: Path | None, server: str | None, token_file: str | None, *, as_json: bool
) -> int:
    """Show what differs between two recorded jobs.

    Compared are the definition, parameters, software, environment, timings and outputs. Outputs are equal if they are
    identical, or as `compare:` of the first document declares. Exit code 0: all but the timings is the same; 1: something
    differs.
    """
    from pilotage.app.provenance.rerun import job_differences

    with recorded_jobs(folder, server, token_file) as recorded:
        found = job_differences(recorded, recorded.find(first), recorded.find(second))
    if as_json:
        from pilotage import app

        emit([app.json_text(found)])
    else:
        emit(_lines(found))
    return ExitCode.COMPLETE if found.same else ExitCode.FAILED


def _lines(found: JobDifferences) -> Iterator[str]:
    yield f"{found.jobs[0]} → {found.jobs[1]}\n"
    for title in ("definition", "parameters", "software", "environment"):
        differences = getattr(found, title)
        yield f"{title}{':' if differences else ': the same'}\n"
        yield from difference_lines(differences)
    if found.timings:
        yield "seconds:\n"
        yield from table(
            ((each.what, _seconds(each.before), _seconds(each.after)) for each in found.timings), indent="  "
        )
    if found.packages:
        yield "packages that did not end alike:\n"
        yield from difference_lines(found.packages[:SHOWN_MAX])
    yield from output_lines(found.outputs)


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"
