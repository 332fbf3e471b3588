"""Webhooks: each notice is posted as a CloudEvent in structured JSON, signed with the secret of its subscription."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

import msgspec

from pilotage.adapters.notifiers.networks import check_literal, connect, read_networks, reason
from pilotage.book.notices.notices import Notice, cloud_event_body
from pilotage.model.settings.settings import NotificationSettings
from pilotage.model.version import VERSION
from pilotage.ports import BadAddress, Clock, DeliveryRefused, NotDelivered

CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"
SIGNATURE_HEADER = "Pilotage-Signature"
TIMEOUT_SECONDS = 10.0
TOLERANCE_SECONDS = 300.0
ADDRESS_MAX = 2048


def signature(secret: str, body: bytes, *, at: float) -> str:
    """The signature header: HMAC-SHA256 over the time, a dot and the body."""
    stamp = str(int(at))
    return f"t={stamp},v1={_mac(secret, stamp, body)}"


def verify(secret: str, body: bytes, header: str, *, now: float, tolerance_seconds: float = TOLERANCE_SECONDS) -> bool:
    """Tell whether a header is a recent signature of these bytes with the secret. For receivers."""
    parts = dict(part.strip().partition("=")[::2] for part in header.split(","))
    stamp, given = parts.get("t", ""), parts.get("v1", "")
    if not (stamp.isascii() and stamp.isdecimal() and len(stamp) <= 16):
        return False
    fresh = abs(now - int(stamp)) <= tolerance_seconds
    return hmac.compare_digest(_mac(secret, stamp, body).encode(), given.encode()) and fresh


def _mac(secret: str, stamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()


class WebhookNotifier:
    """Posts notices, one by one, with a time limit for each however slowly the receiver answers."""

    notices_max = 1
    pause_seconds = 0.0

    def __init__(
        self,
        *,
        clock: Clock,
        networks: Sequence[str] = (),
        timeout_seconds: float = TIMEOUT_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Post to public addresses and to those in `networks`."""
        self._clock = clock
        self._networks = read_networks(networks)
        self._timeout_seconds = timeout_seconds
        self._tls = tls

    def check_address(self, address: str) -> None:
        """Refuse anything but a plain HTTP URL, and a numeric address that is not allowed."""
        check_literal(_read(address).host, networks=self._networks)

    def tell(self, address: str, notices: Sequence[Notice], *, secret: str) -> None:
        """Post the notices in order, until one is not accepted."""
        url = _read(address)
        for notice in notices:
            self._post(url, cloud_event_body(notice), secret=secret)

    def _post(self, url: _Url, body: bytes, *, secret: str) -> None:
        from http.client import HTTPException

        plain = connect(url.host, url.port, networks=self._networks, timeout_seconds=self._timeout_seconds)
        with _Patience(plain, seconds=self._timeout_seconds) as patience:
            try:
                if url.secure:
                    context = self._tls if self._tls is not None else ssl.create_default_context()
                    patience.watch(
                        context.wrap_socket(patience.socket, server_hostname=url.host, do_handshake_on_connect=False)
                    ).do_handshake()
                status, retry_after = self._exchange(patience.socket, url, body, secret=secret)
            except (OSError, HTTPException, ValueError) as fault:
                why = "no answer in time" if patience.lost.is_set() else reason(fault)
                raise NotDelivered(f"no answer: {why}", subject=url.shown) from fault
        _judge(status, retry_after, url)

    def _exchange(self, connection: socket.socket, url: _Url, body: bytes, *, secret: str) -> tuple[int, str]:
        from http.client import HTTPConnection

        conversation = HTTPConnection(url.host, url.port, timeout=self._timeout_seconds)
        conversation.sock = connection
        conversation.request(
            "POST",
            url.path,
            body,
            {
                "Host": url.authority,
                "Content-Type": CONTENT_TYPE,
                "User-Agent": f"pilotage/{VERSION}",
                SIGNATURE_HEADER: signature(secret, body, at=self._clock.now()),
                "Connection": "close",
            },
        )
        with conversation.getresponse() as answer:
            return answer.status, answer.headers.get("Retry-After", "")


def _judge(status: int, retry_after: str, url: _Url) -> None:
    """Raise an error unless the receiver accepted the notice."""
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise DeliveryRefused(
            f"answered {status}: redirects are not followed", subject=url.shown, next_step="rebind to the new address"
        )
    if 400 <= status < 500 and status not in (408, 425, 429):
        raise DeliveryRefused(f"answered {status}", subject=url.shown)
    after = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 8 else None
    raise NotDelivered(f"answered {status}", subject=url.shown, after_seconds=after)


class _Patience:
    """A connection that is cut at its deadline, however busy it is; closed at the end."""

    def __init__(self, connection: socket.socket, *, seconds: float) -> None:
        self.socket = connection
        self.lost = threading.Event()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        self.socket.close()

    def watch(self, connection: ssl.SSLSocket) -> ssl.SSLSocket:
        """Continue with a TLS connection over the first one."""
        self.socket = connection
        return connection

    def _end(self) -> None:
        self.lost.set()
        with contextlib.suppress(OSError):
            # Not the method of the TLS socket, which would reset its state under the reading thread.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _Url(msgspec.Struct, frozen=True):
    """The parts of a URL that a request needs; `shown` may be logged."""

    secure: bool
    host: str
    port: int
    authority: str
    path: str

    @property
    def shown(self) -> str:
        # The path or query is often the receiver's secret.
        return f"{'https' if self.secure else 'http'}://{self.authority}"


def _read(address: str) -> _Url:
    try:
        parts = urlsplit(address)
        port, host = parts.port, parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or port == 0
        or len(address) > ADDRESS_MAX
        or not (address.isascii() and address.isprintable())
        or any(sign in address for sign in ' "<>\\^`{|}')
    ):
        raise BadAddress("not the address of a webhook", expected="http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH")
    if parts.username is not None or parts.password is not None:
        raise BadAddress(
            "the address of a webhook must not contain a user or password: listings would show it",
            subject=f"{parts.scheme}://…@{host}",
            next_step="verify the signature instead",
        )
    secure = parts.scheme == "https"
    name = f"[{host}]" if ":" in host else host
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Url(secure, host, port or (443 if secure else 80), name if port is None else f"{name}:{port}", path)


def webhook_notifier(settings: NotificationSettings, *, clock: Clock) -> WebhookNotifier:
    """The notifier for the networks that the settings allow."""
    return WebhookNotifier(clock=clock, networks=settings.webhook_networks)
