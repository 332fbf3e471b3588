"""How a job is run, as options of the commands that have one run: each is declared here, and nowhere else.

An option is called as the field of `HowToRun` that it sets. Commands are given all of them as one, `how`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pilotage.app.running import HowToRun

Command = Callable[..., Any]
Option = Callable[[Command], Command]

_OF_THE_SERVICE: dict[str, Option] = {
    "slots": click.option(
        "--slots",
        type=click.IntRange(0, 100_000),
        metavar="N",
        help="Packages here at once; none: one for each core; 0: only at other sites.",
    ),
    "sites": click.option(
        "--sites", metavar="FILE", help="The file of sites; none: sites.yaml here, or in your settings."
    ),
}
_OF_THE_JOB: dict[str, Option] = {
    "fresh": click.option("--fresh", is_flag=True, help="Run everything, also what an earlier run has made."),
    "replace": click.option(
        "--replace",
        is_flag=True,
        help="Make outputs also where files of others have their names; these are kept, as NAME.~1~.",
    ),
    "keep_failed": click.option("--keep-failed", is_flag=True, help="Keep the scratch folders of failed attempts."),
    "fail_fast": click.option(
        "--fail-fast", is_flag=True, help="End the job when one package has failed for good."
    ),  # another word for `max_failures`
    "max_failures": click.option(
        "--max-failures",
        type=click.IntRange(min=1),
        metavar="N",
        help="End the job when N packages have failed for good: what is not over is cancelled.",
    ),
}


def job_options(command: Command) -> Command:
    """What can be said of a job that any service runs; the command is given it as `how`."""
    return _collected(_OF_THE_JOB, command)


def run_options(command: Command) -> Command:
    """The same, and what can be said of the service that is started for it; the command is given it as `how`."""
    return _collected(_OF_THE_SERVICE | _OF_THE_JOB, command)


def end_options(command: Command) -> Command:
    """`--detach` and `--json`: what the end of a run is for who began it."""
    detach = click.option(
        "--detach", is_flag=True, help="End when the job has begun; `pilotage attach` comes back to it."
    )
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object at the end, for other programs."
    )
    return detach(as_json(command))


def _collected(options: dict[str, Option], command: Command) -> Command:
    @functools.wraps(command)
    def with_how(*words: Any, **more: Any) -> Any:
        said = {name: more.pop(name) for name in options}
        return command(*words, how=_how(**said), **more)

    decorated: Command = with_how
    for option in reversed(options.values()):
        decorated = option(decorated)
    return decorated


def _how(*, fail_fast: bool, sites: str | None = None, **said: Any) -> HowToRun:
    from pathlib import Path

    from pilotage.app.running import HowToRun

    if fail_fast:
        said["max_failures"] = 1
    if sites:  # the service runs in the folder of the document, and the word is meant for the current one
        said["sites"] = str(Path(sites).expanduser().absolute())
    return HowToRun(only_if_needed=True, **{name: value for name, value in said.items() if value is not None})
