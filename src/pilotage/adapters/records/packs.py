"""The packs of a folder of records: blocks are appended, read, and copied when a pack is rewritten."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import IO, NamedTuple

from pilotage.adapters.records.blocks import Block, Compression, Entry, Torn, next_block, packed, scan

PACK_BYTES_MAX = 256 * 1024 * 1024
BLOCK_BYTES = 1024 * 1024
"""Parts are compressed together up to this size: a part is read by expanding its block."""
DICTIONARY, RECORD, ANNOTATION, DELETION = "dictionary", "record", "annotation", "deletion"
_ALONE = (DICTIONARY, RECORD, ANNOTATION, DELETION)  # in blocks of their own, after the parts that they name
_CACHED_BYTES = 32 * 1024 * 1024


class Item(NamedTuple):
    """A content of a pack: a part, or one of those above, which have positions."""

    kind: str
    sha256: bytes
    content: bytes
    position: int = 0


class Written(NamedTuple):
    """A block that was appended and is not catalogued yet."""

    pack: int
    offset: int
    end: int
    items: tuple[Item, ...]


class PackFiles:
    """The files of a folder of packs; a writer appends to the last."""

    def __init__(self, folder: Path, *, writes: bool, read_part: Callable[[bytes], bytes]) -> None:
        """Take the folder; `read_part` finds dictionaries."""
        self.folder = folder
        self.dictionary = b""  # with which blocks are compressed from now on
        self.written: list[Written] = []
        self._writes = writes
        self._read_part = read_part
        self._compression = Compression()
        self._files: dict[int, int] = {}
        self._cache: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._pack = self._end = 0
        self._broken = ""

    def start_at_the_end(self) -> None:
        """Append to the last pack from now on."""
        self._pack = max([1, *self.numbers()])
        self._end = self.size(self._pack)

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def numbers(self) -> list[int]:
        """The packs, in order."""
        return sorted(int(each.stem) for each in self.folder.glob("*.pack") if each.stem.isdecimal())

    def path(self, pack: int) -> Path:
        """The file of a pack."""
        return self.folder / pack_name(pack)

    def size(self, pack: int) -> int:
        """The size of a pack; 0 if there is none."""
        return self.path(pack).stat().st_size if self.path(pack).exists() else 0

    # --- dictionaries ---

    def use_dictionary(self, content: bytes) -> None:
        """Compress with a dictionary from now on."""
        self.dictionary = self._compression.add(content)

    def train(self, samples: Sequence[bytes], *, size_bytes: int) -> bytes | None:
        """A dictionary from samples; None where they have nothing in common, or are too few."""
        return self._compression.train(samples, size_bytes=size_bytes)

    # --- appending ---

    def append(self, items: Sequence[Item]) -> None:
        """Append blocks, not yet synced; on a fault the pack is as it was."""
        if self._broken:
            raise OSError(f"{self._broken}: open the folder again, which reads what the disk has")
        pack, end, before = self._pack, self._end, len(self.written)
        try:
            for block in _blocks(items):
                self._append_block(block)
        except BaseException:
            del self.written[before:]
            if self._pack != pack:
                self.path(self._pack).unlink(missing_ok=True)
                self._forget(self._pack)
            self._pack, self._end = pack, end
            with suppress(OSError):
                os.ftruncate(self._file(pack), end)
            raise

    def _append_block(self, items: Sequence[Item]) -> None:
        dictionary = b"" if items[0].kind == DICTIONARY else self.dictionary
        payload = self._compression.compress(b"".join(item.content for item in items), dictionary)
        entries = [
            Entry(kind=item.kind, sha256=item.sha256, size_bytes=len(item.content), position=item.position)
            for item in items
        ]
        block = packed(entries, payload, dictionary=dictionary)
        if self._end and self._end + len(block) > PACK_BYTES_MAX:
            os.fsync(self._file(self._pack))
            self._pack, self._end = self._pack + 1, 0
        descriptor, done = self._file(self._pack), 0
        while done < len(block):
            done += os.pwrite(descriptor, block[done:], self._end + done)
        self.written.append(Written(self._pack, self._end, self._end + len(block), tuple(items)))
        self._end += len(block)

    def sync(self) -> None:
        """Make durable what was appended. After a fault nothing more is appended: nobody knows what the disk has."""
        try:
            for pack in {each.pack for each in self.written}:
                os.fsync(self._file(pack))
            sync_folder(self.folder)
        except OSError as fault:
            self._broken = str(fault)
            raise

    def leave(self, pack: int) -> None:
        """Append to another pack from now on, if this is the last."""
        if self._pack == pack:
            self._pack, self._end = pack + 1, 0

    def remove(self, pack: int) -> None:
        """Remove a pack that nothing refers to any more."""
        self._forget(pack)
        for key in [key for key in self._cache if key[0] == pack]:
            self._cached_bytes -= len(self._cache.pop(key))
        self.path(pack).unlink()
        sync_folder(self.folder)

    def _file(self, pack: int) -> int:
        descriptor = self._files.get(pack)
        if descriptor is None:
            flags = os.O_RDWR | os.O_CREAT if self._writes else os.O_RDONLY
            descriptor = self._files[pack] = os.open(self.path(pack), flags | os.O_CLOEXEC, 0o600)
        return descriptor

    def _forget(self, pack: int) -> None:
        descriptor = self._files.pop(pack, None)
        if descriptor is not None:
            os.close(descriptor)

    # --- reading ---

    def expanded(self, pack: int, offset: int) -> bytes:
        """The content of a block. Raises `ValueError` where it is damaged, and `OSError` where it is gone."""
        known = self._cache.get((pack, offset))
        if known is not None:
            self._cache.move_to_end((pack, offset))
            return known
        with os.fdopen(os.dup(self._file(pack)), "rb") as file:
            block = next(scan(file, offset=offset), Torn(offset, "the file ends before"))
            if isinstance(block, Torn):
                raise ValueError(f"{block.what} ({pack_name(pack)} at {offset})")
            content = self._expand(file, block)
        self._cache[pack, offset] = content
        self._cached_bytes += len(content)
        while self._cached_bytes > _CACHED_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)
        return content

    def look_again(self, pack: int) -> None:
        """Open a pack anew when it is needed: it may have been replaced."""
        self._forget(pack)

    def items(self, file: IO[bytes], block: Block) -> list[Item]:
        """The parts of a block. Raises `ValueError` where it is damaged."""
        content = self._expand(file, block)
        items, start = [], 0
        for entry in block.header.entries:
            items.append(Item(entry.kind, entry.sha256, content[start : start + entry.size_bytes], entry.position))
            start += entry.size_bytes
        return items

    def _expand(self, file: IO[bytes], block: Block) -> bytes:
        dictionary = block.header.dictionary
        if dictionary and not self._compression.knows(dictionary):
            self._compression.add(self._read_part(dictionary))
        file.seek(block.payload_offset)
        return self._compression.expand(file.read(block.payload_bytes), block.header)


def pack_name(pack: int) -> str:
    """The name of a pack's file."""
    return f"{pack:06}.pack"


def is_sound(item: Item) -> bool:
    """Whether a content has the digest that it is stored under."""
    return hashlib.sha256(item.content).digest() == item.sha256


def starts(items: Iterable[Item]) -> Iterator[tuple[bytes, int, int]]:
    """The digest of each item, where it begins in its block, and its size."""
    start = 0
    for item in items:
        yield item.sha256, start, len(item.content)
        start += len(item.content)


def _blocks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Items in blocks of limited size."""
    for _, group in groupby(items, key=lambda item: item.kind if item.kind in _ALONE else ""):
        block: list[Item] = []
        size = 0
        for item in group:
            if block and size + len(item.content) > BLOCK_BYTES:
                yield block
                block, size = [], 0
            block.append(item)
            size += len(item.content)
        if block:
            yield block


def whole_blocks(file: IO[bytes], offset: int) -> Iterator[Block | Torn]:
    """The blocks of a pack, past damaged ones, each of which is an item, too; a torn end is the last."""
    while True:
        torn: Torn | None = None
        for block in scan(file, offset=offset):
            if isinstance(block, Torn):
                torn = block
            else:
                yield block
        if torn is None:
            return
        following = next_block(file, after=torn.offset + 1)
        while following is not None and isinstance(next(scan(file, offset=following), torn), Torn):
            following = next_block(file, after=following + 1)
        yield Torn(torn.offset, torn.what, following)
        if following is None:
            return
        offset = following


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
