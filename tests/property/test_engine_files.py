"""Whatever happens to files and stores: none is removed while a package needs it, caches keep their limits, nothing is stuck."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pilotage.engine.state.caches import FileState
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.model.events import file_payloads, payloads
from pilotage.model.events.file_payloads import FailedCopy, StoredCopy
from pilotage.model.exchange.operations import FetchFile, PinFiles, PurgeFiles, RemoveFile, StoreOutputs, UnpinFiles
from pilotage.model.exchange.reports import AnyReport, FileArrived, FileGone, FileNotFetched, OutputsCopied
from pilotage.model.jobs.file_plan import Wish
from pilotage.model.resources import Capacity
from pilotage.service.messages import Input, Outbox, SiteOperationRequest
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, chain, kind, site, with_files
from tests.property.test_engine import Service, which

GIB = 2**30
F = [f"s3://store/{number}" for number in range(6)]
SIZES = dict.fromkeys(F, 30)
DELETABLE = dict.fromkeys(F, Wish.DELETABLE)
FILE_SITES = (
    site("a", pilots=2, capacity=Capacity(cores_hundredths=200, memory_bytes=8 * GIB), cache_bytes=100),
    site("b", capacity=Capacity(cores_hundredths=100, memory_bytes=2 * GIB), wall_seconds=3600.0),
    site("c", mode="bound", job_throttle=1.0, capacity=Capacity(cores_hundredths=100, memory_bytes=4 * GIB), cache_bytes=70),
)  # fmt: skip


def lines(count: int, *common: str) -> dict[str, list[str]]:
    return {f"1.{line}.1": [*common, F[line]] for line in range(1, count + 1)}


FILE_PLANS = [
    lambda: with_files(bag(4), lines(4), sizes=SIZES),
    lambda: with_files(bag(4), lines(4, F[0]), sizes=SIZES, wishes=DELETABLE),
    lambda: with_files(
        chain(lines=2, stages=2), {"1.1.1": [F[0]], "2.1.1": [F[1]], "2.2.1": [F[0], F[2]]}, sizes=SIZES
    ),
    lambda: with_files(
        bag(3, kind("merge", stores_outputs=True)), lines(3), sizes=SIZES, wishes=DELETABLE, released=F[1:3]
    ),
    lambda: chain(kind("first", disposes_outputs=True), kind("next", disposes_outputs=True), kind("last"), lines=2),
    lambda: with_files(bag(2), {"1.1.1": F[:2], "1.2.1": F[4:]}, sizes=SIZES, wishes={F[4]: Wish.RETAIN_INDEFINITELY}),
]
COPY = StoredCopy(name="out", locator="s3://archive/out", size_bytes=1, sha256="a" * 64)
FAILED = FailedCopy(name="out", locator="sftp://tape/out", reason="store-full")


def needs(job: JobState, locator: str) -> bool:
    """Whether a package that may still run needs a file, counted anew."""
    plan = job.plan.files
    if plan is None or locator not in plan.locators or job.cancelled or job.aborted:
        return False
    users = plan.users.of(list(plan.locators).index(locator)).tolist()
    return any(job.status[number] < PackageStatus.DROPPED for number in users)


class SmallWithFiles(Small):
    """A service that is watched for what must hold of files after every step."""

    def __init__(self, *sites: Any, **more: Any) -> None:
        super().__init__(*sites, **({"fetch_attempts_max": 3, "fetch_delay_seconds": 5.0} | more))
        self.fetches: list[FetchFile] = []
        self.removals: list[RemoveFile] = []
        self.stores: list[StoreOutputs] = []
        self.everything_comes = False

    def step(self, *inbox: Input, after: float = 0.0) -> Outbox:
        outbox = super().step(*inbox, after=after)
        state = self.engine.state
        for one in outbox.events:
            if isinstance(one.data, file_payloads.RemovalsOrdered):
                for each in one.data.files:
                    assert not any(needs(job, each.locator) for job in state.jobs.by_id.values()), each
            elif isinstance(one.data, payloads.AttemptCreated):
                self._has_its_files(one.event.job or "", one.event.package or "", one.data.site)
        for known in state.sites.by_name.values():
            limit = known.site.cache_bytes
            assert limit is None or state.files.at(known.name).taken_bytes <= limit
        self.fetches += self.take(FetchFile)
        self.removals += self.take(RemoveFile)
        self.stores += self.take(StoreOutputs)
        open_keys = {key for cache in state.files.caches.values() for key in cache.by_key}
        self.fetches = list({each.key: each for each in self.fetches if each.key in open_keys}.values())
        self.removals = list({each.key: each for each in self.removals if each.key in open_keys}.values())
        ordered = [(each.site, each.locator) for each in self.fetches]
        assert len(ordered) == len(set(ordered))  # one fetch of a file for each site
        told = {each.key for each in self.fetches} | {each.key for each in self.removals}
        assert told >= open_keys - self._unmanaged_keys()
        return outbox

    def _unmanaged_keys(self) -> set[str]:
        state = self.engine.state
        return {
            key
            for name, cache in state.files.caches.items()
            if (known := state.sites.by_name.get(name)) is None or known.removed
            for key in cache.by_key
        }

    def _has_its_files(self, name: str, package: str, where: str) -> None:
        job = self.engine.state.jobs.by_id.get(name)
        if job is None or job.files is None:
            return
        place = [int(part) for part in package.split(".")]
        number = job.number((place[0], place[1], place[2]))
        assert number is not None
        entries = self.engine.state.files.at(where).entries
        for file in job.files.of(number):
            assert entries[job.files.locator(file)].state == FileState.PRESENT

    def _end_cancelled(self) -> None:
        """In the end every file comes and goes as ordered."""
        super()._end_cancelled()
        reports: list[AnyReport | OutputsCopied] = [
            FileArrived(site=each.site, key=each.key, size_bytes=30, sha256="a" * 64) for each in self.fetches
        ]
        reports += [FileGone(site=each.site, key=each.key) for each in self.removals]
        reports += [OutputsCopied(ref=each.ref, copies=(COPY,)) for each in self.stores]
        self.stores = []
        self.step(*reports)


class FileService(Service):
    """A service with caches of limited size, and jobs that share files."""

    sites = FILE_SITES
    plans = FILE_PLANS
    kind_of_small = SmallWithFiles
    small: SmallWithFiles

    @precondition(lambda self: self.small.fetches)
    @rule(number=which, sha256=st.sampled_from(["a" * 64, "a" * 64, "b" * 64]))
    def arrive(self, number: int, sha256: str) -> None:
        wanted = self.small.fetches[number % len(self.small.fetches)]
        self.small.step(FileArrived(site=wanted.site, key=wanted.key, size_bytes=30, sha256=sha256))
        self._tidy()

    @precondition(lambda self: self.small.fetches)
    @rule()
    def arrive_all(self) -> None:
        arrived = [
            FileArrived(site=each.site, key=each.key, size_bytes=30, sha256="a" * 64) for each in self.small.fetches
        ]
        self.small.step(*arrived)
        self._tidy()

    @precondition(lambda self: self.small.fetches)
    @rule(number=which, reason=st.sampled_from(["store-unreachable", "store-unreachable", "not-in-store"]))
    def fail_to_fetch(self, number: int, reason: str) -> None:
        wanted = self.small.fetches[number % len(self.small.fetches)]
        self.small.step(FileNotFetched(site=wanted.site, key=wanted.key, reason=reason))
        self._tidy()

    @precondition(lambda self: self.small.removals)
    @rule(number=which)
    def go(self, number: int) -> None:
        wanted = self.small.removals[number % len(self.small.removals)]
        self.small.step(FileGone(site=wanted.site, key=wanted.key))
        self._tidy()

    @rule(number=which)
    def vanish(self, number: int) -> None:
        """A file is found to be missing that nobody removed."""
        state = self.small.engine.state
        there = [
            (cache.name, each.key)
            for cache in state.files.caches.values()
            for each in cache.entries.values()
            if each.state == FileState.PRESENT
        ]
        if there:
            where, key = there[number % len(there)]
            self.small.step(FileGone(site=where, key=key))
            self._tidy()

    @precondition(lambda self: self.small.stores)
    @rule(number=which, failed=st.sampled_from([(), (), (FAILED,)]))
    def copy_outputs(self, number: int, failed: tuple[FailedCopy, ...]) -> None:
        wanted = self.small.stores.pop(number % len(self.small.stores))
        self.small.step(OutputsCopied(ref=wanted.ref, copies=(COPY,), failed=failed))
        self._tidy()

    @rule(number=which, how=st.sampled_from(["pin", "unpin", "purge", "purge all"]))
    def ask_for_a_file(self, number: int, how: str) -> None:
        name, locator = "abc"[number % 3], F[number % len(F)]
        operation: Any = PurgeFiles(site=name)
        if how == "pin":
            operation = PinFiles(site=name, locators=(locator,), by="eve")
        elif how == "unpin":
            operation = UnpinFiles(site=name, locators=(locator,), by="eve")
        elif how == "purge":
            operation = PurgeFiles(site=name, locators=(locator,))
        self.small.step(SiteOperationRequest(token=9, operation=operation))
        self.small.answers.clear()
        self._tidy()

    def teardown(self) -> None:
        small = self.small
        for cache in small.engine.state.files.caches.values():  # pins and wishes may keep a cache full for ever
            for each in list(cache.entries.values()):
                for owner in each.pins:
                    small.step(
                        SiteOperationRequest(
                            token=9, operation=UnpinFiles(site=cache.name, locators=(each.locator,), by=owner)
                        )
                    )
        small.answers.clear()
        super().teardown()


TestFileService = FileService.TestCase
TestFileService.settings = settings(max_examples=60, stateful_step_count=50)
