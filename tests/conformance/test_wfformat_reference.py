"""Every file of the WfFormat reference data, against the committed table, its own declared edges and the schema itself."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.wfformat import read_wfformat, write_wfformat
from pilotage.language.formats.wfformat.schema import keywords
from pilotage.language.losses import Losses
from pilotage.language.parsing.document import read_document, write_document
from pilotage.language.text.tree import Report
from pilotage.model.jobs.definition import Definition

TABLE = Path(__file__).with_name("wfformat_verdicts.csv")
SHAPE_CODES = {"wrong-type", "missing-field", "too-few", "bad-value", "unknown-version"}
STRANGE = [None, True, -1, 0, 1.5, 1e3, 2.0, "", "x", "a b", "é*", "..", "/etc/passwd", [], {}, [1], ["x"], {"id": "x"}]

Texts = Mapping[str, bytes]


@pytest.fixture(scope="session")
def files(reference_data: Path) -> Texts:
    """The bytes of every file, by its name."""
    return {path.name: path.read_bytes() for path in sorted((reference_data / "wfinstances").iterdir())}


@pytest.fixture(scope="session")
def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def accepted(files: Texts, rows: list[dict[str, str]]) -> dict[str, bytes]:
    """The plain JSON of every instance."""
    names = [row["path"] for row in rows if row["verdict"] == "accept"]
    return {name: gzip.decompress(files[name]) if name.endswith(".gz") else files[name] for name in names}


@pytest.fixture(scope="session")
def schema(files: Texts) -> jsonschema.protocols.Validator:
    return jsonschema.Draft202012Validator(json.loads(files["wfcommons-schema.json"]))


@pytest.fixture(scope="session")
def imported(files: Texts, accepted: Mapping[str, bytes]) -> dict[str, tuple[Definition, Losses, Report]]:
    found = {}
    for name in accepted:
        definition, report, losses = read_wfformat(files[name], file=name, folder=MemoryFolder())
        assert definition is not None, report.errors
        found[name] = (definition, losses, report)
    return found


@pytest.fixture(scope="session")
def expanded(imported: Mapping[str, tuple[Definition, Losses, Report]]) -> dict[str, Expansion]:
    return {name: expansion_of(definition) for name, (definition, _, _) in imported.items()}


def expansion_of(definition: Definition) -> Expansion:
    report = Report("instance.json")
    expansion = expand(definition, RecordingLists(MemoryFolder(), None), report)
    assert expansion is not None, report.errors
    return expansion


def edges_of(expansion: Expansion) -> set[tuple[str, str]]:
    names = [expansion.name(number) for number in range(expansion.count)]
    return {(names[maker], names[consumer]) for maker, consumer, _ in expansion.graph.edges()}


def declared_edges(data: bytes) -> set[tuple[str, str]]:
    listed = json.loads(data)["workflow"]["specification"]["tasks"]
    return {(parent, one["id"]) for one in listed for parent in one["parents"]}


def what_is_asked(expansion: Expansion) -> dict[str, tuple[object, ...]]:
    """What must survive an export: commands, files with their sizes, activity, resources and priority by name."""
    found: dict[str, tuple[object, ...]] = {}
    for package in expansion.packages():
        argv = [binary.argv for binary in package.binaries]
        inputs = {given.names: given.declared.size_bytes or 0 for b in package.binaries for given in b.inputs}
        outputs = {made.name: made.declared.size_bytes or 0 for b in package.binaries for made in b.outputs}
        seconds = [binary.declared.run_time_seconds or 0 for binary in package.binaries]
        declared = package.declared
        found[package.name] = (argv, inputs, outputs, seconds, package.activity, declared.resources, declared.priority)
    return found


def test_the_table_names_each_file_of_the_folder_once(files: Texts, rows: list[dict[str, str]]) -> None:
    assert sorted(row["path"] for row in rows) == sorted(files)


def test_each_file_is_accepted_or_refused_as_the_table_says(files: Texts, rows: list[dict[str, str]]) -> None:
    found = {}
    for name, data in files.items():
        definition, report, _ = read_wfformat(data, file=name, folder=MemoryFolder())
        verdict = "refuse" if definition is None else "accept"
        found[name] = (verdict, " ".join(sorted({problem.code for problem in report.errors})))
    assert found == {row["path"]: (row["verdict"], row["code"]) for row in rows}


def test_the_edges_that_files_imply_are_the_declared_parents(
    accepted: Mapping[str, bytes], expanded: Mapping[str, Expansion]
) -> None:
    assert {name: edges_of(expansion) for name, expansion in expanded.items()} == {
        name: declared_edges(data) for name, data in accepted.items()
    }


def test_no_control_edge_is_needed_anywhere(expanded: Mapping[str, Expansion]) -> None:
    packages = [block.package for expansion in expanded.values() for block in expansion.blocks]
    assert len(packages) > 1900
    assert not [package.name for package in packages if package.after]


def test_there_is_one_package_for_each_task_and_it_has_its_id(
    accepted: Mapping[str, bytes], expanded: Mapping[str, Expansion]
) -> None:
    for name, data in accepted.items():
        ids = sorted(one["id"] for one in json.loads(data)["workflow"]["specification"]["tasks"])
        assert sorted(map(expanded[name].name, range(expanded[name].count))) == ids


def test_the_critical_path_is_no_longer_than_all_run_times_together(
    accepted: Mapping[str, bytes], expanded: Mapping[str, Expansion]
) -> None:
    for name, data in accepted.items():
        seconds = [one["runtimeInSeconds"] for one in json.loads(data)["workflow"]["execution"]["tasks"]]
        critical = expanded[name].critical_path_seconds()
        assert critical is not None
        assert max(seconds) <= critical <= sum(seconds) + 1e-6


def test_the_only_warning_sums_up_inputs_from_outside(
    imported: Mapping[str, tuple[Definition, Losses, Report]],
) -> None:
    warned = {name: [warning.code for warning in report.warnings] for name, (_, _, report) in imported.items()}
    assert warned == {name: ["input-from-outside"] for name in imported}


def test_every_loss_is_a_documented_word_and_listed_once(
    imported: Mapping[str, tuple[Definition, Losses, Report]], root: Path
) -> None:
    page = (root / "docs" / "reference" / "wfformat.md").read_text(encoding="utf-8")
    for _, losses, _ in imported.values():
        listed = [loss.keyword for loss in losses]
        assert listed
        assert len(listed) == len(set(listed))
        assert [keyword for keyword in listed if f"`{keyword}`" not in page] == []


def test_every_word_of_the_schema_is_in_the_vocabulary(files: Texts) -> None:
    def words(node: Mapping[str, Any], path: str) -> set[str]:
        if "items" in node:
            return words(node["items"], path)
        found = set()
        for name, inner in node.get("properties", {}).items():
            at = f"{path}.{name}" if path else name
            found |= {at} | (set() if ours.get(at) is None or ours[at].lost else words(inner, at))
        return found

    ours = keywords()
    extra = {"workflow.repo", "workflow.runName"}
    assert words(json.loads(files["wfcommons-schema.json"]), "") == ours.keys() - extra


def test_an_import_is_a_valid_document_of_our_own(
    imported: Mapping[str, tuple[Definition, Losses, Report]],
) -> None:
    for name, (definition, _, _) in imported.items():
        document, report = read_document(write_document(definition).encode(), file=name, folder=MemoryFolder())
        assert report.errors == []
        assert document is not None
        assert document.definition == definition


def test_an_export_is_valid_and_gives_the_same_job_again(
    expanded: Mapping[str, Expansion], schema: jsonschema.protocols.Validator
) -> None:
    for name, expansion in expanded.items():
        text, _ = write_wfformat(expansion)
        schema.validate(json.loads(text))
        definition, report, _ = read_wfformat(text.encode(), file=name, folder=MemoryFolder())
        assert definition is not None, report.errors
        again = expansion_of(definition)
        assert edges_of(again) == edges_of(expansion)
        assert what_is_asked(again) == what_is_asked(expansion)


def places(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where every value of an instance stands."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def changed(node: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy with another value at one place; `...` takes what is there away."""
    if not path:
        return value
    head, *rest = path
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    if value is ... and not rest:
        del copy[head]
    else:
        copy[head] = changed(copy[head], tuple(rest), value)
    return copy


@given(data=st.data())
def test_a_spoilt_instance_is_refused_for_its_shape_exactly_where_the_schema_refuses_it(
    data: st.DataObject, accepted: Mapping[str, bytes], schema: jsonschema.protocols.Validator
) -> None:
    instance = json.loads(accepted["helloworld-chain-5-chameleon.json"])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([place for place in places(instance) if place] or [()]))
        instance = changed(instance, place, data.draw(st.sampled_from([..., *STRANGE] if place else STRANGE)))
    definition, report, _ = read_wfformat(json.dumps(instance).encode(), file="x.json", folder=MemoryFolder())
    refused = bool({problem.code for problem in report.errors} & SHAPE_CODES)
    assert refused is not schema.is_valid(instance)
    assert (definition is None) is bool(report.errors)


@given(data=st.data())
def test_bytes_of_an_instance_may_be_spoilt_anywhere_without_an_exception(data: st.DataObject, files: Texts) -> None:
    name = data.draw(st.sampled_from(["helloworld-chain-5-chameleon.json", "rnaseq-dirt02-001.json.gz"]))
    spoilt = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(spoilt)))
        end = min(len(spoilt), start + data.draw(st.integers(0, 40)))
        spoilt[start:end] = data.draw(st.binary(max_size=8))
    definition, report, _ = read_wfformat(bytes(spoilt), file=name, folder=MemoryFolder())
    assert (definition is None) is bool(report.errors)
