"""What holds of every history of latencies: two add up to one, text brings it back, a bin is near what fell into it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pilotage.forecast.history import RELATIVE_ERROR, LatencyHistory, Submitter, bin_of, seconds_of

SUBMITTERS = st.sampled_from(
    [Submitter("", "small"), Submitter("", "small", True), Submitter("ada", "small"), Submitter("ada", "large")]
)
OUTCOMES = st.lists(
    st.tuples(
        st.sampled_from(["started", "fault", "withdrawn"]),
        SUBMITTERS,
        st.integers(1_000_000, 1_020_000).map(float),
        st.floats(0.0, 1e5),
    ),
    max_size=30,
)
Outcomes = list[tuple[str, Submitter, float, float]]


def seen(outcomes: Outcomes) -> LatencyHistory:
    made = LatencyHistory()
    for kind, submitter, at, seconds in outcomes:
        match kind:
            case "started":
                made.started(submitter, at=at, latency_seconds=seconds, submission_seconds=seconds / 3)
            case "fault":
                made.fault(submitter, at=at, waited_seconds=seconds)
            case _:
                made.withdrawn(submitter, at=at, waited_seconds=seconds)
    return made


@given(OUTCOMES, OUTCOMES)
def test_two_histories_add_up_to_the_one_that_saw_everything(first: Outcomes, second: Outcomes) -> None:
    both = seen(first)
    both.add(seen(second))
    assert both.encoded() == seen(first + second).encoded()


@given(OUTCOMES, st.randoms(use_true_random=False))
def test_the_order_in_which_outcomes_become_known_does_not_matter(outcomes: Outcomes, chance: random.Random) -> None:
    shuffled = list(outcomes)
    chance.shuffle(shuffled)
    assert seen(shuffled).encoded() == seen(outcomes).encoded()


@given(OUTCOMES, OUTCOMES)
def test_a_history_goes_on_from_its_text(first: Outcomes, second: Outcomes) -> None:
    again = LatencyHistory.decoded(seen(first).encoded())
    assert again is not None
    again.add(seen(second))
    assert again.encoded() == seen(first + second).encoded()


@given(st.floats(0.01, 1e7))
def test_a_time_is_counted_within_the_relative_error(seconds: float) -> None:
    assert abs(seconds_of(bin_of(seconds)) - seconds) <= RELATIVE_ERROR * seconds * (1 + 1e-9)


@given(st.floats(0.0, 1e9), st.floats(0.0, 1e9))
def test_a_longer_time_is_in_no_lower_bin(one: float, other: float) -> None:
    assert (bin_of(one) <= bin_of(other)) or one > other
