"""`pilotage logs`: the standard output and standard error of packages."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.job_names import find_package_to_show, find_to_show
from pilotage.cli.shared.output import emit, one_line, plural, print_message
from pilotage.cli.shared.server import connect_to_read, json_option, server_option
from pilotage.cli.shared.streams import failure_of
from pilotage.model.exit_codes import ExitCode
from pilotage.model.states import FINAL_NAMES

if TYPE_CHECKING:
    from pilotage.app.jobs.watch import JobWatcher
    from pilotage.client import Server
    from pilotage.client.jobs import Log

LOOK_SECONDS = 0.5
PACKAGES_READ_MAX = 100
GROUPS_SHOWN_MAX = 10
"""Limits for the logs of a whole job: packages read, and different logs shown."""
_FAILED = "state=ABORTED"
STREAMS = ("pre-stdout", "pre-stderr", "stdout", "stderr", "post-stdout", "post-stderr")


@click.command()
@click.argument("package", metavar="[PACKAGE]", required=False)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Show attempt N; without it, the last one.")
@click.option("--stdout", "only", flag_value="stdout", help="Show standard output alone, with nothing added.")
@click.option("--stderr", "only", flag_value="stderr", help="Show standard error alone, with nothing added.")
@click.option("--follow", is_flag=True, help="Follow the log until the attempt ends.")
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

    PACKAGE is JOB/1.2.1, JOB/001/002/001 or JOB/NAME, where JOB is an id, or a name for the newest job of that name; 1.2.1
    alone is a package of the last job. For a JOB, the logs of its failed packages are shown, or of all if none failed; equal
    logs are shown once, and of many only the first. Of a very long log, only the beginning and the end are kept.
    """
    from pilotage.client.jobs import Jobs
    from pilotage.client.server import path_of

    if follow and as_json:
        raise click.UsageError("--follow and --json exclude each other.")
    streams = (only,) if only is not None else STREAMS
    with connect_to_read(server, token_file) as connection:
        where = find_to_show(connection, package)
        if where.package is None and not follow and attempt is None:
            return _show_job_logs(connection, where.job, streams, only=only, as_json=as_json)
        where, dotted = find_package_to_show(connection, str(where))
        if follow:
            return _follow(connection, where.job, dotted, streams, attempt)
        found = Jobs(connection).logs(where.job, dotted, attempt=attempt)
        detail: dict[str, Any] = {}
        if not as_json or (attempt is not None and not found):
            detail = connection.get(path_of("jobs", where.job, "packages", dotted))
        if attempt is not None and not found:
            _check_attempt(detail, attempt)
    if as_json:
        import msgspec

        from pilotage import app

        kept = [msgspec.to_builtins(each) for each in found if each.stream in streams]
        emit([app.json_text({"job": where.job, "package": dotted, "logs": kept})])
        return ExitCode.COMPLETE
    chosen = _logs_of_attempt(found, streams, attempt)
    for log in chosen:
        if only is None:
            emit([f"--- {log.stream} of attempt {log.attempt} ---\n"])
        emit([log.text if only is not None or log.text.endswith("\n") or not log.text else f"{log.text}\n"])
    failure = _failure_of(detail, attempt)
    if not chosen:
        what = f"attempt {failure[0]} wrote nothing" if failure else "no log was written yet, or it was not kept"
        print_message(f"{what}; see: pilotage explain {where}")
    if failure and only is None:
        print_message(failure[1])
    return ExitCode.COMPLETE


def print_logs(following: JobWatcher) -> None:
    """Print the logs of all packages of a job in order, to standard output and standard error as they were written."""
    job, cursor = following.job, None
    while True:
        page = following.ask(partial(_packages_page, job=job, cursor=cursor))
        for each in page["packages"]:
            found = following.ask(partial(_package_logs, job=job, package=each["id"]))
            for log in _logs_of_attempt(found, STREAMS, None):
                if log.stream == "stdout":
                    emit([log.text])
                elif log.text:
                    print_message(log.text.rstrip("\n"))
        cursor = page["next"]
        if cursor is None:
            return


def _packages_page(server: Server, *, job: str, cursor: str | None) -> dict[str, Any]:
    from pilotage.client.server import path_of

    page: dict[str, Any] = server.get(path_of("jobs", job, "packages"), {"cursor": cursor, "limit": 1000})
    return page


def _package_logs(server: Server, *, job: str, package: str) -> Sequence[Log]:
    from pilotage.client.jobs import Jobs

    return Jobs(server).logs(job, package)


def _show_job_logs(connection: Server, job: str, streams: Sequence[str], *, only: str | None, as_json: bool) -> int:
    """Show the logs of a job's failed packages, or of all if none failed; packages with equal logs form one group."""
    from pilotage.client.jobs import Jobs
    from pilotage.client.server import path_of

    asked: dict[str, str | int | None] = {"query": _FAILED, "limit": PACKAGES_READ_MAX, "words": 1}
    page = connection.get(path_of("jobs", job, "packages"), asked)
    if not page["packages"]:
        page = connection.get(path_of("jobs", job, "packages"), asked | {"query": ""})
    groups: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
    for each in page["packages"]:
        found = _logs_of_attempt(Jobs(connection).logs(job, each["id"]), streams, None)
        groups.setdefault(tuple((log.stream, log.text) for log in found), []).append(each)
    if as_json:
        from pilotage import app

        report = [
            {"packages": [each["id"] for each in alike], "logs": [{"stream": s, "text": t} for s, t in texts]}
            for texts, alike in groups.items()
        ]
        emit([app.json_text({"job": job, "groups": report, "more": page["next"] is not None})])
        return ExitCode.COMPLETE
    written = {texts: alike for texts, alike in groups.items() if texts}
    for texts, alike in list(written.items())[:GROUPS_SHOWN_MAX]:
        if only is None or len(written) > 1:
            emit([f"=== {_heading(job, alike)} ===\n"])
        for stream, text in texts:
            head = f"--- {stream} ---\n" if only is None else ""
            emit([head, text if text.endswith("\n") or not text else f"{text}\n"])
    shown = sum(map(len, list(written.values())[:GROUPS_SHOWN_MAX]))
    if not written:
        print_message(f"no log was written yet, or it was not kept; see: pilotage status {job}")
    elif page["next"] is not None or shown < sum(map(len, written.values())):
        print_message(f"there are more; name a package: pilotage logs {job}/1.2.1; see: pilotage query job={job}")
    return ExitCode.COMPLETE


def _heading(job: str, alike: Sequence[dict[str, Any]]) -> str:
    import msgspec

    from pilotage.cli.shared.progress import package_label
    from pilotage.model.answers import PackageWords

    first = alike[0]
    words = msgspec.convert(first.get("words"), PackageWords | None)
    others = f" and {plural(len(alike) - 1, 'other')} that wrote the same" if len(alike) > 1 else ""
    return one_line(f"{package_label(job, first['id'], words)}{others}: {first['state']}")


def _failure_of(detail: dict[str, Any], attempt: int | None) -> tuple[int, str] | None:
    """The failed attempt, which is the given one or the last, and a line on how it failed."""
    found = [each for each in detail["attempts"] if attempt in (None, each["attempt"])]
    last = found[-1] if found else None
    if last is None or last["exit_code"] in (None, "SUCCESS"):
        return None
    message = one_line((last["exit_message"] or "").partition("\n")[0])
    again = "; it will be retried" if attempt is None and detail["package"]["state"] not in FINAL_NAMES else ""
    return last[
        "attempt"
    ], f"attempt {last['attempt']} failed ({last['reason'] or last['exit_code']}): {message}{again}"


def _logs_of_attempt(found: Sequence[Log], streams: Sequence[str], attempt: int | None) -> list[Log]:
    number = attempt if attempt is not None else max((each.attempt for each in found), default=0)
    return [each for name in streams for each in found if each.attempt == number and each.stream == name]


def _follow(connection: Server, job: str, package: str, streams: Sequence[str], attempt: int | None) -> int:
    """Print new log text as it appears, until the package ends, or the given attempt."""
    from pilotage.client.jobs import Jobs
    from pilotage.client.server import path_of

    gc.enable()  # this may run for days
    jobs, shown = Jobs(connection), dict[tuple[int, str], str]()
    try:
        while True:
            # Checked before the logs are read, so that text written at the very end is shown, too.
            over = _is_over(connection, job, package, attempt)
            found = jobs.logs(job, package, attempt=attempt)
            if attempt is not None and not found and (over or connection.resting):
                _check_attempt(connection.get(path_of("jobs", job, "packages", package)), attempt)
            for log in _logs_of_attempt(found, streams, attempt):
                key = (log.attempt, log.stream)
                emit([_new(shown.get(key), log, heading=len(streams) > 1)])
                shown[key] = log.text
            if over or failure_of(sys.stdout) is not None:
                return ExitCode.COMPLETE
            if connection.resting:
                print_message(
                    f"no service runs here, so no more output will come; continue the job with: pilotage attach {job}"
                )
                return ExitCode.STOPPED
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _new(before: str | None, log: Log, *, heading: bool) -> str:
    if before is None:
        return (f"--- {log.stream} of attempt {log.attempt} ---\n" if heading else "") + log.text
    if log.text.startswith(before):
        new = log.text[len(before) :]
        return f"--- {log.stream} of attempt {log.attempt}, continued ---\n{new}" if heading and new else new
    return log.tail if log.text != before else ""  # the middle was discarded: the tail is the new text


def _check_attempt(detail: dict[str, Any], attempt: int) -> None:
    """Raise if a package has no attempt of this number; an attempt without logs is no error."""
    from pilotage.model.errors import PilotageError

    known = [each["attempt"] for each in detail["attempts"]]
    if attempt not in known:
        had = f"the last one is {max(known)}" if known else "the package has not run yet"
        subject = f"{detail['package']['job']}/{detail['package']['id']}"
        raise PilotageError(f"there is no attempt {attempt}: {had}", subject=subject)


def _is_over(connection: Server, job: str, package: str, attempt: int | None) -> bool:
    from pilotage.client.server import path_of

    found = connection.get(path_of("jobs", job, "packages", package))
    if found["package"]["state"] in FINAL_NAMES:
        return True
    ended = {each["attempt"] for each in found["attempts"] if each["finished_at"] is not None or each["lost_at"]}
    return attempt in ended
