"""A copy of the packs of records in a store: each commit adds what it appended, verified, before anybody sees the records.

    000001/000000000000-000000004711-SHA256-000007.segment    those bytes of the pack, named by their content, of the seventh writer
    000001/000000004711.complete                              so many bytes are the whole pack: a later one followed
    000001/removed                                            the pack was rewritten: it is not missing
    writers/000007                                            which folder writes

A folder that lost packs, or all of them, gets them back from there when it is opened.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pilotage.adapters.records.copy_writers import CopyWriters
from pilotage.model.errors import PilotageError
from pilotage.model.locators import locator_below, shown_locator
from pilotage.ports.records import Damage, NoRecords, RecordStoreError
from pilotage.ports.store import AlreadyInStore

if TYPE_CHECKING:
    from pilotage.ports.store import Store

SEGMENT_BYTES_MAX = 64 * 1024 * 1024
REMOVED = "removed"

_SEGMENT = re.compile(r"([0-9]{6})/([0-9]{12})-([0-9]{12})-([0-9a-f]{64})(?:-([0-9]{6,12}))?\.segment")
_COMPLETE = re.compile(r"([0-9]{6})/([0-9]{12})\.complete")
_MARK = re.compile(rf"([0-9]{{6}})/{REMOVED}")
_PIECE_BYTES = 2**20


class Packs(Protocol):
    """The packs of a folder, as far as they are copied."""

    def numbers(self) -> list[int]:
        """The packs, in order."""
        ...

    def path(self, pack: int) -> Path:
        """The file of a pack."""
        ...

    def size(self, pack: int) -> int:
        """The size of a pack; 0 if there is none."""
        ...


class Segment(NamedTuple):
    """Some bytes of a pack in the store."""

    start: int
    end: int
    sha256: str
    locator: str
    writer: int = 0  # the number of the claim under which it was written


class Listing(NamedTuple):
    """What the store has: the segments of each pack that follow one another, and the packs that were removed."""

    segments: dict[int, list[Segment]]
    ends: dict[int, int]  # pack → how much of it was there at some time
    complete: frozenset[int]
    removed: frozenset[int]

    def covered(self, pack: int) -> int:
        """How much of a pack is there, from its beginning."""
        return self.segments[pack][-1].end if self.segments.get(pack) else 0


class PackCopies:
    """The copies of the packs of one folder. Every method raises `RecordStoreError`."""

    def __init__(self, store: Store, url: str, *, takes_over: bool = False) -> None:
        """Take a store and the locator of a folder in it; `takes_over`: from another folder that still claims to write there."""
        self._store = store
        self._url = url.rstrip("/")
        self._writers = CopyWriters(store, self._url)
        self._takes_over = takes_over
        self._covered: dict[int, int] = {}  # by pack, as far as this process has verified copies
        self._complete: set[int] = set()  # packs that are marked as such

    def listing(self) -> Listing:
        """What is there now."""
        with self._errors():
            names = [each.locator for each in self._store.list(self._url)]
        found: dict[int, list[Segment]] = {}
        removed: set[int] = set()
        complete: dict[int, int] = {}
        for locator in names:
            name = locator.removeprefix(f"{self._url}/")
            if (parts := _SEGMENT.fullmatch(name)) is not None:
                segment = Segment(int(parts[2]), int(parts[3]), parts[4], locator, int(parts[5] or 0))
                found.setdefault(int(parts[1]), []).append(segment)
            elif (parts := _COMPLETE.fullmatch(name)) is not None:
                complete[int(parts[1])] = int(parts[2])
            elif (mark := _MARK.fullmatch(name)) is not None:
                removed.add(int(mark[1]))
        chains = {pack: _chain(segments) for pack, segments in found.items()}
        ends = {pack: max(each.end for each in segments) for pack, segments in found.items()}
        for pack, size in complete.items():
            ends[pack] = max(ends.get(pack, 0), size)
        return Listing(chains, ends, frozenset(complete), frozenset(removed))

    # --- who writes ---

    def claim(self, folder: Path) -> None:
        """Write for a folder from now on. Raises `RecordStoreError` while another one does."""
        with self._errors():
            self._writers.claim(folder, takes_over=self._takes_over)

    def release(self) -> None:
        """Let another folder write."""
        self._writers.release()

    def _refuse_displaced(self) -> None:
        with self._errors():
            self._writers.refuse_displaced()

    # --- bringing packs back ---

    def restore(self, packs: Packs) -> None:
        """Bring back packs that the folder has lost, or has less of than the store."""
        listing = self.listing()
        for pack, damage in self._missing(listing, packs):
            if packs.size(pack) < listing.ends.get(pack, 1):
                raise RecordStoreError(f"{damage.what}: nothing is brought back", subject=damage.place)
        for pack, segments in sorted(listing.segments.items()):
            if pack not in listing.removed and packs.size(pack) < listing.covered(pack):
                self._restore_pack(packs.path(pack), segments)

    def _restore_pack(self, path: Path, segments: Sequence[Segment]) -> None:
        draft = path.with_suffix(".part")
        try:
            with draft.open("wb") as file:
                draft.chmod(0o600)
                for segment in segments:
                    hashed = hashlib.sha256()
                    with self._errors():
                        for piece in self._store.read(segment.locator):
                            hashed.update(piece)
                            file.write(piece)
                    if hashed.hexdigest() != segment.sha256 or file.tell() != segment.end:
                        raise RecordStoreError(
                            "its content does not match its name", subject=shown_locator(segment.locator)
                        )
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    # --- copying ---

    def begin(self, packs: Packs) -> None:
        """Copy what the store has not, such as what was written before a crash, or before there was a store."""
        listing, here = self.listing(), packs.numbers()
        for pack in set(range(1, max(here, default=0))) - {
            *here,
            *listing.segments,
            *listing.complete,
            *listing.removed,
        }:
            self._mark(f"{pack:06}/{REMOVED}")  # before there was a store
        for pack in here:
            segments = listing.segments.get(pack, [])
            for each in {*segments[:1], *segments[-1:]}:
                if _digest(packs.path(pack), each.start, each.end) != each.sha256:
                    raise RecordStoreError(
                        "the store has other records than the folder, or the folder is damaged",
                        subject=f"{packs.path(pack)}, {shown_locator(each.locator)}",
                        next_step="name another place in provenance.storage, or move the folder away: it is brought back",
                    )
            if pack in listing.removed:
                with self._errors():
                    self._store.delete(self._locator(f"{pack:06}/{REMOVED}"))
            self._covered[pack] = listing.covered(pack)
        self._complete = set(listing.complete)
        self.copy(packs)

    def copy(self, packs: Packs) -> None:
        """Copy what was appended since the last time, and verify it. Raises `RecordStoreError` if another folder writes by now."""
        self._refuse_displaced()
        numbers = packs.numbers()
        for pack in numbers:
            size = packs.size(pack)
            while (start := self._covered.get(pack, 0)) < size:
                end = min(size, start + SEGMENT_BYTES_MAX)
                self._put(packs.path(pack), pack, start, end)
                self._covered[pack] = end
            if pack != numbers[-1] and pack not in self._complete:
                self._mark(f"{pack:06}/{size:012}.complete")
                self._complete.add(pack)
        self._refuse_displaced()  # who claims now lists what was put

    def _put(self, path: Path, pack: int, start: int, end: int) -> None:
        sha256 = _digest(path, start, end)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".segment") as draft:
            for piece in _pieces(path, start, end):
                draft.write(piece)
            draft.flush()
            name = f"{start:012}-{end:012}-{sha256}-{self._writers.number:06}.segment"
            self._put_file(draft.name, f"{pack:06}/{name}", sha256)

    def _put_file(self, source: str, name: str, sha256: str) -> None:
        locator = self._locator(name)
        with self._errors():
            with suppress(AlreadyInStore):  # of an earlier try, whose answer was lost
                self._store.put(source, locator)
            there = self._store.stat(locator)
            got = (there.sha256 or self._store.checksum(locator)) if there is not None else "nothing"
        if got != sha256:
            raise RecordStoreError(
                "the copy in the store is not what was written",
                subject=shown_locator(locator),
                expected=f"sha256 {sha256}",
                got=got,
            )

    def remove(self, pack: int) -> None:
        """Remove the copy of a pack that was rewritten."""
        self._refuse_displaced()
        self._mark(f"{pack:06}/{REMOVED}")
        with self._errors():
            for each in [each.locator for each in self._store.list(self._locator(f"{pack:06}"))]:
                if not each.endswith(f"/{REMOVED}"):
                    self._store.delete(each)
        self._covered.pop(pack, None)

    def _mark(self, name: str) -> None:
        with tempfile.NamedTemporaryFile(suffix=".segment") as empty:
            self._put_file(empty.name, name, hashlib.sha256().hexdigest())

    # --- looking after them ---

    def check(self, packs: Packs) -> Iterator[Damage]:
        """Read all copies, and name what is damaged or missing."""
        listing = self.listing()
        for _, damage in self._missing(listing, packs):
            yield damage
        for _, segments in sorted(listing.segments.items()):
            for each in segments:
                with self._errors():
                    intact = self._store.checksum(each.locator) == each.sha256
                if not intact:
                    yield Damage(place=shown_locator(each.locator), what="its content does not match its name")

    def _missing(self, listing: Listing, packs: Packs) -> Iterator[tuple[int, Damage]]:
        """The packs that are not all in the store, though they are here, or were there."""
        here, known = packs.numbers(), {*listing.ends, *listing.removed}
        for pack in sorted({*range(1, max(known, default=0) + 1), *here} - listing.removed):
            size, covered = max(packs.size(pack), listing.ends.get(pack, 0)), listing.covered(pack)
            if pack not in listing.ends:
                yield pack, Damage(place=self._shown(pack), what="the pack is missing in the store")
            elif covered < size:
                what = f"bytes of the pack are missing in the store from {covered:,} on"
                yield pack, Damage(place=self._shown(pack), what=what)

    def refuse_empty(self) -> None:
        """Raise `NoRecords` if nothing is there."""
        if not self.listing().segments:
            raise NoRecords("there are no records here", subject=self._url)

    def _locator(self, name: str) -> str:
        return locator_below(self._url, name)

    def _shown(self, pack: int) -> str:
        return shown_locator(self._locator(f"{pack:06}"))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn an error of the store into one of the records."""
        try:
            yield
        except RecordStoreError:
            raise
        except PilotageError as fault:
            raise RecordStoreError(
                f"the copy of the records cannot be used: {fault.what}",
                subject=fault.subject or self._url,
                next_step=fault.next_step,
            ) from fault


def _chain(segments: Sequence[Segment]) -> list[Segment]:
    """The segments that follow one another from the beginning; of those that begin at one place, the longest of the last writer."""
    longest = {each.start: each for each in sorted(segments, key=lambda each: (each.writer, each.end))}
    found, at = [], 0
    while at in longest and longest[at].end > at:
        found.append(longest[at])
        at = longest[at].end
    return found


def _pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (piece := file.read(min(_PIECE_BYTES, end - start))):
            yield piece
            start += len(piece)


def _digest(path: Path, start: int, end: int) -> str:
    hashed = hashlib.sha256()
    for piece in _pieces(path, start, end):
        hashed.update(piece)
    return hashed.hexdigest()
