"""Records are made of jobs that are over, and made again when more was heard of them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.logs import SqliteLogs
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.model.events.payloads import Noted
from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.provenance import recorder as recorder_module
from pilotage.provenance.recorder import Recorder, is_current
from tests.kit.events import START, Stream, a_short_job
from tests.kit.made_work import log
from tests.kit.sqlite_books import keep, opened

CORED = AttemptRef("j1", "1.1.1", 1)


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
    assert is_current(row, store, book)
    for each in (recorder, recorder_of(book, store)):
        assert each.record("j1") == first
    keep(book, [by.event(Noted(text="late"), job="j1")], at=START + 10)
    later = book.job("j1")
    assert later is not None
    assert not is_current(later, store, book)
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


def test_an_event_that_came_after_the_clock_was_set_back_makes_another_revision(
    book: SqliteJournal, store: FolderRecords
) -> None:
    by = Stream("service", "core")
    keep(book, a_short_job(stream=by), at=START)
    recorder = recorder_of(book, store)
    assert recorder.record("j1") is not None
    keep(book, [by.event(Noted(text="late"), job="j1")], at=START - 3600)
    row = book.job("j1")
    assert row is not None
    assert not is_current(row, store, book)
    second = recorder.record("j1")
    assert second is not None
    assert second.revision == 2
    assert is_current(row, store, book)


@pytest.mark.parametrize(
    "head",
    ["%%% not base64", base64.b64encode(b"abc").decode(), base64.b64encode(zlib.compress(b"x" * 100)[:-6]).decode()],
    ids=("no base64", "not compressed", "torn"),
)
def test_a_core_file_that_cannot_be_read_stays_among_the_logs(head: str) -> None:
    [part] = recorder_module.log_parts([LogText(ref=CORED, stream="core:x", head=head)])
    assert (part.kind, part.name) == ("log", "logs-1.jsonl")
    kept = msgspec.json.decode(part.content)
    assert (kept["head"], kept["stream"].startswith("core:x (no core file: ")) == (head, True)


def test_a_core_file_that_expands_without_end_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "CORE_BYTES_MAX", 1000)
    heads = [base64.b64encode(zlib.compress(bytes(size))).decode() for size in (1000, 1001)]
    parts = list(recorder_module.log_parts([LogText(ref=CORED, stream="core:x", head=head) for head in heads]))
    assert [(part.kind, len(part.content) == 1000) for part in parts] == [("core", True), ("log", False)]


@pytest.mark.parametrize(
    "name, kept", [("../../etc/x", "x"), ("a\n\0b", "a__b"), ("..", "core"), ("core.12", "core.12")]
)
def test_the_name_of_a_core_file_is_a_plain_one(name: str, kept: str) -> None:
    head = base64.b64encode(zlib.compress(b"core")).decode()
    [part] = recorder_module.log_parts([LogText(ref=CORED, stream=f"core:{name}", head=head)])
    assert (part.kind, part.name) == ("core", f"1.1.1/1/{kept}")
