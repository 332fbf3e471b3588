"""A service makes the records of jobs that are over, by itself, and purges none without."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.journals.sqlite.locations import sealed_path
from pilotage.adapters.records.folder import FolderRecords
from pilotage.book.fold.join import Receipt
from pilotage.book.query import QueryError
from pilotage.model.events.payloads import Cleared, Noted, Tagged
from pilotage.model.records import Annotation, JobRecord
from pilotage.model.settings.settings import ProvenanceSettings, RetentionSettings
from pilotage.ports.records import RecordNotReady, RecordStore, RecordStoreError
from pilotage.service.journal.recording import RecordKeeping
from pilotage.service.journal.retention import Retention
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import START, StandingClock, Stream, a_short_job
from tests.kit.real_runs import wait_until

DAY_SECONDS = 86_400.0


class Place:
    """A book with a finished job, and a folder for records that can be made to fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = StandingClock(START)
        self.running_seconds = 0.0  # how long the service has been running
        self.journal = SqliteJournal(folder / "book")
        self.take = BatchCommitter(self.journal, clock=self.clock).take
        self.by = Stream("service", "core")
        self.take(a_short_job(stream=self.by))
        self.broken = False
        self.opens = 0
        self.commits: list[list[str]] = []
        self.committed = threading.Event()

    def open(self, *, writes: bool) -> RecordStore:
        self.opens += 1
        if self.broken:
            raise RecordStoreError("cannot be used: No space left on device")
        store = FolderRecords(self.folder / "records", writes=writes)
        commit = store.commit

        def told(records: Sequence[JobRecord]) -> list[int]:
            found = commit(records)
            self.commits.append([each.job for each in records])
            self.committed.set()
            return found

        store.commit = told  # type: ignore[method-assign]
        return store

    def keeping(self, *, writes: bool = True, **settings: float | str) -> RecordKeeping:
        chosen = ProvenanceSettings(**({"recorded_after_seconds": 0.1} | settings))  # type: ignore[arg-type]
        return RecordKeeping(
            self.journal,
            settings=chosen,
            open_store=self.open,
            clock=self.clock,
            is_incomplete=self._looked_at,
            writes=writes,
            elapsed=lambda: self.running_seconds,
        )

    def pass_days(self, days: float) -> None:
        self.clock.at += days * DAY_SECONDS
        self.running_seconds += days * DAY_SECONDS

    incomplete = 0  # how often the job is still incomplete
    looks = 0

    def _looked_at(self, _: str) -> bool:
        self.looks += 1
        return self.looks <= self.incomplete

    def retention(self, records: RecordKeeping) -> Retention:
        return Retention(
            self.journal,
            settings=RetentionSettings(sealed_after_seconds=1e9),
            keep=self._keep,
            identity=lambda: ("retention", next(self._numbers)),
            records=records,
        )

    _numbers = iter(range(1, 100))

    def _keep(self, events: object) -> Receipt:
        return self.take(events)  # type: ignore[arg-type]

    def revisions(self) -> list[int]:
        store = FolderRecords(self.folder / "records", writes=False)
        try:
            return [each.revision for each in store.revisions("j1")]
        finally:
            store.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.journal.close()


@pytest.fixture
def started(place: Place) -> Iterator[Callable[[], RecordKeeping]]:
    running: list[RecordKeeping] = []

    def start() -> RecordKeeping:
        keeping = place.keeping()
        running.append(keeping)
        keeping.start()
        return keeping

    yield start
    for each in running:
        each.stop()


def test_a_job_that_ended_under_an_earlier_service_is_recorded(
    place: Place, started: Callable[[], RecordKeeping]
) -> None:
    started()
    assert place.committed.wait(60)
    assert place.revisions() == [1]


def test_a_late_event_makes_another_revision(place: Place, started: Callable[[], RecordKeeping]) -> None:
    keeping = started()
    assert place.committed.wait(60)
    place.committed.clear()
    place.clock.at += 5
    place.take([place.by.event(Noted(text="late"), job="j1")])
    keeping.note(["j1"])
    assert place.committed.wait(60)
    assert place.revisions() == [1, 2]


def test_a_service_that_stops_records_what_has_ended(place: Place) -> None:
    keeping = place.keeping(recorded_after_seconds=1000.0)
    keeping.start()
    keeping.note(["j1"])
    keeping.stop()
    assert place.revisions() == [1]


def test_no_job_is_purged_before_its_record_is_made(place: Place) -> None:
    place.broken = True
    records = place.keeping()
    retention = place.retention(records)
    place.clock.at += 31 * DAY_SECONDS
    assert [each.deed for each in retention.apply(place.clock.at).actions] == ["clear"]
    place.clock.at += 8 * DAY_SECONDS
    assert retention.apply(place.clock.at).actions == []  # neither recorded nor purged
    row = place.journal.job("j1")
    assert row is not None
    assert row.place == "live"
    place.broken = False
    assert [each.deed for each in retention.apply(place.clock.at).actions] == ["record"]
    assert [each.deed for each in retention.apply(place.clock.at).actions] == ["purge"]
    records.close()
    assert place.revisions() == [1]


def test_a_record_whose_time_is_over_is_deleted_and_not_made_again(place: Place) -> None:
    records = place.keeping(kept_days=10.0)
    assert records.record("j1") is not None
    assert records.delete_expired() == 0
    place.pass_days(9)
    assert records.delete_expired() == 0
    place.pass_days(2)
    assert records.delete_expired() == 1
    row = place.journal.job("j1")
    assert row is not None
    assert records.is_recorded(row)
    assert records.store().revisions("j1") == []
    assert list(records.store().check()) == []
    records.close()


def test_a_job_that_never_had_a_record_gets_one_however_old_it_is(place: Place) -> None:
    records = place.keeping(kept_days=10.0)
    place.clock.at += 11 * DAY_SECONDS
    row = place.journal.job("j1")
    assert row is not None
    assert not records.is_recorded(row)
    assert records.record_all({"j1"}) == set()
    assert place.revisions() == [1]
    assert records.delete_expired() == 0
    place.pass_days(10)
    assert records.delete_expired() == 1
    assert records.is_recorded(row)
    records.close()


def test_records_that_a_setting_names_are_never_deleted_by_retention(place: Place) -> None:
    for job in ("j2", "j3", "j4"):
        place.take(a_short_job(job, stream=place.by))
    place.take([place.by.event(Tagged(name="keep", value="yes"), job="j2")])
    records = place.keeping(kept_days=10.0, never_deleted="tag.keep=yes or job=j3")
    assert records.record_all({"j1", "j2", "j3", "j4"}) == set()
    assert records.delete_expired() == 0
    with records.writing() as store:
        store.annotate(Annotation(job="j4", name="keep", at=START, author="ada", text="yes"))
    place.pass_days(11)
    expired = records.expired()
    assert (set(expired.deleted), set(expired.kept)) == ({"j1"}, {"j2", "j3", "j4"})
    planned = place.retention(records).plan(place.clock.at)
    assert set(planned.records.kept) == {"j2", "j3", "j4"}
    assert records.delete_expired() == 1
    assert records.delete_expired() == 0
    assert records.store().collect(dry_run=True).parts == 0
    assert all(records.store().revisions(job) for job in ("j2", "j3", "j4"))
    with records.writing() as store:
        store.annotate(Annotation(job="j4", name="keep", at=START + 1, author="ada", text="no"))
    assert records.expired().deleted == ("j4",)
    assert records.delete_expired() == 1
    records.close()


def test_a_record_that_cannot_be_read_is_not_deleted_where_some_are_kept(place: Place) -> None:
    records = place.keeping(kept_days=10.0, never_deleted="owner=nobody")
    assert records.record("j1") is not None
    assert records.delete_expired() == 0
    records.close()
    pack = place.folder / "records/packs/000001.pack"
    whole = bytearray(pack.read_bytes())
    whole[-30] ^= 1
    pack.write_bytes(whole)
    place.pass_days(11)
    assert records.expired().kept == ("j1",)
    assert records.delete_expired() == 0
    records.close()


def test_what_is_never_deleted_must_be_a_query(place: Place) -> None:
    with pytest.raises(QueryError, match=r"provenance\.never_deleted"):
        place.keeping(never_deleted="tag.keep=")


def test_a_clock_that_jumps_forward_deletes_no_record(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    records = place.keeping(kept_days=10.0)
    assert records.record("j1") is not None
    assert records.delete_expired() == 0
    place.clock.at += 400 * DAY_SECONDS
    place.take(a_short_job(job="j2", stream=Stream("service", "other")))
    assert records.record("j2") is not None  # a record that seems to be new
    assert records.delete_expired() == 0
    assert "records expire as if it was 400 days ago" in caplog.text
    records.close()
    records = place.keeping(kept_days=10.0)  # nor when the service starts again
    assert records.delete_expired() == 0
    place.clock.at = START
    place.pass_days(8)
    assert records.delete_expired() == 0
    place.pass_days(3)
    assert records.delete_expired() == 1
    assert records.store().revisions("j1") == []
    records.close()


def test_records_of_a_service_that_was_off_for_long_expire_when_their_time_has_passed_by_a_tenth_at_each_start(
    place: Place,
) -> None:
    records = place.keeping(kept_days=10.0)
    assert records.record("j1") is not None
    records.close()
    place.clock.at += 365 * DAY_SECONDS
    deleted = []
    for _ in range(11):
        records = place.keeping(kept_days=10.0)
        deleted.append(records.delete_expired())
        records.close()
    assert deleted == [0] * 10 + [1]


def test_jobs_that_are_due_are_recorded_in_one_commit_whatever_is_wrong_with_one(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for job in ("j2", "j3"):
        place.take(a_short_job(job, stream=place.by))
    place.journal.seal("j2")
    sealed_path(place.folder / "book", "j2").write_bytes(b"damaged")
    records = place.keeping()
    assert records.record_all({"j1", "j2", "j3"}) == set()
    assert place.commits == [["j1", "j3"]]
    assert "the record of job j2 could not be made yet" in caplog.text
    records.close()


def test_records_that_cannot_be_stored_are_made_as_soon_as_there_is_room_and_the_trouble_is_told_once(
    place: Place, started: Callable[[], RecordKeeping], caplog: pytest.LogCaptureFixture
) -> None:
    place.broken = True
    keeping = started()
    wait_until(lambda: keeping.trouble_of("j1"), "the trouble")
    opens = place.opens
    wait_until(lambda: place.opens > opens + 2, "further tries")
    assert caplog.text.count("No space left on device") == 1
    assert "tried again: cannot be used: No space left on device" in keeping.trouble_of("j1")
    place.broken = False
    assert place.committed.wait(60)
    wait_until(lambda: not keeping.trouble_of("j1"), "the end of the trouble")
    assert place.revisions() == [1]


def test_a_full_disk_leaves_nothing_half_and_every_record_is_made_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write of each try succeeds; wherever the disk is full then, the pack is as it was."""
    for job in ("j2", "j3"):
        place.take(a_short_job(job, stream=place.by))
    records = place.keeping()
    write, room = os.pwrite, [0]

    def limited(descriptor: int, content: bytes, offset: int) -> int:
        if len(content) > room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(content)
        return write(descriptor, content, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", limited)
        for room[0] in range(0, 1200, 100):
            again = records.record_all({"j1", "j2", "j3"})
            if not again:
                break
            assert again == {"j1", "j2", "j3"}
            assert all("No space left" in records.trouble_of(job) for job in again)
            assert records.store().changes(after=0, limit=9) == []
            assert list(records.store().check()) == []
    assert records.record_all({"j1", "j2", "j3"}) == set()
    assert records.trouble_of("j1") == ""
    assert [each.job for each in records.store().changes(after=0, limit=9)] == ["j1", "j2", "j3"]
    assert list(records.store().check()) == []
    records.close()


def test_a_damaged_record_is_made_again_while_the_book_has_its_job(place: Place) -> None:
    records = place.keeping()
    assert records.record("j1") is not None
    records.close()
    pack = place.folder / "records/packs/000001.pack"
    whole = bytearray(pack.read_bytes())
    whole[-30] ^= 1  # the record was written last
    pack.write_bytes(whole)
    row = place.journal.job("j1")
    assert row is not None
    assert not records.is_recorded(row)
    made = records.record("j1")
    assert made is not None
    assert made.revision == 2
    assert records.is_recorded(row)
    records.close()


def test_where_no_service_runs_the_storage_is_locked_only_while_a_record_is_made(place: Place) -> None:
    records = place.keeping(writes=False)
    row = place.journal.job("j1")
    assert row is not None
    assert not records.is_recorded(row)
    assert not (place.folder / "records").exists()
    assert records.record("j1") is not None
    assert records.is_recorded(row)
    FolderRecords(place.folder / "records").close()  # another may write now
    records.close()


def test_a_record_waits_for_checksums_that_are_being_worked_out(
    place: Place, started: Callable[[], RecordKeeping]
) -> None:
    place.incomplete = 2
    with pytest.raises(RecordNotReady, match="still being worked out"):
        place.keeping().record("j1")
    started()
    assert place.committed.wait(60)
    assert place.looks >= 3
    assert place.revisions() == [1]


def test_records_are_read_while_another_is_being_made(place: Place) -> None:
    keeping = place.keeping()
    assert keeping.record("j1") is not None
    place.take([place.by.event(Noted(text="late"), job="j1")])
    making, read = threading.Event(), threading.Event()

    def describe(_: str) -> bytes | None:
        making.set()
        assert read.wait(60)
        return None

    keeping._sites = describe
    maker = threading.Thread(target=keeping.record, args=("j1",))
    maker.start()
    assert making.wait(60)
    reader = threading.Thread(target=lambda: keeping.store().record("j1"))
    reader.start()
    reader.join(20)
    was_read = not reader.is_alive()
    read.set()
    for each in (maker, reader):
        each.join()
    assert was_read
    keeping.close()
    assert place.revisions() == [1, 2]


def test_a_deleted_record_is_made_again_only_if_more_is_heard(
    place: Place, started: Callable[[], RecordKeeping]
) -> None:
    records = place.keeping()
    assert records.record("j1") is not None
    records.store().delete("j1", at=place.clock.at, author="ada")
    row = place.journal.job("j1")
    assert row is not None
    assert records.is_recorded(row)
    assert records.record("j1") is None
    records.close()
    place.clock.at += 5
    place.take([place.by.event(Noted(text="late"), job="j1")])
    place.committed.clear()
    started()
    assert place.committed.wait(60)
    assert place.revisions() == [1]


def test_a_record_says_how_a_job_ended_also_when_it_is_cleared(place: Place) -> None:
    records = place.keeping()
    assert records.record("j1") is not None
    place.clock.at += 5
    place.take([place.by.event(Cleared(by="user"), job="j1")])
    cleared = records.record("j1")
    assert cleared is not None
    assert (cleared.revision, cleared.state) == (2, "DONE")
    records.close()
