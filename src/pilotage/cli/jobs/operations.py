"""The commands that steer jobs: kill, hold, release, retry, replicate, drop and restore."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pilotage.cli.shared.job_names import hint_at_ids, is_known, package_named, steered_job, steered_place
from pilotage.cli.shared.output import emit, one_line, plural, say_to_reader
from pilotage.cli.shared.server import Place, connect, connect_to_go_on, json_option, look, place_of, server_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.states import FINAL_NAMES
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.model.exchange.operations import Accepted, AnyOperation, LineFiles, OperatedOn, OperationOn


# Arguments of the commands that steer jobs: names, or a query in their place, and why.

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ASKED_ABOVE = 100
"""More than so many at once are confirmed first."""


def where_options(*, jobs: bool) -> Callable[[Decorated], Decorated]:
    """`--where`, which takes the place of names; `--jobs` where whole jobs can be meant."""

    def decorate(command: Decorated) -> Decorated:
        command = click.option(
            "--yes", is_flag=True, help=f"Do not ask for confirmation, even for more than {ASKED_ABOVE}."
        )(command)
        if jobs:
            command = click.option("--jobs", "target", flag_value="jobs", help="QUERY finds whole jobs.")(command)
            command = click.option(
                "--packages",
                "target",
                flag_value="packages",
                default="packages",
                help="QUERY finds packages. [default]",
            )(command)
        return click.option(
            "--where",
            "query",
            metavar="QUERY",
            help="Take everything that QUERY finds, such as 'state=RUNNING and site=lyon'.",
        )(command)

    return decorate


def message_option(command: Decorated) -> Decorated:
    """`--message`: for the book."""
    return click.option("--message", default="", metavar="TEXT", help="Record TEXT in the book as the reason.")(command)


def places_argument(*, name: str) -> Callable[[Decorated], Decorated]:
    """Jobs or packages by name."""
    return click.argument("places", nargs=-1, metavar=f"[{name}]...")


_DONE = {
    "kill": "killed", "hold": "held", "release": "released", "restart": "restarted", "reschedule": "rescheduled",
    "replicate": "replicated", "drop": "dropped", "restore": "restored",
}  # fmt: skip
_SHOWN_MAX = 5  # names of removed files
_KEPT_SHOWN_MAX = 10

Before = Callable[["Server", "AnyOperation"], None]
"""What is looked at before an operation is asked for; it may refuse that."""


class Wanted(NamedTuple):
    """The id or the name of a job, and what is asked for it: what that is about, and the operation."""

    job: str
    about: str  # as it was written
    make: Callable[[Server, str], tuple[str, AnyOperation]]  # of the server and the id of the job
    before: Before | None = None


class Where(NamedTuple):
    """What `--where` and its companions say."""

    query: str | None
    target: str
    yes: bool


class Side(NamedTuple):
    """Which server, and how the answer is shown."""

    server: str | None
    token_file: str | None
    as_json: bool


@click.command()
@places_argument(name="JOB|LINE|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def kill(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Cancel a job, a line, a package, or everything that a query finds.

    Running attempts are stopped; outputs stay. A line is JOB/STAGE.LINE, such as JOB/1.2; packages that need its outputs
    are given up, unless the line is dropped. With one JOB and --where, packages of that job are cancelled.
    """
    return _operate("kill", places, Where(query, target, more["yes"]), _side(more), message=message)


@click.command()
@places_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def hold(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Start no further attempts of a job or a package.

    Running attempts go on to their end.
    """
    return _operate("hold", places, Where(query, target, more["yes"]), _side(more), message=message)


@click.command()
@places_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@json_option
@server_option
def release(places: tuple[str, ...], query: str | None, target: str, **more: Any) -> int:
    """Continue held jobs or packages."""
    return _operate("release", places, Where(query, target, more["yes"]), _side(more))


@click.command()
@places_argument(name="JOB|PACKAGE")
@click.option("--failed", is_flag=True, help="Retry everything of a JOB that failed or was cancelled.")
@click.option("--force", is_flag=True, help="Retry packages also where they are done.")
@click.option(
    "--elsewhere",
    is_flag=True,
    help="Stop the running attempts of a PACKAGE and retry it, at another site if there is one.",
)
@where_options(jobs=True)
@message_option
@json_option
@server_option
def retry(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Retry failed packages; on request also done or running ones.

    A PACKAGE that failed or was cancelled is begun anew, with a fresh count of attempts; so is, with --failed, everything
    of a JOB that did. --where QUERY retries those of the packages it finds that failed or were cancelled, with --force all
    of them. A package that runs is retried with --elsewhere. What was made before stays in the book.
    """
    where, side = Where(query, target, more["yes"]), _side(more)
    if more["elsewhere"]:
        for option, is_set in (("--failed", more["failed"]), ("--force", more["force"]), ("--jobs", target == "jobs")):
            if is_set:
                raise click.UsageError(f"--elsewhere retries packages that run: leave {option} out.")
        return _operate("reschedule", places, where, side, message=message)
    for word in places:
        if place_of(word).package is not None and more["failed"]:
            raise click.UsageError(f"{word} is one package: write pilotage retry {word}, or --failed with its job.")
    if more["force"]:
        return _operate("restart", places, where, side, message=message)
    for word in places:
        if place_of(word).package is None and query is None and not more["failed"]:
            raise click.UsageError(f"{word} is a job. To retry all that failed of it: pilotage retry --failed {word}")
    if query is not None and target == "packages":
        failed = "state in (ABORTED, CANCELLED)"  # what is well, or under way, is not touched
        where = where._replace(query=failed if query.strip() == "all" else f"{query} and {failed}")
    return _operate("restart", places, where, side, message=message, before=_refuse_done)


# Two words from before `retry` had its options: they do the same as ever, and `--help` does not list them.


@click.command(hidden=True)
@places_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def restart(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Begin a package, or all that failed of a job, anew: the same as `pilotage retry --force`.

    Of a JOB, everything that failed or was cancelled; a PACKAGE also where it is done. What was made before stays in
    the book.
    """
    return _operate("restart", places, Where(query, target, more["yes"]), _side(more), message=message)


@click.command(hidden=True)
@places_argument(name="PACKAGE")
@where_options(jobs=False)
@json_option
@server_option
def reschedule(places: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Stop the running attempts of a package and retry it: the same as `pilotage retry --elsewhere`.

    It is retried at another site if there is one.
    """
    return _operate("reschedule", places, Where(query, "packages", more["yes"]), _side(more))


@click.command()
@places_argument(name="PACKAGE")
@where_options(jobs=False)
@json_option
@server_option
def replicate(places: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Start one more attempt of a running package.

    The first attempt that succeeds counts.
    """
    return _operate("replicate", places, Where(query, "packages", more["yes"]), _side(more))


@click.command()
@click.argument("job", metavar="JOB", required=False)
@click.argument("lines", nargs=-1, metavar="[STAGE.LINE]...")
@click.option("--force", is_flag=True, help="Drop a line also where other packages have read its outputs; theirs stay.")
@click.option(
    "--remove-files", is_flag=True, help="Remove its outputs, unless they were changed, or others have or read them."
)
@where_options(jobs=False)
@json_option
@server_option
def drop(
    job: str | None, lines: tuple[str, ...], query: str | None, *, force: bool, remove_files: bool, **more: Any
) -> int:
    """Leave a line out of a job.

    Its outputs are left out of every list of inputs, too. A line whose outputs other packages have read is refused without
    --force. Its files stay, unless --remove-files removes them, after a question; also those of a line that was dropped
    before. With --where, the lines of the packages that QUERY finds are dropped.
    """
    for option, is_set in (("--force", force), ("--remove-files", remove_files)):
        if is_set and query is not None:
            raise click.UsageError(f"{option} is for lines that are named, not for those that --where finds.")
    options = {name: True for name, is_set in (("force", force), ("remove_files", remove_files)) if is_set}
    before = _ask_about_files if remove_files and not more["yes"] else None
    return _on_lines(
        "drop", job, lines, Where(query, "packages", more["yes"]), _side(more), options=options, before=before
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
    return _on_lines("restore", job, lines, Where(query, "packages", more["yes"]), _side(more))


def _side(more: dict[str, Any]) -> Side:
    return Side(more["server"], more["token_file"], more["as_json"])


def _refuse_done(connection: Server, operation: AnyOperation) -> None:
    """Raise `ServerRefused` where a package is done: nothing of it failed."""
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
        return  # who is asked for the operation says why
    if state in ("DONE", "CLEARED"):
        subject = str(Place(operation.job, package))
        step = f"run it again all the same: pilotage retry --force {subject}"
        raise ServerRefused(
            f"{subject} did not fail: {state}", subject="", status=409, code="package_over", next_step=step
        )


def _ask_about_files(connection: Server, operation: AnyOperation) -> None:
    """Ask before files of a line are removed; where it made none, there is nothing to ask."""
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
            break  # that was the last package of the line; who is asked for the operation says what else is wrong
        sizes += [file.size_bytes for file in made.outputs]
    if sizes:
        files = f"{plural(len(sizes), 'file')} that it made, {size_text(sum(sizes))}"
        _confirm(f"drop {operation.job}/{line} and remove {files}?")


def _operate(
    kind: str,
    places: Sequence[str],
    where: Where,
    side: Side,
    *,
    message: str = "",
    before: Before | None = None,
) -> int:
    from pilotage.model.exchange import operations

    if where.query is not None:
        return _on_all(kind, places, where, side, message=message)
    if not places:
        raise click.UsageError("Name a job or a package, or find them with --where QUERY.")
    made = getattr(operations, kind.capitalize())
    fields: dict[str, Any] = {"message": message} if message else {}
    wanted: list[Wanted] = []
    for word in places:
        if kind == "kill" and (named := _named_line(word)) is not None:
            job, stage, line = named
            wanted.append(Wanted(job, word, partial(_on_line, stage, line, partial(made, **fields)), before))
            continue
        place = steered_place(word)
        if place.package is None and kind in ("reschedule", "replicate"):
            raise click.UsageError(f"{word!r} is a job: which package of it? Write {word}/1.2.1.")
        make = partial(_on_place, place.package, partial(made, **fields))
        wanted.append(Wanted(place.job, str(place), make, before))
    return _on_each(kind, wanted, side)


def _on_place(
    package: str | None, made: Callable[..., AnyOperation], connection: Server, job: str
) -> tuple[str, AnyOperation]:
    if package is None:
        return job, made(job=job)
    dotted = package_named(connection, job, package)
    return str(Place(job, dotted)), made(job=job, package=dotted)


def _on_lines(
    kind: str,
    job: str | None,
    lines: Sequence[str],
    where: Where,
    side: Side,
    *,
    options: dict[str, bool] | None = None,
    before: Before | None = None,
) -> int:
    from pilotage.model.exchange import operations

    if where.query is not None:
        if lines:
            raise click.UsageError("Name lines, or find them with --where; not both.")
        return _on_all(kind, [job] if job else [], where, side)
    if job is None or not lines:
        raise click.UsageError(f"Which line? Write: pilotage {kind} JOB STAGE.LINE")
    made = partial(getattr(operations, kind.capitalize()), **(options or {}))
    places = [(line, _line_of(line)) for line in lines]
    wanted = [Wanted(job, f"{job}/{line}", partial(_on_line, *at, made), before) for line, at in places]
    return _on_each(kind, wanted, side)


def _on_line(
    stage: int, line: int, made: Callable[..., AnyOperation], _connection: Server, job: str
) -> tuple[str, AnyOperation]:
    return f"{job}/{stage}.{line}", made(job=job, stage=stage, line=line)


def _named_line(word: str) -> tuple[str, int, int] | None:
    """The job, the stage and the line that a word such as JOB/1.2 names; None where it names something else."""
    job, slash, rest = word.partition("/")
    parts = rest.replace("/", ".").split(".")
    if not slash or not job or len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        return None
    return job, int(parts[0]), int(parts[1])


def _line_of(text: str) -> tuple[int, int]:
    stage, dot, number = text.replace("/", ".").partition(".")
    if not dot or not stage.isdecimal() or not number.isdecimal() or not int(stage) or not int(number):
        raise click.UsageError(f"{text!r} is no line: write STAGE.LINE, such as 1.2.")
    return int(stage), int(number)


def _connected(kind: str, side: Side, jobs: Sequence[str], where: Where | None = None) -> Server:
    """The server; what begins something needs one that runs, unless the book knows nothing of it, and says so itself."""
    if kind not in ("restart", "release"):  # what stops something finds nothing to stop without one
        return connect(side.server, side.token_file)
    book = look(side.server, side.token_file)
    if book.resting and jobs and not any(is_known(book, job) for job in jobs):
        return book
    if book.resting and where is not None and not _count(book, where, steered_job(book, jobs[0]) if jobs else ""):
        return book
    book.close()
    return connect_to_go_on(side.server, side.token_file)


def _operated(connection: Server, wanted: Wanted) -> tuple[str, Accepted]:
    """Ask for it: of the job of this id, or, where there is none, of the one that is meant by its name.

    Of a job that the service has put away, what became of it is said instead of that it is unknown.
    """
    from pilotage.client import ServerRefused
    from pilotage.client.jobs import Jobs

    jobs, job = Jobs(connection), wanted.job
    try:
        subject, operation = wanted.make(connection, job)
        if wanted.before is not None:
            wanted.before(connection, operation)
        return subject, jobs.operate(operation)
    except ServerRefused as error:
        if error.code != "unknown_job":
            raise
        chosen = steered_job(connection, job)
        if chosen != job:
            return _operated(connection, wanted._replace(job=chosen))
        found = jobs.job(job)
        state = found["state"]
        told = (
            f"the job {job} is over: {state}" if state in FINAL_NAMES else f"the job {job} is not run by this service"
        )
        told += ", its results were taken over" if state == "CLEARED" else ""
        step = ""
        if state in FINAL_NAMES:
            bad = found["failed"] or found["counts"]["cancelled"]
            again = f"--failed {job}" if bad else f"--force {job}/1.2.1"
            step = f"retry {'what failed' if bad else 'a package'} of it with: pilotage retry {again}"
        raise ServerRefused(told, subject="", status=409, code="job_over", next_step=step) from error


def _on_each(kind: str, wanted: Sequence[Wanted], side: Side) -> int:
    """One after the other; one that is refused is named, and the others are done all the same."""
    from msgspec import to_builtins

    from pilotage.client import ServerRefused

    done: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    with _connected(kind, side, [each.job for each in wanted]) as connection:
        for each in wanted:
            subject = each.about
            try:
                subject, accepted = _operated(connection, each)
            except ServerRefused as error:
                if len(wanted) == 1 and not side.as_json:
                    raise
                refused.append({"subject": subject, "code": error.code, "message": error.what})
                if not side.as_json:
                    say_to_reader(f"error: {subject}: {error}")
                continue
            told: dict[str, Any] = {"subject": subject, "operation": accepted.operation, "events": accepted.events}
            done.append(told | ({"files": to_builtins(accepted.files)} if accepted.files is not None else {}))
            if not side.as_json:
                emit([f"{_DONE[kind]} {one_line(subject)}\n"])
                emit([f"{line}\n" for line in _about_files(subject, accepted.files)])
    if side.as_json:
        _emit_json({"operation": kind, "done": done, "refused": refused})
    return ExitCode.BAD_INPUT if refused else ExitCode.COMPLETE


def _about_files(subject: str, files: LineFiles | None) -> Iterator[str]:
    """What became of the files of a line, in lines."""
    if files is None:
        return
    if files.removed:
        shown = ", ".join(map(one_line, files.removed_names[:_SHOWN_MAX]))
        more = f" and {files.removed - _SHOWN_MAX:,} more" if files.removed > _SHOWN_MAX else ""
        yield f"removed {plural(files.removed, 'file')}, {size_text(files.removed_bytes)}: {shown}{more}"
    if files.gone:
        yield f"{plural(files.gone, 'file')} of it {'was' if files.gone == 1 else 'were'} not there any more"
    for kept in files.kept_files[:_KEPT_SHOWN_MAX]:
        yield f"kept {one_line(kept.name)}: {one_line(kept.message)}"
    if not files.kept_files and files.kept:
        job, _, line = subject.partition("/")
        stays = "stays" if files.kept == 1 else "stay"
        yield f"{plural(files.kept, 'file')} that it made {stays}; to remove: pilotage drop --remove-files {job} {line}"
    elif files.kept > _KEPT_SHOWN_MAX:
        yield f"and {files.kept - _KEPT_SHOWN_MAX:,} more are kept; --json and the book have them"


def _on_all(kind: str, places: Sequence[str], where: Where, side: Side, *, message: str = "") -> int:
    from pilotage.client.jobs import Jobs
    from pilotage.model.exchange.operations import OperatedOn, OperationOn

    assert where.query is not None
    if len(places) > 1 or (places and place_of(places[0]).package is not None):
        raise click.UsageError("With --where, name at most one JOB: QUERY then looks in it alone.")
    named = places[0] if places else ""
    if named and where.target == "jobs":
        raise click.UsageError(f"--jobs finds whole jobs: name {named} without --where, or look for packages in it.")
    with _connected(kind, side, places, where) as connection:
        job = steered_job(connection, named) if named else ""
        wanted = OperationOn(operation=kind, where=where.query, target=where.target, job=job, message=message)
        count = _count(connection, where, job)
        if count > ASKED_ABOVE and not where.yes:
            _confirm(f"{kind} {plural(count, where.target.removesuffix('s'))}?")
        none = OperatedOn(found=0, done=0, refused=0, told=())
        told = none if connection.resting and not count else Jobs(connection).operate_on(wanted)
        code = _tell(wanted, told, side)
        if not told.found:
            hint_at_ids([connection], where.query)
    return code


def _count(connection: Server, where: Where, job: str) -> int:
    from pilotage.client.server import path_of

    asked = {"query": where.query} if where.target == "jobs" else {"query": where.query, "job": job or None}
    count: int = connection.get(path_of("counts", where.target), asked)["count"]
    return count


def _confirm(question: str) -> None:
    asked = question[:1].upper() + question[1:]  # names stay as they are
    if not sys.stdin.isatty():
        raise click.UsageError(f"{asked} Nobody is there to be asked: say --yes.")
    click.confirm(asked, abort=True, err=True)


def _tell(wanted: OperationOn, told: OperatedOn, side: Side) -> int:
    noun = "line" if wanted.operation in ("drop", "restore") else wanted.target.removesuffix("s")
    if side.as_json:
        import msgspec

        _emit_json({"operation": wanted.operation, "where": wanted.where, **msgspec.to_builtins(told)})
    else:
        emit([f"{_DONE[wanted.operation]} {plural(told.done, noun)} of {told.found:,} found\n"])
        for each in told.told:
            say_to_reader(f"not {one_line(each.subject)}: {each.message}")
        if told.refused > len(told.told):
            say_to_reader(f"and {told.refused - len(told.told):,} more were refused")
    return ExitCode.BAD_INPUT if told.refused else ExitCode.COMPLETE


def _emit_json(told: dict[str, Any]) -> None:
    from pilotage import app

    emit([app.json_text(told)])
