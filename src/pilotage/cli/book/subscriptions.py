"""`pilotage subscriptions`: be told of changes, by following, a webhook or mail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.options import QueryCommand, WholeHelp
from pilotage.cli.shared.output import cut, emit, fields_of, one_line, room, say_to_reader, table
from pilotage.cli.shared.server import connect, json_line, json_option, server_option
from pilotage.cli.shared.server import follow as follow_stream
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.client import Server

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])")
_BESIDE = ("site", "node", "exit_code", "reason", "cause")
_STATES_COUNT = 9
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@click.group(cls=WholeHelp)
def subscriptions() -> None:
    """Subscribe to changes: follow them, or get them by webhook or mail.

    A subscription is kept by the server, and what is to be told waits while nobody listens. It lives for two hours
    unless it is refreshed.
    """


def _seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """The seconds of a time span such as 30m, 2h or 1d."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip())
    if found is None or float(found[1]) == 0:
        raise click.BadParameter(f"{value!r} is no time span: write 30m, 2h or 1d.")
    return float(found[1]) * _UNITS[found[2]]


def validity_option(command: Decorated) -> Decorated:
    """`--valid`: for how long."""
    return click.option(
        "--valid", "validity_seconds", callback=_seconds, metavar="SPAN", help="For how long, such as 30m or 1d."
    )(command)


def transport_options(command: Decorated) -> Decorated:
    """How to be told; without any, by following."""
    command = click.option(
        "--secret-file", type=click.File("r"), metavar="FILE", help="The secret that webhooks are signed with."
    )(command)
    command = click.option("--mail", metavar="ADDRESS", help="Tell it by mail.")(command)
    return click.option("--webhook", metavar="URL", help="Tell it by a POST of CloudEvents to this URL.")(command)


def _binding(webhook: str | None, mail: str | None, secret_file: Any) -> dict[str, str]:
    if webhook and mail:
        raise click.UsageError("--webhook and --mail exclude each other.")
    transport, address = ("webhook", webhook) if webhook else ("mail", mail) if mail else ("poll", "")
    secret = secret_file.read().strip() if secret_file is not None else ""
    return {"transport": transport, "address": address or "", "secret": secret}


def _path(*parts: str) -> str:
    from pilotage.client.server import path_of

    return path_of("subscriptions", *parts)


@subscriptions.command(cls=QueryCommand)
@click.argument("query", default="")
@click.option("--packages", "target", flag_value="packages", default="packages", help="Of packages. [default]")
@click.option("--jobs", "target", flag_value="jobs", help="Of jobs.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only entering this state. May be repeated.")
@click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME", help="Only a change of this one. May be repeated."
)
@validity_option
@transport_options
@json_option
@server_option
def add(
    query: str,
    target: str,
    states: tuple[str, ...],
    attributes: tuple[str, ...],
    validity_seconds: float | None,
    webhook: str | None,
    mail: str | None,
    secret_file: Any,
    server: str | None,
    token_file: str | None,
    *,
    as_json: bool,
) -> None:
    """Subscribe to changes of what a QUERY asks for, or of everything; prints the id of the subscription.

    With neither --state nor --attribute, to every change of state.
    """
    wanted = {"query": query, "target": target, "states": states, "attributes": attributes}
    binding = _binding(webhook, mail, secret_file)
    with connect(server, token_file) as connection:
        told = connection.post(_path(), {**wanted, **binding, "validity_seconds": validity_seconds})
    if as_json:
        from pilotage import app

        emit([app.json_text(told)])
        return
    found = told["subscription"]
    emit([f"{one_line(found['id'])}\n"])
    if webhook and secret_file is None:
        say_to_reader(f"webhooks are signed with this secret, which is not shown again: {told['secret']}")
    say_to_reader(f"until {moment(found['expires_at'])}")


@subscriptions.command("list")
@json_option
@server_option
def list_all(server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """List your own subscriptions, and how their deliveries stand."""
    with connect(server, token_file) as connection:
        told = connection.get(_path())
    if as_json:
        from pilotage import app

        emit([app.json_text(told)])
        return
    rows = [
        (
            each["id"],
            each["target"],
            each["query"] or "all",
            _changes(each),
            f"{each['transport']} {each['address']}".strip(),
            moment(each["expires_at"]),
            each["fault"],
        )
        for each in told["subscriptions"]
    ]
    emit(table(rows, header=("ID", "OF", "QUERY", "CHANGES", "TOLD BY", "UNTIL", "LAST FAULT")))
    if not rows:
        say_to_reader("no subscriptions")


def _changes(subscription: dict[str, Any]) -> str:
    states = ["state"] if len(subscription["states"]) == _STATES_COUNT else subscription["states"]
    return ", ".join((*states, *subscription["attributes"]))


@subscriptions.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@server_option
def drop(names: tuple[str, ...], server: str | None, token_file: str | None) -> int:
    """End subscriptions, with everything that was still to be told.

    One that cannot be ended is named, and the others are ended all the same.
    """
    from pilotage.client import ServerRefused

    code = ExitCode.COMPLETE
    with connect(server, token_file) as connection:
        for name in names:
            try:
                connection.send("DELETE", _path(name))
            except ServerRefused as error:
                say_to_reader(f"error: {error}")
                code = ExitCode.BAD_INPUT
    return code


@subscriptions.command()
@click.argument("name", metavar="ID")
@validity_option
@server_option
def refresh(name: str, validity_seconds: float | None, server: str | None, token_file: str | None) -> None:
    """Let a subscription live on, counted from now."""
    with connect(server, token_file) as connection:
        told = connection.post(_path(name, "refresh"), {"validity_seconds": validity_seconds})
    say_to_reader(f"until {moment(told['expires_at'])}")


@subscriptions.command()
@click.argument("name", metavar="ID")
@transport_options
@server_option
def rebind(
    name: str, webhook: str | None, mail: str | None, secret_file: Any, server: str | None, token_file: str | None
) -> None:
    """Tell the changes elsewhere from now on, those that wait too; without an address, by following."""
    with connect(server, token_file) as connection:
        connection.send("PATCH", _path(name), _binding(webhook, mail, secret_file))


@subscriptions.command()
@click.argument("name", metavar="ID")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after as many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each change.")
@server_option
def follow(name: str, limit: int | None, server: str | None, token_file: str | None, *, as_json: bool) -> int:
    """Show changes as they come, those that waited first, until interrupted.

    What was shown is told to nobody again; whoever follows next goes on behind it.
    """
    path = _path(name, "notices")
    parameters: dict[str, str | int | None] = {"after": None}
    line = json_line if as_json else _line
    with connect(server, token_file) as connection:
        try:
            return follow_stream(connection, path, parameters, mark="id", line=line, limit=limit)
        finally:
            if parameters["after"] is not None:
                _acknowledge(connection, path, parameters["after"])


def _acknowledge(connection: Server, path: str, after: str | int) -> None:
    """Say how far the changes were shown: the number acknowledges."""
    from pilotage.client import ServerError

    try:
        connection.get(path, {"after": after, "limit": 1})
    except ServerError as error:
        say_to_reader(f"what was shown will be told again: {error.what}")


def _line(notice: dict[str, Any]) -> str:
    """One change: when, of what, and from what to what; then where and why, as far as that is known."""
    data, about = notice["data"], notice["subject"].removeprefix("jobs/").replace("/packages/", "/")
    changed = [name for name in data.get("changed", ()) if name != "state"]
    known = {name: data[name] for name in (*changed, *_BESIDE) if data.get(name) is not None}
    state = f"{data['state_before']} → {data['state']}" if data.get("state_before") else data.get("state", "")
    line = f"{notice['time'][:19].replace('T', ' ')}Z  {about}  {state}  {fields_of(known)}"
    return f"{cut(one_line(line).rstrip(), room())}\n"
