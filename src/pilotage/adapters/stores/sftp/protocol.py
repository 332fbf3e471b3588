"""Packets of SFTP, version 3 (draft-ietf-secsh-filexfer-02), and OpenSSH's extensions: bytes to values and back, no I/O."""

from __future__ import annotations

import stat
import struct
from enum import IntEnum

import msgspec

VERSION = 3
PACKET_BYTES_MAX = 4 << 20  # OpenSSH sends 256 KiB at most; a longer one is none
_SIZE, _OWNER, _PERMISSIONS, _TIMES, _EXTENDED = 1, 2, 4, 8, 0x8000_0000


class Kind(IntEnum):
    """The kinds of packets."""

    INIT = 1
    VERSION = 2
    OPEN = 3
    CLOSE = 4
    READ = 5
    WRITE = 6
    FSTAT = 8
    OPENDIR = 11
    READDIR = 12
    REMOVE = 13
    MKDIR = 14
    STAT = 17
    RENAME = 18
    STATUS = 101
    HANDLE = 102
    DATA = 103
    NAME = 104
    ATTRS = 105
    EXTENDED = 200
    EXTENDED_REPLY = 201


class Status(IntEnum):
    """The codes of a `STATUS` packet."""

    OK = 0
    EOF = 1
    NO_SUCH_FILE = 2
    PERMISSION_DENIED = 3
    FAILURE = 4
    BAD_MESSAGE = 5
    NO_CONNECTION = 6
    CONNECTION_LOST = 7
    OP_UNSUPPORTED = 8


READ, WRITE, CREATE = 1, 2, 8
"""Flags of `OPEN`."""


class BadPacket(ValueError):
    """Bytes that are no packet of SFTP."""


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells of a file."""

    size_bytes: int = -1
    modified_at: int = 0  # whole seconds
    mode: int = stat.S_IFREG  # version 3 tells the kind of a file in its permissions, if it tells any

    @property
    def version(self) -> str:
        """Changes with the content, as far as whole seconds and the size tell."""
        return f"{self.modified_at}-{self.size_bytes}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A packet from the server: its kind, the number of the request, and the rest."""

    kind: Kind
    request: int
    body: bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a folder; its attributes are those of a link, not of its target."""

    name: str
    attributes: Attributes


def packet(kind: Kind, *fields: int | str | bytes, request: int | None = None) -> bytes:
    """A packet. Whole numbers have four bytes unless they are `Wide`; texts and bytes are written with their length."""
    parts = [b"" if request is None else struct.pack(">I", request)]
    for field in fields:
        match field:
            case Wide():
                parts.append(struct.pack(">Q", field))
            case int():
                parts.append(struct.pack(">I", field))
            case _:
                content = field.encode("utf-8", "surrogateescape") if isinstance(field, str) else field
                parts += [struct.pack(">I", len(content)), content]
    body = b"".join(parts)
    return struct.pack(">IB", len(body) + 1, kind) + body


class Wide(int):
    """A whole number of eight bytes."""


def packet_length(header: bytes | bytearray | memoryview) -> int:
    """The number of bytes after the first four of a packet. Raises `BadPacket`."""
    length: int = struct.unpack_from(">I", header)[0]
    if not 1 <= length <= PACKET_BYTES_MAX:
        raise BadPacket(f"a packet of {length} bytes")
    return length


def read_answer(content: bytes) -> Answer:
    """A packet without its length. Raises `BadPacket`."""
    if not content:
        raise BadPacket("an empty packet")
    try:
        kind = Kind(content[0])
    except ValueError:
        raise BadPacket(f"a packet of kind {content[0]}") from None
    if kind is Kind.VERSION:
        return Answer(kind=kind, request=0, body=content[1:])
    if len(content) < 5:
        raise BadPacket("a packet without a number")
    return Answer(kind=kind, request=struct.unpack_from(">I", content, 1)[0], body=content[5:])


class Fields:
    """Reads the fields of a packet one after the other. Raises `BadPacket` where they end too early."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def left(self) -> bool:
        """Whether there is more."""
        return self._at < len(self._body)

    def number(self) -> int:
        """A number of four bytes."""
        return int(struct.unpack(">I", self._take(4))[0])

    def wide(self) -> int:
        """A number of eight bytes."""
        return int(struct.unpack(">Q", self._take(8))[0])

    def content(self) -> bytes:
        """Bytes with their length."""
        return self._take(self.number())

    def text(self) -> str:
        """A name; bytes that are not UTF-8 survive."""
        return self.content().decode("utf-8", "surrogateescape")

    def attributes(self) -> Attributes:
        """The attributes of a file."""
        flags = self.number()
        size_bytes = self.wide() if flags & _SIZE else -1
        if flags & _OWNER:
            self._take(8)
        mode = self.number() if flags & _PERMISSIONS else stat.S_IFREG
        modified_at = 0
        if flags & _TIMES:
            self._take(4)
            modified_at = self.number()
        if flags & _EXTENDED:
            for _ in range(self.number()):
                self.content()
                self.content()
        return Attributes(size_bytes=size_bytes, modified_at=modified_at, mode=mode)

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._body):
            raise BadPacket("a packet that ends in a field")
        taken = self._body[self._at : end]
        self._at = end
        return taken


def read_extensions(answer: Answer) -> frozenset[str]:
    """The extensions that a server offers in its first packet. Raises `BadPacket`."""
    if answer.kind is not Kind.VERSION:
        raise BadPacket("the first packet is not that of a server")
    fields = Fields(answer.body)
    if fields.number() < VERSION:
        raise BadPacket("a server of an older version")
    found = set()
    while fields.left:
        found.add(fields.text())
        fields.content()
    return frozenset(found)


def read_entries(answer: Answer) -> list[Entry]:
    """The names in a `NAME` packet. Raises `BadPacket`."""
    fields = Fields(answer.body)
    entries = []
    for _ in range(fields.number()):
        name = fields.text()
        fields.content()  # a line as of ls
        entries.append(Entry(name=name, attributes=fields.attributes()))
    return entries
