"""`pilotage software`: what descriptions of software come to."""

from __future__ import annotations

import click

from pilotage.cli.groups import WholeHelp
from pilotage.cli.output import emit


@click.group(cls=WholeHelp)
def software() -> None:
    """Work with descriptions of software."""


@software.command()
@click.argument("descriptor", type=click.Path(allow_dash=True))
@click.argument("invocation", type=click.Path(allow_dash=True))
def command(descriptor: str, invocation: str) -> None:
    """Print the command line of a Boutiques DESCRIPTOR for an INVOCATION, both JSON files.

    It is the one that `bosh exec simulate` prints; what bosh refuses is refused, with every reason at once.
    """
    from pilotage import app

    emit([app.software_command(descriptor, invocation), "\n"])
