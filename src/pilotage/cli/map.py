"""`pilotage map`: one command over many files or values, without a document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.run_options import end_options, run_options

if TYPE_CHECKING:
    from pilotage.app.running import HowToRun


@click.command(name="map")
@click.argument("words", nargs=-1, metavar="COMMAND ITEM…")
@click.option(
    "--each-line",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="The items are the lines of a file; without COMMAND each line is a command. - is standard input.",
)
@click.option(
    "--output", "outputs", multiple=True, metavar="NAME", help="A file that each makes, such as {/.}.png; none: all."
)
@click.option("--shell", is_flag=True, help="Give each command to /bin/sh, for pipes and redirection.")
@click.option("--print", "prints", is_flag=True, help="Print what each command wrote, in the order of the items.")
@click.option("--job", metavar="NAME", help="What to call the job, instead of what the command is called.")
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
    how: HowToRun,
    detach: bool,
    as_json: bool,
) -> int:
    """Run one command for each of many files or values, without a document.

    An example: pilotage map 'convert {} {/.}.png' *.tif.

    In COMMAND and in --output, {} is the item, {.} the item without its ending, {/} its name without its folder, {//}
    its folder, {/.} its name without either, and {#} its number. Without any of them the item comes last. Items that
    are files lie in the folder of their package; files that appear there are put beside the items afterwards. Of
    --each-line, lines without anything in them are no items. The rest is as for `pilotage run`.
    """
    if prints and (as_json or detach):
        raise click.UsageError("--print goes with neither --json nor --detach.")
    items = words[1:] if each_line is None else (*words[1:], *_lines(each_line))
    if not words:  # what a shell would do with such a line is nothing
        items = tuple(line for line in items if not line.lstrip().startswith("#"))
    if not items:
        raise click.UsageError("Say what to run, and for what: pilotage map 'convert {} {/.}.png' *.tif.")
    import_numpy_quickly()
    from pilotage.app.mapping import Asked, mapped
    from pilotage.app.running import Source
    from pilotage.cli.carrying import carry_out
    from pilotage.cli.logs import print_logs

    command = words[0] if words else None
    asked = Asked(command=command, items=items, job=job or "", outputs=outputs, shell=shell)
    folder = Path.cwd()
    source = Source(folder=folder, document="", load=lambda: mapped(asked, folder=folder))
    at_end = print_logs if prints else None
    return carry_out(source, how, before_load=lambda: None, detach=detach, as_json=as_json, at_end=at_end)


def _lines(name: str) -> tuple[str, ...]:
    from pilotage import app

    text = app.read_source(name).decode("utf-8", "surrogateescape")
    return tuple(line for line in text.split("\n") if line.strip())
