"""Who acts at each site: a thread that submits there, or what keeps things for the agent of the site.

Sites come and go while a service runs; another way to a site takes the place of the one before. Batch systems keep what was
started, and it is known by its keys; what was wanted and is not done goes on to the next: nothing is lost by that.
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
from pilotage.engine.state.sites import has_spoken
from pilotage.engine.transitions.site_observations import is_probe
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.operations import CancelSubmitted
from pilotage.model.exchange.reports import AnyReport, Gone, SiteEffect, SiteNoticed, SiteSays, SiteSeen
from pilotage.ports import SiteAccess
from pilotage.service.errors import UnknownSite
from pilotage.service.sites.agent_worker import NOT_YET, AgentSettings, AgentSite
from pilotage.service.sites.worker import STOP_SECONDS, AtSite, SiteWorker, StartLimiter

log = logging.getLogger(__name__)

LOOKS_MAX, HANGING_MAX = 16, 128
"""So many looks at sites begin at once: each may be a command, or an ssh. And so many hang, of sites that did not answer before."""

Way = SiteAccess | AgentSettings
"""How things get to a site: the service itself submits there, or the agent of the site does."""


class _Former(NamedTuple):
    """Who acts at the batch system that the entry of a site named before, and what was submitted there."""

    worker: SiteWorker
    keys: frozenset[str]


class SiteWorkers:
    """The workers by the names of their sites; any thread may call them."""

    def __init__(
        self,
        ways: Mapping[str, Way],
        *,
        report: Callable[[AnyReport], None],
        expected: Callable[[str], Collection[str]],
        unknown: Callable[[str, Collection[str]], Collection[str]] = lambda _, __: (),
        unheard: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """Take a way to each site, who is told of what is seen, and who knows what should be there; nothing runs yet.

        `unknown` tells which of some keys nobody knows: what has these is ended. `unheard` tells what should be at a site
        and has not spoken.
        """
        self._tell = report
        self._seen: dict[str, SiteSeen] = {}  # what was last told of each, whoever acted there
        self._expected = expected
        self._unknown = unknown
        self._unheard = unheard
        self._guard = threading.Lock()
        self._running = False
        self._limiter = StartLimiter(LOOKS_MAX, hanging_max=HANGING_MAX)
        self.behind: list[str] = []  # what could not be ended at sites when all this ended, in words
        self._formers: dict[str, tuple[_Former, ...]] = {}
        self._workers = {name: self._made(name, way) for name, way in ways.items()}

    def start(self) -> None:
        """Begin at all of them."""
        with self._guard:
            self._running = True
            for name, worker in self._workers.items():
                self._tell(not_yet(name))
                worker.start()

    def withdraw(self, *, patience_seconds: float) -> None:
        """Wait until the agents of sites have heard what is to be ended there; all of them together not for long."""
        until = time.monotonic() + patience_seconds
        with self._guard:
            agents = [worker for worker in self._workers.values() if isinstance(worker, AgentSite)]
        for worker in agents:
            worker.withdraw(patience_seconds=until - time.monotonic())

    def stop(self) -> None:
        """End; what runs at the sites goes on."""
        with self._guard:
            self._running = False
            formers = [each.worker for some in self._formers.values() for each in some]
            workers = [*self._workers.values(), *formers]
        for worker in workers:
            if isinstance(worker, SiteWorker):
                worker.leave()
        until = time.monotonic() + STOP_SECONDS  # of all of them together
        for worker in workers:
            if isinstance(worker, SiteWorker):
                worker.stop(patience_seconds=max(0.0, until - time.monotonic()))
            else:
                worker.stop()
        self.behind = [worker.behind for worker in workers if worker.behind]
        for told in self.behind:
            log.warning("%s", told)

    @property
    def names(self) -> list[str]:
        """The sites at which somebody acts."""
        with self._guard:
            return list(self._workers)

    def put(self, name: str, way: Way, *, former: Way | None = None) -> None:
        """Go to a site in this way from now on; what was wanted and is not done is wanted of it.

        With a way to the batch system of before, what was submitted there is looked at and ended there.
        """
        with self._guard:
            before = self._workers.get(name)
        if before is not None:
            before.stop()  # before the other begins: two at one site would both submit
            self._tell(SiteNoticed(site=name))  # what is there is looked at anew
        else:
            self._seen.pop(name, None)  # what was told of one that is back may be long ago
        left = before.left() if before is not None else []
        if former is not None and not isinstance(former, AgentSettings):
            left = self._keep_former(name, former, left)
        worker = self._made(name, way)
        with self._guard:
            worker.want(*left)
            self._workers[name] = worker
            if self._running:
                if name not in self._seen:
                    self._tell(not_yet(name))
                worker.start()

    def _keep_former(self, name: str, way: SiteAccess, left: Sequence[SiteEffect]) -> list[SiteEffect]:
        """Have somebody see to what was submitted to another batch system; what is left to do besides."""
        keys = frozenset({*self._expected(name), *(each.key for each in left if isinstance(each, CancelSubmitted))})
        keys -= self._elsewhere(name)
        if not keys:
            way.close()
            return [*left]
        worker = SiteWorker(
            name,
            way,
            report=self._report_of_former,
            expected=lambda: keys.intersection(self._expected(name)),
            unknown=partial(self._unknown, name),
            limiter=self._limiter,
        )
        there = [each for each in left if isinstance(each, CancelSubmitted) and each.key in keys]
        worker.want(*there)
        with self._guard:
            self._formers[name] = (*self._formers.get(name, ()), _Former(worker, keys))
            if self._running:
                worker.start()
        return [each for each in left if each not in there]

    def _report_of_former(self, report: AnyReport) -> None:
        """What ended at a batch system of before; whether that one answers says nothing of the site."""
        if isinstance(report, Gone):
            self._tell(report)

    def _elsewhere(self, name: str) -> frozenset[str]:
        """The keys of what was submitted to batch systems that the entry of a site named before."""
        return frozenset().union(*(each.keys for each in self._formers.get(name, ())))

    def release_formers(self) -> None:
        """Nobody acts any longer at batch systems of before at which nothing is left."""
        with self._guard:
            formers = [(name, each) for name, some in self._formers.items() for each in some]
        for name, each in formers:
            if not each.worker.left() and each.keys.isdisjoint(self._expected(name)):
                with self._guard:
                    some = tuple(other for other in self._formers.pop(name) if other is not each)
                    self._formers.update({name: some} if some else {})
                each.worker.stop()

    def remove(self, name: str) -> None:
        """Do nothing more at a site."""
        with self._guard:
            worker = self._workers.pop(name, None)
            formers = self._formers.pop(name, ())
        if worker is not None:
            worker.stop()
        for each in formers:
            each.worker.stop()

    def owes(self, name: str) -> bool:
        """Whether something is to be ended at a site that is not known to have ended."""
        with self._guard:
            workers = [self._workers.get(name), *(each.worker for each in self._formers.get(name, ()))]
        left = [effect for worker in workers if worker is not None for effect in worker.left()]
        return any(isinstance(effect, CancelSubmitted) for effect in left)

    def exchange(self, says: SiteSays) -> Future[bytes]:
        """What the agent of a site says; the answer for the wire, which may be long in coming. Raises `UnknownSite`."""
        with self._guard:
            worker = self._workers.get(says.site)
        if not isinstance(worker, AgentSite):
            raise UnknownSite(
                "no site of this name has an agent of its own",
                subject=f"site {says.site[:64]}",
                next_step="its entry in sites.yaml says `started_by: agent`",
            )
        return worker.exchange(says)

    def said(self, name: str) -> str:
        """What a site said last that kept things from being done there; nothing where all is well."""
        seen = self._seen.get(name)
        return seen.message if seen is not None else ""

    def _report(self, report: AnyReport) -> None:
        if isinstance(report, SiteSeen):
            self._seen[report.site] = report
        self._tell(report)

    def want(self, site: str, effects: Sequence[AtSite]) -> None:
        """Have things done at a site, in order; nobody does them where nobody acts."""
        with self._guard:  # until it is handed over: another may take the place of who has it
            worker = self._workers.get(site)
            for former in self._formers.get(site, ()):
                there = [each for each in effects if isinstance(each, CancelSubmitted) and each.key in former.keys]
                former.worker.want(*there)
                effects = [each for each in effects if each not in there]
            if worker is not None:
                worker.want(*effects)

    def _made(self, name: str, way: Way) -> SiteWorker | AgentSite:
        # What was submitted to another batch system before is not missed at this one.
        def expected() -> Collection[str]:
            elsewhere = self._elsewhere(name)
            return [key for key in self._expected(name) if key not in elsewhere]

        unheard = partial(self._unheard, name)
        unknown, told, report = partial(self._unknown, name), self._seen.get(name, not_yet(name)), self._report
        if isinstance(way, AgentSettings):
            return AgentSite(way, report=report, expected=expected, unknown=unknown, unheard=unheard, told=told)
        return SiteWorker(
            name,
            way,
            report=report,
            expected=expected,
            unknown=unknown,
            unheard=unheard,
            limiter=self._limiter,
            told=told,
        )


def not_yet(site: str) -> SiteSeen:
    """Nothing was heard of a site so far: until it answers, what could wait there had better go elsewhere."""
    return SiteSeen(site=site, answers=False, message=NOT_YET)


def ways_of(ways: Mapping[str, Way]) -> tuple[dict[str, SiteAccess], dict[str, AgentSettings]]:
    """The sites at which the service itself submits, and those whose own agents do."""
    agents = {name: way for name, way in ways.items() if isinstance(way, AgentSettings)}
    return {name: way for name, way in ways.items() if not isinstance(way, AgentSettings)}, agents


def has_something(site: str, engine: Engine) -> bool:
    """Whether anything was started at a site that is not known to be over."""
    state = engine.state.sites.by_name.get(site)
    return state is not None and bool(state.requests or state.pilots or state.bound)


def expected_at(site: str, engine: Engine) -> list[str]:
    """What a site said that it took, and that is not over: pilots, and attempts with a batch job of their own."""
    state = engine.state.sites.by_name.get(site)
    if state is None:
        return []
    bound = [key for key, attempt in state.bound.items() if attempt.queued]
    return [key for key, request in state.requests.items() if request.native_id] + bound


def unheard_at(site: str, engine: Engine) -> list[str]:
    """Those of the same that have not spoken."""
    state = engine.state.sites.by_name.get(site)
    return [key for key in expected_at(site, engine) if not has_spoken(state, key)] if state is not None else []


# Probes that a service starts by itself: so many at once, and none at a site more often than it may.
#
# What a probe costs is one pilot that ends at once. So the cost is bounded twice: by how many are under way, and by
# how often one site is asked.


def sites_to_probe(engine: Engine) -> list[str]:
    """The sites of which a probe may tell something: not those that somebody put to sleep, nor the computer that we are on."""
    sites = [each for each in engine.state.sites.by_name.values() if not each.removed and each.site.kind != "local"]
    return [each.name for each in sites if each.place.sleep is None or each.place.sleep.reason != "by-hand"]


def probes_under_way(engine: Engine) -> list[str]:
    """The sites that are being probed."""
    sites = engine.state.sites.by_name.values()
    return [site.name for site in sites if any(is_probe(key, site=site.name) for key in site.requests)]


class Prober:
    """Has sites probed, the one that was asked longest ago first."""

    def __init__(
        self, probe: Callable[[str], None], *, at_once: int, every_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Take what has a site probed, which raises where it is refused."""
        self._probe = probe
        self._at_once = at_once
        self._every_seconds = every_seconds
        self._clock = clock
        self._begun_at: dict[str, float] = {}

    def look(self, sites: Collection[str], *, under_way: Collection[str]) -> list[str]:
        """Have probed what is due, and may be; their names."""
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
