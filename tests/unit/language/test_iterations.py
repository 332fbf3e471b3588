from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.language import DiskFolder, MemoryFolder
from pilotage.language.expansion.producers import MatchedNames, OutputNames
from tests.kit.jobs import OneJob, Untouchable, commands, expanded, loaded, only_fault, warnings


def stage(each: str, run: str = "x") -> str:
    return f"stages:\n  - each: {each}\n    run: {run}\n"


def tags_and_values(each: str, run: str, **given: object) -> dict[str, str]:
    expansion = expanded(stage(each, run), **given)  # type: ignore[arg-type] # a folder or jobs
    return {p.tag: "".join(p.binaries[0].argv[1:]) for p in expansion.packages()}


@pytest.mark.parametrize(
    "operator, found",
    [
        ("dot", {"0": "1x", "1": "2y"}),
        ("cross", {"0_0": "1x", "0_1": "1y", "1_0": "2x", "1_1": "2y"}),
        ("flat-cross", {"0": "1x", "1": "1y", "2": "2x", "3": "2y"}),
        ("match", {"0": "1x", "1": "2y"}),
    ],
)
def test_the_operators_do_what_the_reference_says(operator: str, found: dict[str, str]) -> None:
    assert tags_and_values(f"{{{operator}: {{a: [1, 2], b: [x, y]}}}}", "p {a} {b}") == found
    assert tags_and_values(f"{{{operator}: [{{a: [1, 2]}}, {{b: [x, y]}}]}}", "p {a} {b}") == found


def test_several_variables_in_one_mapping_are_crossed() -> None:
    assert tags_and_values("{a: [1, 2], b: [x]}", "p {a} {b}") == {"0_0": "1x", "1_0": "2x"}


def test_combinations_nest_freely() -> None:
    found = tags_and_values(
        "{dot: [{cross: {a: [1, 2], b: [x, y]}}, {flat-cross: {c: [p, q], d: [r, s]}}]}", "p {a} {b} {c} {d}"
    )
    assert found == {"0_0": "1xpr", "0_1": "1yps", "1_0": "2xqr", "1_1": "2yqs"}


def test_thirty_levels_of_combinations_are_read() -> None:
    each = "{v0: [a]}"
    for level in range(1, 28):
        each = f"{{dot: [{each}, {{v{level}: [a]}}]}}"
    assert expanded(stage(each, "p {v0} {v27}")).count == 1


def test_dot_of_unequal_lengths_is_refused_by_both_names() -> None:
    fault = only_fault(stage("{dot: {first: [1, 2, 3], second: 1..2}}", "p {first} {second}"))
    assert fault.code == "unequal-lengths"
    assert "'first' has 3" in fault.message
    assert "'second' has 2" in fault.message
    assert fault.line == 4


def test_dot_of_unequal_combinations_is_refused_by_what_they_combine() -> None:
    fault = only_fault(stage("{dot: [{cross: {a: [1, 2], b: [x, y]}}, {c: [p]}]}", "p {a} {b} {c}"))
    assert "cross of 'a', 'b'" in fault.message
    assert "'c'" in fault.message


@pytest.mark.parametrize(
    "each, code",
    [
        ("{i: 5..1}", "bad-iteration"),
        ("{i: 1..5..0}", "bad-iteration"),
        ("{i: 1..5..-1}", "bad-iteration"),
        ("{i: 1..100000000}", "bad-iteration"),
        ("{i: 1..999999999999999999}", "bad-iteration"),
        ("{i: 1..9999999999999999999}", "bad-iteration"),
        ("{i: '1..{n}'}", "bad-iteration"),
        ("{i: '1...5'}", "bad-iteration"),
        ("{i: []}", "empty-list"),
        ("{}", "empty-iteration"),
        ("{dot: {}}", "empty-iteration"),
        ("{dot: []}", "empty-iteration"),
        ("{dot: 3}", "wrong-type"),
        ("[1, 2]", "wrong-type"),
        ("3", "wrong-type"),
        ("{dot: {a: [1]}, b: [2]}", "mixed-iteration"),
        ("{inputs: [1]}", "bad-iteration"),
        ("{tag: [1]}", "bad-iteration"),
        ("{1st: [1]}", "bad-iteration"),
        ("{'a b': [1]}", "bad-iteration"),
        ("{a: {values: [1], range: 1..2}}", "bad-iteration"),
        ("{a: {group: 2}}", "bad-iteration"),
        ("{a: {values: [1], group: 0}}", "out-of-range"),
        ("{a: {value: [1]}}", "unknown-field"),
        ("{a: {values: [1], stage: s}}", "bad-iteration"),
        ("{a: {values: [1], column: s}}", "bad-iteration"),
        ("{a: {files: x, job: s, stage: t}}", "bad-iteration"),
        ("{a: {variable: b, values: [1]}}", "duplicate-key"),
        ("{cross: [{a: [1]}, {a: [2]}]}", "duplicate-variable"),
        ("{cross: {a: 1..100000, b: 1..100000}}", "too-many-items"),
        ("{a: [1, [2]]}", "wrong-type"),
        ("{a: [no]}", "ambiguous-scalar"),
        ("{a: [010]}", "ambiguous-scalar"),
        ("{a: }", "ambiguous-scalar"),
        ('{a: ["x\\0y"]}', "nul-character"),
        ("{csv: t.csv, seed: 1..3}", "unknown-field"),
        ("{seed: 1..3, csv: t.csv}", "unknown-field"),
    ],
)
def test_what_cannot_be_iterated_over_is_refused(each: str, code: str) -> None:
    assert only_fault(stage(each, "p")).code == code


def test_an_unknown_field_of_a_list_has_a_near_name() -> None:
    assert "'values'" in only_fault(stage("{a: {value: [1]}}", "p {a}")).hint


def test_values_stay_as_they_are_written() -> None:
    assert tags_and_values("{v: [1.10, 2, 'no', '010', 1e3, \"a b\"]}", "p {v}") == {
        "0": "1.10", "1": "2", "2": "no", "3": "010", "4": "1e3", "5": "a b"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["only", "1-10", "0.1..0.5", "1 .. 10", "range(10)", "'1:10'", "'1,2,3'", "data.txt"])
def test_a_single_value_is_taken_for_a_mistake(text: str) -> None:
    fault = only_fault(f"stages:\n  - each: {{v: {text}}}\n    run: p {{v}}\n")
    assert fault.code == "one-value"


def test_a_pattern_among_values_is_taken_as_it_stands_with_a_warning() -> None:
    result = loaded("stages:\n  - each: {v: ['a-*.dat']}\n    run: p {v}\n    outputs: [p.out]\n")
    assert [warning.code for warning in result.report.warnings] == ["pattern-in-list"]


def test_files_on_disk_come_sorted_and_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.raw", "a.raw", ".hidden.raw", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "d.raw").mkdir()
    found = tags_and_values("{f: '*.raw'}", "p {f}", folder=DiskFolder(tmp_path))
    assert found == {"0": "a.raw", "1": "b.raw"}


def test_stars_cross_folders_only_when_doubled() -> None:
    folder = MemoryFolder(["a.raw", "x/b.raw", "x/y/c.raw", ".h/d.raw"])
    assert list(tags_and_values("{f: '**/*.raw'}", "p {f}", folder=folder).values()) == [
        "a.raw",
        "x/b.raw",
        "x/y/c.raw",
    ]
    assert list(tags_and_values("{f: '*/*.raw'}", "p {f}", folder=folder).values()) == ["x/b.raw"]
    assert list(tags_and_values("{f: 'x/**'}", "p {f}", folder=folder).values()) == ["x/b.raw", "x/y/c.raw"]


def test_a_glob_that_matches_nothing_is_refused() -> None:
    fault = only_fault(stage("{f: 'raw/*.dat'}", "p {f}"), folder=MemoryFolder(["raw.dat"]))
    assert fault.code == "no-match"
    assert "raw/*.dat" in fault.message


def test_columns_of_a_table_are_variables() -> None:
    folder = MemoryFolder({"t.csv": '\ufeffrun,energy\r\n1,"5,5"\r\n2,"a ""b"""\r\n'})
    assert tags_and_values("{csv: t.csv}", "p {run} {energy}", folder=folder) == {"0": "15,5", "1": '2a "b"'}


def test_one_column_of_a_table_is_one_variable() -> None:
    folder = MemoryFolder({"t.csv": "run,energy\n1,5\n2,6\n"})
    assert tags_and_values("{e: {csv: t.csv, column: energy}}", "p {e}", folder=folder) == {"0": "5", "1": "6"}


def test_a_column_may_be_named_before_its_table() -> None:
    folder = MemoryFolder({"t.csv": "run,energy\n1,5\n"})
    assert tags_and_values("{e: {column: energy, csv: t.csv}}", "p {e}", folder=folder) == {"0": "5"}


@pytest.mark.parametrize(
    "content, code",
    [
        ("", "empty-table"),
        ("\n\n", "empty-table"),
        ("a,b\n", "empty-list"),
        ("a,b\n1,2,3\n", "bad-table"),
        ("a,b\n1\n", "bad-table"),
        ("a,a\n1,2\n", "bad-table"),
        ("a,\n1,2\n", "bad-table"),
        ('a,b\n1,"2\n', "bad-table"),
        ("a,tag\n1,2\n", "reserved-name"),
        ("a,b\n1,\0\n", "nul-character"),
        (b"a,b\n1,\xff\n", "not-utf8"),
    ],
)
def test_a_bad_table_is_refused(content: str | bytes, code: str) -> None:
    assert only_fault(stage("{csv: t.csv}", "p {a}"), folder=MemoryFolder({"t.csv": content})).code == code


def test_a_ragged_row_is_named_by_its_line() -> None:
    fault = only_fault(stage("{csv: t.csv}", "p {a}"), folder=MemoryFolder({"t.csv": 'a,b\n"1\n1",2\n3\n'}))
    assert "line 4 of 't.csv' has 1 fields, its header 2" in fault.message


def test_an_unknown_column_has_a_near_name() -> None:
    fault = only_fault(
        stage("{e: {csv: t.csv, column: enrgy}}", "p {e}"), folder=MemoryFolder({"t.csv": "run,energy\n1,5\n"})
    )
    assert fault.code == "unknown-column"
    assert "'energy'" in fault.hint


@pytest.mark.parametrize("each", ["{csv: none.csv}", "{l: {lines: none.txt}}"])
def test_a_missing_file_of_a_list_is_refused(each: str) -> None:
    assert only_fault(stage(each, "p")).code == "missing-file"


def test_lines_of_a_file_are_values_and_empty_lines_do_not_count() -> None:
    folder = MemoryFolder({"l.txt": "\ufeffone\r\n\n  \ntwo three\nlast"})
    assert tags_and_values("{l: {lines: l.txt}}", "p {l}", folder=folder) == {"0": "one", "1": "two three", "2": "last"}


@pytest.mark.parametrize(
    "content, code", [("", "empty-list"), ("\n \n", "empty-list"), ("a\0b\n", "nul-character"), (b"\xff", "not-utf8")]
)
def test_a_file_without_good_lines_is_refused(content: str | bytes, code: str) -> None:
    assert only_fault(stage("{l: {lines: l.txt}}", "p {l}"), folder=MemoryFolder({"l.txt": content})).code == code


PRODUCERS = (
    "stages:\n  - name: make\n    each: {i: 1..3}\n    run: m {i}\n    outputs: ['sim-{i}.dat', 'log-{i}.txt']\n"
)


def test_outputs_of_an_earlier_stage_are_iterated_over_without_looking_at_the_disk() -> None:
    expansion = expanded(
        PRODUCERS + "  - each: {f: 'sim-*.dat'}\n    run: use {f}\n    inputs: ['{f}']\n", folder=Untouchable()
    )
    assert commands(expansion)[3:] == [("use", "sim-1.dat"), ("use", "sim-2.dat"), ("use", "sim-3.dat")]


def test_outputs_keep_the_tags_of_their_makers() -> None:
    text = "stages:\n  - each: {a: [1, 2], b: [x, y]}\n    run: m\n    outputs: ['o-{a}{b}']\n  - each: {f: 'o-*'}\n    run: use {f}\n"
    assert [p.tag for p in expanded(text).packages()][4:] == ["0_0", "0_1", "1_0", "1_1"]


def test_match_joins_outputs_with_what_they_were_made_from() -> None:
    text = (
        "stages:\n  - each: {a: [1, 2], b: [x, y]}\n    run: m\n    outputs: ['o-{a}{b}']\n"
        "  - each: {match: [{c: [p, q]}, {f: 'o-*'}]}\n    run: use {c} {f}\n"
    )
    found = [argv[1:] for argv in commands(expanded(text))[4:]]
    assert found == [("p", "o-1x"), ("p", "o-1y"), ("q", "o-2x"), ("q", "o-2y")]


def test_one_stage_can_be_asked_for_its_outputs() -> None:
    text = PRODUCERS + (
        "  - name: other\n    run: o\n    outputs: [sim-9.dat, 'part-*']\n"
        "  - each: {f: {files: 'sim-*', stage: other}}\n    run: use {f}\n"
    )
    assert commands(expanded(text))[4:] == [("use", "sim-9.dat")]


def test_patterns_of_other_stages_do_not_make_a_stage_wait() -> None:
    text = (
        "stages:\n  - name: a\n    run: a\n    outputs: ['p-*']\n  - name: b\n    run: b\n    outputs: [p-1]\n"
        "  - each: {f: {files: 'p-*', stage: b}}\n    run: use {f}\n"
    )
    expansion = expanded(text)
    assert expansion.late == ()
    assert commands(expansion)[2:] == [("use", "p-1")]


def test_an_unknown_stage_has_a_near_name() -> None:
    fault = only_fault(PRODUCERS + "  - each: {f: {files: 'sim-*', stage: mak}}\n    run: use {f}\n")
    assert (fault.code, fault.hint) == ("unknown-stage", "did you mean 'make'?")


def test_outputs_that_a_stage_does_not_make_are_refused_without_looking_at_the_disk() -> None:
    text = PRODUCERS + "  - each: {f: {files: 'dat-*', stage: make}}\n    run: use {f}\n"
    assert only_fault(text, folder=Untouchable()).code == "no-match"


def test_outputs_of_an_earlier_job_come_through_the_port() -> None:
    jobs = OneJob("reco001", ["a.root", "b.root"])
    expansion = expanded(stage("{f: {files: '*.root', job: reco001}}", "p {f}"), jobs=jobs, folder=Untouchable())
    assert commands(expansion) == [("p", "a.root"), ("p", "b.root")]
    assert jobs.asked == [("reco001", "*.root")]
    assert expansion.resolved.lists["job:reco001"] == ("reco001-id",)


def test_an_unknown_earlier_job_is_refused() -> None:
    fault = only_fault(stage("{f: {files: '*.root', job: other}}", "p {f}"), jobs=OneJob("reco001", ["a"]))
    assert (fault.code, "other" in fault.message) == ("unknown-job", True)


def test_an_earlier_job_without_a_match_is_refused() -> None:
    assert only_fault(stage("{f: {files: '*', job: e}}", "p {f}"), jobs=OneJob("e", [])).code == "empty-list"


def test_a_group_is_a_list_of_so_many_values() -> None:
    text = (
        PRODUCERS
        + "  - each: {part: {files: 'sim-*.dat', group: 2}}\n    run: merge {part} -o m-{tag}\n    inputs: ['{part}']\n"
    )
    found = commands(expanded(text))[3:]
    assert found == [("merge", "sim-1.dat", "sim-2.dat", "-o", "m-0"), ("merge", "sim-3.dat", "-o", "m-1")]


def test_variables_are_filled_in_where_lists_are_read() -> None:
    head = "pilotage: 1\njob: j\nvariables: {year: '2026'}\n"
    text = stage("{f: 'raw-{year}/{job}-*'}", "p {f}")
    expansion = expanded(text, head=head, folder=MemoryFolder(["raw-2026/j-1", "raw-2025/j-2"]))
    assert commands(expansion) == [("p", "raw-2026/j-1")]


@pytest.mark.parametrize("files, code", [("'{yaer}-*'", "unknown-placeholder"), ("'a}*'", "bad-template")])
def test_a_bad_placeholder_where_lists_are_read_is_refused(files: str, code: str) -> None:
    head = "pilotage: 1\njob: j\nvariables: {year: '2026'}\n"
    fault = only_fault(stage(f"{{f: {files}}}", "p {f} {year}"), head=head)
    assert fault.code == code


def test_an_iterated_variable_goes_before_a_constant_in_every_text_alike() -> None:
    head = "pilotage: 1\njob: j\nvariables: {seed: '7'}\n"
    expansion = expanded("stages:\n  - each: {seed: 1..2}\n    run: p {seed}\n    outputs: ['o-{seed}']\n", head=head)
    assert [(p.binaries[0].argv[1], p.made) for p in expansion.packages()] == [("1", ["o-1"]), ("2", ["o-2"])]


def test_a_variable_of_the_line_goes_before_one_of_the_stage() -> None:
    text = "stages:\n  - each: {v: [1, 2]}\n    lines:\n      - each: {v: [x]}\n        run: p {v}\n        outputs: ['{v}-{tag}']\n"
    assert [p.made for p in expanded(text).packages()] == [["x-0_0"], ["x-1_0"]]


def test_lines_are_repeated_over_the_items_of_stage_and_line() -> None:
    text = "stages:\n  - each: {a: [1, 2]}\n    lines:\n      - each: {b: [x, y]}\n        run: p {a} {b}\n      - run: q {a}\n"
    expansion = expanded(text)
    assert [(p.path, p.tag, p.binaries[0].argv) for p in expansion.packages()] == [
        ("j/001/001/001", "0_0", ("p", "1", "x")),
        ("j/001/002/001", "0_1", ("p", "1", "y")),
        ("j/001/003/001", "0", ("q", "1")),
        ("j/001/004/001", "1_0", ("p", "2", "x")),
        ("j/001/005/001", "1_1", ("p", "2", "y")),
        ("j/001/006/001", "1", ("q", "2")),
    ]


def test_values_with_special_characters_are_literal_inside_patterns() -> None:
    text = (
        "stages:\n  - each: {v: ['*', '[ab]', 'plain']}\n    run: m\n    outputs: ['out-{tag}.x']\n"
        "  - each: {v: ['*', '0']}\n    run: use {inputs}\n    inputs: ['out-{v}*']\n"
    )
    fault = only_fault(text)
    assert fault.code == "no-match"
    assert "out-[*]*" in fault.message


def test_names_that_look_like_python_are_only_unknown() -> None:
    for name in ("{__class__}", "{v.__class__}", "{self}"):
        assert only_fault(stage("{v: [1]}", f"'p {name} {{v}}'")).code == "unknown-placeholder"


def test_a_variable_may_be_called_like_python() -> None:
    assert tags_and_values("{__class__: [1], def: [2]}", "p {__class__} {def}") == {"0_0": "12"}


def test_an_unused_variable_is_a_warning() -> None:
    (warning,) = warnings(stage("{seed: 1..2, used: [1]}", "p {used}"))
    assert (warning.code, "'seed'" in warning.message) == ("unused-variable", True)


def test_the_largest_range_is_not_written_out_to_be_refused() -> None:
    result = loaded(stage("{i: 1..100000001}", "p {i}"))
    assert "100,000,001 values" in result.report.errors[0].message


def test_a_package_may_make_more_outputs_than_a_short_number_counts() -> None:
    block = expanded("stages:\n  - run: m\n    outputs: [o]\n").blocks[0]
    chunk = OutputNames(block, ordinal=70_000, place=(), general="o", names=["o"], packages=[0])
    assert MatchedNames([(chunk, [0])]).ordinals.tolist() == [70_000]


def test_an_unknown_way_to_combine_lists_names_those_there_are() -> None:
    fault = only_fault("stages:\n  - each: {zip: {a: [1], b: [2]}}\n    run: x\n")
    assert (fault.code, "flat-cross" in fault.message) == ("unknown-operator", True)
