"""Checks the number of pilots by forecast: every plan against its rule, computed here the slow and plain way, and what follows from it.

The plan comes with what it was made from. What it says of pilots is held against the events; the rest is taken as given. A pilot of
one package after the other takes its packages when it starts and whenever one is done; how likely a queued pilot has started by when follows
from the latencies and from how long it has waited.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

import msgspec

from pilotage.book.codec import Checked
from pilotage.model.events import payloads
from pilotage.simulator.checkers.records import Record, Rules, Violation

PROVISIONING = "provisioning"
_STARTS_MIN = 30
_YOUNG_SECONDS = 300.0
_SLACK = 0.12  # the engine divides time into parts, and puts pilots that have waited for nearly the same time together
_SPARE = 0.25  # of the tolerance, for withdrawing queued pilots
_WAIT_SECONDS = 1.0  # by which a wait may differ
_HALVINGS = 30
_ROUNDS_MAX = 400  # packages of a pilot that are followed one by one


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of the engine for one site: what it was made from, and the numbers of queued pilots that it wants and keeps."""

    site: str
    wall_time: float
    starts: int
    latencies: tuple[tuple[float, float], ...]  # times, and the share that has started by then
    work_seconds: float
    package_seconds: float
    running: tuple[tuple[float, float], ...]
    queued_seconds: tuple[float, ...]
    lifetime_seconds: float
    start_cost_seconds: float
    made_at: float
    begun_at: float  # when this work began
    since_seconds: float
    more: int  # that the work could use, and that are allowed
    within: float
    wanted: int
    kept: int
    best_queued: int


class _Queued(msgspec.Struct, frozen=True, kw_only=True):
    site: str
    requested_at: float
    started: bool = False


class Provisioning:
    """Follows requested pilots by the events, and checks plans, requests and withdrawals."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._sites = {site.name: site for site in rules.sites}
        self._durable: dict[str, _Queued] = {}
        self._known: dict[str, _Queued] = {}
        self._durable_starts = dict(rules.known_starts)
        self._known_starts = dict(rules.known_starts)
        self._spent: dict[str, tuple[float, float]] = {}  # by site: since when, and what withdrawn pilots have cost
        self.counts = {"plans": 0, "lowered": 0, "withdrawn": 0}

    def on_written(self, checked: Checked) -> None:
        """An event is durable."""
        _count_start(self._durable_starts, checked)
        self._fold(self._durable, checked)

    def on_began(self) -> None:
        """The service has started again: it knows what is durable."""
        self._known, self._known_starts = dict(self._durable), dict(self._durable_starts)

    def on_decided(self, events: Sequence[Checked], plans: Iterable[Planned]) -> None:
        """One step: its events, and the plans that were made in it."""
        by_site = {plan.site: plan for plan in plans}
        steady = {checked.event.site for checked in events if checked.event.site is not None}
        requested: dict[str, int] = {}
        withdrawn: dict[str, list[str]] = {}
        for checked in events:
            _count_start(self._known_starts, checked)
            event, data = checked.event, checked.data
            key, ours = event.pilot or "", event.source == "service"
            known = self._known.get(key)
            if ours and known is not None and isinstance(data, payloads.PilotEnded) and data.reason == "withdrawn":
                withdrawn.setdefault(known.site, []).append(key)
                continue
            if ours and known is None and isinstance(data, payloads.PilotRequested) and not _is_test(key, data.site):
                requested[data.site] = requested.get(data.site, 0) + 1
                continue
            self._fold(self._known, checked)
        for plan in by_site.values():
            if plan.site not in steady:
                self._check_plan(plan)
                self._check_requests(plan, requested.get(plan.site, 0))
                self._check_withdrawals(plan, withdrawn.get(plan.site, []))
        for checked in events:
            self._fold(self._known, checked)

    # --- checks ---

    def _check_plan(self, plan: Planned) -> None:
        fail = self._failing(plan.site)
        queued = sorted(plan.wall_time - each.requested_at for each in self._queued(plan.site))
        if len(queued) != len(plan.queued_seconds):
            fail(f"a plan counts {len(plan.queued_seconds)} queued pilots, and there are {len(queued)}")
        for mine, its in zip(queued, sorted(plan.queued_seconds), strict=True):
            if abs(max(0.0, mine) - its) > _WAIT_SECONDS:
                fail(f"a plan says that a pilot has waited {its:.0f} s, and it has waited {mine:.0f} s")
        if (known := self._known_starts.get(plan.site, 0)) < _STARTS_MIN:
            fail(f"a forecast was made from {plan.starts} starts, and {known} are known")
        if plan.wanted > len(queued) + plan.more:
            fail(f"{plan.wanted} queued pilots are wanted, and the work could use {len(queued) + plan.more}")
        model = _Model(plan)
        best, promise = model.finish(plan.best_queued), 1.0 + plan.within
        if model.finish(plan.wanted) > promise * best * (1.0 + _SLACK):
            fail(
                f"{plan.wanted} queued pilots finish too late: in {model.finish(plan.wanted):.0f} s, the best in {best:.0f} s"
            )
        if plan.wanted and model.finish(plan.wanted - 1) * (1.0 + _SLACK) < promise * best:
            fail(f"{plan.wanted} queued pilots are wanted, and fewer would do")
        if plan.best_queued > len(queued):
            without = model.finish(plan.best_queued - 1) - plan.package_seconds
            if without * (1.0 + _SLACK) < model.start_seconds:
                fail(
                    f"a pilot is planned that is expected to start in {model.start_seconds:.0f} s,"
                    f" and the last package is taken in {without:.0f} s without it"
                )
        self.counts["plans"] += 1
        self.counts["lowered"] += plan.wanted < len(queued) + plan.more

    def _check_requests(self, plan: Planned, requested: int) -> None:
        missing = max(0, min(plan.more, plan.wanted - len(plan.queued_seconds)))
        if requested != missing:
            self._failing(plan.site)(f"{requested} pilots were requested, and {missing} are missing")

    def _check_withdrawals(self, plan: Planned, withdrawn: list[str]) -> None:
        fail = self._failing(plan.site)
        if not withdrawn:
            return
        self.counts["withdrawn"] += len(withdrawn)
        asked = sorted((each.requested_at for each in self._queued(plan.site)), reverse=True)
        surplus = len(asked) - plan.kept
        if len(withdrawn) > surplus:
            fail(f"{len(withdrawn)} of {len(asked)} queued pilots were withdrawn, and {plan.kept} are needed")
        if any(self._known[key].requested_at < asked[surplus - 1] for key in withdrawn):
            fail("a queued pilot was withdrawn, and newer ones are kept for the work")
        if any(plan.wall_time - self._known[key].requested_at < _YOUNG_SECONDS for key in withdrawn):
            fail("a queued pilot was withdrawn soon after its request, though work is left")
        model, left = _Model(plan), len(asked) - len(withdrawn)
        begun_at, spent = self._spent.get(plan.site, (-math.inf, 0.0))
        if begun_at < plan.begun_at:
            spent = 0.0
        best = model.finish(plan.best_queued)
        spent += model.finish(left) - best
        self._spent[plan.site] = plan.begun_at, spent
        if spent > (_SPARE * plan.within + _SLACK) * (plan.since_seconds + best):
            fail(f"{len(withdrawn)} queued pilots were withdrawn: in all, that makes the work {spent:.0f} s longer")

    # --- pilots, by the events ---

    def _queued(self, site: str) -> list[_Queued]:
        return [each for key, each in self._known.items() if self._waits(each, site, key)]

    def _waits(self, pilot: _Queued, site: str, key: str) -> bool:
        return pilot.site == site and not pilot.started and not _is_test(key, site)

    def _fold(self, pilots: dict[str, _Queued], checked: Checked) -> None:
        event, data = checked.event, checked.data
        name = event.pilot or ""
        if event.source == "agent" and event.stream != name:
            return
        match data:
            case payloads.PilotRequested() if name not in pilots:
                pilots[name] = _Queued(site=data.site, requested_at=event.time)
            case payloads.PilotStarted():
                asked = pilots.get(data.request or "")
                if asked is not None and asked.site == data.site:
                    pilots[data.request or ""] = msgspec.structs.replace(asked, started=True)
            case payloads.PilotEnded():
                pilots.pop(name, None)
            case _:
                pass

    def _failing(self, site: str) -> Callable[[str], None]:
        def fail(message: str) -> None:
            raise Violation(PROVISIONING, message, subject=site, events=self._record.tape.about(None, None))

        return fail


def _count_start(starts: dict[str, int], checked: Checked) -> None:
    if isinstance(checked.data, payloads.PilotStarted):
        starts[checked.data.site] = starts.get(checked.data.site, 0) + 1


class _Model:
    """When the work of a plan is done with some number of queued pilots."""

    def __init__(self, plan: Planned) -> None:
        self._plan = plan
        self._times = [time for time, _ in plan.latencies]
        self._shares = [share for _, share in plan.latencies]
        self._oldest_first = sorted(plan.queued_seconds, reverse=True)
        steps = zip(self._times, self._shares, [0.0, *self._shares[:-1]], strict=True)
        self.start_seconds = (
            plan.start_cost_seconds
            + math.fsum(time * (share - before) for time, share, before in steps) / (self._shares[-1])
        )

    def finish(self, queued: int) -> float:
        """In so many seconds the work is done; infinite if never."""
        plan, low, high = self._plan, 0.0, 1.0
        waits = self._oldest_first[:queued]
        new = queued - len(waits)
        while self._taken(high, waits, new) < plan.work_seconds * (1.0 - 1e-9):
            low, high = high, 2.0 * high
            if high > 1e8:
                return math.inf
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            if self._taken(middle, waits, new) >= plan.work_seconds * (1.0 - 1e-9):
                high = middle
            else:
                low = middle
        return high + plan.package_seconds

    def _taken(self, at: float, waits: Sequence[float], new: int) -> float:
        plan, package = self._plan, self._plan.package_seconds
        found = math.fsum(count * min(at, life - package / 2.0) for count, life in plan.running if life >= package)
        found += math.fsum(package * self._packages(at, wait) for wait in waits)
        return found + (new * package * self._packages(at, -1.0) if new else 0.0)

    def _packages(self, at: float, waited: float) -> float:
        """The expected number of packages that a pilot has taken, which has waited so long; new ones have not waited."""
        plan, package = self._plan, self._plan.package_seconds
        working = plan.lifetime_seconds - plan.start_cost_seconds
        since = at - plan.start_cost_seconds
        rounds = int(min(since / package + 1.0, working / package + 1e-9, 1e9)) if since >= 0.0 else 0
        before = self._started(waited) if waited > 0.0 else 0.0
        if before >= 1.0 - 1e-6:
            return 0.0
        step = max(1, math.ceil(rounds / _ROUNDS_MAX))
        total = sum(
            min(step, rounds - number)
            * max(0.0, self._started(max(0.0, waited) + since - package * (number + (step - 1) / 2)) - before)
            for number in range(0, rounds, step)
        )
        return total / (1.0 - before)

    def _started(self, at: float) -> float:
        place = bisect_right(self._times, at)
        return self._shares[place - 1] if place else 0.0


def _is_test(key: str, site: str) -> bool:
    return key.startswith((f"{site}-probe-", f"{site}-trial-"))
