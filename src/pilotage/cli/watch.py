"""`pilotage watch`: how far a job is, until it is over."""

from __future__ import annotations

import gc

import click

from pilotage.cli.remote import json_option, server_option
from pilotage.model.exit_codes import ExitCode


@click.command()
@click.argument("job", required=False)
@json_option
@server_option
def watch(job: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> int:
    """Show how far a job is, until it is over.

    Without JOB it is the last one that is not over. Ctrl-C ends the watching, and not the job. The exit code is that of the job: 0 complete, 1 packages failed.
    """
    gc.enable()
    from pilotage.app.following import Following
    from pilotage.cli.carrying import watch_to_end
    from pilotage.cli.remote import connect

    with connect(server, token_file) as connection:
        chosen = job or last_job(connection)
    following = Following(lambda: connect(server, token_file), chosen)
    try:
        return watch_to_end(following, as_json=as_json)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        following.close()


def last_job(connection: object) -> str:
    """The job that was submitted last of those that are not over, or of all; raises `PilotageError` where there is none."""
    from pilotage.client import Server
    from pilotage.client.server import path_of
    from pilotage.model.errors import PilotageError

    assert isinstance(connection, Server)
    for query in ("state in (SUBMITTED, WAITING, READY, SCHEDULED, RUNNING)", "all"):
        found = connection.get(path_of("jobs"), {"query": query, "limit": 1000})["jobs"]
        if found:
            newest: str = max(found, key=lambda each: each["submitted_at"] or 0.0)["id"]
            return newest
    raise PilotageError("there is no job yet", next_step="run one: pilotage run")
