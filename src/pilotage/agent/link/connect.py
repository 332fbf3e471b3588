"""The token of an agent: the newest one from its file or from an answer of the service.

All pilots of a site start with one token. The service answers the first exchange of each with a token of its own, which
the pilot must use from then on, and renews tokens with later answers. Such tokens are kept in memory, and in a file of
the agent's own, so that a later agent can deliver for it; the file that it was started with stays unchanged, since
others read it. If its own token expired because the service was away too long, the agent uses a newer one of its site,
and names the expired one to get another.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.link.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# Finding the service: by address or announcement, over the network or through a folder.


class Announcement(NamedTuple):
    """The announcement of a service: its address, and the file with its CA certificate."""

    url: str = ""
    ca_file: str = ""


def announced(file: str) -> Announcement:
    """Read an announcement; empty if it cannot be read."""
    try:
        content = json.loads(Path(file).read_bytes()) if file else {}
        return Announcement(str(content.get("url", "")), str(content.get("ca_file", "")))
    except (OSError, ValueError, AttributeError):
        return Announcement()


def read_token(file: str) -> str:
    """Read a token file; empty if it cannot be read: the service then rejects the request."""
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
    """Connect to the service, at the address in its announcement if it has moved.

    `token` returns the token for each request; the default is the one in the file.
    """
    addresses = [server]
    found = announced(announcement)
    if found.url and found.url != server:
        addresses.insert(1 if server.startswith("unix:") else 0, found.url)
    ca_file = ca_file or found.ca_file
    shown = token if token is not None else read_token(token_file)
    for address in addresses[:-1]:
        try:
            return _link(address, token=shown, ca_file=ca_file)
        except (OSError, ValueError):
            continue
    return _link(addresses[-1], token=shown, ca_file=ca_file)


def _link(address: str, *, token: str | Callable[[], str], ca_file: str) -> Link:
    if address.startswith("spool:"):
        from pilotage.agent.link.folder_link import SpoolLink

        return SpoolLink(address, token=token)
    return Link(address, token=token, ca_file=ca_file)


TOKEN_FIELD = b"pilotage-token"  # header of an answer with the next token to use
UNAUTHENTICATED = 401  # status of an answer to a rejected token
_MODE = 0o600


def ends_at(token: str) -> float | None:
    """When a token expires, in seconds since 1970, by its own claims; None if it has none."""
    try:
        return float(_claims(token)["exp"])
    except (ValueError, KeyError, TypeError):
        return None


def _claims(token: str) -> dict[str, Any]:
    """The claims of a token; raises `ValueError` if it has none."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("not a signed token")
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    if not isinstance(claims, dict):
        raise ValueError("a token without claims")
    return claims


def _worth(token: str) -> tuple[bool, float]:
    """Sort key of tokens: the pilot's own before that of its site, then the one that expires last."""
    try:
        claims = _claims(token)
        return bool(claims.get("pilot")), float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return False, 0.0


class Credentials:
    """Chooses the current token; safe for threads."""

    def __init__(self, token_file: str, own_file: Path | None = None) -> None:
        """Read the initial token file; renewed tokens are kept in `own_file`."""
        self._token_file = token_file
        self._own_file = own_file
        self._guard = threading.Lock()
        self._token = ""
        self.ended = ""  # the agent's own token, if the service no longer accepts it
        self.look_again()

    def __call__(self) -> str:
        """The current token, or empty."""
        return self._token

    def look_again(self) -> None:
        """Read the files again, which may have newer tokens; prefers its own, then the one that expires last."""
        given = read_token(self._token_file)
        own = read_token(str(self._own_file)) if self._own_file is not None else ""
        with self._guard:
            # A token without an expiry is not renewed: its file has the current one.
            if given and ends_at(given) is None:
                self._token = given
                return
            known = [each for each in (given, own, self._token) if each and each != self.ended]
            self._token = max(known, key=_worth, default="")

    def refused(self) -> bool:
        """React to a rejected token; returns whether another token, that of the site, is tried next.

        If both are rejected they take turns: a service that comes back may accept either.
        """
        shown = self._token
        is_own = _worth(shown)[0]
        self.ended = shown if is_own and read_token(self._token_file) else ""
        self.look_again()
        return is_own and self._token != shown

    def connect(self, server: str, *, announcement: str, ca_file: str) -> Link:
        """Connect to a service, with the current token at each request; see `connect`."""
        self.look_again()
        return connect(server, announcement=announcement, ca_file=ca_file, token=self)

    def take(self, fields: Mapping[bytes, bytes]) -> None:
        """Take a renewed token from the header of an answer."""
        if TOKEN_FIELD in fields:
            self.renewed(fields[TOKEN_FIELD].decode("latin-1"))

    def renewed(self, token: str) -> None:
        """Use and keep a renewed token."""
        if not token or token == self._token or _worth(token) <= _worth(self._token):
            return
        with self._guard:
            self._token, self.ended = token, ""
        if self._own_file is not None:
            with contextlib.suppress(OSError):  # it is in memory, and the next one may be stored
                _keep(self._own_file, token)


def _keep(file: Path, token: str) -> None:
    draft = file.with_name(f".{file.name}.draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        os.write(descriptor, token.encode("ascii") + b"\n")
    finally:
        os.close(descriptor)
    draft.replace(file)
