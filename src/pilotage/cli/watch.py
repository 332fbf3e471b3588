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

    JOB is an id, or a name: then the newest job of that name is meant. Without one it is the last job that is not over. Ctrl-C ends the watching, and not the job. The exit code is that of the job: 0 complete, 1 packages failed.
    """
    gc.enable()
    from pilotage.app.following import Following
    from pilotage.cli.carrying import watch_to_end
    from pilotage.cli.naming import last_job, looked_at_job
    from pilotage.cli.remote import connect, look
    from pilotage.client.jobs import Jobs
    from pilotage.model.states import FINAL_NAMES

    with look(server, token_file) as connection:
        chosen = looked_at_job(connection, job) if job else last_job(connection)
        # What is over is told from the book; there is nothing to wait for where nobody runs what is not.
        if connection.resting and Jobs(connection).progress(chosen).state not in FINAL_NAMES:
            connect(server, token_file).close()
    following = Following(lambda: look(server, token_file), chosen)
    try:
        return watch_to_end(following, as_json=as_json)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        following.close()
