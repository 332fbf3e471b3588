"""What changes the score of a site, and what room follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest

from pilotage.engine.selection import Draws, SelectionSettings, SiteDescription
from pilotage.engine.selection.black_holes import CAUSES, cause_of
from pilotage.engine.selection.rolling import WINDOW, QueueTimes, Window, median_seconds, quantile
from pilotage.engine.selection.scores import Operation, Score, submission_delta, tscore
from pilotage.engine.selection.site_profile import Room, SiteProfile, room_of
from pilotage.model.exchange.reports import Trouble
from pilotage.model.site import Site
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.states import LossReason, Reason
from tests.kit.told_selection import Selection

DEFAULTS = SelectionSettings()


def score(earned: float = 0.0) -> Score:
    return Score(DEFAULTS, earned)


def place_of(selection: Selection, site: str = "a") -> SiteProfile:
    return selection._sites.by_name[site]


def selection(*names: str, settings: SelectionSettings = DEFAULTS) -> Selection:
    made = Selection(settings)
    for name in names or ("a",):
        made.add(SiteDescription(site=Site(name=name, mode="bound")))
    return made


@pytest.mark.parametrize("operation, load", [("submission", -0.2), ("transfer", -0.2), ("file-operation", -0.01)])
def test_an_operation_weighs_on_the_score_until_it_ends(operation: Operation, load: float) -> None:
    one = score(1.0)
    one.began(operation)
    one.began(operation)
    assert one.value == pytest.approx(1.0 + 2 * load)
    one.ended(operation)
    one.ended(operation)
    assert one.value == pytest.approx(1.2)


@pytest.mark.parametrize(
    "trouble, after",
    [(None, 5.1), ("failed", 4.5), ("connection-refused", -5.5), ("connection-timed-out", -10.0)],
)
def test_how_an_operation_ends_is_scored(trouble: Trouble | None, after: float) -> None:
    one = score(5.0)
    one.began("transfer")
    one.ended("transfer", trouble)
    assert one.value == pytest.approx(after)


def test_an_end_without_a_beginning_returns_no_load() -> None:
    one = score()
    one.ended("submission")
    assert (one.load, one.value) == (0.0, 0.1)


def test_the_load_comes_back_although_the_score_met_its_floor() -> None:
    one = score(-9.9)
    for _ in range(3):
        one.began("submission")
    assert one.value == -10.0
    for _ in range(3):
        one.ended("submission")
    assert one.value == pytest.approx(-9.6)


def test_the_score_has_a_floor_and_a_ceiling() -> None:
    low, high = score(-9.0), score(49.95)
    for _ in range(5):
        low.failed()
        high.succeeded()
    assert (low.value, high.value) == (-10.0, 50.0)
    assert (score(1e9).value, score(-1e9).value) == (50.0, -10.0)


def test_a_submission_is_worth_nothing_at_its_base_and_one_success_less_at_its_maximum() -> None:
    assert submission_delta(0.1, DEFAULTS) == pytest.approx(0.0)
    assert submission_delta(20.0, DEFAULTS) == pytest.approx(-0.1)
    assert submission_delta(0.0, SelectionSettings(submission_seconds_base=0.5)) == 0.05 / 19.5


def test_tscore_is_one_at_nothing_and_within_its_caps() -> None:
    assert tscore(0.0, DEFAULTS) == 1.0
    assert tscore(1.0, DEFAULTS) == pytest.approx(math.exp(2 * math.log(100) / math.pi * math.atan(0.2)))
    assert 0.01 < tscore(-1e6, DEFAULTS) < 0.0101
    assert 99.9 < tscore(1e6, DEFAULTS) < 100.0


def test_tscore_follows_every_change_of_the_score() -> None:
    one = score()
    changes: list[Callable[[], None]] = [
        lambda: one.began("transfer"),
        lambda: one.ended("transfer"),
        one.succeeded,
        one.failed,
        one.outqueued,
        lambda: one.submitted(9.0),
        lambda: one.recount("submission", 3),
        lambda: one.reset(7.0),
    ]
    for change in changes:
        before = one.tscore
        change()
        assert one.tscore == tscore(one.value, DEFAULTS) != before


@pytest.mark.parametrize(
    "wrong",
    [
        {"submission_seconds_max": 0.1},
        {"score_floor": 50.0},
        {"score_high_cap": 1.0},
        {"queue_time_quantile": 1.5},
        {"hibernation_seconds": -1.0},
        {"hibernation_growth": 0.5},
        {"black_hole_streak": 0},
        {"trial_room": -1},
        {"thompson_half_life_seconds": 0.0},
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, SelectionSettings)


def test_the_table_has_the_defaults_of_swift() -> None:
    swift = {
        "job_submission_load": -0.2,
        "transfer_load": -0.2,
        "file_operation_load": -0.01,
        "success": 0.1,
        "failure": -0.5,
        "connection_refused": -10.0,
        "connection_timed_out": -20.0,
        "submission_seconds_max": 20.0,
        "submission_seconds_base": 0.1,
        "initial_score": 0.0,
        "score_floor": -10.0,
        "tscore_b": 2.0,
        "tscore_c": 0.2,
        "score_high_cap": 100.0,
        "max_replicas": 3,
    }
    assert {name: getattr(DEFAULTS, name) for name in swift} == swift
    assert (Site(name="a").job_throttle, SiteEntry(name="a", kind="slurm").job_throttle) == (2.0, 2.0)


def test_a_submission_is_scored_with_its_time() -> None:
    sites = selection()
    sites.submission_began("a")
    assert place_of(sites).score.value == pytest.approx(-0.2)
    sites.submission_ended("a", seconds=20.0)
    assert place_of(sites).score.value == pytest.approx(0.0)
    sites.submission_began("a")
    sites.submission_ended("a", seconds=None)
    assert place_of(sites).score.value == pytest.approx(0.1)


def test_the_time_of_a_submission_that_failed_counts_for_nothing() -> None:
    sites = selection()
    sites.submission_began("a")
    sites.submission_ended("a", seconds=10_000.0, trouble="failed")
    assert place_of(sites).score.value == -0.5


def test_transfers_and_file_operations_are_scored() -> None:
    sites = selection()
    sites.operation_began("a", "transfer")
    sites.operation_began("a", "file-operation")
    assert place_of(sites).score.value == pytest.approx(-0.21)
    sites.operation_ended("a", "transfer")
    sites.operation_ended("a", "file-operation", trouble="failed")
    assert place_of(sites).score.value == pytest.approx(-0.4)


def test_a_site_may_have_an_initial_score_of_its_own() -> None:
    sites = Selection(SelectionSettings(initial_score=1.0))
    sites.add(SiteDescription(site=Site(name="a"), initial_score=3.0))
    sites.add(SiteDescription(site=Site(name="b")))
    assert (place_of(sites).score.value, place_of(sites, "b").score.value) == (3.0, 1.0)


def test_only_who_queued_longer_than_the_one_that_began_is_penalised() -> None:
    sites = selection("a", "b", "c")
    assert sites.replica_won(100.0, others=[("a", 101.0), ("b", 100.0), ("c", 5.0)], at=0.0) == []
    values = [place_of(sites, name).score.value for name in "abc"]
    assert values == [-0.2, 0.0, 0.0]


# --- queue times ----------------------------------------------------------------------------------------------------


def test_a_quantile_is_one_of_what_was_observed() -> None:
    waits = [5.0, 1.0, 9.0, 7.0]
    assert [quantile(waits, share) for share in (0.0, 0.25, 0.5, 0.95, 1.0)] == [1.0, 1.0, 5.0, 9.0, 9.0]


def test_the_throttle_begins_with_a_quantile_and_becomes_the_average_and_a_margin() -> None:
    settings = SelectionSettings(queue_time_samples_min=3, queue_time_margin_seconds=50.0, queue_time_quantile=0.5)
    assert QueueTimes(settings).throttle_seconds == 3600.0
    times, window = QueueTimes(settings, [10.0, 20.0, 90.0]), Window()
    assert times.throttle_seconds == 20.0
    for wait in (1.0, 2.0):
        times.observe(window, wait)
    assert times.throttle_seconds == 20.0
    times.observe(window, 6.0)
    assert times.throttle_seconds == pytest.approx(53.0)


def test_the_average_follows_the_latest_waits_and_forgets_a_site_with_it() -> None:
    times, here, there = QueueTimes(DEFAULTS), Window(), Window()
    times.observe(there, 1000.0)
    for _ in range(2 * WINDOW):
        times.observe(here, 7.0)
    for _ in range(WINDOW):
        times.observe(here, 3.0)
    times.remove(there)
    assert times.average_seconds == 3.0
    assert median_seconds(here) == 3.0
    assert median_seconds(Window()) is None


def test_a_replica_waits_for_the_least_time_and_three_medians_of_its_site() -> None:
    sites = selection()
    assert sites.replicate_after_seconds("a") == 60.0
    for wait in (10.0, 100.0, 1000.0):
        sites.attempt_began("a", at=0.0, queued_seconds=wait)
    assert sites.replicate_after_seconds("a") == 300.0
    assert sites.replicate_after_seconds("nowhere") == 60.0


def test_replicas_have_a_limit_of_their_own_and_a_common_one() -> None:
    sites = selection(settings=SelectionSettings(replication_limit=2))
    assert sites.may_replicate(queue_replicas=1, live=2)
    assert not sites.may_replicate(queue_replicas=2, live=2)
    assert not sites.may_replicate(queue_replicas=1, live=3)


# --- room -------------------------------------------------------------------------------------------------------------


def room(score_: float, *, pilots: bool = False, slots: int = 0, backlog: int = 0) -> Room:
    return room_of(
        tscore(score_, DEFAULTS), pilots=pilots, job_throttle=2.0, slots_factor=1.25, live_slots=slots, backlog=backlog
    )


def test_room_in_bound_mode_is_swifts() -> None:
    assert [room(each).limit for each in (0.0, 5.0, -10.0)] == [3, 1 + math.floor(2 * tscore(5.0, DEFAULTS)), 1]
    assert room(0.0, slots=100).rule == "bound"


def test_room_in_pilot_mode_follows_live_slots_and_no_score_adds_to_it() -> None:
    assert room(0.0, pilots=True, slots=10) == Room(14, "pilots")
    assert room(40.0, pilots=True, slots=10, backlog=5) == Room(19, "pilots")
    assert room(-10.0, pilots=True, slots=100).limit == 1 + math.ceil(tscore(-10.0, DEFAULTS) * 125)
    assert room(0.0, pilots=True) == room(40.0, pilots=True) == Room(3, "no-slots")


def test_a_site_has_its_own_throttle() -> None:
    sites = Selection(SelectionSettings(trial_room=0))
    sites.add(SiteDescription(site=Site(name="a", mode="bound", job_throttle=9.0)))
    sites.add(SiteDescription(site=Site(name="b", mode="bound")))
    assert (sites.room("a").limit, sites.room("b").limit) == (10, 3)


def test_a_site_that_does_not_answer_has_no_room() -> None:
    sites = selection()
    sites.room_changed("a", answers=False)
    assert sites.room("a") == Room(0, "away")
    sites.room_changed("a", answers=True)
    assert sites.room("a").limit == 3


def test_a_new_site_beside_another_is_on_trial_until_an_attempt_succeeds() -> None:
    sites = Selection()
    sites.add(SiteDescription(site=Site(name="a", mode="bound", job_throttle=100.0)))
    assert sites.room("a") == Room(101, "bound")
    sites.add(SiteDescription(site=Site(name="b")))
    assert sites.room("a") == Room(8, "trial")
    sites.attempt_created("a", at=0.0)
    sites.attempt_ended("a", cause="success", at=1.0, created_at=0.0)
    assert sites.room("a").rule == "bound"
    sites.room_changed("b", slots={0: 40})
    assert sites.room("b").rule == "trial"
    sites.remove("a")
    assert sites.room("b") == Room(51, "pilots")


def test_whether_a_site_is_on_trial_is_known_at_once_when_another_comes_or_goes() -> None:
    sites = Selection()
    sites.add(SiteDescription(site=Site(name="a", mode="bound", job_throttle=100.0)))
    for _ in range(9):
        sites.use("a")
    assert sites.status("a") == "candidate"
    sites.add(SiteDescription(site=Site(name="b")))
    assert sites.status("a") == "overloaded"
    sites.remove("b")
    assert sites.status("a") == "candidate"


def test_a_trial_ends_when_nothing_fails_for_a_while() -> None:
    sites = Selection()
    for name in ("a", "b"):
        sites.add(SiteDescription(site=Site(name=name, mode="bound", job_throttle=100.0)))
    for _ in range(8):
        assert sites.status("a") == "candidate"
        sites.use("a")
        sites.attempt_created("a", at=10.0)
    assert (sites.status("a"), sites.ask_again_at(now=10.0)) == ("overloaded", None)
    sites.attempt_began("a", at=10.0)
    sites.attempt_began("a", at=14.0)
    assert sites.ask_again_at(now=14.0) == 15.0
    sites.attempt_ended("a", cause="application", at=14.0, created_at=10.0, began_at=14.0)
    sites.pick(Draws(1), now=18.9)
    assert (sites.room("a").rule, sites.ask_again_at(now=18.9)) == ("trial", 19.0)
    sites.pick(Draws(1), now=19.0)
    assert (sites.room("a").rule, sites.ask_again_at(now=19.0)) == ("bound", None)


def test_a_site_that_sleeps_is_not_proved_by_time() -> None:
    sites = Selection()
    for name in ("a", "b"):
        sites.add(SiteDescription(site=Site(name=name, mode="bound", job_throttle=100.0)))
    sites.attempt_began("a", at=0.0)
    sites.hibernate("a", at=1.0)
    assert sites.ask_again_at(now=9.0) is None
    sites.wake("a")
    sites.attempt_began("a", at=10.0)
    assert (sites.room("a").rule, sites.ask_again_at(now=10.0)) == ("trial", 15.0)


def test_what_ends_at_a_site_that_sleeps_is_not_scored_and_leaves_no_load() -> None:
    sites = selection()
    for trouble in (None, "connection-refused"):
        sites.submission_began("a")
        sites.operation_began("a", "transfer")
        sites.hibernate("a", at=1.0)
        sites.submission_ended("a", seconds=0.0, trouble=trouble)
        sites.operation_ended("a", "transfer")
        assert place_of(sites).score.value == 0.0
    sites.wake("a")
    sites.submission_began("a")
    sites.submission_ended("a", seconds=None)
    assert place_of(sites).score.value == pytest.approx(0.1)


# --- causes -----------------------------------------------------------------------------------------------------------


def test_every_reason_there_is_has_a_cause() -> None:
    known = {*Reason.__args__, *LossReason.__args__}  # type: ignore[attr-defined]
    assert set(CAUSES) == known
    assert cause_of("disk-full") == "platform"
    assert cause_of("a-word-of-a-failure-pattern") == "application"
