"""Every move of a site between the three sets, by its number in swift-site-selection."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.engine.selection import (
    Draws,
    Hibernated,
    Requirements,
    SelectionSettings,
    SiteDescription,
    Woken,
)
from pilotage.engine.selection.black_holes import Cause
from pilotage.engine.selection.status import Change, Sleep, wakes_at
from pilotage.model.site import Site
from tests.kit.told_selection import Selection


def selection(*names: str, **changed: float | str) -> Selection:
    made = Selection(msgspec.convert(changed, SelectionSettings))
    for name in names:
        made.add(SiteDescription(site=Site(name=name, mode="bound")))
    return made


def start(sites: Selection, site: str, *, at: float = 0.0) -> None:
    sites.use(site)
    sites.attempt_created(site, at=at)
    sites.attempt_began(site, at=at)


def end(sites: Selection, site: str, cause: Cause, *, at: float = 0.0, queued: float | None = None) -> list[Change]:
    sites.free(site)
    return sites.attempt_ended(site, cause=cause, at=at, created_at=0.0, began_at=0.0, queued_seconds=queued)


def fail(sites: Selection, *names: str, at: float = 0.0) -> None:
    for name in names:
        start(sites, name, at=at)
        end(sites, name, "platform", at=at)


def score(sites: Selection, site: str) -> float:
    return sites.explain(site, now=0.0).score


def picked(sites: Selection, *, now: float = 0.0) -> str:
    choice = sites.pick(Draws(1), now=now)
    return choice.site if choice is not None else ""


# --- 1a ---------------------------------------------------------------------------------------------------------------


def test_1a_a_platform_failure_with_nothing_else_there_hibernates_and_the_score_is_nothing() -> None:
    sites = selection("a", "b")
    sites.probe_finished("a", passed=True, at=0.0, score=4.0)
    start(sites, "a")
    changes = end(sites, "a", "platform", at=5.0)
    assert [type(each) for each in changes] == [Hibernated]
    assert (changes[0].site, getattr(changes[0], "others", None)) == ("a", 0)
    assert (sites.status("a"), sites.status("b"), score(sites, "a")) == ("hibernated", "candidate", 0.0)


def test_1a_with_other_attempts_there_it_says_how_many() -> None:
    sites = selection("a")
    for _ in range(3):
        start(sites, "a")
    changes = end(sites, "a", "platform")
    assert isinstance(changes[0], Hibernated)
    assert (changes[0].reason, changes[0].others) == ("platform-failure", 2)
    assert end(sites, "a", "platform") == []  # it sleeps already


@pytest.mark.parametrize("policy", ["thompson", "weighted-random"])
@pytest.mark.parametrize("cause, after", [("application", -0.5), ("neutral", 0.0), ("success", 0.1)])
def test_1a_what_is_not_the_platforms_fault_hibernates_no_site(cause: Cause, after: float, policy: str) -> None:
    sites = selection("a", "b", policy=policy)
    start(sites, "b")
    end(sites, "b", "success")
    start(sites, "a")
    assert end(sites, "a", cause) == []
    assert sites.status("a") == "candidate"
    assert score(sites, "a") == after


@pytest.mark.parametrize("policy", ["thompson", "weighted-random"])
def test_failures_of_the_application_that_are_common_to_all_sites_cost_none_of_them(policy: str) -> None:
    sites = selection("a", "b", "c", policy=policy)
    for _ in range(30):
        for name in ("a", "b", "c"):
            start(sites, name)
            assert end(sites, name, "application") == []
    assert [score(sites, name) for name in ("a", "b", "c")] == [0.0, 0.0, 0.0]


def test_a_program_that_fails_now_and_then_wherever_it_runs_costs_no_site_more_than_a_first_failure() -> None:
    sites = selection("a", "b")
    for turn in range(40):
        for name in ("a", "b"):
            start(sites, name)
            end(sites, name, "application" if turn % 4 == 3 else "success")
    assert (score(sites, "a"), score(sites, "b")) == pytest.approx((2.5, 3.0))


def test_a_site_where_more_fails_than_elsewhere_pays_for_it() -> None:
    sites = selection("a", "b", black_hole_failures=1000)
    for _ in range(10):
        start(sites, "b")
        end(sites, "b", "success")
        start(sites, "a")
        end(sites, "a", "application")
    assert (score(sites, "a"), score(sites, "b")) == pytest.approx((-5.0, 1.0))


def test_where_the_setting_says_so_any_failure_hibernates_as_in_the_paper() -> None:
    sites = selection("a", "b", freeze_on="any-failure")
    start(sites, "a")
    [change] = end(sites, "a", "application")
    assert isinstance(change, Hibernated)
    assert (change.reason, change.message) == ("attempt-failed", "an attempt failed; nothing else is there")
    assert sites.status("a") == "hibernated"


def test_a_score_can_be_cleared_by_hand() -> None:
    sites = selection("a", "b", black_hole_failures=1000)
    for _ in range(10):
        start(sites, "b")
        end(sites, "b", "success")
        start(sites, "a")
        end(sites, "a", "application")
    assert sites.clear("a")
    assert score(sites, "a") == 0.0
    assert not sites.clear("a")
    assert not sites.clear("b"), "nothing is held against it"
    assert score(sites, "b") == pytest.approx(1.0)


# --- 1b ---------------------------------------------------------------------------------------------------------------


def test_1b_without_replication_it_is_looked_at_when_an_attempt_ends_well() -> None:
    sites = selection("a", "b")
    start(sites, "a")
    assert end(sites, "a", "success", queued=3600.0) == []
    start(sites, "a")
    changes = end(sites, "a", "success", queued=3601.0)
    assert isinstance(changes[0], Hibernated)
    assert (changes[0].reason, score(sites, "a")) == ("long-queue", 0.0)


def test_1b_with_replication_it_is_looked_at_when_another_begins() -> None:
    sites = selection("a", "b", "c")
    changes = sites.replica_won(10.0, others=[("a", 3000.0), ("b", 4000.0), ("c", 5.0)], at=0.0)
    assert [each.site for each in changes] == ["b"]
    assert [sites.status(name) for name in "abc"] == ["candidate", "hibernated", "candidate"]


def test_1b_what_never_begins_is_looked_at_when_it_is_asked() -> None:
    sites = selection("a", "b")
    assert sites.still_queued("a", queued_seconds=3000.0, at=0.0) == []
    assert [type(each) for each in sites.still_queued("a", queued_seconds=4000.0, at=0.0)] == [Hibernated]
    assert sites.still_queued("a", queued_seconds=5000.0, at=0.0) == []


def test_1b_the_throttle_adapts_to_what_is_observed() -> None:
    sites = selection("a", "b", queue_time_samples_min=2)
    for _ in range(2):
        sites.attempt_began("b", at=0.0, queued_seconds=10.0)
    assert sites.queue_throttle_seconds == 310.0
    assert sites.still_queued("a", queued_seconds=311.0, at=0.0)


# --- 2a ---------------------------------------------------------------------------------------------------------------


def test_2a_the_first_that_came_is_woken_first_with_a_score_of_nothing_and_a_canary() -> None:
    sites = selection("a", "b", "c")
    fail(sites, "b", "c", "a")
    choice = sites.pick(Draws(1), now=0.0)
    assert choice is not None
    assert choice.woken == Woken(
        site="b",
        rule="no-candidate",
        message="no other site can be chosen: it gets a new chance, with one canary",
        score=0.0,
        canary=True,
    )
    sites.use("b")
    assert sites.status("b") == "overloaded"


def test_2a_nobody_is_woken_while_there_is_a_candidate() -> None:
    sites = selection("a", "b")
    fail(sites, "a")
    assert {picked(sites, now=each * 1e4) for each in range(20)} == {"b"}


def test_2a_while_others_are_only_full_a_site_sleeps_for_its_time() -> None:
    sites = selection("a", "b")
    fail(sites, "a", at=100.0)
    for _ in range(3):
        start(sites, "b")
    assert sites.status("b") == "overloaded"
    assert picked(sites, now=109.0) == ""
    assert sites.ask_again_at(now=109.0) == 110.0
    assert picked(sites, now=110.0) == "a"


def test_2a_each_time_in_vain_it_sleeps_for_longer_and_success_makes_it_forget() -> None:
    sites = selection("a", "b", trial_room=0)
    for _ in range(3):
        start(sites, "b")
    waits, now = [], 0.0
    fail(sites, "a", at=now)
    for _ in range(12):
        until = sites.ask_again_at(now=now)
        assert until is not None
        waits.append(until - now)
        now = until
        assert picked(sites, now=now) == "a"
        fail(sites, "a", at=now)
    assert waits[:4] == [10.0, 20.0, 40.0, 80.0]
    assert waits[-1] == 3600.0
    now += 3600.0
    assert picked(sites, now=now) == "a"
    start(sites, "a")
    end(sites, "a", "success")
    fail(sites, "a", at=now)
    assert sites.ask_again_at(now=now) == now + 10.0


def test_2a_alone_it_gets_its_first_chance_at_once_and_never_waits_for_long() -> None:
    sleep = Sleep(reason="platform-failure", message="", since=0.0, order=1)
    waits = [wakes_at(sleep, times, SelectionSettings(), alone=True) for times in range(1, 8)]
    assert waits == [0.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert wakes_at(sleep, 10_000, SelectionSettings(), alone=False) == 3600.0


def test_2a_when_the_only_other_site_stops_answering_it_is_woken_sooner() -> None:
    sites = selection("a", "b", trial_room=0)
    for _ in range(3):
        start(sites, "b")
    fail(sites, "a")
    assert picked(sites, now=1.0) == ""
    assert picked(sites, now=2.0) == ""
    sites.room_changed("b", answers=False)
    assert picked(sites, now=3.0) == "a"


def test_2a_a_clock_that_was_set_back_keeps_nobody_asleep() -> None:
    sites = selection("a")
    for _ in range(5):
        fail(sites, "a", at=1e6)
        sites.pick(Draws(1), now=2e6)
    fail(sites, "a", at=1e6)
    assert picked(sites, now=1e6) == ""
    assert picked(sites, now=5.0) == "a"


def test_2a_only_a_site_that_could_do_it_is_woken() -> None:
    sites = selection("a")
    sites.add(SiteDescription(site=Site(name="big", kind="cluster", mode="bound")))
    fail(sites, "a", "big")
    cluster = Requirements(executor="cluster")
    choice = sites.pick(Draws(1), now=0.0, requirements=cluster, shape=1)
    assert choice is not None
    assert choice.site == "big"
    assert sites.status("a") == "hibernated"


def test_2a_a_candidate_that_could_not_do_it_keeps_nobody_asleep() -> None:
    sites = selection("a")
    sites.add(SiteDescription(site=Site(name="big", kind="cluster", mode="bound")))
    fail(sites, "big")
    choice = sites.pick(Draws(1), now=0.0, requirements=Requirements(executor="cluster"), shape=1)
    assert choice is not None
    assert choice.woken is not None


def test_2a_what_a_person_put_to_sleep_and_what_does_not_answer_is_left_alone() -> None:
    sites = selection("a", "b")
    sites.hibernate("a", at=0.0)
    fail(sites, "b")
    sites.room_changed("b", answers=False)
    assert picked(sites, now=1e6) == ""
    assert sites.ask_again_at(now=1e6) is None
    sites.room_changed("b", answers=True)
    assert picked(sites, now=1e6) == "b"


def test_2a_who_is_full_of_what_it_has_is_not_woken_for_nothing() -> None:
    sites = selection("a")
    for _ in range(4):
        start(sites, "a")
    end(sites, "a", "platform")
    assert picked(sites, now=1e6) == ""
    end(sites, "a", "platform")
    assert picked(sites, now=1e6) == "a"


# --- 2b ---------------------------------------------------------------------------------------------------------------


def test_2b_a_site_that_finishes_another_attempt_comes_back_with_a_score_of_one() -> None:
    sites = selection("a", "b")
    start(sites, "a")
    start(sites, "a")
    end(sites, "a", "platform")
    changes = end(sites, "a", "success")
    assert [(type(each), getattr(each, "rule", "")) for each in changes] == [(Woken, "finished-another")]
    assert (sites.status("a"), score(sites, "a"), sites.room("a").rule) == ("candidate", 1.0, "bound")


def test_2b_also_by_one_that_nobody_waited_for_any_more() -> None:
    sites = selection("a", "b")
    fail(sites, "a")
    assert [type(each) for each in sites.succeeded_late("a", at=1.0)] == [Woken]
    assert sites.succeeded_late("x", at=1.0) == []


def test_2b_what_queued_too_long_does_not_bring_it_back() -> None:
    sites = selection("a", "b")
    start(sites, "a")
    start(sites, "a")
    sites.still_queued("a", queued_seconds=4000.0, at=0.0)
    assert end(sites, "a", "success", queued=5000.0) == []
    assert [type(each) for each in end(sites, "a", "success", queued=10.0)] == [Woken]


def test_2b_a_pilot_that_came_out_of_the_queue_wakes_who_slept_for_its_queue_only() -> None:
    sites = selection("a", "b")
    sites.still_queued("a", queued_seconds=4000.0, at=0.0)
    fail(sites, "b")
    assert [each.site for each in sites.pilot_began("a", queued_seconds=4100.0)] == ["a"]
    assert sites.pilot_began("b", queued_seconds=10.0) == []


# --- 3 and 4 --------------------------------------------------------------------------------------------------------


def test_3_and_4_a_site_is_overloaded_while_it_has_as_much_as_it_may() -> None:
    sites = selection("a")
    for _ in range(3):
        assert sites.status("a") == "candidate"
        sites.use("a")
    assert (sites.status("a"), picked(sites)) == ("overloaded", "")
    sites.free("a")
    assert (sites.status("a"), picked(sites)) == ("candidate", "a")


def test_4_also_when_its_room_grows() -> None:
    sites = selection("a")
    for _ in range(3):
        sites.use("a")
    for _ in range(20):
        sites.operation_began("a", "file-operation")
        sites.operation_ended("a", "file-operation")
    assert sites.status("a") == "candidate"


def test_3_also_when_its_room_shrinks() -> None:
    sites = selection("a")
    for _ in range(2):
        sites.use("a")
    assert sites.status("a") == "candidate"
    sites.submission_began("a")
    sites.submission_ended("a", seconds=1.0, trouble="connection-refused")
    assert sites.status("a") == "overloaded"


def test_overloaded_is_for_each_shape() -> None:
    sites = selection("a")
    for _ in range(3):
        sites.use("a", 5)
    assert (sites.status("a", shape=5), sites.status("a", shape=6)) == ("overloaded", "candidate")
