"""The commands that control jobs: kill, hold, release, retry, replicate, drop and restore."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pilotage.cli.shared.job_names import (
    find_job_to_change,
    hint_unknown_jobs,
    is_known,
    package_number,
    parse_to_change,
)
from pilotage.cli.shared.options import CONFIRMED_ABOVE, message_option, names_argument, where_options
from pilotage.cli.shared.output import emit, one_line, plural, print_message
from pilotage.cli.shared.server import (
    JobOrPackage,
    connect,
    connect_or_start,
    connect_to_read,
    json_option,
    parse_job_or_package,
    server_option,
)
from pilotage.model.exit_codes import ExitCode
from pilotage.model.states import FINAL_NAMES
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.model.exchange.operations import Accepted, AnyOperation, LineFiles, OperatedOn, OperationOn


_DONE = {
    "kill": "killed", "hold": "held", "release": "released", "restart": "restarted", "reschedule": "rescheduled",
    "replicate": "replicated", "drop": "dropped", "restore": "restored",
}  # fmt: skip
_SHOWN_MAX = 5  # removed files listed by name
_KEPT_SHOWN_MAX = 10

Precheck = Callable[["Server", "AnyOperation"], None]
"""A check before an operation is sent; it raises to prevent it."""


class OperationRequest(NamedTuple):
    """One operation to send: its job by id or name, and a function that builds it."""

    job: str
    subject: str  # as the user wrote it
    make: Callable[[Server, str], tuple[str, AnyOperation]]  # from the server and the id of the job
    precheck: Precheck | None = None


class QueryOptions(NamedTuple):
    """The values of `--where`, `--jobs` or `--packages`, and `--yes`."""

    query: str | None
    target: str
    yes: bool


class ServerOptions(NamedTuple):
    """Which server to ask, and whether to print JSON."""

    server: str | None
    token_file: str | None
    as_json: bool


@click.command()
@names_argument(name="JOB|LINE|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def kill(names: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Cancel a job, a line, a package, or everything that a query finds.

    Running attempts are stopped; outputs stay. A line is JOB/STAGE.LINE, such as JOB/1.2; packages that need its outputs
    are aborted, unless the line is dropped. With one JOB and --where, matching packages of that job are cancelled.
    """
    return _operate("kill", names, QueryOptions(query, target, more["yes"]), _server_options(more), message=message)


@click.command()
@names_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def hold(names: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Start no further attempts of a job or a package.

    Running attempts continue to their end.
    """
    return _operate("hold", names, QueryOptions(query, target, more["yes"]), _server_options(more), message=message)


@click.command()
@names_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@json_option
@server_option
def release(names: tuple[str, ...], query: str | None, target: str, **more: Any) -> int:
    """Continue held jobs or packages."""
    return _operate("release", names, QueryOptions(query, target, more["yes"]), _server_options(more))


@click.command()
@names_argument(name="JOB|PACKAGE")
@click.option("--failed", is_flag=True, help="Retry everything of a JOB that failed or was cancelled.")
@click.option("--force", is_flag=True, help="Also retry packages that are done.")
@click.option(
    "--elsewhere",
    is_flag=True,
    help="Stop the running attempts of a PACKAGE and retry it, at another site if there is one.",
)
@click.option(
    "--activity", metavar="NAME", help="Open the stopped activity NAME of a JOB again, and retry its failed packages."
)
@where_options(jobs=True)
@message_option
@json_option
@server_option
def retry(names: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Retry failed packages; on request also done or running ones.

    A failed or cancelled PACKAGE starts again with a new count of attempts; with --failed, so do all failed or cancelled
    packages of a JOB. --where QUERY retries the failed and cancelled packages that it finds; with --force, all that it
    finds. --elsewhere retries a running package. --activity retries an activity that was stopped since it could not succeed;
    --failed does so for all of them. Earlier attempts stay in the book.
    """
    if more["activity"] is not None:
        return _reopen(names, more, message, by_query=query is not None)
    where, server_options = QueryOptions(query, target, more["yes"]), _server_options(more)
    if more["elsewhere"]:
        for option, is_set in (("--failed", more["failed"]), ("--force", more["force"]), ("--jobs", target == "jobs")):
            if is_set:
                raise click.UsageError(f"--elsewhere retries running packages: leave out {option}.")
        return _operate("reschedule", names, where, server_options, message=message)
    for word in names:
        if parse_job_or_package(word).package is not None and more["failed"]:
            raise click.UsageError(
                f"{word} is a single package: write pilotage retry {word}, or use --failed with its job."
            )
    if more["force"]:
        return _operate("restart", names, where, server_options, message=message)
    for word in names:
        if parse_job_or_package(word).package is None and query is None and not more["failed"]:
            raise click.UsageError(f"{word} is a job. To retry its failed packages: pilotage retry --failed {word}")
    if query is not None and target == "packages":
        failed = "state in (ABORTED, CANCELLED)"  # done and running packages are left alone
        where = where._replace(query=failed if query.strip() == "all" else f"{query} and {failed}")
    return _operate("restart", names, where, server_options, message=message, precheck=_reject_done)


def _reopen(names: Sequence[str], more: dict[str, Any], message: str, *, by_query: bool) -> int:
    """Open a stopped activity of some jobs again."""
    for option in ("failed", "force", "elsewhere"):
        if more[option]:
            raise click.UsageError(f"--activity retries the failed packages of an activity: leave out --{option}.")
    if not more["activity"]:
        raise click.UsageError("--activity is empty: name the activity, as `pilotage status JOB` does.")
    if by_query or not names or any(parse_to_change(word).package is not None for word in names):
        raise click.UsageError("Name the job of the activity: pilotage retry JOB --activity NAME")
    from pilotage.model.exchange.operations import Restart

    made = partial(Restart, activity=more["activity"], **({"message": message} if message else {}))
    requests = [OperationRequest(word, word, partial(_on_job_or_package, None, made)) for word in names]
    return _send_each("restart", requests, _server_options(more))


# Two older commands, which `retry` with options replaces: they still work, and `--help` does not list them.


@click.command(hidden=True)
@names_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def restart(names: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Restart a package, or the failed packages of a job: the same as `pilotage retry --force`.

    A PACKAGE is restarted even if it is done; of a JOB, the failed and cancelled packages are. Earlier attempts stay in the
    book.
    """
    return _operate("restart", names, QueryOptions(query, target, more["yes"]), _server_options(more), message=message)


@click.command(hidden=True)
@names_argument(name="PACKAGE")
@where_options(jobs=False)
@json_option
@server_option
def reschedule(names: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Stop the running attempts of a package and retry it: the same as `pilotage retry --elsewhere`.

    It is retried at another site if there is one.
    """
    return _operate("reschedule", names, QueryOptions(query, "packages", more["yes"]), _server_options(more))


@click.command()
@names_argument(name="PACKAGE")
@where_options(jobs=False)
@json_option
@server_option
def replicate(names: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Start one more attempt of a running package.

    The first attempt that succeeds counts.
    """
    return _operate("replicate", names, QueryOptions(query, "packages", more["yes"]), _server_options(more))


@click.command()
@click.argument("job", metavar="JOB", required=False)
@click.argument("lines", nargs=-1, metavar="[STAGE.LINE]...")
@click.option(
    "--force", is_flag=True, help="Drop a line even if other packages have read its outputs; their outputs stay."
)
@click.option(
    "--remove-files",
    is_flag=True,
    help="Remove its outputs, except files that were changed or that other packages need.",
)
@where_options(jobs=False)
@json_option
@server_option
def drop(
    job: str | None, lines: tuple[str, ...], query: str | None, *, force: bool, remove_files: bool, **more: Any
) -> int:
    """Leave a line out of a job.

    Packages that would read its outputs run without them. If other packages have read its outputs already, dropping the line
    requires --force. Its files stay; --remove-files removes them after a confirmation, also for a line that was dropped
    before. With --where, the lines of the packages that QUERY finds are dropped.
    """
    for option, is_set in (("--force", force), ("--remove-files", remove_files)):
        if is_set and query is not None:
            raise click.UsageError(f"{option} needs lines by name; leave out --where.")
    options = {name: True for name, is_set in (("force", force), ("remove_files", remove_files)) if is_set}
    precheck = _confirm_removal if remove_files and not more["yes"] else None
    return _on_lines(
        "drop",
        job,
        lines,
        QueryOptions(query, "packages", more["yes"]),
        _server_options(more),
        options=options,
        precheck=precheck,
    )


@click.command()
@click.argument("job", metavar="JOB", required=False)
@click.argument("lines", nargs=-1, metavar="[STAGE.LINE]...")
@where_options(jobs=False)
@json_option
@server_option
def restore(job: str | None, lines: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Take a dropped line back into its job.

    This works as long as no package has started without it.
    """
    return _on_lines("restore", job, lines, QueryOptions(query, "packages", more["yes"]), _server_options(more))


def _server_options(more: dict[str, Any]) -> ServerOptions:
    return ServerOptions(more["server"], more["token_file"], more["as_json"])


def _reject_done(connection: Server, operation: AnyOperation) -> None:
    """Raise `ServerRefused` if the package is done."""
    from pilotage.client import ServerRefused
    from pilotage.client.server import path_of

    package = getattr(operation, "package", "")
    if not package:
        return
    try:
        state = connection.get(path_of("jobs", operation.job, "packages", package))["package"]["state"]
    except ServerRefused as error:
        if error.code == "unknown_job":
            raise
        return  # the operation itself will fail with the reason
    if state in ("DONE", "CLEARED"):
        subject = str(JobOrPackage(operation.job, package))
        step = f"run it again anyway: pilotage retry --force {subject}"
        raise ServerRefused(
            f"{subject} did not fail: {state}", subject="", status=409, code="package_over", next_step=step
        )


def _confirm_removal(connection: Server, operation: AnyOperation) -> None:
    """Ask for confirmation before the files of a line are removed, if it has any."""
    from pilotage.client import ServerRefused
    from pilotage.client.jobs import Jobs
    from pilotage.model.exchange.operations import Drop

    assert isinstance(operation, Drop)
    line, sizes, number = f"{operation.stage}.{operation.line}", list[int](), 0
    while True:
        number += 1
        try:
            made = Jobs(connection).output(operation.job, f"{line}.{number}")
        except ServerRefused as error:
            if error.code == "unknown_job":
                raise
            break  # that was the last package of the line; any other fault shows up in the operation itself
        sizes += [file.size_bytes for file in made.outputs]
    if sizes:
        files = f"{plural(len(sizes), 'file')} that it made, {size_text(sum(sizes))}"
        _confirm(f"drop {operation.job}/{line} and remove {files}?")


def _operate(
    kind: str,
    names: Sequence[str],
    where: QueryOptions,
    server_options: ServerOptions,
    *,
    message: str = "",
    precheck: Precheck | None = None,
) -> int:
    from pilotage.model.exchange import operations

    if where.query is not None:
        return _operate_by_query(kind, names, where, server_options, message=message)
    if not names:
        raise click.UsageError("Name a job or a package, or find them with --where QUERY.")
    made = getattr(operations, kind.capitalize())
    fields: dict[str, Any] = {"message": message} if message else {}
    requests: list[OperationRequest] = []
    for word in names:
        if kind == "kill" and (named := _named_line(word)) is not None:
            job, stage, line = named
            requests.append(
                OperationRequest(job, word, partial(_on_line, stage, line, partial(made, **fields)), precheck)
            )
            continue
        place = parse_to_change(word)
        if place.package is None and kind in ("reschedule", "replicate"):
            raise click.UsageError(f"{word!r} is a job. Name a package of it, such as {word}/1.2.1.")
        make = partial(_on_job_or_package, place.package, partial(made, **fields))
        requests.append(OperationRequest(place.job, str(place), make, precheck))
    return _send_each(kind, requests, server_options)


def _on_job_or_package(
    package: str | None, made: Callable[..., AnyOperation], connection: Server, job: str
) -> tuple[str, AnyOperation]:
    if package is None:
        return job, made(job=job)
    dotted = package_number(connection, job, package)
    return str(JobOrPackage(job, dotted)), made(job=job, package=dotted)


def _on_lines(
    kind: str,
    job: str | None,
    lines: Sequence[str],
    where: QueryOptions,
    server_options: ServerOptions,
    *,
    options: dict[str, bool] | None = None,
    precheck: Precheck | None = None,
) -> int:
    from pilotage.model.exchange import operations

    if where.query is not None:
        if lines:
            raise click.UsageError("Name lines, or find them with --where; not both.")
        return _operate_by_query(kind, [job] if job else [], where, server_options)
    if job is None or not lines:
        raise click.UsageError(f"Which line? Write: pilotage {kind} JOB STAGE.LINE")
    made = partial(getattr(operations, kind.capitalize()), **(options or {}))
    numbers = [(line, _line_of(line)) for line in lines]
    requests = [OperationRequest(job, f"{job}/{line}", partial(_on_line, *at, made), precheck) for line, at in numbers]
    return _send_each(kind, requests, server_options)


def _on_line(
    stage: int, line: int, made: Callable[..., AnyOperation], _connection: Server, job: str
) -> tuple[str, AnyOperation]:
    return f"{job}/{stage}.{line}", made(job=job, stage=stage, line=line)


def _named_line(word: str) -> tuple[str, int, int] | None:
    """Parse JOB/STAGE.LINE, such as JOB/1.2; None for any other name."""
    job, slash, rest = word.partition("/")
    parts = rest.replace("/", ".").split(".")
    if not slash or not job or len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        return None
    return job, int(parts[0]), int(parts[1])


def _line_of(text: str) -> tuple[int, int]:
    stage, dot, number = text.replace("/", ".").partition(".")
    if not dot or not stage.isdecimal() or not number.isdecimal() or not int(stage) or not int(number):
        raise click.UsageError(f"{text!r} is not a line: write STAGE.LINE, such as 1.2.")
    return int(stage), int(number)


def _connected(
    kind: str, server_options: ServerOptions, jobs: Sequence[str], where: QueryOptions | None = None
) -> Server:
    """Connect to the server; restart and release start it if it does not run, unless the book has no such job."""
    if kind not in ("restart", "release"):  # without a service there is nothing to stop
        return connect(server_options.server, server_options.token_file)
    book = connect_to_read(server_options.server, server_options.token_file)
    if book.resting and jobs and not any(is_known(book, job) for job in jobs):
        return book
    if (
        book.resting
        and where is not None
        and not _count(book, where, find_job_to_change(book, jobs[0]) if jobs else "")
    ):
        return book
    book.close()
    return connect_or_start(server_options.server, server_options.token_file)


def _send(connection: Server, request: OperationRequest) -> tuple[str, Accepted]:
    """Send the operation, for the job of this id or else of this name.

    If the service no longer runs the job, the error names the state of the job instead of calling it unknown.
    """
    from pilotage.client import ServerRefused
    from pilotage.client.jobs import Jobs

    jobs, job = Jobs(connection), request.job
    try:
        subject, operation = request.make(connection, job)
        if request.precheck is not None:
            request.precheck(connection, operation)
        return subject, jobs.operate(operation)
    except ServerRefused as error:
        if error.code != "unknown_job":
            raise
        chosen = find_job_to_change(connection, job)
        if chosen != job:
            return _send(connection, request._replace(job=chosen))
        found = jobs.job(job)
        state = found["state"]
        message = (
            f"the job {job} has ended: {state}" if state in FINAL_NAMES else f"the job {job} is not run by this service"
        )
        message += ", its outputs were handed over" if state == "CLEARED" else ""
        step = ""
        if state in FINAL_NAMES:
            bad = found["failed"] or found["counts"]["cancelled"]
            again = f"--failed {job}" if bad else f"--force {job}/1.2.1"
            step = f"retry {'what failed' if bad else 'a package'} of it with: pilotage retry {again}"
        raise ServerRefused(message, subject="", status=409, code="job_over", next_step=step) from error


def _send_each(kind: str, requests: Sequence[OperationRequest], server_options: ServerOptions) -> int:
    """Send operations one after the other; one that is rejected is named, and the others are still sent."""
    from msgspec import to_builtins

    from pilotage.client import ServerRefused

    done: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    with _connected(kind, server_options, [each.job for each in requests]) as connection:
        for each in requests:
            subject = each.subject
            try:
                subject, accepted = _send(connection, each)
            except ServerRefused as error:
                if len(requests) == 1 and not server_options.as_json:
                    raise
                refused.append({"subject": subject, "code": error.code, "message": error.what})
                if not server_options.as_json:
                    print_message(f"error: {subject}: {error}")
                continue
            result: dict[str, Any] = {"subject": subject, "operation": accepted.operation, "events": accepted.events}
            done.append(result | ({"files": to_builtins(accepted.files)} if accepted.files is not None else {}))
            if not server_options.as_json:
                emit([f"{_DONE[kind]} {one_line(subject)}\n"])
                emit([f"{line}\n" for line in _file_lines(subject, accepted.files)])
    if server_options.as_json:
        _emit_json({"operation": kind, "done": done, "refused": refused})
    return ExitCode.BAD_INPUT if refused else ExitCode.COMPLETE


def _file_lines(subject: str, files: LineFiles | None) -> Iterator[str]:
    """Lines that tell which files of a dropped line were removed and which were kept."""
    if files is None:
        return
    if files.removed:
        shown = ", ".join(map(one_line, files.removed_names[:_SHOWN_MAX]))
        more = f" and {files.removed - _SHOWN_MAX:,} more" if files.removed > _SHOWN_MAX else ""
        yield f"removed {plural(files.removed, 'file')}, {size_text(files.removed_bytes)}: {shown}{more}"
    if files.gone:
        yield f"{plural(files.gone, 'file')} of it {'was' if files.gone == 1 else 'were'} already gone"
    for kept in files.kept_files[:_KEPT_SHOWN_MAX]:
        yield f"kept {one_line(kept.name)}: {one_line(kept.message)}"
    if not files.kept_files and files.kept:
        job, _, line = subject.partition("/")
        stays = "stays" if files.kept == 1 else "stay"
        yield f"{plural(files.kept, 'file')} that it made {stays}; remove with: pilotage drop --remove-files {job} {line}"
    elif files.kept > _KEPT_SHOWN_MAX:
        yield f"and {files.kept - _KEPT_SHOWN_MAX:,} more were kept; --json and the book list them"


def _operate_by_query(
    kind: str, names: Sequence[str], where: QueryOptions, server_options: ServerOptions, *, message: str = ""
) -> int:
    from pilotage.client.jobs import Jobs
    from pilotage.model.exchange.operations import OperatedOn, OperationOn

    assert where.query is not None
    if len(names) > 1 or (names and parse_job_or_package(names[0]).package is not None):
        raise click.UsageError("With --where, name at most one JOB: QUERY then searches only that job.")
    named = names[0] if names else ""
    if named and where.target == "jobs":
        raise click.UsageError(f"--jobs finds whole jobs: name {named} without --where, or use --packages.")
    with _connected(kind, server_options, names, where) as connection:
        job = find_job_to_change(connection, named) if named else ""
        operation = OperationOn(operation=kind, where=where.query, target=where.target, job=job, message=message)
        count = _count(connection, where, job)
        if count > CONFIRMED_ABOVE and not where.yes:
            _confirm(f"{kind} {plural(count, where.target.removesuffix('s'))}?")
        none = OperatedOn(found=0, done=0, refused=0, told=())
        answer = none if connection.resting and not count else Jobs(connection).operate_on(operation)
        code = _tell(operation, answer, server_options)
        if not answer.found:
            hint_unknown_jobs([connection], where.query)
    return code


def _count(connection: Server, where: QueryOptions, job: str) -> int:
    from pilotage.client.server import path_of

    asked = {"query": where.query} if where.target == "jobs" else {"query": where.query, "job": job or None}
    count: int = connection.get(path_of("counts", where.target), asked)["count"]
    return count


def _confirm(question: str) -> None:
    asked = question[:1].upper() + question[1:]  # capitalize() would lower the names
    if not sys.stdin.isatty():
        raise click.UsageError(f"{asked} There is no terminal to ask on: use --yes.")
    click.confirm(asked, abort=True, err=True)


def _tell(operation: OperationOn, answer: OperatedOn, server_options: ServerOptions) -> int:
    noun = "line" if operation.operation in ("drop", "restore") else operation.target.removesuffix("s")
    if server_options.as_json:
        import msgspec

        _emit_json({"operation": operation.operation, "where": operation.where, **msgspec.to_builtins(answer)})
    else:
        emit([f"{_DONE[operation.operation]} {plural(answer.done, noun)} of {answer.found:,} found\n"])
        for each in answer.told:
            print_message(f"not {one_line(each.subject)}: {each.message}")
        if answer.refused > len(answer.told):
            print_message(f"and {answer.refused - len(answer.told):,} more were rejected")
    return ExitCode.BAD_INPUT if answer.refused else ExitCode.COMPLETE


def _emit_json(answer: dict[str, Any]) -> None:
    from pilotage import app

    emit([app.json_text(answer)])
