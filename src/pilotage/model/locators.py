"""Locators: the URLs of files in stores. Names are percent-encoded, except in an absolute path, which is taken as it is."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

import msgspec

from pilotage.model.errors import PilotageError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WITH_QUERY = frozenset({"http", "https"})
_SHOWN_MAX = 300


CONTENT = "store:"
"""Locators of the service's own content store: `store:SHA256`; alone, it is where outputs are kept by content."""


class BadLocator(PilotageError):
    """A locator cannot be read: write `SCHEME://HOST/PATH` with percent-encoded names, or an absolute path."""


class Locator(msgspec.Struct, frozen=True, kw_only=True):
    """A locator in its parts; the path is decoded, as the store names the file."""

    scheme: str
    host: str = ""  # the bucket, for s3
    port: int = 0
    user: str = ""
    path: str = ""
    query: str = ""

    @property
    def origin(self) -> str:
        """Scheme, user, host and port: what is reached with one credential."""
        account = f"{quote(self.user)}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{account}{host}{f':{self.port}' if self.port else ''}"


@lru_cache(maxsize=256)  # a transfer asks several times
def parse_locator(text: str) -> Locator:
    """Read a locator; an absolute path is a `file` locator. Raises `BadLocator`."""
    if text.startswith("/"):
        return Locator(scheme="file", path=_checked_path(text, text))
    found = _SCHEME.match(text)
    if found is None:
        raise _bad(text, "this is not a locator")
    if _CONTROL.search(text):  # urlsplit would drop line breaks in silence
        raise _bad(text, "a control character must be written as %0A")
    scheme = found[1].lower()
    try:
        parts = urlsplit(text)
        host, port, user, password = parts.hostname or "", parts.port or 0, parts.username or "", parts.password
    except ValueError as fault:
        raise _bad(text, f"this is not a locator: {fault}") from fault
    if password is not None:
        raise _bad(text, "a locator holds no password: it belongs into a file that [stores.NAME] names")
    if parts.fragment or "#" in text or (("?" in text) and scheme not in _WITH_QUERY):
        raise _bad(text, "? and # in names are written as %3F and %23")
    if scheme == "s3":  # a bucket's name keeps its case
        host = parts.netloc.rpartition("@")[2].partition(":")[0]
    if scheme == "file" and host not in ("", "localhost"):
        raise _bad(text, "not a file of this computer")
    decoded = unquote(parts.path, errors="surrogateescape")
    return Locator(
        scheme=scheme,
        host="" if scheme == "file" else host,
        port=port,
        user=unquote(user),
        path=_checked_path(text, decoded) if scheme not in _WITH_QUERY else parts.path,
        query=parts.query,
    )


def locator_below(base: str, name: str) -> str:
    """The locator of a name, such as `deep/a b.dat`, below the locator of a folder."""
    below = name if base.startswith("/") else quote(name, errors="surrogateescape")
    return f"{base.rstrip('/')}/{below}"


def shown_locator(text: str) -> str:
    """A locator for messages: in one line, not too long, and without a query, which may be a signature."""
    if _SCHEME.match(text):
        text = text.partition("?")[0]
    plain = _CONTROL.sub(lambda found: f"%{ord(found[0]):02X}", text)
    return plain if len(plain) <= _SHOWN_MAX else f"{plain[:_SHOWN_MAX]}…"


def _checked_path(text: str, path: str) -> str:
    if "\0" in path or ".." in path.split("/"):
        raise _bad(text, "a path holds neither .. nor a null character")
    return path


def _bad(text: str, why: str) -> BadLocator:
    return BadLocator(
        why, subject=shown_locator(re.sub(r"//[^/@]*@", "//", text)), expected="SCHEME://HOST/PATH or an absolute path"
    )
