"""A relay's connection to the service: forwards requests over reused connections, with bodies in pieces.

It never answers in the service's name: a request that the service did not get fails, and its sender keeps the content.
Only one piece of a body is in memory at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from pilotage.agent.link.link import CONNECT_SECONDS, SOCKET_PATH_MAX, Address
from pilotage.agent.link.tls import client_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    Fields = Sequence[tuple[bytes, bytes]]

PIECE_BYTES = 1 << 16
HEAD_BYTES_MAX = 1 << 16
STALL_SECONDS = 120.0  # a body that stalls for so long is given up
RESTING_MAX = 256
LATE = asyncio.TimeoutError  # the builtin TimeoutError only since Python 3.11

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade")
) | {b"transfer-encoding", b"content-length", b"expect", b"host", b"proxy-connection"}


class NoAnswer(OSError):
    """The service could not be reached, or closed the connection before it answered."""


class BadMessage(OSError):
    """The message is not HTTP that can be forwarded."""


class Head(NamedTuple):
    """The head of a message: the words of its first line, and its fields by lower-case name."""

    words: tuple[bytes, ...]
    fields: Fields

    def field(self, name: bytes) -> bytes:
        """The value of a field, or empty. Raises `BadMessage` if it occurs twice."""
        found = [value for each, value in self.fields if each == name]
        if len(found) > 1:
            raise BadMessage(f"{name.decode('latin-1')} occurs twice")
        return found[0] if found else b""

    def size_bytes(self) -> int | None:
        """The stated length of the body; None if there is none. Raises `BadMessage`."""
        length = self.field(b"content-length")
        if length and (not length.isdigit() or len(length) > 15):
            raise BadMessage("the length of a body must be a number")
        return int(length) if length else None

    def kept(self) -> Fields:
        """The end-to-end fields, which are forwarded."""
        return [(name, value) for name, value in self.fields if name not in HOP_BY_HOP]


async def read_head(reader: asyncio.StreamReader, begun: bytes = b"") -> Head | None:
    """The head of the next message, after the bytes already read; None at the end of the stream. Raises `OSError`."""
    try:
        text = begun + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial or begun:
            raise BadMessage("the message was truncated") from None
        return None
    except asyncio.LimitOverrunError:
        raise BadMessage("the head of the message is too long") from None
    first, *lines = text[:-4].split(b"\r\n")
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or b"\n" in line:
            raise BadMessage("a field of the message is malformed")
        fields.append((name.lower(), value.strip()))
    words = tuple(first.split(b" ", 2))
    if len(words) < 2 or b"\n" in first:
        raise BadMessage("the first line of the message is malformed")
    return Head(words, fields)


async def pieces_of(reader: asyncio.StreamReader, size_bytes: int) -> AsyncIterator[bytes]:
    """So many bytes, piece by piece; raises `OSError` if they stop or stall."""
    left = size_bytes
    while left:
        piece = await _in_time(reader.read(min(left, PIECE_BYTES)))
        if not piece:
            raise BadMessage("the body was truncated")
        left -= len(piece)
        yield piece


async def _chunks_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await _in_time(reader.readuntil(b"\n"))
        try:
            size_bytes = int(line.partition(b";")[0], 16)
        except ValueError:
            raise BadMessage("a chunk has no length") from None
        async for piece in pieces_of(reader, size_bytes):
            yield piece
        while True:  # the end of the chunk; trailers may precede it after the last one
            rest = await _in_time(reader.readuntil(b"\n"))
            if not rest.strip():
                break
            if size_bytes:
                raise BadMessage("a chunk has no end")
        if not size_bytes:
            return


async def _rest_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        piece = await _in_time(reader.read(PIECE_BYTES))
        if not piece:
            return
        yield piece


async def _in_time(coming: Awaitable[bytes]) -> bytes:
    try:
        return await asyncio.wait_for(coming, STALL_SECONDS)
    except LATE:
        raise BadMessage(f"nothing arrived for {STALL_SECONDS:g} s") from None
    except asyncio.IncompleteReadError:
        raise BadMessage("the body was truncated") from None
    except asyncio.LimitOverrunError:
        raise BadMessage("a line is too long") from None


class Body(ABC):
    """The body of a request."""

    size_bytes = 0
    is_kept = False  # whether it can be read a second time

    @abstractmethod
    def pieces(self) -> AsyncIterator[bytes]:
        """The whole body, from its beginning."""


class AnswerSink(ABC):
    """The receiver of an answer."""

    begun = False

    @abstractmethod
    async def begin(self, status: int, fields: Fields, size_bytes: int | None) -> None:
        """Take the head; the size may be unknown."""

    @abstractmethod
    async def take(self, piece: bytes) -> None:
        """Take a piece of the body."""

    @abstractmethod
    async def end(self) -> None:
        """End the answer."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def is_open(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing() and self.reader.exception() is None

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.close()


class Upstream:
    """The service, as a relay sees it; belongs to one event loop."""

    def __init__(self, address: str, *, ca_file: str = "") -> None:
        """Take its address; `ca_file` holds the only CA certificate to trust. Connects at the first request."""
        self._where = Address.parse(address)
        self._ca_file = ca_file
        self._resting: list[_Connection] = []

    async def carry(self, method: str, target: str, fields: Fields, body: Body, answering: AnswerSink) -> None:
        """Forward a request and its answer. Raises `NoAnswer` before the answer begins, afterwards `OSError`."""
        head = self._head(method, target, fields, body.size_bytes)
        while self._resting:
            connection = self._resting.pop()
            if not connection.is_open:
                connection.close()
                continue
            try:
                await self._carry(connection, head, body, answering)
            except NoAnswer:
                if not body.is_kept:
                    raise  # the service had closed an idle connection: the pilot tries again
            else:
                return
        await self._carry(await self._connect(), head, body, answering)

    def close(self) -> None:
        """Close idle connections."""
        for each in self._resting:
            each.close()
        self._resting.clear()

    def _head(self, method: str, target: str, fields: Fields, size_bytes: int) -> bytes:
        host = "localhost" if self._where.path else f"{self._where.host}:{self._where.port}"
        lines = [
            f"{method} {self._where.prefix}{target} HTTP/1.1".encode("latin-1"),
            b"Host: " + host.encode("latin-1"),
        ]
        lines += [name + b": " + value for name, value in fields]
        return b"\r\n".join([*lines, b"Content-Length: %d" % size_bytes, b"\r\n"])

    async def _connect(self) -> _Connection:
        try:
            return _Connection(*await asyncio.wait_for(self._open(), CONNECT_SECONDS))
        except LATE:
            raise NoAnswer(f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise NoAnswer(str(error) or type(error).__name__) from error

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = self._where
        if not where.path:
            context = client_context(self._ca_file) if where.secure else None
            return await asyncio.open_connection(where.host, where.port, ssl=context, limit=HEAD_BYTES_MAX)
        if len(os.fsencode(where.path)) <= SOCKET_PATH_MAX:
            return await asyncio.open_unix_connection(where.path, limit=HEAD_BYTES_MAX)
        parent, _, name = where.path.rpartition("/")
        folder = os.open(parent or "/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{name}", limit=HEAD_BYTES_MAX)
        finally:
            os.close(folder)

    async def _carry(self, connection: _Connection, head: bytes, body: Body, answering: AnswerSink) -> None:
        whole = False
        try:
            answer = await self._ask(connection, head, body)
            whole = await _bring(connection.reader, answer, answering)
        finally:
            if whole and len(self._resting) < RESTING_MAX:
                self._resting.append(connection)
            else:
                connection.close()

    async def _ask(self, connection: _Connection, head: bytes, body: Body) -> Head:
        reader, writer = connection.reader, connection.writer
        if not body.size_bytes:
            writer.write(head)
        async for piece in body.pieces():
            if writer.is_closing():
                break  # the service may have answered with the reason
            writer.write(head + piece if head else piece)
            head = b""
            try:
                await asyncio.wait_for(writer.drain(), STALL_SECONDS)
            except (OSError, LATE):
                break
        try:
            answer = await read_head(reader)
            while answer is not None and answer.words[1].startswith(b"1"):
                answer = await read_head(reader)
        except OSError as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        if answer is None:
            raise NoAnswer("it closed the connection")
        return answer


async def _bring(reader: asyncio.StreamReader, head: Head, answering: AnswerSink) -> bool:
    """Forward an answer; returns whether the connection can be reused."""
    if not head.words[0].startswith(b"HTTP/1.") or not head.words[1].isdigit():
        raise NoAnswer("the server there does not speak HTTP")
    status, size_bytes = int(head.words[1]), head.size_bytes()
    lasting = head.words[0] == b"HTTP/1.1" and head.field(b"connection").lower() != b"close"
    if status in (204, 304):
        size_bytes = 0
    chunked = head.field(b"transfer-encoding").lower() == b"chunked" and status not in (204, 304)
    if chunked:
        size_bytes, pieces = None, _chunks_of(reader)
    elif size_bytes is not None:
        pieces = pieces_of(reader, size_bytes)
    else:
        pieces, lasting = _rest_of(reader), False
    await answering.begin(status, head.kept(), size_bytes)
    answering.begun = True
    async for piece in pieces:
        await answering.take(piece)
    await answering.end()
    return lasting
