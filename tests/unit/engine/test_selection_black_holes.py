"""Sites that fail fast, sites that queue for ever, and very many sites: what the choice makes of them."""

from __future__ import annotations

import heapq
import time
from typing import Literal

import msgspec
import pytest

from pilotage.engine.selection import Draws, Hibernated, LearnedState, SelectionSettings, SiteDescription
from pilotage.engine.selection.black_holes import AllSites, Cause, RecentEnds, Tally
from pilotage.engine.selection.status import Sleep
from pilotage.model.settings.engine import Policy
from pilotage.model.site import Site
from tests.kit.told_selection import Selection

SETTINGS = SelectionSettings()


def ends(*sites: list[tuple[float, bool]]) -> list[RecentEnds]:
    """The ends of some sites: seconds in a slot, and whether it failed."""
    everyone = AllSites()
    made = [RecentEnds(everyone) for _ in sites]
    for one, told in zip(made, sites, strict=True):
        for seconds, failed in told:
            one.ended(seconds, failed=failed)
    return made


# --- the rate of failures -----------------------------------------------------------------------------------------------


def test_a_site_that_fails_at_once_where_another_works_is_a_black_hole() -> None:
    hole, good = ends([(0.01, True)] * 5, [(10.0, False)] * 4)
    assert "5 of its latest 5 attempts failed in 0.05 s of slot time" in hole.black_hole(0.0, SETTINGS)
    assert good.black_hole(0.0, SETTINGS) == ""


def test_few_failures_say_nothing() -> None:
    hole, _ = ends([(0.01, True)] * 4, [(10.0, False)] * 4)
    assert hole.black_hole(0.0, SETTINGS) == ""


def test_what_fails_as_quickly_elsewhere_is_the_applications_fault() -> None:
    here, _ = ends([(0.01, True)] * 20, [(0.01, True)] * 20)
    assert here.black_hole(0.0, SETTINGS) == ""


def test_failures_that_take_as_long_as_work_does_make_no_black_hole() -> None:
    here, _ = ends([(100.0, True)] * 5, [(100.0, False)] * 2 + [(100.0, True)])
    assert here.black_hole(0.0, SETTINGS) == ""


def test_a_site_that_also_finishes_work_is_no_black_hole() -> None:
    here, _ = ends([(0.01, True), (0.01, False), (0.01, False)] * 8, [(1000.0, False)] * 4)
    assert here.black_hole(0.0, SETTINGS) == ""


def test_without_another_site_nobody_can_tell() -> None:
    (alone,) = ends([(0.01, True)] * 30)
    assert alone.black_hole(0.0, SETTINGS) == ""


def test_an_attempt_that_goes_on_elsewhere_is_evidence_too() -> None:
    hole, good = ends([(0.01, True)] * 5, [])
    good.began(100_000_000)
    assert hole.black_hole(100.001, SETTINGS) == ""
    assert hole.black_hole(103.0, SETTINGS)
    good.left(100.0)
    assert hole.black_hole(103.0, SETTINGS) == ""


def test_only_the_latest_ends_count() -> None:
    here, _ = ends([(0.01, True)] * 40 + [(1.0, False)] * 32, [(10.0, False)])
    assert (here.tally().failures, here.tally().ends) == (0, 32)


def test_a_site_that_goes_takes_its_ends_with_it() -> None:
    everyone = AllSites()
    one, other = RecentEnds(everyone), RecentEnds(everyone)
    for each in (one, other):
        each.began(5_000_000)
        each.ended(2.0, failed=True)
    one.remove()
    assert everyone.tally() == other.tally() == Tally(1, 1, 2_000_000, 1, 5_000_000)
    other.restore(one.latest)
    other.recount([])
    assert everyone.tally() == Tally()


def test_failures_of_the_application_hibernate_a_black_hole_and_no_other() -> None:
    sites = Selection()
    for name in ("good", "hole"):
        sites.add(SiteDescription(site=Site(name=name, mode="bound")))
    sites.attempt_created("good", at=0.0)
    sites.attempt_began("good", at=0.0)
    changes = []
    for each in range(5):
        at = 10.0 + each
        sites.attempt_created("hole", at=at)
        sites.attempt_began("hole", at=at)
        changes += sites.attempt_ended("hole", cause="application", at=at + 0.01, created_at=at, began_at=at)
    assert [(type(each), getattr(each, "reason", "")) for each in changes] == [(Hibernated, "black-hole")]


def three_sites(policy: Policy = "thompson") -> Selection:
    sites = Selection(SelectionSettings(policy=policy))
    for name in ("here", "there", "yonder"):
        sites.add(SiteDescription(site=Site(name=name, mode="bound")))
    return sites


def end(
    sites: Selection, name: str, activity: str, *, failed: bool, seconds: float = 0.01, at: float = 100.0
) -> list[str]:
    """An attempt begins and ends; why its site sleeps now, if it does."""
    sites.attempt_created(name, at=at, activity=activity)
    sites.attempt_began(name, at=at)
    cause: Cause = "application" if failed else "success"
    told = sites.attempt_ended(name, cause=cause, at=at + seconds, created_at=at, began_at=at, activity=activity)
    return [each.reason for each in told if isinstance(each, Hibernated)]


def test_a_program_that_fails_at_once_at_every_site_makes_none_of_them_a_black_hole() -> None:
    sites = three_sites()
    for name in ("there", "yonder"):
        assert end(sites, name, "broken", failed=True) == []
        for _ in range(3):  # what else they do takes long, and goes well
            assert end(sites, name, "sound", failed=False, seconds=600.0) == []
    assert [end(sites, "here", "broken", failed=True, at=800.0) for _ in range(20)] == [[]] * 20
    # And nothing of that is held against it when something fails that does not fail elsewhere.
    assert [end(sites, "here", "sound", failed=True, at=810.0) for _ in range(4)] == [[]] * 4
    assert end(sites, "here", "sound", failed=True, at=810.0) == ["black-hole"]


def test_a_program_that_succeeds_at_another_site_is_no_excuse_although_it_failed_at_a_third() -> None:
    sites = three_sites()
    assert end(sites, "there", "picky", failed=True) == []
    for _ in range(9):
        assert end(sites, "yonder", "picky", failed=False, seconds=600.0) == []
    assert [end(sites, "here", "picky", failed=True, at=800.0) for _ in range(5)][-1] == ["black-hole"]


def test_two_black_holes_do_not_excuse_each_other_beside_a_site_where_the_program_goes_on() -> None:
    sites = three_sites()
    sites.attempt_created("yonder", at=0.0, activity="long")
    sites.attempt_began("yonder", at=0.0)
    told = [end(sites, name, "long", failed=True) for _ in range(5) for name in ("here", "there")]
    assert told == [[]] * 8 + [["black-hole"]] * 2


def test_of_a_program_that_fails_half_of_the_time_wherever_it_runs_twice_as_many_failures_make_a_black_hole() -> None:
    sites = three_sites()
    for name in ("there", "yonder"):
        for failed in (True, False) * 4:
            end(sites, name, "flaky", failed=failed, seconds=600.0)
    told = [end(sites, "here", "flaky", failed=True, at=800.0) for _ in range(12)]
    assert told[:9] == [[]] * 9
    assert ["black-hole"] in told


def test_a_program_that_nobody_else_has_tried_is_no_excuse() -> None:
    sites = three_sites()
    assert end(sites, "there", "sound", failed=False, seconds=600.0) == []
    assert [end(sites, "here", "untried", failed=True, at=800.0) for _ in range(5)][-1] == ["black-hole"]


def test_failures_that_are_common_to_all_sites_stay_so_over_a_restart() -> None:
    sites = three_sites()
    for name in ("there", "yonder"):
        end(sites, name, "broken", failed=True)
        end(sites, name, "sound", failed=False, seconds=600.0)
    for _ in range(9):
        end(sites, "here", "broken", failed=True, at=800.0)
    again = three_sites()
    for name in ("here", "there", "yonder"):
        written = msgspec.json.encode(sites.learned_state(name))
        again.restore(msgspec.json.decode(written, type=LearnedState))
        assert again.learned_state(name) == sites.learned_state(name)
    assert end(again, "here", "broken", failed=True, at=810.0) == []
    # Of one that was written down before anybody kept whose the failures were, all count.
    bare = msgspec.structs.replace(sites.learned_state("here"), failed=())
    again.restore(bare)
    assert end(again, "here", "broken", failed=True, at=820.0) == ["black-hole"]


@pytest.mark.parametrize("policy", ["weighted-random", "best", "first"])
def test_where_evidence_is_not_kept_by_activity_what_fails_as_often_elsewhere_counts_for_no_site(
    policy: Policy,
) -> None:
    sites = three_sites(policy)
    for name in ("there", "yonder"):
        for _ in range(3):
            assert end(sites, name, "broken", failed=True, seconds=60.0) == []
    assert [end(sites, "here", "broken", failed=True, at=800.0) for _ in range(20)] == [[]] * 20


def test_a_canary_that_succeeds_makes_the_past_forgotten() -> None:
    sites = Selection()
    for name in ("good", "hole"):
        sites.add(SiteDescription(site=Site(name=name, mode="bound")))
    sites.attempt_created("good", at=0.0)
    sites.attempt_began("good", at=0.0)

    def attempt(cause: Cause, at: float) -> list[str]:
        sites.attempt_created("hole", at=at)
        sites.attempt_began("hole", at=at)
        told = sites.attempt_ended("hole", cause=cause, at=at + 0.01, created_at=at, began_at=at)
        return [type(each).__name__ for each in told]

    assert [attempt("application", 10.0 + each) for each in range(5)][-1] == ["Hibernated"]
    sites.wake("hole")
    assert attempt("application", 20.0) == ["Hibernated"]  # the first of its ends is enough: it is still one
    sites.wake("hole")
    assert attempt("success", 30.0) == []
    assert attempt("application", 31.0) == []


# --- small worlds -------------------------------------------------------------------------------------------------------


class World:
    """Sites with slots, each of which ends what it is given after its time; packages are tried until they succeed."""

    def __init__(
        self, sites: dict[str, tuple[int, float, Cause]], policy: Policy, *, mode: Literal["pilots", "bound"]
    ) -> None:
        self.sites = sites
        self.selection = Selection(SelectionSettings(policy=policy))
        for name, (slots, _, _) in sites.items():
            self.selection.add(SiteDescription(site=Site(name=name, mode=mode)))
            self.selection.room_changed(name, slots={0: slots})
        self.now = 0.0
        self.free = {name: slots for name, (slots, _, _) in sites.items()}
        self.waiting: dict[str, list[float]] = {name: [] for name in sites}
        self.ends: list[tuple[float, int, str, float, float]] = []
        self.attempts = 0
        self.decisions = 0
        self.done: dict[str, int] = dict.fromkeys(sites, 0)

    def run(self, packages: int) -> None:
        ready = packages
        while sum(self.done.values()) < packages:
            while ready and self.bind():
                ready -= 1
            wake_at = self.selection.ask_again_at(now=self.now) if ready else None
            if wake_at is not None and (not self.ends or wake_at < self.ends[0][0]):
                self.now = max(self.now, wake_at)
                continue
            ready += self.end_one()

    def bind(self) -> bool:
        self.decisions += 1
        assert self.decisions < 50_000, "it does not get anywhere"
        choice = self.selection.pick(Draws(42, self.decisions), now=self.now)
        if choice is None:
            return False
        self.attempts += 1
        self.selection.use(choice.site)
        self.selection.attempt_created(choice.site, at=self.now)
        self.waiting[choice.site].append(self.now)
        self.begin(choice.site)
        return True

    def begin(self, name: str) -> None:
        while self.free[name] and self.waiting[name]:
            self.free[name] -= 1
            created_at = self.waiting[name].pop(0)
            self.selection.attempt_began(name, at=self.now)
            heapq.heappush(self.ends, (self.now + self.sites[name][1], self.decisions, name, created_at, self.now))

    def end_one(self) -> int:
        """One attempt ends; whether its package is to be tried again."""
        self.now, _, name, created_at, began_at = heapq.heappop(self.ends)
        cause = self.sites[name][2]
        self.free[name] += 1
        self.selection.free(name)
        self.selection.attempt_ended(name, cause=cause, at=self.now, created_at=created_at, began_at=began_at)
        self.begin(name)
        self.done[name] += cause == "success"
        return cause != "success"


@pytest.mark.parametrize("mode", ["pilots", "bound"])
@pytest.mark.parametrize("policy", ["weighted-random", "best", "thompson"])
@pytest.mark.parametrize("cause", ["platform", "application"])
def test_a_site_that_fails_everything_at_once_wastes_under_three_per_cent(
    cause: Cause, policy: Policy, mode: Literal["pilots", "bound"]
) -> None:
    world = World({"good": (4, 20.0, "success"), "hole": (4, 0.01, cause)}, policy, mode=mode)
    world.run(1000)
    wasted = world.attempts - 1000
    assert 0 < wasted < 0.03 * world.attempts


def test_a_job_gets_through_where_the_only_site_fails_for_a_while() -> None:
    world = World({"here": (2, 1.0, "platform")}, "weighted-random", mode="pilots")
    for _ in range(6):
        while world.bind():
            pass
        while world.ends:
            world.end_one()
        world.now = world.selection.ask_again_at(now=world.now) or world.now
    assert world.now < 400.0
    world.sites["here"] = (2, 1.0, "success")
    world.run(20)
    assert world.selection.status("here") == "candidate"


def test_the_work_leaves_a_site_that_queues_for_ever() -> None:
    sites = Selection()
    for name in ("quick", "never"):
        sites.add(SiteDescription(site=Site(name=name, mode="bound")))
    now, chosen = 0.0, []
    for decision in range(300):
        choice = sites.pick(Draws(9, decision), now=now)
        assert choice is not None
        chosen.append(choice.site)
        sites.use(choice.site)
        sites.attempt_created(choice.site, at=now)
        if choice.site == "quick":
            sites.attempt_began("quick", at=now, queued_seconds=1.0)
            sites.free("quick")
            sites.attempt_ended(
                "quick", cause="success", at=now + 10.0, created_at=now, began_at=now, queued_seconds=1.0
            )
        elif chosen.count("never") == 1:
            # One replica of what waits there begins elsewhere.
            sites.replica_won(1.0, others=[("never", 400.0)], at=now)
        now += 10.0
    assert chosen.count("never") <= 3


# --- very many sites --------------------------------------------------------------------------------------------------


def test_an_event_and_a_pick_cost_about_the_same_among_ten_thousand_sites_as_among_a_hundred() -> None:
    def seconds(count: int) -> float:
        sites = Selection()
        for each in range(count):
            sites.add(SiteDescription(site=Site(name=f"s{each}", mode="bound")))
        sites.pick(Draws(0), now=0.0)
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            for decision in range(1000):
                choice = sites.pick(Draws(1, decision), now=0.0)
                assert choice is not None
                sites.use(choice.site)
                sites.attempt_created(choice.site, at=0.0)
                sites.attempt_began(choice.site, at=0.0, queued_seconds=1.0)
                sites.free(choice.site)
                sites.attempt_ended(choice.site, cause="success", at=1.0, created_at=0.0, began_at=0.0)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(10_000) < 5 * seconds(100)


def test_to_ask_in_vain_while_ten_thousand_sites_sleep_costs_little() -> None:
    sites = Selection()
    names = [f"s{each}" for each in range(10_000)]
    for order, name in enumerate(names):
        sites.add(SiteDescription(site=Site(name=name, mode="bound")))
        sleep = Sleep(reason="platform-failure", message="", since=0.0, order=order)
        sites.restore(LearnedState(site=name, earned=0.0, sleep=sleep, times=5))
    assert sites.pick(Draws(0), now=1.0) is None
    began = time.process_time()
    for decision, name in enumerate(names[:1000]):
        sites.operation_began(name, "transfer")
        sites.operation_ended(name, "transfer")
        assert sites.pick(Draws(1, decision), now=1.0) is None
    assert time.process_time() - began < 1.0  # to look at all of them each time would take about ten
    choice = sites.pick(Draws(0), now=61.0)
    assert choice is not None
    assert choice.site == "s0"
