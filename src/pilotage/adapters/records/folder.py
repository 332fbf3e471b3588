"""Job records in a folder: parts in packs, each stored once however many records share it.

    packs/000001.pack    blocks of compressed parts, records, annotations and deletions; only ever appended to
    catalogue.sqlite     where each part is, and which records there are; follows from the packs
    dictionary           the digest of the dictionary that new blocks are compressed with
    expiry-time          the time by which records expire
    damaged              the parts that were found damaged, which are stored anew when they come again
    lock                 held by the one process that writes

A commit appends its parts, then its records, syncs the pack once, and catalogues them. After a crash a writer catalogues what
the packs have and the catalogue has not, and cuts off a block that was torn. A record whose parts are not all there does not count.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.closed_folders import make_closed
from pilotage.adapters.records import upkeep
from pilotage.adapters.records.catalogue import Catalogue, DamagedCatalogue, Place, is_damage
from pilotage.adapters.records.check import CATALOGUE, find_damage
from pilotage.adapters.records.damage_marks import DamageMarks
from pilotage.adapters.records.packs import (
    ANNOTATION,
    DELETION,
    DICTIONARY,
    RECORD,
    Item,
    PackFiles,
    pack_name,
    starts,
)
from pilotage.adapters.records.recovery import catch_up
from pilotage.adapters.records.upkeep import SEE_ALL
from pilotage.model.events.events import id_beginning
from pilotage.model.events.payloads import AccessRule
from pilotage.model.records import Annotation, Deletion, JobRecord, decoded_record, encoded_record
from pilotage.ports.records import (
    MAKE_CATALOGUE_AGAIN,
    Collected,
    Damage,
    DamagedPart,
    IncompleteRecord,
    NoRecords,
    RecordStoreError,
    RecordTaken,
    StoredRecord,
    sound_record,
)

if TYPE_CHECKING:
    from pilotage.adapters.records.copies import PackCopies

log = logging.getLogger(__name__)

PENDING_BYTES_MAX = 16 * 1024 * 1024
SAMPLES = 400
SAMPLED_RECORDS_MIN = 100
SAMPLE_BYTES_MAX = 16 * 1024
DICTIONARY_BYTES = 64 * 1024


class FolderRecords:
    """A folder of records; any thread may use it."""

    def __init__(self, folder: Path, *, writes: bool = True, copies: PackCopies | None = None) -> None:
        """Open the folder, or make it. Raises `RecordStoreError`, also where another process writes.

        With `copies`, packs that are lost here are brought back, and everything that is written has a copy there.
        """
        self._folder = folder
        self._writes = writes
        self._guard = threading.RLock()
        self._copies = copies
        self._packs = PackFiles(
            folder / "packs",
            writes=writes,
            read_part=self._content,
            copies=copies,
            before_append=self._refuse_displaced,
        )
        self._marks = DamageMarks(folder / "damaged")
        self._pending: dict[bytes, Item] = {}
        self._pending_bytes = 0
        self._added: set[bytes] = set()  # parts of this process that no record has yet
        self._lock = -1
        self._shortened: set[int] = set()
        self._damaged_packs: set[int] = set()  # as the last check found them
        self._opened: Catalogue | None = None
        self._catalogue_fault = ""
        with _as_store_error(folder):
            if writes:
                make_closed(self._packs.folder)
                self._lock = _locked(folder / "lock")
            try:
                if writes:
                    if copies is not None:
                        copies.claim(folder)
                        copies.restore(self._packs)
                    self._open_to_write()
                    if copies is not None:
                        copies.begin(self._packs)
                    self._packs.start_at_the_end(shortened=self._shortened)
                    self._use_dictionary()
                    self._commit_healed()
                else:
                    self._open_to_read()
            except BaseException:
                self._unlock()
                raise

    def close(self) -> None:
        """Let another process write."""
        with self._guard:
            if self._opened is not None:
                self._opened.close()
            self._packs.close()
            self._unlock()

    def _unlock(self) -> None:
        if self._writes and self._copies is not None:
            self._copies.release()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _commit_healed(self) -> None:
        """Commit records anew that were damaged and can be read again, such as in a pack that was brought back: indexes left them out."""
        damaged = self._marks.damaged()
        found = [row for row in self._catalogue.all_records() if row[2] in damaged] if damaged else []
        for _, _, sha256 in found:
            with suppress(DamagedPart):
                content = self._content(sha256)
                item = self._next(RECORD, content)
                self._packs.append([item])
                with self._durably():
                    self._catalogue.add_record(item.position, decoded_record(content), sha256)

    def _refuse_displaced(self) -> None:
        """Raise `OSError` if the lock is another file by now, such as of a folder that was put in place of this one."""
        try:
            there, here = (self._folder / "lock").stat(), os.fstat(self._lock)
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
        except FileNotFoundError:
            pass
        self._packs.broken = "its lock was taken away, and another process may write there"
        raise OSError(self._packs.broken)

    # --- writing ---

    def missing(self, parts: Collection[str]) -> set[str]:
        """Those of some digests that are not stored, or are known to be damaged."""
        with self._guard, _as_store_error(self._folder):
            digests = {bytes.fromhex(each) for each in parts}
            damaged = self._marks.damaged() - self._added
            return {each.hex() for each in digests - (self._known(digests) - damaged)}

    def _known(self, digests: Collection[bytes]) -> set[bytes]:
        here = {each for each in digests if each in self._added}
        return here | self._catalogue.known([each for each in digests if each not in here])

    def add_parts(self, parts: Iterable[tuple[str, bytes]]) -> list[str]:
        """Store contents with their kinds, and return their digests. Without a commit nobody sees them."""
        found = []
        with self._guard, _as_store_error(self._folder):
            damaged = self._marks.damaged()
            for kind, content in parts:
                sha256 = hashlib.sha256(content).digest()
                found.append(sha256.hex())
                if sha256 in self._added:
                    continue
                if sha256 not in damaged and self._catalogue.place(sha256) is not None:
                    continue
                self._pending[sha256] = Item(kind, sha256, content)
                self._added.add(sha256)
                self._pending_bytes += len(content)
                if self._pending_bytes > PENDING_BYTES_MAX:
                    self._flush()
        return found

    def commit(self, records: Sequence[JobRecord]) -> list[int]:
        """Make records visible, all durable on return, and return their positions."""
        with self._guard, _as_store_error(self._folder):
            positions, last = [], self._catalogue.last_position()
            fresh: dict[tuple[str, int], tuple[Item, JobRecord]] = {}
            for record in records:
                content = encoded_record(record)
                sha256 = hashlib.sha256(content).digest()
                known = self._position(record, sha256, fresh.get((record.job, record.revision)))
                if known is None:
                    self._refuse_incomplete(record)
                    known = last = last + 1
                    fresh[record.job, record.revision] = Item(RECORD, sha256, content, known), record
                positions.append(known)
            if fresh:
                self._flush()
                self._packs.append([item for item, _ in fresh.values()])
                with self._durably():
                    for item, record in fresh.values():
                        self._catalogue.add_record(item.position, record, item.sha256)
                for _, record in fresh.values():
                    self._added.difference_update(bytes.fromhex(part.sha256) for part in record.parts)
                if not self._packs.dictionary and self._catalogue.count() >= SAMPLED_RECORDS_MIN:
                    self._train()
            return positions

    def _position(self, record: JobRecord, sha256: bytes, fresh: tuple[Item, JobRecord] | None) -> int | None:
        """The position of a record that is there already, and sound. Raises `RecordTaken` where another one has its revision."""
        known = [(fresh[0].sha256, fresh[0].position)] if fresh is not None else []
        known += [
            (bytes.fromhex(each.sha256), each.position)
            for each in self._catalogue.revisions(record.job)
            if each.revision == record.revision
        ]
        for digest, position in known:
            if digest == sha256:
                return None if fresh is None and sha256 in self._marks.damaged() else position
            raise RecordTaken(
                "another record has this revision", subject=f"job {record.job}", got=f"revision {record.revision}"
            )
        return None

    def _refuse_incomplete(self, record: JobRecord) -> None:
        digests = {bytes.fromhex(part.sha256) for part in record.parts}
        absent = digests - self._known(digests)
        if absent:
            raise IncompleteRecord(
                f"{len(absent)} of its parts are not stored",
                subject=f"job {record.job}",
                got=min(absent).hex(),
                next_step="upload its parts first",
            )

    def annotate(self, annotation: Annotation) -> int:
        """Append an annotation to the record of a job; durable on return."""
        with self._guard, _as_store_error(self._folder):
            if self._catalogue.revision(annotation.job, None) is None:
                raise RecordStoreError("it has no record", subject=f"job {annotation.job}")
            named = [] if annotation.part is None else [bytes.fromhex(annotation.part.sha256)]
            if len(self._known(named)) < len(named):
                raise IncompleteRecord("its content is not stored", subject=f"annotation {annotation.name}")
            content = msgspec.json.encode(annotation, order="deterministic")
            item = self._next(ANNOTATION, content)
            self._flush()
            self._packs.append([item])
            with self._durably():
                self._catalogue.add_annotation(item.position, annotation, item.sha256)
            self._added.difference_update(named)
            return item.position

    def delete(self, job: str, *, at: float, author: str) -> bool:
        """Forget every revision of a record and its annotations; whether there was one. Parts stay until `collect`."""
        with self._guard, _as_store_error(self._folder):
            if self._catalogue.revision(job, None) is None:
                return False
            owner, access = self._readers(job)
            deletion = Deletion(job=job, at=at, author=author, owner=owner, access=access)
            item = self._next(DELETION, msgspec.json.encode(deletion))
            self._packs.append([item])
            with self._durably():
                self._catalogue.add_deletion(item.position, job, item.sha256)
            return True

    def _readers(self, job: str) -> tuple[str, tuple[AccessRule, ...]]:
        """The owner of a job's record, and everybody else who could read one of its revisions."""
        revisions = self._catalogue.revisions(job)
        owner = revisions[-1].owner
        earlier = {each.owner for each in revisions} - {owner}
        rules = [AccessRule(principal=each, rights=("read",)) for each in sorted(earlier)]
        for each in revisions:
            with suppress(DamagedPart, msgspec.DecodeError):  # also a damaged record can be deleted
                rules += decoded_record(self._content(bytes.fromhex(each.sha256))).access
        return owner, tuple(dict.fromkeys(rules))

    def _next(self, kind: str, content: bytes) -> Item:
        return Item(kind, hashlib.sha256(content).digest(), content, self._catalogue.last_position() + 1)

    def _flush(self) -> None:
        """Write the parts that wait, those of a kind together; synced by the commit. After a fault they must come again."""
        if not self._pending:
            return
        try:
            self._packs.append(sorted(self._pending.values(), key=lambda item: (item.kind, len(item.content))))
        except BaseException:
            self._added.difference_update(self._pending)  # or a full disk would fill the memory
            raise
        finally:
            self._pending.clear()
            self._pending_bytes = 0

    @contextmanager
    def _durably(self) -> Iterator[None]:
        """Sync what was appended, and catalogue it with what is added within."""
        self._packs.sync()
        damaged = self._marks.damaged()
        try:
            with self._catalogue.transaction():
                for each in self._packs.written:
                    self._catalogue.add_block(each.pack, each.offset, each.end, starts(each.items), damaged=damaged)
                yield
        except BaseException as fault:
            # It is durable in the pack, with positions that no other may get: it is catalogued when the folder is opened again.
            self._packs.broken = f"the catalogue could not be written: {fault}"
            raise
        if damaged:
            self._marks.heal(item.sha256 for each in self._packs.written for item in each.items)
        self._packs.written.clear()

    # --- the catalogue ---

    @property
    def _catalogue(self) -> Catalogue:
        if self._opened is None:
            raise DamagedCatalogue(self._catalogue_fault)
        return self._opened

    def _open_to_read(self) -> None:
        """Open the catalogue. A damaged one is reported when it is needed: a check of the packs does without."""
        file = self._folder / CATALOGUE
        if not file.is_file():
            if not self._packs.numbers():
                raise NoRecords(
                    "there are no records here",
                    subject=str(self._folder),
                    next_step="go to the folder of the jobs, or name the server that has them with --server",
                )
            self._catalogue_fault = "the catalogue is missing"
            return
        try:
            self._opened = Catalogue(file, writes=False)
        except sqlite3.DatabaseError as fault:
            if not is_damage(fault):
                raise
            self._catalogue_fault = str(fault)

    def _open_to_write(self) -> None:
        """Open the catalogue and bring it up to date, or make it again if it is damaged."""
        file = self._folder / CATALOGUE
        try:
            self._opened = Catalogue(file, writes=True)
            self._shortened = catch_up(self._packs, self._opened, self._content)
            return
        except sqlite3.DatabaseError as fault:
            if not is_damage(fault):
                raise
            log.warning("the catalogue of %s is damaged, and is made again from the packs: %s", self._folder, fault)
        if self._opened is not None:
            self._opened.close()
        for suffix in ("", "-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        self._opened = Catalogue(file, writes=True)
        self._shortened = catch_up(self._packs, self._opened, self._content)

    # --- dictionaries ---

    def _use_dictionary(self) -> None:
        """Compress with the dictionary that was trained, if one was."""
        with suppress(FileNotFoundError, DamagedPart, ValueError):
            digest = bytes.fromhex((self._folder / "dictionary").read_text().strip())
            self._packs.use_dictionary(self._content(digest))

    def _train(self) -> None:
        """Train a dictionary on small parts of the latest records, and use it from now on."""
        samples: list[bytes] = []
        for each in self._catalogue.latest(SAMPLES):
            with suppress(DamagedPart, msgspec.DecodeError):  # a damaged record is no sample
                record = decoded_record(self._content(bytes.fromhex(each.sha256)))
                samples.append(encoded_record(record))
                samples += [
                    self._content(bytes.fromhex(part.sha256))
                    for part in record.parts
                    if part.size_bytes <= SAMPLE_BYTES_MAX and part.kind in ("life-log", "log", "definition")
                ]
        trained = self._packs.train(samples, size_bytes=DICTIONARY_BYTES)
        if trained is None:
            return
        digest = hashlib.sha256(trained).digest()
        self._packs.append([Item(DICTIONARY, digest, trained)])
        with self._durably():
            pass
        draft = self._folder / "dictionary.draft"
        draft.write_text(digest.hex())
        draft.replace(self._folder / "dictionary")
        self._packs.use_dictionary(trained)

    # --- reading ---

    @property
    def broken(self) -> str:
        """Why nothing more can be written until the folder is opened again; empty while it works."""
        return self._packs.broken

    def deletion(self, job: str) -> Deletion | None:
        """The last deletion of a job's record; None if it never was deleted."""
        with self._guard, _as_store_error(self._folder):
            sha256 = self._catalogue.last_deletion(job)
            return None if sha256 is None else msgspec.json.decode(self._content(sha256), type=Deletion)

    def record(self, job: str, revision: int | None = None) -> JobRecord | None:
        """A record, the newest revision unless another is named; None if there is none."""
        with self._guard, _as_store_error(self._folder):
            sha256 = self._catalogue.revision(job, revision)
            return None if sha256 is None else decoded_record(self._content(sha256))

    def revisions(self, job: str) -> list[StoredRecord]:
        """Every revision of a job's record, the oldest first."""
        with self._guard, _as_store_error(self._folder):
            return self._catalogue.revisions(job)

    def annotations(self, job: str) -> list[Annotation]:
        """What was added to a record, in the order of time."""
        with self._guard, _as_store_error(self._folder):
            return [
                msgspec.json.decode(self._content(sha256), type=Annotation)
                for sha256 in self._catalogue.annotations(job)
            ]

    def expiry_time(self, to: float, *, seconds_max: float, advances: bool) -> float:
        """The time by which records expire, after it moved towards a moment, by at most so many seconds; it stays there if it `advances`."""
        file = self._folder / "expiry-time"
        with self._guard, _as_store_error(self._folder):
            last: float | None = None
            with suppress(FileNotFoundError, ValueError):  # without it, or damaged, it begins again
                last = float(file.read_text())
            if last is None:
                last = self._catalogue.last_heard()
            at = to if last is None else min(to, last + seconds_max)
            if advances:
                draft = file.with_name("expiry-time.draft")
                draft.write_text(repr(at))
                draft.replace(file)
            return at

    def unheard_since(self, before: float) -> list[str]:
        """The jobs whose newest record has no event that was received at this time or later."""
        with self._guard, _as_store_error(self._folder):
            return self._catalogue.unheard_since(before)

    def changes(self, *, after: int, limit: int) -> list[StoredRecord]:
        """Commits after a position, in order: what index servers are fed with."""
        with self._guard, _as_store_error(self._folder):
            return self._catalogue.changes(after, limit)

    def find(self, *, owner: str, submitted_from: float, submitted_before: float) -> list[StoredRecord]:
        """The newest records of an owner whose jobs were submitted in an interval."""
        with self._guard, _as_store_error(self._folder):
            return self._catalogue.owned(owner, submitted_from, submitted_before)

    def newest(self, name: str, *, readable: Callable[[JobRecord], bool] = bool) -> JobRecord | None:
        """The newest record of the jobs of a name, as far as they are readable; None if there is none."""
        with self._guard, _as_store_error(self._folder):
            jobs = self._catalogue.beginning(id_beginning(name))
        records = filter(None, (sound_record(self, job) for job in jobs))
        return next((each for each in records if each.name == name and readable(each)), None)

    def content(self, sha256: str) -> bytes:
        """The content of a part, verified. Raises `DamagedPart`, also where it is missing."""
        with self._guard, _as_store_error(self._folder):
            return self._content(bytes.fromhex(sha256))

    def _content(self, sha256: bytes) -> bytes:
        waiting = self._pending.get(sha256)
        if waiting is not None:
            return waiting.content
        if sha256 in self._added:  # written, and not catalogued yet
            for written in self._packs.written:
                for item in written.items:
                    if item.sha256 == sha256:
                        return item.content
        fault, lost = "its content does not match its digest", {sha256}
        for _ in range(2):  # a pack may have been rewritten since the part was looked up
            place = self._catalogue.place(sha256)
            if place is None:
                raise DamagedPart("it is not stored", subject=f"part {sha256.hex()}", next_step=SEE_ALL)
            try:
                block = self._packs.expanded(place.pack, place.offset)
            except (OSError, ValueError) as error:
                fault, lost = f"its block cannot be read: {error}", self._lost_with(sha256, place, error)
                self._packs.look_again(place.pack)
                continue
            except DamagedPart as error:  # its dictionary
                self._marks.add(self._lost_with(sha256, place, error))
                raise
            content = block[place.start : place.start + place.size_bytes]
            if hashlib.sha256(content).digest() == sha256:
                return content
        self._marks.add(lost)
        raise DamagedPart(fault, subject=f"part {sha256.hex()}", next_step=SEE_ALL)

    def _lost_with(self, sha256: bytes, place: Place, fault: Exception) -> set[bytes]:
        """All parts of a block that cannot be read; none where the fault says nothing about the disk, such as too many open files."""
        says_nothing = isinstance(fault, OSError) and fault.errno not in (errno.ENOENT, errno.EIO)
        if says_nothing or sha256 in self._marks.damaged():
            return set()
        return set(self._catalogue.parts_at(place.pack, place.offset))

    # --- looking after it ---

    def check(self) -> Iterator[Damage]:
        """Read everything, and name each damaged or missing part."""
        with self._guard, _as_store_error(self._folder):
            if not (self._folder / CATALOGUE).exists():  # it was removed, to be made again
                try:
                    FolderRecords(self._folder).close()
                except RecordStoreError as fault:
                    yield Damage(place=CATALOGUE, what=f"it is missing, and cannot be made again: {fault.what}")
                else:
                    self._opened = Catalogue(self._folder / CATALOGUE, writes=False)
            yield from find_damage(self._packs.folder, self._folder / CATALOGUE, on_lost=self._note_lost)
            if self._copies is not None:
                yield from self._copies.check(self._packs)

    def _note_lost(self, digests: Collection[bytes], packs: Collection[int]) -> None:
        """Mark what a check found damaged; what is there again, such as in a pack that was brought back, is sound for who writes."""
        self._marks.add(digests)
        if self._writes:
            self._marks.heal(self._marks.damaged() - set(digests))
        self._damaged_packs = set(packs)

    def collect(self, *, dry_run: bool) -> Collected:
        """Remove the parts that no record needs, or only count them; of a damaged storage only what nobody can need."""
        with self._guard, _as_store_error(self._folder):
            damage = [] if dry_run else self._checked_before_removal()
            live = upkeep.Live(self._catalogue, self._content, damaged=self._marks.damaged)
            live.add(self._added)
            # A record whose parts were lost before it was catalogued is known from the check alone.
            jobs = {job for each in damage for job in each.jobs}
            live.unreadable |= {job for job in jobs if self._catalogue.revision(job, None) is None}
            places = (self._catalogue.place(sha256) for sha256 in self._marks.damaged())
            left = {place.pack for place in places if place is not None} | (set() if dry_run else self._damaged_packs)
            return upkeep.collect(self._packs, self._catalogue, live, left=left, dry_run=dry_run)

    def _checked_before_removal(self) -> list[Damage]:
        """All damage of the packs. Raises `DamagedPart` where the catalogue or the copy in a store is damaged: both can be mended."""
        self._flush()
        with self._durably():
            pass
        found = list(self.check())
        packs = {pack_name(pack) for pack in self._damaged_packs}
        for each in found:
            if each.place != "packs" and each.place.partition(" ")[0] not in packs:
                raise DamagedPart(
                    f"{each.what}: nothing is removed from a damaged store", subject=each.place, next_step=SEE_ALL
                )
        return found


def bring_back(folder: Path, copies: PackCopies) -> None:
    """Bring the packs of a store into a folder, verified, for reading: whoever writes them is not disturbed."""
    make_closed(folder / "packs")
    packs = PackFiles(folder / "packs", writes=True, read_part=lambda _: b"")
    try:
        copies.restore(packs)
    finally:
        packs.close()


def _locked(file: Path) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise RecordStoreError(
            "another process writes there", subject=str(file.parent), next_step="stop it, or ask the service"
        ) from None
    return descriptor


@contextmanager
def _as_store_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, msgspec.DecodeError) as fault:
        raise RecordStoreError(
            f"cannot be used: {fault}", subject=str(folder), next_step=MAKE_CATALOGUE_AGAIN if is_damage(fault) else ""
        ) from fault
