"""Planted bugs in who goes first, in how long a silence is, in how many may run at once, and in what is counted of slots."""

from __future__ import annotations

from typing import Any

import msgspec

from pilotage.engine import restore
from pilotage.engine.decisions import lost_pilots
from pilotage.engine.engine_state import EngineState
from pilotage.engine.fairness import Fairness
from pilotage.engine.inbound import operations
from pilotage.engine.placement import Placement
from pilotage.engine.retry import policy
from pilotage.engine.retry.rules import row_of
from pilotage.engine.state import job_queries
from pilotage.engine.state.clock import SteadyTime
from pilotage.engine.state.jobs import JobState, QueueClass
from pilotage.engine.state.sites import PilotState
from tests.simulation.mutants import Patch, graft, mutant


@mutant(first_seed=54, by="priorities")
def the_priority_of_jobs_is_upside_down(patch: Patch) -> None:
    """The job that says it is urgent goes last."""
    key, keys, made = Fairness.key, Fairness.keys, QueueClass.__init__

    def reversed_key(self: Fairness, job: JobState) -> Any:
        priority, *rest = key(self, job)
        return (-priority, *rest)

    def reversed_keys(self: Fairness, jobs: Any, **counted: Any) -> dict[JobState, Any]:
        return {job: (-priority, *rest) for job, (priority, *rest) in keys(self, jobs, **counted).items()}

    def make(self: QueueClass, *about: Any, **named: Any) -> None:
        made(self, *about, **named)
        priority, package, restarts = self.level
        self.level = (-priority, package, restarts)

    patch.setattr(Fairness, "key", reversed_key)
    patch.setattr(Fairness, "keys", reversed_keys)
    patch.setattr(QueueClass, "__init__", make)


@mutant(first_seed=51, by="priorities")
def the_priority_of_packages_is_upside_down(patch: Patch) -> None:
    """Within a job the urgent package goes last."""
    made = QueueClass.__init__

    def make(self: QueueClass, *about: Any, **named: Any) -> None:
        made(self, *about, **named)
        job, package, restarts = self.level
        self.level = (job, -package, restarts)

    patch.setattr(QueueClass, "__init__", make)


@mutant(first_seed=2, by="leases")
def a_silent_pilot_is_lost_after_two_leases(patch: Patch) -> None:
    """One lease too early."""
    checked = lost_pilots.check_lease

    def check_lease(state: EngineState, name: str) -> None:
        settings = state.settings
        state.settings = msgspec.structs.replace(settings, lost_after_leases=settings.lost_after_leases - 1)
        checked(state, name)
        state.settings = settings

    graft(patch, checked, check_lease)


@mutant(first_seed=2, by="leases")
def a_silent_pilot_is_lost_after_four_leases(patch: Patch) -> None:
    """One lease too late."""
    checked = lost_pilots.check_lease

    def check_lease(state: EngineState, name: str) -> None:
        settings = state.settings
        state.settings = msgspec.structs.replace(settings, lost_after_leases=settings.lost_after_leases + 1)
        checked(state, name)
        state.settings = settings

    graft(patch, checked, check_lease)


@mutant(first_seed=3, by="leases")
def time_jumps_with_the_clock(patch: Patch) -> None:
    """A clock that is set forward ends every lease."""

    def advance(self: SteadyTime, clock: float) -> None:
        self.now = max(self.now, clock)
        self.clock = self.stamp = clock

    patch.setattr(SteadyTime, "advance", advance)


@mutant(first_seed=17, by="leases")
def a_replica_more_than_the_cap(patch: Patch) -> None:
    """Off by one: as many attempts as may be are under way, and one more is accepted."""
    counted = job_queries.live_attempts
    patch.setattr(operations, "live_attempts", lambda work: counted(work) - 1)


@mutant(first_seed=1, by="retries")
def the_last_of_a_packages_rules_acts_first(patch: Patch) -> None:
    """The rules that a package has for a failure are gone through from the end."""

    def judged(self: Any, failure: Any) -> Any:
        name, row = row_of(failure.reason)
        rules = self._retry.rules
        matching = [at for at, rule in enumerate(rules) if policy._is_for(rule, failure)]
        for at in reversed(matching):
            if rules[at].times is None or self._acted[at] < rules[at].times:
                self._acted[at] += 1
                return self._by_rule(failure, row, at)
        if matching:
            return self._give_up(f"retry.rules[{matching[0]}]", "retries-exhausted", "its rules are used up")
        return self._by_table(failure, name, row)

    patch.setattr(policy._History, "_judged", judged)


@mutant(first_seed=1, by="sanity")
def the_slots_of_a_pilot_that_ended_are_kept(patch: Patch) -> None:
    """A site has the slots of pilots that are gone."""
    changed = Placement.slots_changed

    def slots_changed(self: Placement, site: Any, pilot: PilotState, sign: int) -> None:
        if sign > 0:
            changed(self, site, pilot, sign)

    patch.setattr(Placement, "slots_changed", slots_changed)


@mutant(first_seed=42, by="restoring")
def a_restart_forgets_what_may_still_act(patch: Patch) -> None:
    """After a crash nobody waits for the end of what was given up and has side effects."""
    patch.setattr(restore, "add_abandoned", lambda *_, **__: None)
