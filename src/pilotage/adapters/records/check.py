"""Finds every damage in a folder of records: reads all packs, catalogues them anew, and compares that with the catalogue.

It works next to a process that writes: it takes the catalogue as it is at one moment, and what a pack has beyond that is not
compared. The new catalogue is a temporary file, so that a large storage needs little memory.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pilotage.adapters.records.blocks import Block, Torn
from pilotage.adapters.records.catalogue import Catalogue, Place, is_damage
from pilotage.adapters.records.packs import (
    ANNOTATION,
    DELETION,
    RECORD,
    Item,
    PackFiles,
    is_sound,
    pack_name,
    whole_blocks,
)
from pilotage.adapters.records.recovery import Named, add_block, add_early, named_parts
from pilotage.ports.records import Damage, DamagedPart, RecordStoreError

CATALOGUE = "catalogue.sqlite"
_LOST = "it is missing or damaged"
_Row = TypeVar("_Row", bound=tuple[Any, ...])


def find_damage(
    packs_folder: Path,
    catalogue_file: Path,
    *,
    on_lost: Callable[[Collection[bytes], Collection[int]], None] = lambda *_: None,
) -> Iterator[Damage]:
    """Read everything, and name each damaged or missing part, and whatever the catalogue has wrong.

    `on_lost` gets the digests of all parts whose catalogued copy cannot be read, and the packs where something is damaged. A damaged block whose parts were all stored anew
    is nobody's loss, and is not named.
    """
    with closing(Catalogue(None, writes=True)) as made, closing(_Check(packs_folder, made)) as check:
        try:
            stored = Catalogue(catalogue_file, writes=False)
        except sqlite3.DatabaseError as fault:
            if not is_damage(fault) and catalogue_file.exists():
                raise
            if catalogue_file.exists():
                yield Damage(place=CATALOGUE, what=str(fault))
            yield from check.read_packs(None)
            return
        with closing(stored):
            yield from check.compared_with(stored, catalogue_file)
            on_lost(check.lost, check.damaged_packs)


class _Range(NamedTuple):
    """Bytes of a pack that cannot be read."""

    pack: int
    start: int
    end: float

    def contains(self, pack: int, offset: int) -> bool:
        """Whether a block that began there would be unreadable."""
        return pack == self.pack and self.start <= offset < self.end


class _Check:
    """What was found in the packs: a catalogue that is made from them alone, and what could not be read."""

    def __init__(self, packs_folder: Path, made: Catalogue) -> None:
        self._made = made
        self._packs = PackFiles(packs_folder, writes=False, read_part=self._content)
        self._unreadable: list[_Range] = []
        self._beyond: list[Damage] = []  # faults behind the last block that is catalogued
        self._lacking: set[int] = set()  # positions of records whose parts are not all there
        self.lost: set[bytes] = set()  # parts whose catalogued copy cannot be read
        self.damaged_packs: set[int] = set()

    def close(self) -> None:
        """Close the packs."""
        self._packs.close()

    def _content(self, sha256: bytes) -> bytes:
        place = self._made.place(sha256)
        if place is None:
            raise DamagedPart(_LOST, subject=f"part {sha256.hex()}")
        return self._content_at(place)

    def _content_at(self, place: Place) -> bytes:
        return self._packs.expanded(place.pack, place.offset)[place.start : place.start + place.size_bytes]

    # --- the packs ---

    def read_packs(self, last_blocks: dict[int, int] | None, stored: Catalogue | None = None) -> Iterator[Damage]:
        """Read all packs, and catalogue them as far as the last block of each that is catalogued; all of them for None.

        A damaged block that the catalogue knows to be emptied is not named.
        """
        early: list[Named] = []
        with self._made.transaction():
            for pack in self._packs.numbers():
                last = None if last_blocks is None else last_blocks.get(pack, -1)
                for damage, unreadable in self._read_pack(pack, last, early):
                    if stored is None or not stored.is_emptied(*unreadable):
                        self.damaged_packs.add(pack)
                        yield damage
            lost: dict[bytes, set[str]] = {}
            for each in early:
                absent = add_early(self._made, each, self._content(each.sha256))
                if absent and not self._made.is_deleted(each.job, each.position):
                    self._lacking.add(each.position)
                    for sha256 in absent:
                        lost.setdefault(sha256, set()).add(each.job)
        for sha256, jobs in lost.items():
            yield Damage(place="packs", what=_LOST, sha256=sha256.hex(), jobs=tuple(sorted(jobs)))

    def _read_pack(self, pack: int, last: int | None, early: list[Named]) -> Iterator[tuple[Damage, _Range]]:
        with self._packs.path(pack).open("rb") as file:
            for block in whole_blocks(file, 0):
                items, what = self._items(block)
                if not what:
                    if isinstance(block, Block) and (last is None or block.offset <= last):
                        early += add_block(self._made, pack, block, items)
                    continue
                damage = Damage(place=f"{pack_name(pack)} at {block.offset}", what=what)
                has_lost_its_key = block.offset == 0 and isinstance(block, Torn) and block.following is None
                if last is not None and block.offset > last and not has_lost_its_key:
                    self._beyond.append(damage)
                    continue
                end = block.end if isinstance(block, Block) else block.following
                self._unreadable.append(_Range(pack, block.offset, float("inf") if end is None else end))
                yield damage, self._unreadable[-1]

    def _items(self, block: Block | Torn) -> tuple[list[Item], str]:
        """The parts of a block, or what is wrong with it."""
        if isinstance(block, Torn):
            return [], block.what
        try:
            items = self._packs.items(block)
        except (ValueError, DamagedPart) as fault:
            return [], str(fault)
        wrong = [item.sha256.hex() for item in items if not is_sound(item)]
        return items, f"the content of {wrong[0]} does not match its digest" if wrong else ""

    # --- the catalogue ---

    def compared_with(self, stored: Catalogue, file: Path) -> Iterator[Damage]:
        """Read the packs, and compare them with the catalogue as it is now; every lost part is named, also one that nobody is known to need."""
        named: set[str] = set()
        for each in self._differences_from(stored, file):
            named.add(each.sha256)
            yield each
        for sha256 in sorted(digest.hex() for digest in self.lost):
            if sha256 not in named:
                yield Damage(place="packs", what=_LOST, sha256=sha256)

    def _differences_from(self, stored: Catalogue, file: Path) -> Iterator[Damage]:
        sound = True
        with stored.snapshot():
            last_blocks = None
            for each in _guarded(partial(self._file_faults, stored)):
                sound = False
                yield each
            try:
                last_blocks = stored.last_blocks()
            except sqlite3.DatabaseError as fault:
                if not is_damage(fault):
                    raise
                sound = False
                yield Damage(place=CATALOGUE, what=str(fault))
            for pack in sorted(set(last_blocks or ()) - set(self._packs.numbers())):
                _refuse_rewritten(file, pack)
                self._unreadable.append(_Range(pack, 0, float("inf")))
                self.damaged_packs.add(pack)
                yield Damage(place=pack_name(pack), what="the pack is missing")
            yield from self.read_packs(last_blocks, stored if sound else None)
            for compared in (self._packs_and_blocks, self._parts, self._records, self._marks):
                for each in _guarded(partial(compared, stored)):
                    sound = sound and each.place != CATALOGUE
                    yield each
        if not sound:  # then it does not tell where a pack should end
            yield from self._beyond

    def _file_faults(self, stored: Catalogue) -> Iterator[Damage]:
        for fault in stored.faults():
            yield Damage(place=CATALOGUE, what=fault)
        if stored.schema() != self._made.schema():
            yield Damage(place=CATALOGUE, what="the definitions of its tables are damaged")

    def _packs_and_blocks(self, stored: Catalogue) -> Iterator[Damage]:
        for there, here in _differing(stored.all_packs(), self._made.all_packs(), by=1):
            pack, end = there or here or (0, 0)
            if not any(pack == each.pack and each.start < end <= each.end for each in self._unreadable):
                what = f"it has {_or_none(there)} as the end of {pack_name(pack)}, which is at {_or_none(here)}"
                yield Damage(place=CATALOGUE, what=what)
        for there, here in _differing(stored.all_blocks(), self._made.all_blocks(), by=2):
            pack, offset = there or here or (0, 0)
            if here is not None:
                yield Damage(place=CATALOGUE, what=f"the block of {pack_name(pack)} at {offset} is missing")
            elif not self._is_unreadable(pack, offset):
                yield Damage(place=CATALOGUE, what=f"{pack_name(pack)} has no block at {offset}")

    def _is_unreadable(self, pack: int, offset: int) -> bool:
        return any(each.contains(pack, offset) for each in self._unreadable)

    def _parts(self, stored: Catalogue) -> Iterator[Damage]:
        wrong: dict[bytes, str] = {}
        for there, here in _differing(stored.all_parts(), self._made.all_parts(), by=1):
            if there is None:
                assert here is not None
                wrong[here[0]] = "it is not catalogued"
                continue
            sha256, place = there
            if place is not None and self._is_unreadable(place.pack, place.offset):
                self.lost.add(sha256)
            elif place is None or not self._is_there(sha256, place):
                wrong[sha256] = "it is not where the catalogue says"
        jobs = self._jobs_with(wrong)
        for sha256, what in wrong.items():
            # A copy of a part that nobody needs need not be catalogued.
            if sha256 in jobs or what != "it is not catalogued":
                named = tuple(sorted(jobs.get(sha256, ())))
                yield Damage(place=CATALOGUE, what=what, sha256=sha256.hex(), jobs=named)

    def _is_there(self, sha256: bytes, place: Place) -> bool:
        """Whether a part is at a place: of one that was written twice either copy may be catalogued."""
        try:
            return hashlib.sha256(self._content_at(place)).digest() == sha256
        except (OSError, ValueError, DamagedPart):
            return False

    def _jobs_with(self, digests: Iterable[bytes]) -> dict[bytes, set[str]]:
        """The jobs whose records need some parts."""
        wanted, jobs = set(digests), dict[bytes, set[str]]()
        if not wanted:
            return jobs
        for kind, rows in (
            (RECORD, self._made.all_records()),
            (ANNOTATION, self._made.all_annotations()),
            (DELETION, self._made.all_deletions()),
        ):
            for _, job, sha256 in rows:
                needed = {sha256} if kind == DELETION else {sha256, *named_parts(kind, self._content(sha256))[1]}
                for each in needed & wanted:
                    jobs.setdefault(each, set()).add(job)
        return jobs

    def _records(self, stored: Catalogue) -> Iterator[Damage]:
        yield from self._rows(RECORD, stored.whole_records(), self._made.whole_records())

    def _marks(self, stored: Catalogue) -> Iterator[Damage]:
        yield from self._rows(ANNOTATION, stored.all_annotations(), self._made.all_annotations())
        yield from self._rows(DELETION, stored.all_deletions(), self._made.all_deletions())

    def _rows(self, kind: str, stored: Iterator[_Row], made: Iterator[_Row]) -> Iterator[Damage]:
        for there, here in _differing(stored, made, by=1):
            position, *_, sha256 = there or here or (0, "", b"")
            jobs = tuple(sorted({each[1] for each in (there, here) if each is not None}))
            place, what = CATALOGUE, f"the {kind} at position {position} is not as in the packs"
            if there is None:
                what = f"the {kind} at position {position} is missing"
            elif here is None and position in self._lacking:
                continue
            elif here is None and self._made.place(sha256) is None:
                place, what = "packs", _LOST
            yield Damage(place=place, what=what, sha256=sha256.hex(), jobs=jobs)


def _refuse_rewritten(file: Path, pack: int) -> None:
    """A pack that is not catalogued any more was rewritten while it was checked."""
    with closing(Catalogue(file, writes=False)) as now:
        if pack not in now.last_blocks():
            raise RecordStoreError(
                "packs were rewritten while they were checked", subject=pack_name(pack), next_step="run it again"
            )


def _guarded(find: Callable[[], Iterable[Damage]]) -> Iterator[Damage]:
    """What is found; a catalogue that cannot be read is damage, too."""
    try:
        yield from find()
    except sqlite3.DatabaseError as fault:
        if not is_damage(fault):
            raise
        yield Damage(place=CATALOGUE, what=str(fault))


def _or_none(row: tuple[int, int] | None) -> str:
    return "nothing" if row is None else str(row[1])


def _differing(stored: Iterator[_Row], made: Iterator[_Row], *, by: int) -> Iterator[tuple[_Row | None, _Row | None]]:
    """The rows that differ, of two sequences in the order of their first columns."""
    there, here = next(stored, None), next(made, None)
    while there is not None or here is not None:
        if here is None or (there is not None and there[:by] < here[:by]):
            yield there, None
            there = next(stored, None)
        elif there is None or here[:by] < there[:by]:
            yield None, here
            here = next(made, None)
        else:
            if there != here:
                yield there, here
            there, here = next(stored, None), next(made, None)
