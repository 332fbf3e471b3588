"""Finds servers, sends them requests over HTTP and merges their answers, with the standard library and `model` only.

`Server` is imported on first use: finding a server needs no HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotage.client.errors import NoServer, ServerError, ServerRefused, ServerUnreachable
from pilotage.client.finding import Address, find_addresses

if TYPE_CHECKING:
    from pilotage.client.server import Server

__all__ = ["Address", "NoServer", "Server", "ServerError", "ServerRefused", "ServerUnreachable", "find_addresses"]


def __getattr__(name: str) -> Any:
    """Import `Server` on first use."""
    if name != "Server":
        raise AttributeError(f"module 'pilotage.client' has no attribute {name!r}")
    from pilotage.client.server import Server

    globals()[name] = Server
    return Server
