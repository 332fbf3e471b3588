"""Planted bugs in what healing draws, in whom it copies and gives up, and in what it may waste."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pilotage.engine.decisions import healing as cycles
from pilotage.engine.decisions import treatments
from pilotage.engine.decisions.treatments import Action
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files import copying
from pilotage.engine.healing import incidents, replication
from pilotage.engine.healing.healing import Drawn, Healing, policy_of
from pilotage.engine.healing.job_health import ActivityHealth, JobHealth
from pilotage.engine.healing.replication import LatePackage, PredictiveReplication, Treatment
from pilotage.engine.state.caches import CachedFile, SiteCache
from pilotage.engine.state.jobs import ActivePackage, JobState
from pilotage.model.settings.engine import EngineSettings
from tests.simulation.mutants import Patch, graft, mutant

STALLS = 30_001


@mutant(first_seed=STALLS, by="healing")
def a_copy_is_wanted_beside_one_that_is_queued(patch: Patch) -> None:
    """Every look at a late package finds no copy that waits."""
    made = incidents.package_of

    def package_of(job: JobState, number: int, now: float) -> LatePackage:
        package = made(job, number, now)
        started = tuple(each for each in package.copies if each.started)
        return package._replace(copies=started, replica_queued=False)

    graft(patch, made, package_of)


@mutant(first_seed=STALLS, by="healing")
def the_furthest_attempt_is_given_up(patch: Patch) -> None:
    """Of two attempts of a package, the one that is ahead goes."""
    planned = replication.replication_process

    def replication_process(package: LatePackage, *about: Any, **named: Any) -> Treatment:
        found = planned(package, *about, **named)
        if not found.abort:
            return found
        furthest = max((each for each in package.copies if each.started), key=lambda each: each.step)
        return found._replace(abort=(furthest.attempt,))

    graft(patch, planned, replication_process)


@mutant(first_seed=STALLS, by="healing")
def nothing_is_too_much_waste(patch: Patch) -> None:
    """The budget is never used up."""
    patch.setattr(JobHealth, "allowance", lambda *_: 1e12)


@mutant(first_seed=STALLS + 1, by="healing leases")
def what_has_side_effects_is_copied(patch: Patch) -> None:
    """Nobody asks whether a package may run twice at once."""
    asked = treatments.why_no_replica

    def why_no_replica(state: EngineState, job: JobState, work: ActivePackage) -> str:
        why = asked(state, job, work)
        return "" if "side effects" in why else why

    graft(patch, asked, why_no_replica)


@mutant(first_seed=STALLS, by="healing")
def the_first_package_says_how_long_all_take(patch: Patch) -> None:
    """A median of one is trusted."""
    patch.setattr(
        JobHealth,
        "trusted",
        lambda self, finished_min: [each for each in self.activities.values() if each.times.count],
    )


@mutant(first_seed=STALLS, by="healing")
def copies_name_no_decision(patch: Patch) -> None:
    """What healing does follows from nothing."""
    made = treatments._replicate

    def _replicate(*about: Any) -> Action:
        action = made(*about)
        return replace(action, carry_out=lambda state, _: action.carry_out(state, 0))

    graft(patch, made, _replicate)


@mutant(first_seed=STALLS, by="healing")
def another_incident_is_treated_than_was_drawn(patch: Patch) -> None:
    """The wheel stops somewhere, and blocked activities are treated."""
    drawn = Healing.draw

    def draw(self: Healing, found: Any, draws: Any) -> Drawn | None:
        chosen = drawn(self, found, draws)
        return chosen._replace(incident=0, treated=0) if chosen is not None else None

    blocked = cycles._TREATMENTS["blocked-activity"]

    def treat(state: EngineState, health: JobHealth, found: cycles.Found) -> Any:
        activity: ActivityHealth | None = next(iter(health.activities.values()), None)
        if found.activity is None and activity is not None:
            late = tuple(incidents.late_packages(health, activity, state.clock.wall_time))
            found = found._replace(activity=activity, packages=late)
        return blocked(state, health, found)

    patch.setattr(Healing, "draw", draw)
    for kind in ("bad-site", "unfair-sharing", "low-efficiency"):
        patch.setitem(cycles._TREATMENTS, kind, treat)


@mutant(first_seed=3, by="healing")
def healing_cannot_be_turned_off(patch: Patch) -> None:
    """The setting is read, and prediction is used all the same."""
    made = Healing.__init__

    def make(self: Healing, settings: EngineSettings, **about: Any) -> None:
        made(self, settings, **about)
        self.enabled = True
        if settings.healing == "off":
            self.policy = PredictiveReplication()
        else:
            self.policy = policy_of(settings)

    patch.setattr(Healing, "__init__", make)


@mutant(first_seed=1033, by="healing")
def a_cache_gives_what_it_no_longer_has(patch: Patch) -> None:
    """A file is to be copied from a cache whatever became of it there."""
    asked = copying._source

    def _source(state: EngineState, cache: SiteCache, locator: str) -> tuple[SiteCache, CachedFile] | None:
        for other in state.files.caches.values():
            entry = other.entries.get(locator) if other is not cache else None
            if entry is not None:
                return other, entry
        return asked(state, cache, locator)

    graft(patch, asked, _source)
