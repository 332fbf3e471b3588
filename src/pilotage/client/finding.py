"""Finds the server and the token of a command: from an option, the environment, or a state folder.

A running service holds a lock on `service.json`, which has its address and the path of its token. Of the state folders
in and above the current folder, only those owned by the user count, so that nobody else chooses the server. A client
never sends the token of a service that has stopped: another program may listen at its address.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.agent.delivery.producer import TokenSource
from pilotage.agent.delivery.spool import is_pilots_own, normal_server
from pilotage.agent.errors import BadSetting
from pilotage.agent.link.tls import CA_FILE_VARIABLE
from pilotage.client.errors import NoServer, ServerError, ServerUnreachable

if TYPE_CHECKING:
    from pilotage.client.server import Server

SERVICE_FILE = "service.json"
TOKEN_FILE = "token"
SERVICE_BYTES_MAX = 64 * 1024
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}")


class ServiceGone(BadSetting):
    """The service of a state folder has stopped or moved: its token is not sent until it is back."""

    retryable = True


class StateFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The state folder that a service may use, and the address it would be started at."""

    path: Path
    usual_url: str = ""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, its token, and where both were found."""

    url: str
    token: str | None = None
    token_file: str | None = None
    ca_file: str = ""  # the authority of its certificate; empty: those of this computer
    origin: str = ""  # the state folder
    runs: bool = True  # according to its state folder

    def token_source(self) -> Callable[[], str]:
        """Returns a function that reads the token; it raises `ServiceGone` while the service of a state folder is down."""
        source = TokenSource(token=self.token, token_file=self.token_file)

        def token() -> str:
            if self.origin:
                there = address_in(Path(self.origin))
                if there is None or not there.runs or there.url != self.url:
                    raise ServiceGone("the service of this folder does not run", subject=self.origin)
                if self.token_file and not Path(self.token_file).exists():
                    raise ServiceGone("the token of this folder is missing, and is made again", subject=self.token_file)
            return source()

        return token

    def server(self, *, answer_seconds: float | None = None) -> Server:
        """A client of this server; opens no connection yet. Raises `ServerError` if the server is known to be down."""
        if is_pilots_own(self.url):
            raise ServerUnreachable(
                "only the pilot of this package can reach the server",
                subject=self.url,
                next_step="`pilotage tag` and `pilotage log` are delivered by it; ask everything else elsewhere",
            )
        if not self.runs:
            raise ServerUnreachable(
                "the service of this folder does not run", subject=self.origin, next_step=self.start_hint
            )
        from pilotage.client.server import ANSWER_SECONDS, Server

        return Server(
            self.url,
            token=self.token_source(),
            start_hint=self.start_hint,
            answer_seconds=ANSWER_SECONDS if answer_seconds is None else answer_seconds,
            ca_file=self.ca_file,
        )

    @property
    def start_hint(self) -> str:
        """What to do if it is down."""
        return f"start it with `{self._start_command()}`, or name another with --server URL"

    def _start_command(self) -> str:
        """The command that starts the service of this folder, and not a second one below it."""
        command = "pilotage serve --background"
        folder = Path(self.origin)
        if not self.origin:
            return command
        if folder.name != ".pilotage":
            return f"{command} --journal {shlex.quote(f'sqlite:{folder}')}"
        return command if folder.parent == Path.cwd() else f"cd {shlex.quote(str(folder.parent))} && {command}"


def find_addresses(
    named: Sequence[str],
    *,
    token_files: Sequence[str] = (),
    ca_file: str = "",
    environment: Mapping[str, str],
    state_folders: Iterable[StateFolder],
) -> list[Address]:
    """The named servers, or else the one from the environment or a state folder; raises `NoServer`.

    `token_files` is empty, or has one for all servers, or one for each; `ca_file` overrides the environment. A name
    without `://` is a folder that has a state folder.
    """
    if len(token_files) > 1 and len(token_files) != len(named):
        raise BadSetting(
            "the number of token files does not match the number of servers",
            expected="one --token-file for all servers, or one for each",
            got=f"{len(token_files)} for {len(named)}",
        )
    files: list[str | None] = list(token_files) if len(token_files) > 1 else [*token_files, None][:1] * len(named)
    if named:
        folders = list(state_folders) if any("://" in each for each in named) else []
        found = [_named(each, environment=environment, folders=folders) for each in named]
    elif server := environment.get("PILOTAGE_SERVER"):
        found, files = [_named(server, environment=environment, folders=state_folders)], [*token_files, None][:1]
    else:
        found, files = [_in_a_folder(environment, state_folders)], [*token_files, None][:1]
    pinned = ca_file or environment.get(CA_FILE_VARIABLE, "")
    return [
        _pinned(address if file is None else msgspec.structs.replace(address, token=None, token_file=file), pinned)
        for address, file in zip(found, files, strict=True)
    ]


def _pinned(address: Address, ca_file: str) -> Address:
    """The address with the given certificate authority, which overrides the one of a folder."""
    return msgspec.structs.replace(address, ca_file=ca_file) if ca_file else address


def _named(name: str, *, environment: Mapping[str, str], folders: Iterable[StateFolder]) -> Address:
    if is_pilots_own(name):
        return _with_token(Address(url=name), environment)
    if "://" not in name:
        return _with_token(_in_named_folder(Path(name)), environment)
    url = normal_server(name)
    plain = Address(url=url)
    shown = _with_token(plain, environment)
    if shown is plain:
        # Only the service of a state folder is sent that folder's token.
        for folder in folders:
            address = address_in(folder.path)
            if address is not None and address.runs and _by_number(address.url) == _by_number(url):
                return address
    return shown


def _with_token(address: Address, environment: Mapping[str, str]) -> Address:
    """The address with the token from the environment, which overrides the one of a folder."""
    token, file = environment.get("PILOTAGE_TOKEN"), environment.get("PILOTAGE_TOKEN_FILE")
    if not token and not file:
        return address
    return msgspec.structs.replace(address, token=token or None, token_file=None if token else file)


def _by_number(url: str) -> str:
    """The URL with the loopback name as a number: the service of a folder may be named either way."""
    return re.sub(r"^(https?://)(localhost|0\.0\.0\.0)(?=[:/]|$)", r"\g<1>127.0.0.1", url)


def _in_named_folder(folder: Path) -> Address:
    for path in (folder, folder / ".pilotage"):
        address = address_in(path)
        if address is not None:
            return address
    raise ServerError(
        "no service runs in this folder",
        subject=str(folder),
        expected=f"a URL, or a folder with {SERVICE_FILE}",
        next_step=f"name it with its scheme: --server http://{folder}"
        if not folder.exists() and _HOST_AND_PORT.fullmatch(str(folder))
        else "start one there with `pilotage serve`",
    )


def _in_a_folder(environment: Mapping[str, str], folders: Iterable[StateFolder]) -> Address:
    """The service that runs in one of the folders; else the last or next one of the first folder that knows one."""
    resting = None
    for folder in folders:
        address = address_in(folder.path) or _usual(folder)
        if address is None:
            continue
        if address.runs:
            return _with_token(address, environment)
        resting = resting or address
    if resting is None:
        raise NoServer
    return resting


class _Announced(msgspec.Struct, frozen=True):
    url: str
    token_file: str = ""
    ca_file: str = ""


def address_in(folder: Path) -> Address | None:
    """The service announced in a state folder, or None; raises `ServerError` if another user owns the folder."""
    file = folder / SERVICE_FILE
    try:
        with file.open("rb") as stream:
            owner = os.fstat(stream.fileno()).st_uid
            runs = _is_locked(stream.fileno())
            content = stream.read(SERVICE_BYTES_MAX)
    except OSError:
        return None
    if owner not in (os.geteuid(), 0):
        raise ServerError(
            "this folder's service belongs to another user",
            subject=str(file),
            next_step="name the server you mean with --server URL",
        )
    try:
        announced = msgspec.json.decode(content, type=_Announced)
        url = normal_server(announced.url)
    except (msgspec.DecodeError, BadSetting):
        raise ServerError(
            "this file does not say where the service is",
            subject=str(file),
            next_step="remove it and start the service again, or name the server with --server URL",
        ) from None
    return Address(
        url=url,
        token_file=announced.token_file or str(folder / TOKEN_FILE),
        ca_file=announced.ca_file,
        origin=str(folder),
        runs=runs,
    )


def _is_locked(descriptor: int) -> bool:
    """Whether the service that wrote the file is alive: it holds the lock while it runs."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _usual(folder: StateFolder) -> Address | None:
    """Where the service of a folder will be when it starts again; it ran before, since its token is there."""
    token_file = folder.path / TOKEN_FILE
    if not folder.usual_url or not token_file.is_file():
        return None
    return Address(url=normal_server(folder.usual_url), token_file=str(token_file), origin=str(folder.path), runs=False)
