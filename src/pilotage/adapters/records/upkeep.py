"""Looks after a folder of records: finds every damage, and removes what no record needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pilotage.adapters.records.blocks import Block, Torn
from pilotage.adapters.records.catalogue import Catalogue
from pilotage.adapters.records.packs import (
    ANNOTATION,
    DELETION,
    DICTIONARY,
    RECORD,
    Item,
    PackFiles,
    is_sound,
    pack_name,
    starts,
    whole_blocks,
)
from pilotage.model.records import Annotation, decoded_record
from pilotage.ports.records import Collected, Damage, DamagedPart

COPIED_BYTES_MAX = 16 * 1024 * 1024
ReadPart = Callable[[bytes], bytes]


def find_damage(packs: PackFiles, catalogue: Catalogue, read_part: ReadPart) -> Iterator[Damage]:
    """Read everything, and name each damaged or missing part."""
    for fault in catalogue.faults():
        yield Damage(place="catalogue.sqlite", what=fault)
    sound: set[bytes] = set()
    marks: dict[str, set[tuple[int, bytes]]] = {RECORD: set(), ANNOTATION: set(), DELETION: set()}
    for pack in packs.numbers():
        with packs.path(pack).open("rb") as file:
            for block in whole_blocks(file, 0):
                place = f"{pack_name(pack)} at {block.offset}"
                if isinstance(block, Torn):
                    yield Damage(place=place, what=block.what)
                    continue
                try:
                    items = packs.items(file, block)
                except (ValueError, DamagedPart) as fault:
                    yield Damage(place=place, what=str(fault))
                    continue
                for item in items:
                    if not is_sound(item):
                        yield Damage(
                            place=place, what="the content does not match its digest", sha256=item.sha256.hex()
                        )
                        continue
                    sound.add(item.sha256)
                    if item.kind in marks:
                        marks[item.kind].add((item.position, item.sha256))
    yield from _compare(catalogue, read_part, sound=sound, marks=marks)


def _compare(
    catalogue: Catalogue, read_part: ReadPart, *, sound: set[bytes], marks: dict[str, set[tuple[int, bytes]]]
) -> Iterator[Damage]:
    """What the catalogue has and the packs have not, and the reverse."""
    needed: dict[bytes, set[str]] = {}
    deleted: dict[str, int] = {}
    for position, job, sha256 in catalogue.all_deletions():
        deleted[job] = max(position, deleted.get(job, 0))
        needed.setdefault(sha256, set()).add(job)
    for kind, rows in (
        (RECORD, catalogue.all_records()),
        (ANNOTATION, catalogue.all_annotations()),
        (DELETION, catalogue.all_deletions()),
    ):
        known = set()
        for position, job, sha256 in list(rows):
            known.add((position, sha256))
            needed.setdefault(sha256, set()).add(job)
            if sha256 in sound and kind != DELETION:
                for digest in _named_by(kind, read_part(sha256)):
                    needed.setdefault(digest, set()).add(job)
        for position, sha256 in sorted(marks[kind] - known):
            if kind == DELETION or not _was_deleted(kind, read_part, sha256, position, deleted, catalogue):
                yield Damage(
                    place="catalogue.sqlite", what=f"the {kind} at position {position} is missing", sha256=sha256.hex()
                )
    for sha256, jobs in needed.items():
        if sha256 not in sound:
            what, place = "it is missing or damaged", "packs"
        elif catalogue.place(sha256) is None:
            what, place = "it is not catalogued", "catalogue.sqlite"
        else:
            continue
        yield Damage(place=place, what=what, sha256=sha256.hex(), jobs=tuple(sorted(jobs)))


def _was_deleted(
    kind: str, read_part: ReadPart, sha256: bytes, position: int, deleted: dict[str, int], catalogue: Catalogue
) -> bool:
    if catalogue.place(sha256) is None:
        return False
    content = read_part(sha256)
    job = decoded_record(content).job if kind == RECORD else msgspec.json.decode(content, type=Annotation).job
    return deleted.get(job, 0) > position


def _named_by(kind: str, content: bytes) -> Iterator[bytes]:
    """The digests that a record or an annotation names."""
    if kind == RECORD:
        yield from (bytes.fromhex(part.sha256) for part in decoded_record(content).parts)
    else:
        part = msgspec.json.decode(content, type=Annotation).part
        if part is not None:
            yield bytes.fromhex(part.sha256)


# --- removing what nobody needs ---------------------------------------------------------------------------------------


def live_parts(catalogue: Catalogue, read_part: ReadPart) -> set[bytes]:
    """The digests of everything that a record needs."""
    live = {sha256 for _, _, sha256 in catalogue.all_deletions()}
    for kind, rows in ((RECORD, catalogue.all_records()), (ANNOTATION, catalogue.all_annotations())):
        for _, _, sha256 in list(rows):
            live.add(sha256)
            live.update(_named_by(kind, read_part(sha256)))
    return live


def collect(packs: PackFiles, catalogue: Catalogue, live: set[bytes], *, dry_run: bool) -> Collected:
    """Remove the parts that are not live, or only count them."""
    before = sum(packs.size(pack) for pack in packs.numbers())
    parts = part_bytes = freed = 0
    for pack in packs.numbers():
        dead = _dead_in(packs, catalogue, pack, live)
        parts, part_bytes, freed = parts + dead.parts, part_bytes + dead.part_bytes, freed + dead.freed_bytes
        if dead.parts and not dry_run:
            _rewrite(packs, catalogue, pack, live)
    if not dry_run:
        freed = before - sum(packs.size(pack) for pack in packs.numbers())
    return Collected(parts=parts, part_bytes=part_bytes, freed_bytes=max(0, freed))


def _is_live(catalogue: Catalogue, kind: str, sha256: bytes, place: tuple[int, int], live: set[bytes]) -> bool:
    """Whether an item is needed, and looked for in this block: another copy may have been written before a crash."""
    if kind == DICTIONARY:
        return True
    found = catalogue.place(sha256)
    return sha256 in live and found is not None and (found.pack, found.offset) == place


def _dead_in(packs: PackFiles, catalogue: Catalogue, pack: int, live: set[bytes]) -> Collected:
    """The parts of a pack that nobody needs, and about how much of the file they take."""
    count = size = share = 0
    with packs.path(pack).open("rb") as file:
        for block in whole_blocks(file, 0):
            if isinstance(block, Torn):
                raise DamagedPart(
                    f"{block.what}: nothing is removed from a damaged store",
                    subject=f"{pack_name(pack)} at {block.offset}",
                    next_step="see all damage: pilotage provenance fsck",
                )
            gone = [
                entry.size_bytes
                for entry in block.header.entries
                if not _is_live(catalogue, entry.kind, entry.sha256, (pack, block.offset), live)
            ]
            whole = sum(entry.size_bytes for entry in block.header.entries)
            count, size = count + len(gone), size + sum(gone)
            share += (block.end - block.offset) * sum(gone) // max(whole, 1)
    return Collected(parts=count, part_bytes=size, freed_bytes=share)


def _rewrite(packs: PackFiles, catalogue: Catalogue, pack: int, live: set[bytes]) -> None:
    """Copy what is needed of a pack into the last one, and remove the pack."""
    packs.leave(pack)
    kept: list[Item] = []
    with packs.path(pack).open("rb") as file:
        for block in whole_blocks(file, 0):  # dictionaries first: what follows may be compressed with them
            if isinstance(block, Block) and block.header.entries[0].kind == DICTIONARY:
                packs.append(packs.items(file, block))
        for block in whole_blocks(file, 0):
            assert isinstance(block, Block)
            kept += [
                item
                for item in packs.items(file, block)
                if item.kind != DICTIONARY and _is_live(catalogue, item.kind, item.sha256, (pack, block.offset), live)
            ]
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
        catalogue.remove_pack(pack)
    packs.written.clear()
    packs.remove(pack)
