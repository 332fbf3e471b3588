"""`pilotage doctor`: each hop between here and a result, and what to do where one is broken."""

from __future__ import annotations

import click

from pilotage.cli.output import emit
from pilotage.cli.remote import json_option
from pilotage.cli.words import one_line, text_width
from pilotage.model.exit_codes import ExitCode


@click.command()
@click.option("--journal", metavar="URL", help="Where the book is kept: sqlite:DIR or postgresql://…")
@json_option
def doctor(journal: str | None, *, as_json: bool) -> int:
    """Find out what is broken between here and a result.

    Programs, disk, clock, token, service and agents are tried, one after the other: those of this folder, or of the
    nearest above it where it has none. The exit code is 1 where something is bad.
    """
    from pilotage.app.doctor import concerned_here, diagnose

    findings = diagnose(concerned_here(journal))
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text({"findings": [msgspec.to_builtins(each) for each in findings]})])
    else:
        width = max(text_width(each.hop) for each in findings)
        for each in findings:
            emit([f"{each.verdict:4}  {each.hop:{width}}  {one_line(each.message)}\n"])
            if each.next_step:
                emit([f"{'':4}  {'':{width}}  → {one_line(each.next_step)}\n"])
    return ExitCode.FAILED if any(each.verdict == "bad" for each in findings) else ExitCode.COMPLETE
