"""Options that name a server, how a command finds and reaches it, and how it follows a stream of events."""

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

from pilotage.cli.shared.output import emit, print_message
from pilotage.cli.shared.streams import failure_of
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client import Address, Server

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_CA_FILE = "pilotage.ca_file"
_SERVER_HELP = (
    "Use the server at URL, or the one of a folder; without it, PILOTAGE_SERVER or that of the nearest folder."
)


def _keep_ca_file(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    context.meta[_CA_FILE] = value or ""


def ca_file_option(command: Decorated) -> Decorated:
    """`--ca-file`, stored in the context of the command, where `addresses_of` reads it."""
    return click.option(
        "--ca-file",
        type=click.Path(),
        metavar="FILE",
        expose_value=False,
        callback=_keep_ca_file,
        help="Trust the authority in FILE for an https server; without it, PILOTAGE_CA_FILE or that of the nearest folder.",
    )(command)


def given_ca_file() -> str:
    """The value of `--ca-file` of the current command."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(_CA_FILE, "")) if context is not None else ""


def server_option(command: Decorated) -> Decorated:
    """`--server`, `--token-file` and `--ca-file` for one server."""
    command = ca_file_option(command)
    command = click.option("--token-file", type=click.Path(), metavar="FILE", help="Read the access token from FILE.")(
        command
    )
    return click.option("--server", metavar="URL", help=_SERVER_HELP)(command)


def servers_option(command: Decorated) -> Decorated:
    """`--server` and `--token-file`, which may be repeated, and `--ca-file`."""
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
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for other programs.")(command)


def addresses_of(servers: Sequence[str], token_files: Sequence[str]) -> list[Address]:
    """The addresses of the servers to use, with their tokens."""
    from pilotage.app import state_folder
    from pilotage.client import find_addresses

    return find_addresses(
        servers,
        token_files=token_files,
        ca_file=given_ca_file(),
        environment=os.environ,
        state_folders=state_folder.state_folders(environment=os.environ, folder=Path.cwd()),
    )


def address_of(server: str | None, token_file: str | None) -> Address:
    """The address of the server to use."""
    (address,) = addresses_of([server] if server else [], [token_file] if token_file else [])
    return address


def local_addresses() -> Iterator[Address]:
    """The services of this folder and of its parent folders, if their files can be trusted."""
    from pilotage.app import state_folder
    from pilotage.client import ServerError
    from pilotage.client.finding import address_in

    for folder in state_folder.state_folders(environment=os.environ, folder=Path.cwd()):
        with suppress(ServerError):
            address = address_in(folder.path)
            if address is not None:
                yield address


def connect(server: str | None, token_file: str | None) -> Server:
    """Connect to the server."""
    return address_of(server, token_file).server()


def connect_to_read(server: str | None, token_file: str | None) -> Server:
    """Connect for reading: if the service of the folder does not run, its book is read directly."""
    return connect_address_to_read(address_of(server, token_file))


def connect_address_to_read(address: Address, *, answer_seconds: float | None = None) -> Server:
    """Connect to an address for reading; wait at most `answer_seconds` for each answer of a server that runs."""
    if address.runs:
        return address.server(answer_seconds=answer_seconds)
    from pilotage.app.service.offline import server_or_book

    return server_or_book(address)


def connect_or_start(server: str | None, token_file: str | None) -> Server:
    """Connect to the server; if the service of the folder does not run, start it as `run` does."""
    from pilotage.app.service.session import started_server

    return started_server(address_of(server, token_file))


class JobOrPackage(NamedTuple):
    """A job, or a package of it by its number `stage.line.n` or by its name."""

    job: str
    package: str | None = None

    def __str__(self) -> str:
        return self.job if self.package is None else f"{self.job}/{self.package}"


def parse_job_or_package(text: str) -> JobOrPackage:
    """Parse JOB, JOB/PACKAGE, or the number of a package of the job in PILOTAGE_JOB."""
    from pilotage.model.events.events import parse_dotted

    job, slash, rest = text.partition("/")
    if not slash and parse_dotted(text) is not None and os.environ.get("PILOTAGE_JOB"):
        return JobOrPackage(os.environ["PILOTAGE_JOB"], text)
    if not slash:
        return JobOrPackage(job)
    if not job or not rest:
        raise click.UsageError(f"{text!r} is not a package: write JOB/1.2.1, JOB/001/002/001 or JOB/NAME.")
    numbers = rest.replace("/", ".").split(".")
    dotted = ".".join(number.lstrip("0") for number in numbers)
    return JobOrPackage(job, dotted if parse_dotted(dotted) is not None else rest)


def parse_package_options(text: str | None, *, job: str | None) -> tuple[str | None, str | None]:
    """Parse `--job` and `--package`, which is 1.2.1, 001/002/001, NAME, JOB/1.2.1 or JOB/NAME."""
    from pilotage.model.events.events import parse_dotted

    if text is None:
        return job, None
    parts = text.split("/")
    numbers = ".".join(part.lstrip("0") for part in parts) if len(parts) == 3 else text
    if parse_dotted(numbers) is not None or len(parts) == 1:
        if job is None and not os.environ.get("PILOTAGE_JOB"):
            raise click.UsageError(
                f"--package {text} is a package, but of which job? Use --job ID, or --package JOB/{numbers}."
            )
        return job, numbers
    place = parse_job_or_package(text)
    if job is not None and job != place.job:
        raise click.UsageError(f"--job {job} and --package {text} name different jobs.")
    return place.job, place.package


# Follow a stream of server-sent events until interrupted; after a broken connection, continue where it stopped.

QUIET_SECONDS = 60.0
"""A stream is broken if it is silent for this long: the server sends a sign of life every few seconds."""
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 10.0

JsonObject = dict[str, Any]


def follow(
    connection: Server,
    path: str,
    parameters: dict[str, str | int | None],
    *,
    mark: str,
    line: Callable[[JsonObject], str],
    limit: int | None = None,
) -> int:
    """Print the events of a stream, one line each, until interrupted or after `limit` events.

    `mark` is the field of an event with its position, which is stored in `parameters["after"]`. After a first connection, a
    server that goes away is waited for.
    """
    gc.enable()  # this may run for days
    from pilotage.client import ServerError

    connected, shown = False, 0
    pause_seconds = PAUSE_SECONDS
    try:
        while True:
            try:
                for event in _stream(connection, path, parameters):
                    connected, pause_seconds = True, PAUSE_SECONDS
                    if event is None:
                        continue
                    emit([line(event)])
                    if failure_of(sys.stdout) is not None:
                        return (
                            ExitCode.COMPLETE
                        )  # standard output is closed; `finish` decides whether that is a failure
                    parameters["after"] = event[mark]
                    shown += 1
                    if shown == limit:
                        return ExitCode.COMPLETE
            except ServerError as error:
                if not connected or not error.retryable:
                    raise
                print_message(f"{error.what}; trying again")
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, PAUSE_SECONDS_MAX)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _stream(connection: Server, path: str, parameters: dict[str, str | int | None]) -> Iterator[JsonObject | None]:
    """Decode the events of a stream; None for a sign of life."""
    import msgspec

    data: list[str] = []
    for line in connection.lines(path, parameters, quiet_seconds=QUIET_SECONDS):
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line:
            yield msgspec.json.decode("\n".join(data)) if data else None
            data = []


def json_line(event: JsonObject) -> str:
    """A JSON object on one line."""
    import msgspec

    return msgspec.json.encode(event).decode() + "\n"
