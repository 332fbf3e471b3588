"""A package with one attempt, which most have, is settled on a path of its own: it must come to the same."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.rows.derived_states import settle_all, settle_single
from pilotage.book.rows.registers import Register
from pilotage.book.rows.rows import AttemptFacts, JobRow, PackageFacts

TIMES = st.none() | st.sampled_from([1.0, 2.0, 3.0, 4.0])
KEYS = st.tuples(st.just(2), st.integers(0, 3), st.integers(0, 4), st.integers(1, 3), st.just("s"))
ATTEMPT_TIMES = (
    "created_at", "queued_at", "started_at", "suspected_at", "recovered_at", "lost_at", "phase_at", "staged_at",
    "finished_at", "granted_at",
)  # fmt: skip


@st.composite
def attempts(draw: st.DrawFn) -> AttemptFacts:
    attempt = AttemptFacts(epoch=2, reused=draw(st.sampled_from([0, 0, 1])))
    for name in ATTEMPT_TIMES:
        setattr(attempt, name, draw(TIMES))
    if attempt.created_at is not None:
        attempt.keys[Register.CREATED] = draw(KEYS)
        attempt.site = draw(st.sampled_from([None, "lyon"]))
        attempt.lease_seconds = draw(st.sampled_from([None, 9.0]))
        attempt.replaces = draw(st.sampled_from([None, 1, 2]))
    attempt.node = draw(st.sampled_from([None, "n1"]))
    if attempt.lost_at is not None:
        attempt.lost_reason = "platform-failure"
    if attempt.finished_at is not None:
        attempt.exit_code = draw(st.sampled_from(["SUCCESS", "EXECUTION_FAILED"]))
        attempt.exit_message = draw(st.sampled_from([None, "said"]))
        attempt.reason = draw(st.sampled_from([None, "signal"]))
    return attempt


@st.composite
def packages(draw: st.DrawFn) -> PackageFacts:
    """A package of the second epoch as it may have been shown before, with whatever facts."""
    package = PackageFacts(epoch=2, attempts={draw(st.sampled_from([1, 2])): draw(attempts())})
    for name in ("opened_at", "cancelled_at", "aborted_at", "cleared_at", "registered_at", "entered_at", "done_at"):
        setattr(package, name, draw(TIMES))
    if draw(st.booleans()):
        package.keys[Register.BOUND] = draw(KEYS)
        package.bound_at = draw(TIMES)
        package.bound_site = "bari" if package.bound_at is not None else None
    package.state = draw(st.sampled_from(["", "DONE", "RUNNING"]))
    package.conflict = draw(st.sampled_from([0, 1]))
    package.inferred = draw(st.sampled_from(["", "AttemptStarted"]))
    return package


@st.composite
def jobs(draw: st.DrawFn) -> JobRow:
    job = JobRow(job_id=1, job="J1", epoch=draw(st.sampled_from([1, 2])), cause=draw(st.sampled_from([None, "quota"])))
    for name in ("submitted_at", "accepted_at", "cancelled_at", "aborted_at"):
        setattr(job, name, draw(TIMES))
    return job


@given(packages(), jobs())
def test_one_attempt_is_settled_as_any_number_is(package: PackageFacts, job: JobRow) -> None:
    other = copy.deepcopy(package)
    [(number, attempt)] = package.attempts.items()
    settle_single(package, number, attempt, job)
    settle_all(other, job)
    assert package == other
