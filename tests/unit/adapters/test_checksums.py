"""A checksum is remembered as long as the file is the same; a time that was set back deceives nobody."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.adapters.stores.folder_tree import FolderTree
from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import WorkDatabase

LONG_AGO = 1_600_000_000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[SqliteResultsIndex]:
    made = SqliteResultsIndex(WorkDatabase(tmp_path / ".pilotage"))
    yield made
    made.close()


@pytest.fixture
def tree(tmp_path: Path, index: SqliteResultsIndex) -> FolderTree:
    """A store that has read a file which is old."""
    path = tmp_path / "in.dat"
    path.write_bytes(b"old")
    os.utime(path, (LONG_AGO, LONG_AGO))
    tree = FolderTree(tmp_path / ".pilotage", index)
    assert tree.checksum(str(tmp_path), "in.dat") == sha(b"old")
    tree.close()
    return tree


def await_tick(path: Path) -> None:
    """Wait until the file system gives another time than the one at which a file was last changed."""
    before, probe = path.stat().st_ctime_ns, path.with_name("probe")
    until = time.monotonic() + 10
    probe.touch()
    while probe.stat().st_ctime_ns <= before:
        assert time.monotonic() < until
        probe.touch()
    probe.unlink()


def write_in_place(path: Path, data: bytes) -> None:
    """Change a file and set its time back, as some tools do."""
    await_tick(path)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, (LONG_AGO, LONG_AGO))


def test_a_change_whose_time_was_set_back_is_seen(tree: FolderTree, tmp_path: Path) -> None:
    path = tmp_path / "in.dat"
    before = path.stat()
    write_in_place(path, b"new")
    after = path.stat()
    same = [(each.st_size, each.st_mtime_ns, each.st_ino) for each in (before, after)]
    assert same[0] == same[1]  # everything else says that it is the same
    assert tree.checksum(str(tmp_path), "in.dat") == sha(b"new")


def test_what_attempts_linked_is_not_read_again_and_a_change_after_them_is_seen(
    tree: FolderTree, index: SqliteResultsIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "in.dat", tmp_path / "scratch"
    await_tick(path)
    link.hardlink_to(path)
    link.unlink()
    index.used(str(tmp_path), until_ns=path.stat().st_ctime_ns)
    with monkeypatch.context() as patch:
        patch.setattr("pilotage.adapters.stores.checksums.hashlib", None)
        assert tree.checksum(str(tmp_path), "in.dat") == sha(b"old")
    write_in_place(path, b"new")
    assert tree.checksum(str(tmp_path), "in.dat") == sha(b"new")


def test_a_link_of_somebody_else_has_it_read_again_once(
    tree: FolderTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.dat"
    await_tick(path)
    (tmp_path / "backup").hardlink_to(path)
    assert tree.checksum(str(tmp_path), "in.dat") == sha(b"old")
    monkeypatch.setattr("pilotage.adapters.stores.checksums.hashlib", None)
    assert tree.checksum(str(tmp_path), "in.dat") == sha(b"old")
