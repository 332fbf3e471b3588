"""Runs uvicorn in this process, on bound sockets, and stops it in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from ssl import SSLContext
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn

from pilotage.model.errors import PilotageError
from pilotage.service.http.admission import OpenConnections
from pilotage.service.http.connections import Acceptor, ConnectionLimits, LimitedProtocol, close_overdue

if TYPE_CHECKING:
    from litestar.types import ASGIApp

GRACE_SECONDS = 10
"""How long requests in progress may take once the service was asked to stop."""

KEEP_ALIVE_SECONDS = 30
LOOK_SECONDS = 0.1
CERTIFICATE_TICKS = 50  # of a tenth of a second each
LATE_TICKS = 5
STARTUP_FAILED = 3  # the exit status of uvicorn
BACKLOG = 512
FILES_MAX = 16_384
SOCKET_NAME_BYTES_MAX = 100  # of the 108 that the system allows
OWN_FILES = 128  # for the book, its readers, logs, and notices
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NO_SOCKETS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


class CannotListen(PilotageError):
    """The address cannot be listened on: another program has the port, or the host is not this one."""


class NoSocketsHere(CannotListen):
    """The file system of the state folder has no sockets, as many network file systems: agents use TCP instead."""


def _connections_max() -> int:
    """How many connections to hold at once: the limit of open files, less those that the book needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(8, (FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, FILES_MAX)) - OWN_FILES)


class Listener(uvicorn.Server):
    """Serves an application on bound sockets until it is told to stop or a signal comes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        bound: socket.socket,
        started: Callable[[], None],
        stopping: Callable[[], None],
        winding_down: Callable[[], None] | None = None,
        beside: Sequence[socket.socket] = (),
        certificate: Certificate | None = None,
        bounds: ConnectionLimits | None = None,
        connections_max: int = 0,
    ) -> None:
        """Take callbacks for when requests are answered, and for before the last ones are waited for.

        `winding_down` is called before `stopping`, in a thread of its own, while requests are still answered; a second
        signal does not wait for it. `beside` are further sockets for the same application; they stay plain if a
        certificate makes the first one use TLS. `connections_max` limits the connections; by default the system's limit
        of open files does.
        """
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="on",
                ws="none",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
                backlog=BACKLOG,
            )
        )
        self._bounds = bounds if bounds is not None else ConnectionLimits()
        self._clients = OpenConnections(connections_max or _connections_max())
        self._looked_at = 0.0
        self._sockets = [bound, *beside]
        self._certificate = certificate
        self._when_started = started
        self._when_stopping = stopping
        self._winding_down = winding_down
        self.ended_by: int | None = None
        self.broken = ""  # why it stopped by itself, because its services had ended

    def listen(self) -> None:
        """Serve until stopped."""
        try:
            self.run(sockets=self._sockets)
        finally:
            self.should_exit = True  # also after a failure: then it need not be stopped any more

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start answering, then report it."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILED)
        context = self._certificate.context if self._certificate is not None else None
        doors: Any = [self._open(each, context if at == 0 else None) for at, each in enumerate(self._sockets)]
        self.servers = doors
        self.started = True
        self._when_started()

    def _open(self, bound: socket.socket, context: SSLContext | None) -> Acceptor:
        config = self.config
        make = partial(LimitedProtocol, config=config, server_state=self.server_state, app_state=self.lifespan.state)
        return Acceptor(bound, clients=self._clients, bounds=self._bounds, make_protocol=make, context=context)

    async def on_tick(self, counter: int) -> bool:
        """Regularly reload the certificate and close slow connections; whether to stop."""
        if self._certificate is not None and counter % CERTIFICATE_TICKS == 0:
            self._certificate.look()
        if counter % LATE_TICKS == 0:
            now = asyncio.get_running_loop().time()
            close_overdue(self._clients, self._bounds, now=now, passed_seconds=now - self._looked_at)
            self._looked_at = now
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer waiting requests, then finish those in progress."""
        if self._winding_down is not None and not self.force_exit:
            winding = asyncio.ensure_future(asyncio.to_thread(self._winding_down))
            while not winding.done() and not self.force_exit:
                await asyncio.wait((winding,), timeout=LOOK_SECONDS)
        self._when_stopping()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop in order on a signal, and do not raise it again afterwards: the caller decides what it means."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Record the signal and stop; a second one does not wait for requests."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self.ended_by = self.ended_by or sig


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on a host and a port; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY: without that, every answer waits 40 ms for the client's ack.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
        return bound
    except OSError as fault:
        bound.close()
        raise CannotListen(
            "cannot listen here",
            subject=f"{host}:{port}",
            got=fault.strerror or str(fault),
            next_step=_way_out(fault),
        ) from fault


class PlainHttp(PilotageError):
    """Tokens would cross the network unencrypted: use TLS, or say that a proxy terminates it."""


def refuse_plain(bound: socket.socket) -> None:
    """Raise `PlainHttp` for an address that other computers reach, if the service does not use TLS."""
    host = str(bound.getsockname()[0])
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise PlainHttp(
            "plain HTTP is not allowed on an address that other computers reach",
            subject=url_of(bound),
            expected="TLS, or an address of the loopback such as 127.0.0.1",
            next_step="make a certificate: pilotage tls init; or set service.plain_http to `anywhere` where"
            " something before it terminates TLS",
        )


def bind_local(file: Path) -> socket.socket:
    """A socket at a path, for this user only; the socket of a dead service is replaced.

    Paths of sockets are limited in length: a longer one is reached through the opened folder.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.name, dir_fd=folder)
        name = str(file) if len(os.fsencode(file)) <= SOCKET_NAME_BYTES_MAX else f"/proc/self/fd/{folder}/{file.name}"
        # The mode is set from the beginning, so that no other user can connect in between.
        mask = os.umask(0o177)
        try:
            bound.bind(name)
        finally:
            os.umask(mask)
        bound.listen(BACKLOG)
        return bound
    except OSError as fault:
        bound.close()
        kind = NoSocketsHere if fault.errno in _NO_SOCKETS else CannotListen
        raise kind(
            "cannot listen here",
            subject=str(file),
            got=fault.strerror or str(fault),
            next_step="choose a folder on a local disk for the state: --journal sqlite:DIR",
        ) from fault
    finally:
        os.close(folder)


def _way_out(fault: OSError) -> str:
    if fault.errno in (errno.EADDRINUSE, errno.EACCES):
        return "choose another port with --port, or 0 for any free one"
    return "choose an address of this computer with --host: 127.0.0.1 for this computer only, 0.0.0.0 for all"


def url_of(bound: socket.socket, *, scheme: str = "http") -> str:
    """The base URL of a bound socket, without a trailing slash."""
    host, port = bound.getsockname()[:2]
    if scheme == "https":  # a certificate is for a name, and "all addresses" has none
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


# The certificate of a service that uses TLS: loaded, checked, and reloaded when its file is replaced.

log = logging.getLogger(__name__)

WARN_DAYS = 30.0
WARN_EVERY_SECONDS = 86_400.0


class CertificateError(PilotageError):
    """The certificate or its key cannot be used; the message names the file."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a certificate and its key, the authority that clients trust, and the expiry."""

    certificate: str
    key: str
    ca_file: str = ""
    url: str = ""  # with a host name of the certificate; empty: this computer's names will do
    expires_at: Callable[[], float]  # seconds since 1970


class Certificate:
    """The TLS context for new connections; call `look` regularly, in the thread of the event loop."""

    def __init__(
        self, files: TlsFiles, *, clock: Callable[[], float] = time.time, warn: Callable[[str], None] = log.warning
    ) -> None:
        """Load it; raises `CertificateError`."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._files = files
        self._clock = clock
        self._warn = warn
        self._warned_at = 0.0
        self._refused: object = None
        self._loaded = self._state()
        try:
            self.context.load_cert_chain(files.certificate, files.key)
        except (OSError, ValueError) as error:
            raise CertificateError(
                f"the certificate cannot be used: {_plain(error)}",
                subject=f"{files.certificate}, {files.key}",
                next_step="make another with `pilotage tls init`, or mend service.tls_certificate and service.tls_key",
            ) from error

    def look(self) -> None:
        """Load a certificate that replaced this one, and warn of one that expires soon."""
        state = self._state()
        if state not in (self._loaded, self._refused):
            try:
                # Load it separately first: half a new one would leave the context without any.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._files.certificate, self._files.key)
                self.context.load_cert_chain(self._files.certificate, self._files.key)
            except (OSError, ValueError) as error:
                self._refused = state  # one of the two files may be on its way
                self._warn(f"the new certificate was not loaded: {_plain(error)}: {self._files.certificate}")
            else:
                self._loaded, self._refused, self._warned_at = state, None, 0.0
        now = self._clock()
        if now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned_at = now
            self._warn_of_end(now)

    def _warn_of_end(self, now: float) -> None:
        try:
            days = (self._files.expires_at() - now) / 86_400.0
        except (OSError, ValueError):
            return  # it was loaded, so it works; only its expiry is unknown
        if days < WARN_DAYS:
            expiry = "has expired" if days < 0 else f"expires in {int(days)} days"
            self._warn(f"the certificate {self._files.certificate} {expiry}; `pilotage tls init` makes a new one")

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self._files.certificate, self._files.key):
            try:
                status = Path(path).stat()
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)


def _plain(error: BaseException) -> str:
    reason = getattr(error, "reason", "") or getattr(error, "strerror", "")
    return str(reason or error).lower().replace("_", " ")
