from __future__ import annotations

import pytest

from pilotage.language import Expansion, MemoryFolder, Report, grow
from pilotage.model.jobs.graph import EdgeKind
from tests.kit.jobs import Untouchable, again, commands, edges, expanded, grown, only_fault, picture

SPLIT = """\
stages:
  - name: split
    run: split
    outputs: ['part-*']
  - name: work
    each: {f: 'part-*'}
    run: work {f}
    inputs: ['{f}']
    outputs: ['done-{f.name}']
  - name: merge
    run: merge {inputs}
    inputs: ['done-*']
    outputs: [all]
  - name: after
    run: after
    inputs: [all]
"""


def named(expansion: Expansion, name: str) -> int:
    return next(p for p in range(expansion.count) if expansion.name(p) == name)


def test_a_list_not_known_yet_makes_its_stage_wait() -> None:
    expansion = expanded(SPLIT, folder=Untouchable())
    assert [expansion.name(p) for p in range(expansion.count)] == ["split", "merge", "after"]
    (late,) = expansion.late
    assert (late.stage, late.name, late.patterns, late.stages, late.packages) == (2, "work", ("part-*",), (), (0,))


def test_a_known_number_of_lines_exists_at_once_and_only_the_list_waits() -> None:
    expansion = expanded(SPLIT)
    merge = expansion.package(named(expansion, "merge"))
    assert merge.binaries[0].inputs[0].awaited is True
    after = expansion.package(named(expansion, "after"))
    assert after.binaries[0].inputs[0].awaited is False
    assert edges(expansion) == {("merge", "after")}


def test_only_the_input_that_waits_is_awaited() -> None:
    text = SPLIT.replace("inputs: ['done-*']", "inputs: ['done-*', 'c*.cfg']")
    expansion = expanded(text, folder=MemoryFolder(["c1.cfg"]))
    done, config = expansion.package(1).binaries[0].inputs
    assert done.awaited is True
    assert (config.awaited, config.names) == (False, ("c1.cfg",))


def test_patterns_of_outputs_are_waited_for_by_who_takes_them() -> None:
    expansion = expanded("stages:\n  - run: a\n    outputs: ['p-*']\n  - run: b {inputs}\n    inputs: ['p-*']\n")
    assert list(expansion.graph.edges()) == [(0, 1, EdgeKind.PATTERN | EdgeKind.AWAITED)]
    assert expansion.package(1).binaries[0].inputs[0].awaited is True
    assert expansion.package(1, {0: ("p-2", "p-1")}).binaries[0].argv == ("b", "p-1", "p-2")


def test_a_name_made_under_a_pattern_is_waited_for() -> None:
    expansion = expanded(
        "stages:\n  - run: a\n    outputs: ['p-*']\n  - run: b\n    inputs: [p-7]\n  - run: c\n    inputs: [q]\n",
        folder=MemoryFolder(["q"]),
    )
    assert edges(expansion) == {("a", "b")}


def test_regular_expressions_fill_a_folder_that_others_wait_for() -> None:
    text = "stages:\n  - run: a\n    outputs: [{expression: '.*[.]root', folder: out}]\n  - run: b\n    inputs: ['out/*.root']\n"
    assert edges(expanded(text)) == {("a", "b")}


def test_a_stage_grows_over_what_has_appeared() -> None:
    expansion = grown(expanded(SPLIT), 2, ["part-b", "part-a", "unrelated"])
    assert [expansion.name(p) for p in range(expansion.count)] == ["split", "merge", "after", "work-0", "work-1"]
    assert commands(expansion)[3:] == [("work", "part-a"), ("work", "part-b")]
    assert expansion.path(4) == "j/002/002/001"
    assert edges(expansion) == {
        ("merge", "after"), ("split", "work-0"), ("split", "work-1"), ("work-0", "merge"), ("work-1", "merge"),
    }  # fmt: skip
    assert expansion.late == ()
    assert commands(expansion)[1] == ("merge", "done-part-a", "done-part-b")
    assert expansion.package(1).binaries[0].inputs[0].awaited is False


def test_growing_does_not_change_the_expansion_before() -> None:
    before = expanded(SPLIT)
    seen = picture(before)
    grown(before, 2, ["part-1"])
    assert picture(before) == seen


def test_nothing_appeared_gives_no_lines_and_a_warning() -> None:
    report = Report("growth")
    expansion = grow(expanded(SPLIT), 2, {0: ["other"]}, report)
    assert expansion is not None
    assert [warning.code for warning in report.warnings] == ["empty-stage", "no-match"]
    assert report.errors == []
    assert (expansion.count, expansion.late) == (3, ())
    assert commands(expansion)[1] == ("merge",)


CHAIN = """\
stages:
  - {name: a, run: a, outputs: ['a-*']}
  - {name: b, each: {f: 'a-*'}, run: 'b {f}', inputs: ['{f}'], outputs: ['b-{f}-*']}
  - {name: c, each: {f: 'b-*'}, run: 'c {f}', inputs: ['{f}'], outputs: ['c-{f}']}
  - {name: d, each: {f: 'c-*'}, run: 'd {f}', inputs: ['{f}']}
  - {name: e, run: e}
"""


def test_late_stages_of_late_stages_grow_one_after_the_other() -> None:
    first = expanded(CHAIN)
    assert [(late.stage, late.stages, late.packages) for late in first.late] == [
        (2, (), (0,)),
        (3, (2,), ()),
        (4, (3,), ()),
    ]
    second = grown(first, 2, ["a-1", "a-2"])
    assert [(late.stage, late.packages) for late in second.late] == [(3, (2, 3)), (4, ())]
    third = grown(second, 3, ["b-a-1-x", "b-a-2-x", "b-a-2-y"])
    assert third.late == ()
    assert [third.name(p) for p in range(third.count)] == [
        "a",
        "e",
        "b-0",
        "b-1",
        "c-0_0",
        "c-1_0",
        "c-1_1",
        "d-0_0",
        "d-1_0",
        "d-1_1",
    ]
    assert ("c-1_1", "d-1_1") in edges(third)
    assert ("b-0", "c-0_0") in edges(third)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_expanding_again_after_growth_is_identical(steps: int) -> None:
    expansion = expanded(CHAIN)
    for stage, produced in [(2, ["a-1", "a-2"]), (3, ["b-a-1-x", "b-a-2-y"])][:steps]:
        expansion = grown(expansion, stage, produced)
    assert picture(again(expansion)) == picture(expansion)


TWO = """\
stages:
  - {name: a, run: a, outputs: ['a-*']}
  - {name: b, run: b, outputs: ['b-*']}
  - {name: over-a, each: {f: 'a-*'}, run: 'x {f}', inputs: ['{f}']}
  - {name: over-b, each: {f: 'b-*'}, run: 'y {f}', inputs: ['{f}'], outputs: ['y-{f}']}
  - {name: over-y, each: {f: 'y-*'}, run: 'z {f}', inputs: ['{f}']}
"""


@pytest.mark.parametrize("order", [[3, 4], [4, 3]])
def test_packages_are_numbered_in_the_order_of_growth_also_the_second_time(order: list[int]) -> None:
    produced = {3: ["a-1"], 4: ["b-1", "b-2"]}
    expansion = expanded(TWO)
    for stage in order:
        expansion = grown(expansion, stage, produced[stage])
    assert picture(again(expansion)) == picture(expansion)


def test_files_are_read_at_submission_also_where_another_list_waits() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*']}\n  - {each: {f: 'p-*', e: {csv: t.csv, column: e}, g: 'c*.cfg'}, run: 'b {f} {e} {g}'}\n"
    expansion = expanded(text, folder=MemoryFolder({"t.csv": "e\n1\n2\n", "c1.cfg": ""}))
    assert commands(grown(expansion, 2, ["p-1"]))[1:] == [("b", "p-1", "1", "c1.cfg"), ("b", "p-1", "2", "c1.cfg")]


def test_two_lists_that_wait_are_waited_for_together() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*']}\n  - {run: b, outputs: ['q-*']}\n  - {each: {dot: [{f: 'p-*'}, {g: 'q-*'}]}, run: 'c {f} {g}'}\n"
    expansion = expanded(text)
    (late,) = expansion.late
    assert (late.patterns, late.packages) == (("p-*", "q-*"), (0, 1))
    assert commands(grown(expansion, 3, ["p-1", "q-1"]))[2:] == [("c", "p-1", "q-1")]


def test_a_fault_that_growth_brings_is_told_and_changes_nothing() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*', 'q-*']}\n  - {each: {dot: [{f: 'p-*'}, {g: 'q-*'}]}, run: 'c {f} {g}'}\n"
    before = expanded(text)
    report = Report("growth")
    after = grow(before, 2, {0: ["p-1", "p-2", "q-1"]}, report)
    assert [fault.code for fault in report.errors] == ["unequal-lengths"]
    assert after is None
    assert picture(again(before)) == picture(before)


def test_known_names_count_among_what_appeared() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*']}\n  - {run: b, outputs: [p-known]}\n  - {each: {f: 'p-*'}, run: 'c {f}'}\n"
    expansion = grown(expanded(text), 3, ["p-1"])
    assert commands(expansion)[2:] == [("c", "p-1"), ("c", "p-known")]


def test_one_stage_asked_for_gives_its_names_only() -> None:
    text = (
        "stages:\n  - {name: a, run: a, outputs: ['p-*']}\n  - {name: b, run: b, outputs: [p-known]}\n"
        "  - {each: {f: {files: 'p-*', stage: a}}, run: 'c {f}'}\n"
    )
    assert commands(grown(expanded(text), 3, ["p-1"]))[2:] == [("c", "p-1")]


def test_a_group_of_late_files_is_a_merge() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*']}\n  - {each: {part: {files: 'p-*', group: 2}}, run: 'm {part}', inputs: ['{part}']}\n"
    expansion = grown(expanded(text), 2, ["p-3", "p-1", "p-2"])
    assert commands(expansion)[1:] == [("m", "p-1", "p-2"), ("m", "p-3")]
    assert edges(expansion) == {("a", "m-0"), ("a", "m-1")}


@pytest.mark.parametrize(
    "line, code",
    [
        ("run: b {g}", "unknown-placeholder"),
        ("run: b {f}\n    inputs: [no.cfg]", "missing-input"),
        ("run: b {f}\n    inputs: ['c*.cfg']", "no-match"),
        ("run: b {f}\n    inputs: ['c{f}-*.cfg']", "no-match"),
        ("software: none\n    parameters: {f: '{f}'}", "unknown-software"),
    ],
)
def test_what_is_wrong_with_a_late_stage_is_told_at_submission(line: str, code: str) -> None:
    text = f"stages:\n  - run: a\n    outputs: ['p-*']\n  - each: {{f: 'p-*'}}\n    {line}\n"
    fault = only_fault(text)
    assert fault.code == code
    assert fault.line in (7, 8)


def test_patterns_on_disk_that_a_late_stage_takes_are_recorded_at_submission() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*']}\n  - {each: {f: 'p-*'}, run: 'b {inputs}', inputs: ['{f}', 'c*.cfg']}\n"
    expansion = grown(expanded(text, folder=MemoryFolder(["c1.cfg"])), 2, ["p-1"])
    assert commands(expansion)[1:] == [("b", "p-1", "c1.cfg")]
    assert picture(again(expansion)) == picture(expansion)


def test_after_a_stage_that_waits_is_after_all_of_it() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*']}\n  - {name: b, each: {f: 'p-*'}, run: 'b {f}'}\n  - {name: c, run: c, after: [b]}\n"
    assert edges(grown(expanded(text), 2, ["p-1", "p-2"])) == {("b-0", "c"), ("b-1", "c")}


def test_a_stage_that_does_not_wait_cannot_grow() -> None:
    with pytest.raises(LookupError, match="stage 1"):
        grow(expanded(SPLIT), 1, {}, Report("growth"))


def test_names_that_appear_may_hold_special_characters() -> None:
    expansion = grown(expanded(SPLIT), 2, ["part-[1]*", "part-\n0", "part-{x}"])
    assert commands(expansion)[3:] == [("work", "part-\n0"), ("work", "part-[1]*"), ("work", "part-{x}")]
    assert commands(expansion)[1] == ("merge", "done-part-\n0", "done-part-[1]*", "done-part-{x}")
    assert picture(again(expansion)) == picture(expansion)


def test_a_stage_over_an_empty_stage_is_empty_too() -> None:
    text = (
        "stages:\n  - {name: a, run: a, outputs: ['a-*']}\n  - {each: {f: 'a-*'}, run: 'b {f}', outputs: ['b-{f}']}\n"
        "  - {each: {f: 'b-*'}, run: 'c {f}', outputs: ['c-{f}']}\n  - {name: d, run: 'd {inputs}', inputs: ['c-*']}\n"
    )
    report = Report("growth")
    expansion = grow(expanded(text), 2, {}, report)
    assert expansion is not None
    assert report.errors == []
    assert [warning.code for warning in report.warnings] == ["empty-stage", "empty-stage", "no-match"]
    assert ([expansion.name(p) for p in range(expansion.count)], expansion.late) == (["a", "d"], ())
    assert picture(again(expansion)) == picture(expansion)
