"""`pilotage query`: jobs, packages or events, of one server or merged from several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.naming import hint_at_ids
from pilotage.cli.options import QueryCommand
from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.remote import addresses_of, json_option, looking_at, servers_option
from pilotage.cli.words import fields_of, plural, table
from pilotage.model.exit_codes import ExitCode
from pilotage.model.package_words import parameters_text
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.client.questions import Failure, Found, Question, Target

LIMIT_DEFAULT = 100


@click.command(cls=QueryCommand)
@click.argument("query")
@click.option("--packages", "target", flag_value="packages", default="packages", help="Find packages. [default]")
@click.option("--jobs", "target", flag_value="jobs", help="Find jobs.")
@click.option("--events", "target", flag_value="events", help="Find events.")
@click.option("--count", "only_count", is_flag=True, help="Only say how many there are.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=LIMIT_DEFAULT,
    show_default=True,
    metavar="N",
    help="As many at most.",
)
@click.option("--cursor", metavar="TEXT", help="Go on where an answer before ended.")
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

    By a QUERY such as "state=RUNNING and site=lyon and tag.study=A12". An answer that does not fit ends with a cursor. Of several servers, one that fails is named, and the exit code is
    not 0; the others are shown. Packages of which nothing was heard yet, and those of sealed jobs, are found
    where the query names their job: "job=ID and …".
    """
    from pilotage.client import questions

    asked = questions.Question(target=target, query=query, limit=limit, binaries=as_json)
    connections, failures = _connections(servers, token_files)
    try:
        if only_count:
            failures += _count(connections, asked, as_json=as_json, failed=failures)
        else:
            found = questions.find(connections, asked, cursor=cursor)
            failures += found.failures
            _show(found, target, failures, as_json=as_json)
            if not found.items and not failures:
                hint_at_ids(connections, query)
    finally:
        for server in connections:
            server.close()
    for failure in failures:
        told = str(failure.error)
        say_to_reader(f"error: {told}" if failure.server in told else f"error: {failure.server}: {told}")
    return max((failure.error.exit_code for failure in failures), default=ExitCode.COMPLETE)


def _connections(servers: Sequence[str], token_files: Sequence[str]) -> tuple[list[Server], list[Failure]]:
    """The servers; of several, one that does not run is a failure like any other, and not the end."""
    from pilotage.client import ServerError
    from pilotage.client.questions import Failure

    found: list[Server] = []
    failures: list[Failure] = []
    addresses = addresses_of(servers, token_files)
    for address in addresses:
        try:
            found.append(looking_at(address))
        except ServerError as error:
            if len(addresses) == 1:
                raise
            failures.append(Failure(address.url, error))
    return found, failures


def _count(servers: list[Server], asked: Question, *, as_json: bool, failed: list[Failure]) -> list[Failure]:
    from pilotage.client.questions import count

    if asked.target == "events":
        raise click.UsageError("Events are not counted; count jobs or packages.")
    counted = count(servers, asked)
    if as_json:
        from pilotage import app

        told = {"target": asked.target, "query": asked.query, "count": counted.count, "servers": counted.counts}
        told |= {"sealed_jobs": counted.sealed_jobs, "failures": _told([*failed, *counted.failures])}
        emit([app.json_text(told)])
    else:
        emit([f"{counted.count:,}\n"])
    _tell_sealed(counted.sealed_jobs)
    return counted.failures


def _show(found: Found, target: Target, failures: list[Failure], *, as_json: bool) -> None:
    if as_json:
        from pilotage import app

        told: dict[str, Any] = {target: found.items, "next": found.next, "failures": _told(failures)}
        if target == "packages":
            told["sealed_jobs"] = found.sealed_jobs
        emit([app.json_text(told)])
        _tell_sealed(found.sealed_jobs)
        return
    emit(table(_rows(target, found.items), header=HEADERS[target]))
    if not found.items and not failures:
        say_to_reader("nothing found")
    _tell_sealed(found.sealed_jobs)
    if found.next is not None:
        say_to_reader(f"there is more; go on with: --cursor {found.next}")


def _tell_sealed(jobs: int) -> None:
    if jobs:
        say_to_reader(f"packages of {plural(jobs, 'sealed job')} are not searched; name the job")


def _told(failures: list[Failure]) -> list[dict[str, str]]:
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
    """The name and the parameters of a package, where its server tells of them."""
    words = package.get("words") or {}
    return words.get("name", ""), parameters_text(words.get("parameters", {}))


def _beside(job: dict[str, Any]) -> str:
    """What is to be known of a job beside its state."""
    return " (purged)" if job["place"] == "purged" else " (held)" if job["held"] else ""


def subject_of(event: dict[str, Any]) -> str:
    """What an event is about, as people write it."""
    if event["job"] is None:
        return str(event["pilot"] or event["site"] or "")
    package = f"/{event['package']}" if event["package"] else ""
    attempt = f" #{event['attempt']}" if event["attempt"] else ""
    return f"{event['job']}{package}{attempt}"
