"""`pilotage attach`: back to a job that goes on without anybody, as if its `run` had never been left."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.remote import json_option

if TYPE_CHECKING:
    from pilotage.client import Server


@click.command()
@click.argument("job", required=False)
@json_option
def attach(job: str | None, *, as_json: bool) -> int:
    """Come back to a job that goes on without a terminal.

    It is shown until it is over, as `pilotage run` does. JOB is an id, or a name: then the newest job of that name is meant. Without one it is the last job that is not over. Where nothing runs the job any more, it goes on; Ctrl-C stops it as
    it stops `pilotage run`.
    """
    gc.enable()
    from pilotage.app.following import Following, is_over
    from pilotage.app.looking import look_at
    from pilotage.app.nearby import nearest_address
    from pilotage.app.session import Session, home_of
    from pilotage.cli.carrying import follow_job, signals_raised, watch_to_end
    from pilotage.client import NoServer

    with signals_raised():
        folder, address = Path.cwd(), nearest_address(Path.cwd())
        if address is None:
            raise NoServer
        if not address.runs:
            folder = home_of(Path(address.origin))
            # The book says whether there is anything to go on with: nothing is started for what is over or unknown.
            with look_at(address) as book:
                if book.resting:
                    following = Following(lambda: book, _chosen(book, job))
                    if is_over(following.progress()):
                        return watch_to_end(following, as_json=as_json)
        session = Session(folder)
        session.join()
        with session.server() as server:
            chosen = _chosen(server, job)
        session.go_on(chosen)
        return follow_job(chosen, session, as_json=as_json)


def _chosen(server: Server, job: str | None) -> str:
    from pilotage.cli.naming import last_job, looked_at_job

    return looked_at_job(server, job) if job else last_job(server)
