"""Two services and one place for records: one writes, the other is refused by name, and nothing that was acknowledged is lost."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pilotage.adapters.records.copies import PackCopies
from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.folder import FolderStore
from pilotage.ports import StoreObject
from pilotage.ports.records import RecordStoreError
from tests.conformance.records.test_record_store import store_one


class Watched(FolderStore):
    """A store that does something once, before or after a segment is put."""

    def __init__(self) -> None:
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        is_segment = locator.endswith(".segment")
        before, after = self.before, self.after
        if is_segment and before is not None:
            self.before = None
            before()
        made = super().put(source, locator, replaces=replaces, sent=sent)
        if is_segment and after is not None:
            self.after = None
            after()
        return made


@pytest.fixture
def store() -> Watched:
    return Watched()


def opened(tmp_path: Path, name: str, store: FolderStore, *, takes_over: bool = False) -> FolderRecords:
    copies = PackCopies(store, f"file://{tmp_path}/copies", takes_over=takes_over)
    return FolderRecords(tmp_path / name, copies=copies)


def jobs(records: FolderRecords) -> list[tuple[int, str]]:
    return [(each.position, each.job) for each in records.changes(after=0, limit=100)]


def test_a_second_folder_that_writes_to_one_store_is_refused_and_told_which_one_writes(
    tmp_path: Path, store: Watched
) -> None:
    first = opened(tmp_path, "first", store)
    store_one(first, "j1", b"one")
    with pytest.raises(RecordStoreError, match="another folder writes the copy of its records there") as refused:
        opened(tmp_path, "second", store)
    assert str(tmp_path / "first") in refused.value.what
    assert "pilotage provenance take-over" in refused.value.next_step
    store_one(first, "j2", b"two")
    first.close()
    second = opened(tmp_path, "second", store)  # its service has stopped
    store_one(second, "j3", b"three")
    assert jobs(second) == [(1, "j1"), (2, "j2"), (3, "j3")]
    with pytest.raises(RecordStoreError, match="another folder writes"):
        opened(tmp_path, "first", store)
    second.close()
    again = opened(tmp_path, "first", store)
    assert jobs(again) == [(1, "j1"), (2, "j2"), (3, "j3")]
    assert list(again.check()) == []
    again.close()


def test_a_service_that_was_killed_goes_on_in_its_folder_and_another_one_must_take_over(
    tmp_path: Path, store: Watched
) -> None:
    first = opened(tmp_path, "first", store)
    store_one(first, "j1", b"one")
    os.close(first._lock)  # as when its process is killed: nothing is released in the store
    first = opened(tmp_path, "first", store)
    store_one(first, "j2", b"two")
    with pytest.raises(RecordStoreError, match="another folder writes"):
        opened(tmp_path, "second", store)
    second = opened(tmp_path, "second", store, takes_over=True)
    assert jobs(second) == [(1, "j1"), (2, "j2")]
    with pytest.raises(RecordStoreError, match="another folder writes"):
        store_one(first, "j3", b"three")
    assert first.record("j3") is None, "what was not acknowledged is not there"
    store_one(second, "j4", b"four")
    assert jobs(second) == [(1, "j1"), (2, "j2"), (3, "j4")]
    with pytest.raises(RecordStoreError, match="another folder writes"):
        first.collect(dry_run=False)
    first.close()
    second.close()
    third = opened(tmp_path, "third", store)
    assert jobs(third) == [(1, "j1"), (2, "j2"), (3, "j4")]
    assert list(third.check()) == []
    third.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_acknowledged_while_another_folder_takes_over_is_not_lost_and_no_position_is_given_twice(
    moment: str, tmp_path: Path, store: Watched
) -> None:
    first = opened(tmp_path, "first", store)
    store_one(first, "j1", b"one")
    taken: list[FolderRecords] = []
    setattr(store, moment, lambda: taken.append(opened(tmp_path, "second", store, takes_over=True)))
    with pytest.raises(RecordStoreError, match="another folder writes"):
        store_one(first, "j2", b"two")
    [second] = taken
    assert [job for _, job in jobs(second)] == (["j1"] if moment == "before" else ["j1", "j2"])
    store_one(second, "j3", b"three" * 99)
    first.close()
    second.close()
    third = opened(tmp_path, "third", store)
    positions = [position for position, _ in jobs(third)]
    assert positions == sorted(set(positions))
    assert {"j1", "j3"} <= {job for _, job in jobs(third)}
    assert list(third.check()) == []
    third.close()


def test_a_folder_whose_lock_was_taken_away_writes_nothing_more(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    first = FolderRecords(folder)
    store_one(first, "j1", b"one")
    (folder / "lock").unlink()
    second = FolderRecords(folder)
    store_one(second, "j2", b"two")
    with pytest.raises(RecordStoreError, match="its lock was taken away"):
        store_one(first, "j3", b"three")
    first.close()
    store_one(second, "j4", b"four")
    assert jobs(second) == [(1, "j1"), (2, "j2"), (3, "j4")]
    assert list(second.check()) == []
    second.close()


def _commit_some(folder: str, name: str, count: int) -> None:
    """Commit records one by one, and open the folder for each: refused while another process writes."""
    done = 0
    while done < count:
        with suppress(RecordStoreError):  # another process writes there
            store = FolderRecords(Path(folder))
            store_one(store, f"{name}-{done}", b"shared", os.urandom(50))
            store.close()
            done += 1


def test_processes_that_write_one_folder_in_turns_lose_no_record_and_give_no_position_twice(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_commit_some, args=(str(tmp_path / "records"), name, 15)) for name in "abc"]
    for each in processes:
        each.start()
    for each in processes:
        each.join(120)
    assert [each.exitcode for each in processes] == [0, 0, 0]
    store = FolderRecords(tmp_path / "records")
    assert [position for position, _ in jobs(store)] == list(range(1, 46))
    assert {job for _, job in jobs(store)} == {f"{name}-{number}" for name in "abc" for number in range(15)}
    assert list(store.check()) == []
    store.close()
