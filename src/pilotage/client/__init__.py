"""The remote side: finds a server, asks it over HTTP, and merges what several answer. Standard library and `model` only."""

from __future__ import annotations

from pilotage.client.errors import NoServer, ServerError, ServerRefused, ServerUnreachable
from pilotage.client.finding import Address, find_addresses
from pilotage.client.server import Server

__all__ = ["Address", "NoServer", "Server", "ServerError", "ServerRefused", "ServerUnreachable", "find_addresses"]
