"""Diagnoses an installation: tests each hop between here and a result, and says what to do about failures."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from pilotage.adapters.journals.network_folders import network_kind
from pilotage.adapters.journals.sqlite.locations import BOOK
from pilotage.adapters.settings.settings_files import STATE_FOLDER, load_settings, state_folder
from pilotage.adapters.settings.tokens import TokenError, read_token, token_file
from pilotage.adapters.stores.work_database import FILE as INDEX
from pilotage.app.service.background import is_held
from pilotage.app.sites.entries import file_here, known_sites
from pilotage.app.state_folder import other_ports, settings_here, state_folders
from pilotage.client.finding import address_in
from pilotage.model.errors import PilotageError, install_again, missing_extra, missing_parts
from pilotage.model.settings.settings import Settings
from pilotage.model.texts import size_text
from pilotage.service.announcement import Announcement, find_service

Verdict = Literal["ok", "warn", "bad"]

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 35)
FREE_BYTES_BAD = 64 * 2**20
FREE_BYTES_WARN = 2**30
FREE_FILES_BAD = 1000
SKEW_SECONDS_WARN = 2.0
SKEW_SECONDS_BAD = 60.0
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 3.0
"""How long to check a file of SQLite."""
BODY_BYTES_MAX = 65_536
SOCKET_NAME_BYTES_MAX = 100
_STDERR_LINES = 3
_POSTGRESQL = ("postgresql:", "postgres:")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One hop: whether it works, and if not, what to do."""

    hop: str
    verdict: Verdict
    message: str
    next_step: str = ""


class HostSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The system that the doctor examines; tests replace parts of it."""

    python: tuple[int, int] = (sys.version_info[0], sys.version_info[1])
    sqlite: str = sqlite3.sqlite_version
    now: Callable[[], float] = time.time
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    link: Callable[[Path, Path], None] = os.link
    network: Callable[[Path], str] = network_kind
    missing_parts: Callable[[], list[str]] = missing_parts


class CheckedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The settings to examine, their state folder, and whether the port may change."""

    settings: Settings
    folder: Path
    state: Path
    port_may_change: bool = False


def folder_to_check(journal: str | None) -> CheckedFolder:
    """The settings of commands in the current folder: with its own state folder, or the nearest above it."""
    here = Path.cwd()
    settings = settings_here({"journal.url": journal})
    own = CheckedFolder(
        settings=settings,
        folder=here,
        state=state_folder(settings, folder=here).absolute(),
        port_may_change=bool(other_ports(settings, folder=here, flags={})),
    )
    if journal is not None:
        return own
    known = [found.path for found in state_folders(environment=os.environ, folder=here) if _is_known(found.path)]
    chosen = next((path for path in known if find_service(path) is not None), known[0] if known else own.state)
    if chosen == own.state or chosen.name != STATE_FOLDER:
        return own
    settings = load_settings(environment=os.environ, folder=chosen.parent, flags={})
    may_change = bool(other_ports(settings, folder=chosen.parent, flags={}))
    return CheckedFolder(settings=settings, folder=here, state=chosen, port_may_change=may_change)


def _is_known(state: Path) -> bool:
    """Whether this user's service ever ran here."""
    with contextlib.suppress(PilotageError):
        return address_in(state) is not None or token_file(state).is_file()
    return False


def diagnose(concerned: CheckedFolder, *, world: HostSystem | None = None) -> list[Finding]:
    """Test every hop from a folder: programs, disk, token, service and agents."""
    world = world or HostSystem()
    settings, folder, state = concerned.settings, concerned.folder, concerned.state
    found = find_service(state)
    findings = [*_programs(world), *_installed(settings, world), *_disk(state, world)]
    if folder.absolute() != state.parent:
        findings += _writes("results", folder.absolute(), world)
    findings += [_token(state), *_sites(settings, folder), *_book(state), *_service(concerned, found)]
    if found is not None and found.socket:
        findings += [*_socket(found), *_agents(state)]
    return findings


def _programs(world: HostSystem) -> Iterator[Finding]:
    version = ".".join(map(str, world.python))
    if world.python < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        yield Finding(
            hop="python",
            verdict="bad",
            message=f"Python {version} is too old: {wanted} or later is needed",
            next_step="make an environment with a newer one: python3.11 -m venv …",
        )
    else:
        yield Finding(hop="python", verdict="ok", message=f"Python {version}")
    parts = tuple(int(part) for part in world.sqlite.split(".")[:2] if part.isdecimal())
    if parts < SQLITE_MIN:
        wanted = ".".join(map(str, SQLITE_MIN))
        yield Finding(
            hop="sqlite",
            verdict="bad",
            message=f"SQLite {world.sqlite} is too old: {wanted} or later is needed",
            next_step="use a Python that brings a newer one",
        )
    else:
        yield Finding(hop="sqlite", verdict="ok", message=f"SQLite {world.sqlite}")


def _installed(settings: Settings, world: HostSystem) -> Iterator[Finding]:
    """Missing parts of the installation; nothing if it is complete."""
    if missing := world.missing_parts():
        message = f"not installed, but needed to run jobs: {', '.join(missing)}"
        yield Finding(hop="installation", verdict="bad", message=message, next_step=install_again(missing))
    if settings.journal.url.startswith(_POSTGRESQL) and missing_extra("postgres"):
        message, step = "the book is in PostgreSQL, and psycopg is not installed", "pip install 'pilotage[postgres]'"
        yield Finding(hop="installation", verdict="bad", message=message, next_step=f"install it: {step}")
    if any(store.url.startswith("s3:") for store in settings.stores) and missing_extra("s3"):
        message, step = "a store has s3: locators, and obstore is not installed", "pip install 'pilotage[s3]'"
        yield Finding(hop="installation", verdict="bad", message=message, next_step=f"install it: {step}")


def _disk(state: Path, world: HostSystem) -> Iterator[Finding]:
    """The state folder, or the nearest existing one above it."""
    place = next(each for each in (state, *state.parents) if each.exists())
    yield from _writes("state folder", place, world)
    if place == state:
        yield from _closed(state)
    kind = world.network(place)
    if kind:
        yield Finding(
            hop="file system",
            verdict="warn",
            message=f"{place} is on {kind}, a network file system: slower, and files may be seen late",
            next_step="keep the state on a local disk: --journal sqlite:DIR",
        )
    else:
        yield Finding(hop="file system", verdict="ok", message=f"{place} is on a local disk")
    if len(os.fsencode(state / "agent.sock")) > SOCKET_NAME_BYTES_MAX:
        yield Finding(
            hop="socket name",
            verdict="warn",
            message="the path of the state folder is too long for a socket: agents use a detour",
            next_step="a folder with a shorter path is simpler",
        )


def _closed(state: Path) -> Iterator[Finding]:
    """Whether other users can access the state folder: then no service starts there."""
    from pilotage.service.server import OpenToOthers, refuse_open_folder

    try:
        refuse_open_folder(state)
    except OpenToOthers as open_folder:
        message = f"{open_folder.what}: expected {open_folder.expected}, got {open_folder.got}"
        yield Finding(hop="state folder: access", verdict="bad", message=message, next_step=open_folder.next_step)
    else:
        yield Finding(hop="state folder: access", verdict="ok", message="only you can access it")


def _writes(hop: str, place: Path, world: HostSystem) -> Iterator[Finding]:
    """Whether a folder can be written, has space, keeps time and supports hard links."""
    probe = place / f".pilotage-doctor-{secrets.token_hex(4)}"
    other = probe.with_suffix(".link")
    try:
        with probe.open("xb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        written_at = probe.stat().st_mtime
    except OSError as error:
        yield Finding(
            hop=hop,
            verdict="bad",
            message=f"{place} cannot be written: {(error.strerror or str(error)).lower()}",
            next_step="free some space, correct its permissions, or use another folder",
        )
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
        yield from _room(hop, place, world)
        return
    try:
        yield Finding(hop=hop, verdict="ok", message=f"{place} can be written")
        yield from _room(hop, place, world)
        yield _clock(hop, written_at - world.now())
        try:
            world.link(probe, other)
        except OSError:
            yield Finding(
                hop=f"{hop}: hard links",
                verdict="warn",
                message=f"{place} has no hard links: inputs are copied, which takes time and space",
                next_step="keep state and results on a file system that does, such as ext4 or xfs",
            )
        else:
            yield Finding(hop=f"{hop}: hard links", verdict="ok", message="inputs are linked, not copied")
    finally:
        probe.unlink(missing_ok=True)
        other.unlink(missing_ok=True)


def _room(hop: str, place: Path, world: HostSystem) -> Iterator[Finding]:
    hop = f"{hop}: space"
    room = world.statvfs(place)
    free = room.f_bavail * room.f_frsize
    free_text = f"{size_text(free)} are free"
    if free < FREE_BYTES_BAD:
        some = f"only {free_text}, and a job needs {size_text(FREE_BYTES_BAD)} or more"
        message, verdict = some if free else "there is no space left", "bad"
    elif room.f_files and room.f_favail < FREE_FILES_BAD:
        some = f"only {room.f_favail} more files fit here" if room.f_favail else "no more files fit here"
        message, verdict = some, "bad"
    elif free < FREE_BYTES_WARN:
        message, verdict = f"there is little space left: {free_text}", "warn"
    else:
        message, verdict = free_text, "ok"
    step = "" if verdict == "ok" else f"free some space on the file system of {place}"
    yield msgspec.convert({"hop": hop, "verdict": verdict, "message": message, "next_step": step}, Finding)
    if room.f_flag & os.ST_NOEXEC:
        yield Finding(
            hop=f"{hop.partition(':')[0]}: programs",
            verdict="bad",
            message=f"{place} is mounted noexec: scripts that a job brings along cannot be started",
            next_step="keep the state on another file system: --journal sqlite:DIR",
        )


def _clock(hop: str, skew_seconds: float) -> Finding:
    hop = f"{hop}: clock"
    ahead = "ahead of" if skew_seconds > 0 else "behind"
    message = f"the file system is {abs(skew_seconds):.1f} s {ahead} this computer"
    step = "synchronize both clocks with the same time server"
    if abs(skew_seconds) >= SKEW_SECONDS_BAD:
        return Finding(hop=hop, verdict="bad", message=message, next_step=step)
    if abs(skew_seconds) >= SKEW_SECONDS_WARN:
        return Finding(hop=hop, verdict="warn", message=message, next_step=step)
    return Finding(hop=hop, verdict="ok", message="the clocks agree")


def _token(state: Path) -> Finding:
    if not token_file(state).exists():
        return Finding(hop="token", verdict="ok", message="there is none yet: the service makes it when it starts")
    try:
        read_token(state)
    except TokenError as error:
        return Finding(hop="token", verdict="bad", message=error.what, next_step=error.next_step or str(error))
    return Finding(hop="token", verdict="ok", message=str(token_file(state)))


def _sites(settings: Settings, folder: Path) -> Iterator[Finding]:
    """The file of sites, if there is one."""
    file = file_here(settings, folder=folder)
    if not file.exists():
        return
    try:
        entries = known_sites(file).entries
    except PilotageError as error:
        step = "correct it; a running service keeps its sites until then"
        yield Finding(hop="sites", verdict="bad", message=str(error).replace("\n", "; "), next_step=step)
        return
    names = ", ".join(each.name for each in entries) or "none"
    yield Finding(hop="sites", verdict="ok", message=f"{file}: {names}; test each with: pilotage site test NAME")


def _book(state: Path) -> Iterator[Finding]:
    """The book and the index of earlier results, as far as a check of some seconds can tell."""
    for hop, name, cure in (
        ("book", BOOK, "stop the service, and run: pilotage book check; then restore a backup of the book"),
        ("earlier work", INDEX, "start the service again: it makes a new one, and earlier results are not reused"),
    ):
        if not (state / name).is_file():
            continue
        try:
            whole = _is_whole(state / name)
        except sqlite3.Error as error:
            yield Finding(hop=hop, verdict="bad", message=f"{state / name} is damaged: {error}", next_step=cure)
        else:
            result = "is sound" if whole else "was only checked in part; check all of it with: pilotage book check"
            yield Finding(hop=hop, verdict="ok", message=f"{state / name} {result}")


def _is_whole(file: Path) -> bool:
    """Whether all of a SQLite file could be checked in a few seconds; raises if it is damaged."""
    until = time.monotonic() + LOOK_SECONDS
    with contextlib.closing(sqlite3.connect(file, timeout=ANSWER_SECONDS)) as opened:
        opened.set_progress_handler(lambda: time.monotonic() > until, 10_000)
        try:
            (result,) = opened.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            return False  # it took too long, or may not be read
        if result != "ok":
            raise sqlite3.DatabaseError(result.replace("\n", ": "))
    return True


def _service(concerned: CheckedFolder, found: Announcement | None) -> Iterator[Finding]:
    if found is None:
        yield _port(concerned.settings, may_change=concerned.port_may_change)
        yield Finding(
            hop="service", verdict="warn", message="no service runs here", next_step="start it: pilotage serve"
        )
        return
    try:
        http = _connection(found)
        try:
            http.request("GET", "/healthz")
            answer = http.getresponse()
            status, body = answer.status, answer.read(BODY_BYTES_MAX)
        finally:
            http.close()
    except (OSError, HTTPException) as error:
        yield Finding(
            hop="service",
            verdict="bad",
            message=f"process {found.pid} lives, and does not answer at {found.url}: {error}",
            next_step="its log says why: service.log; or stop it: pilotage serve --stop",
        )
    else:
        well = status == 200
        yield Finding(
            hop="service",
            verdict="ok" if well else "bad",
            message=f"process {found.pid} answers at {found.url}"
            + ("" if well else f", and is not well: {_reason(status, body)}"),
            next_step="" if well else "its log says more: service.log",
        )


def _connection(found: Announcement) -> HTTPConnection:
    """A connection to a service, with or without TLS; raises `OSError` if its certificate is rejected."""
    parts = urlsplit(found.url)
    if parts.scheme != "https":
        return HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
    from http.client import HTTPSConnection

    from pilotage.agent.link.tls import client_context

    context = client_context(found.ca_file)
    return HTTPSConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS, context=context)


class _Fault(msgspec.Struct, frozen=True):
    message: str = ""


class _Answer(msgspec.Struct, frozen=True):
    error: _Fault = _Fault()


def _reason(status: int, body: bytes) -> str:
    """What a service reports as its fault."""
    with contextlib.suppress(msgspec.DecodeError):
        if message := msgspec.json.decode(body, type=_Answer).error.message:
            return message
    return f"HTTP {status}"


def _port(settings: Settings, *, may_change: bool) -> Finding:
    host, port = settings.service.host, settings.service.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            if may_change and error.errno == errno.EADDRINUSE:
                return Finding(
                    hop="port",
                    verdict="warn",
                    message=f"{host}:{port} is taken by another program: a service here uses a free one",
                    next_step="to use a fixed one, choose it: pilotage serve --port N, or the setting service.port",
                )
            of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
            option, setting = ("--port 0", "service.port") if of_port else ("--host 127.0.0.1", "service.host")
            return Finding(
                hop="port",
                verdict="bad",
                message=f"{host}:{port} cannot be listened on: {(error.strerror or str(error)).lower()}",
                next_step=f"choose another: pilotage serve {option}, or the setting {setting}",
            )
    return Finding(hop="port", verdict="ok", message=f"{host}:{port} is free")


def _socket(found: Announcement) -> Iterator[Finding]:
    if found.socket == found.url:
        yield Finding(
            hop="socket",
            verdict="warn",
            message="the state folder has no sockets: agents use TCP",
            next_step="keep the state on a local disk: --journal sqlite:DIR",
        )
        return
    path = Path(found.socket)
    try:
        _speak(path)
    except (OSError, HTTPException, ValueError) as error:
        yield Finding(
            hop="socket",
            verdict="bad",
            message=f"agents cannot reach {path}: {(getattr(error, 'strerror', None) or str(error)).lower()}",
            next_step="start the service again: pilotage serve --stop, then pilotage serve",
        )
    else:
        yield Finding(hop="socket", verdict="ok", message=f"agents are answered at {path}")


def _speak(path: Path) -> None:
    """Send a request to a socket; raises if there is no answer."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(ANSWER_SECONDS)
            line.connect(f"/proc/self/fd/{folder}/{path.name}")
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")
            if not line.recv(64).startswith(b"HTTP/1.1 "):  # whether it is healthy is another question
                raise ValueError("the answer is not that of a service")
    finally:
        os.close(folder)


def _agents(state: Path) -> Iterator[Finding]:
    """The pilots on this computer: those alive, and the last lines of the others."""
    files = sorted((state / "pilots").glob("*.json"))
    alive = 0
    for file in files:
        # It holds the lock of its record while it lives; its pid may belong to another process by now.
        if not is_held(file):
            output = _last_lines(file.with_suffix(".err"))
            yield Finding(
                hop="agent",
                verdict="warn",
                message=f"the agent {file.stem} is gone" + (f"; it printed: {output}" if output else ""),
                next_step="the service starts another; its last lines are in status, too",
            )
        else:
            alive += 1
    if alive:
        message = "1 agent lives" if alive == 1 else f"{alive} agents live"
        yield Finding(hop="agents", verdict="ok", message=message)
    elif not files:
        yield Finding(hop="agents", verdict="ok", message="none is running: they start when there is work")


def _last_lines(file: Path) -> str:
    try:
        lines = file.read_bytes()[-4096:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return " / ".join(lines[-_STDERR_LINES:])
