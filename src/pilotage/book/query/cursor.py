"""Where a page of a query ended, as an opaque text for URLs, valid only for its own query.

It is not secret: a forged one shows only what the query itself shows. It contains the time of the first page, so that
`within 2h` means the same two hours on every page.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re

import msgspec

from pilotage.book.query.attributes import Target
from pilotage.book.query.conditions import Query, canonical
from pilotage.book.query.errors import CursorError

CURSOR_LENGTH_MAX = 2048

_VERSION = 1
_CHECK_BYTES = 6
_DIGEST_BYTES = 12
_TEXT = re.compile(r"[A-Za-z0-9_-]{1,2048}")

KeyPart = str | int | float
"""One column of the key that orders a page."""


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """The key of the last row of a page, and the time at which relative times of the query were resolved."""

    key: tuple[KeyPart, ...]
    now: float


class _Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    target: str
    digest: bytes
    now: float
    key: tuple[KeyPart, ...]


_DECODER = msgspec.msgpack.Decoder(_Payload)


def encode_cursor(query: Query, target: Target, cursor: Cursor) -> str:
    """Encode a cursor for this query, before it is resolved, and this target."""
    payload = _Payload(_VERSION, str(target), _digest(query), cursor.now, cursor.key)
    try:
        body = msgspec.msgpack.encode(payload)
    except (OverflowError, UnicodeError) as error:
        raise CursorError("this key does not fit into a cursor", got=repr(cursor.key)[:200]) from error
    text = base64.urlsafe_b64encode(_check(body) + body).decode().rstrip("=")
    if len(text) > CURSOR_LENGTH_MAX or not _is_finite(payload):
        raise CursorError("this key does not fit into a cursor", got=repr(cursor.key)[:200])
    return text


def decode_cursor(text: str, query: Query, target: Target) -> Cursor:
    """Decode a cursor; raises `CursorError` if it is malformed, or of another query or target."""
    payload = _payload(text)
    if payload is None:
        raise _refused("it is damaged, or not a cursor")
    if payload.version != _VERSION:
        raise _refused("it comes from another version of the service")
    if payload.target != target:
        raise _refused(f"it belongs to a query over {payload.target}, not {target}")
    if payload.digest != _digest(query):
        raise _refused("it belongs to another query")
    return Cursor(key=payload.key, now=payload.now)


def _payload(text: str) -> _Payload | None:
    if not _TEXT.fullmatch(text):
        return None
    try:
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        payload = _DECODER.decode(content[_CHECK_BYTES:])
    except ValueError:  # from base64 or from msgspec
        return None
    # The encoding is unique: bits that base64 ignores must not make a second text.
    written = base64.urlsafe_b64encode(content).decode().rstrip("=")
    is_whole = content[:_CHECK_BYTES] == _check(content[_CHECK_BYTES:])
    return payload if is_whole and written == text and _is_finite(payload) else None


def _is_finite(payload: _Payload) -> bool:
    return all(math.isfinite(part) for part in (payload.now, *payload.key) if isinstance(part, float))


def _digest(query: Query) -> bytes:
    return hashlib.blake2b(canonical(query).encode(), digest_size=_DIGEST_BYTES).digest()


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES, person=b"cursor").digest()


def _refused(why: str) -> CursorError:
    return CursorError(f"the cursor cannot be used: {why}", next_step="ask again without a cursor for the first page")
