"""Association rules: a cause is found, chance is not taken for one, and an effect never for its cause."""

from __future__ import annotations

from random import Random

from pilotage.engine.healing.association import SUPPORT_MIN, WITHIN_SECONDS, AssociationRules

STORE, BLOCKED, BAD = "input-unavailable", "blocked-activity", "bad-site"


def jobs(rules: AssociationRules, *, count: int, caused: float, seed: int = 1) -> None:
    """Jobs of four hours: stores fail now and then; blocked activities follow them, or come when they like."""
    random = Random(seed)
    for number in range(count):
        job, at = f"j{number}", 100_000.0 * number
        for step in range(24):
            now = at + step * WITHIN_SECONDS
            fails, blocks = random.random() < 0.2, random.random() < 0.2
            rules.observe([STORE] if fails else [], job=job, at=now + 1.0)
            rules.observe(
                [BLOCKED] if (fails and random.random() < caused) or (not caused and blocks) else [],
                job=job,
                at=now + 200.0,
            )


def test_what_follows_a_failing_store_is_caused_by_it() -> None:
    rules = AssociationRules()
    jobs(rules, count=40, caused=0.9)
    (rule,) = rules.causes(BLOCKED)
    assert rule.first == STORE
    assert 0.8 < rule.confidence < 1.0
    assert rules.causes(STORE) == ()  # what comes after is no cause


def test_what_comes_together_by_chance_makes_no_rule() -> None:
    found = 0
    for seed in range(20):
        rules = AssociationRules()
        jobs(rules, count=40, caused=0.0, seed=seed)
        found += bool(rules.causes(BLOCKED))
    assert found <= 2


def test_a_rule_needs_its_support() -> None:
    rules = AssociationRules()
    for number in range(SUPPORT_MIN - 1):
        at = 10_000.0 * number
        rules.observe([STORE], job="j", at=at)
        rules.observe([BLOCKED], job="j", at=at + 5.0)
        rules.observe([], job="j", at=at + 5_000.0)
    assert rules.causes(BLOCKED) == ()
    rules.observe([STORE, BLOCKED], job="j", at=1e7)
    assert [rule.first for rule in rules.causes(BLOCKED)] == [STORE]


def test_of_two_that_often_begin_together_the_one_that_sometimes_comes_first_is_the_cause() -> None:
    rules = AssociationRules()
    for number in range(2 * SUPPORT_MIN):
        at = 10_000.0 * number
        rules.observe([STORE, BLOCKED] if number % 2 else [STORE], job="j", at=at)
        rules.observe([] if number % 2 else [BLOCKED], job="j", at=at + 60.0)
        for later in range(1, 10):
            rules.observe([], job="j", at=at + 900.0 * later)
    assert [rule.first for rule in rules.causes(BLOCKED)] == [STORE]
    assert rules.causes(STORE) == ()


def test_what_follows_in_another_job_or_too_late_is_not_caused() -> None:
    rules = AssociationRules()
    for number in range(3 * SUPPORT_MIN):
        at = 10_000.0 * number
        rules.observe([STORE], job="j", at=at)
        rules.observe([BLOCKED], job="k", at=at + 5.0)
        rules.observe([BLOCKED], job="j", at=at + WITHIN_SECONDS + 1.0)
    assert rules.causes(BLOCKED) == ()


def test_rules_go_on_from_what_was_stored() -> None:
    rules = AssociationRules()
    jobs(rules, count=40, caused=0.9)
    again = AssociationRules(rules.beginnings)
    assert list(again.causes(BLOCKED)) == list(rules.causes(BLOCKED))
    assert again.beginnings == rules.beginnings
