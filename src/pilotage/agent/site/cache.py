"""Brings files to the cache of the site and removes them, as the service wants; it decides nothing itself.

A file is written under a draft name and renamed when it is whole and verified, so that nodes never see part of it. An
interrupted transfer resumes from its draft, also in a later process. Orders may be repeated: one for a file that is in
place is reported at once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from pilotage.agent.durable_files import FOLDER_MODE, sync_folder, write_all
from pilotage.agent.link.download import StoreUnreachable, TransferRefused
from pilotage.agent.link.link import LinkBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pilotage.agent.link.download import FileFacts, Transfer

    OpenTransfer = Callable[..., Transfer]

FETCH, REMOVE = "fetch-file", "remove-file"
DRAFT_SUFFIX = ".part"
TRANSFERS_MAX = 8
"""Transfers at once, unless the entry of the site says otherwise."""
TRIES_MAX = 5
"""A transfer that fails so often without a new byte has failed."""
WRONG_MAX = 2
"""So often may the service send a whole file with another checksum than it told."""
AGAIN_SECONDS = (0.2, 10.0)
REPEAT_SECONDS = 5.0
TRANSFER_SECONDS_MIN, TRANSFER_BYTES_PER_SECOND_MIN = 900.0, 150_000
DRAFTS_SECONDS = 3600.0
"""A draft that no order needs is removed after so long."""
STOP_SECONDS = 5.0
PIECE_BYTES = 1 << 20
_NO_SUCH_RANGE = 416
_PASSING = frozenset({429, 500, 502, 503, 504})  # statuses that may be others at the next try
_MODE = 0o444  # commands read it through links
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*(/[0-9A-Za-z][0-9A-Za-z._-]*)*")
_DRAFT = re.compile(r"(.+)\.[0-9a-f]{12}\.part")


class _Stopped(Exception):
    """The agent ends, or the order was withdrawn; the draft stays."""


class _NotDone(Exception):
    """An order cannot be carried out: a reason of the book, and a message for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _WrongContent(LinkBroken):
    """The file came whole, but not with the checksum that the service told."""


class _Arrived(NamedTuple):
    size_bytes: int
    sha256: str
    version: str


class _Order:
    """An order of the service, until it no longer repeats it."""

    __slots__ = ("again_at", "file", "is_listed", "key", "kind", "report", "sha256", "size_bytes")

    def __init__(self, effect: Mapping[str, Any], folder: Path) -> None:
        self.key = str(effect["key"])
        self.kind = str(effect["type"])
        size_bytes = effect.get("size_bytes")
        self.size_bytes = int(size_bytes) if size_bytes is not None else None
        self.sha256 = str(effect.get("sha256") or "")  # that the documents require; empty: any
        self.file = folder / str(effect["name"])
        self.is_listed = True
        self.report: dict[str, Any] | None = None  # once it is done
        self.again_at = 0.0


class SiteCache:
    """Carries out orders in threads of its own; the site agent's main thread calls it, except for `wake`."""

    def __init__(
        self,
        site: str,
        open_transfer: OpenTransfer,
        *,
        wake: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take the function that opens a transfer; `wake` is called from any thread when there is a report."""
        self._site = site
        self._open = open_transfer
        self._wake = wake
        self._say = say
        self._guard = threading.Lock()
        self._orders: dict[str, _Order] = {}  # by key
        self._by_file: dict[Path, deque[_Order]] = {}  # unfinished, in order; one at a time of each file
        self._ready: deque[Path] = deque()
        self._threads: set[threading.Thread] = set()
        self._transfers: set[Transfer] = set()
        self._stopping = threading.Event()
        self._rate = _Rate(self._stopping)
        self._bytes_per_second = 0
        self._cleaned_at = 0.0

    # --- the main thread ---------------------------------------------------------------------------------------------

    def want(self, effects: Sequence[Mapping[str, Any]], folder: Path, *, entry: Mapping[str, Any]) -> None:
        """Take all orders that the service waits for; one that it no longer mentions is forgotten.

        `entry` is the site's, which limits its transfers.
        """
        self._bytes_per_second = int(entry.get("transfer_bytes_per_second") or 0)
        transfers_max = int(entry.get("transfers_max") or TRANSFERS_MAX)
        with self._guard:
            listed = set()
            for effect in effects:
                key = str(effect["key"])
                listed.add(key)
                if key not in self._orders:
                    self._add(_Order(effect, folder), str(effect["name"]))
            for key in [each for each in self._orders if each not in listed]:
                self._orders.pop(key).is_listed = False
            for _ in range(min(len(self._ready), transfers_max - len(self._threads))):
                thread = threading.Thread(target=self._work, name="cache", daemon=True)
                self._threads.add(thread)
                thread.start()
        if not effects and time.monotonic() >= self._cleaned_at:
            self._cleaned_at = time.monotonic() + DRAFTS_SECONDS
            self._remove_old_drafts(folder)

    def _add(self, order: _Order, name: str) -> None:
        self._orders[order.key] = order
        if not _NAME.fullmatch(name):
            order.report = self._failed(order, "bad-name", f"{name!r} is not a file name in a cache", 0.0)
            return
        waiting = self._by_file.setdefault(order.file, deque())
        waiting.append(order)
        if len(waiting) == 1:
            self._ready.append(order.file)

    def due(self) -> list[dict[str, Any]]:
        """The reports to send now, each repeated after a while until the service no longer mentions its order."""
        now, reports = time.monotonic(), []
        with self._guard:
            for order in self._orders.values():
                if order.report is not None and now >= order.again_at:
                    order.again_at = now + REPEAT_SECONDS
                    reports.append(order.report)
        return reports

    def forget(self) -> None:
        """Report everything again: the last message was lost, or another service listens now."""
        with self._guard:
            for order in self._orders.values():
                order.again_at = 0.0

    def stop(self) -> None:
        """Break off all transfers; their drafts stay for the next process."""
        self._stopping.set()
        with self._guard:
            threads = list(self._threads)
            for transfer in self._transfers:
                transfer.abort()
        until = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _remove_old_drafts(self, folder: Path) -> None:
        """Remove drafts that were left behind and that no order needs."""
        with contextlib.suppress(OSError):
            for draft in folder.glob(f"*/*{DRAFT_SUFFIX}"):
                if time.time() - draft.stat().st_mtime > DRAFTS_SECONDS:
                    draft.unlink()

    # --- the threads -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._guard:
                if not self._ready or self._stopping.is_set():
                    self._threads.discard(threading.current_thread())
                    return
                file = self._ready.popleft()
                order = self._by_file[file][0]
            report = self._carry_out(order) if order.is_listed else None
            with self._guard:
                order.report = report
                waiting = self._by_file[file]
                waiting.popleft()
                if waiting:
                    self._ready.append(file)
                else:
                    del self._by_file[file]
            if report is not None:
                self._wake()

    def _carry_out(self, order: _Order) -> dict[str, Any] | None:
        begun = time.monotonic()
        try:
            if order.kind == REMOVE:
                self._remove(order)
                return {"report": "file-gone", "site": self._site, "key": order.key}
            arrived = self._fetch(order)
        except _Stopped:
            return None
        except (_NotDone, TransferRefused) as fault:
            return self._failed(order, fault.reason, str(fault), time.monotonic() - begun)
        except OSError as error:
            reason, message = _of_disk(error, order.file)
            return self._failed(order, reason, message, time.monotonic() - begun)
        return {
            "report": "file-arrived",
            "site": self._site,
            "key": order.key,
            "size_bytes": arrived.size_bytes,
            "sha256": arrived.sha256,
            "version": arrived.version,
            "seconds": time.monotonic() - begun,
        }

    def _failed(self, order: _Order, reason: str, message: str, seconds: float) -> dict[str, Any]:
        self._say(f"the cache: {order.file.name}: {message}")
        return {
            "report": "file-not-fetched",
            "site": self._site,
            "key": order.key,
            "reason": reason,
            "message": message[:2000],
            "seconds": seconds,
        }

    def _remove(self, order: _Order) -> None:
        for each in (order.file, *_drafts_of(order.file)):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                each.unlink()

    def _fetch(self, order: _Order) -> _Arrived:
        """Fetch a file, and try again as long as bytes arrive, or while the service is away."""
        make_folder(order.file.parent)
        failures, direct, until = _Failures(), True, None
        while True:
            had_bytes = _draft_bytes(order.file)
            attempt = _Attempt(self, order, direct=direct, until=until)
            try:
                return attempt.run()
            except (TransferRefused, OSError) as fault:
                self.check(order)
                if attempt.is_writing and isinstance(fault, OSError):
                    raise
                if not attempt.was_direct:
                    failures.count(fault, is_reached=attempt.was_opened, grew=_draft_bytes(order.file) > had_bytes)
            until = attempt.until
            if attempt.was_direct:
                # A store that fails may be out of the site's reach: the service sends the file itself.
                direct = False
            else:
                self._stopping.wait(failures.pause_seconds)

    def open(self, order: _Order, *, offset: int, direct: bool) -> Transfer:
        """Open the transfer of an order."""
        transfer = self._open(f"/agent/transfers/{quote(order.key, safe='')}", offset=offset, direct=direct)
        with self._guard:
            self._transfers.add(transfer)
        return transfer

    def close(self, transfer: Transfer) -> None:
        """Close a transfer."""
        with self._guard:
            self._transfers.discard(transfer)
        transfer.close()

    def took(self, count: int) -> None:
        """Count the bytes of a transfer, and wait if they came too fast."""
        self._rate.take(count, bytes_per_second=self._bytes_per_second)

    def check(self, order: _Order) -> None:
        """Raise `_Stopped` if the order need not be carried out any more."""
        if self._stopping.is_set() or not order.is_listed:
            raise _Stopped


class _Failures:
    """The failures of one transfer: they end it, or tell how long to wait before the next try."""

    def __init__(self) -> None:
        self.pause_seconds = AGAIN_SECONDS[0]
        self._in_row = 0
        self._wrong = 0

    def count(self, fault: Exception, *, is_reached: bool, grew: bool) -> None:
        """Count a failure; raises it, or `_NotDone`, if no other try follows. A service that is away is waited for."""
        if isinstance(fault, TransferRefused) and fault.status not in _PASSING:
            raise fault
        self._wrong += isinstance(fault, _WrongContent)
        if self._wrong >= WRONG_MAX:
            raise _NotDone("wrong-checksum", str(fault))
        if is_reached:
            self._in_row = 1 if grew else self._in_row + 1
        if self._in_row >= TRIES_MAX:
            raise _NotDone("store-unreachable", f"it broke off {self._in_row} times, the last time because: {fault}")
        self.pause_seconds = AGAIN_SECONDS[0] if grew else min(2.0 * self.pause_seconds, AGAIN_SECONDS[1])


class _Rate:
    """Limits the bytes per second of all transfers together."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._guard = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int, *, bytes_per_second: int) -> None:
        """Wait until so many bytes may have passed."""
        if not bytes_per_second:
            return
        with self._guard:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / bytes_per_second
            seconds = self._free_at - now
        self._stopping.wait(seconds)


class _Attempt:
    """One connection's worth of a transfer, from where its draft ends."""

    def __init__(self, cache: SiteCache, order: _Order, *, direct: bool, until: float | None) -> None:
        self._cache = cache
        self._order = order
        self._direct = direct
        self.until = until  # the end of the whole transfer's time, known with its size
        self.was_direct = False
        self.was_opened = False
        self.is_writing = False

    def run(self) -> _Arrived:
        """Transfer the rest, verify and publish the file."""
        cache, file = self._cache, self._order.file
        in_place, drafts = _size_of(file), _drafts_of(file)
        if in_place is not None:
            found = self._in_place(in_place)
            if found is not None:
                return found
            file.unlink()  # another content than the service tells of
        offset = (_size_of(drafts[0]) or 0) if len(drafts) == 1 else 0
        transfer = self._opened_if_there(offset)
        if offset and (
            transfer is None or transfer.facts.start != offset or drafts[0] != _draft_of(file, transfer.facts)
        ):
            if transfer is not None:
                cache.close(transfer)
            for each in drafts:
                each.unlink()  # of another version
            transfer = self._opened(0)
        assert transfer is not None
        try:
            return self._receive(transfer, _draft_of(file, transfer.facts), transfer.facts.start)
        finally:
            cache.close(transfer)

    def _opened_if_there(self, offset: int) -> Transfer | None:
        """The transfer from a byte on; None if the file ends before it."""
        try:
            return self._opened(offset)
        except TransferRefused as refused:
            if offset and refused.status == _NO_SUCH_RANGE:
                return None
            raise

    def _opened(self, offset: int) -> Transfer:
        cache, order = self._cache, self._order
        cache.check(order)
        try:
            transfer = cache.open(order, offset=offset, direct=self._direct)
        except TransferRefused as refused:
            self.was_opened, self.was_direct = True, refused.direct
            raise
        except StoreUnreachable:
            self.was_opened = self.was_direct = True
            raise
        self.was_opened, self.was_direct = True, transfer.direct
        return transfer

    def _in_place(self, size_bytes: int) -> _Arrived | None:
        """The file that is there, read again; None if it is not the one that the service has."""
        transfer = self._opened_if_there(max(0, size_bytes - 1))  # its last byte: what it is, and no content
        if transfer is None:
            return None
        facts = transfer.facts
        self._cache.close(transfer)
        if facts.size_bytes not in (None, size_bytes):
            return None
        sha256 = self._digest_of(self._order.file).hexdigest()
        if any(each not in ("", sha256) for each in (facts.sha256 or "", self._order.sha256)):
            return None
        return _Arrived(size_bytes, sha256, facts.version)

    def _digest_of(self, file: Path) -> Any:
        digest = hashlib.sha256()
        with file.open("rb") as reading:
            while True:
                self._cache.check(self._order)
                piece = reading.read(PIECE_BYTES)
                if not piece:
                    return digest
                digest.update(piece)

    def _receive(self, transfer: Transfer, draft: Path, offset: int) -> _Arrived:
        file, facts = self._order.file, transfer.facts
        size_bytes = facts.size_bytes
        if self.until is None:
            self.until = time.monotonic() + max(
                TRANSFER_SECONDS_MIN, (size_bytes or self._order.size_bytes or 0) / TRANSFER_BYTES_PER_SECOND_MIN
            )
        self.is_writing = True
        with contextlib.suppress(FileNotFoundError):
            draft.chmod(0o600)  # a process that died before the rename had closed it
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, offset)
            os.lseek(descriptor, 0, os.SEEK_END)
            digest = self._digest_of(draft) if offset else hashlib.sha256()
            for piece in self._pieces(transfer):
                write_all(descriptor, piece)
                digest.update(piece)
                offset += len(piece)
            if size_bytes is not None and offset != size_bytes:
                self.is_writing = False
                raise LinkBroken(f"it ended after {offset} of {size_bytes} bytes")
            sha256 = digest.hexdigest()
            if facts.sha256 and sha256 != facts.sha256:
                draft.unlink()
                self.is_writing = False
                raise _WrongContent(f"expected sha256 {facts.sha256}, got {sha256}")
            if self._order.sha256 not in ("", sha256):
                draft.unlink()
                what = "the store has another content than the document requires"
                expected = f"expected sha256 {self._order.sha256}"
                raise _NotDone("input-checksum", f"{what}; {expected}, got sha256 {sha256}")
            os.fchmod(descriptor, _MODE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(file)
        sync_folder(file.parent)
        for each in _drafts_of(file):  # of other versions
            each.unlink()
        return _Arrived(offset, sha256, facts.version)

    def _pieces(self, transfer: Transfer) -> Iterator[memoryview]:
        """The pieces as they arrive; an error of the network is not one of the disk."""
        buffer = memoryview(bytearray(PIECE_BYTES))
        while True:
            self._cache.check(self._order)
            if self.until is not None and time.monotonic() >= self.until:
                raise _NotDone("timed-out", "the transfer took too long: it goes on from here if asked again")
            try:
                count = transfer.read_into(buffer)
            except OSError as error:
                self.is_writing = False
                raise LinkBroken(f"the transfer broke off: {error}") from error
            if not count:
                return
            yield buffer[:count]
            self._cache.took(count)


def make_folder(folder: Path) -> None:
    """Make the folder of a cached file; raises `OSError`."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def _size_of(file: Path | None) -> int | None:
    if file is None:
        return None
    try:
        return file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _draft_of(file: Path, facts: FileFacts) -> Path:
    """The draft of a file, named after its version: the rest of another one does not fit."""
    told = hashlib.sha256(f"{facts.version}\n{facts.size_bytes}\n{facts.sha256}".encode()).hexdigest()
    return file.with_name(f"{file.name}.{told[:12]}{DRAFT_SUFFIX}")


def _drafts_of(file: Path) -> list[Path]:
    try:
        names = os.listdir(file.parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (_DRAFT.fullmatch(name) for name in names)
    return [file.with_name(each[0]) for each in found if each is not None and each[1] == file.name]


def _draft_bytes(file: Path) -> int:
    return sum(_size_of(each) or 0 for each in _drafts_of(file))


def _of_disk(error: OSError, file: Path) -> tuple[str, str]:
    """Why a file cannot be written: the reason, and a message for people."""
    why = error.strerror or str(error) or type(error).__name__
    if error.errno in _FULL:
        what = "its quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
        return "disk-full", f"the cache of the site cannot take it: {what} ({file.parent})"
    return "cache-unusable", f"the cache of the site cannot be written: {why} ({error.filename or file})"
