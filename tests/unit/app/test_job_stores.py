"""The store for the files of jobs is chosen in one place, and can be looked at without being changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import pilotage
from pilotage.app.job_stores import copied_job_stores, open_job_stores
from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.ports import ResultsIndex, StoreError

TEXT = LogText(ref=AttemptRef("j1", "1.1.1", 1), stream="stdout", head="hello", tail="", dropped_bytes=0, final=True)


def test_the_adapters_of_the_store_are_chosen_in_one_place() -> None:
    app = Path(pilotage.__file__).parent / "app"
    adapters = ("FolderTree", "SqliteResultsIndex", "SqliteLogs", "WorkDatabase")
    choosing = [path for path in app.rglob("*.py") if any(name in path.read_text("utf-8") for name in adapters)]
    assert [path.relative_to(app).as_posix() for path in choosing] == ["job_stores.py"]


def test_what_is_kept_is_there_when_the_stores_are_opened_again_and_closing_closes_all(tmp_path: Path) -> None:
    with closing(open_job_stores(tmp_path)) as stores:
        stores.logs.put([TEXT])
    with pytest.raises(StoreError):
        stores.logs.read("j1", "1.1.1")
    with pytest.raises(StoreError):
        stores.index.knows("/data")
    with closing(open_job_stores(tmp_path)) as stores:
        assert stores.logs.read("j1", "1.1.1") == [TEXT]


def test_a_copy_knows_what_was_kept_and_changes_nothing_of_it(tmp_path: Path) -> None:
    state, folder = tmp_path / "state", tmp_path / "data"
    folder.mkdir()
    (folder / "a.dat").write_text("a", "utf-8")
    long_ago = time.time() - 3600
    os.utime(folder / "a.dat", (long_ago, long_ago))
    with closing(open_job_stores(state)) as stores:
        stores.logs.put([TEXT])
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    with copied_job_stores(state) as copied:
        assert copied.logs.read("j1", "1.1.1") == [TEXT]
        assert copied.tree.checksum(str(folder), "a.dat") is not None  # remembered, in the copy
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before


def test_the_tree_learns_for_the_index_that_it_was_made_with(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("a", "utf-8")
    asked: list[tuple[ResultsIndex, str]] = []

    def learning(index: ResultsIndex) -> Callable[[str], bool]:
        def learn(folder: str) -> bool:
            asked.append((index, folder))
            return False

        return learn

    with closing(open_job_stores(tmp_path / "state", learning=learning)) as stores:
        there = stores.tree.look_up(str(tmp_path), ["a.dat"])
        assert stores.tree.is_ours(str(tmp_path), there.values()) == {"a.dat": False}
    assert asked == [(stores.index, str(tmp_path))]
