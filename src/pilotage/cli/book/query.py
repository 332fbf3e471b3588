"""`pilotage query`, `events` and `statistics`: search the book of one server, or of several at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.errors import show_error
from pilotage.cli.shared.job_names import find_to_show, hint_unknown_jobs
from pilotage.cli.shared.options import QueryCommand
from pilotage.cli.shared.output import (
    cut,
    duration,
    emit,
    fields_of,
    line_width,
    one_line,
    plural,
    print_message,
    table,
)
from pilotage.cli.shared.server import (
    JobOrPackage,
    addresses_of,
    connect_address_to_read,
    connect_to_read,
    follow,
    json_line,
    json_option,
    server_option,
    servers_option,
)
from pilotage.model.answers import parameters_text
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.client.queries import Failure, QueryResult, Question, Target

LIMIT_DEFAULT = 100


@click.command(cls=QueryCommand)
@click.argument("query")
@click.option("--packages", "target", flag_value="packages", default="packages", help="Find packages. [default]")
@click.option("--jobs", "target", flag_value="jobs", help="Find jobs.")
@click.option("--events", "target", flag_value="events", help="Find events.")
@click.option("--count", "only_count", is_flag=True, help="Print only the number of matches.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=LIMIT_DEFAULT,
    show_default=True,
    metavar="N",
    help="Show at most N matches.",
)
@click.option("--cursor", metavar="TEXT", help="Continue after an earlier answer: the cursor that it ended with.")
@json_option
@servers_option
def query(
    query: str,
    target: Target,
    limit: int,
    cursor: str | None,
    servers: tuple[str, ...],
    token_files: tuple[str, ...],
    *,
    only_count: bool,
    as_json: bool,
) -> int:
    """Find packages, jobs or events.

    QUERY is, for example, "state=RUNNING and site=lyon and tag.study=A12". An answer with more than --limit matches ends
    with a cursor. If one of several servers fails, the answers of the others are shown, its name is printed, and the exit
    code is not 0. Packages without any event yet, and packages of sealed jobs, are found only if the query names their job:
    "job=ID and …".
    """
    from pilotage.client import queries

    asked = queries.Question(target=target, query=query, limit=limit, binaries=as_json)
    connections, failures = _connections(servers, token_files)
    try:
        if only_count:
            failures += _count(connections, asked, as_json=as_json, failed=failures)
        else:
            found = queries.find(connections, asked, cursor=cursor)
            failures += found.failures
            _show(found, target, failures, as_json=as_json)
            if not found.items and not failures:
                hint_unknown_jobs(connections, query)
    finally:
        for server in connections:
            server.close()
    for failure in failures:
        message = str(failure.error)
        print_message(f"error: {message}" if failure.server in message else f"error: {failure.server}: {message}")
    return max((failure.error.exit_code for failure in failures), default=ExitCode.COMPLETE)


def _connections(servers: Sequence[str], token_files: Sequence[str]) -> tuple[list[Server], list[Failure]]:
    """Connect to the servers; if there are several, one that does not run is reported as a failure and left out."""
    from pilotage.client import ServerError
    from pilotage.client.queries import Failure

    found: list[Server] = []
    failures: list[Failure] = []
    addresses = addresses_of(servers, token_files)
    for address in addresses:
        try:
            found.append(connect_address_to_read(address))
        except ServerError as error:
            if len(addresses) == 1:
                raise
            failures.append(Failure(address.url, error))
    return found, failures


def _count(servers: list[Server], asked: Question, *, as_json: bool, failed: list[Failure]) -> list[Failure]:
    from pilotage.client.queries import count

    if asked.target == "events":
        raise click.UsageError("Events are not counted; count jobs or packages.")
    counted = count(servers, asked)
    if as_json:
        from pilotage import app

        report = {"target": asked.target, "query": asked.query, "count": counted.count, "servers": counted.counts}
        report |= {"sealed_jobs": counted.sealed_jobs, "failures": _failure_objects([*failed, *counted.failures])}
        emit([app.json_text(report)])
    else:
        emit([f"{counted.count:,}\n"])
    _tell_sealed(counted.sealed_jobs)
    return counted.failures


def _show(found: QueryResult, target: Target, failures: list[Failure], *, as_json: bool) -> None:
    if as_json:
        from pilotage import app

        report: dict[str, Any] = {target: found.items, "next": found.next, "failures": _failure_objects(failures)}
        if target == "packages":
            report["sealed_jobs"] = found.sealed_jobs
        emit([app.json_text(report)])
        _tell_sealed(found.sealed_jobs)
        return
    emit(table(_rows(target, found.items), header=HEADERS[target]))
    if not found.items and not failures:
        print_message("nothing found")
    _tell_sealed(found.sealed_jobs)
    if found.next is not None:
        print_message(f"there are more; continue with: --cursor {found.next}")


def _tell_sealed(jobs: int) -> None:
    if jobs:
        print_message(f"packages of {plural(jobs, 'sealed job')} were not searched; name the job in the query")


def _failure_objects(failures: list[Failure]) -> list[dict[str, str]]:
    return [{"server": failure.server, "message": str(failure.error)} for failure in failures]


HEADERS: dict[Target, tuple[str, ...]] = {
    "jobs": ("JOB", "STATE", "NAME", "OWNER", "PACKAGES", "FAILED", "SUBMITTED", "SERVER"),
    "packages": (
        "PACKAGE",
        "NAME",
        "PARAMETERS",
        "STATE",
        "ACTIVITY",
        "SITE",
        "NODE",
        "ATTEMPTS",
        "EXIT",
        "REASON",
        "UPDATED",
        "SERVER",
    ),
    "events": ("POSITION", "TIME", "EVENT", "ABOUT", "DATA", "SERVER"),
}


def _rows(target: Target, items: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for item in items:
        server = item.get("server")
        if target == "jobs":
            yield (
                item["id"], f"{item['state']}{_beside(item)}", item["name"], item["owner"],
                f"{item['packages']:,}", item["failed"] or None, moment(item["submitted_at"]), server,
            )  # fmt: skip
        elif target == "packages":
            yield (
                f"{item['job']}/{item['id']}", *_words(item), f"{item['state']}{' (held)' if item['held'] else ''}", item["activity"],
                item["site"], item["node"], item["attempts"] or None, item["exit_code"],
                item["reason"] or item["cause"], moment(item["updated_at"]), server,
            )  # fmt: skip
        else:
            yield (
                item["position"], moment(item["time"]), item["type"], subject_of(item), fields_of(item["data"]), server
            )  # fmt: skip


def _words(package: dict[str, Any]) -> tuple[str, str]:
    """The name and the parameters of a package, if its server sends them."""
    words = package.get("words") or {}
    return words.get("name", ""), parameters_text(words.get("parameters", {}))


def _beside(job: dict[str, Any]) -> str:
    """The mark behind the state of a job that is purged or held."""
    return " (purged)" if job["place"] == "purged" else " (held)" if job["held"] else ""


def subject_of(event: dict[str, Any]) -> str:
    """What an event is about, as people write it."""
    if event["job"] is None:
        return str(event["pilot"] or event["site"] or "")
    package = f"/{event['package']}" if event["package"] else ""
    attempt = f" #{event['attempt']}" if event["attempt"] else ""
    return f"{event['job']}{package}{attempt}"


# `pilotage events`: the events of a job or a package, up to now or followed live.


@click.command()
@click.argument("place", metavar="[JOB|PACKAGE]", required=False)
@click.option(
    "--follow", "-f", "following", is_flag=True, help="Then show new events as they arrive, until interrupted."
)
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="POSITION", help="Show only events after POSITION."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option("--query", metavar="QUERY", help='Show only matching events, such as "type=AttemptFinished".')
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --follow, one for each event.")
@server_option
def events(
    place: str | None,
    after: int,
    limit: int | None,
    query: str | None,
    server: str | None,
    token_file: str | None,
    *,
    following: bool,
    as_json: bool,
) -> int:
    """Show the events of a job or a package, in the order of the book.

    PACKAGE is JOB/1.2.1, JOB/001/002/001 or JOB/NAME. JOB is an id, or a name for the newest job of that name; without JOB,
    the last job that has not ended, or else the last one. If the server restarts, --follow reconnects and misses nothing.
    """
    with connect_to_read(server, token_file) as connection:
        where = find_to_show(connection, place)
        if following:
            asked: dict[str, str | int | None] = {"query": query, "after": after}
            line = json_line if as_json else _line
            return follow(connection, _path(where), asked, mark="position", line=line, limit=limit)
        found = islice(_pages(connection, where, query, after), limit)
        if not as_json:
            emit(map(_line, found))
            return ExitCode.COMPLETE
        first = list(islice(found, 1))  # a request that is rejected fails here, before anything is printed
        document = _AsObject(chain(first, found))
        emit(document)
    return document.exit_code


def _path(where: JobOrPackage) -> str:
    from pilotage.client.server import path_of

    if where.package is None:
        return path_of("jobs", where.job, "events")
    return path_of("jobs", where.job, "packages", where.package, "events")


def _pages(connection: Server, where: JobOrPackage, query: str | None, after: int) -> Iterator[dict[str, Any]]:
    more = True
    while more:
        page = connection.get(_path(where), {"query": query, "after": after, "limit": 1000})
        yield from page["events"]
        after, more = page["after"], page["more"]


def _line(event: dict[str, Any]) -> str:
    skewed = " (clock wrong)" if event["skewed"] else ""
    about, data = one_line(subject_of(event)), fields_of(event["data"])
    line = f"{event['position']:>8}  {moment(event['time'])}{skewed}  {event['type']:<17}  {about}  {data}"
    return f"{cut(line.rstrip(), line_width())}\n"


class _AsObject:
    """Events as one JSON object, written piece by piece; if the connection breaks, the object ends with the error."""

    def __init__(self, found: Iterator[dict[str, Any]]) -> None:
        self._found = found
        self.exit_code: int = ExitCode.COMPLETE

    def __iter__(self) -> Iterator[str]:
        from pilotage.model.errors import PilotageError

        yield '{"events":['
        separator = "\n"
        try:
            for event in self._found:
                yield separator + json_line(event).rstrip("\n")
                separator = ",\n"
        except PilotageError as error:
            self.exit_code, error_object = show_error(error)
            yield f'\n],"error":{json_line(error_object)}}}\n'
        else:
            yield "\n]}\n"


# `pilotage statistics`: rates and durations of state changes.

WINDOWS = ("1m", "1h", "1d")


@click.command()
@click.option(
    "--window", type=click.Choice(WINDOWS), default="1h", show_default=True, help="Count the last minute, hour or day."
)
@click.option("--site", metavar="NAME", help="Show only this site.")
@click.option("--activity", metavar="NAME", help="Show only this activity.")
@json_option
@server_option
def statistics(
    window: str,
    site: str | None,
    activity: str | None,
    server: str | None,
    token_file: str | None,
    *,
    as_json: bool,
) -> None:
    """Show how packages flow through the states.

    For each site and activity: rates into each state, and mean, median and 95th percentile of the time between two.
    Median and percentile are approximate, within 5 %.
    """
    from pilotage.client.server import path_of

    with connect_to_read(server, token_file) as connection:
        report = connection.get(path_of("statistics"), {"window": window, "site": site, "activity": activity})
    if as_json:
        from pilotage import app

        emit([app.json_text(report)])
        return
    if not report["flows"]:
        print_message(f"no package changed its state within {window}")
    emit(line for flow in report["flows"] for line in _flow_lines(flow))


def _flow_lines(flow: dict[str, Any]) -> Iterator[str]:
    yield f"site {one_line(flow['site']) or '-'}, activity {one_line(flow['activity']) or '-'}\n"
    entries = [
        (f"into {state}", f"{count:,}", f"{flow['per_second'][state]:.3g}/s")
        for state, count in flow["entries"].items()
    ]
    yield from table(entries, indent="  ")
    times = [
        (
            pair.replace("-", " to "),
            f"{each['count']:,}",
            *(_seconds(each[f"{name}_seconds"]) for name in ("mean", "median", "p95")),
        )
        for pair, each in flow["intervals"].items()
    ]
    yield from table(times, header=("BETWEEN", "COUNT", "MEAN", "MEDIAN", "95 %"), indent="  ")


def _seconds(seconds: float) -> str:
    return duration(float(f"{seconds:.3g}"))
