"""A process that is killed at any step of making a record leaves it whole or not at all, and loses nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.records import folder as folder_module
from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.events.payloads import Noted
from pilotage.provenance.assembly import dump_of
from pilotage.provenance.recorder import Recorder
from tests.kit.events import START, Stream, a_short_job
from tests.kit.sqlite_books import keep, opened

KILLS = 60
KILLED = 9
_CODE = str(Path(folder_module.__file__).parent)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[SqliteJournal]:
    with opened(tmp_path / "book") as made:
        keep(made, a_short_job(stream=Stream("service", "core")), at=START)
        yield made


def in_a_child(do: Callable[[], int]) -> int:
    """Run a function in a process of its own; its exit status."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            status = min(do(), 1)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def step_counter(stop_at: int) -> tuple[Callable[..., Any], list[int]]:
    """A trace that counts the lines that the storage runs, and ends the process at one of them."""
    count = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(_CODE):
            return None
        if event == "line":
            count[0] += 1
            if count[0] == stop_at:
                os._exit(KILLED)
        return trace

    return trace, count


def recorded(book: SqliteJournal, folder: Path, *, stop_at: int) -> int:
    trace, count = step_counter(stop_at)
    sys.settrace(trace)
    store = FolderRecords(folder)
    Recorder(book, store, now=lambda: START + 100.0).record("j1")
    store.close()
    sys.settrace(None)
    return count[0]


def test_killed_at_any_step_a_record_is_whole_or_not_there(book: SqliteJournal, tmp_path: Path) -> None:
    steps = recorded(book, tmp_path / "whole", stop_at=0)
    assert steps > KILLS
    dump = list(book.dump("j1"))
    found = {"whole": 0, "none": 0}
    for number, step in enumerate(range(1, steps, steps // KILLS)):
        folder = tmp_path / f"records-{number}"
        assert in_a_child(partial(recorded, book, folder, stop_at=step)) == KILLED
        store = FolderRecords(folder)
        record = store.record("j1")
        found["none" if record is None else "whole"] += 1
        assert list(store.check()) == []
        again = Recorder(book, store, now=lambda: START + 100.0).record("j1")
        assert again is not None
        assert again.revision == 1
        assert list(dump_of(again, store.content)) == dump
        assert list(store.check()) == []
        store.close()
    assert found["none"] > found["whole"] > 0


def test_killed_while_a_second_revision_is_made_the_first_stays(book: SqliteJournal, tmp_path: Path) -> None:
    first = Recorder(book, store := FolderRecords(tmp_path / "kept"), now=lambda: START + 100.0).record("j1")
    store.close()
    keep(book, [Stream("service", "later").event(Noted(text="late"), job="j1")], at=START + 50)
    steps = 400
    for step in range(20, steps, 40):
        in_a_child(partial(recorded, book, tmp_path / "kept", stop_at=step))
        store = FolderRecords(tmp_path / "kept")
        assert store.record("j1", 1) == first
        assert list(store.check()) == []
        store.close()
    store = FolderRecords(tmp_path / "kept")
    last = Recorder(book, store, now=lambda: START + 100.0).record("j1")
    assert last is not None
    assert last.revision == 2
    assert list(dump_of(last, store.content)) == list(book.dump("j1"))
    store.close()
