"""Checks healing: each treatment follows from a decision that names it, and none breaks the limits that hold in all modes.

Waste is reckoned anew from the events: the slot time of attempts that came to nothing, from when healing asked for a copy of their
package. It is a lower bound, and the slot time of a job an upper one, so that only real overruns are told.
"""

from __future__ import annotations

import math
from typing import NoReturn

from pilotage.book.codec import Checked
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.events.healing_payloads import HealingDecided, Treated
from pilotage.simulator.checkers.records import AttemptTrace, JobTrace, PackageTrace, Record, Rules

HEALING = "healing"
_CAUSES = {  # treatment → the incident that it treats
    "replicate": "blocked-activity",
    "abort-replica": "blocked-activity",
    "reschedule": "blocked-activity",
    "stop-activity": "failing-activity",
    "copy-file": "input-unavailable",
    "ungroup": "too-coarse",
}
_STEPS = {"setup": 0, "inputs": 1, "application": 2, "outputs": 3}
_SLACK_SECONDS = 60.0  # the service hears of ends later than they are


class _Slot:
    """The time that an attempt takes a slot."""

    __slots__ = ("began_at", "raced_at", "step", "until")

    def __init__(self, began_at: float, raced_at: float | None) -> None:
        self.began_at = began_at
        self.raced_at = raced_at  # when healing gave it a rival
        self.until = math.inf  # when it was expected to end
        self.step = 0  # the latest phase that it told of


class _Account:
    """The slot time of a job, and what healing wasted of it."""

    __slots__ = ("finished", "open", "slot_seconds", "wasted_seconds")

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], _Slot] = {}
        self.slot_seconds = self.wasted_seconds = 0.0
        self.finished: dict[str, int] = {}  # successes by activity

    def total_seconds(self, now: float) -> float:
        """The slot time so far."""
        return self.slot_seconds + sum(max(0.0, now - each.began_at) for each in self.open.values())


class Healed:
    """Checks the decisions of healing, and what follows from them."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._rules = rules
        self._decisions: dict[tuple[str, int], HealingDecided] = {}
        self._accounts: dict[str, _Account] = {}
        self._asked: set[tuple[str, str]] = set()  # packages of which healing wanted a copy
        self._replicas: set[tuple[str, str, int]] = set()  # attempts beside others
        self._is_clock_true = True
        self.counts: dict[str, int] = {}
        """How many treatments of each kind were checked."""

    def on_clock_set(self) -> None:
        """The clock of the service was set: what it reckons in time says nothing any more."""
        self._is_clock_true = False

    def on_written(self, checked: Checked) -> None:
        """Check a durable event, before the state machine of packages takes it."""
        event, data = checked.event, checked.data
        match data:
            case HealingDecided():
                self._on_decided(event, data)
            case payloads.ReplicaWanted() if data.cause == "healing":
                self._on_wanted(event, data)
            case payloads.AttemptLost() if data.reason == "healed":
                self._on_given_up(event, data)
            case _:
                pass
        self._reckon(event, data)

    # --- decisions --------------------------------------------------------------------------------------------------

    def _on_decided(self, event: Event, data: HealingDecided) -> None:
        job = self._record.job(event.job or "")
        if self._rules.is_healing_off:
            self._fail_job(job, f"decision {event.n} was made although healing is off")
        self._decisions[job.name, event.n] = data
        for place in (data.drawn, data.instead):
            if place > len(data.incidents) or (place and data.incidents[place - 1].level < 2):
                self._fail_job(job, f"decision {event.n} drew incident {place} of {data.incidents}")
        acted_on = data.incidents[(data.instead or data.drawn) - 1].kind if data.drawn else ""
        for each in data.treated:
            self.counts[each.treatment] = self.counts.get(each.treatment, 0) + 1
            if _CAUSES.get(each.treatment) != acted_on:
                self._fail_job(job, f"decision {event.n} acted on {acted_on or 'nothing'} by {each.treatment}")

    def _listed(self, event: Event, decision: int, treatments: tuple[str, ...]) -> Treated | None:
        """What a decision says of the package of an event; an unnamed treatment of a long list counts."""
        said = self._decisions.get((event.job or "", decision))
        for each in said.treated if said is not None else ():
            if each.treatment in treatments and each.package == event.package and each.attempt in (None, event.attempt):
                return each
        return Treated(treatment="replicate") if said is not None and said.more else None

    # --- copies -----------------------------------------------------------------------------------------------------

    def _on_wanted(self, event: Event, data: payloads.ReplicaWanted) -> None:
        package = self._package(event)
        job, template = package.job, package.template
        if self._listed(event, data.decision, ("replicate",)) is None:
            self._fail(package, f"healing wanted a copy, and decision {data.decision} does not say so")
        if event.epoch == package.epoch and package.wanted > package.replicated:
            self._fail(package, "healing wanted a copy while another one was wanted and not begun")
        queued = [each.number for each in self._live(package) if not each.leased]
        if queued:
            self._fail(package, f"healing wanted a copy while attempt {queued[0]} was queued")
        if template is not None and template.side_effects:
            self._fail(package, "healing wanted a copy of a package with side effects")
        if any(each.early for each in self._live(package)):
            self._fail(package, "healing wanted a copy of a package that reads what others still write")
        account = self._account(event)
        known = account.finished.get(template.activity, 0) if template is not None else self._rules.healed_after
        if known < self._rules.healed_after:
            self._fail(package, f"healing wanted a copy when {known} packages of its activity had finished")
        self._check_waste(job, account)
        now = self._record.time_of(event)
        self._asked.add((job.name, package.place))
        for (place, _), slot in account.open.items():
            if place == package.place and slot.raced_at is None:
                slot.raced_at = now

    def _check_waste(self, job: JobTrace, account: _Account) -> None:
        allowed = self._rules.waste_max * account.total_seconds(self._record.now) + _SLACK_SECONDS
        if self._is_clock_true and self._rules.waste_max and account.wasted_seconds > allowed:
            what = f"{account.wasted_seconds:.0f} s were wasted, and {allowed:.0f} s are allowed"
            self._fail_job(job, f"healing wanted a copy beyond its budget: {what}")

    def _on_given_up(self, event: Event, data: payloads.AttemptLost) -> None:
        package = self._package(event)
        said = self._listed(event, data.decision, ("abort-replica", "reschedule"))
        if said is None:
            self._fail(
                package, f"healing gave up attempt {event.attempt}, and decision {data.decision} does not say so"
            )
        account = self._account(event)
        slots = {
            each.number: slot
            for each in self._live(package)
            if (slot := account.open.get((package.place, each.number))) is not None
        }
        mine = slots.get(event.attempt or 0)
        step = mine.step if mine is not None else -1
        others = [slot.step for number, slot in slots.items() if number != event.attempt]
        if said.treatment == "abort-replica" and step >= max(others, default=-1):
            self._fail(package, f"healing gave up attempt {event.attempt}, which was as far as any other")
        if said.treatment == "reschedule" and (others or step >= _STEPS["application"]):
            what = "while others ran" if others else "whose application ran"
            self._fail(package, f"healing had attempt {event.attempt} start anew {what}")

    # --- slot time --------------------------------------------------------------------------------------------------

    def _reckon(self, event: Event, data: payloads.Payload) -> None:
        """Note what an event says of the time that attempts take."""
        match data:
            case payloads.AttemptCreated():
                if data.replica:
                    self._replicas.add((event.job or "", event.package or "", event.attempt or 0))
                if data.lease_seconds is not None:
                    self._begin(event)
            case payloads.AttemptStarted() if event.source == "service":
                self._begin(event)
            case payloads.PhaseEntered():
                for slot in self._slots(event):
                    slot.step = max(slot.step, _STEPS.get(data.phase, 0))
            case (
                payloads.AttemptSuspected() | payloads.CommitGranted() | payloads.CancelAccepted() | payloads.Aborted()
            ):
                # From here on they are expected to end: what they take longer is not the doing of healing.
                for slot in self._slots(event, others=isinstance(data, payloads.CommitGranted)):
                    slot.until = min(slot.until, self._record.time_of(event))
            case payloads.AttemptFinished():
                self._on_finished(event, data)
            case payloads.AttemptLost():
                self._end(event, came_to_nothing=True)
            case _:
                pass

    def _slots(self, event: Event, *, others: bool = False) -> list[_Slot]:
        """The slots that an event is about: of its attempt, of all of its package, or of the others of its package."""
        return [
            slot
            for (place, number), slot in self._account(event).open.items()
            if event.package in (place, None) and (event.attempt is None or (number == event.attempt) is not others)
        ]

    def _begin(self, event: Event) -> None:
        at, place = self._record.time_of(event), event.package or ""
        is_copy = (event.job or "", place, event.attempt or 0) in self._replicas
        raced = is_copy and (event.job or "", place) in self._asked
        self._account(event).open.setdefault((place, event.attempt or 0), _Slot(at, at if raced else None))

    def _on_finished(self, event: Event, data: payloads.AttemptFinished) -> None:
        succeeded = data.exit_code == "SUCCESS"
        template = self._package(event).template
        if succeeded and template is not None:
            finished = self._account(event).finished
            finished[template.activity] = finished.get(template.activity, 0) + 1
        self._end(event, came_to_nothing=not succeeded)

    def _end(self, event: Event, *, came_to_nothing: bool) -> None:
        account = self._account(event)
        now = self._record.time_of(event) if event.source == "service" else self._record.now
        slot = account.open.pop((event.package or "", event.attempt or 0), None)
        if slot is None:
            return
        account.slot_seconds += max(0.0, now - slot.began_at)
        if came_to_nothing and slot.raced_at is not None:
            account.wasted_seconds += max(0.0, min(now, slot.until) - max(slot.raced_at, slot.began_at))

    # --- finding ----------------------------------------------------------------------------------------------------

    def _account(self, event: Event) -> _Account:
        return self._accounts.setdefault(event.job or "", _Account())

    def _package(self, event: Event) -> PackageTrace:
        return self._record.job(event.job or "").package(event.package or "")

    def _live(self, package: PackageTrace) -> list[AttemptTrace]:
        return [each for each in package.attempts.values() if package.is_live(each, self._record.ended_pilots)]

    def _fail(self, package: PackageTrace, message: str) -> NoReturn:
        raise self._record.broken(HEALING, message, package)

    def _fail_job(self, job: JobTrace, message: str) -> NoReturn:
        raise self._record.broken_job(HEALING, message, job)
