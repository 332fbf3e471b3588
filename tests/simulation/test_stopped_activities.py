"""Worlds with an activity that cannot succeed, or only in the end: it is stopped in time, and never wrongly.

The checker is doubted, too: each planted bug is told of at the seed that it names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pilotage.book.rows.rows import JobRow
from pilotage.engine import past_activities
from pilotage.engine.decisions import stopped_activities
from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.activities import Activities, EqualFailures
from pilotage.engine.state.job_queries import packages_of
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.simulator.trials.checked_world import CheckedWorld
from pilotage.simulator.trials.definition import BROKEN_AFTER, make_world
from pilotage.simulator.trials.trial import Result, simulate
from pilotage.simulator.world.behaviour import Habits, RandomBehaviour
from tests.simulation.mutants import Mutant, Patch, Plant, graft

WORLDS = 12
BUGS: list[Mutant] = []


def bug(*, first_seed: int, by: str) -> Callable[[Plant], Plant]:
    """Put a bug on the list; its name is its function's."""

    def put(plant: Plant) -> Plant:
        BUGS.append(Mutant(name=plant.__name__, plant=plant, by=(by,), first_seed=first_seed))
        return plant

    return put


@bug(first_seed=20_001, by="stops")
def only_running_attempts_are_stopped(patch: Patch) -> None:
    """Packages that wait are not aborted: they start as soon as there is room."""

    def abort_stopped(state: EngineState) -> None:
        while state.pending.to_stop:
            job = next(iter(state.pending.to_stop))
            del state.pending.to_stop[job]
            for activity in job.activities.stopped:
                for number in packages_of(job, activity):
                    if job.status[number] == PackageStatus.LIVE:
                        aborted = payloads.Aborted(cause="activity-stopped")
                        state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))

    graft(patch, stopped_activities.abort_stopped, abort_stopped)


@bug(first_seed=20_002, by="stops")
def a_success_proves_nothing(patch: Patch) -> None:
    """Failures are counted although attempts of the activity succeed."""
    patch.setattr(Activities, "succeeded", lambda *_: None)


@bug(first_seed=20_006, by="stops")
def nothing_is_hopeless(patch: Patch) -> None:
    """Equal failures go on for ever."""
    graft(patch, stopped_activities.hopeless, lambda *_: None)


@bug(first_seed=20_002, by="stops")
def half_as_many_are_enough(patch: Patch) -> None:
    """An activity is stopped at half its bound."""
    hopeless = stopped_activities.hopeless

    def sooner(state: EngineState, job: JobState, activity: str) -> EqualFailures | None:
        found = job.activities.most_equal(activity)
        if found is not None and 2 * found.attempts >= state.settings.incidents.failing_attempts_max:
            left = any(job.status[number] < PackageStatus.DROPPED for number in packages_of(job, activity))
            return found if left and activity not in job.activities.stopped else None
        return hopeless(state, job, activity)

    graft(patch, hopeless, sooner)


@bug(first_seed=20_003, by="restoring")
def a_new_engine_knows_of_no_stop(patch: Patch) -> None:
    """The row of a job is not read."""

    def restore_activities(job: JobState, row: JobRow) -> None:
        assert row.job == job.id

    graft(patch, past_activities.restore_activities, restore_activities)


def counted(seed: int, patch: pytest.MonkeyPatch) -> tuple[Result, Counter[str]]:
    """Run a world, and count what was stopped in it and opened again."""
    from pilotage.simulator.trials import trial

    made: list[CheckedWorld] = []

    class Kept(CheckedWorld):
        def begin(self) -> None:
            made.append(self)
            super().begin()

    patch.setattr(trial, "CheckedWorld", Kept)
    result = simulate(make_world(seed))
    return result, Counter(made[-1].observer.stopped.counts)


def test_worlds_with_an_activity_that_cannot_succeed_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Counter[str] = Counter()
    for seed in range(BROKEN_AFTER + 1, BROKEN_AFTER + WORLDS + 1):
        result, counts = counted(seed, monkeypatch)
        assert result.violation is None, (seed, result.violation)
        found += counts
    assert found["stopped"] >= WORLDS
    assert found["reopened"] >= WORLDS // 2


def test_their_packages_fail_alike_so_many_times() -> None:
    behaviour = RandomBehaviour(7, Habits(broken={"job/1": 2}), {})
    ends = {
        (place, tried): behaviour.outcome(AttemptRef("job", place, tried), "north")
        for place in ("1.1.1", "1.9.2", "2.1.1")
        for tried in (1, 2, 3)
    }
    failed = {key: (each.reason, each.exit_status) for key, each in ends.items() if each.reason}
    assert failed == {(place, tried): ("application-error", 9) for place in ("1.1.1", "1.9.2") for tried in (1, 2)}


@pytest.mark.parametrize("planted", BUGS, ids=[each.name for each in BUGS])
def test_a_planted_bug_is_found_at_its_seed(planted: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulate(make_world(planted.first_seed)).violation is None
    planted.plant(monkeypatch)
    found = simulate(make_world(planted.first_seed)).violation
    assert found is not None
    assert found.checker in planted.by, found
