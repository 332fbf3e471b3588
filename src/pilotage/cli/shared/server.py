"""What the commands that talk to a server share: how it is named, and how it is found."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pilotage.cli.shared.output import emit, say_to_reader
from pilotage.cli.shared.streams import failure_of
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client import Address, Server

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_CA_FILE = "pilotage.ca_file"
_SERVER_HELP = "Ask the server at URL, or the one that runs in a folder; without it, PILOTAGE_SERVER or that of the nearest folder."


def _keep_ca_file(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    context.meta[_CA_FILE] = value or ""


def ca_file_option(command: Decorated) -> Decorated:
    """`--ca-file`: it is kept with the command, and `addresses_of` finds it there."""
    return click.option(
        "--ca-file",
        type=click.Path(),
        metavar="FILE",
        expose_value=False,
        callback=_keep_ca_file,
        help="Trust this ca.pem of an https server; without it, PILOTAGE_CA_FILE or that of the nearest folder.",
    )(command)


def said_ca_file() -> str:
    """What `--ca-file` says of the command that runs."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(_CA_FILE, "")) if context is not None else ""


def server_option(command: Decorated) -> Decorated:
    """`--server`, `--token-file` and `--ca-file`, once each."""
    command = ca_file_option(command)
    command = click.option("--token-file", type=click.Path(), metavar="FILE", help="Read the access token from FILE.")(
        command
    )
    return click.option("--server", metavar="URL", help=_SERVER_HELP)(command)


def servers_option(command: Decorated) -> Decorated:
    """`--server` and `--token-file`, as often as there are servers, and `--ca-file`."""
    command = ca_file_option(command)
    command = click.option(
        "--token-file",
        "token_files",
        type=click.Path(),
        multiple=True,
        metavar="FILE",
        help="Read the access token from FILE: one for all servers, or one for each.",
    )(command)
    help_text = f"{_SERVER_HELP} May be repeated: the answers are merged."
    return click.option("--server", "servers", multiple=True, metavar="URL", help=help_text)(command)


def json_option(command: Decorated) -> Decorated:
    """`--json`: for other programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for other programs.")(command)


def addresses_of(servers: Sequence[str], token_files: Sequence[str]) -> list[Address]:
    """The servers that are meant, and the tokens to show them."""
    from pilotage.app import state_folder
    from pilotage.client import find_addresses

    return find_addresses(
        servers,
        token_files=token_files,
        ca_file=said_ca_file(),
        environment=os.environ,
        state_folders=state_folder.state_folders(environment=os.environ, folder=Path.cwd()),
    )


def address_of(server: str | None, token_file: str | None) -> Address:
    """The one server that is meant."""
    (address,) = addresses_of([server] if server else [], [token_file] if token_file else [])
    return address


def local_addresses() -> Iterator[Address]:
    """The services of this folder and those above it, as far as they can be trusted."""
    from pilotage.app import state_folder
    from pilotage.client import ServerError
    from pilotage.client.finding import address_in

    for folder in state_folder.state_folders(environment=os.environ, folder=Path.cwd()):
        with suppress(ServerError):
            address = address_in(folder.path)
            if address is not None:
                yield address


def connect(server: str | None, token_file: str | None) -> Server:
    """A connection to the one server that is meant."""
    return address_of(server, token_file).server()


def look(server: str | None, token_file: str | None) -> Server:
    """The same for who only looks: where the service of the folder has ended, its book answers."""
    return looking_at(address_of(server, token_file))


def looking_at(address: Address, *, answer_seconds: float | None = None) -> Server:
    """A connection to a server, or to what answers for it from its book; it may be waited for as long as said."""
    if address.runs:
        return address.server(
            answer_seconds=answer_seconds
        )  # what reads the book is not imported where nobody needs it
    from pilotage.app.service.offline import server_or_book

    return server_or_book(address)


def connect_to_go_on(server: str | None, token_file: str | None) -> Server:
    """The same for who wants something run: where the service of the folder has ended, it is started as by `run`."""
    from pilotage.app.service.session import started_server

    return started_server(address_of(server, token_file))


class Place(NamedTuple):
    """A job, or a package of it as `stage.line.n`, or by its name where nobody looked it up yet."""

    job: str
    package: str | None = None

    def __str__(self) -> str:
        """As it is written."""
        return self.job if self.package is None else f"{self.job}/{self.package}"


def place_of(text: str) -> Place:
    """What a word names: a job, or a package of it; a package alone is one of the job in PILOTAGE_JOB."""
    from pilotage.model.events.events import parse_dotted

    job, slash, rest = text.partition("/")
    if not slash and parse_dotted(text) is not None and os.environ.get("PILOTAGE_JOB"):
        return Place(os.environ["PILOTAGE_JOB"], text)
    if not slash:
        return Place(job)
    if not job or not rest:
        raise click.UsageError(f"{text!r} is no package: write JOB/1.2.1, JOB/001/002/001 or JOB/NAME.")
    numbers = rest.replace("/", ".").split(".")
    dotted = ".".join(number.lstrip("0") for number in numbers)
    return Place(job, dotted if parse_dotted(dotted) is not None else rest)


def package_of(text: str | None, *, job: str | None) -> tuple[str | None, str | None]:
    """The job and the package that `--job` and `--package` name: 1.2.1, 001/002/001 or NAME of a job, JOB/1.2.1 or JOB/NAME."""
    from pilotage.model.events.events import parse_dotted

    if text is None:
        return job, None
    parts = text.split("/")
    numbers = ".".join(part.lstrip("0") for part in parts) if len(parts) == 3 else text
    if parse_dotted(numbers) is not None or len(parts) == 1:
        if job is None and not os.environ.get("PILOTAGE_JOB"):
            raise click.UsageError(f"--package {text} is of which job? Say --job ID, or --package JOB/{numbers}.")
        return job, numbers
    place = place_of(text)
    if job is not None and job != place.job:
        raise click.UsageError(f"--job {job} and --package {text} name two jobs.")
    return place.job, place.package


# What goes on until somebody interrupts it: a stream of server-sent events, taken up again where it broke off.

QUIET_SECONDS = 60.0
"""A stream that says nothing for this long is broken: the server says every few seconds that it is there."""
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 10.0

Told = dict[str, Any]


def follow(
    connection: Server,
    path: str,
    parameters: dict[str, str | int | None],
    *,
    mark: str,
    line: Callable[[Told], str],
    limit: int | None = None,
) -> int:
    """Print what a path streams, a line for each; `mark` is the field that says how far it came.

    `parameters["after"]` moves with it. It ends when it is interrupted, or after as many as `limit` says. A server that
    goes away is waited for, once it was there.
    """
    gc.enable()  # this may go on for days
    from pilotage.client import ServerError

    connected, shown = False, 0
    pause_seconds = PAUSE_SECONDS
    try:
        while True:
            try:
                for told in _stream(connection, path, parameters):
                    connected, pause_seconds = True, PAUSE_SECONDS
                    if told is None:
                        continue
                    emit([line(told)])
                    if failure_of(sys.stdout) is not None:
                        return ExitCode.COMPLETE  # nobody reads on; `finish` says whether that is a failure
                    parameters["after"] = told[mark]
                    shown += 1
                    if shown == limit:
                        return ExitCode.COMPLETE
            except ServerError as error:
                if not connected or not error.retryable:
                    raise
                say_to_reader(f"{error.what}; trying again")
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, PAUSE_SECONDS_MAX)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _stream(connection: Server, path: str, parameters: dict[str, str | int | None]) -> Iterator[Told | None]:
    """What the server sends, decoded; None where it only says that it is there."""
    import msgspec

    data: list[str] = []
    for line in connection.lines(path, parameters, quiet_seconds=QUIET_SECONDS):
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line:
            yield msgspec.json.decode("\n".join(data)) if data else None
            data = []


def json_line(told: Told) -> str:
    """One object on one line."""
    import msgspec

    return msgspec.json.encode(told).decode() + "\n"
