"""Canaries, probes and people; and what was learned of a site, written down and known again."""

from __future__ import annotations

import msgspec

from pilotage.engine.selection import (
    Drained,
    Draws,
    Hibernated,
    LearnedState,
    Requirements,
    SiteDescription,
    Underway,
    Woken,
)
from pilotage.engine.selection.black_holes import Cause, Tally
from pilotage.engine.selection.status import Change
from pilotage.model.site import Site
from tests.kit.told_selection import Selection


def selection(*names: str) -> Selection:
    made = Selection()
    for name in names:
        made.add(SiteDescription(site=Site(name=name, mode="bound")))
    return made


def start(sites: Selection, site: str) -> None:
    sites.use(site)
    sites.attempt_created(site, at=0.0)
    sites.attempt_began(site, at=0.0)


def end(sites: Selection, site: str, cause: Cause, *, pilot: str = "") -> list[Change]:
    sites.free(site)
    return sites.attempt_ended(site, cause=cause, at=0.0, created_at=0.0, began_at=0.0, pilot=pilot)


def fail(sites: Selection, *names: str) -> None:
    for name in names:
        start(sites, name)
        end(sites, name, "platform")


def score(sites: Selection, site: str) -> float:
    return sites.explain(site, now=0.0).score


def picked(sites: Selection) -> str:
    choice = sites.pick(Draws(1), now=0.0)
    return choice.site if choice is not None else ""


# --- canaries, probes, people -----------------------------------------------------------------------------------------


def woken() -> Selection:
    sites = selection("a")
    fail(sites, "a")
    assert picked(sites) == "a"
    return sites


def test_a_canary_is_alone_until_an_attempt_ends() -> None:
    sites = woken()
    start(sites, "a")
    assert (sites.status("a"), sites.room("a").rule) == ("overloaded", "canary")
    end(sites, "a", "success")
    assert (sites.status("a"), sites.room("a").rule) == ("candidate", "bound")


def test_a_canary_that_fails_by_its_own_fault_ends_the_caution() -> None:
    sites = woken()
    start(sites, "a")
    end(sites, "a", "application")
    start(sites, "a")
    assert (sites.status("a"), sites.room("a").rule) == ("candidate", "bound")


def test_a_canary_that_fails_by_the_fault_of_the_platform_puts_its_site_to_sleep_again() -> None:
    sites = woken()
    start(sites, "a")
    assert [type(each) for each in end(sites, "a", "platform")] == [Hibernated]
    learned_state = sites.learned_state("a")
    assert (learned_state.status, learned_state.times, learned_state.canary, learned_state.placed) == (
        "hibernated",
        2,
        False,
        0,
    )


def test_a_canary_that_was_only_reserved_leaves_room_for_another() -> None:
    sites = woken()
    sites.use("a")
    sites.free("a")
    assert sites.status("a") == "candidate"
    sites.use("a")
    assert sites.status("a") == "overloaded"


def test_a_canary_that_was_preempted_is_followed_by_another() -> None:
    sites = woken()
    start(sites, "a")
    end(sites, "a", "neutral")
    start(sites, "a")
    assert sites.room("a").rule == "canary"


def test_a_canary_is_for_all_shapes_together() -> None:
    sites = woken()
    sites.use("a", 1)
    assert sites.status("a", shape=2) == "overloaded"


def test_after_a_restart_a_canary_that_was_only_reserved_is_forgotten() -> None:
    sites = woken()
    sites.use("a")
    again = selection("a")
    again.restore(sites.learned_state("a"))
    again.recount("a")
    assert again.status("a") == "candidate"
    again.recount("a", attempts=[Underway(created_at=0.0)], used={0: 1})
    again.restore(sites.learned_state("a"))
    assert again.status("a") == "overloaded"


def test_a_probe_that_fails_puts_a_site_to_sleep_and_one_that_passes_wakes_it_with_its_score() -> None:
    sites = selection("a", "b")
    assert [type(each) for each in sites.probe_finished("a", passed=False, at=0.0, message="no route")] == [Hibernated]
    assert sites.probe_finished("a", passed=False, at=1.0) == []
    changes = sites.probe_finished("a", passed=True, at=2.0, score=3.0)
    assert isinstance(changes[0], Woken)
    assert (changes[0].rule, changes[0].canary, score(sites, "a")) == ("probe-passed", True, 3.0)


def test_a_probe_sets_the_score_of_a_site_only_before_anything_was_tried_there() -> None:
    sites = selection("a")
    start(sites, "a")
    end(sites, "a", "success")
    sites.probe_finished("a", passed=True, at=0.0, score=9.0)
    assert score(sites, "a") == 0.1


def test_only_a_person_wakes_what_a_person_put_to_sleep() -> None:
    sites = selection("a", "b")
    start(sites, "a")
    assert [type(each) for each in sites.hibernate("a", at=0.0)] == [Hibernated]
    assert sites.hibernate("a", at=0.0) == []
    assert end(sites, "a", "success") == []
    assert sites.probe_finished("a", passed=True, at=0.0) == []
    assert sites.pilot_began("a", queued_seconds=1.0) == []
    changes = sites.wake("a")
    assert isinstance(changes[0], Woken)
    assert (changes[0].rule, changes[0].canary) == ("by-hand", True)
    assert sites.wake("a") == []


def test_three_platform_failures_in_a_row_drain_a_pilot_once() -> None:
    sites = selection("a")
    told = []
    for cause in ("platform", "platform", "success", "platform", "application", "platform", "platform", "platform"):
        start(sites, "a")
        told.append([each.name for each in end(sites, "a", cause, pilot="p1") if isinstance(each, Drained)])
    assert told == [[], [], [], [], [], [], ["p1"], []]
    sites.pilot_gone("a", "p1")
    start(sites, "a")
    assert not any(isinstance(each, Drained) for each in end(sites, "a", "platform", pilot="p1"))


# --- standing and what is not known -----------------------------------------------------------------------------------


def test_a_standing_survives_being_written_down() -> None:
    sites = selection("a", "b")
    fail(sites, "a")
    learned_state = sites.learned_state("a")
    assert msgspec.json.decode(msgspec.json.encode(learned_state), type=LearnedState) == learned_state
    assert learned_state.sleep is not None
    assert (learned_state.times, learned_state.sleep.reason) == (1, "platform-failure")


def test_the_queue_of_those_who_sleep_survives_a_restart() -> None:
    sites = selection("a", "b", "c")
    fail(sites, "c", "a", "b")
    again = selection("a", "b", "c")
    for name in "abc":
        again.restore(sites.learned_state(name))
    assert picked(again) == "c"


def test_a_site_that_is_described_anew_keeps_what_was_learned() -> None:
    sites = selection("a", "b")
    fail(sites, "a")
    sites.add(SiteDescription(site=Site(name="a", mode="bound", kind="cluster")))
    assert sites.status("a") == "hibernated"
    assert sites.status("a", requirements=Requirements(executor="cluster"), shape=1) == "hibernated"
    sites.add(SiteDescription(site=Site(name="a", mode="bound")))
    assert sites.status("a", requirements=Requirements(executor="cluster"), shape=1) == ""


def test_a_site_that_left_and_comes_back_begins_anew() -> None:
    sites = selection("a", "b")
    fail(sites, "a")
    sites.remove("a")
    assert (sites.names(), sites.status("a")) == (["b"], "")
    sites.add(SiteDescription(site=Site(name="a", mode="bound")))
    assert (sites.names(), sites.status("a")) == (["b", "a"], "candidate")


def test_a_site_that_left_takes_its_queue_times_and_its_ends_with_it() -> None:
    sites = selection("a", "b")
    for _ in range(20):
        sites.attempt_began("a", at=0.0, queued_seconds=50.0)
    start(sites, "a")
    end(sites, "a", "success")
    assert sites.queue_throttle_seconds == 350.0
    sites.remove("a")
    assert sites.queue_throttle_seconds == 3600.0
    everyone = sites._sites.everyone
    assert (everyone.tally(), everyone.sites) == (Tally(), 1)


def test_what_is_told_of_an_unknown_site_changes_nothing() -> None:
    sites = selection("a")
    before = sites.learned_state("a")
    sites.remove("x")
    sites.use("x")
    sites.submission_began("x")
    sites.submission_ended("x", seconds=1.0)
    sites.room_changed("x", backlog=3)
    assert end(sites, "x", "platform") == sites.wake("x") == sites.hibernate("x", at=0.0) == []
    assert sites.replica_won(0.0, others=[("x", 1e9)], at=0.0) == sites.pilot_began("x", queued_seconds=1.0) == []
    assert sites.learned_state("a") == before
