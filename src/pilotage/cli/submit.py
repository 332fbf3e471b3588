"""`pilotage submit`: a document is handed to a service, and nobody waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import chosen_format, format_option, parameter_options, target_arguments
from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.remote import connect, json_option, server_option
from pilotage.cli.run_options import job_options
from pilotage.cli.words import one_line, plural

if TYPE_CHECKING:
    from pilotage.app.running import HowToRun


@click.command()
@target_arguments
@format_option
@parameter_options
@job_options
@json_option
@server_option
def submit(
    words: tuple[str, ...],
    source_format: str,
    server: str | None,
    token_file: str | None,
    *,
    parameters: dict[str, str],
    how: HowToRun,
    as_json: bool,
) -> None:
    """Have a document run by a service, or only what some of its outputs need, and do not wait for it.

    FILE is a document; none: the one of the current folder. TARGET is a file that it makes, or a quoted pattern of such.
    Prints the id of the job. Its results appear in the folder of the document, which the service must see.
    """
    import_numpy_quickly()
    from pilotage.app.running import bring
    from pilotage.app.targets import source_for

    with connect(server, token_file) as connection:
        source = source_for(words, source_format=chosen_format(source_format), parameters=parameters)
        answer = bring(source, source.load(), connection, how).answer
    if as_json:
        import msgspec

        from pilotage import app

        told = {"job": "", "packages": 0, "adopted": 0, "resumed": False, **msgspec.to_builtins(answer)}
        emit([app.json_text(told)])
        return
    if not answer.job:
        say_to_reader("nothing to do: everything is there already; run it all the same with --fresh")
        return
    emit([f"{one_line(answer.job)}\n"])
    there = f", {answer.adopted:,} of them there already" if answer.adopted else ""
    goes_on = "it was submitted before, and goes on; " if answer.resumed else ""
    say_to_reader(f"{goes_on}{plural(answer.packages, 'package')}{there}; see: pilotage watch {one_line(answer.job)}")
