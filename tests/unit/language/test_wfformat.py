"""WfFormat 1.5: what each word becomes, what is refused and where, what is lost, and what an export says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.wfformat import read_wfformat, write_wfformat
from pilotage.language.formats.wfformat.schema import keywords
from pilotage.language.formats.wfformat.writer import EXPORT_KEYWORDS
from pilotage.language.losses import Losses
from pilotage.language.parsing.document import read_document
from pilotage.language.text.tree import Report
from pilotage.language.text.yaml import SIZE_BYTES_MAX
from pilotage.model.jobs.definition import Definition, Package

Json = dict[str, Any]


def task(id_: str, **more: Any) -> Json:
    return {"name": id_, "id": id_, "parents": [], "children": [], **more}


def executed(id_: str, **more: Any) -> Json:
    return {"id": id_, "runtimeInSeconds": 1.5, **more}


def instance(*tasks: Json, executions: list[Json] | None = None, files: list[Json] | None = None, **more: Any) -> Json:
    specification: Json = {"tasks": list(tasks) or [task("a")]}
    if files is not None:
        specification["files"] = files
    workflow: Json = {"specification": specification}
    if executions is not None:
        workflow["execution"] = {"makespanInSeconds": 1, "executedAt": "then", "tasks": executions}
    return {"name": "job", "schemaVersion": "1.5", "workflow": workflow, **more}


def read(value: Any, *present: str) -> tuple[Definition | None, Report, Losses]:
    data = value if isinstance(value, bytes) else json.dumps(value, indent=1).encode()
    return read_wfformat(data, file="x.json", folder=MemoryFolder(present))


def definition_of(value: Any, *present: str) -> Definition:
    definition, report, _ = read(value, *present)
    assert definition is not None, report.errors
    return definition


def packages_of(value: Any, *present: str) -> dict[str, Package]:
    stages = definition_of(value, *present).stages
    return {p.name: p for stage in stages for line in stage.lines for p in line.packages}


def refusals(value: Any) -> list[tuple[str, int]]:
    definition, report, losses = read(value)
    assert definition is None
    assert len(losses) == 0
    return [(problem.code, problem.line) for problem in report.errors]


def lost(value: Any) -> dict[str, str]:
    _, report, losses = read(value)
    assert not report.errors
    return {loss.keyword: loss.reason for loss in losses}


def warned(value: Any, *present: str) -> list[str]:
    return [f"{warning.code}: {warning.message}" for warning in read(value, *present)[1].warnings]


# --- import -----------------------------------------------------------------------------------------------------------


def test_stages_are_depths_and_keep_the_order_of_the_file() -> None:
    chain = instance(task("c", parents=["a"]), task("b"), task("a", children=["c"]))
    stages = definition_of(chain).stages
    assert [[line.packages[0].name for line in stage.lines] for stage in stages] == [["b", "a"], ["c"]]


def test_command_and_numbers_become_those_of_the_package() -> None:
    numbers = {"coreCount": 4, "avgCPU": 50.5, "memoryInBytes": 1023.5, "priority": 7}
    command = {"program": "bin/sim", "arguments": ["--seed", "1 2", "{x}"]}
    package = packages_of(instance(task("a"), executions=[executed("a", command=command, **numbers)]))["a"]
    binary = package.binaries[0]
    assert binary.run == ("bin/sim", "--seed", "1 2", "{{x}}")
    assert (binary.cpu_percent, binary.run_time_seconds) == (50.5, 1.5)
    assert (package.resources.cores, package.resources.memory_bytes, package.priority) == (4, 1024, 7)
    assert package.activity == "sim"


def test_a_program_of_several_words_is_a_script() -> None:
    command = {"program": "cat ${x} {y} |\n wc", "arguments": []}
    binary = packages_of(instance(task("a"), executions=[executed("a", command=command)]))["a"].binaries[0]
    assert (binary.run, binary.shell) == ((), "cat ${{x}} {{y}} |\n wc")


@pytest.mark.parametrize(
    "id_, name, activity",
    [
        ("merge_ID0000012", "merge_ID0000012", "merge"),
        ("merge_3", "merge_3", "merge"),
        ("t1", "NFCORE.MERGE", "NFCORE.MERGE"),
        ("_7", "_7", "_7"),
    ],
)
def test_the_activity_of_a_task_without_command_is_its_name_without_number(id_: str, name: str, activity: str) -> None:
    package = packages_of(instance(task(id_, name=name)))[id_]
    assert package.activity == activity
    assert package.binaries[0].run == (activity,)


def test_a_missing_program_is_a_loss() -> None:
    assert (
        "is used instead (2 times)" in lost(instance(task("a"), task("b")))["workflow.execution.tasks.command.program"]
    )


def test_files_have_their_sizes_and_imply_the_edge() -> None:
    files = [{"id": "x", "sizeInBytes": 10}, {"id": "y", "sizeInBytes": 0}]
    two = instance(
        task("a", outputFiles=["x"], children=["b"]),
        task("b", inputFiles=["x"], outputFiles=["y"], parents=["a"]),
        files=files,
    )
    packages = packages_of(two)
    assert packages["a"].binaries[0].outputs[0].size_bytes == 10
    assert packages["b"].binaries[0].inputs[0].size_bytes == 10
    assert packages["b"].binaries[0].outputs[0].size_bytes == 0
    assert packages["b"].after == ()


def test_a_parent_that_no_file_implies_becomes_after() -> None:
    assert packages_of(instance(task("a", children=["b"]), task("b", parents=["a"])))["b"].after == ("a",)


def test_a_child_that_does_not_know_its_parent_still_follows_it() -> None:
    two = instance(task("a", children=["b"]), task("b"))
    assert packages_of(two)["b"].after == ("a",)
    assert [text for text in warned(two) if text.startswith("one-sided-edge") and "a → b" in text]


def test_an_edge_that_only_a_file_implies_is_kept_with_a_warning() -> None:
    two = instance(task("a", outputFiles=["x"]), task("b", inputFiles=["x"]))
    assert [len(stage.lines) for stage in definition_of(two).stages] == [1, 1]
    assert warned(two) == ["edge-not-declared: 1 edge is implied by files and not among 'parents': a → b"]


def test_inputs_from_outside_are_fetched_by_the_program_and_summed_up_in_one_warning() -> None:
    many = instance(*(task(f"t{n}", inputFiles=[f"in{n}"]) for n in range(9)))
    assert {p.binaries[0].inputs[0].acquisition for p in packages_of(many).values()} == {"self"}
    [warning] = warned(many)
    assert warning.startswith(
        "input-from-outside: 9 inputs are made by no other task and not in the folder: in0, in1, in2, …"
    )


def test_an_input_in_the_folder_is_simply_there() -> None:
    one = instance(task("a", inputFiles=["data/x"]))
    assert packages_of(one, "data/x")["a"].binaries[0].inputs[0].acquisition == ""
    assert warned(one, "data/x") == []


def test_a_file_that_a_task_changes_comes_from_outside() -> None:
    one = instance(task("a", inputFiles=["x"], outputFiles=["x"]))
    assert packages_of(one)["a"].binaries[0].inputs[0].acquisition == "self"
    assert expand(definition_of(one), RecordingLists(MemoryFolder(), None), Report("x.json")) is not None


@pytest.mark.parametrize(
    "id_, name, locator",
    [
        ("/data/x", "data/x", "/data/x"),
        ("../../x", "up/up/x", "../../x"),
        ("https://host/d/x", "host/d/x", "https://host/d/x"),
        (".pilotage/x", "pilotage/x", ".pilotage/x"),
        ("./d//x", "d/x", ""),
    ],
)
def test_a_file_outside_the_tree_gets_a_name_in_it(id_: str, name: str, locator: str) -> None:
    given = packages_of(instance(task("a", inputFiles=[id_])))["a"].binaries[0].inputs[0]
    assert (given.name, given.locator) == (name, locator)


def test_a_listed_file_outside_the_tree_is_named_and_counted_once() -> None:
    one = instance(task("a", inputFiles=["/data/x"]), files=[{"id": "/data/x", "sizeInBytes": 3}])
    assert packages_of(one)["a"].binaries[0].inputs[0].name == "data/x"
    assert "1 names that lead elsewhere" in lost(one)["workflow.specification.files.id"]


def test_two_files_never_become_one_by_being_brought_into_the_tree() -> None:
    one = instance(task("a", outputFiles=["x", "/x", "http://x", "./x"]))
    assert [output.name for output in packages_of(one)["a"].binaries[0].outputs] == ["x", "x-2", "x-3"]
    assert "2 names that lead elsewhere" in lost(one)["workflow.specification.files.id"]


@pytest.mark.parametrize("name, job", [("a b/c", "a-b-c"), ("-x", "x"), ("…", "workflow"), ("x" * 300, "x" * 200)])
def test_a_name_that_no_job_can_have_is_changed_and_listed(name: str, job: str) -> None:
    assert definition_of(instance(name=name)).job == job
    assert job in lost(instance(name=name))["name"]


def test_a_time_without_zone_is_lost_and_one_with_zone_is_kept() -> None:
    assert definition_of(instance(createdAt="2020-04-13T11:38:52Z")).created == "2020-04-13T11:38:52Z"
    assert definition_of(instance(createdAt="2020-04-13T11:38:52")).created == ""
    assert "zone" in lost(instance(createdAt="2020-04-13T11:38:52"))["createdAt"]
    assert "ISO 8601" in lost(instance(createdAt="yesterday"))["createdAt"]


@pytest.mark.parametrize(
    "word, value", [("avgCPU", 101), ("avgCPU", -1), ("memoryInBytes", -5), ("runtimeInSeconds", -1), ("priority", 1.5)]
)
def test_a_number_that_means_nothing_here_is_listed(word: str, value: float) -> None:
    one = instance(task("a"), executions=[executed("a", command={"program": "x"}, **{word: value})])
    assert f"workflow.execution.tasks.{word}" in lost(one)


def test_every_lost_word_is_listed_once_with_its_count() -> None:
    executions = [executed(id_, machines=["m"], readBytes=1, command={"program": "x"}) for id_ in "abc"]
    one = instance(task("a"), task("b"), task("c"), executions=executions, author={"name": "n", "email": "e"}, odd=1)
    found = lost(one)
    assert set(found) == {
        "author",
        "odd",
        "workflow.execution.makespanInSeconds",
        "workflow.execution.executedAt",
        "workflow.execution.tasks.machines",
        "workflow.execution.tasks.readBytes",
    }
    assert found["workflow.execution.tasks.machines"].endswith("(3 times)")


def test_a_file_that_nobody_uses_is_listed() -> None:
    assert "workflow.specification.files" in lost(instance(files=[{"id": "x", "sizeInBytes": 1}]))


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"[]", b'"x"', b"3", b"null", b"{} {}", b"{", b"", b"\xff"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    assert refusals(data)


def test_another_version_is_refused_before_anything_else() -> None:
    assert refusals({"name": 3, "schemaVersion": "1.4"}) == [("unknown-version", 3)]


@pytest.mark.parametrize(
    "value, code, line",
    [
        (instance(task("a"), task("a")), "duplicate-id", 15),
        (instance(task("a", parents=["b"])), "unknown-parent", 11),
        (instance(task("a", children=["b"])), "unknown-child", 12),
        (instance(task("a", inputFiles=["x"]), files=[]), "unknown-file", 13),
        (instance(task("a"), executions=[executed("b")]), "unknown-task", 20),
        (instance(task("a"), executions=[executed("a"), executed("a")]), "duplicate-id", 24),
        (instance(files=[{"id": "x", "sizeInBytes": 1}] * 2), "duplicate-id", 20),
        (instance(task("a", outputFiles=["x"]), task("b", outputFiles=["./x"])), "two-makers", 22),
        (instance(task("a", parents=["a"])), "cycle", 9),
        (instance(task("a", inputFiles=["/"])), "bad-file-name", 13),
        (instance(task("a", inputFiles=["a b"])), "bad-value", 13),
        (instance(task("a\0")), "nul-character", 8),
        (instance(task("a", parents="b")), "wrong-type", 10),
        (instance(task("")), "bad-value", 8),
        (instance(files=[{"id": "x", "sizeInBytes": -1}]), "bad-value", 17),
        (instance(files=[{"id": "x", "sizeInBytes": 1.5}]), "wrong-type", 17),
        (instance(files=[{"id": "x", "sizeInBytes": 10**4000}]), "bad-value", 17),
        (instance(files=[{"id": "x"}]), "missing-field", 15),
        ({"name": "x", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": []}}}, "too-few", 6),
    ],
)  # fmt: skip
def test_a_fault_is_refused_at_its_place(value: Json, code: str, line: int) -> None:
    assert (code, line) in refusals(value)


def test_all_faults_are_told_at_once_with_near_names() -> None:
    _, report, _ = read(instance(task("align"), task("b", parents=["algin"], children=["c"])))
    assert [(problem.code, problem.hint) for problem in report.errors] == [
        ("unknown-parent", "did you mean 'align'?"),
        ("unknown-child", "known here: align, b"),
    ]


def test_a_hundred_faults_are_enough() -> None:
    assert len(refusals(instance(*({"name": n} for n in range(500))))) == 100


def test_a_cycle_is_left_for_the_expansion_to_show() -> None:
    loop = instance(task("a", inputFiles=["y"], outputFiles=["x"]), task("b", inputFiles=["x"], outputFiles=["y"]))
    report = Report("x.json")
    assert expand(definition_of(loop), RecordingLists(MemoryFolder(), None), report) is None
    assert [problem.code for problem in report.errors] == ["cycle"]


# --- gzip -------------------------------------------------------------------------------------------------------------


def test_a_packed_instance_is_read_also_in_several_members() -> None:
    text = json.dumps(instance()).encode()
    assert definition_of(gzip.compress(text)) == definition_of(text)
    assert definition_of(gzip.compress(text[:9]) + gzip.compress(text[9:])) == definition_of(text)


def test_what_unpacks_to_too_much_is_refused() -> None:
    assert refusals(gzip.compress(bytes(SIZE_BYTES_MAX + 1))) == [("too-large", 0)]


@pytest.mark.parametrize("spoil", [lambda d: d[:-9], lambda d: d[:2], lambda d: d + b"x", lambda d: d[:12] + b"?" * 20])
def test_a_damaged_package_is_refused(spoil: Any) -> None:
    assert refusals(spoil(gzip.compress(json.dumps(instance()).encode()))) == [("bad-gzip", 0)]


# --- export -----------------------------------------------------------------------------------------------------------


def job(text: str, *present: str) -> Expansion:
    folder = MemoryFolder(present)
    document, report = read_document(text.encode(), file="pilotage.yaml", folder=folder)
    assert document is not None, report.errors
    expansion = expand(document.definition, RecordingLists(folder, None), report)
    assert expansion is not None, report.errors
    return expansion


SWEEP = """
pilotage: 1
job: sweep
description: three and a merge
stages:
  - each: {seed: 1..3}
    run: ./simulate --seed {seed} --out sim-{seed}.dat
    outputs: [sim-{seed}.dat]
  - run: ./merge {inputs} --out result.dat
    inputs: [sim-*.dat]
    outputs: [result.dat]
"""


def exported(text: str, *present: str) -> tuple[Json, dict[str, str]]:
    written, losses = write_wfformat(job(text, *present))
    return json.loads(written), {loss.keyword: loss.reason for loss in losses}


def test_an_export_says_every_package_with_its_files_and_command() -> None:
    found, losses = exported(SWEEP)
    assert (found["name"], found["description"], found["schemaVersion"]) == ("sweep", "three and a merge", "1.5")
    merge = found["workflow"]["specification"]["tasks"][-1]
    assert merge["inputFiles"] == ["sim-1.dat", "sim-2.dat", "sim-3.dat"]
    assert len(merge["parents"]) == 3
    assert found["workflow"]["execution"]["tasks"][-1]["command"] == {
        "program": "./merge",
        "arguments": ["sim-1.dat", "sim-2.dat", "sim-3.dat", "--out", "result.dat"],
    }
    assert losses.keys() == {"execution", "runtimeInSeconds", "sizeInBytes"}


def test_a_sweep_comes_back_with_the_same_names_edges_and_commands() -> None:
    text, _ = write_wfformat(job(SWEEP))
    again = expand(definition_of(text.encode()), RecordingLists(MemoryFolder(), None), Report("x"))
    assert again is not None
    before = job(SWEEP)
    assert [p.name for p in again.packages()] == [p.name for p in before.packages()]
    assert [p.binaries[0].argv for p in again.packages()] == [p.binaries[0].argv for p in before.packages()]
    assert list(again.graph.edges()) == list(before.graph.edges())


@pytest.mark.parametrize(
    "package, command",
    [
        ("run: [echo, 'a b', '']", ["/bin/sh", "-c", "echo 'a b' ''"]),
        ("shell: 'a | b'", ["/bin/sh", "-c", "a | b"]),
        ("{run: a b, stdin: i, stdout: o, stderr: e}", ["/bin/sh", "-c", "a b < i > o 2> e"]),
        ("{run: a, stdout: o, stderr: o}", ["/bin/sh", "-c", "a > o 2>&1"]),
        ("{binaries: [{run: a}, {run: b c}]}", ["/bin/sh", "-c", "a && b c"]),
        ("{startup_script: s.sh, startup_parameters: [x], binaries: [{run: a}]}", ["s.sh", "x"]),
    ],
)
def test_what_one_command_cannot_say_becomes_a_line_for_the_shell(package: str, command: list[str]) -> None:
    stage = package if package.startswith("{") else f"{{{package}}}"
    found, losses = exported(f"pilotage: 1\njob: x\nstages:\n  - {stage}\n", "i", "s.sh")
    written = found["workflow"]["execution"]["tasks"][0]["command"]
    assert [written["program"], *written["arguments"]] == command
    assert losses.keys() <= EXPORT_KEYWORDS


def test_a_file_between_two_binaries_of_a_package_is_made_and_not_taken() -> None:
    found, _ = exported("pilotage: 1\njob: x\nstages:\n  - binaries: [{run: a, outputs: [m]}, {run: b, inputs: [m]}]\n")
    [only] = found["workflow"]["specification"]["tasks"]
    assert (only["inputFiles"], only["outputFiles"]) == ([], ["m"])


def test_what_the_format_has_no_word_for_is_listed() -> None:
    _, losses = exported(
        """
pilotage: 1
job: x
owner: me
limits: {net: 2}
environment: {exported: {A: b}}
stages:
  - name: one
    run: a
    outputs: [{name: "out-*", replicas: 2}]
    category: net
    retry: {attempts_max: 3}
    container: {image: img}
    resources: {gpus: 1, cores: 0.5, wall_time: 2h}
"""
    )
    assert losses.keys() == {
        "job.owner", "job.limits", "environment", "stage.name", "package.category", "package.retry",
        "package.container", "resources.gpus", "resources.cores", "resources.wall_time_seconds", "output.replicas",
        "output.name", "execution", "runtimeInSeconds",
    }  # fmt: skip


def test_what_waits_for_a_late_stage_follows_those_before_it() -> None:
    work = "{name: work, each: {p: 'p-*'}, run: w, inputs: ['{p}'], outputs: ['d-{p}']}"
    stages = f"[{{run: s, outputs: ['p-*']}}, {work}, {{run: m, inputs: ['d-*']}}]"
    found, losses = exported(f"pilotage: 1\njob: x\nstages: {stages}\n")
    tasks = found["workflow"]["specification"]["tasks"]
    assert [(task["id"], task["parents"], task["children"]) for task in tasks] == [("s", [], ["m"]), ("m", ["s"], [])]
    assert "the exact order after it is lost" in losses["stage.each"]


# --- the reference page -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", sorted({*keywords(), *EXPORT_KEYWORDS}))
def test_the_reference_page_lists_every_word(word: str, root: Path) -> None:
    assert f"`{word}`" in (root / "docs" / "reference" / "wfformat.md").read_text(encoding="utf-8")
