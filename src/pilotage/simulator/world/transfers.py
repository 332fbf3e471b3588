"""Brings files to the caches of sites and copies outputs to stores, with delays and faults: the executor of file effects.

The caches here are the truth: what is in them, whatever was reported. The transfers of half of the sites are part of the
service and die with it, and a draft is left behind; those of the others are made by a program at the site, which lives on
and reports to the next service. An effect that comes again continues or repeats its report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from pilotage.model.events.file_payloads import FailedCopy, StoredCopy
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, FileEffect, RemoveFile, StoreOutputs
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched, OutputsCopied
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector
from pilotage.simulator.world.randomness import Keyed
from pilotage.simulator.world.stores import Stores, StoreSketch, checksum_of, copy_locators

TIMEOUT_SECONDS = 900.0
PATIENCE_SECONDS = 300.0  # how long a transfer tries again while its store does not answer
LATE_SECONDS = (60.0, 1800.0)
AGAIN_SECONDS = (0.0, 600.0)
VANISHED_SECONDS = (1.0, 1800.0)  # after the arrival of a file
NOTICED_SECONDS = (0.0, 120.0)  # until the site reports that a file has vanished
REMOVAL_SECONDS = 20.0  # at most

Report = FileArrived | FileNotFetched | FileGone | OutputsCopied


_ANOTHER_CACHE = StoreSketch(url="cache:")  # it always answers


class CachedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the cache of a site."""

    locator: str
    key: str  # of the order to fetch it
    size_bytes: int
    version: int
    sha256: str


class FileWitness(Protocol):
    """Observes the caches and the stores."""

    def on_cached(self, site: str, locator: str, *, key: str, size_bytes: int, sha256: str) -> None:
        """A file is in a cache; `key` is that of the order to fetch it."""
        ...

    def on_uncached(self, site: str, locator: str, *, key: str, ordered: bool) -> None:
        """A file is no longer in a cache: it was removed by order, or vanished."""
        ...

    def on_copied(self, ref: AttemptRef, *, locator: str, sha256: str) -> None:
        """A copy of an output is in a store, in the place of an earlier one."""
        ...


class FilesSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What the transfers of a world depend on."""

    stores: tuple[StoreSketch, ...] = ()
    sizes_bytes: Mapping[str, int] = {}  # real sizes, by locator; of others, as ordered
    copies: Mapping[str, int] = {}  # by job: how many copies its stored outputs have
    seed: int = 0


class _Fetch:
    """A fetch under way."""

    __slots__ = ("began_at", "order", "reason", "tried_again", "version")

    def __init__(self, order: FetchFile, *, began_at: float, version: int) -> None:
        self.order = order
        self.began_at = began_at
        self.version = version
        self.reason = ""  # why it fails, if it does
        self.tried_again = False  # its store did not answer


class _Storing:
    """Copies of the outputs of an attempt under way."""

    __slots__ = ("copies", "dead", "failed", "left", "ref")

    def __init__(self, ref: AttemptRef, *, left: int) -> None:
        self.ref = ref
        self.left = left  # copies that are not over
        self.copies: list[StoredCopy] = []
        self.failed: list[FailedCopy] = []
        self.dead = False


class Transfers:
    """All transfers of a world, its caches and its stores."""

    def __init__(
        self,
        setup: FilesSetup,
        *,
        rates: Mapping[str, float],
        schedule: Schedule,
        injector: FaultInjector,
        manifest: Callable[[AttemptRef], Sequence[OutputFile]],
        report: Callable[[Report], None],
        witness: FileWitness | None = None,
    ) -> None:
        """Take the bytes per second of each site, 0: no limit; `manifest` names the staged outputs of an attempt."""
        self.stores = Stores(setup.stores, began_at=schedule.now)
        self.caches: dict[str, dict[str, CachedFile]] = {site: {} for site in rates}  # by site and name
        self.drafts: dict[str, dict[str, str]] = {site: {} for site in rates}  # by site and name: the key of the order
        self._setup = setup
        self._rates = rates
        self._schedule = schedule
        self._injector = injector
        self._manifest = manifest
        self._report = report
        self._witness = witness
        self._in_service = {site: Keyed(f"{setup.seed}/transfers/{site}").random() < 0.5 for site in rates}
        self._fetches: dict[tuple[str, str], _Fetch] = {}  # under way, by site and key
        self._failed: dict[tuple[str, str], FileNotFetched] = {}  # what was reported, by site and key
        self._removals: dict[tuple[str, str], RemoveFile] = {}  # under way, by site and key
        self._storing: dict[tuple[str, str], _Storing] = {}  # under way, by job and package
        self._count = 0

    def carry_out(self, effect: FileEffect) -> None:
        """Carry out an effect of the service; one that is under way goes on."""
        match effect:
            case FetchFile():
                self._fetch(effect)
            case RemoveFile(site=site, key=key):
                if (site, key) not in self._removals:
                    self._removals[site, key] = effect
                    seconds = REMOVAL_SECONDS * Keyed(f"{self._setup.seed}/removal/{site}/{key}").random()
                    self._schedule.after(seconds, self._remove, effect)
            case StoreOutputs(ref=ref):
                self._store(ref)

    def service_crashed(self) -> None:
        """The service died, and its own transfers with it: their drafts are left behind."""
        for place in [place for place in self._fetches if self._in_service[place[0]]]:
            del self._fetches[place]
        for place in [place for place in self._removals if self._in_service[place[0]]]:
            del self._removals[place]
        for storing in self._storing.values():
            storing.dead = True
        self._storing.clear()

    # --- caches ------------------------------------------------------------------------------------------------------

    def _fetch(self, order: FetchFile) -> None:
        place = (order.site, order.key)
        if place in self._fetches:
            return
        if place in self._failed:
            self._send(self._failed[place])
            return
        there = self.caches[order.site].get(order.name)
        if there is not None and there.key == order.key:
            self._send(self._arrived(order.site, there, seconds=0.0))
            return
        if self._injector.strikes("store_changes"):
            self.stores.change(order.locator)
        fetch = _Fetch(order, began_at=self._schedule.now, version=self.stores.version(order.locator))
        self._fetches[place] = fetch
        self.drafts[order.site][order.name] = order.key
        store = self.stores.store_of(order.locator) if order.copy is None else _ANOTHER_CACHE
        seconds, fetch.reason = self._course(store, size_bytes=self._size(order), rate=self._rates[order.site])
        self._schedule.after(seconds, self._fetched, fetch)

    def _size(self, order: FetchFile) -> int:
        return self._setup.sizes_bytes.get(order.locator, order.size_bytes or 0)

    def _course(self, store: StoreSketch, *, size_bytes: int, rate: float) -> tuple[float, str]:
        """How long a transfer takes, and why it fails, if it does."""
        self._count += 1
        numbers = Keyed(f"{self._setup.seed}/transfer/{self._count}")
        limits = [each for each in (store.bytes_per_second, rate) if each > 0.0]
        seconds = store.latency_seconds + (size_bytes / min(limits) if limits else 0.0)
        failing = store.failure_probability > 0.0 and numbers.random() < store.failure_probability
        if failing or self._injector.strikes("transfer_fails"):
            return seconds * numbers.random(), "transfer-failed"
        if self._injector.strikes("transfer_hangs"):
            return max(TIMEOUT_SECONDS, seconds), "transfer-timeout"
        return seconds, ""

    def _fetched(self, fetch: _Fetch) -> None:
        """A fetch is over, unless it died with its service."""
        order, now = fetch.order, self._schedule.now
        place = (order.site, order.key)
        if self._fetches.get(place) is not fetch:
            return
        copy = self._copy_of(order)
        if order.copy is not None and not fetch.reason:
            fetch.reason = "" if copy is not None else "copy-lost"
        elsewhere = copy is not None
        silent = (
            not fetch.reason and not elsewhere and not self.stores.answers(self.stores.store_of(order.locator), now)
        )
        if silent and not fetch.tried_again:
            fetch.tried_again = True
            self._schedule.after(PATIENCE_SECONDS, self._fetched, fetch)
            return
        del self._fetches[place]
        if self.drafts[order.site].get(order.name) == order.key:
            del self.drafts[order.site][order.name]
        reason = "store-unreachable" if silent else fetch.reason
        version = copy.version if copy is not None else fetch.version
        if not reason and copy is None and self.stores.version(order.locator) != version:
            reason = "input-checksum"
        seconds = now - fetch.began_at
        if reason:
            self._failed[place] = failed = FileNotFetched(
                site=order.site, key=order.key, reason=reason, message=reason, seconds=seconds
            )
            self._send(failed)
            return
        file = CachedFile(
            locator=order.locator,
            key=order.key,
            size_bytes=self._size(order),
            version=version,
            sha256=checksum_of(order.locator, version),
        )
        self.caches[order.site][order.name] = file
        if self._witness is not None:
            self._witness.on_cached(
                order.site, file.locator, key=file.key, size_bytes=file.size_bytes, sha256=file.sha256
            )
        self._send(self._arrived(order.site, file, seconds=seconds))
        if self._injector.strikes("cache_loses"):
            self._injector.had_no_effect("cache_loses")  # until it is found to be there
            self._schedule.after(
                self._between("cache_loses", VANISHED_SECONDS), self._vanish, order.site, order.name, file
            )

    def _copy_of(self, order: FetchFile) -> CachedFile | None:
        """The copy in another cache that an order names, if it is still there as the order says."""
        if order.copy is None:
            return None
        there = self.caches.get(order.copy.site, {}).get(order.copy.name)
        return there if there is not None and there.sha256 == order.copy.sha256 else None

    def _arrived(self, site: str, file: CachedFile, *, seconds: float) -> FileArrived:
        return FileArrived(
            site=site,
            key=file.key,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            version=f"v{file.version}",
            seconds=seconds,
        )

    def _vanish(self, site: str, name: str, file: CachedFile) -> None:
        if self.caches[site].get(name) is not file:
            return
        self._injector.had_effect("cache_loses")
        self._uncache(site, name, ordered=False)
        gone = FileGone(site=site, key=file.key)
        self._schedule.after(self._between("cache_loses", NOTICED_SECONDS), self._send, gone)

    def _remove(self, effect: RemoveFile) -> None:
        if self._removals.get((effect.site, effect.key)) is not effect:
            return
        del self._removals[effect.site, effect.key]
        self.drafts[effect.site].pop(effect.name, None)
        self._uncache(effect.site, effect.name, ordered=True)
        self._send(FileGone(site=effect.site, key=effect.key))

    def _uncache(self, site: str, name: str, *, ordered: bool) -> None:
        file = self.caches[site].pop(name, None)
        if file is not None and self._witness is not None:
            self._witness.on_uncached(site, file.locator, key=file.key, ordered=ordered)

    # --- outputs -----------------------------------------------------------------------------------------------------

    def _store(self, ref: AttemptRef) -> None:
        """Copy the outputs of an attempt to each store that has no verified copy yet; a later attempt takes its place."""
        known = self._storing.get((ref.job, ref.package))
        if known is not None and known.ref == ref:
            return
        if known is not None:
            known.dead = True
        wanted = self._setup.copies.get(ref.job, 0)
        places = [
            (output, locator)
            for output in self._manifest(ref)
            for locator in copy_locators(self.stores, job=ref.job, package=ref.package, name=output.name, count=wanted)
        ]
        storing = self._storing[ref.job, ref.package] = _Storing(ref, left=len(places))
        for output, locator in places:
            if self.stores.copy(locator) == output.sha256:
                self._schedule.after(0.0, self._copied, storing, output, locator, "")
                continue
            store = self.stores.store_of(locator)
            seconds, reason = self._course(store, size_bytes=output.size_bytes, rate=0.0)
            self._schedule.after(seconds, self._copied, storing, output, locator, reason)
        if not places:
            self._finish(storing)

    def _copied(
        self, storing: _Storing, output: OutputFile, locator: str, reason: str, *, tried_again: bool = False
    ) -> None:
        if storing.dead:
            return
        if not reason and not self.stores.answers(self.stores.store_of(locator), self._schedule.now):
            if not tried_again:
                again = partial(self._copied, storing, output, locator, "", tried_again=True)
                self._schedule.after(PATIENCE_SECONDS, again)
                return
            reason = "store-unreachable"
        if reason:
            storing.failed.append(FailedCopy(name=output.name, locator=locator, reason=reason, message=reason))
        else:
            self.stores.put(locator, output.sha256)
            if self._witness is not None:
                self._witness.on_copied(storing.ref, locator=locator, sha256=output.sha256)
            storing.copies.append(
                StoredCopy(name=output.name, locator=locator, size_bytes=output.size_bytes, sha256=output.sha256)
            )
        storing.left -= 1
        if not storing.left:
            self._finish(storing)

    def _finish(self, storing: _Storing) -> None:
        del self._storing[storing.ref.job, storing.ref.package]
        self._send(OutputsCopied(ref=storing.ref, copies=tuple(storing.copies), failed=tuple(storing.failed)))

    # --- reports -----------------------------------------------------------------------------------------------------

    def _send(self, report: Report) -> None:
        injector = self._injector
        if injector.strikes("transfer_repeated"):
            self._schedule.after(self._between("transfer_repeated", AGAIN_SECONDS), self._report, report)
        if injector.strikes("transfer_late"):
            self._schedule.after(self._between("transfer_late", LATE_SECONDS), self._report, report)
        else:
            self._report(report)

    def _between(self, kind: str, bounds: tuple[float, float]) -> float:
        return self._injector.between(kind, low=bounds[0], high=bounds[1])
