"""Connections to web servers: requests with a credential, redirects, and errors that say what failed."""

from __future__ import annotations

import base64
import ipaddress
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from pilotage.model.locators import BadLocator, parse_locator, shown_locator
from pilotage.model.settings.stores import StoreSettings
from pilotage.model.version import VERSION
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import (
    AccessDenied,
    CredentialExpired,
    FileChanged,
    NotInStore,
    StoreFull,
    StoreUnreachable,
)

IDLE_SECONDS = 10.0
REDIRECTS_MAX = 5
_BODY_MAX = 64 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LATER = frozenset({408, 423, 425, 429, 500, 502, 503, 504})
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PROPFIND"})
_KEPT = "/:@!$&'()*+,;=~%-._"
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_EXPIRED = re.compile(
    rb"<Code>(?:ExpiredToken|RequestExpired|InvalidToken)</Code>|has expired|token expired", re.IGNORECASE
)

Key = tuple[str, str, int]
Result = TypeVar("Result")


class CredentialRefused(StoreError):
    """The server refused the credential; it may have been renewed since it was read."""


class Connections:
    """Connections with the credential of one store; each is used by one request at a time. Any thread may use it."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._idle: dict[Key, list[tuple[float, HTTPConnection]]] = {}
        self._credential: str | None = None
        self._tls: ssl.SSLContext | None = None

    def attempt(self, act: Callable[[], Result], *, locator: str) -> Result:
        """Do something; if the credential is refused, once more with the credential read again."""
        try:
            return act()
        except CredentialRefused:
            with self._guard:
                self._credential = None
        try:
            return act()
        except CredentialRefused as fault:
            file = self._settings.token_file or self._settings.password_file
            raise CredentialExpired(
                fault.what,
                subject=shown_locator(locator),
                next_step=f"renew it in {file}" if file else "name a token_file or password_file in [stores.NAME]",
            ) from fault

    @contextmanager
    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] = b"",
        follow: bool = False,
    ) -> Iterator[HTTPResponse]:
        """The answer to a request; raises `StoreUnreachable` if there is none. Its status is for the caller to judge."""
        subject = shown_locator(url)
        own = True
        for _ in range(REDIRECTS_MAX + 1):
            parts = _split(url)
            sent = dict(headers or {})
            if own and (credential := self._authorization()):
                sent["Authorization"] = credential
            connection, answer = self._ask(method, parts, sent, body, subject)
            place = answer.headers.get("Location", "")
            if not (follow and answer.status in _REDIRECTS and place):
                break
            connection.close()
            moved = urljoin(parts.geturl(), place)
            if not moved.startswith("https://" if parts.scheme == "https" else ("http://", "https://")):
                raise StoreError("the server leads to another kind of address", subject=subject)
            own = own and _split(moved).netloc == parts.netloc and _split(moved).scheme == parts.scheme
            url = moved
        else:
            raise StoreError("the server leads in a circle", subject=subject)
        try:
            with _answers(subject):
                yield answer
        finally:
            self._put_back(_key(parts), connection, answer)

    def close(self) -> None:
        """Close idle connections, and forget the credential."""
        with self._guard:
            idle, self._idle = self._idle, {}
            self._credential = None
        for connections in idle.values():
            for _, connection in connections:
                connection.close()

    def _ask(
        self,
        method: str,
        parts: SplitResult,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes],
        subject: str,
    ) -> tuple[HTTPConnection, HTTPResponse]:
        used = self._take(_key(parts)) if method in _REPEATABLE else None
        if used is not None:
            try:
                return used, _exchange(used, method, parts, headers, body)
            except (OSError, HTTPException):
                used.close()  # the server closed it while it was idle
        with _answers(subject):
            connection = self._connect(parts, subject)
            try:
                return connection, _exchange(connection, method, parts, headers, body)
            except BaseException:
                connection.close()
                raise

    def _connect(self, parts: SplitResult, subject: str) -> HTTPConnection:
        scheme, host, port = _key(parts)
        seconds = self._settings.timeout_seconds
        if scheme == "https":
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=seconds, context=self._context())
        else:
            connection = HTTPConnection(host, port, timeout=seconds)
        try:
            connection.connect()
            # Cloud computers hand out their credentials at such addresses: no document may read them.
            if not self._settings.url and _is_link_local(connection.sock.getpeername()[0]):
                raise AccessDenied(
                    "the address belongs to this computer's own network",
                    subject=subject,
                    next_step="describe it in [stores.NAME] if it is a store",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _take(self, key: Key) -> HTTPConnection | None:
        oldest = time.monotonic() - IDLE_SECONDS
        with self._guard:
            idle = self._idle.get(key, [])
            old = [connection for at, connection in idle if at < oldest]
            idle[:] = [each for each in idle if each[0] >= oldest]
            found = idle.pop()[1] if idle else None
        for connection in old:
            connection.close()
        return found

    def _put_back(self, key: Key, connection: HTTPConnection, answer: HTTPResponse) -> None:
        """Keep a connection for the next request, if all of the answer was read."""
        if answer.isclosed() and not answer.will_close:
            with self._guard:
                self._idle.setdefault(key, []).append((time.monotonic(), connection))
        else:
            connection.close()

    def _authorization(self) -> str:
        settings = self._settings
        if not settings.token_file and not settings.password_file:
            return ""
        with self._guard:
            if self._credential is None:
                if settings.token_file:
                    self._credential = f"Bearer {_secret(settings.token_file)}"
                else:
                    pair = f"{settings.user}:{_secret(settings.password_file)}"
                    self._credential = f"Basic {base64.b64encode(pair.encode()).decode()}"
            return self._credential

    def _context(self) -> ssl.SSLContext:
        with self._guard:
            if self._tls is None:
                self._tls = ssl.create_default_context()
                if self._settings.ca_file:
                    try:
                        self._tls.load_verify_locations(Path(self._settings.ca_file).expanduser())
                    except OSError as fault:
                        raise StoreError(f"it cannot be read: {fault}", subject=self._settings.ca_file) from fault
            return self._tls


def url_of(locator: str) -> str:
    """The URL of a locator as it is sent: what may not stand in a URL is percent-encoded. Raises `StoreError`."""
    try:
        parsed = parse_locator(locator)
    except BadLocator as fault:
        raise StoreError(fault.what, subject=fault.subject, expected="https://HOST/PATH") from fault
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise StoreError("not a file of a web server", subject=shown_locator(locator), expected="https://HOST/PATH")
    try:
        host = parsed.host.encode("idna").decode() if not parsed.host.isascii() else parsed.host
    except UnicodeError as fault:
        raise StoreError("not the name of a host", subject=shown_locator(locator)) from fault
    origin = parsed.origin.replace(parsed.host, host, 1)
    path = quote(_LONE_PERCENT.sub("%25", parsed.path), safe=_KEPT) or "/"
    return f"{origin}{path}" + (f"?{quote(parsed.query, safe=_KEPT + '?')}" if parsed.query else "")


def refuse(answer: HTTPResponse, *, locator: str) -> None:
    """Raise the error of an answer that is not a success; reads its body."""
    body = answer.read(_BODY_MAX)
    status, subject = answer.status, shown_locator(locator)
    shown = f"the server answered {status} {answer.reason or ''}".strip()
    if status in (404, 410):
        raise NotInStore("no such file", subject=subject)
    if status == 401:
        raise CredentialRefused(shown, subject=subject)
    if status == 403 and _EXPIRED.search(body):
        raise CredentialExpired("the address itself has expired", subject=subject, next_step="write a new one")
    if status == 403:
        raise AccessDenied(shown, subject=subject)
    if status == 412:
        raise FileChanged("the file is another one than before", subject=subject)
    if status in (413, 507):
        raise StoreFull(shown, subject=subject)
    if status in _LATER:
        raise StoreUnreachable(shown, subject=subject)
    raise StoreError(shown, subject=subject)


def _exchange(
    connection: HTTPConnection,
    method: str,
    parts: SplitResult,
    headers: Mapping[str, str],
    body: bytes | Iterable[bytes],
) -> HTTPResponse:
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    told = {"User-Agent": f"pilotage/{VERSION}", "Accept-Encoding": "identity", **headers}
    with suppress(BrokenPipeError, ConnectionResetError):  # a server that refuses a body early has answered already
        connection.request(method, target, body or None, told)
    return connection.getresponse()


@contextmanager
def _answers(subject: str) -> Iterator[None]:
    """Turn an error of the network into one of the store."""
    try:
        yield
    except ssl.SSLCertVerificationError as fault:
        raise StoreError(
            f"its certificate is not trusted: {fault.verify_message}",
            subject=subject,
            next_step="name the authority in ca_file of [stores.NAME]",
        ) from fault
    except TimeoutError as fault:
        raise StoreUnreachable("no answer in time", subject=subject) from fault
    except (OSError, HTTPException) as fault:
        why = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
        raise StoreUnreachable(f"no answer: {why}", subject=subject) from fault


def _split(url: str) -> SplitResult:
    return urlsplit(url)


def _key(parts: SplitResult) -> Key:
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local


def _secret(path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise AccessDenied(f"the credential cannot be read ({type(fault).__name__})", subject=path) from fault
