"""The token that an agent shows: the last of those that it was given, in its file or with an answer of the service.

All pilots of a site are started with one token. In answer to its first exchange each is given one of its own, without which it
is not heard. A service renews tokens with its answers. What came so is kept in memory, and in a file of the agent's own for who has to
speak for it after its end; the file that it was started with stays as it is: others may read it, too. One of its own that has
ended, because the service was away for longer than it lasts, is told beside a newer one of its site, and another one comes.
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


# How an agent finds its service: by address or announcement, over the network or through a folder.


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
        from pilotage.agent.link.folder_link import SpoolLink

        return SpoolLink(address, token=token)
    return Link(address, token=token, ca_file=ca_file)


TOKEN_FIELD = b"pilotage-token"  # of an answer: what to show from now on
UNAUTHENTICATED = 401  # the status of an answer to who shows a token that is not taken
_MODE = 0o600


def ends_at(token: str) -> float | None:
    """When a token ends, in seconds since 1970, by what it says of itself; None of one that says nothing."""
    try:
        return float(_claims(token)["exp"])
    except (ValueError, KeyError, TypeError):
        return None


def _claims(token: str) -> dict[str, Any]:
    """What a token says of itself; raises `ValueError` for one that says nothing."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("no signed token")
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    if not isinstance(claims, dict):
        raise ValueError("a token that says nothing")
    return claims


def _worth(token: str) -> tuple[bool, float]:
    """By which of two tokens is shown: one of the pilot's own goes before that of its site, and the one that ends last."""
    try:
        claims = _claims(token)
        return bool(claims.get("pilot")), float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return False, 0.0


class Credentials:
    """Says which token to show now. Any thread may ask."""

    def __init__(self, token_file: str, own_file: Path | None = None) -> None:
        """Read the file that it is started with; `own_file` is where renewed ones are kept."""
        self._token_file = token_file
        self._own_file = own_file
        self._guard = threading.Lock()
        self._token = ""
        self.ended = ""  # the agent's own token, where it is taken no longer
        self.look_again()

    def __call__(self) -> str:
        """The token, empty where there is none."""
        return self._token

    def look_again(self) -> None:
        """Read the files: somebody else may have put a newer token there. Its own goes first, then the one that ends last."""
        given = read_token(self._token_file)
        own = read_token(str(self._own_file)) if self._own_file is not None else ""
        with self._guard:
            # One that says no end is not renewed: whatever its file says now is right.
            if given and ends_at(given) is None:
                self._token = given
                return
            known = [each for each in (given, own, self._token) if each and each != self.ended]
            self._token = max(known, key=_worth, default="")

    def refused(self) -> bool:
        """The token is not taken; whether that of its site is shown in place of the agent's own from now on, and may be taken.

        Where that is refused, too, they take turns: either may be taken by who comes back.
        """
        shown = self._token
        is_own = _worth(shown)[0]
        self.ended = shown if is_own and read_token(self._token_file) else ""
        self.look_again()
        return is_own and self._token != shown

    def connect(self, server: str, *, announcement: str, ca_file: str) -> Link:
        """Connect to a service, and show it whatever is the token at each request; see `link.connect`."""
        self.look_again()
        return connect(server, announcement=announcement, ca_file=ca_file, token=self)

    def take(self, fields: Mapping[bytes, bytes]) -> None:
        """Take the token that an answer of the service may bring in its header."""
        if TOKEN_FIELD in fields:
            self.renewed(fields[TOKEN_FIELD].decode("latin-1"))

    def renewed(self, token: str) -> None:
        """The service gave another one."""
        if not token or token == self._token or _worth(token) <= _worth(self._token):
            return
        with self._guard:
            self._token, self.ended = token, ""
        if self._own_file is not None:
            with contextlib.suppress(OSError):  # it is known here, and the next one may be kept
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
