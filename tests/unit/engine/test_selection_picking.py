"""How one of the candidates is picked: draws, weights, and each policy."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter

import pytest

from pilotage.engine.selection import Draws, LearnedState, Requirements, SelectionSettings, SiteDescription
from pilotage.engine.selection.sampling import SCALE, Weights, weight_of
from pilotage.engine.selection.thompson import Arm, Arms, Evidence, is_quicker, log_rate, sample
from pilotage.model.resources import Demand
from pilotage.model.settings.engine import Policy
from pilotage.model.site import Site
from tests.kit.told_selection import Selection


def selection(scores: dict[str, float], policy: Policy = "weighted-random", **changed: float) -> Selection:
    made = Selection(SelectionSettings(policy=policy, **changed))  # type: ignore[arg-type]
    for name, score in scores.items():
        made.add(SiteDescription(site=Site(name=name, mode="bound"), initial_score=score))
    return made


def picks(sites: Selection, count: int, **requirements: object) -> Counter[str]:
    chosen = (sites.pick(Draws(11, each), now=0.0, **requirements) for each in range(count))  # type: ignore[arg-type]
    return Counter(choice.site if choice is not None else "" for choice in chosen)


# --- draws ------------------------------------------------------------------------------------------------------------


def test_the_generator_is_splitmix64() -> None:
    draws = Draws(1234567)
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [draws.bits() for _ in range(5)] == published
    assert Draws(0).bits() == 0xE220A8397B1DCDAF


def test_a_seed_and_a_decision_give_their_draws_and_no_others() -> None:
    drawn = {(seed, decision): Draws(seed, decision).uniform() for seed in range(40) for decision in range(40)}
    assert drawn == {key: Draws(*key).uniform() for key in drawn}
    assert len(set(drawn.values())) == len(drawn)
    assert all(0.0 <= each < 1.0 for each in drawn.values())


def test_first_draws_of_decisions_in_a_row_are_spread_evenly() -> None:
    bins = Counter(int(Draws(5, decision).uniform() * 20) for decision in range(20_000))
    assert sum((count - 1000) ** 2 / 1000 for count in bins.values()) < 43.8  # chi-square, 19 degrees, 0.001


def test_normals_have_their_mean_and_deviation_and_are_as_many_as_asked_for() -> None:
    drawn = Draws(4).normals(20_001)
    assert len(drawn) == 20_001
    assert statistics.fmean(drawn) == pytest.approx(0.0, abs=0.03)
    assert statistics.pstdev(drawn) == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("successes, failures", [(0.0, 0.0), (0.0, 5.0), (0.4, 0.1), (3.0, 1.0), (50.0, 2.0)])
def test_what_thompson_draws_has_mean_and_deviation_of_both_beliefs_multiplied(
    successes: float, failures: float
) -> None:
    chance = random.Random(1)
    exact = [
        math.log(chance.betavariate(1 + successes, 1 + failures) * chance.gammavariate(1 + successes, 1) / 100)
        for _ in range(20_000)
    ]
    drawn = [log_rate(successes, failures, 100.0, normal) for normal in Draws(5).normals(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(statistics.fmean(exact), abs=0.06)
    assert statistics.pstdev(drawn) == pytest.approx(statistics.pstdev(exact), rel=0.05)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_a_site_that_leaves_and_comes_back_changes_nothing() -> None:
    weights = Weights()
    values = [weight_of(0.1 * each + 1 / 3) for each in range(1, 50)]
    for index, value in enumerate(values):
        weights[index] = value
    total = weights.total
    for _ in range(1000):
        weights[7] = 0
        weights[7] = values[7]
    assert weights.total == total == sum(values)


def test_no_candidate_weighs_nothing() -> None:
    assert weight_of(1e-12) == 1
    assert weight_of(1.0) == SCALE


def test_the_ends_of_the_draw_fall_on_the_first_and_the_last() -> None:
    weights = Weights(3)
    for index, weight in enumerate((0, 5, 3)):
        weights[index] = weight
    assert [weights.pick(draw) for draw in (0.0, 0.62, 0.63, math.nextafter(1.0, 0.0))] == [1, 1, 2, 2]


def test_weighted_random_picks_as_often_as_the_weights_say() -> None:
    sites = selection({"a": 0.0, "b": 2.0, "c": -3.0, "d": 10.0, "e": -10.0})
    weights = {name: weight_of(sites.explain(name, now=0.0).tscore) for name in sites.names()}
    count = 20_000
    expected = {name: count * weight / sum(weights.values()) for name, weight in weights.items()}
    found = picks(sites, count)
    chi_square = sum((found[name] - expected[name]) ** 2 / expected[name] for name in expected)
    assert chi_square < 18.5  # 4 degrees, 0.001
    assert min(found.values()) > 0


def test_full_and_sleeping_sites_are_not_picked_and_the_others_keep_their_shares() -> None:
    sites = selection({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0})
    for _ in range(3):
        sites.use("a")
    sites.hibernate("b", at=0.0)
    found = picks(sites, 2000)
    assert set(found) == {"c", "d"}
    assert abs(found["c"] - 1000) < 150


def test_best_picks_the_highest_score_and_the_next_when_it_is_full() -> None:
    sites = selection({"a": 1.0, "b": 3.0, "c": 3.0}, "best")
    assert picks(sites, 50) == {"b": 50}
    while sites.status("b") == "candidate":
        sites.use("b")
    assert picks(sites, 50) == {"c": 50}


def test_uniform_does_not_look_at_scores() -> None:
    found = picks(selection({"a": -10.0, "b": 40.0}, "uniform"), 2000)
    assert abs(found["a"] - 1000) < 150


# --- who may be picked ------------------------------------------------------------------------------------------------


def test_a_preferred_site_is_taken_where_it_can_be() -> None:
    sites = selection({"a": 0.0, "b": 40.0})
    assert picks(sites, 20, prefer="a") == {"a": 20}
    assert picks(sites, 20, prefer="a", unfit=["a"]) == {"b": 20}
    sites.hibernate("a", at=0.0)
    assert picks(sites, 20, prefer="a") == {"b": 20}
    assert picks(sites, 20, prefer="nowhere") == {"b": 20}


def test_an_avoided_site_is_taken_only_where_no_other_could_do_it() -> None:
    sites = selection({"a": 0.0, "b": 0.0})
    assert picks(sites, 20, avoid=["a"]) == {"b": 20}
    while sites.status("b") == "candidate":
        sites.use("b")
    assert picks(sites, 20, avoid=["a"]) == {"": 20}  # it waits for the other
    assert picks(sites, 20, avoid=["a"], unfit=["b"]) == {"a": 20}
    assert set(picks(sites, 20, avoid=["a", "b"])) == {"a"}
    assert picks(sites, 20, unfit=["a", "b"]) == {"": 20}


def test_for_what_avoids_all_that_are_awake_a_sleeping_site_is_woken() -> None:
    sites = selection({"a": 0.0, "b": 0.0})
    sites.attempt_created("b", at=0.0)
    sites.attempt_ended("b", cause="platform", at=0.0, created_at=0.0)
    assert sites.ask_again_at(now=0.0) == 10.0
    assert sites.ask_again_at(now=0.0, avoid=["a"]) == 0.0
    assert sites.ask_again_at(now=0.0, unfit=["b"]) is None
    choice = sites.pick(Draws(1), now=0.0, avoid=["a"])
    assert choice is not None
    assert (choice.site, choice.woken is not None) == ("b", True)


def test_without_sites_nothing_is_picked() -> None:
    assert Selection().pick(Draws(1), now=0.0) is None
    assert Selection().explain_choice(now=0.0).sites == ()


def test_what_nobody_asks_for_any_more_is_forgotten_and_can_be_asked_again() -> None:
    sites = selection({"a": 0.0})
    requirements = Requirements(demand=Demand(cores_hundredths=50))
    assert picks(sites, 1, requirements=requirements, shape=3) == {"a": 1}
    sites.forget(requirements, 3)
    assert picks(sites, 1, requirements=requirements, shape=3) == {"a": 1}


def test_a_pool_that_is_handed_in_is_brought_up_to_date() -> None:
    sites = selection({"a": 0.0, "b": 0.0})
    pool = sites.pool(Requirements(), 0)
    assert set(picks(sites, 50, pool=pool)) == {"a", "b"}
    sites.hibernate("a", at=0.0)
    assert set(picks(sites, 50, pool=pool)) == {"b"}


def test_a_choice_says_how_it_came_about() -> None:
    sites = selection({"a": 0.0, "b": 0.0})
    choice = sites.pick(Draws(1), now=0.0)
    assert choice is not None
    assert (choice.policy, choice.tscore, choice.weight, choice.total) == ("weighted-random", 1.0, SCALE, 2 * SCALE)
    assert (choice.candidates, choice.preferred, choice.woken) == (2, False, None)


# --- Thompson sampling ------------------------------------------------------------------------------------------------


def taught(sites: Selection, site: str, *, seconds: float, count: int, succeeded: bool = True, at: float = 0.0) -> None:
    for _ in range(count):
        sites.attempt_created(site, at=at, activity="x")
        cause = "success" if succeeded else "application"
        sites.attempt_ended(site, cause=cause, at=at + seconds, created_at=at, activity="x")  # type: ignore[arg-type]


def test_thompson_goes_where_success_comes_quickest() -> None:
    sites = selection({"slow": 0.0, "quick": 0.0}, "thompson")
    taught(sites, "slow", seconds=100.0, count=20)
    taught(sites, "quick", seconds=10.0, count=20)
    assert picks(sites, 500, activity="x")["quick"] > 490
    assert 150 < picks(sites, 500, activity="another")["quick"] < 350


def test_thompson_does_not_take_failing_fast_for_being_quick() -> None:
    sites = selection({"good": 0.0, "hole": 0.0}, "thompson")
    taught(sites, "good", seconds=100.0, count=5)
    taught(sites, "hole", seconds=0.01, count=20, succeeded=False)
    assert picks(sites, 500, activity="x")["good"] > 450


def test_thompson_counts_the_age_of_what_is_not_over_against_a_site() -> None:
    sites = selection({"a": 0.0, "b": 0.0}, "thompson")
    taught(sites, "a", seconds=10.0, count=3)
    taught(sites, "b", seconds=10.0, count=3)
    for _ in range(3):
        sites.attempt_created("b", at=0.0, activity="x")
    shares = []
    for now in (10.0, 100.0, 1000.0):
        chosen = [sites.pick(Draws(2, each), now=now, activity="x") for each in range(500)]
        shares.append(sum(choice is not None and choice.site == "b" for choice in chosen))
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 50


def test_thompson_forgets_so_that_drift_is_followed() -> None:
    arm = Arm(Evidence(activity="x", successes=8.0, failures=4.0, seconds=80.0, at=0.0))
    assert arm.figures(7200.0, 3600.0) == (2.0, 1.0, 20.0)
    arm.ended(3600.0, 5.0, succeeded=True, half_life=3600.0)
    assert arm.evidence == Evidence(activity="x", successes=5.0, failures=2.0, seconds=45.0, at=3600.0)
    assert arm.figures(0.0, 3600.0) == (5.0, 2.0, 45.0)  # a clock that went back takes nothing back


def test_thompson_thinks_of_an_unknown_site_as_of_those_it_is_compared_with() -> None:
    # Both take an hour where they are known; of an unknown one a minute would be thought by itself, and it would always win.
    known = [Arm(Evidence(activity="x", successes=9.0, seconds=9 * 3600.0)) for _ in range(2)]
    arms = [*known, Arm(Evidence(activity="x"))]
    drawn = Counter(sample(arms, 0.0, Draws(1, each), SelectionSettings()) for each in range(600))
    assert 60 < drawn[2] < 300


@pytest.mark.parametrize(
    "evidence",
    [
        (Evidence(activity="x"), Evidence(activity="x", successes=9.0, seconds=600.0)),
        (
            Evidence(activity="x", successes=4.0, failures=2.0, seconds=90.0),
            Evidence(activity="x", successes=30.0, seconds=900.0),
        ),
        (Evidence(activity="x", failures=3.0), Evidence(activity="x", successes=1.0, failures=1.0, seconds=5.0)),
    ],
)
def test_of_two_one_draw_decides_as_often_as_a_draw_for_each_would(evidence: tuple[Evidence, Evidence]) -> None:
    one, other = (Arm(each) for each in evidence)
    settings, count = SelectionSettings(), 20_000
    each_drawn = sum(sample([one, other], 1800.0, Draws(1, decision), settings) == 0 for decision in range(count))
    drawn_once = sum(is_quicker(one, other, 1800.0, (each + 0.5) / count, settings) for each in range(count))
    assert drawn_once == pytest.approx(each_drawn, abs=0.012 * count)
    assert 0 < drawn_once < count


def test_evidence_of_a_moment_ago_is_as_good_as_new() -> None:
    arm = Arm(Evidence(activity="x", successes=8.0, seconds=80.0, at=100.0))
    assert arm.figures(103.0, 3600.0) == (8.0, 0.0, 80.0)
    arm.ended(103.0, 10.0, succeeded=True, half_life=3600.0)
    assert arm.evidence == Evidence(activity="x", successes=9.0, seconds=90.0, at=100.0)
    assert arm.figures(104.0, 3600.0)[0] < 9.0


def test_two_are_picked_by_weight_and_the_second_is_another() -> None:
    weights = Weights(40)
    assert weights.pick_two(0.5, 0.5) == (-1, -1)
    weights[7] = 5
    assert weights.pick_two(0.5, 0.5) == (7, -1)
    weights[3], weights[39] = 3, 2
    draws = [(each + 0.5) / 100 for each in range(100)]
    found = Counter(weights.pick_two(one, other) for one in draws for other in draws)
    shares = {3: 0.3, 7: 0.5, 39: 0.2}
    assert found.keys() == {(one, other) for one in shares for other in shares if one != other}
    for (one, other), count in found.items():
        assert count == pytest.approx(10_000 * shares[one] * shares[other] / (1.0 - shares[one]), abs=60)


def test_halves_are_the_next_bits() -> None:
    draws, bits = Draws(3), Draws(3).bits()
    high, low = draws.halves()
    assert (int(high * 2**32) << 32) + int(low * 2**32) == bits


def test_thompson_compares_some_of_very_many() -> None:
    sites = selection({f"s{each}": 0.0 for each in range(200)}, "thompson", thompson_looked_at=8)
    found = picks(sites, 400)
    assert len(found) > 100
    pool = sites._sites.pool(Requirements(), 0)
    assert pool.weights.total == 200 * SCALE  # what was drawn was put back


def test_the_activities_used_latest_are_remembered_and_what_is_under_way_is() -> None:
    arms = Arms(SelectionSettings(thompson_activities_max=2))
    arms.of("a").began(1_000_000)
    for name in ("b", "c", "d"):
        arms.of(name)
    assert [each.activity for each in arms.evidence()] == ["a", "d"]
    arms.peek("z")
    assert [each.activity for each in arms.evidence()] == ["a", "d"]


def test_what_thompson_learned_is_in_the_standing() -> None:
    sites = selection({"a": 0.0}, "thompson")
    taught(sites, "a", seconds=10.0, count=2)
    learned_state: LearnedState = sites.learned_state("a")
    assert learned_state.arms == (Evidence(activity="x", successes=2.0, seconds=20.0, at=10.0),)


# --- explanations -----------------------------------------------------------------------------------------------------


def test_every_stage_says_why() -> None:
    sites = selection({"a": 0.0, "b": 0.0})
    sites.add(SiteDescription(site=Site(name="c", kind="cluster", mode="bound")))
    sites.attempt_created("a", at=0.0)
    sites.attempt_ended("a", cause="platform", at=5.0, created_at=0.0)
    for _ in range(3):
        sites.use("b")
    told = {each.site: each for each in sites.explain_choice(now=6.0, requirements=Requirements(executor="")).sites}
    assert [each.stage for each in told["a"].stages] == ["filter", "status", "score", "room", "pick"]
    assert {name: each.status for name, each in told.items()} == {
        "a": "hibernated",
        "b": "overloaded",
        "c": "candidate",
    }
    asleep = told["a"].stages[1]
    assert (asleep.passes, asleep.since, asleep.until) == (False, 5.0, 15.0)
    assert "platform-failure" in asleep.message
    assert "3 are reserved or running; the limit is 3" in told["b"].stages[3].message
    assert told["c"].share == 1.0
    refused = sites.explain("b", now=6.0, requirements=Requirements(executor="cluster"), shape=1)
    assert (refused.status, refused.stages[0].code, refused.stages[0].passes) == ("refused", "executor", False)


@pytest.mark.parametrize("policy", ["weighted-random", "uniform", "best", "thompson", "first"])
def test_every_policy_can_be_told(policy: Policy) -> None:
    sites = selection({"a": 0.0, "b": 1.0}, policy)
    sites.attempt_began("a", at=0.0, queued_seconds=30.0)
    told = sites.explain_choice(now=0.0)
    assert (told.policy, told.candidates, told.refused, told.left_out) == (policy, 2, 0, 0)
    assert all(each.stages[-1].message for each in told.sites)
    assert sum(each.share for each in told.sites) == pytest.approx(1.0)


def test_who_is_certain_to_be_picked_is_told_so_and_thompson_tells_what_it_believes() -> None:
    best = {each.site: each for each in selection({"a": 0.0, "b": 1.0}, "best").explain_choice(now=0.0).sites}
    assert (best["a"].share, best["b"].share) == (0.0, 1.0)
    first = {each.site: each for each in selection({"a": 0.0, "b": 1.0}, "first").explain_choice(now=0.0).sites}
    assert (first["a"].share, first["a"].stages[-1].message) == (1.0, "it comes first")
    sites = selection({"a": 0.0, "b": 0.0}, "thompson")
    taught(sites, "a", seconds=100.0, count=5)
    told = {each.site: each.stages[-1].message for each in sites.explain_choice(now=0.0).sites}
    assert told["a"].endswith("of x, 100 % succeeded, one in 100 s")
    assert told["b"].endswith("no attempt has ended there yet")


def test_of_very_many_sites_the_most_probable_are_told() -> None:
    sites = selection({f"s{each}": float(each % 40) for each in range(100)})
    told = sites.explain_choice(now=0.0)
    assert (len(told.sites), told.left_out) == (20, 80)
    assert [each.score for each in told.sites[:2]] == [39.0, 39.0]


def test_what_has_left_no_longer_counts_with_its_age() -> None:
    arm = Arm(Evidence(activity="run"))
    arm.began(10_000_000)
    arm.began(20_000_000)
    arm.left(10.0)
    assert arm.figures(30.0, 3600.0)[2] == 10.0
