from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.language import DiskFolder, MemoryFolder
from pilotage.language.expansion.edge_files import EdgeFiles
from pilotage.model.jobs.graph import EdgeKind
from tests.kit.jobs import Untouchable, again, commands, edges, expanded, loaded, only_fault, picture, refused, warnings


def hyphens(text: str) -> str:
    """The text with every dash as a plain one: which is drawn is a matter of taste."""
    return text.replace("\u2500", "-")


SWEEP = """\
stages:
  - each: {seed: 1..1000}
    run: ./simulate --seed {seed} --out sim-{seed}.dat
    outputs: [sim-{seed}.dat]
  - run: ./merge {inputs} --out result.dat
    inputs: [sim-*.dat]
    outputs: [result.dat]
"""


def test_the_first_example_works_as_it_stands() -> None:
    expansion = expanded(SWEEP, folder=Untouchable())
    assert (expansion.count, expansion.lines, expansion.binaries, expansion.graph.edge_count) == (
        1001,
        1001,
        1001,
        1000,
    )
    assert expansion.package(0).binaries[0].argv == ("./simulate", "--seed", "1", "--out", "sim-1.dat")
    merge = expansion.package(1000).binaries[0]
    assert merge.argv == ("./merge", *(f"sim-{i}.dat" for i in range(1, 1001)), "--out", "result.dat")
    assert expansion.graph.predecessors(1000).tolist() == list(range(1000))
    assert expansion.path(1000) == "j/002/001/001"


def test_a_merge_waits_for_every_one_of_its_group_and_for_no_other() -> None:
    text = (
        "stages:\n  - each: {i: 1..25}\n    run: m\n    outputs: ['o-{i}']\n"
        "  - each: {part: {files: 'o-*', group: 10}}\n    run: merge {part}\n    inputs: ['{part}']\n    outputs: ['m-{tag}']\n"
    )
    expansion = expanded(text)
    assert [expansion.graph.predecessors(p).tolist() for p in (25, 26, 27)] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 25)),
    ]


def test_a_merge_for_each_of_several_values_waits_for_every_one_of_its_group_and_for_no_other() -> None:
    text = (
        "stages:\n  - each: {i: 1..5}\n    run: m\n    outputs: ['o-{i}']\n"
        "  - each: {part: {files: 'o-*', group: 2}, level: 1..2}\n    run: merge {part} {level}\n    inputs: ['{part}']\n"
    )
    expansion = expanded(text)
    found = {
        tuple(expansion.package(p).binaries[0].argv[1:]): expansion.graph.predecessors(p).tolist()
        for p in range(5, expansion.count)
    }
    assert found == {
        (*(f"o-{i + 1}" for i in group), str(level)): group for group in ([0, 1], [2, 3], [4]) for level in (1, 2)
    }


def test_files_decide_the_order_wherever_the_stages_stand() -> None:
    text = "stages:\n  - name: last\n    run: b\n    inputs: [x]\n  - name: first\n    run: a\n    outputs: [x]\n"
    assert edges(expanded(text)) == {("first", "last")}


def test_two_spellings_of_a_name_are_one_file() -> None:
    text = "stages:\n  - run: a\n    outputs: [d//x]\n  - run: b\n    inputs: [./d/y/../x]\n"
    assert edges(expanded(text)) == {("a", "b")}


def test_packages_of_a_line_follow_each_other() -> None:
    text = "stages:\n  - each: {i: 1..2}\n    packages:\n      - run: a\n      - run: b\n      - run: c\n"
    expansion = expanded(text)
    kinds = {(s, t): kind for s, t, kind in expansion.graph.edges()}
    assert kinds == dict.fromkeys([(0, 1), (1, 2), (3, 4), (4, 5)], EdgeKind.SEQUENCE | EdgeKind.AWAITED)
    assert [expansion.path(p) for p in (2, 3)] == ["j/001/001/003", "j/001/002/001"]


def test_a_chained_binary_takes_what_the_one_before_it_made() -> None:
    text = "stages:\n  - binaries:\n      - {run: a, outputs: [t]}\n      - {run: 'b {inputs}', inputs: [t], outputs: [u]}\n"
    expansion = expanded(text)
    assert (expansion.count, expansion.graph.edge_count) == (1, 0)
    assert expansion.package(0).binaries[1].argv == ("b", "t")


@pytest.mark.parametrize("made, needed", [("t-*", "t-*"), ("t-*", "t-1"), ("t-1", "t-*")])
def test_a_chained_binary_may_take_patterns(made: str, needed: str) -> None:
    text = (
        f"stages:\n  - binaries:\n      - {{run: a, outputs: ['{made}']}}\n      - {{run: b, inputs: ['{needed}']}}\n"
    )
    assert expanded(text).graph.edge_count == 0


@pytest.mark.parametrize(
    "binaries",
    ["{run: a, inputs: [t], outputs: [t]}", "{run: a, inputs: [t]}, {run: b, outputs: [t]}"],
)
def test_a_package_that_needs_what_it_makes_later_waits_for_itself(binaries: str) -> None:
    text = f"stages:\n  - name: s\n    binaries: [{binaries}]\n"
    fault = only_fault(text)
    assert (fault.code, "s -[t]→ s" in hyphens(fault.message)) == ("cycle", True)
    assert expanded(text, folder=MemoryFolder(["t"])).count == 1


def test_a_pattern_of_an_earlier_package_of_the_line_is_waited_for() -> None:
    text = "stages:\n  - each: {i: 1..2}\n    packages:\n      - {run: a, outputs: ['p-{i}-*']}\n      - {run: b, inputs: ['p-{i}-*']}\n"
    expansion = expanded(text)
    assert {(s, t): kind for s, t, kind in expansion.graph.edges()} == {
        (0, 1): EdgeKind.PATTERN | EdgeKind.SEQUENCE | EdgeKind.AWAITED,
        (2, 3): EdgeKind.PATTERN | EdgeKind.SEQUENCE | EdgeKind.AWAITED,
    }
    assert expansion.package(1).binaries[0].inputs[0].awaited is True


def test_an_early_start_marks_the_edges_of_the_first_package_only() -> None:
    text = (
        "stages:\n  - run: a\n    outputs: [x]\n"
        "  - lines:\n      - early_start: true\n        packages:\n          - {run: b, inputs: [x]}\n          - {run: c, inputs: [x]}\n"
    )
    kinds = {(s, t): kind for s, t, kind in expanded(text).graph.edges()}
    awaited = EdgeKind.AWAITED
    assert kinds == {
        (0, 1): EdgeKind.FILE,
        (0, 2): EdgeKind.FILE | awaited,
        (1, 2): EdgeKind.SEQUENCE | awaited,
    }


def test_a_file_that_is_found_by_a_pattern_or_fetched_by_the_package_itself_is_waited_for() -> None:
    text = (
        "stages:\n  - each: {i: 1..2}\n    run: a\n    outputs: ['x-{i}', 'y-{i}-*']\n"
        "  - lines:\n      - early_start: true\n        packages:\n"
        "          - {run: b, inputs: ['x-*', y-1-7, {name: x-2, acquisition: self}]}\n"
    )
    expansion = expanded(text)
    assert all(EdgeKind.AWAITED in kind for _, _, kind in expansion.graph.edges())


def test_an_early_start_that_can_never_happen_is_a_warning() -> None:
    text = (
        "stages:\n  - run: a\n    outputs: ['x-*']\n"
        "  - lines:\n      - early_start: true\n        packages:\n          - {run: b, inputs: ['x-*']}\n"
    )
    [warning] = warnings(text)
    assert (warning.code, "no effect" in warning.message) == ("early-start-unused", True)


def test_after_joins_packages_and_stages_without_a_file() -> None:
    text = (
        "stages:\n  - name: a\n    each: {i: 1..2}\n    run: x {i}\n"
        "  - name: b\n    run: y\n    after: [a-1]\n  - name: c\n    run: z\n    after: [a]\n"
    )
    expansion = expanded(text)
    assert edges(expansion) == {("a-1", "b"), ("a-0", "c"), ("a-1", "c")}
    assert {kind for _, _, kind in expansion.graph.edges()} == {EdgeKind.AFTER | EdgeKind.AWAITED}


def test_an_unknown_package_in_after_has_a_near_name() -> None:
    fault = only_fault("stages:\n  - name: alpha\n    run: x\n  - run: y\n    after: [alhpa]\n")
    assert (fault.code, fault.hint) == ("unknown-package", "did you mean 'alpha'?")


def test_two_makers_are_refused_with_both_packages_and_places() -> None:
    text = "stages:\n  - name: one\n    run: a\n    outputs:\n      - x\n      - same\n  - name: two\n    run: b\n    outputs: [same]\n"
    fault = only_fault(text)
    assert fault.code == "two-makers"
    for part in ("'same'", "j/001/001/001 (one)", "line 8", "j/002/001/001 (two)"):
        assert part in fault.message
    assert (fault.line, fault.column) == (11, 15)


def test_items_that_make_the_same_name_are_told_how_to_differ() -> None:
    fault = only_fault("stages:\n  - each: {i: 1..3}\n    run: a {i}\n    outputs: [same]\n")
    assert fault.code == "two-makers"
    assert "and 1 more" in fault.message
    assert "{tag}" in fault.hint


def test_one_package_that_makes_a_name_twice_is_said_to() -> None:
    fault = only_fault("stages:\n  - binaries:\n      - {run: a, stdout: log}\n      - {run: b, stdout: log}\n")
    assert (fault.code, "makes 'log' twice" in fault.message) == ("two-makers", True)


def test_a_cycle_is_printed_as_a_loop_of_packages_and_files() -> None:
    text = (
        "stages:\n  - name: a\n    run: x\n    inputs: [z]\n    outputs: [x]\n"
        "  - name: b\n    run: x\n    inputs: [x]\n    outputs: [y]\n  - name: c\n    run: x\n    inputs: [y]\n    outputs: [z]\n"
    )
    fault = only_fault(text)
    assert fault.code == "cycle"
    assert "a -[x]→ b -[y]→ c -[z]→ a" in hyphens(fault.message)


def test_a_cycle_through_software_that_cannot_be_started_is_still_told() -> None:
    head = "pilotage: 1\njob: j\nsoftware: [{id: s, boutiques: d.json}]\n"
    descriptor = (
        '{"name": "t", "description": "d", "tool-version": "1", "schema-version": "0.5", "command-line": "t [A]",'
        ' "inputs": [{"id": "a", "name": "a", "type": "Number", "value-key": "[A]"}]}'
    )
    text = "stages:\n  - software: s\n    parameters: {a: no number}\n    inputs: [b]\n    outputs: [a]\n  - run: x\n    inputs: [a]\n    outputs: [b]\n"
    assert "cycle" in {fault.code for fault in refused(text, head=head, folder=MemoryFolder({"d.json": descriptor}))}


def test_a_long_cycle_is_cut_short() -> None:
    stages = "".join(
        f"  - name: s{i}\n    run: x\n    inputs: [f{i}]\n    outputs: [f{(i + 1) % 40}]\n" for i in range(40)
    )
    fault = only_fault("stages:\n" + stages)
    assert "(35 more)" in fault.message


def test_a_missing_input_is_refused_with_a_near_name() -> None:
    fault = only_fault("stages:\n  - run: a\n    outputs: [result.dat]\n  - run: b\n    inputs: [reslut.dat]\n")
    assert (fault.code, fault.hint) == ("missing-input", "did you mean 'result.dat'?")
    assert (fault.line, fault.column) == (7, 14)


def test_many_missing_inputs_are_counted_once() -> None:
    fault = only_fault("stages:\n  - each: {i: 1..50}\n    run: a\n    inputs: ['raw-{i}']\n")
    assert "'raw-1' (and 49 more)" in fault.message


@pytest.mark.parametrize("extra", ["locator: 'https://x.org/d', acquisition: self", "acquisition: self"])
def test_an_input_from_outside_needs_no_maker(extra: str) -> None:
    text = f"stages:\n  - run: a {{inputs}}\n    inputs: [{{name: far.dat, {extra}}}, {{name: 'many-*', {extra}}}]\n"
    assert commands(expanded(text)) == [("a", "far.dat")]


@pytest.mark.parametrize("acquisition", ["none", "prefetch"])
def test_other_acquisitions_need_a_file(acquisition: str) -> None:
    assert (
        only_fault(f"stages:\n  - run: a\n    inputs: [{{name: x, acquisition: {acquisition}}}]\n").code
        == "missing-input"
    )


def test_an_input_that_is_in_the_folder_is_fine() -> None:
    assert expanded("stages:\n  - run: a\n    inputs: [x, d/y]\n", folder=MemoryFolder(["x", "d/y"])).count == 1


@pytest.mark.parametrize("late", [False, True], ids=["known", "late"])
def test_an_input_that_is_a_folder_is_refused_with_how_to_name_its_files(*, late: bool) -> None:
    before = "  - {run: m, outputs: ['p-*']}\n" if late else ""
    each = "each: {p: 'p-*'}, " if late else ""
    text = f"stages:\n{before}  - {{{each}run: a, inputs: [x, d/]}}\n"
    fault = only_fault(text, folder=MemoryFolder(["x", "d/y"]))
    assert (fault.code, fault.message) == ("folder-as-input", "the input 'd' is a folder, but inputs are files")
    assert "d/*" in fault.hint


@pytest.mark.parametrize("late", [False, True], ids=["known", "late"])
@pytest.mark.parametrize("name", ["/somewhere/outside.txt", "../outside.txt", "a/../../outside.txt"])
def test_an_input_that_is_outside_of_the_folder_is_refused_with_what_to_do(name: str, *, late: bool) -> None:
    before = "  - {run: m, outputs: ['p-*']}\n" if late else ""
    each = "each: {p: 'p-*'}, " if late else ""
    fault = only_fault(f"stages:\n{before}  - {{{each}run: a, inputs: ['{name}']}}\n", folder=MemoryFolder([name]))
    assert fault.code == "outside-tree"
    assert "ln -s" in fault.hint


def test_files_outside_of_the_folder_that_are_iterated_over_cannot_be_inputs(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "1.raw").touch()
    here, files = DiskFolder(tmp_path / "job"), f"'{tmp_path}/*.raw'"
    for stage in (
        f"each: {{f: {files}}}, run: 'a {{f}}', inputs: ['{{f}}']",
        f"run: 'a {{inputs}}', inputs: [{files}]",
    ):
        assert only_fault(f"stages:\n  - {{{stage}}}\n", folder=here).code == "outside-tree"


def test_what_a_command_fetches_itself_may_be_anywhere() -> None:
    assert expanded("stages:\n  - {run: a, inputs: [{name: /data/x, acquisition: self}]}\n").count == 1


def test_a_container_image_that_is_a_file_and_not_there_is_told() -> None:
    text = "stages:\n  - {run: a, container: sim.sif, outputs: [o]}\n  - {run: a, container: there.sif, outputs: [p]}\n"
    found = loaded(text, folder=MemoryFolder(["there.sif"])).report
    assert [(warning.code, "'sim.sif'" in warning.message) for warning in found.warnings] == [("missing-image", True)]


def test_a_pattern_of_files_on_disk_becomes_their_names() -> None:
    expansion = expanded(
        "stages:\n  - run: a {inputs}\n    inputs: ['c*.cfg']\n", folder=MemoryFolder(["c2.cfg", "c1.cfg"])
    )
    assert commands(expansion) == [("a", "c1.cfg", "c2.cfg")]


def test_an_input_pattern_that_matches_nothing_is_refused() -> None:
    fault = only_fault("stages:\n  - run: a\n    inputs: ['*.cfg']\n")
    assert (fault.code, "'*.cfg'" in fault.message) == ("no-match", True)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/abs", "'.'", "..", "d/", "'.pilotage/x'", "'{v}/x'", "'{v}'"])
def test_an_output_outside_the_tree_is_refused(name: str) -> None:
    fault = only_fault(f"stages:\n  - each: {{v: ['..']}}\n    run: a {{v}}\n    outputs: [{name}]\n")
    assert fault.code == "outside-tree"


@pytest.mark.parametrize("field", ["stdout", "stderr"])
def test_a_stream_outside_the_tree_is_refused(field: str) -> None:
    assert only_fault(f"stages:\n  - run: a\n    {field}: ../x\n").code == "outside-tree"


def test_streams_are_files_like_others() -> None:
    text = "stages:\n  - run: a\n    stdout: out.txt\n  - run: b\n    stdin: out.txt\n    stderr: err.txt\n  - run: c\n    inputs: [err.txt]\n"
    assert edges(expanded(text)) == {("a", "b"), ("b", "c")}


@pytest.mark.parametrize(
    "line, code",
    [
        ("run: a {sede}", "unknown-placeholder"),
        ("outputs: ['{sede}']", "unknown-placeholder"),
        ("run: a {seed.stme}", "unknown-placeholder"),
        ("outputs: ['{inputs}']", "misplaced-placeholder"),
        ("arguments: ['{arguments}']", "misplaced-placeholder"),
        ("stdin: '{outputs}'", "misplaced-placeholder"),
        ("run: a --in={inputs}", "list-in-text"),
        ("run: a }", "bad-template"),
        ("outputs: ['a{b']", "bad-template"),
        ("container: 'img:{sede}'", "unknown-placeholder"),
        ("after: ['{sede}']", "unknown-placeholder"),
        ("startup_script: '{sede}.sh'", "unknown-placeholder"),
        ("scripts: {pre: 'x {inputs}'}", "misplaced-placeholder"),
    ],
)
def test_a_placeholder_that_means_nothing_is_refused(line: str, code: str) -> None:
    run = "" if line.startswith("run") else "    run: a {seed}\n"
    fault = only_fault(f"stages:\n  - each: {{seed: 1..2}}\n{run}    {line}\n")
    assert fault.code == code
    assert code != "unknown-placeholder" or "did you mean" in fault.hint


def test_names_may_hold_anything_a_file_system_takes() -> None:
    names = ["a b", "new\\nline", "q'uo\\\"te", "ünï", "x]y", "{{b}}", "-f", "~", "$(x)"]
    listed = ", ".join(f'"{name}"' for name in names)
    text = f"stages:\n  - run: a\n    outputs: [{listed}]\n  - run: b {{inputs}}\n    inputs: [{listed}]\n"
    expansion = expanded(text)
    assert commands(expansion)[1] == ("b", "a b", "new\nline", "q'uo\"te", "ünï", "x]y", "{b}", "-f", "~", "$(x)")
    assert edges(expansion) == {("a", "b")}


def test_values_with_braces_are_not_read_as_placeholders() -> None:
    text = "stages:\n  - each: {v: ['{v}', '{{', '%s']}\n    run: a {v}\n    outputs: ['o-{v}']\n"
    assert [p.made for p in expanded(text).packages()] == [["o-{v}"], ["o-{{"], ["o-%s"]]


def test_named_packages_must_differ() -> None:
    text = "stages:\n  - each: {i: 1..3}\n    lines: [{packages: [{name: same, run: 'a {i}'}]}]\n"
    fault = only_fault(text)
    assert (fault.code, "j/001/001/001 and j/001/002/001" in fault.message) == ("duplicate-name", True)


def test_packages_are_found_by_their_path() -> None:
    expansion = expanded("stages:\n  - each: {i: 1..12}\n    packages: [{run: a}, {run: b}]\n")
    for package in range(expansion.count):
        assert expansion.number(expansion.path(package)) == package
    for path in ("", "j", "j/001/001/003", "j/002/001/001", "other/001/001/001", "j/1/1/1", "j/001/013/001"):
        assert expansion.number(path) is None


def test_the_critical_path_follows_the_estimates() -> None:
    text = (
        "stages:\n  - each: {i: 1..2}\n    binaries: [{run: 'a {i}', run_time: 10s, outputs: ['o-{i}']}, {run: b, run_time: 1 min}]\n"
        "  - run: c\n    inputs: ['o-*']\n    run_time: 5\n  - run: d\n"
    )
    assert expanded(text).critical_path_seconds() == 75
    assert expanded("stages:\n  - run: a\n").critical_path_seconds() is None


def test_edges_know_their_files() -> None:
    text = "stages:\n  - run: a\n    outputs: [x, y, z, 'p-*']\n  - run: b\n    inputs: [x, 'p-*', '[yw]']\n"
    assert sorted(EdgeFiles(expanded(text)).between(0, 1)) == ["p-*", "x", "y"]


def test_all_to_all_beyond_the_limit_is_refused_before_it_is_made() -> None:
    text = (
        "stages:\n  - each: {i: 1..20000}\n    run: a\n    outputs: ['o-{i}']\n"
        "  - each: {i: 1..20000}\n    run: b {i}\n    inputs: ['o-*']\n"
    )
    fault = only_fault(text)
    assert (fault.code, "group" in fault.hint) == ("too-many-edges", True)


def test_five_thousand_stages_are_a_job() -> None:
    stages = "".join(f"  - run: s{i}\n    inputs: [f{i - 1}]\n    outputs: [f{i}]\n" for i in range(1, 5000))
    expansion = expanded("stages:\n  - run: s0\n    outputs: [f0]\n" + stages)
    assert (expansion.count, expansion.graph.edge_count) == (5000, 4999)
    order = expansion.graph.order()
    assert order is not None
    assert order.tolist() == list(range(5000))


def test_expanding_again_from_the_record_looks_at_nothing() -> None:
    folder = MemoryFolder({"t.csv": "e\n1\n2\n", "l.txt": "x\n", "r1.raw": "", "cfg": "", "c1.cfg": ""})
    text = (
        "stages:\n  - each: {f: '*.raw', e: {csv: t.csv, column: e}, l: {lines: l.txt}}\n    run: a {f} {e} {l}\n"
        "    inputs: [cfg, 'c*.cfg', '{f}']\n    outputs: ['o-{tag}']\n  - run: m {inputs}\n    inputs: ['o-*']\n"
    )
    expansion = expanded(text, folder=folder)
    assert picture(again(expansion)) == picture(expansion)


def test_a_file_from_the_folder_does_not_wait_for_peers_that_make_whatever_matches() -> None:
    text = "stages:\n  - each: {s: 1..3}\n    run: x {s}\n    inputs: [data.csv]\n    outputs: [{expression: '.*[.]out'}]\n"
    assert edges(expanded(text, folder=MemoryFolder(["data.csv"]))) == set()


def test_a_file_from_the_folder_does_not_wait_for_later_stages() -> None:
    text = "stages:\n  - {run: x, inputs: [data.csv]}\n  - {run: y, outputs: ['*.csv']}\n"
    assert edges(expanded(text, folder=MemoryFolder(["data.csv"]))) == set()


def test_every_text_of_a_package_is_filled_in() -> None:
    text = """\
stages:
  - each: {s: [1]}
    run: x {s}
    container: img-{s}.sif
    scripts: {pre: "./pre {s}", post: "./post {tag}"}
    progress: {files: ["log-{s}"], stalled_after: 60}
    failure_patterns: [{pattern: bad, file: "log-{s}"}]
    environment: {SEED: "{s}", PLAIN: "{{s}}"}
    outputs: ["o-{s}"]
"""
    package = expanded(text).package(0)
    assert package.container is not None
    assert package.container.image == "img-1.sif"
    assert package.scripts.pre is not None
    assert (package.scripts.pre.run, package.scripts.post and package.scripts.post.run) == (
        ("./pre", "1"),
        ("./post", "0"),
    )
    assert package.progress is not None
    assert (package.progress.files, package.failure_patterns[0].file) == (("log-1",), "log-1")
    assert package.binaries[0].environment.exported == {"SEED": "1", "PLAIN": "{s}"}


@pytest.mark.parametrize("folder", [".pilotage", ".pilotage-staged"])
@pytest.mark.parametrize(
    "stage",
    [
        "run: x\n    outputs: [F/x]",
        "each: {{i: [F, a]}}\n    run: x {{i}}\n    outputs: ['{{i}}/x']",
        "run: x\n    outputs: ['F/*']",
        "run: x\n    stdout: F/x",
        "run: x\n    inputs: [F/token]",
        "run: x\n    inputs: [./F/token]",
        "run: x\n    inputs: ['F/*']",
        "run: x\n    stdin: F/token",
        "each: {{i: [F, a]}}\n    run: x {{i}}\n    inputs: ['{{i}}/token']",
        "each: {{i: [F/x, a]}}\n    run: x {{i}}\n    inputs: ['{{i}}']",
    ],
)
def test_no_file_of_pilotage_itself_is_made_or_taken(stage: str, folder: str) -> None:
    text = f"stages:\n  - {stage.format().replace('F', folder)}\n"
    faults = [fault for fault in refused(text) if fault.code == "outside-tree"]
    assert len(faults) == 1
    assert f"{folder} is where pilotage keeps" in faults[0].message
