"""`pilotage run`: a document from its definition to its results, with progress, and a summary at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import chosen_format, format_option, parameter_options, target_arguments
from pilotage.cli.run_options import end_options, run_options

if TYPE_CHECKING:
    from pilotage.app.running import HowToRun


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
    how: HowToRun,
    detach: bool,
    as_json: bool,
) -> int:
    """Run a document here, or only what some of its outputs need, and wait for its end.

    FILE is a document; none: the one of the current folder. TARGET is a file that it makes, or a quoted pattern of such.
    What an earlier run has made is not made again. Ctrl-C stops in good order, and the same command goes on; a closed
    terminal ends nothing. Exit code 0: complete; 1: packages failed, or a TARGET was not made; 2: bad input; 3: stopped;
    130: interrupted twice.
    """
    from pilotage.app.targets import source_for
    from pilotage.cli.carrying import carry_out

    source = source_for(words, source_format=chosen_format(source_format), parameters=parameters)
    return carry_out(source, how, before_load=import_numpy_quickly, detach=detach, as_json=as_json)
