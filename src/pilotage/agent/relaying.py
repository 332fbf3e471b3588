"""Relays at work beside everything else: one thread with an event loop, for the network inside a cluster and for a folder."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from typing import TYPE_CHECKING

from pilotage.agent.relay import Relay
from pilotage.agent.relay_folder import RelayFolder
from pilotage.agent.relay_spool import SpoolRelay
from pilotage.agent.relay_upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STOP_SECONDS = 5.0


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; raises `OSError`."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return listener


class Relaying:
    """Relays to one service, which run from `start` to `stop`."""

    def __init__(self, server: str, *, ca_file: str = "", say: Callable[[str], None] = lambda _: None) -> None:
        """Say where the service is, and who is told of what goes wrong."""
        self._server = server
        self._ca_file = ca_file
        self._say = say
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._ready = threading.Event()
        self._ending: asyncio.Event | None = None
        self._listener: socket.socket | None = None
        self._folder: RelayFolder | None = None

    def start(self, *, listener: socket.socket | None = None, folder: Path | None = None) -> None:
        """Serve a bound socket, or a folder, or both; raises `OSError` where the folder cannot be used."""
        if folder is not None:
            self._folder = RelayFolder(folder)
            self._folder.make()
        self._listener = listener
        _raise_limit()
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Hang up on everybody; they ask again."""
        if self._ending is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        upstream = Upstream(self._server, ca_file=self._ca_file)
        relay = Relay(upstream)
        working = []
        if self._listener is not None:
            await relay.listen(self._listener)
        if self._folder is not None:
            working.append(asyncio.ensure_future(SpoolRelay(self._folder, upstream, say=self._say).run()))
        self._ready.set()
        await self._ending.wait()
        await relay.close()
        for each in working:
            each.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        upstream.close()
        await asyncio.sleep(0)  # closed connections are let go of


def _raise_limit() -> None:
    """Take as many open files as we may: each pilot has some connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
