"""A site here whose cache is a folder, with stores that fail on demand, and what its transfers report."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pilotage.model.exchange.operations import FetchFile
from pilotage.model.exchange.reports import FileArrived, FileNotFetched, OutputsCopied
from pilotage.model.settings.stores import FilesSettings
from pilotage.service.transfers.fetching import RetryPolicy
from pilotage.service.transfers.transfers import FileReport, SiteCache, Transfers
from tests.kit.faulty_store import FaultyStore, Stores

NAME = "ab/abcdef"
AT_ONCE = RetryPolicy(tries=4, first_seconds=0.0)


class Reports:
    """What was reported; waits for more."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self.all: list[FileReport] = []

    def __call__(self, report: FileReport) -> None:
        """Take a report."""
        with self._change:
            self.all.append(report)
            self._change.notify_all()

    def keys(self) -> set[str]:
        """The keys of all reports."""
        return {each.key for each in self.all if not isinstance(each, OutputsCopied)}

    def next(self, count: int = 1) -> FileReport:
        """The report of this number, from 1."""
        with self._change:
            assert self._change.wait_for(lambda: len(self.all) >= count, timeout=20), self.all
            return self.all[count - 1]


class Site:
    """A site here, with a store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.there, self.cache = folder / "store", folder / "cache"
        self.there.mkdir()
        self.store, self.other = FaultyStore(), FaultyStore()
        self.stores = Stores({f"file://{self.there}/other": self.other, f"file://{self.there}": self.store})
        self.reports = Reports()
        self.place = SiteCache(folder=str(self.cache))
        self.places: dict[str, SiteCache] = {}  # of other sites
        self.settings = FilesSettings()
        self.now: Callable[[], float] | None = None
        self.made: list[Transfers] = []
        self.spool = str(folder / "spool")

    def transfers(self, policy: RetryPolicy = AT_ONCE) -> Transfers:
        """The transfers of a service that starts now."""
        clock = self.now if self.now is not None else time.monotonic
        made = Transfers(
            self.stores, report=self.reports, caches=lambda site: self.place if site == "here" else self.places.get(site),
            outputs=lambda *_: (), spool=self.spool, settings=self.settings, policy=policy, clock=clock,
        )  # fmt: skip
        self.made.append(made)
        return made

    def file(self, content: bytes, name: str = "in.dat") -> str:
        """The locator of a file with this content."""
        path = self.there / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.write_bytes(content)
        draft.rename(path)  # another file: also with the same size within the same tick of the clock
        return f"file://{path}"

    def fetched(self, name: str = NAME) -> bytes:
        """The cached file."""
        return (self.cache / name).read_bytes()

    def drafts(self) -> list[str]:
        """What is in the cache besides files with a name."""
        return sorted(path.name for path in self.cache.rglob("*.part"))


def order(locator: str, *, key: str = "k1", name: str = NAME) -> FetchFile:
    """An order to fetch a file."""
    return FetchFile(site="here", key=key, locator=locator, name=name)


def sha256(content: bytes) -> str:
    """The checksum of a content."""
    return hashlib.sha256(content).hexdigest()


def arrived(report: FileReport) -> tuple[int, str]:
    """Size and checksum of a file that arrived."""
    assert isinstance(report, FileArrived), report
    return report.size_bytes, report.sha256


def failed(report: FileReport) -> str:
    """Why a file did not arrive."""
    assert isinstance(report, FileNotFetched), report
    return report.reason
