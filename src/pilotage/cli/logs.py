"""`pilotage logs`: what the programs of a package wrote."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pilotage.cli.naming import looked_at_package
from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.remote import json_option, look, server_option
from pilotage.cli.streams import failure_of
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.client.jobs import Log

LOOK_SECONDS = 0.5
STREAMS = ("stdout", "stderr")


@click.command()
@click.argument("package", metavar="[PACKAGE]", required=False)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt; none: of the last one.")
@click.option("--stdout", "only", flag_value="stdout", help="Only its standard output, with nothing added.")
@click.option("--stderr", "only", flag_value="stderr", help="Only its standard error, with nothing added.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until the attempt is over.")
@json_option
@server_option
def logs(
    package: str | None,
    attempt: int | None,
    only: str | None,
    server: str | None,
    token_file: str | None,
    *,
    follow: bool,
    as_json: bool,
) -> int:
    """Show what the programs of a package wrote.

    It is written JOB/1.2.1 or JOB/001/002/001, with the id of its job or its name, which means the newest job of that
    name; 1.2.1 alone is one of the last job. Of a job with a single package, the job is enough. Of what is very long, the beginning and the end are kept.
    """
    from pilotage.client.jobs import Jobs

    if follow and as_json:
        raise click.UsageError("--follow and --json exclude each other.")
    streams = (only,) if only is not None else STREAMS
    with look(server, token_file) as connection:
        where, dotted = looked_at_package(connection, package)
        if follow:
            return _follow(connection, where.job, dotted, streams, attempt)
        found = Jobs(connection).logs(where.job, dotted, attempt=attempt)
        if attempt is not None and not found:
            _refuse_unknown(connection, where.job, dotted, attempt)
    if as_json:
        import msgspec

        from pilotage import app

        kept = [msgspec.to_builtins(each) for each in found if each.stream in streams]
        emit([app.json_text({"job": where.job, "package": dotted, "logs": kept})])
        return ExitCode.COMPLETE
    chosen = _of_one_attempt(found, streams, attempt)
    for log in chosen:
        if only is None:
            emit([f"--- {log.stream} of attempt {log.attempt} ---\n"])
        emit([log.text if only is not None or log.text.endswith("\n") or not log.text else f"{log.text}\n"])
    if not chosen:
        say_to_reader(f"nothing was written yet, or it was not kept; see: pilotage explain {where}")
    return ExitCode.COMPLETE


def _of_one_attempt(found: Sequence[Log], streams: Sequence[str], attempt: int | None) -> list[Log]:
    number = attempt if attempt is not None else max((each.attempt for each in found), default=0)
    return [each for name in streams for each in found if each.attempt == number and each.stream == name]


def _follow(connection: Server, job: str, package: str, streams: Sequence[str], attempt: int | None) -> int:
    """Print what is new, time and again; the end is when the package is over, or the attempt that was asked for."""
    from pilotage.client.jobs import Jobs

    gc.enable()  # this may go on for days
    jobs, told = Jobs(connection), dict[tuple[int, str], str]()
    try:
        while True:
            # Asked before the logs are read: what came with the end is shown, too.
            over = _is_over(connection, job, package, attempt)
            found = jobs.logs(job, package, attempt=attempt)
            if attempt is not None and not found and (over or connection.resting):
                _refuse_unknown(connection, job, package, attempt)
            for log in _of_one_attempt(found, streams, attempt):
                key = (log.attempt, log.stream)
                emit([_new(told.get(key), log, heading=len(streams) > 1)])
                told[key] = log.text
            if over or failure_of(sys.stdout) is not None:
                return ExitCode.COMPLETE
            if connection.resting:
                say_to_reader(f"no service runs here: nothing more comes; go on with: pilotage attach {job}")
                return ExitCode.STOPPED
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _new(before: str | None, log: Log, *, heading: bool) -> str:
    if before is None:
        return (f"--- {log.stream} of attempt {log.attempt} ---\n" if heading else "") + log.text
    if log.text.startswith(before):
        new = log.text[len(before) :]
        return f"--- {log.stream} of attempt {log.attempt}, going on ---\n{new}" if heading and new else new
    return log.tail if log.text != before else ""  # the middle is gone: the end is what is new


def _refuse_unknown(connection: Server, job: str, package: str, attempt: int) -> None:
    """Raise where a package has no such attempt; one that wrote nothing is no fault."""
    from pilotage.client.server import path_of
    from pilotage.model.errors import PilotageError

    attempts = connection.get(path_of("jobs", job, "packages", package))["attempts"]
    known = [each["attempt"] for each in attempts]
    if attempt not in known:
        had = f"it had {max(known)}" if known else "it was not tried yet"
        raise PilotageError(f"there is no attempt {attempt}: {had}", subject=f"{job}/{package}")


def _is_over(connection: Server, job: str, package: str, attempt: int | None) -> bool:
    from pilotage.client.server import path_of
    from pilotage.model.states import FINAL_NAMES

    found = connection.get(path_of("jobs", job, "packages", package))
    if found["package"]["state"] in FINAL_NAMES:
        return True
    ended = {each["attempt"] for each in found["attempts"] if each["finished_at"] is not None or each["lost_at"]}
    return attempt in ended
