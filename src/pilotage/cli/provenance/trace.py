"""`pilotage provenance trace`: what made a file, or what used it, across recorded jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.provenance.record_sources import recorded_jobs, records_options
from pilotage.cli.shared.output import emit, one_line, print_message
from pilotage.cli.shared.server import json_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.states import ADOPTED
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.app.provenance.traces import TraceLine


@click.command()
@click.argument("file")
@click.option("--forward", is_flag=True, help="Show what used the file, instead of what made it.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, help="Show so many lines."
)
@json_option
@records_options
def trace(
    file: str,
    limit: int,
    folder: Path | None,
    server: str | None,
    token_file: str | None,
    *,
    forward: bool,
    as_json: bool,
) -> int:
    """Show the packages and inputs that made a file, across recorded jobs.

    FILE is a file on disk, which is found by its checksum; JOB/NAME, a file of a job; a sha256; or the name of an output, in
    the latest job that made it. An input that another recorded job made is followed there. Exit code 1: no record has the
    file.
    """
    from pilotage.app.provenance.traces import traced

    with recorded_jobs(folder, server, token_file) as recorded:
        lines = list(traced(recorded, file, forward=forward, lines_max=limit))
    if as_json:
        from pilotage import app

        emit([app.json_text({"lines": lines})])
    else:
        emit(_lines(lines))
    if len(lines) > 1 or lines[0].job:
        return ExitCode.COMPLETE
    print_message(
        f"no recorded job {'used' if forward else 'made'} it; a record is made some seconds after the end of its job, or with:"
        " pilotage provenance keep JOB"
    )
    return ExitCode.FAILED


def _lines(found: list[TraceLine]) -> Iterator[str]:
    for each in found:
        indent = "  " * each.depth
        if each.cut:
            yield f"{indent}… (--limit shows more)\n"
        elif each.kind == "package":
            yield f"{indent}{_package(each)}\n"
        else:
            yield f"{indent}{_file(each)}\n"


_ORIGINS = {"captured": "came with the submission", "outside": "from outside"}


def _file(line: TraceLine) -> str:
    digest = f" {line.sha256[:12]}" if line.sha256 else ""
    origin = _ORIGINS.get(line.origin or "", "")
    where = f" of {line.locator}" if line.locator else ""
    return one_line(f"{line.name}{digest}" + (f" ({origin}{where})" if origin else ""))


def _package(line: TraceLine) -> str:
    above = " (followed above)" if line.followed_above else ""
    if line.site == ADOPTED:
        return one_line(
            f"{line.job}/{line.package} {line.name}: made by an earlier job, of which there is no record{above}"
        )
    at = " at ".join(filter(None, (line.node, line.site)))
    when = moment(line.ended_at) if line.ended_at is not None else ""
    about = ", ".join(filter(None, (f"on {at}" if at else "", when)))
    return one_line(
        f"{line.job}/{line.package} {line.name}: {line.command or 'no command'}"
        + (f" ({about})" if about else "")
        + above
    )
