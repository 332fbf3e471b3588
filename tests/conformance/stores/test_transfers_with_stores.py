"""The transfers of a service with every real store: fetched, stored, and resumed when the network breaks."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from pilotage.app.store_registry import StoreRegistry
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, StoreOutputs
from pilotage.model.exchange.reports import FileArrived, OutputsCopied
from pilotage.service.transfers.fetching import RetryPolicy
from pilotage.service.transfers.storing import OutputCopy
from pilotage.service.transfers.transfers import FileReport, SiteCache, Transfers
from tests.conformance.stores.places import USER, Place
from tests.conformance.stores.test_cut_connections import WiredPlace, wired

__all__ = ["wired"]

REF = AttemptRef("j", "1.1.1", 1)


class Moving:
    """The transfers of a service with one store, whose site is here."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.reports: queue.Queue[FileReport] = queue.Queue()
        self.owed: Sequence[OutputCopy] = ()
        self.cache = folder / "cache"
        settings = msgspec.structs.replace(place.settings, name="tried", url=place.base)
        self.transfers = Transfers(
            StoreRegistry([settings], own=place.own), report=self.reports.put, caches=lambda _: SiteCache(folder=str(self.cache)),
            outputs=lambda *_: self.owed, spool=str(folder / "spool"), policy=RetryPolicy(first_seconds=0.1, tries=20),
        )  # fmt: skip

    def __enter__(self) -> Moving:
        return self

    def __exit__(self, *_: object) -> None:
        self.transfers.stop()

    def report(self) -> FileReport:
        """The next report."""
        return self.reports.get(timeout=60)


def mend_after_the_first_fault(moving: Moving, wired: WiredPlace) -> threading.Thread:
    """Mend the wire once a transfer has seen that it is cut."""

    def mend() -> None:
        waiting = threading.Event()
        while not any(each.fault for each in moving.transfers.under_way()):
            waiting.wait(0.01)
        wired.wire.mend()

    thread = threading.Thread(target=mend)
    thread.start()
    return thread


@pytest.fixture
def moving(any_place: Place, tmp_path: Path) -> Iterator[Moving]:
    with Moving(any_place, tmp_path / "mine") as made:
        yield made


def test_a_file_is_fetched_with_its_checksum(any_place: Place, moving: Moving) -> None:
    content = os.urandom(3_000_000)
    any_place.write("a b é.dat", content)
    locator = any_place.at("a b é.dat", content)
    moving.transfers.want(FetchFile(site="here", key="k", locator=locator, name="ab/abc"))
    report = moving.report()
    assert isinstance(report, FileArrived), report
    assert (report.size_bytes, report.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (moving.cache / "ab/abc").read_bytes() == content


def test_an_output_is_stored_verified_and_not_stored_twice(any_place: Place, moving: Moving, source: Path) -> None:
    sha256 = hashlib.sha256(b"data").hexdigest()
    locator = any_place.at("deep/o", b"data")
    moving.owed = [OutputCopy(name="o", source=str(source), size_bytes=4, sha256=sha256, locator=locator, owner=USER)]
    for _ in range(2):
        moving.transfers.want(StoreOutputs(ref=REF))
        report = moving.report()
        assert isinstance(report, OutputsCopied)
        assert (len(report.copies), report.failed) == (1, ())
    assert any_place.content() == {any_place.named("deep/o", b"data"): b"data"}


def test_a_fetch_goes_on_where_the_network_broke(wired: WiredPlace, tmp_path: Path) -> None:
    content = os.urandom(24 << 20)
    wired.place.write("a.dat", content)
    with Moving(wired.place, tmp_path / "mine") as moving:
        wired.wire.cut_after(9 << 20)
        moving.transfers.want(FetchFile(site="here", key="k", locator=wired.place.at("a.dat"), name="abc"))
        mending = mend_after_the_first_fault(moving, wired)
        report = moving.report()
        mending.join(20)
        assert isinstance(report, FileArrived), report
        assert report.sha256 == hashlib.sha256(content).hexdigest()
        (counted,) = moving.transfers.stores()
        assert (counted.files, counted.bytes) == (1, len(content)), "some bytes were fetched twice"


def test_a_copy_is_stored_although_the_network_broke(wired: WiredPlace, source: Path, tmp_path: Path) -> None:
    content = os.urandom(30 << 20)
    source.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    with Moving(wired.place, tmp_path / "mine") as moving:
        moving.owed = [
            OutputCopy(
                name="o", source=str(source), size_bytes=len(content), sha256=sha256, locator=wired.place.at("o")
            )
        ]
        wired.wire.cut_after(16 << 20)
        moving.transfers.want(StoreOutputs(ref=REF))
        mending = mend_after_the_first_fault(moving, wired)
        report = moving.report()
        mending.join(20)
        assert isinstance(report, OutputsCopied)
        assert (len(report.copies), report.failed) == (1, ())
    assert wired.place.store.checksum(wired.place.at("o")) == sha256
    assert [each.locator for each in wired.place.store.list(wired.place.base)] == [wired.place.at("o")]
