"""`pilotage tls`: a certificate for the service, of an authority of its own."""

from __future__ import annotations

import time

import click

from pilotage.cli.groups import WholeHelp
from pilotage.cli.output import emit
from pilotage.cli.remote import json_option
from pilotage.model.exit_codes import ExitCode


@click.group(cls=WholeHelp)
def tls() -> None:
    """Make the service speak TLS: an authority of its own, and a certificate."""


@tls.command("init")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A name or an address it is reached by; may be repeated."
)
@click.option("--days", type=click.IntRange(1, 3650), metavar="N", help="How long the certificate is valid; none: 365.")
@click.option(
    "--new-ca", is_flag=True, help="Replace the authority, too: whoever has the old ca.pem needs the new one."
)
@json_option
def init(hosts: tuple[str, ...], days: int | None, *, new_ca: bool, as_json: bool) -> int:
    """Make a certificate for the service of this folder.

    The first time an authority is made, too: its key stays in the folder `tls` beside the book. Later certificates are
    of the same authority, so whoever has its ca.pem need not be told; a service that runs takes them by itself. A
    service that spoke plainly speaks TLS from its next start.
    """
    from pilotage.app import book
    from pilotage.app.tls import SERVER_DAYS, init_tls

    made = init_tls(book.settings_here(), hosts, days=days or SERVER_DAYS, new_ca=new_ca)
    if as_json:
        from pilotage import app

        emit([app.json_text(made)])
        return ExitCode.COMPLETE
    until = time.strftime("%Y-%m-%d", time.gmtime(made.expires_at))
    which = "a new" if made.new_ca else "the same"
    needed = "agents and clients elsewhere need it: --ca-file or PILOTAGE_CA_FILE"
    emit(
        [
            f"{made.certificate}: for {', '.join(made.hosts)}, until {until}\n",
            f"{made.ca_file}: {which} authority; {needed}\n",
        ]
    )
    return ExitCode.COMPLETE
