"""Records are made of jobs that are over, and made again when more was heard of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.logs import SqliteLogs
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.model.events.payloads import Noted
from pilotage.model.exchange.exchange import LogText
from pilotage.provenance import recorder as recorder_module
from pilotage.provenance.recorder import Recorder, is_current
from tests.kit.events import START, Stream, a_short_job
from tests.kit.made_work import log
from tests.kit.sqlite_books import keep, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderRecords]:
    made = FolderRecords(tmp_path / "records")
    yield made
    made.close()


@pytest.fixture
def book(tmp_path: Path) -> Iterator[SqliteJournal]:
    with opened(tmp_path / "book") as made:
        yield made


def recorder_of(book: SqliteJournal, store: FolderRecords) -> Recorder:
    return Recorder(book, store, now=lambda: START + 1000.0)


def test_a_job_that_is_over_has_one_record_until_more_is_heard_of_it(book: SqliteJournal, store: FolderRecords) -> None:
    by = Stream("service", "core")
    keep(book, a_short_job(stream=by), at=START)
    recorder = recorder_of(book, store)
    first = recorder.record("j1")
    assert first is not None
    assert (first.revision, first.state) == (1, "DONE")
    row = book.job("j1")
    assert row is not None
    assert is_current(row, store)
    for each in (recorder, recorder_of(book, store)):
        assert each.record("j1") == first
    keep(book, [by.event(Noted(text="late"), job="j1")], at=START + 10)
    later = book.job("j1")
    assert later is not None
    assert not is_current(later, store)
    book.seal("j1")
    second = recorder.record("j1")
    assert second is not None
    assert second.revision == 2
    assert store.record("j1", 1) == first


def test_a_job_that_runs_or_is_not_known_has_none(book: SqliteJournal, store: FolderRecords) -> None:
    keep(book, a_short_job(stream=Stream("service", "core"))[:3])
    assert recorder_of(book, store).record("j1") is None
    assert recorder_of(book, store).record("j2") is None
    assert store.changes(after=0, limit=10) == []


def test_logs_are_part_of_the_record_in_pieces(
    book: SqliteJournal, store: FolderRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "LOGS_BYTES", 1000)
    keep(book, a_short_job("j", stream=Stream("service", "core")))
    logs = SqliteLogs(WorkDatabase(tmp_path))
    texts = [log(1, "stdout", f"text {number}" * 10, package=f"1.{number}.1") for number in range(1, 20)]
    logs.put(texts)
    made = recorder_of(book, store).record("j", logs=logs)
    assert made is not None
    parts = [part for part in made.parts if part.kind == "log"]
    assert [part.name for part in parts] == [f"logs-{number}.jsonl" for number in range(1, len(parts) + 1)]
    assert len(parts) > 2
    lines = b"".join(store.content(part.sha256) for part in parts).splitlines()
    assert [msgspec.json.decode(line, type=LogText) for line in lines] == texts
    logs.close()
