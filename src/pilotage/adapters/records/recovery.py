"""Catalogues what packs contain: after a crash, where the catalogue was lost, and to compare a catalogue with its packs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import IO, NamedTuple

import msgspec

from pilotage.adapters.records.blocks import PACK_HEAD_BYTES, Block, Torn
from pilotage.adapters.records.catalogue import Catalogue, DamagedCatalogue
from pilotage.adapters.records.packs import (
    ANNOTATION,
    DELETION,
    RECORD,
    Item,
    PackFiles,
    entry_starts,
    pack_name,
    starts,
    whole_blocks,
)
from pilotage.model.records import Annotation, Deletion, decoded_record
from pilotage.ports.records import DamagedPart

log = logging.getLogger(__name__)

TORN_BYTES_MAX = 64 * 1024 * 1024

ReadPart = Callable[[bytes], bytes]


class Named(NamedTuple):
    """A record or annotation that names parts: where it stands, and of which job."""

    kind: str
    position: int
    sha256: bytes
    job: str


def named_parts(kind: str, content: bytes) -> tuple[str, set[bytes]]:
    """The job of a record or an annotation, and the digests of the parts that it names."""
    if kind == RECORD:
        record = decoded_record(content)
        return record.job, {bytes.fromhex(part.sha256) for part in record.parts}
    annotation = msgspec.json.decode(content, type=Annotation)
    return annotation.job, set() if annotation.part is None else {bytes.fromhex(annotation.part.sha256)}


def add_block(catalogue: Catalogue, pack: int, block: Block, items: Sequence[Item]) -> list[Named]:
    """Catalogue a block. Returns its records and annotations that name parts of blocks that are not catalogued yet."""
    catalogue.add_block(pack, block.offset, block.end, starts(items))
    early = []
    for item in items:
        try:
            if item.kind == DELETION:
                job = msgspec.json.decode(item.content, type=Deletion).job
                catalogue.add_deletion(item.position, job, item.sha256)
            elif item.kind in (RECORD, ANNOTATION):
                job, digests = named_parts(item.kind, item.content)
                if digests - catalogue.known(digests):
                    early.append(Named(item.kind, item.position, item.sha256, job))
                else:
                    _add_named(catalogue, item)
        except msgspec.DecodeError as fault:
            log.warning("a %s in %s at %d cannot be read: %s", item.kind, pack_name(pack), block.offset, fault)
    return early


def _add_named(catalogue: Catalogue, item: Item) -> None:
    if item.kind == RECORD:
        catalogue.add_record(item.position, decoded_record(item.content), item.sha256)
    else:
        annotation = msgspec.json.decode(item.content, type=Annotation)
        catalogue.add_annotation(item.position, annotation, item.sha256)


def add_early(catalogue: Catalogue, named: Named, content: bytes) -> Collection[bytes]:
    """Catalogue a record that stood before its parts, or return those of its parts that are in no pack."""
    _, digests = named_parts(named.kind, content)
    absent = digests - catalogue.known(digests)
    if not absent or named.kind == ANNOTATION:
        _add_named(catalogue, Item(named.kind, named.sha256, content, named.position))
    return absent


def catch_up(packs: PackFiles, catalogue: Catalogue, read_part: ReadPart) -> set[int]:
    """Catalogue what the packs have and the catalogue has not, all or nothing; a torn end is cut off.

    Returns the packs that are shorter than the catalogue says.
    """
    ends, early = catalogue.ends(), list[Named]()
    sizes = {pack: packs.size(pack) for pack in packs.numbers()}
    shortened = {pack for pack, end in ends.items() if sizes.get(pack, 0) < end}
    for pack in sorted(shortened):
        log.warning("%s is shorter than it was: see `pilotage provenance fsck`", pack_name(pack))
    longer = [pack for pack, size in sizes.items() if ends.get(pack, 0) < size]
    if longer:
        with catalogue.transaction():
            for pack in longer:
                early += _catalogue_pack(packs, catalogue, pack, ends.get(pack, 0))
            for each in early:  # their parts may be in other packs
                if add_early(catalogue, each, read_part(each.sha256)) and each.kind == RECORD:
                    log.warning("the record of job %s lacks parts, and does not count", each.job)
    return shortened


def _catalogue_pack(packs: PackFiles, catalogue: Catalogue, pack: int, offset: int) -> list[Named]:
    """Catalogue the blocks of a pack from an offset on."""
    early = []
    with packs.path(pack).open("r+b") as file:
        for block in whole_blocks(file, offset):
            if isinstance(block, Torn):
                if block.following is None:
                    _refuse_inside_a_block(file, pack, block.offset)
                    _cut_off(packs, file, pack, block)
                continue
            try:
                items = packs.items(block)
            except (ValueError, DamagedPart) as fault:
                log.warning("%s at %d cannot be read: %s", pack_name(pack), block.offset, fault)
                catalogue.add_block(pack, block.offset, block.end, entry_starts(block.header.entries))
                continue
            early += add_block(catalogue, pack, block, items)
    return early


def _cut_off(packs: PackFiles, file: IO[bytes], pack: int, torn: Torn) -> None:
    """Cut off a torn end, of which a copy is kept; a pack whose head is damaged stays as it is."""
    if torn.offset == 0 and file.seek(0, os.SEEK_END) > PACK_HEAD_BYTES:
        log.warning("%s cannot be read: %s; see `pilotage provenance fsck`", pack_name(pack), torn.what)
        return
    log.warning("%s is cut off at %d: %s", pack_name(pack), torn.offset, torn.what)
    file.seek(torn.offset)
    packs.path(pack).with_suffix(f".torn-{torn.offset}").write_bytes(file.read(TORN_BYTES_MAX))
    file.truncate(torn.offset)


def _refuse_inside_a_block(file: IO[bytes], pack: int, offset: int) -> None:
    """Only what follows the last whole block may be cut off. Raises `DamagedCatalogue` if a block goes beyond the offset."""
    for block in whole_blocks(file, 0):
        if not isinstance(block, Torn) and block.end > offset:
            raise DamagedCatalogue(f"the end of {pack_name(pack)} is not at {offset}")
