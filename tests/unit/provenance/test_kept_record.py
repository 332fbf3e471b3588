"""Records that earlier versions made stay readable for ever: one of each version is kept here, with what it says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.records import RECORD_VERSION, JobRecord
from pilotage.provenance.assembly import dump_of, verify
from pilotage.provenance.history import history_of
from tests.kit.sqlite_books import opened

KEPT = Path(__file__).with_name("kept_record")


@pytest.mark.parametrize("version", range(1, RECORD_VERSION + 1))
def test_a_record_of_an_earlier_version_says_what_it_said(version: int, tmp_path: Path) -> None:
    told = json.loads((KEPT / f"version-{version}.json").read_text())
    packs = tmp_path / "records" / "packs"
    packs.mkdir(parents=True)
    (packs / "000001.pack").write_bytes((KEPT / f"version-{version}.pack").read_bytes())
    store = FolderRecords(tmp_path / "records")
    record = store.record(told["record"]["job"])
    assert record == msgspec.convert(told["record"], JobRecord)
    assert list(store.check()) == []
    [note] = store.annotations(record.job)
    assert (note.name, note.text, note.author) == ("note", told["note"], "ada")
    verify(record, store.content)
    dump = list(dump_of(record, store.content))
    assert hashlib.sha256(b"".join(dump[:-1])).hexdigest() == json.loads(dump[-1])["sha256"]
    with opened(tmp_path / "book") as book:
        assert book.load(dump) == record.job
        assert (
            list(book.dump(record.job))[1:-1] == dump[1:-1]
        )  # without the version of the book, and what depends on it
    packages = list(history_of(record, store.content).packages())
    assert [(each.id, each.state) for each in packages] == [("1.1.1", "DONE"), ("1.2.1", "DONE"), ("2.1.1", "DONE")]
    assert [each.name for each in packages[2].consumed] == ["1.out", "2.out"]
    store.close()
