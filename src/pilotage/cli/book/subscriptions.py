"""`pilotage subscriptions`: notifications of changes, followed live or sent by webhook or mail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.options import QueryCommand, WholeHelp
from pilotage.cli.shared.output import cut, emit, fields_of, line_width, one_line, print_message, table
from pilotage.cli.shared.server import connect, json_line, json_option, server_option
from pilotage.cli.shared.server import follow as follow_stream
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.client import Server

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])")
_DETAILS = ("site", "node", "exit_code", "reason", "cause")
_STATES_COUNT = 9
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@click.group(cls=WholeHelp)
def subscriptions() -> None:
    """Subscribe to changes: follow them, or get them by webhook or mail.

    The server stores a subscription and queues its notifications while no client listens. A subscription expires after two
    hours unless you refresh it.
    """


def _seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Parse a duration such as 30m, 2h or 1d into seconds."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip())
    if found is None or float(found[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a duration: write 30m, 2h or 1d.")
    return float(found[1]) * _UNITS[found[2]]


def validity_option(command: Decorated) -> Decorated:
    """`--valid`."""
    return click.option(
        "--valid",
        "validity_seconds",
        callback=_seconds,
        metavar="SPAN",
        help="Let it expire after SPAN, such as 30m or 1d.",
    )(command)


def transport_options(command: Decorated) -> Decorated:
    """`--webhook`, `--mail` and `--secret-file`; without them, notifications wait for `follow`."""
    command = click.option(
        "--secret-file", type=click.File("r"), metavar="FILE", help="Read the secret that signs webhooks from FILE."
    )(command)
    command = click.option("--mail", metavar="ADDRESS", help="Send notifications by mail to ADDRESS.")(command)
    return click.option("--webhook", metavar="URL", help="POST notifications to URL, as CloudEvents.")(command)


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
@click.option(
    "--packages",
    "target",
    flag_value="packages",
    default="packages",
    help="Subscribe to changes of packages. [default]",
)
@click.option("--jobs", "target", flag_value="jobs", help="Subscribe to changes of jobs.")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Notify only when STATE is entered. May be repeated."
)
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME",
    help="Notify only when this attribute changes. May be repeated.",
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
    """Subscribe to changes of everything, or of what QUERY finds; prints the id of the subscription.

    With neither --state nor --attribute, every change of state is notified.
    """
    wanted = {"query": query, "target": target, "states": states, "attributes": attributes}
    binding = _binding(webhook, mail, secret_file)
    with connect(server, token_file) as connection:
        answer = connection.post(_path(), {**wanted, **binding, "validity_seconds": validity_seconds})
    if as_json:
        from pilotage import app

        emit([app.json_text(answer)])
        return
    found = answer["subscription"]
    emit([f"{one_line(found['id'])}\n"])
    if webhook and secret_file is None:
        print_message(f"this secret signs the webhooks; it is not shown again: {answer['secret']}")
    print_message(f"until {moment(found['expires_at'])}")


@subscriptions.command("list")
@json_option
@server_option
def list_all(server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """List your own subscriptions and the state of their deliveries."""
    with connect(server, token_file) as connection:
        answer = connection.get(_path())
    if as_json:
        from pilotage import app

        emit([app.json_text(answer)])
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
        for each in answer["subscriptions"]
    ]
    emit(table(rows, header=("ID", "OF", "QUERY", "CHANGES", "TOLD BY", "UNTIL", "LAST FAULT")))
    if not rows:
        print_message("no subscriptions")


def _changes(subscription: dict[str, Any]) -> str:
    states = ["state"] if len(subscription["states"]) == _STATES_COUNT else subscription["states"]
    return ", ".join((*states, *subscription["attributes"]))


@subscriptions.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@server_option
def drop(names: tuple[str, ...], server: str | None, token_file: str | None) -> int:
    """Delete subscriptions, with their undelivered notifications.

    If one cannot be deleted, it is named, and the others are still deleted.
    """
    from pilotage.client import ServerRefused

    code = ExitCode.COMPLETE
    with connect(server, token_file) as connection:
        for name in names:
            try:
                connection.send("DELETE", _path(name))
            except ServerRefused as error:
                print_message(f"error: {error}")
                code = ExitCode.BAD_INPUT
    return code


@subscriptions.command()
@click.argument("name", metavar="ID")
@validity_option
@server_option
def refresh(name: str, validity_seconds: float | None, server: str | None, token_file: str | None) -> None:
    """Extend a subscription; its time counts from now."""
    with connect(server, token_file) as connection:
        answer = connection.post(_path(name, "refresh"), {"validity_seconds": validity_seconds})
    print_message(f"until {moment(answer['expires_at'])}")


@subscriptions.command()
@click.argument("name", metavar="ID")
@transport_options
@server_option
def rebind(
    name: str, webhook: str | None, mail: str | None, secret_file: Any, server: str | None, token_file: str | None
) -> None:
    """Change where notifications go, including those that wait; without an address, they wait for `follow`."""
    with connect(server, token_file) as connection:
        connection.send("PATCH", _path(name), _binding(webhook, mail, secret_file))


@subscriptions.command()
@click.argument("name", metavar="ID")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N changes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each change.")
@server_option
def follow(name: str, limit: int | None, server: str | None, token_file: str | None, *, as_json: bool) -> int:
    """Show queued changes, then new ones as they arrive, until interrupted.

    Shown changes are acknowledged: the next `follow` continues after them.
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
    """Acknowledge all changes up to the last one shown."""
    from pilotage.client import ServerError

    try:
        connection.get(path, {"after": after, "limit": 1})
    except ServerError as error:
        print_message(f"the changes could not be acknowledged and will be shown again: {error.what}")


def _line(notice: dict[str, Any]) -> str:
    """One change on a line: time, subject, old and new state, then site, exit code and reason if known."""
    data, about = notice["data"], notice["subject"].removeprefix("jobs/").replace("/packages/", "/")
    changed = [name for name in data.get("changed", ()) if name != "state"]
    known = {name: data[name] for name in (*changed, *_DETAILS) if data.get(name) is not None}
    state = f"{data['state_before']} → {data['state']}" if data.get("state_before") else data.get("state", "")
    line = f"{notice['time'][:19].replace('T', ' ')}Z  {about}  {state}  {fields_of(known)}"
    return f"{cut(one_line(line).rstrip(), line_width())}\n"
