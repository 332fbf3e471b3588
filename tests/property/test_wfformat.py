"""WfFormat: no input raises, and jobs survive the way there and back."""

from __future__ import annotations

import gzip
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.wfformat import read_wfformat, write_wfformat
from pilotage.language.formats.wfformat.instance import decoded, file_id, name_in_tree, task_id
from pilotage.language.formats.wfformat.schema import INSTANCE, Kind, ListOf, Number, Object, Text
from pilotage.language.formats.wfformat.writer import EXPORT_KEYWORDS
from pilotage.language.parsing.rules import check_rules
from pilotage.language.text.names import JOB_NAME, FreeNames, job_name_like
from pilotage.language.text.templates import escape_braces
from pilotage.language.text.tree import NOWHERE, Report
from pilotage.model.jobs.definition import Binary, Definition, InputFile, Line, OutputFile, Package, Resources, Stage

NASTY = st.text(st.sampled_from("ab {}#é%/.:*?[$'\"\n-_0\\"), min_size=1, max_size=6)
WORDS = [
    "name",
    "id",
    "schemaVersion",
    "workflow",
    "specification",
    "tasks",
    "parents",
    "files",
    "execution",
    "command",
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NASTY | st.text(max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | NASTY, inner, max_size=5),
    max_leaves=20,
)


def of_kind(kind: Kind) -> st.SearchStrategy[Any]:
    """Values that are mostly of one kind of the vocabulary, with few different ids, so that some of them meet."""
    right: st.SearchStrategy[Any]
    if isinstance(kind, Object):
        required = {name: of_kind(field.kind) for name, field in kind.fields.items() if field.required}
        others = {name: of_kind(field.kind) for name, field in kind.fields.items() if not field.required}
        right = st.fixed_dictionaries(required, optional=others)
    elif isinstance(kind, ListOf):
        right = st.lists(of_kind(kind.of), min_size=kind.least, max_size=4)
    elif isinstance(kind, Number):
        right = st.sampled_from([0, 1, 2, 2.5, -1, 10**30, 1e300, 120])
    elif isinstance(kind, Text):
        right = st.sampled_from(
            kind.words or ("a", "b", "c", "/a", "./a", "../b", "a/", "http://a/b", "#20", ".pilotage/x")
        )
    else:
        right = JSON
    return st.integers(0, 60).flatmap(lambda number: JSON if not number else right)


def read(data: bytes) -> tuple[Definition | None, Report]:
    definition, report, _ = read_wfformat(data, file="x.json", folder=MemoryFolder())
    assert (definition is None) is bool(report.errors)
    return definition, report


def expanded(definition: Definition) -> tuple[Expansion | None, Report]:
    report = Report("x.json")
    return expand(definition, RecordingLists(MemoryFolder(), None), report), report


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_never_raise(data: bytes) -> None:
    assert read(data)[0] is None
    assert read(gzip.compress(data))[0] is None


@given(JSON)
def test_arbitrary_json_is_refused_and_never_raises(value: Any) -> None:
    assert read(json.dumps(value).encode())[0] is None


@given(of_kind(INSTANCE))
def test_what_looks_like_an_instance_is_read_or_refused(value: Any) -> None:
    read(json.dumps(value).encode())


@st.composite
def instances(draw: st.DrawFn) -> dict[str, Any]:
    """Instances of the right shape whose references lead somewhere: cycles, and edges that contradict files, included."""
    ids = [f"t{number}" for number in range(draw(st.integers(1, 6)))]
    some = st.lists(st.sampled_from(ids), max_size=2, unique=True)
    names = ["a", "./a", "/a", "../b", "s3://c/d", ".pilotage/x", "e#20f", "g"]
    makers = {name: draw(st.none() | st.sampled_from(ids)) for name in names if name != "./a"}
    listed = [
        {
            "name": draw(st.sampled_from([id_, "kind"])),
            "id": id_,
            "parents": [parent for parent in draw(some) if parent != id_],
            "children": [child for child in draw(some) if child != id_],
            "inputFiles": draw(st.lists(st.sampled_from(names), max_size=3)),
            "outputFiles": [name for name, maker in makers.items() if maker == id_],
        }
        for id_ in ids
    ]
    workflow: dict[str, Any] = {"specification": {"tasks": listed}}
    if draw(st.booleans()):
        workflow["specification"]["files"] = [{"id": name, "sizeInBytes": size} for size, name in enumerate(names)]
    if draw(st.booleans()):
        numbers = dict.fromkeys(["avgCPU", "memoryInBytes", "priority"], st.sampled_from([-1, 0, 0.5, 120]))
        command = st.fixed_dictionaries({}, optional={"program": NASTY, "arguments": st.lists(NASTY, max_size=2)})
        one = st.fixed_dictionaries(
            {"runtimeInSeconds": st.sampled_from([-1, 0, 2.5])}, optional={**numbers, "command": command}
        )
        executions = [{"id": id_, **draw(one)} for id_ in draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))]
        workflow["execution"] = {"makespanInSeconds": 1, "executedAt": "then", "tasks": executions}
    system = {"runtimeSystem": {"name": draw(st.sampled_from(["pilotage", "other"])), "version": "1"}}
    return {"name": draw(NASTY), "schemaVersion": "1.5", **system, "workflow": workflow}


@given(instances())
def test_an_instance_is_expanded_with_all_its_edges_unless_it_has_a_cycle(value: dict[str, Any]) -> None:
    definition, report = read(json.dumps(value).encode())
    assert definition is not None, report.errors
    check_rules(definition, report, lambda _: NOWHERE)
    assert report.errors == []
    expansion, report = expanded(definition)
    if expansion is None:
        assert {problem.code for problem in report.errors} == {"cycle"}
        return
    names = [package.name for package in expansion.packages()]
    edges = {(names[maker], names[consumer]) for maker, consumer, _ in expansion.graph.edges()}
    listed = value["workflow"]["specification"]["tasks"]
    makers = {file: one["id"] for one in listed for file in one["outputFiles"]}
    makers |= {"./a": makers["a"]} if "a" in makers else {}
    wanted = {(parent, one["id"]) for one in listed for parent in one["parents"]}
    wanted |= {(one["id"], child) for one in listed for child in one["children"]}
    wanted |= {(makers[file], one["id"]) for one in listed for file in one["inputFiles"] if file in makers}
    assert edges == {(maker, consumer) for maker, consumer in wanted if maker != consumer}


@given(NASTY)
def test_an_id_is_decoded_to_what_was_written(name: str) -> None:
    assert decoded(task_id(name)) == name
    assert decoded(file_id(name)) == name


@given(NASTY)
def test_a_name_in_the_tree_stays_the_same_when_it_is_brought_there_again(name: str) -> None:
    once = name_in_tree(name)
    assert once == name_in_tree(once)
    assert not once.startswith(("/", "../", ".pilotage"))


@given(st.text(max_size=300))
def test_a_job_name_is_always_allowed_and_stable(name: str) -> None:
    once = job_name_like(name, otherwise="job")
    assert JOB_NAME.fullmatch(once)
    assert job_name_like(once, otherwise="other") == once


@given(st.lists(st.sampled_from(["a", "a-2", "a-3", "b"]), max_size=12))
def test_free_names_are_all_different(names: list[str]) -> None:
    free = FreeNames()
    given_out = [free.take(name) for name in names]
    assert len(set(given_out)) == len(names)


FILE_NAMES = st.text(st.sampled_from("ab {}#é%:$'-_0"), min_size=1, max_size=4)


@st.composite
def jobs(draw: st.DrawFn) -> Definition:
    """Small jobs: packages with unique names, files of earlier ones, arguments of every sort, and control edges."""
    names = draw(st.lists(NASTY, min_size=1, max_size=6, unique=True))
    files = draw(st.lists(FILE_NAMES, min_size=len(names), max_size=len(names), unique=True))
    packages = []
    for number, name in enumerate(names):
        taken = draw(st.lists(st.sampled_from(files[:number]), unique=True)) if number else []
        after = draw(st.lists(st.sampled_from(names[:number]), unique=True, max_size=2)) if number else []
        outside = draw(st.lists(FILE_NAMES.map("from outside/{}".format), unique=True, max_size=2))
        size = draw(st.none() | st.integers(1, 10**12))
        binary = Binary(
            run=tuple(map(escape_braces, draw(st.lists(NASTY, min_size=1, max_size=4)))),
            inputs=tuple(InputFile(name=escape_braces(file), acquisition="self") for file in [*taken, *outside]),
            outputs=(OutputFile(name=escape_braces(files[number]), size_bytes=size),),
            run_time_seconds=draw(st.none() | st.floats(0.5, 1e6)),
        )
        resources = Resources(cores=draw(st.integers(1, 64)), memory_bytes=draw(st.none() | st.integers(0, 2**50)))
        packages.append(
            Package(
                name=escape_braces(name),
                priority=draw(st.none() | st.integers(-9, 9)),
                resources=resources,
                after=tuple(map(escape_braces, after)),
                binaries=(binary,),
            )
        )
    cut = draw(st.integers(0, len(packages)))
    parts = [part for part in (packages[:cut], packages[cut:]) if part]
    lines = draw(st.booleans())
    stages = [
        Stage(lines=tuple(Line(packages=(one,)) for one in part) if lines else (Line(packages=tuple(part)),))
        for part in parts
    ]
    return Definition(job="small", stages=tuple(stages))


def facts(expansion: Expansion) -> tuple[object, ...]:
    packages = list(expansion.packages())
    asked = {
        package.name: (
            [binary.argv for binary in package.binaries],
            set(package.needed),
            set(package.made),
            [output.declared.size_bytes for binary in package.binaries for output in binary.outputs],
            [binary.declared.run_time_seconds for binary in package.binaries],
            package.activity,
            package.declared.resources,
            package.declared.priority,
        )
        for package in packages
    }
    edges = {(packages[maker].name, packages[consumer].name) for maker, consumer, _ in expansion.graph.edges()}
    return asked, edges


@given(jobs())
def test_a_job_survives_export_and_import(definition: Definition) -> None:
    before, report = expanded(definition)
    assert before is not None, report.errors
    text, losses = write_wfformat(before)
    assert {loss.keyword for loss in losses} <= EXPORT_KEYWORDS
    again, report = read(text.encode())
    assert again is not None, report.errors
    after, report = expanded(again)
    assert after is not None, report.errors
    assert facts(after) == facts(before)


@given(jobs())
def test_an_export_of_an_import_is_the_same_text(definition: Definition) -> None:
    first, _ = expanded(definition)
    assert first is not None
    text, _ = write_wfformat(first)
    again, _ = read(text.encode())
    assert again is not None
    second, _ = expanded(again)
    assert second is not None

    def by_id(written: str) -> object:
        parts = json.loads(written)["workflow"]["specification"]
        listed = {
            one["id"]: {k: sorted(v) if isinstance(v, list) else v for k, v in one.items()} for one in parts["tasks"]
        }
        return listed, sorted(one["id"] for one in parts["files"])

    assert by_id(write_wfformat(second)[0]) == by_id(text)
