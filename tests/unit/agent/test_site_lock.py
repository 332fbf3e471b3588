"""One agent for each folder: a lock that the dead do not hold, and that nobody takes from the living."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from pilotage.agent.site.state_folder import LOCK_FILE, AlreadyRuns, FolderLock
from tests.kit.pilots import wait_until


def test_a_lock_is_held_by_one_and_free_when_it_is_let_go(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    first.take()
    with pytest.raises(AlreadyRuns, match=str(os.getpid())):
        FolderLock(tmp_path).take()
    assert json.loads((tmp_path / LOCK_FILE).read_bytes())["pid"] == os.getpid()
    first.release()
    assert [each.name for each in tmp_path.iterdir()] == []


def lock_of(tmp_path: Path, **said: object) -> None:
    lock = FolderLock(tmp_path)
    lock.take()
    told = json.loads((tmp_path / LOCK_FILE).read_bytes())
    lock.release()
    (tmp_path / LOCK_FILE).write_text(json.dumps({**told, "id": "another", **said}))


@pytest.mark.parametrize(
    "said", [{"pid": 2**22 - 1, "started": "never"}, {"boot": "an earlier one"}, {"started": "another time"}]
)
def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path, said: dict[str, object]) -> None:
    lock_of(tmp_path, **said)
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()
    assert [each.name for each in tmp_path.iterdir()] == []


def test_the_lock_of_another_computer_is_taken_over_when_it_is_not_renewed(tmp_path: Path) -> None:
    lock_of(tmp_path, host="elsewhere")
    with pytest.raises(AlreadyRuns, match="elsewhere"):
        FolderLock(tmp_path).take()
    os.utime(tmp_path / LOCK_FILE, (1, 1))
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()


def test_of_many_that_want_it_at_once_one_gets_it(tmp_path: Path) -> None:
    lock_of(tmp_path, started="another time")
    taken: list[FolderLock] = []
    begin = threading.Barrier(8)

    def take() -> None:
        lock = FolderLock(tmp_path)
        begin.wait()
        try:
            lock.take()
        except AlreadyRuns:
            return
        taken.append(lock)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    held = json.loads((tmp_path / LOCK_FILE).read_bytes())["id"]
    assert held in [lock._id for lock in taken]
    for lock in taken:
        lock.release()


def test_who_loses_the_lock_is_told(tmp_path: Path) -> None:
    lost = threading.Event()
    lock = FolderLock(tmp_path, renew_seconds=0.01, lost=lost.set)
    lock.take()
    (tmp_path / LOCK_FILE).write_text("{}")
    wait_until(lost.is_set)
    lock.release()
    assert (tmp_path / LOCK_FILE).exists()  # it is another's


def test_a_held_lock_is_renewed(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, renew_seconds=0.01)
    lock.take()
    os.utime(tmp_path / LOCK_FILE, (1, 1))
    wait_until(lambda: (tmp_path / LOCK_FILE).stat().st_mtime > 1)
    lock.release()
