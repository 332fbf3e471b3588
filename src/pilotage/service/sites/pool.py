"""The workers of all sites: a thread that submits there, or one that keeps orders for the site agent.

Sites come and go while a service runs; a new access to a site replaces the earlier one. Batch systems keep batch jobs,
which are known by their keys, and pending orders pass on to the new worker: nothing is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from pilotage.engine.engine import Engine
from pilotage.engine.state.sites import made_contact
from pilotage.engine.transitions.site_observations import is_probe
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.operations import CancelSubmitted, FetchFile
from pilotage.model.exchange.reports import (
    AnyReport,
    FileNotFetched,
    Gone,
    SiteAgentMessage,
    SiteEffect,
    SiteNoticed,
    SiteSeen,
)
from pilotage.ports import SiteAccess
from pilotage.service.errors import UnknownSite
from pilotage.service.sites.agent_worker import NOT_YET, AgentSettings, AgentSite, FileOrder
from pilotage.service.sites.worker import STOP_SECONDS, AtSite, SiteWorker, StartLimiter

log = logging.getLogger(__name__)

LOOKS_MAX, HANGING_MAX = 16, 128
"""Site checks that may start at once, each a command or an ssh; and those that may hang, at sites that did not answer."""

SiteConnection = SiteAccess | AgentSettings
"""How to reach a site: directly, or through its site agent."""


class _FormerBatchSystem(NamedTuple):
    """The worker of a site's former batch system, and the keys submitted there."""

    worker: SiteWorker
    keys: frozenset[str]


class SiteWorkers:
    """The workers by the names of their sites; any thread may call them."""

    def __init__(
        self,
        connections: Mapping[str, SiteConnection],
        *,
        report: Callable[[AnyReport], None],
        expected: Callable[[str], Collection[str]],
        unknown: Callable[[str, Collection[str]], Collection[str]] = lambda _, __: (),
        unheard: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Take an access to each site, where reports go, and what knows the keys expected at a site; nothing runs yet.

        `unknown` returns those of some keys that the engine does not know: their batch jobs are cancelled. `unheard`
        returns the keys that should be at a site and have not contacted the service.
        """
        self._tell = report
        self._last_reports: dict[str, SiteSeen] = {}  # the last report of each site, by whichever worker
        self._expected = expected
        self._unknown = unknown
        self._unheard = unheard
        self._guard = threading.Lock()
        self._running = False
        self._limiter = StartLimiter(LOOKS_MAX, hanging_max=HANGING_MAX)
        self.left_behind: list[str] = []  # batch jobs that could not be cancelled when the workers stopped, in words
        self._formers: dict[str, tuple[_FormerBatchSystem, ...]] = {}
        self._workers = {name: self._made(name, connection) for name, connection in connections.items()}

    def start(self) -> None:
        """Start all workers."""
        with self._guard:
            self._running = True
            for name, worker in self._workers.items():
                self._tell(first_report(name))
                worker.start()

    def withdraw(self, *, patience_seconds: float) -> None:
        """Wait a short time until all site agents have fetched their cancellations."""
        until = time.monotonic() + patience_seconds
        with self._guard:
            agents = [worker for worker in self._workers.values() if isinstance(worker, AgentSite)]
        for worker in agents:
            worker.withdraw(patience_seconds=until - time.monotonic())

    def stop(self) -> None:
        """Stop; what runs at the sites continues."""
        with self._guard:
            self._running = False
            formers = [each.worker for some in self._formers.values() for each in some]
            workers = [*self._workers.values(), *formers]
        for worker in workers:
            if isinstance(worker, SiteWorker):
                worker.leave()
        until = time.monotonic() + STOP_SECONDS  # for all of them together
        for worker in workers:
            if isinstance(worker, SiteWorker):
                worker.stop(patience_seconds=max(0.0, until - time.monotonic()))
            else:
                worker.stop()
        self.left_behind = [worker.left_behind for worker in workers if worker.left_behind]
        for message in self.left_behind:
            log.warning("%s", message)

    @property
    def names(self) -> list[str]:
        """The sites that have a worker."""
        with self._guard:
            return list(self._workers)

    def put(self, name: str, connection: SiteConnection, *, former: SiteConnection | None = None) -> None:
        """Reach a site through this access from now on; pending orders pass to it.

        With an access to the former batch system, the batch jobs there are watched and cancelled there.
        """
        with self._guard:
            before = self._workers.get(name)
        if before is not None:
            before.stop()  # before the other starts: two at one site would both submit
            self._tell(SiteNoticed(site=name))  # the new worker lists what is there
        else:
            self._last_reports.pop(name, None)  # the last report of a site that is back may be old
        left = before.left() if before is not None else []
        if before is not None and not isinstance(connection, AgentSettings):
            left = self._without_files(name, left)
        if former is not None and not isinstance(former, AgentSettings):
            left = self._keep_former(name, former, left)
        worker = self._made(name, connection)
        with self._guard:
            worker.want(*left)
            self._workers[name] = worker
            if self._running:
                if name not in self._last_reports:
                    self._tell(first_report(name))
                worker.start()

    def _without_files(self, name: str, left: Sequence[SiteEffect]) -> list[AtSite]:
        """The orders of a site agent without those for files: the service brings them from now on, when asked again."""
        for each in left:
            if isinstance(each, FetchFile):
                message = "the site has no site agent any more"
                self._tell(FileNotFetched(site=name, key=each.key, reason="platform-failure", message=message))
        return [each for each in left if not isinstance(each, FileOrder)]

    def _keep_former(self, name: str, connection: SiteAccess, left: Sequence[SiteEffect]) -> list[SiteEffect]:
        """Start a worker for batch jobs at the former batch system; returns the remaining orders."""
        keys = frozenset({*self._expected(name), *(each.key for each in left if isinstance(each, CancelSubmitted))})
        keys -= self._elsewhere(name)
        if not keys:
            connection.close()
            return [*left]
        worker = SiteWorker(
            name,
            connection,
            report=self._report_of_former,
            expected=lambda: keys.intersection(self._expected(name)),
            unknown=partial(self._unknown, name),
            limiter=self._limiter,
        )
        there = [each for each in left if isinstance(each, CancelSubmitted) and each.key in keys]
        worker.want(*there)
        with self._guard:
            self._formers[name] = (*self._formers.get(name, ()), _FormerBatchSystem(worker, keys))
            if self._running:
                worker.start()
        return [each for each in left if each not in there]

    def _report_of_former(self, report: AnyReport) -> None:
        """Report ends at a former batch system; whether it answers says nothing about the site."""
        if isinstance(report, Gone):
            self._tell(report)

    def _elsewhere(self, name: str) -> frozenset[str]:
        """The keys submitted to former batch systems of a site."""
        return frozenset().union(*(each.keys for each in self._formers.get(name, ())))

    def release_formers(self) -> None:
        """Stop workers of former batch systems where nothing is left."""
        with self._guard:
            formers = [(name, each) for name, some in self._formers.items() for each in some]
        for name, each in formers:
            if not each.worker.left() and each.keys.isdisjoint(self._expected(name)):
                with self._guard:
                    some = tuple(other for other in self._formers.pop(name) if other is not each)
                    self._formers.update({name: some} if some else {})
                each.worker.stop()

    def remove(self, name: str) -> None:
        """Stop the worker of a site."""
        with self._guard:
            worker = self._workers.pop(name, None)
            formers = self._formers.pop(name, ())
        if worker is not None:
            worker.stop()
        for each in formers:
            each.worker.stop()

    def owes(self, name: str) -> bool:
        """Whether cancellations at a site are not known to have taken effect."""
        with self._guard:
            workers = [self._workers.get(name), *(each.worker for each in self._formers.get(name, ()))]
        left = [effect for worker in workers if worker is not None for effect in worker.left()]
        return any(isinstance(effect, CancelSubmitted) for effect in left)

    def exchange(self, says: SiteAgentMessage) -> Future[bytes]:
        """Process a site agent's exchange; the encoded answer, which may take long. Raises `UnknownSite`."""
        with self._guard:
            worker = self._workers.get(says.site)
        if not isinstance(worker, AgentSite):
            raise UnknownSite(
                "no site of this name has a site agent",
                subject=f"site {says.site[:64]}",
                next_step="its entry in sites.yaml says `started_by: agent`",
            )
        return worker.exchange(says)

    def scheduler(self, name: str) -> str:
        """The batch system of a site and its version, as far as known."""
        with self._guard:
            worker = self._workers.get(name)
        return worker.scheduler if worker is not None else ""

    def has_agent(self, name: str) -> bool:
        """Whether a site has a site agent, which brings files there and removes them itself."""
        with self._guard:
            return isinstance(self._workers.get(name), AgentSite)

    def want_files(self, site: str, orders: Sequence[FileOrder]) -> bool:
        """Queue orders for the files of a site with a site agent; False for any other, whose files the service brings."""
        with self._guard:
            worker = self._workers.get(site)
            if not isinstance(worker, AgentSite):
                return False
            worker.want(*orders)
            return True

    def cache_of(self, name: str) -> str:
        """The folder at a site that its site agent brings files to; empty if it has told none."""
        with self._guard:
            worker = self._workers.get(name)
        return worker.cache if isinstance(worker, AgentSite) else ""

    def ordered_fetch(self, key: str, *, site: str | None) -> FetchFile | None:
        """The file that a site agent is to bring to its site under a key; of any site, if none is named."""
        with self._guard:
            workers = [self._workers.get(site)] if site is not None else list(self._workers.values())
        found = (worker.ordered_fetch(key) for worker in workers if isinstance(worker, AgentSite))
        return next((each for each in found if each is not None), None)

    def last_error(self, name: str) -> str:
        """The last error of a site that delays work there; empty if there is none."""
        report = self._last_reports.get(name)
        return report.message if report is not None else ""

    def _report(self, report: AnyReport) -> None:
        if isinstance(report, SiteSeen):
            self._last_reports[report.site] = report
        self._tell(report)

    def want(self, site: str, effects: Sequence[AtSite]) -> None:
        """Queue orders for a site; they are dropped if the site has no worker."""
        with self._guard:  # until they are queued: a new worker may replace this one
            worker = self._workers.get(site)
            for former in self._formers.get(site, ()):
                there = [each for each in effects if isinstance(each, CancelSubmitted) and each.key in former.keys]
                former.worker.want(*there)
                effects = [each for each in effects if each not in there]
            if worker is not None:
                worker.want(*effects)

    def _made(self, name: str, connection: SiteConnection) -> SiteWorker | AgentSite:
        # Batch jobs at a former batch system are not missed at this one.
        def expected() -> Collection[str]:
            elsewhere = self._elsewhere(name)
            return [key for key in self._expected(name) if key not in elsewhere]

        unheard = partial(self._unheard, name)
        unknown, last_report, report = (
            partial(self._unknown, name),
            self._last_reports.get(name, first_report(name)),
            self._report,
        )
        if isinstance(connection, AgentSettings):
            return AgentSite(
                connection, report=report, expected=expected, unknown=unknown, unheard=unheard, last_report=last_report
            )
        return SiteWorker(
            name,
            connection,
            report=report,
            expected=expected,
            unknown=unknown,
            unheard=unheard,
            limiter=self._limiter,
            last_report=last_report,
        )


def first_report(site: str) -> SiteSeen:
    """The report before a site has answered: packages should rather go elsewhere."""
    return SiteSeen(site=site, answers=False, message=NOT_YET)


def split_connections(
    connections: Mapping[str, SiteConnection],
) -> tuple[dict[str, SiteAccess], dict[str, AgentSettings]]:
    """The sites that the service reaches directly, and those with site agents."""
    agents = {name: connection for name, connection in connections.items() if isinstance(connection, AgentSettings)}
    return {
        name: connection for name, connection in connections.items() if not isinstance(connection, AgentSettings)
    }, agents


def has_activity(site: str, engine: Engine) -> bool:
    """Whether a site has something that is not known to have ended."""
    state = engine.state.sites.by_name.get(site)
    return state is not None and bool(state.requests or state.pilots or state.bound)


def expected_at(site: str, engine: Engine) -> list[str]:
    """The keys that a site accepted and that have not ended: pilots, and attempts with batch jobs of their own."""
    state = engine.state.sites.by_name.get(site)
    if state is None:
        return []
    bound = [key for key, attempt in state.bound.items() if attempt.queued]
    return [key for key, request in state.requests.items() if request.native_id] + bound


def unheard_at(site: str, engine: Engine) -> list[str]:
    """Those of them that have not contacted the service."""
    state = engine.state.sites.by_name.get(site)
    return [key for key in expected_at(site, engine) if not made_contact(state, key)] if state is not None else []


# Automatic probes: so many at once, and not too often at one site.
#
# A probe costs one pilot that ends at once. So the cost is limited twice: by the number in progress, and by the
# interval for each site.


def sites_to_probe(engine: Engine) -> list[str]:
    """The sites worth probing: not those hibernated by an operator, nor this computer."""
    sites = [each for each in engine.state.sites.by_name.values() if not each.removed and each.site.kind != "local"]
    return [each.name for each in sites if each.profile.sleep is None or each.profile.sleep.reason != "by-hand"]


def probes_under_way(engine: Engine) -> list[str]:
    """The sites being probed."""
    sites = engine.state.sites.by_name.values()
    return [site.name for site in sites if any(is_probe(key, site=site.name) for key in site.requests)]


class Prober:
    """Probes sites, the longest unprobed first."""

    def __init__(
        self, probe: Callable[[str], None], *, at_once: int, every_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Take the function that probes a site, and raises if that is refused."""
        self._probe = probe
        self._at_once = at_once
        self._every_seconds = every_seconds
        self._clock = clock
        self._begun_at: dict[str, float] = {}

    def look(self, sites: Collection[str], *, under_way: Collection[str]) -> list[str]:
        """Probe the sites that are due; returns their names."""
        if not self._at_once:
            return []
        now = self._clock()
        self._begun_at = {site: at for site, at in self._begun_at.items() if site in sites}
        due = [site for site in sites if now >= self._begun_at.get(site, float("-inf")) + self._every_seconds]
        due = [site for site in due if site not in under_way]
        due.sort(key=lambda site: self._begun_at.get(site, float("-inf")))
        chosen = due[: max(0, self._at_once - len(under_way))]
        for site in chosen:
            self._begun_at[site] = now
            try:
                self._probe(site)
            except PilotageError as refused:
                log.info("site %s is not probed: %s", site, refused)
        return chosen
