"""Whatever fails and in whatever order, a package's restarts come to an end, and to the same end."""

from __future__ import annotations

import math
from collections import Counter
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from pilotage.engine.retry.policy import Failure, Verdict, dry_run, failures_max, verdict
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.resources import Demand
from pilotage.model.settings.engine import RestartSettings
from pilotage.model.states import Action, Reason

REASONS = (*get_args(Reason), "license", "")
SITES = st.sampled_from(["lyon", "bari", "oslo", ""])
MESSAGES = st.sampled_from(["", "event 1", "event 22", "connection reset"])
DEMANDS = st.builds(
    Demand,
    memory_bytes=st.sampled_from([0, 1, 1000, 2**30]),
    wall_seconds=st.sampled_from([0.0, 0.5, 3600.0]),
)
SETTINGS = st.builds(
    RestartSettings,
    attempts_max=st.integers(1, 6),
    application_errors_max=st.integers(1, 4),
    commands_not_found_max=st.integers(1, 3),
    platform_failures_max=st.integers(1, 6),
    missing_inputs_max=st.integers(1, 6),
    preemptions_max=st.integers(1, 6),
    memory_doublings_max=st.integers(0, 2),
    limit_doublings_max=st.integers(0, 3),
    pilot_kills_max=st.integers(1, 3),
)
RULES = st.builds(
    RetryRule,
    reason=st.just(""),
    action=st.sampled_from(get_args(Action)),
    times=st.none() | st.integers(1, 3),
    memory_factor=st.none() | st.sampled_from([1.5, 4.0]),
    time_factor=st.none() | st.sampled_from([1.5, 4.0]),
).flatmap(
    lambda rule: st.sampled_from([
        *({"reason": reason} for reason in REASONS if reason),
        {"exit_code": 1},
        {"pattern": "reset$"},
    ]).map(lambda condition: _with(rule, **condition))
)  # fmt: skip
RETRIES = st.builds(
    Retry, attempts_max=st.none() | st.integers(1, 6), rules=st.lists(RULES, max_size=4).map(tuple)
) | st.just(Retry())


def _with(rule: RetryRule, *, reason: str = "", exit_code: int | None = None, pattern: str = "") -> RetryRule:
    return RetryRule(
        reason=reason,
        exit_code=exit_code,
        pattern=pattern,
        action=rule.action,
        times=rule.times,
        memory_factor=rule.memory_factor,
        time_factor=rule.time_factor,
    )


@st.composite
def histories(draw: st.DrawFn, reasons: tuple[str, ...] = REASONS) -> list[Failure]:
    """Failures of anything, with any measure: also such as no honest agent would tell."""
    count = draw(st.integers(1, 12))
    return [
        Failure(
            attempt=number,
            site=draw(SITES),
            reason=draw(st.sampled_from(reasons)),
            exit_status=draw(st.sampled_from([None, 1, 2])),
            message=draw(MESSAGES),
            memory_bytes=draw(st.sampled_from([0, 0, 1, 999, 2**30, 2**40])),
            wall_seconds=draw(st.sampled_from([0.0, 0.0, 60.0, 3600.0, 1e6])),
            remaining_seconds=draw(st.sampled_from([None, 0.0, 30.0, 1e5])),
            killed_pilot=draw(st.sampled_from([False, False, False, True])),
            with_pilot=draw(st.booleans()),
        )
        for number in range(1, count + 1)
    ]


@given(st.data(), histories(), RETRIES, DEMANDS, SETTINGS)
def test_the_same_history_in_any_order_gives_the_same_verdict(
    data: st.DataObject, failures: list[Failure], retry: Retry, demand: Demand, settings: RestartSettings
) -> None:
    told = verdict(failures, retry=retry, demand=demand, settings=settings)
    shuffled = data.draw(st.permutations(failures))
    assert verdict(shuffled, retry=retry, demand=demand, settings=settings) == told


@given(histories(), RETRIES, DEMANDS, SETTINGS)
def test_a_verdict_is_complete_and_sane(
    failures: list[Failure], retry: Retry, demand: Demand, settings: RestartSettings
) -> None:
    found = verdict(failures, retry=retry, demand=demand, settings=settings)
    assert found.rule
    assert found.message
    assert (found.cause is not None) == (found.action == "give-up")
    assert set(found.avoid) <= {failure.site for failure in failures} - {""}
    assert list(found.avoid) == sorted(set(found.avoid))
    assert 0 <= found.delay_seconds <= settings.delay_seconds_max
    assert found.memory_bytes == 0 or found.memory_bytes > demand.memory_bytes
    assert found.wall_seconds == 0 or found.wall_seconds > demand.wall_seconds
    assert found.counted <= len(failures)
    if found.action == "restart":
        assert found.counted < (retry.attempts_max or settings.attempts_max)


@given(histories(), RETRIES, DEMANDS, SETTINGS)
def test_what_was_given_up_stays_given_up(
    failures: list[Failure], retry: Retry, demand: Demand, settings: RestartSettings
) -> None:
    given_up = False
    for count in range(1, len(failures) + 1):
        found = verdict(failures[:count], retry=retry, demand=demand, settings=settings)
        assert not given_up or found.action == "give-up"
        given_up = found.action == "give-up"


@given(st.data(), RETRIES, DEMANDS, SETTINGS)
def test_any_sequence_of_failures_ends_within_the_stated_bound(
    data: st.DataObject, retry: Retry, demand: Demand, settings: RestartSettings
) -> None:
    # A few reasons at a time, so that long sequences of one kind are met too.
    reasons = tuple(data.draw(st.lists(st.sampled_from(REASONS), min_size=1, max_size=3)))
    bound = failures_max(retry=retry, settings=settings)
    failures: list[Failure] = []
    found: Verdict | None = None
    while found is None or found.action == "restart":
        assert len(failures) < bound
        # Honest attempts: each has what the verdict before it granted.
        memory_bytes = (found.memory_bytes if found else 0) or demand.memory_bytes
        wall_seconds = (found.wall_seconds if found else 0.0) or demand.wall_seconds
        failures.append(
            Failure(
                attempt=len(failures) + 1,
                site=data.draw(SITES),
                reason=data.draw(st.sampled_from(reasons)),
                exit_status=data.draw(st.sampled_from([None, 1])),
                message=f"{'x' * len(failures)} connection reset",  # never identical
                memory_bytes=memory_bytes,
                wall_seconds=wall_seconds,
            )
        )
        found = verdict(failures, retry=retry, demand=demand, settings=settings)


@given(histories(), DEMANDS.filter(lambda demand: demand.memory_bytes > 0), st.integers(1, 9))
def test_the_table_never_grants_more_than_four_times_the_declared_memory(
    failures: list[Failure], demand: Demand, attempts_max: int
) -> None:
    found = verdict(failures, retry=Retry(attempts_max=attempts_max), demand=demand, settings=RestartSettings())
    assert found.memory_bytes <= 4 * demand.memory_bytes


@given(histories(("looping", "preempted", "platform-failure")), DEMANDS)
def test_what_loops_is_never_restarted_at_a_limit_at_which_it_looped(failures: list[Failure], demand: Demand) -> None:
    limit = demand.wall_seconds
    looped: list[float] = []
    for count, failure in enumerate(failures, 1):
        found = verdict(failures[:count], retry=Retry(), demand=demand, settings=RestartSettings())
        if failure.reason == "looping":
            looped.append(failure.wall_seconds or limit)
        if found.action != "restart":
            return
        limit = found.wall_seconds or demand.wall_seconds
        assert all(limit > before for before in looped)


@given(histories(("wall-time",)), DEMANDS)
def test_wall_time_asks_for_more_than_any_place_gave(failures: list[Failure], demand: Demand) -> None:
    found = verdict(failures, retry=Retry(attempts_max=99), demand=demand, settings=RestartSettings())
    if found.action == "restart":
        for failure in failures:
            left, limit = failure.remaining_seconds, failure.wall_seconds or demand.wall_seconds or math.inf
            if left is not None and left < limit:
                assert found.more_wall_than >= left
            elif failure.with_pilot and limit < math.inf:
                assert found.more_wall_than >= limit


@given(histories(), RETRIES, DEMANDS, SETTINGS)
def test_a_rule_with_times_acts_at_most_so_often(
    failures: list[Failure], retry: Retry, demand: Demand, settings: RestartSettings
) -> None:
    acted: Counter[str] = Counter()
    for count in range(1, len(failures) + 1):
        found = verdict(failures[:count], retry=retry, demand=demand, settings=settings)
        if found.action == "give-up":
            break
        acted[found.rule] += 1
    for at, rule in enumerate(retry.rules):
        if rule.times is not None:
            assert acted[f"retry.rules[{at}]"] <= rule.times


@given(st.sampled_from(REASONS), RETRIES, DEMANDS, SETTINGS, st.integers(0, 30))
def test_a_dry_run_tells_a_beginning_of_the_same_story(
    reason: str, retry: Retry, demand: Demand, settings: RestartSettings, times: int
) -> None:
    found = dry_run(retry=retry, demand=demand, settings=settings, reason=reason, times=times)
    longer = dry_run(retry=retry, demand=demand, settings=settings, reason=reason, times=times + 1)
    assert longer[: len(found)] == found
    assert len(found) == times or found[-1].action == "give-up"
