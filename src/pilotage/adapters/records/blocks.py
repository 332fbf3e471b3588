"""Blocks of parts, one after the other in a pack: each is compressed as a whole, and carries a table of its parts.

A block is: eight bytes that mark its beginning, the lengths of header and payload, the header (MessagePack), the payload
(one zstd frame), and a digest of all of it. The header says which parts the payload consists of, in order. Nothing is changed
once it is written, so a pack can be read while it grows; a block without its digest was torn off, and does not count.

A pack begins with a random key, three times. The digests of its blocks depend on the key, so that nobody can hide a valid block in
a content that they have stored.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

import msgspec

from pilotage.model.errors import extra

if TYPE_CHECKING:
    import zstandard

MAGIC = b"PLTGBLK1"
PACK_MAGIC = b"PLTGPCK1"
KEY_BYTES = 16
_COPIES = 3
_COPY_BYTES = len(PACK_MAGIC) + KEY_BYTES + 8
PACK_HEAD_BYTES = _COPIES * _COPY_BYTES
"""Where the first block of a pack begins."""
LEVEL = 9
LIFE_LOG_LEVEL = 1
"""Events repeat long texts, and differ in digits and digests: the short matches that other levels find make them larger."""
_LENGTHS = struct.Struct("<IQ")
_HEAD_BYTES = len(MAGIC) + _LENGTHS.size
_DIGEST_BYTES = 16
HEADER_BYTES_MAX = 64 * 1024 * 1024
PAYLOAD_BYTES_MAX = 4 * 1024 * 1024 * 1024


class Entry(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One part in a block: its kind, digest and size; records, annotations and deletions have a position."""

    kind: str
    sha256: bytes
    size_bytes: int
    position: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The parts of a block, and the digest of the dictionary that it was compressed with; empty for none."""

    entries: tuple[Entry, ...]
    dictionary: bytes = b""


class Block(NamedTuple):
    """A block of a pack that was read and verified: where it begins and ends, its header, and its payload."""

    offset: int
    end: int
    header: Header
    payload: bytes


class BlockHead(NamedTuple):
    """The beginning of a block: where it begins, where it should end, and its header. Nothing of it is verified."""

    offset: int
    end: int
    header: Header


class Torn(NamedTuple):
    """From this offset on there is no whole block."""

    offset: int
    what: str
    following: int | None = None  # where the next whole block begins


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Header).decode


def new_pack() -> tuple[bytes, bytes]:
    """The key of a new pack, and the bytes that it begins with."""
    key = secrets.token_bytes(KEY_BYTES)
    return key, _COPIES * _copy(key)


def _copy(key: bytes) -> bytes:
    return PACK_MAGIC + key + hashlib.blake2b(key, digest_size=8).digest()


def pack_key(pack: IO[bytes]) -> tuple[bytes | None, str]:
    """The key of a pack, and what is wrong with its head; None where no copy is left."""
    pack.seek(0)
    head = pack.read(PACK_HEAD_BYTES)
    copies = [head[start : start + _COPY_BYTES] for start in range(0, PACK_HEAD_BYTES, _COPY_BYTES)]
    keys = {each[len(PACK_MAGIC) : -8] for each in copies if each == _copy(each[len(PACK_MAGIC) : -8])}
    if not keys:
        return None, "it does not begin as a pack"
    sound = len(keys) == 1 and all(each == copies[0] for each in copies)
    return min(keys), "" if sound else "a copy of its key is damaged"


def _digest(key: bytes, *pieces: bytes) -> bytes:
    found = hashlib.blake2b(key=key, digest_size=_DIGEST_BYTES)
    for piece in pieces:
        found.update(piece)
    return found.digest()


class Compression:
    """Compresses and expands payloads, with dictionaries by their digest."""

    def __init__(self) -> None:
        """Know no dictionary yet. Raises `MissingExtra` where zstd is not installed."""
        with extra("provenance", purpose="to store records of jobs"):
            import zstandard
        self._zstd = zstandard
        self._compressors: dict[tuple[bytes, int], zstandard.ZstdCompressor] = {}
        self._add_compressors(b"", None)
        self._decompressors: dict[bytes, zstandard.ZstdDecompressor] = {b"": zstandard.ZstdDecompressor()}

    def _add_compressors(self, sha256: bytes, content: bytes | None) -> None:
        for level in (LEVEL, LIFE_LOG_LEVEL):
            dictionary = None
            if content is not None:
                dictionary = self._zstd.ZstdCompressionDict(content)
                dictionary.precompute_compress(level=level)
            made = self._zstd.ZstdCompressor(level=level, dict_data=dictionary, write_dict_id=False)
            self._compressors[sha256, level] = made

    def knows(self, dictionary: bytes) -> bool:
        """Whether a dictionary was added."""
        return dictionary in self._decompressors

    def add(self, content: bytes) -> bytes:
        """Use a dictionary from now on for what names it; its digest."""
        sha256 = hashlib.sha256(content).digest()
        if sha256 not in self._decompressors:
            self._add_compressors(sha256, content)
            dictionary = self._zstd.ZstdCompressionDict(content)
            self._decompressors[sha256] = self._zstd.ZstdDecompressor(dict_data=dictionary)
        return sha256

    def train(self, samples: Sequence[bytes], *, size_bytes: int) -> bytes | None:
        """A dictionary from samples; None where they have nothing in common, or are too few."""
        try:
            return self._zstd.train_dictionary(size_bytes, list(samples)).as_bytes()
        except self._zstd.ZstdError:
            return None

    def compress(self, content: bytes, dictionary: bytes, *, level: int = LEVEL) -> bytes:
        """The payload of a block."""
        return self._compressors[dictionary, level].compress(content)

    def expand(self, payload: bytes, header: Header) -> bytes:
        """The content of a block. Raises `ValueError` where it is damaged."""
        size = sum(each.size_bytes for each in header.entries)
        try:
            content = self._decompressors[header.dictionary].decompress(payload, max_output_size=max(size, 1))
        except self._zstd.ZstdError as fault:
            raise ValueError(str(fault)) from None
        if len(content) != size:
            raise ValueError(f"it has {len(content):,} bytes instead of {size:,}")
        return content


def packed(entries: Sequence[Entry], payload: bytes, *, dictionary: bytes, key: bytes) -> bytes:
    """The bytes of a block, for the pack of this key."""
    header = _encode(Header(entries=tuple(entries), dictionary=dictionary))
    head = MAGIC + _LENGTHS.pack(len(header), len(payload))
    return b"".join((head, header, payload, _digest(key, head, header, payload)))


def scan(pack: IO[bytes], *, offset: int, key: bytes) -> Iterator[Block | Torn]:
    """The blocks of a pack from an offset on, each verified; the last item says where it is torn, if it is."""
    while True:
        pack.seek(offset)
        head = pack.read(_HEAD_BYTES)
        if not head:
            return
        if len(head) < _HEAD_BYTES or not head.startswith(MAGIC):
            yield Torn(offset, "no block begins here")
            return
        header_bytes, payload_bytes = _LENGTHS.unpack_from(head, len(MAGIC))
        if header_bytes > HEADER_BYTES_MAX or payload_bytes > PAYLOAD_BYTES_MAX:
            yield Torn(offset, "its lengths are impossible")
            return
        header, payload = pack.read(header_bytes), pack.read(payload_bytes)
        if pack.read(_DIGEST_BYTES) != _digest(key, head, header, payload):
            yield Torn(offset, "its digest does not match")
            return
        end = offset + _HEAD_BYTES + header_bytes + payload_bytes + _DIGEST_BYTES
        yield Block(offset, end, _decode(header), payload)
        offset = end


def block_heads(pack: IO[bytes]) -> Iterator[BlockHead]:
    """The beginnings of all blocks of a pack, without reading their payloads. Raises `ValueError` where none begins."""
    size_bytes, offset = pack.seek(0, os.SEEK_END), PACK_HEAD_BYTES
    while offset < size_bytes:
        pack.seek(offset)
        head = pack.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES or not head.startswith(MAGIC):
            raise ValueError(f"no block begins at {offset}")
        header_bytes, payload_bytes = _LENGTHS.unpack_from(head, len(MAGIC))
        end = offset + _HEAD_BYTES + header_bytes + payload_bytes + _DIGEST_BYTES
        if end > size_bytes:
            raise ValueError(f"the block at {offset} is longer than the pack")
        yield BlockHead(offset, end, _decode(pack.read(header_bytes)))
        offset = end


def next_block(pack: IO[bytes], *, after: int) -> int | None:
    """Where the next block seems to begin after an offset, past a damaged one; None if none does."""
    pack.seek(after)
    overlap, base = b"", after
    while piece := pack.read(1 << 20):
        found = (overlap + piece).find(MAGIC)
        if found >= 0:
            return base - len(overlap) + found
        base += len(piece)
        overlap = piece[-(len(MAGIC) - 1) :]
    return None
