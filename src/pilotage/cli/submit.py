"""`pilotage submit`: a document is handed to a service, and nobody waits for it."""

from __future__ import annotations

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import chosen_format, format_option, parameter_options, target_arguments
from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.remote import connect, json_option, server_option
from pilotage.cli.run import failure_options, failures_allowed
from pilotage.cli.words import one_line, plural


@click.command()
@target_arguments
@format_option
@parameter_options
@click.option("--fresh", is_flag=True, help="Run everything, also what an earlier run has made.")
@click.option(
    "--replace",
    is_flag=True,
    help="Make outputs also where files of others have their names; these are kept, as NAME.~1~.",
)
@click.option("--keep-failed", is_flag=True, help="Keep the scratch folders of failed attempts.")
@failure_options[0]
@failure_options[1]
@json_option
@server_option
def submit(
    words: tuple[str, ...],
    source_format: str,
    server: str | None,
    token_file: str | None,
    *,
    parameters: dict[str, str],
    fresh: bool,
    replace: bool,
    keep_failed: bool,
    fail_fast: bool,
    max_failures: int | None,
    as_json: bool,
) -> None:
    """Have a document run by a service, or only what some of its outputs need, and do not wait for it.

    FILE is a document; none: the one of the current folder. TARGET is a file that it makes, or a quoted pattern of such.
    Prints the id of the job. Its results appear in the folder of the document, which the service must see.
    """
    import_numpy_quickly()
    from pilotage.app.running import HowToRun, bring
    from pilotage.app.targets import source_for

    most = failures_allowed(fail_fast=fail_fast, max_failures=max_failures)
    how = HowToRun(fresh=fresh, replace=replace, keep_failed=keep_failed, max_failures=most, only_if_needed=True)
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
