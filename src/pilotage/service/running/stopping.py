"""The end of a service in good order: what the engine has to say last is said while somebody can still carry it out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pilotage.service.messages import Stopping
from pilotage.service.running.driver import Driver
from pilotage.service.running.errors import NotRunning

if TYPE_CHECKING:
    from pilotage.service.running.workers import SiteWorkers

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
WITHDRAW_SECONDS = 8.0
"""How long the agents of sites are waited for, which are to hear what must leave their queues: about as long as they wait."""


def stop_asking(driver: Driver) -> None:
    """Have it written down how sites stand, and pilots withdrawn that have not come; a book that hangs is not awaited."""
    if not driver.alive:
        return
    try:
        driver.tell(lambda token: Stopping(token=token)).result(STOP_SECONDS)
        driver.ask(lambda _: None).result(STOP_SECONDS)  # by then all sites have been told what to do
    except (NotRunning, TimeoutError):
        log.warning("the engine does not answer: pilots that have not come are not withdrawn")


class Winding:
    """The first part of an end, while agents are still answered; it is done once, whoever asks for it."""

    def __init__(self, driver: Driver, workers: SiteWorkers) -> None:
        """Take what is to end."""
        self._driver = driver
        self._workers = workers
        self._begun = False

    def down(self, *, patience_seconds: float = WITHDRAW_SECONDS) -> None:
        """Have pilots withdrawn that have not come, and wait until the agents of sites have heard of it, but not for long."""
        if self._begun:
            return
        self._begun = True
        if self._driver.alive:
            stop_asking(self._driver)
            self._workers.withdraw(patience_seconds=patience_seconds)
