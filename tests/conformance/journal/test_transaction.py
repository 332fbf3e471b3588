"""Transactions: whole or not at all, durable, of one writer; counters that never go back; schemas that are known."""

from __future__ import annotations

import threading

import msgspec
import pytest

from pilotage.book.rows import rows
from pilotage.book.rows.ledger import Changes
from pilotage.ports import Journal, JournalBusy, JournalError
from tests.conformance.journal.harness import Harness, content, keeper
from tests.kit.events import Stream, a_short_job, registered


class Deliberate(Exception):
    """What a test raises to see that it arrives."""


def a_change(number: int) -> Changes:
    """Some rows of several tables."""
    return Changes(
        streams=[rows.StreamRow(stream_id=number, source="client", stream=f"s{number}")],
        jobs=[rows.JobRow(job_id=number, job=f"j{number}")],
        tags=[rows.TagRow(job_id=number, stage=0, line=0, number=0, name="a", value="b")],
        packages=[rows.PackageRow(number, 1, 1, 1, rows.PackageFacts(state="WAITING"))],
    )


def an_event(position: int) -> tuple[object, ...]:
    """An event of the service itself."""
    time = 1.0
    row = rows.EventRow(
        position=position, stream_id=1, n=position, type="Noted", version=1, time=time, received=time, skewed=0,
        epoch=1, seen=0, job_id=None, stage=0, line=0, number=0, attempt=0, pilot=None, site=None, data="{}",
    )  # fmt: skip
    return msgspec.structs.astuple(row)


def write(journal: Journal, *changes: Changes, then: BaseException | None = None) -> None:
    """Write in one transaction, and fail in it where that is asked for."""
    with journal.transaction() as ledger:
        for each in changes:
            ledger.write(each)
        if then is not None:
            raise then


def test_an_exception_leaves_nothing_behind(harness: Harness, journal: Journal) -> None:
    with pytest.raises(Deliberate):
        write(journal, a_change(1), Changes(events=[an_event(7)]), then=Deliberate())
    assert not any(content(harness).values())
    assert journal.position() == 0


def test_a_number_given_out_in_vain_is_given_out_again(journal: Journal) -> None:
    def in_vain() -> None:
        with journal.transaction() as ledger:
            assert ledger.next_job_id() == 1
            raise Deliberate

    with pytest.raises(Deliberate):
        in_vain()
    with journal.transaction() as ledger:
        assert ledger.next_job_id() == 1


def test_the_next_transaction_works_after_one_that_the_store_refused(harness: Harness, journal: Journal) -> None:
    with pytest.raises(JournalError):
        write(journal, a_change(1), Changes(events=[an_event(1)]), Changes(events=[an_event(1)]))
    with journal.transaction() as ledger:
        assert list(ledger.jobs(["j1"])) == []
        ledger.write(a_change(3))
    assert [row.job for row in harness.rows(rows.JobRow)] == ["j3"]


def test_a_package_written_in_a_transaction_that_failed_is_not_remembered(journal: Journal) -> None:
    write(journal, a_change(1))
    running = rows.PackageRow(1, 1, 1, 1, rows.PackageFacts(state="RUNNING"))
    with pytest.raises(Deliberate):
        write(journal, Changes(packages=[running]), then=Deliberate())
    with journal.transaction() as ledger:
        assert [row.facts.state for row in ledger.packages([(1, 1, 1, 1)])] == ["WAITING"]


def test_a_transaction_within_a_transaction_is_refused_and_neither_counts(harness: Harness, journal: Journal) -> None:
    def within() -> None:
        with journal.transaction() as ledger:
            ledger.write(a_change(1))
            with pytest.raises(JournalError):
                write(journal, a_change(2))

    with pytest.raises(JournalError):
        within()
    assert not any(content(harness).values())
    write(journal, a_change(3))


def test_what_was_committed_is_there_after_opening_again(harness: Harness) -> None:
    keeper(harness.open()).take(a_short_job())
    before = content(harness)
    keeper_again = keeper(harness.reopen())
    assert content(harness) == before
    receipt = keeper_again.take(a_short_job())
    assert (receipt.kept, receipt.repeated, receipt.refused) == (0, len(a_short_job()), [])
    assert content(harness) == before


def test_a_transaction_sees_what_it_wrote(journal: Journal) -> None:
    with journal.transaction() as ledger:
        ledger.write(a_change(1))
        assert [row.job for row in ledger.jobs(["j1", "j2"])] == ["j1"]
        assert [row.facts.state for row in ledger.packages([(1, 1, 1, 1), (1, 1, 1, 2)])] == ["WAITING"]


def test_nobody_else_sees_what_is_not_committed(journal: Journal) -> None:
    by = Stream()
    keeper(journal).take([by.event(registered(), job="j1")])
    with journal.transaction() as ledger:
        (row,) = ledger.jobs(["j1"])
        row.name = "changed"
        ledger.write(Changes(jobs=[row]))
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.extend(job.name for job in [journal.job("j1")] if job))
        reader.start()
        reader.join()
        assert seen == ["sweep"]
    changed = journal.job("j1")
    assert changed is not None
    assert changed.name == "changed"


def test_writers_of_one_process_take_turns(harness: Harness, journal: Journal) -> None:
    def count(times: int) -> None:
        for _ in range(times):
            with journal.transaction() as ledger:
                number = ledger.next_stream_id()
                ledger.write(Changes(streams=[rows.StreamRow(stream_id=number, source="client", stream=f"s{number}")]))

    threads = [threading.Thread(target=count, args=(10,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.stream_id for row in harness.rows(rows.StreamRow)) == list(range(1, 41))


def test_a_second_writer_is_refused_until_the_first_is_gone(harness: Harness, journal: Journal) -> None:
    with pytest.raises(JournalBusy, match="another process writes this book"):
        harness.open()
    # The first is none the worse for it.
    with journal.transaction() as ledger:
        ledger.write(a_change(1))
    harness.reopen()


def test_counters_go_on_after_opening_again_and_never_back(harness: Harness) -> None:
    journal = harness.open()
    with journal.transaction() as ledger:
        assert [ledger.next_job_id(), ledger.next_job_id()] == [1, 2]
        assert ledger.next_stream_id() == 1
    with journal.transaction() as ledger:
        assert ledger.next_stream_id() == 2
    with harness.reopen().transaction() as ledger:
        assert (ledger.next_job_id(), ledger.next_stream_id(), ledger.position()) == (3, 3, 0)


def test_positions_go_on_from_the_last_event(harness: Harness) -> None:
    events = a_short_job()
    first = keeper(harness.open()).take(events[:3])
    again = harness.reopen()
    assert again.position() == first.position == 3
    second = keeper(again).take(events[3:])
    assert second.position == again.position() == len(events)
    assert sorted(row.position for row in harness.rows(rows.EventRow)) == list(range(1, len(events) + 1))


def test_a_book_of_a_newer_pilotage_is_refused_and_left_alone(harness: Harness) -> None:
    harness.open()
    harness.close()
    newest = harness.schema_version()
    harness.set_schema_version(newest + 1)
    with pytest.raises(
        JournalError, match=f"newer pilotage; expected schema {newest} or older, got schema {newest + 1}"
    ):
        harness.open()
    assert harness.schema_version() == newest + 1
    harness.set_schema_version(newest)
    harness.open()
