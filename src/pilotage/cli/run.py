"""`pilotage run`: a document from its definition to its results, with progress, and a summary at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import chosen_format, format_option, parameter_options, target_arguments

if TYPE_CHECKING:
    from pilotage.app.running import HowToRun


failure_options = (
    click.option("--fail-fast", is_flag=True, help="End the job when one package has failed for good."),
    click.option(
        "--max-failures",
        type=click.IntRange(min=1),
        metavar="N",
        help="End the job when N packages have failed for good: what is not over is cancelled.",
    ),
)


def failures_allowed(*, fail_fast: bool, max_failures: int | None) -> int:
    """After how many failed packages a job is to end; 0: never."""
    return 1 if fail_fast else max_failures or 0


def how_options(command: click.decorators.FC) -> click.decorators.FC:
    """`--slots`, `--sites`, `--fresh`, `--replace`, `--keep-failed`, `--fail-fast`, `--max-failures`, `--detach` and `--json`, which `run` and `map` share."""
    for option in reversed(
        (
            click.option(
                "--slots",
                type=click.IntRange(0, 100_000),
                metavar="N",
                help="Packages here at once; none: one for each core; 0: only at other sites.",
            ),
            click.option(
                "--sites", metavar="FILE", help="The file of sites; none: sites.yaml here, or in your settings."
            ),
            click.option("--fresh", is_flag=True, help="Run everything, also what an earlier run has made."),
            click.option(
                "--replace",
                is_flag=True,
                help="Make outputs also where files of others have their names; these are kept, as NAME.~1~.",
            ),
            click.option("--keep-failed", is_flag=True, help="Keep the scratch folders of failed attempts."),
            *failure_options,
            click.option(
                "--detach", is_flag=True, help="End when the job has begun; `pilotage attach` comes back to it."
            ),
            click.option(
                "--json", "as_json", is_flag=True, help="Print one JSON object at the end, for other programs."
            ),
        )
    ):
        command = option(command)
    return command


def chosen_how(
    *,
    slots: int | None,
    sites: str | None,
    fresh: bool,
    replace: bool,
    keep_failed: bool,
    fail_fast: bool,
    max_failures: int | None,
) -> HowToRun:
    """What the options say."""
    from pathlib import Path

    from pilotage.app.running import HowToRun

    # The service runs in the folder of the document, and the word is meant for the current one.
    file = str(Path(sites).expanduser().absolute()) if sites else ""
    return HowToRun(
        slots=slots,
        sites=file,
        fresh=fresh,
        replace=replace,
        keep_failed=keep_failed,
        max_failures=failures_allowed(fail_fast=fail_fast, max_failures=max_failures),
        only_if_needed=True,
    )


@click.command()
@target_arguments
@format_option
@parameter_options
@how_options
def run(
    words: tuple[str, ...],
    source_format: str,
    slots: int | None,
    sites: str | None,
    *,
    parameters: dict[str, str],
    fresh: bool,
    replace: bool,
    keep_failed: bool,
    fail_fast: bool,
    max_failures: int | None,
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
    how = chosen_how(
        slots=slots,
        sites=sites,
        fresh=fresh,
        replace=replace,
        keep_failed=keep_failed,
        fail_fast=fail_fast,
        max_failures=max_failures,
    )
    return carry_out(source, how, before_load=import_numpy_quickly, detach=detach, as_json=as_json)
