from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.book.codec import Codec
from pilotage.book.fold.join import Joined, Receipt
from pilotage.book.query import EVERYTHING
from pilotage.book.rows.ledger import Ledger
from pilotage.model.errors import PilotageError
from pilotage.ports import Journal, JournalError, JournalFull
from pilotage.service.journal.writer import Batch, BatchCommitter, Writer, WriterBusy, WriterStopped
from tests.kit.served_book import WallClock, event, registered, sqlite_journal

ANSWER_SECONDS = 30


def batch(*events: dict[str, Any]) -> Batch:
    checked, refused, _ = Codec().read_batch(msgspec.json.encode({"events": events}))
    return Batch(checked, refused)


def note(n: int, stream: str = "test") -> dict[str, Any]:
    return event(n, "Noted", {"text": str(n)}, stream=stream)


class GatedKeeper(BatchCommitter):
    """A keeper that begins a group only when the test lets it, and remembers how many batches each had."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, clock=WallClock())
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.groups: list[int] = []
        self.faults: list[Exception] = []

    def commit_together(self, batches: Sequence[Batch]) -> list[Receipt]:
        self.entered.release()
        assert self.gate.acquire(timeout=ANSWER_SECONDS)
        self.groups.append(len(batches))
        if self.faults:
            raise self.faults.pop(0)
        return super().commit_together(batches)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with sqlite_journal(tmp_path) as journal:
        yield journal


@pytest.fixture
def keeper(journal: Journal) -> GatedKeeper:
    return GatedKeeper(journal)


@pytest.fixture
def writer(keeper: GatedKeeper) -> Iterator[Writer]:
    writer = Writer(keeper, queue_events_max=10)
    writer.start()
    yield writer
    for _ in range(100):
        keeper.gate.release()
    writer.stop()


def receipts(futures: Iterable[Future[Receipt]]) -> list[Receipt]:
    return [future.result(ANSWER_SECONDS) for future in futures]


def hold_first(writer: Writer, keeper: GatedKeeper) -> Future[Receipt]:
    """Have the writer begin with one batch, and wait in it: whatever comes now comes together."""
    first = writer.submit(batch(note(1, "first")))
    assert keeper.entered.acquire(timeout=ANSWER_SECONDS)
    return first


def test_what_was_queued_meanwhile_is_written_together_and_answered_apart(
    writer: Writer, keeper: GatedKeeper, journal: Journal
) -> None:
    first = hold_first(writer, keeper)
    known = note(1, "c")
    others = [
        writer.submit(batch(note(1, "a"), note(2, "a"))),
        writer.submit(batch(event(1, "Nonsense", stream="b"), note(2, "b"), known, {**known, "time": 1.0})),
        writer.submit(batch(event(1, "Tagged", {"name": "x", "value": "y"}, stream="d", job="unknown"))),
        writer.submit(batch(known)),
    ]
    keeper.gate.release()
    keeper.gate.release()
    assert receipts([first])[0].kept == 1
    a, b, c, d = receipts(others)
    assert keeper.groups == [1, 4]
    assert (a.position, a.kept, a.refused) == (3, 2, [])
    assert (b.position, b.kept) == (5, 2)
    assert [(each.index, each.code) for each in b.refused] == [(0, "unknown_type"), (3, "conflict")]
    assert (c.kept, c.parked) == (0, 1)
    assert (d.kept, d.repeated, d.refused) == (0, 1, [])
    assert journal.position() == 5


def test_a_job_registered_in_one_batch_is_known_to_the_next_of_the_same_group(
    writer: Writer, keeper: GatedKeeper, journal: Journal
) -> None:
    hold_first(writer, keeper)
    place = {"job": "j", "package": "1.1.1"}
    futures = [
        writer.submit(batch(event(1, "Tagged", {"name": "early", "value": "1"}, stream="early", **place))),
        writer.submit(batch(registered(1, "j"))),
        writer.submit(batch(event(2, "Tagged", {"name": "late", "value": "2"}, **place))),
    ]
    keeper.gate.release()
    keeper.gate.release()
    assert [each.parked for each in receipts(futures)] == [1, 0, 0]
    job = journal.job("j")
    assert job is not None
    found = journal.find_packages(EVERYTHING, after=None, limit=10, job=job)
    assert [sorted(each.row.facts.tags) for each in found.items] == [["early", "late"]]


def test_a_full_disk_is_told_to_everyone_and_nothing_is_kept(
    writer: Writer, keeper: GatedKeeper, journal: Journal
) -> None:
    keeper.faults = [JournalFull("no room")]
    future = writer.submit(batch(note(1)))
    keeper.gate.release()
    with pytest.raises(JournalFull):
        future.result(ANSWER_SECONDS)
    assert journal.position() == 0
    again = writer.submit(batch(note(1)))
    keeper.gate.release()
    assert receipts([again])[0].kept == 1


def test_a_batch_that_breaks_the_join_takes_no_other_with_it(
    writer: Writer, keeper: GatedKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    hold_first(writer, keeper)
    keeper.faults = []
    futures = [writer.submit(batch(note(n, "s"))) for n in (1, 2, 3)]
    keeper.gate.release()
    assert keeper.entered.acquire(timeout=ANSWER_SECONDS)
    keeper.faults = [ValueError("together"), ValueError("the first alone")]
    for _ in range(4):
        keeper.gate.release()
    with pytest.raises(ValueError, match="the first alone"):
        futures[0].result(ANSWER_SECONDS)
    assert [each.kept for each in receipts(futures[1:])] == [1, 1]
    assert keeper.groups == [1, 3, 1, 1, 1]
    assert "together" in caplog.text


def test_what_is_wrong_with_one_job_keeps_no_other_batch_out(writer: Writer, keeper: GatedKeeper) -> None:
    hold_first(writer, keeper)
    futures = [writer.submit(batch(note(n, "s"))) for n in (1, 2)]
    keeper.gate.release()
    assert keeper.entered.acquire(timeout=ANSWER_SECONDS)
    keeper.faults = [JournalError("a file is gone"), JournalError("a file is gone")]
    for _ in range(3):
        keeper.gate.release()
    with pytest.raises(JournalError, match="a file is gone"):
        futures[0].result(ANSWER_SECONDS)
    assert [each.kept for each in receipts(futures[1:])] == [1]


def test_a_listener_that_fails_neither_ends_the_writer_nor_keeps_answers_back(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(jobs: Iterable[str]) -> None:
        raise ValueError("the bell is broken")

    writer = Writer(BatchCommitter(journal, clock=WallClock()), committed=broken)
    writer.start()
    assert [each.kept for each in receipts([writer.submit(batch(note(1))), writer.submit(batch(note(2)))])] == [1, 1]
    writer.stop()
    assert "the bell is broken" in caplog.text


def test_more_than_may_wait_is_refused_at_once(writer: Writer, keeper: GatedKeeper) -> None:
    hold_first(writer, keeper)
    waiting = writer.submit(batch(*[note(n, "many") for n in range(1, 11)]))
    with pytest.raises(WriterBusy, match="at most 10"):
        writer.submit(batch(note(1, "more")))
    keeper.gate.release()
    keeper.gate.release()
    assert receipts([waiting])[0].kept == 10
    after = writer.submit(batch(note(1, "more")))
    keeper.gate.release()
    assert receipts([after])[0].kept == 1


def test_a_batch_larger_than_the_queue_is_taken_when_nothing_waits(writer: Writer, keeper: GatedKeeper) -> None:
    keeper.gate.release()
    large = writer.submit(batch(*[note(n, "many") for n in range(1, 30)]))
    assert receipts([large])[0].kept == 29


def test_stopping_writes_what_is_queued_and_takes_nothing_more(journal: Journal) -> None:
    keeper = GatedKeeper(journal)
    writer = Writer(keeper)
    writer.start()
    first = hold_first(writer, keeper)
    queued = writer.submit(batch(note(1, "queued")))
    stopping = threading.Thread(target=writer.stop)
    stopping.start()
    keeper.gate.release()
    keeper.gate.release()
    stopping.join(ANSWER_SECONDS)
    assert [each.kept for each in receipts([first, queued])] == [1, 1]
    assert not writer.alive
    with pytest.raises(WriterStopped):
        writer.submit(batch(note(2)))


def test_a_group_is_no_larger_than_allowed(journal: Journal) -> None:
    keeper = GatedKeeper(journal)
    writer = Writer(keeper, group_events=3)
    writer.start()
    hold_first(writer, keeper)
    futures = [writer.submit(batch(note(n, "s"), note(n + 100, "s"))) for n in (1, 2, 3)]
    for _ in range(4):
        keeper.gate.release()
    assert [each.kept for each in receipts(futures)] == [2, 2, 2]
    assert keeper.groups == [1, 1, 1, 1]
    writer.stop()


def test_who_took_a_request_back_in_time_is_not_written(writer: Writer, keeper: GatedKeeper, journal: Journal) -> None:
    hold_first(writer, keeper)
    gone = writer.submit(batch(note(1, "gone")))
    here = writer.submit(batch(note(1, "here")))
    assert gone.cancel()
    keeper.gate.release()
    keeper.gate.release()
    assert receipts([here])[0].position == 2
    assert journal.position() == 2


def test_commits_are_told_with_their_jobs_before_the_answers(journal: Journal) -> None:
    told: list[list[str]] = []
    keeper = GatedKeeper(journal)
    writer = Writer(keeper, committed=lambda jobs: told.append(sorted(set(jobs))))
    writer.start()
    keeper.gate.release()
    receipts([writer.submit(batch(registered(1, "a"), registered(2, "b"), note(3)))])
    assert told == [["a", "b"]]
    keeper.faults = [JournalFull("no room")]
    keeper.gate.release()
    with pytest.raises(PilotageError):
        writer.submit(batch(registered(4, "c"))).result(ANSWER_SECONDS)
    assert told == [["a", "b"]]
    writer.stop()


def test_a_sealed_job_is_brought_back_for_the_whole_group(journal: Journal) -> None:
    keeper = BatchCommitter(journal, clock=WallClock())
    ends = event(2, "CancelAccepted", job="j")
    keeper.commit_together([batch(registered(1, "j"), ends)])
    journal.seal("j")
    sealed = journal.job("j")
    assert sealed is not None
    assert sealed.place == "sealed"
    late = event(3, "Tagged", {"name": "late", "value": "1"}, job="j")
    assert [each.kept for each in keeper.commit_together([batch(note(1, "other")), batch(late)])] == [1, 1]
    live = journal.job("j")
    assert live is not None
    assert live.place == "live"


def test_a_group_is_kept_whole_or_not_at_all(journal: Journal) -> None:
    seen: list[int] = []

    def fails_at_the_second(joined: Joined, ledger: Ledger) -> None:
        seen.append(joined.receipt.kept)
        if len(seen) == 2:
            raise JournalFull("no room")

    keeper = BatchCommitter(journal, clock=WallClock(), within=[fails_at_the_second])
    batches = [
        batch(registered(1, "j"), event(2, "JobAccepted", job="j")),
        batch(event(3, "AttemptCreated", {"site": "lyon"}, job="j", package="1.1.1", attempt=1)),
    ]
    with pytest.raises(JournalFull):
        keeper.commit_together(batches)
    assert (journal.position(), journal.job("j")) == (0, None)
    assert [(each.position, each.kept) for each in keeper.commit_together(batches)] == [(2, 2), (3, 1)]
    job = journal.job("j")
    assert job is not None
    assert (job.ready, job.waiting) == (1, 3)
