"""Exports of jobs that are not like others: run by another scheduler, of which nothing ran, or with a wild history."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.model.events.payloads import CancelAccepted
from pilotage.provenance.assembly import assemble
from pilotage.provenance.exports.crate import write_crate
from pilotage.provenance.exports.openlineage import openlineage_events
from pilotage.provenance.exports.prov_json import prov_json
from pilotage.provenance.exports.shared import NotExportable, iso_time
from pilotage.provenance.exports.wfformat import wfformat_trace
from pilotage.provenance.history import History, history_of
from tests.kit.events import START, Stream, a_short_job, cut, delivered, random_history
from tests.kit.small_records import DOCUMENT, MemoryCrate, sha256, small_record
from tests.kit.sqlite_books import keep, opened


@pytest.fixture
def book(tmp_path: Path) -> Iterator[SqliteJournal]:
    with opened(tmp_path / "book") as found:
        yield found


def history_in(book: SqliteJournal, job: str) -> History:
    contents: dict[str, bytes] = {}

    def add(kind: str, content: bytes) -> str:
        contents[sha256(content)] = content
        return sha256(content)

    row = book.job(job)
    assert row is not None
    record = assemble(row, book.dump(job), add_part=add, nodes=lambda _: [], made_at=5.0, revision=1)
    return history_of(record, contents.__getitem__)


def test_a_job_of_another_scheduler_has_no_crate_but_every_other_export(book: SqliteJournal) -> None:
    keep(book, a_short_job(stream=Stream("service", "core")))
    history = history_in(book, "j1")
    with pytest.raises(NotExportable, match="no definition"):
        write_crate(history, MemoryCrate(), read_part=lambda _: b"")
    trace = json.loads(b"".join(wfformat_trace(history)))
    tasks = trace["workflow"]["execution"]["tasks"]
    assert [(each["id"], each["runtimeInSeconds"], each["executedAt"]) for each in tasks] == [
        ("1.1.1", 4.5, iso_time(START + 1)),
        ("1.2.1", 4.5, iso_time(START + 2)),
    ]
    document = json.loads(b"".join(prov_json(history)))
    assert set(document["activity"]) == {"run:job", "run:attempt-1.1.1-1", "run:attempt-1.2.1-1"}
    assert document["wasGeneratedBy"]["_:wasGeneratedBy1"]["prov:entity"] == "file:out-1.dat"
    events = [json.loads(line) for line in openlineage_events(history)]
    assert [each["eventType"] for each in events] == ["START", *["START", "COMPLETE"] * 2, "COMPLETE"]


def test_a_job_of_which_nothing_ran_has_no_trace(book: SqliteJournal) -> None:
    by = Stream("service", "core")
    keep(book, [*a_short_job(stream=by)[:2], by.event(CancelAccepted(), job="j1")])
    history = history_in(book, "j1")
    with pytest.raises(NotExportable, match="nothing of the job ran"):
        list(wfformat_trace(history))
    events = [json.loads(line) for line in openlineage_events(history)]
    assert [each["eventType"] for each in events] == ["START", "ABORT"]
    assert "used" in json.loads(b"".join(prov_json(history)))


@pytest.mark.parametrize("seed", range(8))
def test_any_history_gives_whole_documents(book: SqliteJournal, seed: int) -> None:
    chance = random.Random(seed)
    for batch in cut(delivered(random_history(chance), chance), chance):
        keep(book, batch)
    for job in ("job-1", "job-2"):
        history = history_in(book, job)
        document = json.loads(b"".join(prov_json(history)))
        known = {*document["activity"], *document["entity"], *document["agent"]}
        related = [each for name, section in document.items() if name.startswith("w") for each in section.values()]
        assert {value for each in related for key, value in each.items() if key != "prov:time"} <= known
        runs: dict[str, list[str]] = {}
        for line in openlineage_events(history):
            event = json.loads(line)
            runs.setdefault(event["run"]["runId"], []).append(event["eventType"])
        assert {(len(kinds), kinds[0]) for kinds in runs.values()} == {(2, "START")}


def test_the_times_of_steps_follow_their_files(tmp_path: Path) -> None:
    record, contents = small_record(tmp_path, DOCUMENT)
    crate = MemoryCrate()
    write_crate(history_of(record, contents.__getitem__), crate, read_part=contents.__getitem__)
    graph = {each["@id"]: each for each in json.loads(crate.files["ro-crate-metadata.json"])["@graph"]}
    steps = [each for each in graph.values() if each["@type"] == "HowToStep"]
    assert [each["position"] for each in steps] == ["1", "2"]
    assert graph["#attempt-2.1.1-1"]["startTime"] == iso_time(START + 20)
    assert graph["#run"]["result"] == {"@id": "files/all.txt"}
