"""The commands that steer jobs: kill, hold, release, restart, retry, reschedule, replicate, drop and restore."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.remote import connect, json_option, place_of, server_option
from pilotage.cli.words import one_line, plural
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.model.operations import AnyOperation, OperatedOn, OperationOn

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ASKED_ABOVE = 100
"""More than so many at once are confirmed first."""

_DONE = {
    "kill": "killed", "hold": "held", "release": "released", "restart": "restarted", "reschedule": "rescheduled",
    "replicate": "replicated", "drop": "dropped", "restore": "restored",
}  # fmt: skip


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


def where_options(*, jobs: bool) -> Callable[[Decorated], Decorated]:
    """`--where`, which takes the place of names; `--jobs` where whole jobs can be meant."""

    def decorate(command: Decorated) -> Decorated:
        command = click.option("--yes", is_flag=True, help=f"Do not ask, also where it is more than {ASKED_ABOVE}.")(
            command
        )
        if jobs:
            command = click.option(
                "--jobs", "target", flag_value="jobs", help="The QUERY is for jobs, each as a whole."
            )(command)
            command = click.option(
                "--packages", "target", flag_value="packages", default="packages", help="It is for packages. [default]"
            )(command)
        return click.option(
            "--where", "query", metavar="QUERY", help="Everything that it finds, such as state=RUNNING and site=lyon."
        )(command)

    return decorate


def message_option(command: Decorated) -> Decorated:
    """`--message`: for the book."""
    return click.option("--message", default="", metavar="TEXT", help="Why: it stands in the book.")(command)


def places_argument(*, name: str) -> Callable[[Decorated], Decorated]:
    """Jobs or packages by name."""
    return click.argument("places", nargs=-1, metavar=f"[{name}]...")


@click.command()
@places_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def kill(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Cancel a job, a package, or everything that a query finds.

    What runs is stopped; what was made stays. With one JOB and --where, packages of that job.
    """
    return _operate("kill", places, Where(query, target, more["yes"]), _side(more), message=message)


@click.command()
@places_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def hold(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Start nothing more of a job or a package.

    What runs goes on to its end.
    """
    return _operate("hold", places, Where(query, target, more["yes"]), _side(more), message=message)


@click.command()
@places_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@json_option
@server_option
def release(places: tuple[str, ...], query: str | None, target: str, **more: Any) -> int:
    """Go on with what was held."""
    return _operate("release", places, Where(query, target, more["yes"]), _side(more))


@click.command()
@places_argument(name="JOB|PACKAGE")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def restart(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Begin a package, or all that failed of a job, anew.

    Of a JOB, everything that failed or was cancelled; a PACKAGE also where it is done. What was made before stays in
    the book.
    """
    return _operate("restart", places, Where(query, target, more["yes"]), _side(more), message=message)


@click.command()
@places_argument(name="JOB|PACKAGE")
@click.option("--failed", is_flag=True, help="Of a JOB, everything that failed or was cancelled.")
@where_options(jobs=True)
@message_option
@json_option
@server_option
def retry(places: tuple[str, ...], query: str | None, target: str, message: str, **more: Any) -> int:
    """Try again what failed.

    A PACKAGE, or with --failed everything of a JOB that failed or was cancelled: as restart, with a fresh count of
    attempts.
    """
    for word in places:
        if place_of(word).package is None and query is None and not more["failed"]:
            raise click.UsageError(f"All that failed of {word}? Then say: pilotage retry --failed {word}")
        if place_of(word).package is not None and more["failed"]:
            raise click.UsageError(f"{word} is one package: say pilotage retry {word}, or --failed with its job.")
    if query is not None and target == "packages":
        failed = "state in (ABORTED, CANCELLED)"  # what is well, or under way, is not touched
        query = failed if query.strip() == "all" else f"{query} and {failed}"
    return _operate("restart", places, Where(query, target, more["yes"]), _side(more), message=message)


@click.command()
@places_argument(name="PACKAGE")
@where_options(jobs=False)
@json_option
@server_option
def reschedule(places: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Give up the live attempts of a package, and try it again.

    Elsewhere, if there is an elsewhere.
    """
    return _operate("reschedule", places, Where(query, "packages", more["yes"]), _side(more))


@click.command()
@places_argument(name="PACKAGE")
@where_options(jobs=False)
@json_option
@server_option
def replicate(places: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Start one more attempt beside those of a running package.

    The first that succeeds counts.
    """
    return _operate("replicate", places, Where(query, "packages", more["yes"]), _side(more))


@click.command()
@click.argument("job", metavar="JOB", required=False)
@click.argument("lines", nargs=-1, metavar="[STAGE.LINE]...")
@where_options(jobs=False)
@json_option
@server_option
def drop(job: str | None, lines: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Leave a line out of a job.

    And what it would have made out of every list of inputs. With --where, the lines of the packages that it finds.
    """
    return _on_lines("drop", job, lines, Where(query, "packages", more["yes"]), _side(more))


@click.command()
@click.argument("job", metavar="JOB", required=False)
@click.argument("lines", nargs=-1, metavar="[STAGE.LINE]...")
@where_options(jobs=False)
@json_option
@server_option
def restore(job: str | None, lines: tuple[str, ...], query: str | None, **more: Any) -> int:
    """Take a dropped line back in.

    As long as nothing has started without it.
    """
    return _on_lines("restore", job, lines, Where(query, "packages", more["yes"]), _side(more))


def _side(more: dict[str, Any]) -> Side:
    return Side(more["server"], more["token_file"], more["as_json"])


def _operate(kind: str, places: Sequence[str], where: Where, side: Side, *, message: str = "") -> int:
    from pilotage.model import operations

    if where.query is not None:
        return _on_all(kind, places, where, side, message=message)
    if not places:
        raise click.UsageError("What? Name it, or find it with --where QUERY.")
    made = getattr(operations, kind.capitalize())
    fields: dict[str, Any] = {"message": message} if message else {}
    wanted: list[tuple[str, AnyOperation]] = []
    for word in places:
        place = place_of(word)
        if place.package is None and kind in ("reschedule", "replicate"):
            raise click.UsageError(f"{word!r} is a job: which package of it? Write {word}/1.2.1.")
        wanted.append(
            (str(place), made(job=place.job, **({"package": place.package} if place.package else {}), **fields))
        )
    return _on_each(kind, wanted, side)


def _on_lines(kind: str, job: str | None, lines: Sequence[str], where: Where, side: Side) -> int:
    from pilotage.model import operations

    if where.query is not None:
        if lines:
            raise click.UsageError("Lines are named, or found with --where; not both.")
        return _on_all(kind, [job] if job else [], where, side)
    if job is None or not lines:
        raise click.UsageError(f"Which line? Write: pilotage {kind} JOB STAGE.LINE")
    wanted: list[tuple[str, AnyOperation]] = []
    for line in lines:
        stage, dot, number = line.replace("/", ".").partition(".")
        if not dot or not stage.isdecimal() or not number.isdecimal() or not int(stage) or not int(number):
            raise click.UsageError(f"{line!r} is no line: write STAGE.LINE, such as 1.2.")
        made = getattr(operations, kind.capitalize())(job=job, stage=int(stage), line=int(number))
        wanted.append((f"{job}/{int(stage)}.{int(number)}", made))
    return _on_each(kind, wanted, side)


def _on_each(kind: str, wanted: Sequence[tuple[str, AnyOperation]], side: Side) -> int:
    """One after the other; one that is refused is named, and the others are done all the same."""
    from pilotage.client import ServerRefused
    from pilotage.client.jobs import Jobs

    done: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    with connect(side.server, side.token_file) as connection:
        for subject, operation in wanted:
            try:
                accepted = Jobs(connection).operate(operation)
            except ServerRefused as error:
                if len(wanted) == 1 and not side.as_json:
                    raise
                refused.append({"subject": subject, "code": error.code, "message": error.what})
                if not side.as_json:
                    say_to_reader(f"error: {subject}: {error}")
                continue
            done.append({"subject": subject, "operation": accepted.operation, "events": accepted.events})
            if not side.as_json:
                emit([f"{_DONE[kind]} {one_line(subject)}\n"])
    if side.as_json:
        _emit_json({"operation": kind, "done": done, "refused": refused})
    return ExitCode.BAD_INPUT if refused else ExitCode.COMPLETE


def _on_all(kind: str, places: Sequence[str], where: Where, side: Side, *, message: str = "") -> int:
    from pilotage.client.jobs import Jobs
    from pilotage.model.operations import OperationOn

    assert where.query is not None
    if len(places) > 1 or (places and place_of(places[0]).package is not None):
        raise click.UsageError("With --where, at most one JOB is named, in which is looked.")
    job = places[0] if places else ""
    if job and where.target == "jobs":
        raise click.UsageError(f"--jobs finds whole jobs: name {job} without --where, or look for packages in it.")
    wanted = OperationOn(operation=kind, where=where.query, target=where.target, job=job, message=message)
    with connect(side.server, side.token_file) as connection:
        count = _count(connection, wanted)
        if count > ASKED_ABOVE and not where.yes:
            _confirm(f"{kind} {plural(count, where.target.removesuffix('s'))}?")
        told = Jobs(connection).operate_on(wanted)
    return _tell(wanted, told, side)


def _count(connection: Server, wanted: OperationOn) -> int:
    from pilotage.client.server import path_of

    asked = {"query": wanted.where, "job": wanted.job or None}
    if wanted.target == "jobs":
        del asked["job"]
    count: int = connection.get(path_of("counts", wanted.target), asked)["count"]
    return count


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question.capitalize()} Nobody is there to be asked: say --yes.")
    click.confirm(question.capitalize(), abort=True, err=True)


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
