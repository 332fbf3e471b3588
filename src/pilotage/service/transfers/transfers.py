"""Carries out the engine's orders about files: fetches and removals at sites without site agents, and copies of outputs.

Orders may be repeated: one that is under way is not begun twice, and what is in place and verified is reported again.
What the service leaves unfinished when it stops is ordered again at its next start, and goes on from its draft.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from pilotage.model.errors import PilotageError
from pilotage.model.events.file_payloads import FailedCopy, StoredCopy
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CachedCopy, FetchFile, FileEffect, RemoveFile
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched, OutputsCopied
from pilotage.model.locators import CONTENT, locator_below, shown_locator
from pilotage.model.settings.stores import FilesSettings, transfer_seconds
from pilotage.model.texts import clipped
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import FindsStores, FoundStore, PresignedRequest, StoreObject, StoreUnreachable
from pilotage.service.transfers.cache_folder import BadName, CacheFolder, VerifiedFile
from pilotage.service.transfers.fetching import CopyToRead, Fetched, RetryPolicy, absent, fetch, pieces, retried
from pilotage.service.transfers.ledger import Place, StoreStatus, Transfer, TransferLedger, TransferStatus
from pilotage.service.transfers.leftover_copies import OwnCopies, StandingOf
from pilotage.service.transfers.meter import Clock, TransferStopped
from pilotage.service.transfers.pool import Lane, TransferPool
from pilotage.service.transfers.publisher import Publisher
from pilotage.service.transfers.replicas import CopyCourse, UnreliableStores, is_of_store, reason_of
from pilotage.service.transfers.storing import OutputCopy, store_copy

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long a stop waits for transfers; one that hangs in its store is left to the end of the process."""
REMOVALS_AT_ONCE, PREPARED_AT_ONCE = 2, 2
MESSAGE_MAX, BROUGHT_MAX = 1000, 10_000
_UNTIL_GONE = RetryPolicy(tries=1_000_000)

FileReport = FileArrived | FileNotFetched | FileGone | OutputsCopied


class SiteCache(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cache of a site is: a folder of this computer, or one behind a locator."""

    folder: str = ""
    locator: str = ""
    transfers_max: int = 8
    bytes_per_second: int = 0

    @property
    def path(self) -> str:
        """The folder as the site's own account names it: absolute, or below `~/`."""
        return self.folder or unquote(urlsplit(self.locator).path).replace("/~/", "~/", 1)


class StreamSink(Protocol):
    """Takes the content of a file, in the thread of the transfer."""

    def begin(self, found: StoreObject) -> int:
        """The file is this one; returns the offset from which its content is wanted."""
        ...

    def redirect(self, found: StoreObject, request: PresignedRequest) -> None:
        """The receiver can fetch the file itself, with this request, which is a secret."""
        ...

    def take(self, piece: bytes) -> None:
        """Take a piece; waits while the receiver is slow, and raises `TransferStopped` when it is gone."""
        ...

    def end(self, fault: PilotageError | None) -> None:
        """The content was complete, or what prevented that."""
        ...


class Cancelled(StoreError):
    """A transfer is not wanted any more."""

    reason = "cancelled"


class _Copies:
    """The copies of the outputs of one attempt, until all have come to something."""

    def __init__(self, ref: AttemptRef, count: int) -> None:
        self.ref = ref
        self.open = count
        self.stored: list[StoredCopy] = []
        self.failed: list[FailedCopy] = []
        self.taken: set[str] = set()  # locators that have taken the place of another


class Transfers:
    """The transfers of a service. Any thread may use it; an idle one has no thread."""

    def __init__(
        self,
        stores: FindsStores,
        *,
        report: Callable[[FileReport], None],
        caches: Callable[[str], SiteCache | None],
        outputs: Callable[[AttemptRef, Sequence[str]], Sequence[OutputCopy]],
        spool: str,
        settings: FilesSettings | None = None,
        own_copies: OwnCopies | None = None,
        policy: RetryPolicy | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Take where reports go, where the cache of a site is, and which copies of outputs an attempt owes.

        `outputs` is given the URLs of the archive stores. `spool` is a folder for files on their way to a site that only a store reaches.
        """
        self._stores = stores
        self._report = report
        self._caches = caches
        self._outputs = outputs
        self._spool = spool
        self._own_copies = own_copies
        self._settings = settings or FilesSettings()
        self._policy = policy or RetryPolicy(tries=self._settings.transfer_tries_max)
        self._pool = TransferPool()
        self._publisher = Publisher()
        self.ledger = TransferLedger(self._pool, clock=clock)
        self.unreliable = UnreliableStores(clock)
        self._guard = threading.Lock()
        self._inbox: deque[FileEffect] = deque()
        self._sorting = Lane("", at_once=1)
        self._preparing = Lane("", at_once=PREPARED_AT_ONCE)
        self._brought: OrderedDict[Place, VerifiedFile] = OrderedDict()  # to sites that only a store reaches

    # --- for callers in any thread ---

    def want(self, *effects: FileEffect) -> None:
        """Carry out orders; never waits."""
        with self._guard:
            self._inbox.extend(effects)
        self._pool.submit((self._sorting,), self._sort)

    def stop(self) -> None:
        """End what is under way, and report nothing of it: it goes on from its draft when it is ordered again."""
        self.ledger.stop()
        with self._guard:
            self._inbox.clear()
        stopped = self._pool.stop(patience_seconds=STOP_SECONDS)
        if not (self._publisher.stop(patience_seconds=STOP_SECONDS) and stopped):
            log.warning("transfers hang in their stores, and end with this process")
        self._stores.close()

    def cache_path(self, site: str) -> str:
        """The cache folder of a site without a site agent, as its own account names it; empty if it has none."""
        cache = self._caches(site)
        return cache.path if cache is not None else ""

    def under_way(self) -> list[TransferStatus]:
        """The transfers that run now, the longest first."""
        return self.ledger.under_way()

    def stores(self) -> list[StoreStatus]:
        """What the transfers with each store came to, by name."""
        return self.ledger.stores()

    def remove_leftovers(self, standing_of: StandingOf) -> int:
        """Remove copies of attempts that were never granted; returns how many could not be removed yet. Waits for stores."""
        return self._own_copies.remove_leftovers(self._stores, standing_of) if self._own_copies is not None else 0

    def send(self, order: FetchFile, sink: StreamSink, *, key: str, direct: bool) -> Callable[[], None]:
        """Send a file to a sink, under a key of its own; returns what cancels it. Raises `StoreError`, `BadLocator`.

        With `direct`, a store that has presigned requests is asked for one, and the receiver fetches the file itself.
        """
        source = self._source(order)
        found = self._stores.find(source)
        lanes = (self.ledger.store_lane(found), self._site_lane(order.site))
        transfer = self.ledger.open("send", key, locator=order.locator, lanes=lanes, store=found.name, site=order.site)
        if transfer is None:
            raise Cancelled("the service is stopping", subject=shown_locator(order.locator))

        def run() -> None:
            if not self.ledger.begin(transfer, seconds=self._seconds(order.size_bytes or 0)):
                sink.end(Cancelled("the receiver is gone"))
                return
            fault = self._attempted(
                transfer, partial(self._send, transfer, found, source, order.copy, sink, direct=direct)
            )
            if self.ledger.finish(transfer, fault=fault):
                sink.end(fault)

        transfer.run, transfer.give_up = run, sink.end
        self.ledger.queue(transfer)
        return transfer.meter.stop

    # --- what they share ---

    def _seconds(self, size_bytes: int) -> float:
        return transfer_seconds(self._settings, size_bytes=size_bytes)

    def _source(self, order: FetchFile) -> str:
        """The locator that is read for an order: of the file, or of a copy in the cache of another site."""
        if order.copy is None:
            return order.locator
        cache = self._caches(order.copy.site)
        if cache is None or not (cache.folder or cache.locator):
            raise StoreUnreachable(
                "the cache of a site that has a copy is not reached from here", subject=order.copy.site
            )
        return locator_below(cache.locator or Path(cache.folder).as_uri(), order.copy.name)

    def _site_lane(self, site: str) -> Lane:
        cache = self._caches(site) or SiteCache()
        return self.ledger.site_lane(
            site, "transfers", at_once=cache.transfers_max, bytes_per_second=cache.bytes_per_second
        )

    def _attempted(self, transfer: Transfer, do: Callable[[], None]) -> StoreError | None:
        """Do something, and return what went wrong."""
        try:
            do()
        except TransferStopped:
            return Cancelled("it is not wanted any more")
        except StoreError as fault:
            return fault
        except Exception as fault:  # a library of a store: the others go on
            log.exception("%s", shown_locator(transfer.locator))
            return StoreError(f"{type(fault).__name__}: {fault}", subject=shown_locator(transfer.locator))
        return None

    def _sort(self) -> None:
        """Queue each order with its store and site. Finding a store may import a library: the engine must not wait."""
        while True:
            with self._guard:
                if not self._inbox:
                    return
                effect = self._inbox.popleft()
            try:
                if isinstance(effect, FetchFile):
                    self._take_fetch(effect)
                elif isinstance(effect, RemoveFile):
                    self._take_removal(effect)
                else:
                    self._take_outputs(effect.ref)
            except Exception:
                log.exception("%s is not carried out", type(effect).__name__)

    # --- fetches and removals ---

    def _take_fetch(self, order: FetchFile) -> None:
        cache = self._caches(order.site)
        if cache is None:
            self._not_fetched(order, StoreError("no cache of the site is reached from here", subject=order.site))
            return
        try:
            found = self._stores.find(self._source(order))
        except PilotageError as fault:
            self._not_fetched(order, fault)
            return
        lanes = (self.ledger.store_lane(found), self._site_lane(order.site))
        transfer = self.ledger.open(
            "fetch", order.key, locator=order.locator, lanes=lanes, store=found.name, site=order.site
        )
        if transfer is not None:
            transfer.run = partial(self._run_fetch, transfer, order, found, cache)
            transfer.give_up = lambda fault: self._not_fetched(order, fault, seconds=transfer.meter.seconds)
            self.ledger.queue(transfer, place=(order.site, order.name))

    def _not_fetched(self, order: FetchFile, fault: PilotageError, *, seconds: float = 0.0) -> None:
        message = clipped(fault.on_one_line(), MESSAGE_MAX)
        self._report(
            FileNotFetched(site=order.site, key=order.key, reason=reason_of(fault), message=message, seconds=seconds)
        )

    def _run_fetch(self, transfer: Transfer, order: FetchFile, found: FoundStore, cache: SiteCache) -> None:
        if not self.ledger.begin(transfer, seconds=self._seconds(order.size_bytes or 0)):
            return
        done: list[Fetched] = []
        bring = self._fetch_here if cache.folder else self._fetch_elsewhere
        fault = self._attempted(transfer, lambda: done.append(bring(transfer, order, found, cache)))
        if fault is not None or done[0].has_name:
            self._fetched(transfer, order, done[0].file if done else None, fault)
            return
        self._publisher.publish(
            cache.folder,
            order.name,
            is_wanted=lambda: not transfer.meter.is_stopped,
            done=lambda prevented: self._fetched(transfer, order, done[0].file, prevented),
        )

    def _fetched(
        self, transfer: Transfer, order: FetchFile, file: VerifiedFile | None, fault: StoreError | None
    ) -> None:
        if fault is None and transfer.meter.is_stopped:
            fault = Cancelled("it is not wanted any more")
        if not self.ledger.finish(transfer, fault=fault):
            return
        if fault is None and file is not None:
            self._report(
                FileArrived(
                    site=order.site,
                    key=order.key,
                    size_bytes=file.size_bytes,
                    sha256=file.sha256,
                    version=clipped(file.version if order.copy is None else order.copy.version, MESSAGE_MAX),
                    seconds=transfer.meter.seconds,
                )
            )
        elif fault is not None and not (self.ledger.is_stopping and isinstance(fault, Cancelled)):
            transfer.give_up(fault)

    def _fetch_here(self, transfer: Transfer, order: FetchFile, found: FoundStore, cache: SiteCache) -> Fetched:
        return self._fetch_into(CacheFolder(cache.folder), transfer, order, found)

    def _fetch_into(self, folder: CacheFolder, transfer: Transfer, order: FetchFile, found: FoundStore) -> Fetched:
        if self.ledger.take_stuck((order.site, order.name)):
            folder.drop_draft(order.name)
        return fetch(
            found.store,
            order.locator,
            cache=folder,
            name=order.name,
            sha256=order.sha256 if order.copy is None else "",
            copy=None if order.copy is None else CopyToRead(self._source(order), order.copy.sha256),
            meter=transfer.meter,
            allowed_seconds=self._seconds,
            policy=self._policy,
        )

    def _fetch_elsewhere(self, transfer: Transfer, order: FetchFile, found: FoundStore, cache: SiteCache) -> Fetched:
        """Bring a file to a site that only a store reaches: by way of this computer's disk."""
        target = locator_below(cache.locator, order.name)
        there = self._stores.find(target).store
        place = (order.site, order.name)
        known = self._brought.get(place)
        if known is not None and order.sha256 in ("", known.sha256):
            seen = there.stat(target)
            if seen is not None and seen.size_bytes == known.size_bytes:
                return Fetched(known, has_name=True)
        folder = self._spool_of(order.site)
        done, has_name = self._fetch_into(folder, transfer, order, found)
        if not has_name:
            for fault in folder.publish([order.name], is_wanted=lambda _: True).values():
                raise fault
        copy = OutputCopy(
            name=order.name,
            source=f"{folder.path}/{order.name}",
            size_bytes=done.size_bytes,
            sha256=done.sha256,
            locator=target,
            replaceable=None,
        )
        taken = transfer.meter.seconds
        store_copy(
            there,
            copy,
            meter=transfer.meter,
            allowed_seconds=lambda size_bytes: taken + self._seconds(size_bytes),
            policy=self._policy,
        )
        folder.remove(order.name)
        with self._guard:
            self._brought[place] = done
            while len(self._brought) > BROUGHT_MAX:
                self._brought.popitem(last=False)
        return Fetched(done, has_name=True)

    def _spool_of(self, site: str) -> CacheFolder:
        return CacheFolder(f"{self._spool}/{site}")

    def _take_removal(self, order: RemoveFile) -> None:
        cache, place = self._caches(order.site), (order.site, order.name)
        if cache is None:
            log.warning("no cache of site %s is reached from here: a file stays there", order.site)
            return
        lanes = (self.ledger.site_lane(order.site, "removals", at_once=REMOVALS_AT_ONCE),)
        transfer = self.ledger.open("remove", order.key, locator=order.name, lanes=lanes, site=order.site)
        if transfer is None:
            return
        running, waiting = self.ledger.fetches_of(place)
        for each in (*running, *waiting):
            each.meter.stop()
        for each in waiting:
            fault = Cancelled("it is not wanted any more")
            if self.ledger.finish(each, fault=fault):
                each.give_up(fault)
        transfer.run = partial(self._run_removal, transfer, order, cache)
        self.ledger.queue(transfer, place=place)

    def _run_removal(self, transfer: Transfer, order: RemoveFile, cache: SiteCache) -> None:
        if not self.ledger.begin(transfer):
            return
        with self._guard:
            self._brought.pop((order.site, order.name), None)

        def remove() -> None:
            try:
                if cache.folder:
                    CacheFolder(cache.folder).remove(order.name)
                else:
                    self._spool_of(order.site).remove(order.name)
                    target = locator_below(cache.locator, order.name)
                    self._stores.find(target).store.delete(target)
            except BadName as fault:  # no cached file has such a name
                log.warning("site %s: %s", order.site, fault)
            except StoreError as fault:
                fault.retryable = True  # until it is gone: its space counts as taken
                raise

        removing = partial(retried, remove, meter=transfer.meter, policy=_UNTIL_GONE)
        fault = self._attempted(transfer, removing)
        if self.ledger.finish(transfer, fault=fault) and fault is None:
            self._report(FileGone(site=order.site, key=order.key))

    # --- outputs ---

    def _take_outputs(self, ref: AttemptRef) -> None:
        lanes = (self._preparing,)
        transfer = self.ledger.open("store", _text(ref), locator="", lanes=lanes, job=ref.job)
        if transfer is not None:
            transfer.run = partial(self._prepare, transfer, ref)
            self.ledger.queue(transfer)

    def _prepare(self, transfer: Transfer, ref: AttemptRef) -> None:
        """Find out which copies the outputs of an attempt need, and queue each with its store."""
        try:
            wanted = self._outputs(ref, [each.settings.url for each in self._stores.archive()])
        except Exception as fault:
            if not isinstance(fault, PilotageError):
                log.exception("the outputs of %s are not stored", ref)
            message = clipped(fault.on_one_line() if isinstance(fault, PilotageError) else str(fault), MESSAGE_MAX)
            failed = FailedCopy(name=ref.package, locator="store:", reason="store-error", message=message)
            if self.ledger.finish(transfer):
                self._report(OutputsCopied(ref=ref, failed=(failed,)))
            return
        copies = _Copies(ref, len(wanted))
        if not wanted and self.ledger.finish(transfer):
            self._report(OutputsCopied(ref=ref))
        for copy in wanted:
            self._begin_copy(transfer, copies, CopyCourse(copy))

    def _begin_copy(self, transfer: Transfer, copies: _Copies, course: CopyCourse) -> None:
        """Queue a copy with its store, unless that has failed lately and another one can take it."""
        copy = course.now
        done = partial(self._copied, transfer, copies, course)
        try:
            found = self._stores.find(copy.locator, user=copy.owner)
        except PilotageError as fault:
            done(fault)
            return
        failing = self.unreliable.get(found.name)
        if failing is not None and self._elsewhere(copies, course, failing):
            self._begin_copy(transfer, copies, course)
            return
        lanes, key = (self.ledger.store_lane(found),), f"{transfer.key} {copy.name} {copy.locator}"
        part = self.ledger.open("store", key, locator=copy.locator, lanes=lanes, store=found.name, job=copies.ref.job)
        if part is not None:
            part.run, part.give_up = partial(self._run_copy, part, found, (copies.ref, copy), done), done
            self.ledger.queue(part)

    def _elsewhere(self, copies: _Copies, course: CopyCourse, fault: PilotageError) -> bool:
        """Let a further store take a copy, if there is one that has no copy of this file and has not failed lately."""
        with self._guard:
            for spare in course.wanted.spares:
                if spare.locator not in copies.taken and self._unreliable_store(spare) is None:
                    copies.taken.add(spare.locator)
                    course.turn_to(spare, fault)
                    return True
        return False

    def _unreliable_store(self, copy: OutputCopy) -> PilotageError | None:
        try:
            return self.unreliable.get(self._stores.find(copy.locator, user=copy.owner).name)
        except PilotageError as fault:
            return fault

    def _run_copy(
        self,
        part: Transfer,
        found: FoundStore,
        owed: tuple[AttemptRef, OutputCopy],
        done: Callable[[PilotageError | None], None],
    ) -> None:
        ref, copy = owed
        if not self.ledger.begin(part, seconds=self._seconds(copy.size_bytes)):
            return
        storing = partial(
            store_copy, found.store, copy, meter=part.meter, allowed_seconds=self._seconds, policy=self._policy
        )
        if self._own_copies is None or copy.locator.startswith(CONTENT):  # contents that nobody uses go by themselves
            fault = self._attempted(part, storing)
        else:
            fault = self._attempted(part, partial(self._put_as_ours, self._own_copies, ref, copy, storing))
        # What a stop interrupts is ordered again at the next start.
        if self.ledger.finish(part, fault=fault) and not (self.ledger.is_stopping and isinstance(fault, Cancelled)):
            if fault is not None and is_of_store(fault):
                self.unreliable.note(found.name, fault)
            elif fault is None:
                self.unreliable.forget(found.name)
            done(fault)

    @staticmethod
    def _put_as_ours(own: OwnCopies, ref: AttemptRef, copy: OutputCopy, storing: Callable[..., None]) -> None:
        with own.writing(ref, copy) as before_put:
            storing(before_put=before_put)

    def _copied(self, transfer: Transfer, copies: _Copies, course: CopyCourse, fault: PilotageError | None) -> None:
        """One copy has come to something, or is tried in another store; the last one reports them all."""
        if fault is not None and is_of_store(fault) and self._elsewhere(copies, course, fault):
            self._begin_copy(transfer, copies, course)
            return
        with self._guard:
            if fault is None:
                copies.stored.append(course.stored())
            else:
                copies.failed.append(course.failed(fault))
            copies.open -= 1
            is_last = not copies.open
        if is_last and self.ledger.finish(transfer):
            self._report(
                OutputsCopied(
                    ref=copies.ref,
                    copies=tuple(sorted(copies.stored, key=lambda each: (each.name, each.locator))),
                    failed=tuple(sorted(copies.failed, key=lambda each: (each.name, each.locator))),
                )
            )

    # --- sending ---

    def _send(
        self,
        transfer: Transfer,
        found: FoundStore,
        locator: str,
        copy: CachedCopy | None,
        sink: StreamSink,
        *,
        direct: bool,
    ) -> None:
        meter = transfer.meter
        meter.tries = 1
        there = found.store.stat(locator)
        if there is None:
            raise absent(found.store, locator)
        meter.total_bytes = there.size_bytes if there.size_bytes >= 0 else None
        seconds = self._seconds(max(0, there.size_bytes))
        meter.allow(seconds)
        presigned = found.store.presigned_get(locator, seconds=seconds) if direct and copy is None else None
        if presigned is not None and presigned.method == "GET" and not presigned.headers:
            sink.redirect(there, presigned)
            return
        told = there if copy is None else replace(there, sha256=copy.sha256, version=copy.version)
        offset = meter.bytes_done = sink.begin(told)
        if offset != there.size_bytes:
            for piece in pieces(found.store, there, offset=offset):
                meter.check()
                sink.take(piece)
                meter.advance(len(piece))


def _text(ref: AttemptRef) -> str:
    return f"{ref.job} {ref.package} {ref.attempt}"
