"""Pilots inside a test: the real exchange, backlog and spool, and a runner that plays attempts instead of running them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pilotage.agent.attempt.attempt import AttemptRunner, Outcome
from pilotage.agent.link.connect import connect
from pilotage.agent.pilot.exchange import Exchanger
from pilotage.agent.pilot.fetch import ServerFetch
from pilotage.agent.pilot.pilot import Pilot, PilotSettings
from pilotage.agent.pilot.spool import Owner, claim
from pilotage.agent.processes import started_at
from pilotage.agent.resources import Resources
from pilotage.ports import SeenAtSite, SiteAccess
from tests.kit.agent_service import WAIT_SECONDS, AgentService

SUCCESS = {"exit_code": "SUCCESS", "exit_status": 0}


class Player:
    """Plays attempts: `true` ends at once, `wait` when it is released or cancelled, `deaf` heeds only a second
    cancel, and `stone` none."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._cancels = 0
        self._change = threading.Condition()

    def run(
        self,
        assignment: Mapping[str, Any],
        work: Mapping[str, Any],
        *,
        on_phase: Callable[[str, float], None],
        fetch: Any,
        token: str = "",
    ) -> Outcome:
        word = work["binaries"][0]["argv"][0]
        stage = self._stage
        with stage.change:
            self._cancels = 0
            stage.running[assignment["ref"]["package"]] = self
            stage.most = max(stage.most, len(stage.running))
            stage.change.notify_all()
        on_phase("application", time.time() - stage.older_seconds)
        try:
            if word == "true":
                return Outcome(dict(SUCCESS), [])
            if word == "say":
                return Outcome(dict(SUCCESS), [{"stream": "stdout", "head": "said"}])
            if word == "raise":
                raise RuntimeError("a fault of the runner")
            needed = {"wait": 1, "deaf": 2, "stone": 1000}[word]
            with stage.change:
                package = assignment["ref"]["package"]
                assert stage.change.wait_for(
                    lambda: self._cancels >= needed or package in stage.released, timeout=WAIT_SECONDS
                )
            if self._cancels >= needed:
                return Outcome({"exit_code": "EXECUTION_CANCELED", "exit_message": "cancelled"}, [])
            return Outcome(dict(SUCCESS), [])
        finally:
            with stage.change:
                del stage.running[assignment["ref"]["package"]]
                stage.change.notify_all()

    def rest(self) -> None:
        """There is nothing to let go of."""

    def cancel(self, why: str) -> None:
        with self._stage.change:
            self._cancels += 1
            self._stage.change.notify_all()

    def log_texts(self) -> list[dict[str, Any]]:
        return [{"stream": "stdout", "head": "so far"}]

    def close(self) -> None:
        """Nothing is held."""


class Stage:
    """What runs at the moment, by package, and what may end."""

    def __init__(self) -> None:
        self.change = threading.Condition()
        self.running: dict[str, Player] = {}
        self.most = 0
        self.released: set[str] = set()
        self.older_seconds = 0.0  # how long ago every phase is said to have begun

    def release(self, *packages: str) -> None:
        """Let attempts come to their end."""
        with self.change:
            self.released.update(packages)
            self.change.notify_all()

    def wait_for(self, what: Callable[[], object]) -> None:
        """Wait until something is so on the stage."""
        with self.change:
            assert self.change.wait_for(what, timeout=WAIT_SECONDS), "it did not come to that in time"


class Flight:
    """A pilot that runs in a thread of the test; one that is to leave was told so before it could look at anything."""

    def __init__(self, settings: PilotSettings, *, leaves: str = "") -> None:
        self.settings = settings
        self.stage = Stage()
        self.exchanger = Exchanger(settings)
        self.lock = claim(settings.spool, Owner(settings.pilot, settings.site, settings.request))
        self.pilot = Pilot(
            settings,
            workplace=cast("Any", None),
            fetch=ServerFetch(settings.scratch, lambda: connect(settings.server)),
            on_news=self.exchanger.on_news,
            make_runner=lambda _workplace, _number: cast("AttemptRunner", Player(self.stage)),
        )
        self.told: bool | None = None
        if leaves:
            self.exchanger.ask_to_leave(leaves)
        self._thread = threading.Thread(target=self._fly, daemon=True)
        self._thread.start()

    def _fly(self) -> None:
        self.told = self.exchanger.run(self.pilot)

    def land(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the pilot has ended."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the pilot goes on"


@contextlib.contextmanager
def flying(service: AgentService, state: Path, **settings: Any) -> Iterator[Flight]:
    """A pilot of a service while the block runs; it ends with it."""
    slots, leaves = settings.pop("slots", 2), settings.pop("leaves", "")
    settings.setdefault("capacity", Resources(100 * slots, 1 << 30, 0, 1 << 30))
    settings.setdefault("server", service.address)
    settings.setdefault("grace_seconds", 5.0)
    flight = Flight(
        PilotSettings(pilot="here-1.a", site="here", request="here-1", node="n", state=str(state), **settings),
        leaves=leaves,
    )
    try:
        yield flight
    finally:
        flight.stage.release(*(f"1.1.{number}" for number in range(1, 1000)))
        flight.exchanger.ask_to_leave("end of the test")
        flight.land()
        flight.pilot.spool.close()
        os.close(flight.lock)


def wait_until(what: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until something is so that tells nobody: a file appears, a process is gone."""
    pause = threading.Event()
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come to that in time"
        pause.wait(0.01)


def lives(pid: int) -> bool:
    """Whether a process is there and not dead already."""
    return bool(started_at(pid))


def wait_for_end(site: SiteAccess) -> SeenAtSite:
    """Wait until something at a site has ended, and return what is told of it."""
    ended: list[SeenAtSite] = []

    def look() -> bool:
        ended.extend(seen for seen in site.listing().values() if seen.ended)
        return bool(ended)

    wait_until(look)
    return ended[0]
