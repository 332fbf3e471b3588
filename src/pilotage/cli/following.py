"""What goes on until somebody interrupts it: a stream of server-sent events, taken up again where it broke off."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.streams import failure_of
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.client import Server

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
