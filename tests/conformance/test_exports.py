"""What a real job exports is read by the public programs of each format, and a crate gives its record back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from pilotage.adapters.records.folder import FolderRecords
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.wfformat import read_wfformat
from tests.conformance.readers import Readers, running_readers
from tests.kit.real_records import survey_place
from tests.kit.real_runs import Place, place_in

Exported = tuple[Place, str, Path]
"""Where the job ran, its id, and its exports: crate, crate.zip, trace.json, prov.json and events.jsonl."""


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    with running_readers(tmp_path_factory.mktemp("readers")) as found:
        yield found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    folder = tmp_path_factory.mktemp("survey")
    with survey_place(folder) as (place, job):
        to = folder / "exports"
        to.mkdir()
        told = place.told("provenance", "export", job, "--to", str(to / "crate"), "--with-contents")
        assert (told["files"], told["missing"]) == (1, [])  # the record has the others
        place.run("provenance", "export", job, "--to", str(to / "crate.zip"))
        place.run("provenance", "export", job, "--format", "wfformat", "--to", str(to / "trace.json"))
        place.run("provenance", "export", job, "--format", "prov-json", "--to", str(to / "prov.json"))
        printed = place.run("provenance", "export", job, "--format", "openlineage").stdout
        (to / "events.jsonl").write_text(printed)
        yield place, job, to


@pytest.mark.parametrize("name", ["crate", "crate.zip"])
def test_the_public_validator_accepts_the_crate_offline(exported: Exported, readers: Readers, name: str) -> None:
    answer = readers.ask("crate", path=str(exported[2] / name))
    assert answer == {"conforms": True, "issues": []}


@pytest.mark.parametrize(
    "entity, term",  # one of each kind of entity: a validation takes two seconds
    [
        ("./", "conformsTo"),
        ("pilotage.json", "hasPart"),
        ("#step-1", "workExample"),
        ("#package-1.1.1", "object"),
        ("#engine-run", "result"),
        ("#attempt-1.1.1-1", "instrument"),
        ("#formal-limit", "additionalType"),
    ],
)
def test_a_crate_without_a_required_term_is_refused(
    exported: Exported, readers: Readers, entity: str, term: str
) -> None:
    answer = readers.ask("crate", path=str(exported[2] / "crate"), without=[entity, term])
    assert not answer["conforms"]


def test_the_library_of_crates_finds_every_run(exported: Exported, readers: Readers) -> None:
    found = readers.ask("entities", path=str(exported[2] / "crate"))
    # Two attempts at one package, three at the one that fails, one at each other; and the job itself.
    assert {kind: found[kind] for kind in ("ControlAction", "CreateAction", "HowToStep", "OrganizeAction")} == {
        "ControlAction": 5,
        "CreateAction": 9,
        "HowToStep": 4,
        "OrganizeAction": 1,
    }


def test_a_crate_has_the_files_of_the_job_where_they_are_asked_for(exported: Exported) -> None:
    _, _, to = exported
    assert (to / "crate" / "files" / "total.txt").read_text() == "2\n"
    graph = {each["@id"]: each for each in json.loads((to / "crate" / "ro-crate-metadata.json").read_bytes())["@graph"]}
    assert graph["#attempt-3.1.1-1"]["result"] == [{"@id": "files/all.txt"}, {"@id": "files/total.txt"}]
    assert graph["#attempt-2.2.1-1"]["actionStatus"].endswith("/FailedActionStatus")
    assert "exit status 3" in graph["#attempt-2.2.1-1"]["error"]
    assert graph["#attempt-2.2.1-2"]["object"][0] == {"@id": "files/part-2.txt"}
    assert graph["#parameter-limit"]["value"] == "2"
    assert [graph[f"#step-{number}"]["position"] for number in (1, 2, 3, 4)] == ["1", "2", "3", "4"]


def test_the_prov_library_reads_the_document(exported: Exported, readers: Readers) -> None:
    answer = readers.ask("prov", path=str(exported[2] / "prov.json"))
    assert answer["same"]
    counts = answer["counts"]
    assert (counts["Activity"], counts["Agent"], counts["Generation"]) == (9, 2, 6)
    # Three files of the first package, one for each attempt at the second stage, two of the third, one for each failure.
    assert counts["Usage"] == 3 + 3 + 2 + 3
    assert counts["Entity"] == 3 + 6 + 1


def test_the_client_of_openlineage_makes_the_same_events(exported: Exported, readers: Readers) -> None:
    ours = [json.loads(line) for line in (exported[2] / "events.jsonl").read_text().splitlines()]
    theirs = readers.ask("openlineage", path=str(exported[2] / "events.jsonl"))
    assert len(ours) == 2 * 9
    assert list(map(without_defaults, theirs)) == list(map(without_defaults, ours))
    runs: dict[str, list[str]] = {}
    for event in ours:
        runs.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert sorted(runs.values()) == sorted([["START", "COMPLETE"]] * 4 + [["START", "FAIL"]] * 5)


def without_defaults(value: Any) -> Any:
    """A value without empty members, and without our own facet, which the client does not know."""
    if isinstance(value, list):
        return [without_defaults(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: without_defaults(each) for name, each in value.items() if name not in ("pilotage_attempt", "_deleted")
    }
    return {name: each for name, each in kept.items() if each not in (None, {}, [])}


def test_the_published_schema_and_our_reader_accept_the_trace(exported: Exported, reference_data: Path) -> None:
    text = (exported[2] / "trace.json").read_bytes()
    schema = json.loads((reference_data / "wfinstances" / "wfcommons-schema.json").read_bytes())
    trace = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(trace)
    definition, report, _ = read_wfformat(text, file="trace.json", folder=MemoryFolder())
    assert definition is not None, report.errors
    tasks = {each["id"]: each for each in trace["workflow"]["execution"]["tasks"]}
    assert len(tasks) == 5
    assert all(each["runtimeInSeconds"] > 0 and each["executedAt"] for each in tasks.values())
    files = {each["id"]: each["sizeInBytes"] for each in trace["workflow"]["specification"]["files"]}
    assert (files["large.dat"], files["part-2.txt"]) == (300_000, 10)


def test_a_crate_gives_its_record_to_another_service(exported: Exported, tmp_path: Path) -> None:
    place, job, to = exported
    shutil.copy(to / "crate.zip", tmp_path)
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as other:
        told = other.told("provenance", "import", "crate.zip")  # in a folder where no service was
        assert (told["job"], told["new"]) == (job, True)
        assert not other.told("provenance", "import", "crate.zip")["new"]
        assert other.told("provenance", "fsck")["sound"]
        other.run("provenance", "export", job, "--to", "again.zip")
        assert (tmp_path / "again.zip").read_bytes() == (to / "crate.zip").read_bytes()
        with (
            closing(FolderRecords(other.state / "records", writes=False)) as there,
            closing(FolderRecords(place.state / "records", writes=False)) as here,
        ):
            record, made = there.record(job), here.record(job)
            assert record is not None
            assert made is not None
            assert made.book_position > 0
            assert record == msgspec.structs.replace(made, book_position=0)
            assert all(there.content(part.sha256) == here.content(part.sha256) for part in record.parts)
        again = other.told("provenance", "rerun", job, "--package", "3.1.1")
        assert {each["name"]: each["verdict"] for each in again["outputs"]} == {
            "all.txt": "identical",
            "total.txt": "identical",
        }


def test_faults_say_what_to_do(exported: Exported, tmp_path: Path) -> None:
    place, job, to = exported
    assert "there is no such job" in place.run("provenance", "export", "nobody", code=2).stderr
    assert "already" in place.run("provenance", "export", job, "--to", str(to / "crate"), code=2).stderr
    assert not list(to.glob(".*"))
    (tmp_path / "nothing").mkdir()
    assert "cannot be read" in place.run("provenance", "import", str(tmp_path / "nothing"), code=2).stderr
    wrong = place.run("provenance", "export", job, "--format", "wfformat", "--with-contents", code=2).stderr
    assert "--with-contents is for --format ro-crate" in wrong
