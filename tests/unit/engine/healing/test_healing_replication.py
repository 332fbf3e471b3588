"""Figure 7 for one package, and its prediction: which attempts are aborted, and when there is one more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.engine.healing.degrees import performance
from pilotage.engine.healing.job_health import ActivityHealth
from pilotage.engine.healing.phase_times import SAMPLES_MAX, PhaseSamples
from pilotage.engine.healing.replication import (
    LATE_RATIO,
    Copy,
    LatePackage,
    NoReplication,
    PaperReplication,
    PredictiveReplication,
    ReplicationPolicy,
    Surroundings,
    replication_process,
)
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Demand
from tests.kit.small_engine import Small
from tests.kit.small_plans import site

MEDIANS = (0.0, 100.0, 400.0, 100.0)
AT_ONCE = Surroundings(latency_seconds=0.0, rest_seconds=0.0)


def running(number: int, *, phase: int | None = None, before: float = 0.0, elapsed: float = 0.0) -> Copy:
    return Copy(number, "a", True, phase, before, elapsed)


def queued(number: int) -> Copy:
    return Copy(number, "b", started=False)


def package(*copies: Copy, replica_queued: bool = False) -> LatePackage:
    return LatePackage(1, copies, replica_queued)


def known(*, count: int = 40, spread: float = 0.1) -> PhaseSamples:
    """An activity whose packages take 600 s, a bit more or less."""
    samples = PhaseSamples()
    for number in range(count):
        factor = 1.0 + spread * (number / (count - 1) - 0.5)
        samples.add((
            PhaseTimes(phase="inputs", started_at=0.0, seconds=100.0 * factor),
            PhaseTimes(phase="application", started_at=0.0, seconds=400.0 * factor),
            PhaseTimes(phase="outputs", started_at=0.0, seconds=100.0 * factor),
        ))  # fmt: skip
    return samples


def process(*copies: Copy, replica_queued: bool = False) -> tuple[tuple[int, ...], bool]:
    found = replication_process(package(*copies, replica_queued=replica_queued), MEDIANS, threshold=LATE_RATIO)
    return found.abort, found.replicate


def test_a_package_with_one_late_attempt_gets_another() -> None:
    assert process(running(1, phase=1, elapsed=701.0)) == ((), True)


def test_a_package_whose_attempt_is_within_twice_the_median_gets_none() -> None:
    assert process(running(1, phase=1, elapsed=699.0)) == ((), False)


def test_no_other_attempt_is_added_while_one_is_queued_or_wanted() -> None:
    assert process(running(1, phase=1, elapsed=5000.0), queued(2)) == ((), False)
    assert process(running(1, phase=1, elapsed=5000.0), replica_queued=True) == ((), False)


def test_no_other_attempt_is_added_beside_one_that_is_not_late() -> None:
    assert process(running(1, phase=1, elapsed=5000.0), running(2, elapsed=10.0)) == ((), False)


def test_a_late_replica_beside_a_late_attempt_allows_a_third() -> None:
    assert process(running(1, phase=1, elapsed=5000.0), running(2, phase=1, elapsed=3000.0)) == ((), True)


def test_an_attempt_is_aborted_that_a_far_better_one_is_a_phase_ahead_of() -> None:
    late, ahead = running(1, phase=1, elapsed=5000.0), running(2, phase=2, before=90.0, elapsed=20.0)
    assert process(late, ahead) == ((1,), False)


def test_an_attempt_in_the_same_phase_is_not_aborted_however_late_it_is() -> None:
    late, other = running(1, phase=2, before=100.0, elapsed=5000.0), running(2, phase=2, before=90.0, elapsed=20.0)
    assert process(late, other) == ((), False)


@st.composite
def copies(draw: st.DrawFn) -> tuple[Copy, ...]:
    count = draw(st.integers(1, 4))
    found = []
    for number in range(1, count + 1):
        if draw(st.booleans()) or number == 1:
            phase = draw(st.sampled_from([None, 0, 1, 2, 3]))
            before = draw(st.floats(0.0, 3000.0)) if phase else 0.0
            found.append(Copy(number, "a", True, phase, before, draw(st.floats(0.0, 5000.0))))
        else:
            found.append(queued(number))
    return tuple(found)


@given(copies(), st.booleans())
def test_the_most_advanced_attempt_is_never_aborted_and_a_queued_one_forbids_another(
    live: tuple[Copy, ...],
    replica_queued: bool,  # noqa: FBT001 # drawn
) -> None:
    found = replication_process(package(*live, replica_queued=replica_queued), MEDIANS, threshold=LATE_RATIO)
    best = max(copy.step for copy in live)
    assert not {copy.attempt for copy in live if copy.step == best} & set(found.abort)
    if replica_queued or any(not copy.started for copy in live):
        assert not found.replicate
    if found.replicate:
        assert all(performance(copy.estimate(MEDIANS), sum(MEDIANS)) > LATE_RATIO for copy in live)


@pytest.mark.parametrize("policy", [PaperReplication(), PredictiveReplication()])
def test_a_stalled_attempt_gets_a_copy_and_a_usual_one_does_not(policy: ReplicationPolicy) -> None:
    times = known()
    assert policy.treatments(times, [package(running(1, phase=2, before=100.0, elapsed=380.0))], AT_ONCE) == []
    (found,) = policy.treatments(times, [package(running(1, phase=1, elapsed=2000.0))], AT_ONCE)
    assert found.replicate
    assert policy.degree(times, package(running(1, phase=1, elapsed=2000.0)), AT_ONCE) > 0.3


def test_prediction_is_sooner_than_the_paper_where_a_phase_stalls_that_is_usually_short() -> None:
    times, paper, predictive = known(), PaperReplication(), PredictiveReplication()
    sooner = predictive.look_after(times, phase=1, before=0.0)
    assert 105.0 <= sooner < paper.look_after(times, phase=1, before=0.0) == pytest.approx(700.0, rel=0.01)


def test_prediction_makes_no_copy_that_would_end_later_than_what_runs() -> None:
    far = Surroundings(latency_seconds=3600.0, rest_seconds=0.0)
    late = package(running(1, phase=1, elapsed=1500.0))
    assert PredictiveReplication().treatments(known(), [late], far) == []
    assert PaperReplication().treatments(known(), [late], far)[0].replicate


def test_prediction_makes_no_copy_that_the_end_of_the_activity_does_not_depend_on() -> None:
    late = package(running(1, phase=1, elapsed=1500.0))
    assert PredictiveReplication().treatments(known(), [late], Surroundings(0.0, rest_seconds=36_000.0)) == []
    assert PredictiveReplication().treatments(known(), [late], Surroundings(0.0, rest_seconds=100.0))[0].replicate


def test_the_most_urgent_packages_come_first() -> None:
    late = [LatePackage(number, (running(1, phase=1, elapsed=1000.0 * number),)) for number in (2, 5, 3)]
    for policy in (PaperReplication(), PredictiveReplication()):
        assert [each.number for each in policy.treatments(known(), late, AT_ONCE)] == [5, 3, 2]


def test_without_healing_nothing_is_looked_at() -> None:
    assert NoReplication().look_after(known(), phase=None, before=0.0) == math.inf
    assert NoReplication().treatments(known(), [package(running(1, phase=1, elapsed=1e6))], AT_ONCE) == []


def told(number: int, *, at: SiteState) -> AttemptState:
    """An attempt that fetches its inputs since 0."""
    return AttemptState(
        ref=AttemptRef("j", f"1.1.{number}", 1), number=number, address=(1, 1, number), epoch=1, site=at,
        demand=Demand(), shape=0, created_at=0.0, began_at=0.0, leased=True, counted=True, phase=1,
    )  # fmt: skip


def test_a_running_attempt_is_looked_at_sooner_also_if_times_fall_little_by_little() -> None:
    with Small(site("a")) as small:
        activity, policy = ActivityHealth("run"), PaperReplication()
        at = small.engine.state.sites.by_name["a"]
        slow = told(0, at=at)
        for step in range(8):  # each time by 8 %, and each time another attempt tells of its phase
            usual = (PhaseTimes(phase="application", started_at=0.0, seconds=1000.0 * 0.92**step),)
            activity.finished([usual] * SAMPLES_MAX)
            activity.just_told.append(slow if step == 0 else told(step, at=at))
            activity.due(policy, 0.0)
        activity.due(policy, 700.0)  # at first it was to be looked at after 1,000 s, now after 560
        assert slow in activity.late
