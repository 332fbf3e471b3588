"""`pilotage submit`, `attach` and `watch`: submit a job without waiting, return to it, or watch it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.job_run import job_options
from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import chosen_format, format_option, parameter_options, target_arguments
from pilotage.cli.shared.output import emit, one_line, plural, print_message
from pilotage.cli.shared.server import connect, json_option, server_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.app.jobs.submit import RunSettings
    from pilotage.client import Server


@click.command()
@target_arguments
@format_option
@parameter_options
@job_options
@json_option
@server_option
def submit(
    words: tuple[str, ...],
    source_format: str,
    server: str | None,
    token_file: str | None,
    *,
    parameters: dict[str, str],
    how: RunSettings,
    as_json: bool,
) -> None:
    """Submit a document to a service and return at once.

    FILE is a document; without it, the document of the current folder is submitted. TARGET is a file that the document
    makes, or a quoted pattern of such files: only the packages that it needs run. `submit` prints the id of the job. Results
    appear in the folder of the document. A service that does not see this folder gets every input by its content, unless it has
    it already, and keeps the results: fetch them with `pilotage outputs JOB --to DIR`. An interrupted `submit` goes on when it
    is called again.
    """
    import_numpy_quickly()
    from pilotage.app.jobs.submit import submit_anywhere
    from pilotage.app.jobs.targets import source_for

    with connect(server, token_file) as connection:
        source = source_for(
            words, source_format=chosen_format(source_format), schemes=None, parameters=parameters
        )  # the stores of that service count
        submitted = submit_anywhere(
            source, source.load(), connection, how, report=lambda each: print_message(one_line(each.text))
        )
        answer, sent = submitted.answer, submitted.sent
    if as_json:
        import msgspec

        from pilotage import app

        report = {"job": "", "packages": 0, "adopted": 0, "resumed": False, **msgspec.to_builtins(answer)}
        if sent is not None:
            report["sent"] = {"files": sent.sent, "bytes": sent.sent_bytes, "there": sent.there}
        emit([app.json_text(report)])
        return
    if not answer.job:
        print_message("nothing to do: all outputs exist already; run it anyway with --fresh")
        return
    emit([f"{one_line(answer.job)}\n"])
    there = f", {answer.adopted:,} of them there already" if answer.adopted else ""
    goes_on = "it was submitted before and continues; " if answer.resumed else ""
    print_message(f"{goes_on}{plural(answer.packages, 'package')}{there}; see: pilotage watch {one_line(answer.job)}")
    if sent is not None:
        known = f", and has {plural(sent.there, 'file')} already" if sent.there else ""
        print_message(
            f"the service does not see this folder: it was sent {plural(sent.sent, 'file')}, {size_text(sent.sent_bytes)}{known};"
            f" fetch the results with: pilotage outputs {one_line(answer.job)} --to DIR"
        )


# `pilotage attach`: show a job that runs without a terminal, as its `run` did.


@click.command()
@click.argument("job", required=False)
@json_option
def attach(job: str | None, *, as_json: bool) -> int:
    """Reattach to a job that runs without a terminal.

    The job is shown until it ends, as by `pilotage run`, and Ctrl-C stops it. A stopped job continues. JOB is an id, or a name
    for the newest job of that name; without JOB, the last job that has not ended.
    """
    gc.enable()
    from pilotage.app.jobs.watch import JobWatcher, is_over
    from pilotage.app.service.offline import server_or_book
    from pilotage.app.service.session import Session, home_of, nearest_address
    from pilotage.cli.shared.job_run import follow_job, signals_raised, watch_to_end
    from pilotage.client import NoServer

    with signals_raised():
        folder, address = Path.cwd(), nearest_address(Path.cwd())
        if address is None:
            raise NoServer
        if not address.runs:
            folder = home_of(Path(address.origin))
            # Look into the book first: no service is started for a job that has ended or is unknown.
            with server_or_book(address) as book:
                if book.resting:
                    following = JobWatcher(lambda: book, _chosen(book, job))
                    if is_over(following.progress()):
                        return watch_to_end(following, as_json=as_json)
        session = Session(folder)
        session.join()
        with session.server() as server:
            chosen = _chosen(server, job)
        session.go_on(chosen)
        return follow_job(chosen, session, as_json=as_json)


def _chosen(server: Server, job: str | None) -> str:
    from pilotage.cli.shared.job_names import find_job_to_show, last_job

    return find_job_to_show(server, job) if job else last_job(server)


# `pilotage watch`: the progress of a job until it ends.


@click.command()
@click.argument("job", required=False)
@json_option
@server_option
def watch(job: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> int:
    """Show the progress of a job until it ends.

    Ctrl-C ends this command, not the job. The exit code is that of the job: 0 complete, 1 packages failed. JOB is an id, or a
    name for the newest job of that name; without JOB, the last job that has not ended.
    """
    gc.enable()
    from pilotage.app.jobs.watch import JobWatcher
    from pilotage.cli.shared.job_names import find_job_to_show, last_job
    from pilotage.cli.shared.job_run import watch_to_end
    from pilotage.cli.shared.server import connect, connect_to_read
    from pilotage.client.jobs import Jobs
    from pilotage.model.states import FINAL_NAMES

    with connect_to_read(server, token_file) as connection:
        chosen = find_job_to_show(connection, job) if job else last_job(connection)
        # A job that has ended is shown from the book; an unfinished one that no service runs would be waited for in vain.
        if connection.resting and Jobs(connection).progress(chosen).state not in FINAL_NAMES:
            connect(server, token_file).close()
    following = JobWatcher(lambda: connect_to_read(server, token_file), chosen)
    try:
        return watch_to_end(following, as_json=as_json)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        following.close()
