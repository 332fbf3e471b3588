"""`pilotage events`: what happened to a job or a package, so far or as it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.failures import show
from pilotage.cli.following import follow, json_line
from pilotage.cli.naming import looked_at
from pilotage.cli.output import emit
from pilotage.cli.query import subject_of
from pilotage.cli.remote import Place, look, server_option
from pilotage.cli.words import cut, fields_of, one_line, room
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.client import Server


@click.command()
@click.argument("place", metavar="[JOB|PACKAGE]", required=False)
@click.option(
    "--follow", "-f", "following", is_flag=True, help="Go on with what happens from now on, until interrupted."
)
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="POSITION", help="Only events behind this position."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after as many.")
@click.option("--query", metavar="QUERY", help='Only some of them, such as "type=AttemptFinished".')
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
    """Show what happened to a job or a package, in the order of the book.

    A package is written JOB/1.2.1, JOB/001/002/001 or JOB/NAME. JOB is an id, or a name: then the newest job of that name is
    meant. Without one it is the last job that is not over, or the last of all. --follow goes on where it was when the server comes back.
    """
    with look(server, token_file) as connection:
        where = looked_at(connection, place)
        if following:
            asked: dict[str, str | int | None] = {"query": query, "after": after}
            line = json_line if as_json else _line
            return follow(connection, _path(where), asked, mark="position", line=line, limit=limit)
        found = islice(_pages(connection, where, query, after), limit)
        if not as_json:
            emit(map(_line, found))
            return ExitCode.COMPLETE
        first = list(islice(found, 1))  # what is refused is refused before anything is printed
        told = _AsObject(chain(first, found))
        emit(told)
    return told.exit_code


def _path(where: Place) -> str:
    from pilotage.client.server import path_of

    if where.package is None:
        return path_of("jobs", where.job, "events")
    return path_of("jobs", where.job, "packages", where.package, "events")


def _pages(connection: Server, where: Place, query: str | None, after: int) -> Iterator[dict[str, Any]]:
    more = True
    while more:
        page = connection.get(_path(where), {"query": query, "after": after, "limit": 1000})
        yield from page["events"]
        after, more = page["after"], page["more"]


def _line(event: dict[str, Any]) -> str:
    skewed = " (clock wrong)" if event["skewed"] else ""
    about, said = one_line(subject_of(event)), fields_of(event["data"])
    line = f"{event['position']:>8}  {moment(event['time'])}{skewed}  {event['type']:<17}  {about}  {said}"
    return f"{cut(line.rstrip(), room())}\n"


class _AsObject:
    """Events as one object, piece by piece; it is whole also where the server goes away in the middle, and says so."""

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
            self.exit_code, told = show(error)
            yield f'\n],"error":{json_line(told)}}}\n'
        else:
            yield "\n]}\n"
