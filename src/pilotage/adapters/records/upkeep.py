"""Removes what no record needs from a folder of records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import IO

import msgspec

from pilotage.adapters.records.blocks import Block, BlockHead, Torn, block_heads
from pilotage.adapters.records.catalogue import Catalogue
from pilotage.adapters.records.packs import (
    ANNOTATION,
    DICTIONARY,
    RECORD,
    Item,
    PackFiles,
    is_sound,
    pack_name,
    starts,
    whole_blocks,
)
from pilotage.adapters.records.recovery import ReadPart, named_parts
from pilotage.ports.records import Collected, DamagedPart

COPIED_BYTES_MAX = 16 * 1024 * 1024
SEE_ALL = "see all damage: pilotage provenance fsck"


class Live:
    """Everything that records need; where one cannot be read, that may be any part."""

    def __init__(self, catalogue: Catalogue, read_part: ReadPart, *, damaged: Callable[[], Collection[bytes]]) -> None:
        """Read all records. `damaged` are the parts that are known to be; raises what else keeps a record from being read."""
        self._catalogue = catalogue
        self._needed = {sha256 for _, _, sha256 in catalogue.all_deletions()}
        self.unreadable: set[str] = set()  # jobs whose newest record, or an annotation, is damaged or lacks parts
        for kind, rows in ((RECORD, catalogue.all_records()), (ANNOTATION, catalogue.all_annotations())):
            for _, job, sha256 in list(rows):
                self._needed.add(sha256)
                try:
                    self._needed |= named_parts(kind, read_part(sha256))[1]
                except DamagedPart:
                    if sha256 not in damaged():
                        raise
                    # Nobody can tell what belonged to an earlier revision; the newest has the whole life of the job.
                    if kind == ANNOTATION or catalogue.revision(job, None) == sha256:
                        self.unreadable.add(job)

    def add(self, digests: Collection[bytes]) -> None:
        """These are needed, too."""
        self._needed.update(digests)

    def needs(self, sha256: bytes) -> bool:
        """Whether a record needs a part, or may need it."""
        return bool(self.unreadable) or sha256 in self._needed

    def needs_here(self, kind: str, sha256: bytes, place: tuple[int, int]) -> bool:
        """Whether an item is needed, and looked for in this block: another copy may have been written before a crash."""
        if kind == DICTIONARY:
            return True
        found = self._catalogue.place(sha256)
        return found is not None and (found.pack, found.offset) == place and self.needs(sha256)


def collect(packs: PackFiles, catalogue: Catalogue, live: Live, *, left: Collection[int], dry_run: bool) -> Collected:
    """Remove the parts that are not live, or only count them; some packs are left as they are, since parts of them are damaged."""
    before = sum(packs.size(pack) for pack in packs.numbers())
    parts = part_bytes = freed = 0
    for pack in packs.numbers():
        if pack in left:
            continue
        dead = _dead_in(packs, catalogue, pack, live)
        parts, part_bytes, freed = parts + dead.parts, part_bytes + dead.part_bytes, freed + dead.freed_bytes
        if (dead.parts or dead.freed_bytes) and not dry_run:
            _rewrite(packs, catalogue, pack, live)
    if not dry_run:
        freed = before - sum(packs.size(pack) for pack in packs.numbers())
    return Collected(
        parts=parts,
        part_bytes=part_bytes,
        freed_bytes=max(0, freed),
        unreadable=tuple(sorted(live.unreadable)),
        left_packs=tuple(pack_name(pack) for pack in sorted(left)),
    )


def _dead_in(packs: PackFiles, catalogue: Catalogue, pack: int, live: Live) -> Collected:
    """The parts of a pack that nobody needs, and about how much of the file they take."""
    count = size = share = 0
    with packs.path(pack).open("rb") as file:
        for block in _listed(file):
            if isinstance(block, Torn):
                share += _emptied_bytes(catalogue, pack, block, size_bytes=packs.size(pack))
                continue
            gone = [
                entry.size_bytes
                for entry in block.header.entries
                if not live.needs_here(entry.kind, entry.sha256, (pack, block.offset))
            ]
            whole = sum(entry.size_bytes for entry in block.header.entries)
            count, size = count + len(gone), size + sum(gone)
            share += (block.end - block.offset) * sum(gone) // max(whole, 1)
    return Collected(parts=count, part_bytes=size, freed_bytes=share)


def _listed(file: IO[bytes]) -> Iterator[BlockHead | Torn]:
    """What a pack consists of: from the headers alone, since what is removed was checked before, and else only counted."""
    try:
        yield from list(block_heads(file))
    except (ValueError, msgspec.DecodeError):  # a damaged block, which may have been emptied
        for block in whole_blocks(file, 0):
            yield block if isinstance(block, Torn) else BlockHead(block.offset, block.end, block.header)


def _emptied_bytes(catalogue: Catalogue, pack: int, torn: Torn, *, size_bytes: int) -> int:
    """The size of a damaged block whose parts were all stored anew. Raises `DamagedPart` where one was not."""
    end = size_bytes if torn.following is None else torn.following
    if not catalogue.is_emptied(pack, torn.offset, end):
        raise _lost(f"{pack_name(pack)} at {torn.offset}", torn.what)
    return end - torn.offset


def _rewrite(packs: PackFiles, catalogue: Catalogue, pack: int, live: Live) -> None:
    """Copy what is needed of a pack into the last one, and remove the pack."""
    packs.leave(pack)
    kept: list[Item] = []
    with packs.path(pack).open("rb") as file:
        for block in whole_blocks(file, 0):  # dictionaries first: what follows may be compressed with them
            if isinstance(block, Block) and block.header.entries[0].kind == DICTIONARY:
                packs.append(packs.items(block))
        for block in whole_blocks(file, 0):
            if isinstance(block, Torn):
                _emptied_bytes(catalogue, pack, block, size_bytes=packs.size(pack))
                continue
            kept += [
                item
                for item in packs.items(block)
                if item.kind != DICTIONARY and live.needs_here(item.kind, item.sha256, (pack, block.offset))
            ]
            for item in kept:
                if not is_sound(item):
                    raise _lost(f"part {item.sha256.hex()}", "its content does not match its digest")
            if sum(len(item.content) for item in kept) > COPIED_BYTES_MAX:
                packs.append(kept)
                kept = []
    packs.append(kept)
    packs.sync()
    with catalogue.transaction():
        for each in packs.written:
            catalogue.add_block(each.pack, each.offset, each.end, starts(each.items))
            moved = ((sha256, start) for sha256, start, _, _ in starts(each.items))
            catalogue.move_block(moved, pack=each.pack, offset=each.offset)
        for sha256 in catalogue.parts_in(pack):
            if live.needs(sha256):
                raise _lost(f"part {sha256.hex()}", f"it was not found in {pack_name(pack)}")
        catalogue.remove_pack(pack)
    packs.written.clear()
    packs.remove(pack)


def _lost(subject: str, what: str) -> DamagedPart:
    return DamagedPart(f"{what}: nothing is removed from a damaged store", subject=subject, next_step=SEE_ALL)
