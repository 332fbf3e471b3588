"""`pilotage attach`: back to a job that goes on without anybody, as if its `run` had never been left."""

from __future__ import annotations

import gc
from pathlib import Path

import click

from pilotage.cli.remote import json_option


@click.command()
@click.argument("job", required=False)
@json_option
def attach(job: str | None, *, as_json: bool) -> int:
    """Come back to a job that goes on without a terminal.

    It is shown until it is over, as `pilotage run` does. Without JOB it is the last one that is not over. Where nothing runs the job any more, it goes on; Ctrl-C stops it as
    it stops `pilotage run`.
    """
    gc.enable()
    from pilotage.app.session import Session
    from pilotage.cli.carrying import follow_job, signals_raised
    from pilotage.cli.watch import last_job

    with signals_raised():
        session = Session(Path.cwd())
        with session.server() as server:
            chosen = job or last_job(server)
        return follow_job(chosen, session, as_json=as_json)
