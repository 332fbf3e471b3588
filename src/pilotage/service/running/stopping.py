"""The end of a service in good order: what the engine has to say last is said while somebody can still carry it out."""

from __future__ import annotations

import logging

from pilotage.service.messages import Stopping
from pilotage.service.running.driver import Driver, NotRunning

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0


def stop_asking(driver: Driver) -> None:
    """Have it written down how sites stand, and pilots withdrawn that have not come; a book that hangs is not awaited."""
    if not driver.alive:
        return
    try:
        driver.tell(lambda token: Stopping(token=token)).result(STOP_SECONDS)
        driver.ask(lambda _: None).result(STOP_SECONDS)  # by then all sites have been told what to do
    except (NotRunning, TimeoutError):
        log.warning("the engine does not answer: pilots that have not come are not withdrawn")
