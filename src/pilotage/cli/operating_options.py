"""What the commands that steer jobs are told: names, or a query in their place, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ASKED_ABOVE = 100
"""More than so many at once are confirmed first."""


def where_options(*, jobs: bool) -> Callable[[Decorated], Decorated]:
    """`--where`, which takes the place of names; `--jobs` where whole jobs can be meant."""

    def decorate(command: Decorated) -> Decorated:
        command = click.option("--yes", is_flag=True, help=f"Do not ask, also where it is more than {ASKED_ABOVE}.")(
            command
        )
        if jobs:
            command = click.option(
                "--jobs", "target", flag_value="jobs", help="The QUERY is for jobs, each as a whole."
            )(command)
            command = click.option(
                "--packages", "target", flag_value="packages", default="packages", help="It is for packages. [default]"
            )(command)
        return click.option(
            "--where", "query", metavar="QUERY", help="Everything that it finds, such as state=RUNNING and site=lyon."
        )(command)

    return decorate


def message_option(command: Decorated) -> Decorated:
    """`--message`: for the book."""
    return click.option("--message", default="", metavar="TEXT", help="Why: it stands in the book.")(command)


def places_argument(*, name: str) -> Callable[[Decorated], Decorated]:
    """Jobs or packages by name."""
    return click.argument("places", nargs=-1, metavar=f"[{name}]...")
