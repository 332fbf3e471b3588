"""What an engine reads when it starts: every live job, every package of it in its place, and how far streams were heard."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from pilotage.book.fold.finals import FinalPackage
from pilotage.book.query import EVERYTHING
from pilotage.book.rows.registers import Register
from pilotage.book.rows.rows import JobRow, PackageFacts, PackageRow, StreamRow
from pilotage.model.events.payloads import (
    Aborted,
    AttemptCreated,
    AttemptFinished,
    AttemptLost,
    CancelAccepted,
    Cleared,
    CommitGranted,
    Dropped,
    Held,
    JobAccepted,
    PilotStarted,
    Restarted,
)
from pilotage.model.states import FINAL_NAMES, ExitCodeGasw
from pilotage.ports import Journal
from tests.conformance.journal.harness import Harness, keeper
from tests.kit.events import START, Stream, a_short_job, random_history, registered, shape


def row_of(journal: Journal, job: str) -> JobRow:
    row = journal.job(job)
    assert row is not None
    return row


def all_rows(journal: Journal, job: JobRow) -> list[PackageRow]:
    page = journal.find_packages(EVERYTHING, after=None, limit=10_000, job=job)
    assert not page.more
    return [each.row for each in page.items]


def as_final(row: PackageRow) -> FinalPackage:
    """What a row says, found from all of its facts."""
    facts = row.facts
    winners = [number for number, one in facts.attempts.items() if one.granted_at and one.epoch == facts.epoch]
    return FinalPackage(
        stage=row.stage,
        line=row.line,
        number=row.number,
        state=facts.state,
        epoch=facts.epoch,
        granted=max(winners, default=0),
        last_attempt=max([0, *facts.attempts]),
        dropped=facts.keys[Register.DROP][0] if facts.dropped else 0,
        held=facts.held,
        cause=facts.cause,
        unended=tuple(
            (number, one.site or "", one.pilot, one.lost_reason or "")
            for number, one in facts.attempts.items()
            if one.finished_at is None and one.pilot and (one.lease_seconds is not None or one.started_at is not None)
        ),
        done_at=facts.done_at or 0.0,
    )


def has_ended(facts: PackageFacts) -> bool:
    """Whether a package is over by itself, and not because its job is."""
    own = (facts.done_at, facts.cancelled_at, facts.aborted_at, facts.cleared_at)
    return facts.state in FINAL_NAMES and any(time is not None for time in own)


def assert_split(journal: Journal, job: JobRow) -> tuple[list[FinalPackage], list[PackageRow]]:
    """What is over by itself and what is not, each in its place, is all that there is."""
    rows = all_rows(journal, job)
    ended = [has_ended(row.facts) for row in rows]
    finals, others = list(journal.finals(job)), list(journal.unfinished(job))
    assert finals == [as_final(row) for row, over in zip(rows, ended, strict=True) if over]
    assert others == [row for row, over in zip(rows, ended, strict=True) if not over]
    return finals, others


@pytest.mark.parametrize("seed", range(4))
def test_packages_are_read_in_their_places_whatever_became_of_them(journal: Journal, seed: int) -> None:
    keeper(journal).take(random_history(random.Random(seed), jobs=3, packages=6, steps=240))
    found = [assert_split(journal, row_of(journal, f"job-{number}")) for number in (1, 2, 3)]
    assert any(finals for finals, _ in found)
    assert any(others for _, others in found)


def test_a_final_package_says_how_it_ended(journal: Journal) -> None:
    by = Stream()
    won, failed = AttemptFinished(exit_code=ExitCodeGasw.SUCCESS), AttemptFinished(exit_code=ExitCodeGasw.UNDEFINED)
    created = AttemptCreated(site="lyon", lease_seconds=60.0)

    def about(line: int, attempt: int | None = None, epoch: int = 1) -> dict[str, object]:
        return {"job": "j1", "package": f"1.{line}.1", "attempt": attempt, "epoch": epoch}

    said = [
        (registered(shape("simulate", lines=12)), {"job": "j1"}),
        (JobAccepted(), {"job": "j1"}),
        (created, about(10, 1)), (failed, about(10, 1)), (created, about(10, 2)), (won, about(10, 2)),
        (created, about(10, 3)), (CommitGranted(), about(10, 2)),
        (created, about(2, 1)), (AttemptLost(), about(2, 1)), (Aborted(cause="retries-exhausted"), about(2)),
        (CancelAccepted(), about(3)), (Dropped(operation=7), about(3)),
        (created, about(4, 1)), (won, about(4, 1)), (CommitGranted(), about(4, 1)), (Cleared(by="user"), about(4)),
        (created, about(5, 1)), (won, about(5, 1)), (CommitGranted(), about(5, 1)),
        (Restarted(cause="by-hand"), about(5, epoch=2)), (CancelAccepted(), about(5, epoch=2)),
        (Held(operation=8), about(5)), (created, about(6, 1)), (AttemptLost(), about(6, 1)),
    ]  # fmt: skip
    keeper(journal).take([by.event(data, seen=number, **where) for number, (data, where) in enumerate(said)])  # type: ignore[arg-type]
    assert list(journal.finals(row_of(journal, "j1"))) == [
        FinalPackage(1, 2, 1, "ABORTED", 1, granted=0, last_attempt=1, dropped=0, held=0, cause="retries-exhausted"),
        FinalPackage(1, 3, 1, "CANCELLED", 1, granted=0, last_attempt=0, dropped=7, held=0, cause=None),
        FinalPackage(1, 4, 1, "CLEARED", 1, granted=1, last_attempt=1, dropped=0, held=0, cause=None, done_at=START),
        FinalPackage(1, 5, 1, "CANCELLED", 2, granted=0, last_attempt=1, dropped=0, held=1, cause=None),
        FinalPackage(1, 10, 1, "DONE", 1, granted=2, last_attempt=3, dropped=0, held=0, cause=None, done_at=START),
    ]
    [waiting] = journal.unfinished(row_of(journal, "j1"))
    assert (waiting.line, waiting.facts.state, waiting.facts.reason) == (6, "WAITING", "platform-failure")


def test_what_is_final_only_because_its_job_is_counts_as_unfinished(journal: Journal) -> None:
    by = Stream()
    keeper(journal).take(
        [
            *a_short_job("j1", packages=2, stream=by),
            by.event(AttemptCreated(site="lyon"), job="j1", package="9.1.1", attempt=1),
            by.event(AttemptLost(), job="j1", package="9.1.1", attempt=1),
        ]
    )
    before = row_of(journal, "j1")
    keeper(journal).take([by.event(CancelAccepted(), job="j1")])
    [follows] = journal.unfinished(row_of(journal, "j1"))
    assert (follows.stage, follows.facts.state) == (9, "CANCELLED")
    assert [one.line for one in journal.finals(row_of(journal, "j1"))] == [1, 2]
    assert list(journal.unfinished(before)) == [follows]  # whatever the row says that it is asked with


def test_of_a_sealed_job_the_packages_are_read_all_the_same_and_of_a_purged_one_none(journal: Journal) -> None:
    keeper(journal).take(a_short_job("j1", packages=11))
    before = assert_split(journal, row_of(journal, "j1"))
    assert len(before[0]) == 11
    own = journal.own_events(row_of(journal, "j1"))
    assert [row.position for row in own] == sorted(row.position for row in own)
    assert {"JobRegistered", "JobAccepted"} <= {row.type for row in own}
    assert not any(row.stage for row in own)
    journal.seal("j1")
    assert assert_split(journal, row_of(journal, "j1")) == before
    assert journal.own_events(row_of(journal, "j1")) == own
    journal.purge("j1", at=1.0)
    assert list(journal.finals(row_of(journal, "j1"))) == []
    assert list(journal.unfinished(row_of(journal, "j1"))) == []


def test_what_is_read_is_of_one_moment_however_long_it_takes(journal: Journal) -> None:
    by = Stream()
    events = a_short_job("j1", packages=40, stream=by)
    keeper(journal).take(events)
    job = row_of(journal, "j1")
    reading = journal.finals(job)
    first = next(reading)
    keeper(journal).take(
        [by.event(Restarted(cause="by-hand"), job="j1", package=f"1.{line}.1", epoch=2) for line in range(1, 41)]
    )
    assert [one.line for one in (first, *reading)] == list(range(1, 41))
    assert list(journal.finals(job)) == []


def test_a_reading_that_is_given_up_holds_nothing(journal: Journal) -> None:
    keeper(journal).take(a_short_job("j1", packages=20))
    job = row_of(journal, "j1")
    for _ in range(12):
        readings = [journal.finals(job), journal.streams("service")]
        assert [len(list(islice(reading, 1))) for reading in readings] == [1, 1]
        for reading in readings:
            reading.close()  # type: ignore[attr-defined]
    assert len(list(journal.finals(job))) == 20


def test_the_live_jobs_are_those_that_may_still_go_on(journal: Journal, harness: Harness) -> None:
    by = Stream("service", "other")
    for job in ("done", "cleared", "sealed", "purged"):
        keeper(journal).take(a_short_job(job))
    keeper(journal).take(
        [
            by.event(Cleared(by="user"), job="cleared"),
            by.event(registered(), job="a-new-one"),
            by.event(registered(), job="killed"),
            by.event(CancelAccepted(), job="killed"),
        ]
    )
    journal.seal("sealed")
    journal.seal("purged")
    journal.purge("purged", at=1.0)
    assert [(row.job, row.state) for row in journal.live_jobs()] == [
        ("done", "DONE"), ("a-new-one", "SUBMITTED"), ("killed", "CANCELLED"),
    ]  # fmt: skip
    assert journal.live_jobs() == [row_of(journal, name) for name in ("done", "a-new-one", "killed")]


def test_streams_are_read_by_source_with_how_far_they_were_heard(journal: Journal) -> None:
    agents = {name: Stream("agent", name) for name in ("p2.1", "p10.1", "p1.1")}
    spoke = PilotStarted(site="lyon", request="p")
    said = {name: [by.event(spoke, pilot=name) for _ in range(4)] for name, by in agents.items()}
    keeper(journal).take([*said["p2.1"][:3], *said["p10.1"], said["p1.1"][0], said["p1.1"][3]])
    keeper(journal).take(a_short_job("j1"))
    found = list(journal.streams("agent"))
    assert all(isinstance(row, StreamRow) for row in found)
    assert [(row.stream, row.watermark, row.ahead) for row in found] == [
        ("p1.1", 1, "[[4,4]]"), ("p10.1", 4, "[]"), ("p2.1", 3, "[]"),
    ]  # fmt: skip
    assert [row.stream for row in journal.streams("service")] == ["j1-service"]
    assert {row.request for row in journal.pilots(after="", limit=9)} == {"p"}
    assert list(journal.streams("site")) == []
