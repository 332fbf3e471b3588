"""Copies of outputs to stores, and files for sites that only a store reaches: verified, idempotent, told per replica."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.stores.folder import FolderStore
from pilotage.app.store_registry import StoreRegistry
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, RemoveFile, StoreOutputs
from pilotage.model.exchange.reports import FileArrived, FileGone, OutputsCopied
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import FindsStores
from pilotage.ports.store import AccessDenied, StoreFull, StoreObject, StoreUnreachable
from pilotage.service.transfers.fetching import RetryPolicy
from pilotage.service.transfers.meter import Meter, RateLimit, TransferStopped
from pilotage.service.transfers.storing import OutputCopy
from pilotage.service.transfers.transfers import FileReport, SiteCache, Transfers
from tests.engines.sshd import SshServer
from tests.kit.faulty_store import FaultyStore, Stores

REF = AttemptRef("job-1", "1.1.1", 2)
CONTENT = os.urandom(1_500_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Archive:
    """Two stores, and a staged output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staged = folder / "staged"
        self.staged.write_bytes(CONTENT)
        self.first, self.second = FaultyStore(), FaultyStore()
        self.stores: FindsStores = Stores(
            {f"file://{folder}/first": self.first, f"file://{folder}/second": self.second}
        )
        self.owed: Sequence[OutputCopy] = ()
        self.reports: list[FileReport] = []
        self.arrived = threading.Semaphore(0)
        self.cache = SiteCache()
        self.made: list[Transfers] = []

    def copy(self, store: str, *, name: str = "out.dat", replaceable: frozenset[str] = frozenset()) -> OutputCopy:
        """A copy that a store should have."""
        return OutputCopy(
            name=name, source=str(self.staged), size_bytes=len(CONTENT), sha256=SHA256,
            locator=f"file://{self.folder}/{store}/{name}", replaceable=replaceable,
        )  # fmt: skip

    def transfers(self) -> Transfers:
        """The transfers of a service that starts now."""

        def report(one: FileReport) -> None:
            self.reports.append(one)
            self.arrived.release()

        made = Transfers(
            self.stores, report=report, caches=lambda _: self.cache, outputs=lambda *_: self.owed,
            spool=str(self.folder / "spool"), policy=RetryPolicy(tries=3, first_seconds=0.0),
        )  # fmt: skip
        self.made.append(made)
        return made

    def report(self) -> FileReport:
        """The next report."""
        assert self.arrived.acquire(timeout=20)
        return self.reports[-1]

    def stored(self, *owed: OutputCopy) -> OutputsCopied:
        """What becomes of some copies."""
        self.owed = owed
        self.transfers().want(StoreOutputs(ref=REF))
        report = self.report()
        assert isinstance(report, OutputsCopied)
        return report


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    made = Archive(tmp_path)
    yield made
    for each in made.made:
        each.stop()


def test_outputs_are_copied_to_each_replica_and_verified(archive: Archive) -> None:
    report = archive.stored(archive.copy("first"), archive.copy("second"))
    assert (report.ref, report.failed) == (REF, ())
    assert [each.locator for each in report.copies] == [
        f"file://{archive.folder}/{store}/out.dat" for store in ("first", "second")
    ]
    assert {each.sha256 for each in report.copies} == {SHA256}
    assert (archive.folder / "second/out.dat").read_bytes() == CONTENT


def test_an_attempt_that_owes_no_copy_is_reported_at_once(archive: Archive) -> None:
    assert archive.stored() == OutputsCopied(ref=REF)


def test_partial_success_is_told_for_each_replica(archive: Archive) -> None:
    archive.second.put_faults.append(StoreFull("the quota is used up"))
    report = archive.stored(archive.copy("first"), archive.copy("second"))
    assert [each.locator.rpartition("/")[0][-5:] for each in report.copies] == ["first"]
    (failed,) = report.failed
    assert (failed.name, failed.reason) == ("out.dat", "store-full")
    assert "the quota is used up" in failed.message


def with_spares(copy: OutputCopy, *spares: OutputCopy) -> OutputCopy:
    return msgspec.structs.replace(copy, spares=spares)


def test_another_store_takes_a_copy_that_its_own_does_not_take_and_says_why(archive: Archive) -> None:
    archive.first.put_faults += [StoreUnreachable("no answer")] * 3
    report = archive.stored(with_spares(archive.copy("first"), archive.copy("second")))
    assert report.failed == ()
    (copy,) = report.copies
    assert (copy.locator, copy.instead_of) == (f"file://{archive.folder}/second/out.dat", archive.copy("first").locator)
    assert "no answer" in copy.message


def test_two_copies_of_a_file_never_come_to_one_store(archive: Archive) -> None:
    archive.first.put_faults += [StoreUnreachable("no answer")] * 6
    spares = [archive.copy("second")]
    names = [
        archive.copy("first"),
        msgspec.structs.replace(archive.copy("first"), locator=f"file://{archive.folder}/first/b"),
    ]
    report = archive.stored(*(with_spares(each, *spares) for each in names))
    assert [each.locator for each in report.copies] == [spares[0].locator]
    (failed,) = report.failed
    assert "no other archive store is left" in failed.message
    assert "files.archive" in failed.message


def test_a_store_that_failed_lately_is_not_tried_again_while_another_can_take_the_copy(archive: Archive) -> None:
    archive.first.put_faults += [StoreUnreachable("no answer")] * 3
    transfers = archive.transfers()
    archive.owed = (with_spares(archive.copy("first"), archive.copy("second")),)
    for attempt in (1, 2):
        transfers.want(StoreOutputs(ref=AttemptRef("job-1", "1.1.1", attempt)))
        report = archive.report()
        assert isinstance(report, OutputsCopied)
        assert [each.locator for each in report.copies] == [archive.copy("second").locator]
    assert archive.first.puts == 3


def test_a_locator_without_a_store_fails_by_itself(archive: Archive) -> None:
    nowhere = OutputCopy(name="x", source="/x", size_bytes=1, sha256=SHA256, locator="gopher://x/x")
    report = archive.stored(archive.copy("first"), nowhere)
    assert [each.reason for each in report.failed] == ["store-error"]
    assert len(report.copies) == 1


def test_a_broken_connection_is_tried_again(archive: Archive) -> None:
    archive.first.put_faults += [StoreUnreachable("broke"), StoreUnreachable("broke")]
    report = archive.stored(archive.copy("first"))
    assert len(report.copies) == 1
    assert archive.first.puts == 3


def test_an_equal_file_counts_as_stored_after_a_crash(archive: Archive) -> None:
    archive.stored(archive.copy("first"))
    assert len(archive.stored(archive.copy("first")).copies) == 1
    assert archive.first.puts == 1


def test_a_file_of_somebody_else_is_not_replaced(archive: Archive) -> None:
    (archive.folder / "first").mkdir()
    (archive.folder / "first/out.dat").write_bytes(b"precious")
    (failed,) = archive.stored(archive.copy("first")).failed
    assert failed.reason == "already-in-store"
    assert "not replaced" in failed.message
    assert (archive.folder / "first/out.dat").read_bytes() == b"precious"


def test_an_earlier_copy_of_the_same_package_is_replaced(archive: Archive) -> None:
    (archive.folder / "first").mkdir()
    (archive.folder / "first/out.dat").write_bytes(b"old")
    ours = frozenset({hashlib.sha256(b"old").hexdigest()})
    assert len(archive.stored(archive.copy("first", replaceable=ours)).copies) == 1
    assert (archive.folder / "first/out.dat").read_bytes() == CONTENT


def test_a_store_that_keeps_another_content_is_not_believed(archive: Archive) -> None:
    class Damaging(FaultyStore):
        def put(self, source: str, locator: str, **how: object) -> StoreObject:
            done = super().put(source, locator, **how)  # type: ignore[arg-type]
            file = Path(locator.removeprefix("file://"))
            if self.puts == 1:
                file.write_bytes(b"x" + file.read_bytes()[1:])
            return done

    archive.stores = Stores({"file://": Damaging()})
    report = archive.stored(archive.copy("first"))
    assert len(report.copies) == 1
    assert (archive.folder / "first/out.dat").read_bytes() == CONTENT


def test_a_source_that_is_gone_is_told(archive: Archive) -> None:
    archive.staged.unlink()
    (failed,) = archive.stored(archive.copy("first")).failed
    assert failed.reason == "not-in-store"


def test_a_refusal_is_told_by_its_reason(archive: Archive) -> None:
    archive.first.refusals.append(AccessDenied("403"))
    (failed,) = archive.stored(archive.copy("first")).failed
    assert failed.reason == "access-denied"


def test_outputs_whose_targets_cannot_be_found_are_told(archive: Archive) -> None:
    def broken(_: AttemptRef, __: Sequence[str]) -> Sequence[OutputCopy]:
        raise ValueError("no such job")

    made = archive.transfers()
    made._outputs = broken
    made.want(StoreOutputs(ref=REF))
    report = archive.report()
    assert isinstance(report, OutputsCopied)
    assert "no such job" in report.failed[0].message


# --- a site that only a store reaches ---


def test_a_file_goes_to_a_site_over_sftp_and_is_removed_there(archive: Archive, ssh_server: SshServer) -> None:
    there = archive.folder / "cluster"
    base = f"sftp://{ssh_server.user}@{ssh_server.host}:{ssh_server.port}{there}"
    archive.stores = StoreRegistry(
        [StoreSettings(name="cluster", url=base, ssh_config=str(ssh_server.configuration()))]
    )
    archive.cache = SiteCache(locator=base)
    made = archive.transfers()
    order = FetchFile(site="cluster", key="k1", locator=f"file://{archive.staged}", name="ab/abcd")
    made.want(order)
    report = archive.report()
    assert isinstance(report, FileArrived), report
    assert (report.size_bytes, report.sha256) == (len(CONTENT), SHA256)
    assert (there / "ab/abcd").read_bytes() == CONTENT
    assert [path for path in (archive.folder / "spool").rglob("*") if path.is_file()] == []
    made.want(order)
    assert isinstance(archive.report(), FileArrived)
    made.want(RemoveFile(site="cluster", key="r1", name="ab/abcd"))
    assert archive.report() == FileGone(site="cluster", key="r1")
    assert [path for path in there.rglob("*") if path.is_file()] == []


def test_a_file_that_is_in_the_way_in_a_cache_elsewhere_is_replaced(archive: Archive) -> None:
    archive.cache = SiteCache(locator=f"file://{archive.folder}/second")
    (archive.folder / "second").mkdir()
    (archive.folder / "second/abcd").write_bytes(b"left by a crash")
    archive.stores = Stores({"file://": FolderStore()})
    archive.transfers().want(FetchFile(site="x", key="k1", locator=f"file://{archive.staged}", name="abcd"))
    assert isinstance(archive.report(), FileArrived)
    assert (archive.folder / "second/abcd").read_bytes() == CONTENT


# --- rates ---


def test_a_limit_of_the_rate_is_shared_and_lets_a_burst_through() -> None:
    now = [0.0]
    limit = RateLimit(1000, clock=lambda: now[0])
    assert limit.reserve(500) == 0.0
    assert limit.reserve(1000) == pytest.approx(1.0)
    now[0] = 1.0
    assert limit.reserve(500) == pytest.approx(0.5)
    assert RateLimit(0).reserve(10**12) == 0.0


def test_time_that_a_limit_takes_is_not_held_against_a_transfer() -> None:
    now = [0.0]
    meter = Meter([RateLimit(1, clock=lambda: now[0])], clock=lambda: now[0])
    meter.start()
    meter.allow(10.0)
    meter.pause = lambda seconds: now.__setitem__(0, now[0] + seconds)  # type: ignore[method-assign]
    meter.advance(100)
    assert not meter.is_late
    assert meter.bytes_done == 100


def test_a_cancelled_transfer_does_not_wait_for_its_rate() -> None:
    meter = Meter([RateLimit(1)])
    meter.start()
    meter.stop()
    with pytest.raises(TransferStopped):
        meter.advance(10**9)
