"""How an agent finds its service: by address or announcement, over the network or through a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pilotage.agent.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable


class Announced(NamedTuple):
    """What a service told in its announcement: its address, and the file with the authority of its certificate."""

    url: str = ""
    ca_file: str = ""


def announced(file: str) -> Announced:
    """What an announcement says; nothing where there is none to be read."""
    try:
        told = json.loads(Path(file).read_bytes()) if file else {}
        return Announced(str(told.get("url", "")), str(told.get("ca_file", "")))
    except (OSError, ValueError, AttributeError):
        return Announced()


def read_token(file: str) -> str:
    """The token in a file, or nothing: then the service says what it thinks of that."""
    try:
        return Path(file).read_text("ascii").strip() if file else ""
    except (OSError, ValueError):
        return ""


def connect(
    server: str,
    *,
    announcement: str = "",
    token_file: str = "",
    ca_file: str = "",
    token: Callable[[], str] | None = None,
) -> Link:
    """Connect to the service; it may have come back under another address, which its announcement tells.

    `token` says which token to show now; without it, the one in the file is.
    """
    addresses = [server]
    told = announced(announcement)
    if told.url and told.url != server:
        addresses.insert(1 if server.startswith("unix:") else 0, told.url)
    ca_file = ca_file or told.ca_file
    shown = token if token is not None else read_token(token_file)
    for address in addresses[:-1]:
        try:
            return _link(address, token=shown, ca_file=ca_file)
        except (OSError, ValueError):
            continue
    return _link(addresses[-1], token=shown, ca_file=ca_file)


def _link(address: str, *, token: str | Callable[[], str], ca_file: str) -> Link:
    if address.startswith("spool:"):
        from pilotage.agent.spool_link import SpoolLink

        return SpoolLink(address, token=token)
    return Link(address, token=token, ca_file=ca_file)
