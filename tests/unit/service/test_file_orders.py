"""Who carries out orders about files: the agent of a site that has one, else the service itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, RemoveFile, StoreOutputs
from pilotage.model.exchange.reports import FileArrived, FileNotFetched, OutputsCopied
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.sites.agent_worker import AgentSettings
from pilotage.service.sites.pool import SiteWorkers
from pilotage.service.transfers.file_orders import FileOrders, MakesTransfers
from pilotage.service.transfers.transfers import FileReport, SiteCache, Transfers
from tests.kit.faulty_store import FaultyStore, Stores

REF = AttemptRef("j", "1.1.1", 1)


class Orders:
    """Orders for the site lyon, which has a site agent, and for this computer."""

    def __init__(self, folder: Path, *, moves_files: bool = True) -> None:
        self.folder = folder
        self.reports: list[FileReport] = []
        self.arrived = threading.Semaphore(0)
        entry = SiteEntry(name="lyon", kind="slurm", started_by="agent")
        self.workers = SiteWorkers({"lyon": AgentSettings(entry=entry)}, report=self._report, expected=lambda _: ())

        def make(**parts: Any) -> Transfers:
            cache = SiteCache(folder=str(folder / "cache"))
            return Transfers(Stores({"file://": FaultyStore()}), caches=lambda _: cache, spool=str(folder), **parts)

        chosen: MakesTransfers | None = make if moves_files else None
        self.orders = FileOrders(self.workers, chosen, report=self._report, outputs=lambda *_: ())

    def _report(self, report: Any) -> None:
        self.reports.append(report)
        self.arrived.release()

    def fetch(self, site: str) -> FetchFile:
        """The order to bring a file to a site."""
        (self.folder / "in").write_bytes(b"data")
        return FetchFile(site=site, key=f"fetch.{site}", locator=f"file://{self.folder}/in", name="ab/ab")


def test_each_order_goes_to_whoever_reaches_the_site(tmp_path: Path) -> None:
    made = Orders(tmp_path)
    made.orders.want([made.fetch("lyon"), made.fetch("local"), StoreOutputs(ref=REF)])
    for _ in range(2):
        assert made.arrived.acquire(timeout=20)
    assert {type(each) for each in made.reports} == {FileArrived, OutputsCopied}
    assert made.workers.ordered_fetch("fetch.lyon", site="lyon") == made.fetch("lyon")
    assert made.workers.ordered_fetch("fetch.lyon", site=None) == made.fetch("lyon")
    assert made.workers.ordered_fetch("fetch.lyon", site="local") is None
    assert made.workers.ordered_fetch("fetch.local", site=None) is None
    made.orders.stop()


def test_a_service_that_moves_no_files_says_so(tmp_path: Path) -> None:
    made = Orders(tmp_path, moves_files=False)
    made.orders.want([made.fetch("local"), RemoveFile(site="local", key="r", name="x")])
    (report,) = made.reports
    assert isinstance(report, FileNotFetched)
    assert report.message == "this service moves no files"
    made.orders.stop()
