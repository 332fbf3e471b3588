"""The packs of a folder of records: blocks are appended, read, and copied when a pack is rewritten."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from pilotage.adapters.records.blocks import (
    LEVEL,
    LIFE_LOG_LEVEL,
    PACK_HEAD_BYTES,
    Block,
    Compression,
    Entry,
    Torn,
    new_pack,
    next_block,
    pack_key,
    packed,
    scan,
)
from pilotage.ports.records import DamagedPart, RecordStoreError

if TYPE_CHECKING:
    from pilotage.adapters.records.copies import PackCopies

PACK_BYTES_MAX = 256 * 1024 * 1024
BLOCK_BYTES = 1024 * 1024
"""Parts are compressed together up to this size: a part is read by expanding its block."""
DICTIONARY, RECORD, ANNOTATION, DELETION = "dictionary", "record", "annotation", "deletion"
_LIFE_LOG = "life-log"
_ALONE = (
    DICTIONARY,
    RECORD,
    ANNOTATION,
    DELETION,
    _LIFE_LOG,
)  # in blocks of their own; records after the parts that they name
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

    def __init__(
        self,
        folder: Path,
        *,
        writes: bool,
        read_part: Callable[[bytes], bytes],
        copies: PackCopies | None = None,
        before_append: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the folder, and where copies of its packs are; `read_part` finds dictionaries, and `before_append` refuses to write."""
        self.folder = folder
        self._before_append = before_append
        self._copies = copies
        self.dictionary = b""  # with which blocks are compressed from now on
        self.written: list[Written] = []
        self._writes = writes
        self._read_part = read_part
        self._compression = Compression()
        self._files: dict[int, int] = {}
        self._cache: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._pack = self._end = 0
        self._key = b""
        self.broken = ""

    def start_at_the_end(self, *, shortened: Collection[int] = ()) -> None:
        """Append to the last pack from now on; to a new one if that was shortened or lost, or has no head."""
        self._pack = max([1, *self.numbers(), *shortened])
        self._end = self.size(self._pack)
        key: bytes | None = None
        if self._end >= PACK_HEAD_BYTES and self._pack not in shortened:
            with self.path(self._pack).open("rb") as file:
                key, _ = pack_key(file)
        if self._pack in shortened or (key is None and self._end):
            self._pack, self._end = self._pack + 1, 0
        self._key = key or b""

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
        if self.broken:
            raise OSError(f"{self.broken}: open the folder again, which reads what the disk has")
        self._before_append()
        pack, end, key, before = self._pack, self._end, self._key, len(self.written)
        try:
            for block in _blocks(items):
                self._append_block(block)
        except BaseException:
            del self.written[before:]
            if self._pack != pack:
                self.path(self._pack).unlink(missing_ok=True)
                self._forget(self._pack)
            self._pack, self._end, self._key = pack, end, key
            with suppress(OSError):
                os.ftruncate(self._file(pack), end)
            raise

    def _append_block(self, items: Sequence[Item]) -> None:
        dictionary = b"" if items[0].kind == DICTIONARY else self.dictionary
        level = LIFE_LOG_LEVEL if items[0].kind == _LIFE_LOG else LEVEL
        payload = self._compression.compress(b"".join(item.content for item in items), dictionary, level=level)
        entries = [
            Entry(kind=item.kind, sha256=item.sha256, size_bytes=len(item.content), position=item.position)
            for item in items
        ]
        if self._end and self._end + len(payload) > PACK_BYTES_MAX:
            os.fsync(self._file(self._pack))
            self._pack, self._end = self._pack + 1, 0
        if not self._end:
            self._key, head = new_pack()
            self._write(head)
            self._end = len(head)
        block = packed(entries, payload, dictionary=dictionary, key=self._key)
        self._write(block)
        self.written.append(Written(self._pack, self._end, self._end + len(block), tuple(items)))
        self._end += len(block)

    def _write(self, content: bytes) -> None:
        descriptor, done = self._file(self._pack), 0
        while done < len(content):
            done += os.pwrite(descriptor, content[done:], self._end + done)

    def sync(self) -> None:
        """Make durable what was appended, here and where copies are.

        After a fault nothing more is appended: nobody knows what the disk has, and what only the copies lack is copied when
        the folder is opened again.
        """
        try:
            for pack in {each.pack for each in self.written}:
                os.fsync(self._file(pack))
            sync_folder(self.folder)
            if self._copies is not None and self.written:
                self._copies.copy(self)
        except (OSError, RecordStoreError) as fault:
            self.broken = str(fault)
            raise

    def leave(self, pack: int) -> None:
        """Append to another pack from now on, if this is the last."""
        if self._pack == pack:
            self._pack, self._end = pack + 1, 0

    def remove(self, pack: int) -> None:
        """Remove a pack that nothing refers to any more, and its copy."""
        if self._copies is not None:
            self._copies.remove(pack)
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
        if pack not in self._files:
            self.path(pack).stat()  # only what is appended to is created
        with os.fdopen(os.dup(self._file(pack)), "rb") as file:
            key, what = pack_key(file)
            if key is None:
                raise ValueError(f"{what} ({pack_name(pack)})")
            block = next(scan(file, offset=offset, key=key), Torn(offset, "the file ends before"))
            if isinstance(block, Torn):
                raise ValueError(f"{block.what} ({pack_name(pack)} at {offset})")
            content = self._expand(block)
        self._cache[pack, offset] = content
        self._cached_bytes += len(content)
        while self._cached_bytes > _CACHED_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)
        return content

    def look_again(self, pack: int) -> None:
        """Open a pack anew when it is needed: it may have been replaced."""
        self._forget(pack)

    def items(self, block: Block) -> list[Item]:
        """The parts of a block. Raises `ValueError` where it is damaged."""
        content = self._expand(block)
        items, start = [], 0
        for entry in block.header.entries:
            items.append(Item(entry.kind, entry.sha256, content[start : start + entry.size_bytes], entry.position))
            start += entry.size_bytes
        return items

    def _expand(self, block: Block) -> bytes:
        dictionary = block.header.dictionary
        if dictionary and not self._compression.knows(dictionary):
            try:
                self._compression.add(self._read_part(dictionary))
            except DamagedPart:  # not catalogued, while a lost catalogue is made again
                self._compression.add(self._found_dictionary(dictionary))
        return self._compression.expand(block.payload, block.header)

    def _found_dictionary(self, sha256: bytes) -> bytes:
        """A dictionary, searched for in all packs. Raises `DamagedPart`."""
        for pack in self.numbers():
            with self.path(pack).open("rb") as file:
                for block in whole_blocks(file, 0):
                    if isinstance(block, Block) and any(
                        (entry.kind, entry.sha256) == (DICTIONARY, sha256) for entry in block.header.entries
                    ):
                        with suppress(ValueError):
                            return next(item.content for item in self.items(block) if item.sha256 == sha256)
        raise DamagedPart("the dictionary of a block is missing", subject=f"part {sha256.hex()}")


def pack_name(pack: int) -> str:
    """The name of a pack's file."""
    return f"{pack:06}.pack"


def is_sound(item: Item) -> bool:
    """Whether a content has the digest that it is stored under."""
    return hashlib.sha256(item.content).digest() == item.sha256


def starts(items: Iterable[Item]) -> Iterator[tuple[bytes, int, int, int]]:
    """The digest of each item, where it begins in its block, its size, and its position."""
    start = 0
    for item in items:
        yield item.sha256, start, len(item.content), item.position
        start += len(item.content)


def entry_starts(entries: Iterable[Entry]) -> Iterator[tuple[bytes, int, int, int]]:
    """The same from the header of a block that cannot be expanded."""
    start = 0
    for entry in entries:
        yield entry.sha256, start, entry.size_bytes, entry.position
        start += entry.size_bytes


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
    key, what = pack_key(file)
    if key is None:
        if file.seek(0, os.SEEK_END):
            yield Torn(0, what)
        return
    if what and offset == 0:
        yield Torn(0, what, PACK_HEAD_BYTES)
    offset = max(offset, PACK_HEAD_BYTES)
    while True:
        torn: Torn | None = None
        for block in scan(file, offset=offset, key=key):
            if isinstance(block, Torn):
                torn = block
            else:
                yield block
        if torn is None:
            return
        following = next_block(file, after=torn.offset + 1)
        while following is not None and isinstance(next(scan(file, offset=following, key=key), torn), Torn):
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
