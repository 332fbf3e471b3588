"""Hands the engine's orders about files to whoever carries them out: the agent of a site that has one, else the service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, FileEffect, RemoveFile, StoreOutputs
from pilotage.model.exchange.reports import FileNotFetched
from pilotage.service.sites.pool import SiteWorkers
from pilotage.service.transfers.leftover_copies import StandingOf
from pilotage.service.transfers.storing import OutputCopy
from pilotage.service.transfers.transfers import FileReport, Transfers

log = logging.getLogger(__name__)

Report = Callable[[FileReport], None]
OwedCopies = Callable[[AttemptRef, Sequence[str]], Sequence[OutputCopy]]
"""Tells which copies of its outputs an attempt owes, with the URLs of the archive stores."""


class MakesTransfers(Protocol):
    """Makes the transfers of a service."""

    def __call__(self, *, report: Report, outputs: OwedCopies) -> Transfers:
        """Take where reports go, and which copies of its outputs an attempt owes."""
        ...


class FileOrders:
    """Routes orders about files; any thread may call it."""

    def __init__(
        self, workers: SiteWorkers, make: MakesTransfers | None, *, report: Report, outputs: OwedCopies
    ) -> None:
        """Without what makes transfers, only site agents bring files."""
        self._workers = workers
        self._report = report
        self.transfers = make(report=report, outputs=outputs) if make is not None else None

    def want(self, effects: Sequence[FileEffect]) -> None:
        """Carry out orders; never waits."""
        mine: list[FileEffect] = [each for each in effects if isinstance(each, StoreOutputs)]
        at_sites: dict[str, list[FetchFile | RemoveFile]] = {}
        for each in effects:
            if not isinstance(each, StoreOutputs):
                at_sites.setdefault(each.site, []).append(each)
        for site, orders in at_sites.items():
            if not self._workers.want_files(site, orders):
                mine += orders
        if mine and self.transfers is not None:
            self.transfers.want(*mine)
        elif mine:
            self._refuse(mine)

    def cache_of(self, site: str) -> str:
        """The cache folder of a site, as its own account names it; empty if that is not known."""
        return self._workers.cache_of(site) or (self.transfers.cache_path(site) if self.transfers is not None else "")

    def remove_leftovers(self, standing_of: StandingOf) -> int:
        """Remove copies of attempts that were never granted; returns how many could not be removed yet. Waits for stores."""
        return self.transfers.remove_leftovers(standing_of) if self.transfers is not None else 0

    def _refuse(self, orders: Sequence[FileEffect]) -> None:
        for each in orders:
            if isinstance(each, FetchFile):
                message = "this service moves no files"
                self._report(FileNotFetched(site=each.site, key=each.key, reason="store-error", message=message))
            else:
                log.error("this service moves no files: %s is not carried out", type(each).__name__)

    def stop(self) -> None:
        """End transfers; they go on from their drafts when they are ordered again."""
        if self.transfers is not None:
            self.transfers.stop()
