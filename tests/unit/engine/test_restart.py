"""What is done after each kind of failure: every row of the table by its name, the package's own rules, and the bounds."""

from __future__ import annotations

from time import process_time
from typing import get_args

import pytest

from pilotage.engine.retry.policy import RULES, Failure, Verdict, dry_run, failures_max, signature, verdict
from pilotage.engine.retry.rules import row_of
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.resources import Demand
from pilotage.model.settings.engine import RestartSettings
from pilotage.model.states import Action, Reason

GIB = 2**30
SETTINGS = RestartSettings()
NO_RULES = Retry()
DECLARED = Demand(memory_bytes=GIB, wall_seconds=3600.0)


def fail(attempt: int, reason: str, site: str = "lyon", **more: object) -> Failure:
    return Failure(attempt=attempt, reason=reason, site=site, **more)  # type: ignore[arg-type]


def judge(
    *failures: Failure, retry: Retry = NO_RULES, demand: Demand = DECLARED, settings: RestartSettings = SETTINGS
) -> Verdict:
    return verdict(failures, retry=retry, demand=demand, settings=settings)


def rules(*given: RetryRule, attempts_max: int | None = None) -> Retry:
    return Retry(rules=given, attempts_max=attempts_max)


def after_each(reason: str, count: int, demand: Demand = DECLARED, retry: Retry = NO_RULES) -> list[Verdict]:
    return dry_run(retry=retry, demand=demand, settings=SETTINGS, reason=reason, times=count)


# The table


def test_every_reason_has_a_row_that_says_what_changes_and_why() -> None:
    assert set(RULES) == set(get_args(Reason))
    for row in RULES.values():
        assert row.changes
        assert row.why
        assert not row.budget or getattr(SETTINGS, row.budget) > 0
        assert row.counted or row.budget, "what is outside the common cap needs a bound of its own"


def test_an_unknown_reason_is_treated_as_an_application_error() -> None:
    assert row_of("sunspots") == ("application-error", RULES["application-error"])
    assert judge(fail(1, "sunspots")).rule == "application-error"


def test_a_package_that_says_how_often_is_tried_so_often() -> None:
    failures = [fail(number, "application-error") for number in range(1, 7)]
    six = Retry(attempts_max=6)
    assert judge(*failures[:5], retry=six).action == "restart"
    assert judge(*failures, retry=six).rule == "application-error"
    assert judge(*failures[:2]).action == "restart"
    assert judge(*failures[:3]).action == "give-up"


@pytest.mark.parametrize("reason", ["platform-failure", "disk-full", "credential-expired"])
def test_a_failure_of_the_platform_goes_elsewhere_outside_the_cap(reason: str) -> None:
    found = judge(*(fail(number, reason, f"s{number}") for number in range(1, 8)))
    assert (found.action, found.rule, found.counted) == ("restart", reason, 0)
    assert found.avoid == ("s1", "s2", "s3", "s4", "s5", "s6", "s7")
    assert found.delay_seconds == 0.0


def test_failures_of_the_platform_are_bounded_and_a_full_disk_is_one_of_them() -> None:
    kinds = ["platform-failure", "disk-full"] * 10
    failures = [fail(number, kind, f"s{number}") for number, kind in enumerate(kinds, 1)]
    assert judge(*failures[:19]).action == "restart"
    last = judge(*failures)
    assert (last.action, last.cause, last.rule) == ("give-up", "retries-exhausted", "disk-full")


def test_what_comes_to_nothing_because_tokens_end_is_given_up_for_that_cause() -> None:
    failures = [fail(number, "credential-expired", f"s{number}") for number in range(1, 21)]
    assert judge(*failures[:19]).action == "restart"
    last = judge(*failures)
    assert (last.action, last.cause, last.rule) == ("give-up", "credential-expired", "credential-expired")


def test_coming_back_to_an_avoided_site_begins_a_new_round_after_a_growing_pause() -> None:
    sites = ["lyon", "bari", "lyon", "bari", "bari"]
    failures = [fail(number, "platform-failure", site) for number, site in enumerate(sites, 1)]
    found = [judge(*failures[:count]) for count in range(1, 6)]
    assert [one.avoid for one in found] == [("lyon",), ("bari", "lyon"), ("lyon",), ("bari", "lyon"), ("bari",)]
    assert [one.delay_seconds for one in found] == [0.0, 0.0, 10.0, 0.0, 20.0]


def test_what_was_preempted_is_run_again_there_and_not_counted_but_bounded() -> None:
    found = after_each("preempted", 200)
    assert {(one.action, one.prefer, one.counted, one.avoid) for one in found[:-1]} == {("restart", "here", 0, ())}
    assert len(found) == SETTINGS.preemptions_max
    assert (found[-1].action, found[-1].cause) == ("give-up", "retries-exhausted")


def test_a_site_that_is_preferred_is_no_longer_avoided() -> None:
    found = judge(
        fail(1, "platform-failure", "bari"), fail(2, "platform-failure", "lyon"), fail(3, "preempted", "lyon")
    )
    assert (found.prefer, found.avoid) == ("here", ("bari",))


def test_wall_time_goes_only_where_more_is_left_than_it_ever_had_and_counts() -> None:
    short = fail(1, "wall-time", wall_seconds=3600.0, remaining_seconds=900.0)
    shorter = fail(2, "wall-time", wall_seconds=3600.0, remaining_seconds=600.0)
    found = judge(short, shorter)
    assert (found.action, found.rule, found.more_wall_than, found.counted) == ("restart", "wall-time", 900.0, 2)
    assert found.wall_seconds == 0.0
    assert "own limit" not in found.message
    assert judge(short, shorter, fail(3, "platform-failure")).more_wall_than == 900.0


def test_wall_time_at_its_own_limit_would_come_again_and_is_given_up() -> None:
    own = fail(1, "wall-time", remaining_seconds=9000.0)
    found = judge(own)
    assert (found.action, found.rule, found.cause) == ("give-up", "wall-time", "permanent-failure")
    assert "its own limit of 3,600 s ended it" in found.message
    longer = Retry(rules=(RetryRule(reason="wall-time", action="more-time", time_factor=2.0),))
    assert (judge(own, retry=longer).action, judge(own, retry=longer).wall_seconds) == ("restart", 7200.0)


def test_wall_time_of_its_pilot_is_not_its_own_limit_however_long_that_is() -> None:
    found = judge(fail(1, "wall-time", remaining_seconds=3601.0, with_pilot=True))
    assert (found.action, found.more_wall_than) == ("restart", 3600.0)
    assert judge(fail(1, "wall-time", with_pilot=True)).action == "restart"


def test_wall_time_at_its_own_limit_is_tried_as_often_as_the_package_says() -> None:
    found = after_each("wall-time", 9, retry=Retry(attempts_max=3))
    assert [one.action for one in found] == ["restart"] * 2 + ["give-up"]
    assert {one.more_wall_than for one in found} == {0.0}


def test_wall_time_is_given_up_at_the_common_cap() -> None:
    found = after_each("wall-time", 9, demand=Demand(memory_bytes=GIB))
    assert [one.action for one in found] == ["restart"] * 4 + ["give-up"]
    assert (found[-1].rule, found[-1].cause, found[-1].counted) == ("attempts-max", "retries-exhausted", 5)


def test_out_of_memory_gets_twice_what_it_had_at_most_twice() -> None:
    found = after_each("out-of-memory", 9)
    assert [(one.action, one.memory_bytes) for one in found] == [
        ("restart", 2 * GIB),
        ("restart", 4 * GIB),
        ("give-up", 4 * GIB),
    ]
    assert (found[-1].rule, found[-1].cause) == ("out-of-memory", "retries-exhausted")


def test_doubling_stops_at_four_times_what_was_declared() -> None:
    assert judge(fail(1, "out-of-memory", memory_bytes=3 * GIB)).memory_bytes == 4 * GIB
    assert judge(fail(1, "looping", wall_seconds=3 * 3600.0)).wall_seconds == 4 * 3600.0


def test_replicas_that_ran_out_of_the_same_memory_double_it_once() -> None:
    both = [fail(1, "out-of-memory", memory_bytes=GIB), fail(2, "out-of-memory", "bari", memory_bytes=GIB)]
    assert judge(*both).memory_bytes == 2 * GIB


def test_memory_that_was_raised_stays_raised() -> None:
    assert judge(fail(1, "out-of-memory"), fail(2, "platform-failure")).memory_bytes == 2 * GIB


def test_out_of_memory_that_nobody_declared_doubles_what_the_site_gave() -> None:
    first = fail(1, "out-of-memory", memory_bytes=3 * GIB)
    assert judge(first, demand=Demand()).memory_bytes == 6 * GIB


def test_out_of_an_unknown_memory_goes_elsewhere_and_teaches_to_declare_it() -> None:
    found = after_each("out-of-memory", 9, demand=Demand())
    assert [one.action for one in found] == ["restart", "restart", "give-up"]
    assert found[0].avoid == ("site-1",)
    assert "declare its memory" in found[0].message
    assert {one.memory_bytes for one in found} == {0}


@pytest.mark.parametrize("reason", ["missing-input", "input-checksum"])
def test_a_missing_input_is_tried_later_and_later_uncounted_but_bounded(reason: str) -> None:
    found = after_each(reason, 99)
    assert [one.delay_seconds for one in found[:4]] == [10.0, 20.0, 40.0, 80.0]
    assert max(one.delay_seconds for one in found) == 3600.0
    assert {one.counted for one in found} == {0}
    assert len(found) == SETTINGS.missing_inputs_max
    assert (found[-1].action, found[-1].rule) == ("give-up", reason)


@pytest.mark.parametrize(
    "reason", ["application-error", "segmentation-fault", "signal", "missing-output", "failure-pattern"]
)
def test_an_error_of_the_application_is_tried_at_most_three_times(reason: str) -> None:
    words = ["alpha", "beta", "gamma"]
    failures = [fail(number, reason, f"s{number}", message=word) for number, word in enumerate(words, 1)]
    second = judge(*failures[:2])
    assert (second.action, second.rule, second.avoid, second.counted) == ("restart", reason, ("s1", "s2"), 2)
    third = judge(*failures)
    assert (third.action, third.cause, third.rule) == ("give-up", "retries-exhausted", reason)


def test_errors_of_the_application_share_one_budget() -> None:
    failures = [fail(1, "signal"), fail(2, "missing-output"), fail(3, "application-error")]
    assert judge(*failures).action == "give-up"


def test_an_error_that_repeats_identically_at_another_site_is_permanent() -> None:
    one = fail(1, "application-error", "lyon", exit_status=1, message="no field 17 in /scratch/a1/geometry.db")
    two = fail(2, "application-error", "bari", exit_status=1, message="no field 4 in /tmp/x/y/geometry.db")
    found = judge(one, two)
    assert (found.action, found.cause, found.rule) == ("give-up", "permanent-failure", "repeats-identically")
    assert "lyon" in found.message
    assert "bari" in found.message


def test_an_error_that_repeats_at_one_site_may_be_the_site() -> None:
    one, two = (fail(number, "application-error", "lyon", message="same") for number in (1, 2))
    assert judge(one, two).action == "restart"


def test_a_command_that_two_sites_lack_is_wrong() -> None:
    found = after_each("command-not-found", 9)
    assert [(one.action, one.cause) for one in found] == [("restart", None), ("give-up", "permanent-failure")]
    assert found[0].avoid == ("site-1",)


def test_looping_never_runs_twice_at_one_limit() -> None:
    found = after_each("looping", 9)
    assert [(one.action, one.wall_seconds) for one in found] == [
        ("restart", 7200.0),
        ("restart", 14400.0),
        ("give-up", 14400.0),
    ]
    assert found[-1].cause == "retries-exhausted"


def test_an_attempt_that_had_less_than_was_declared_does_not_lower_the_limit() -> None:
    assert judge(fail(1, "looping", wall_seconds=60.0), fail(2, "looping")).wall_seconds == 7200.0


def test_looping_without_a_limit_is_given_up_at_once() -> None:
    found = judge(fail(1, "looping"), demand=Demand())
    assert (found.action, found.cause, found.rule) == ("give-up", "permanent-failure", "looping")


# The bounds that stand above the rows


def test_a_package_that_killed_its_pilots_twice_is_parked_whatever_its_rules_say() -> None:
    own = rules(RetryRule(reason="platform-failure", action="again", times=9))
    first, second = (fail(number, "platform-failure", killed_pilot=True) for number in (1, 2))
    assert judge(first, retry=own).action == "restart"
    found = judge(first, second, retry=own)
    assert (found.action, found.rule, found.cause) == ("park", "pilot-kills", None)


def test_a_parked_package_that_was_released_is_judged_by_what_happens_then() -> None:
    kills = [fail(number, "platform-failure", killed_pilot=True) for number in (1, 2)]
    assert judge(*kills, fail(3, "preempted")).action == "restart"
    assert judge(*kills, fail(3, "platform-failure", killed_pilot=True)).action == "park"


def test_what_is_given_up_is_not_parked_and_what_is_parked_was_learnt_from() -> None:
    kills = [fail(number, "out-of-memory", killed_pilot=True, memory_bytes=number * GIB) for number in (1, 2)]
    assert (judge(*kills).action, judge(*kills).memory_bytes, judge(*kills).counted) == ("park", 4 * GIB, 2)
    assert judge(*kills, retry=Retry(attempts_max=2)).action == "give-up"


def test_counted_attempts_are_capped_by_the_package_or_the_setting() -> None:
    failures = [fail(1, "wall-time", remaining_seconds=60.0), fail(2, "platform-failure"), fail(3, "out-of-memory")]
    assert judge(*failures).counted == 2
    assert judge(*failures).action == "restart"
    assert judge(*failures, retry=Retry(attempts_max=2)).rule == "attempts-max"
    assert judge(*failures, settings=RestartSettings(attempts_max=2)).rule == "attempts-max"
    assert judge(*failures, retry=Retry(attempts_max=3), settings=RestartSettings(attempts_max=2)).action == "restart"


def test_what_was_given_up_stays_given_up_when_another_failure_comes_in_late() -> None:
    given_up = judge(fail(1, "looping"), demand=Demand())
    assert judge(fail(1, "looping"), fail(2, "preempted"), demand=Demand()) == given_up


def test_nothing_follows_from_no_failure() -> None:
    with pytest.raises(ValueError, match="needs at least one failure"):
        judge()


# The package's own rules


@pytest.mark.parametrize("action", get_args(Action))
def test_a_rule_of_the_package_goes_before_the_table(action: Action) -> None:
    found = judge(fail(1, "preempted"), retry=rules(RetryRule(reason="preempted", action=action)))
    assert found.rule == "retry.rules[0]"
    expected = {
        "again": ("restart", (), "here", 0.0, 0, 0.0),
        "elsewhere": ("restart", ("lyon",), "", 0.0, 0, 0.0),
        "later": ("restart", (), "", 10.0, 0, 0.0),
        "more-memory": ("restart", (), "", 0.0, 2 * GIB, 0.0),
        "more-time": ("restart", (), "", 0.0, 0, 7200.0),
        "give-up": ("give-up", (), "", 0.0, 0, 0.0),
        "hold-job": ("hold-job", (), "", 0.0, 0, 0.0),
    }[action]
    got = (found.action, found.avoid, found.prefer, found.delay_seconds, found.memory_bytes, found.wall_seconds)
    assert got == expected
    assert found.cause == ("permanent-failure" if action == "give-up" else None)


def test_a_rule_is_found_by_reason_exit_code_or_a_pattern_in_the_message() -> None:
    own = rules(
        RetryRule(reason="license", action="later"),
        RetryRule(exit_code=3, action="give-up"),
        RetryRule(pattern="conn.*reset", action="again"),
    )
    assert judge(fail(1, "license", exit_status=3), retry=own).rule == "retry.rules[0]"
    assert judge(fail(1, "application-error", exit_status=3), retry=own).rule == "retry.rules[1]"
    assert judge(fail(1, "application-error", message="a connection reset"), retry=own).rule == "retry.rules[2]"
    assert judge(fail(1, "application-error", exit_status=4, message="reset"), retry=own).rule == "application-error"


def test_factors_multiply_what_it_had() -> None:
    own = rules(
        RetryRule(reason="out-of-memory", action="more-memory", memory_factor=1.5, times=2),
        RetryRule(reason="wall-time", action="more-time", time_factor=3.0, times=1),
    )
    first = fail(1, "out-of-memory")
    assert judge(first, retry=own).memory_bytes == GIB * 3 // 2
    found = judge(first, fail(2, "out-of-memory"), fail(3, "wall-time"), retry=own)
    assert (found.memory_bytes, found.wall_seconds, found.counted) == (GIB * 9 // 4, 10800.0, 0)


def test_a_huge_factor_stays_a_number() -> None:
    own = rules(
        RetryRule(reason="out-of-memory", action="more-memory", memory_factor=1e308),
        RetryRule(reason="wall-time", action="more-time", time_factor=float("inf")),
    )
    found = judge(fail(1, "out-of-memory"), fail(2, "wall-time"), retry=own)
    assert (found.memory_bytes, found.wall_seconds) == (2**53 - 1, 1e9)


def test_more_time_without_a_limit_asks_for_a_place_with_so_much_more() -> None:
    own = rules(RetryRule(reason="wall-time", action="more-time", time_factor=3.0))
    found = judge(fail(1, "wall-time", remaining_seconds=100.0), retry=own, demand=Demand())
    assert (found.action, found.wall_seconds, found.more_wall_than) == ("restart", 0.0, 300.0)


def test_a_rule_that_has_acted_its_times_passes_on_to_the_next_and_then_to_giving_up() -> None:
    own = rules(
        RetryRule(reason="application-error", action="again", times=1),
        RetryRule(exit_code=1, action="elsewhere", times=2),
    )
    found = dry_run(retry=own, demand=DECLARED, settings=SETTINGS, reason="application-error", times=9, exit_status=1)
    assert [(one.action, one.rule) for one in found] == [
        ("restart", "retry.rules[0]"),
        ("restart", "retry.rules[1]"),
        ("restart", "retry.rules[1]"),
        ("give-up", "retry.rules[1]"),
    ]
    assert found[-1].cause == "retries-exhausted"


def test_a_rule_with_times_has_a_budget_outside_the_cap() -> None:
    own = rules(RetryRule(reason="license", action="later", times=50), attempts_max=2)
    found = after_each("license", 99, retry=own)
    assert [one.action for one in found] == ["restart"] * 50 + ["give-up"]
    assert {one.counted for one in found} == {0}


def test_a_rule_without_times_keeps_the_budget_of_the_reason() -> None:
    assert len(after_each("license", 99, retry=rules(RetryRule(reason="license", action="later")))) == 5
    preempted = rules(RetryRule(reason="preempted", action="elsewhere"))
    assert len(after_each("preempted", 150, retry=preempted)) == SETTINGS.preemptions_max


def test_holding_the_job_is_for_people_and_is_not_counted() -> None:
    own = rules(RetryRule(reason="license", action="hold-job"), attempts_max=1)
    assert {(one.action, one.counted) for one in after_each("license", 9, retry=own)} == {("hold-job", 0)}


# Signatures, the bound


@pytest.mark.parametrize(
    "one, other",
    [
        ("event 17 failed", "event 4711 failed"),
        ("took 3.25 s", "took 1,000.5 s"),
        ("at 0x7fff12aB", "at 0x55d0"),
        ("cannot open /scratch/j1/a.root: gone", "cannot open /tmp/x/y/a.root: gone"),
        ("job 3f2a91c0-77aa-4c1e-9f00-aabbccddeeff", "job 00000000-77aa-4c1e-9f00-aabbccddee00"),
        ("two  words\n", "two words"),
    ],
)
def test_messages_that_differ_in_what_varies_by_itself_are_identical(one: str, other: str) -> None:
    assert signature(fail(1, "signal", message=one)) == signature(fail(2, "signal", "bari", message=other))


@pytest.mark.parametrize(
    "other",
    [
        fail(1, "application-error", message="cannot open /data/b", exit_status=1),
        fail(1, "application-error", message="cannot open /data/a", exit_status=2),
        fail(1, "application-error", message="cannot open /data/a", exit_status=1, signal=9),
        fail(1, "missing-output", message="cannot open /data/a", exit_status=1),
    ],
)
def test_failures_that_differ_in_what_happened_are_not_identical(other: Failure) -> None:
    assert signature(other) != signature(fail(1, "application-error", message="cannot open /data/a", exit_status=1))


@pytest.mark.parametrize("text", ["/", "a-", "/a", "a", "1a", "/a:", "a/", "-1"])
def test_the_cost_of_a_signature_grows_with_the_message_and_no_faster(text: str) -> None:
    message = text * (120_000 // len(text)) + "g"
    begun = process_time()
    signature(fail(1, "signal", message=message))
    assert process_time() - begun < 1.0  # a few milliseconds; with the square of the length it would be many seconds


def test_the_longest_history_is_stated() -> None:
    own = rules(RetryRule(reason="license", action="later", times=7), attempts_max=3)
    assert failures_max(retry=own, settings=SETTINGS) == 2 + 19 + 19 + 99 + 7 + 1
