"""Ways in which a dependency could be lost, or made up, without a word."""

from __future__ import annotations

import pytest

from pilotage.language import MemoryFolder, Report, grow
from tests.kit.jobs import commands, edges, expanded, grown, loaded, made_by

STALE = MemoryFolder(["sim-old.dat", "sim-1.dat"])


@pytest.mark.parametrize("made", ["./sim-{s}.dat", "x/../sim-{s}.dat", ".//sim-{s}.dat", "sub/{d}/sim-{s}.dat"])
@pytest.mark.parametrize("taken", ["sim-*.dat", "./sim-*.dat", "x/../sim-?.dat"])
def test_another_spelling_is_the_same_file(made: str, taken: str) -> None:
    text = f"stages:\n  - {{name: a, each: {{s: [1, 2], d: ['..']}}, run: 'a {{s}} {{d}}', outputs: ['{made}']}}\n"
    text += f"  - {{name: b, run: 'b {{inputs}}', inputs: ['{taken}']}}\n"
    expansion = expanded(text, folder=STALE)
    assert edges(expansion) == {("a-0_0", "b"), ("a-1_0", "b")}
    assert commands(expansion)[-1] == ("b", "sim-1.dat", "sim-2.dat")


def test_iterating_over_another_spelling_does_not_look_at_the_disk() -> None:
    text = "stages:\n  - {each: {s: 1..2}, run: 'a {s}', outputs: ['sim-{s}.dat']}\n"
    text += "  - {name: b, each: {f: ./sim-*.dat}, run: 'b {f}', inputs: ['{f}']}\n"
    assert commands(expanded(text, folder=STALE))[2:] == [("b", "sim-1.dat"), ("b", "sim-2.dat")]


def test_a_binary_does_not_take_what_itself_or_a_later_one_makes() -> None:
    text = """\
stages:
  - {each: {s: 1..2}, run: 'a {s}', outputs: ['sim-{s}.dat']}
  - name: m
    binaries:
      - {run: 'm {inputs}', inputs: ['sim-*.dat'], outputs: [sim-all.dat]}
      - {run: 'n {inputs}', inputs: ['sim-*.dat'], outputs: [n.dat]}
"""
    binaries = expanded(text).package(2).binaries
    assert binaries[0].argv == ("m", "sim-1.dat", "sim-2.dat")
    assert sorted(binaries[1].argv) == ["n", "sim-1.dat", "sim-2.dat", "sim-all.dat"]


def test_match_pairs_by_makers_when_each_makes_several_files() -> None:
    text = "stages:\n  - {each: {x: [a, b]}, run: 'p {x}', outputs: ['{x}-1.dat', '{x}-2.dat']}\n"
    text += "  - {each: {match: [{l: [L, M]}, {r: '*-?.dat'}]}, run: 'q {l} {r}', inputs: ['{r}']}\n"
    assert commands(expanded(text))[2:] == [
        ("q", "L", "a-1.dat"),
        ("q", "L", "a-2.dat"),
        ("q", "M", "b-1.dat"),
        ("q", "M", "b-2.dat"),
    ]


def test_match_pairs_by_makers_when_files_appear_late() -> None:
    text = "stages:\n  - {each: {x: [a, b]}, run: 'p {x}', outputs: ['s-{x}-*']}\n"
    text += "  - {each: {match: [{l: [L, M]}, {r: 's-*'}]}, run: 'q {l} {r}', inputs: ['{r}']}\n"
    after = grown(expanded(text), 2, ["s-a-1", "s-a-2", "s-b-1"])
    assert commands(after)[2:] == [("q", "L", "s-a-1"), ("q", "L", "s-a-2"), ("q", "M", "s-b-1")]


def test_each_stage_asked_for_has_its_own_late_list() -> None:
    text = "stages:\n  - {name: A, run: a, outputs: ['d/*.x']}\n  - {name: B, run: b, outputs: ['d/*.x']}\n"
    text += (
        "  - {each: {cross: [{p: {files: 'd/*.x', stage: A}}, {q: {files: 'd/*.x', stage: B}}]}, run: 'c {p} {q}'}\n"
    )
    after = grow(expanded(text), 3, {0: ["d/1.x"], 1: ["d/2.x"]}, Report("growth"))
    assert after is not None
    assert commands(after)[2:] == [("c", "d/1.x", "d/2.x")]


def test_a_stage_is_not_laid_out_before_those_it_waits_for() -> None:
    text = "stages:\n  - {run: a, outputs: ['a-*']}\n  - {each: {f: 'a-*'}, run: 'b {f}', outputs: ['b-{f}-*']}\n"
    text += "  - {each: {f: 'b-*'}, run: 'c {f}'}\n"
    with pytest.raises(ValueError, match="waits for the stages"):
        grow(expanded(text), 3, {}, Report("growth"))


def test_what_two_packages_made_is_refused_when_it_appears() -> None:
    text = "stages:\n  - {each: {i: 1..2}, run: 'a {i}', outputs: ['x/*']}\n  - {each: {f: 'x/*'}, run: 'b {f}'}\n"
    report = Report("growth")
    assert grow(expanded(text), 2, {0: ["x/1"], 1: ["x/1"]}, report) is None
    assert [fault.code for fault in report.errors] == ["two-makers"]


def test_a_late_stage_takes_files_of_the_folder_by_a_pattern_of_its_item() -> None:
    text = "stages:\n  - {run: a, outputs: ['p-*']}\n"
    text += "  - {each: {p: 'p-*'}, run: 'b {inputs}', inputs: ['{p}', 'calib-{p}-*.db']}\n"
    before = expanded(text, folder=MemoryFolder(["calib-p-1-x.db", "calib-p-2-y.db"]))
    report = Report("growth")
    after = grow(before, 2, made_by(before, ["p-1", "p-2"]), report)
    assert after is not None
    assert report.warnings == []
    assert commands(after)[1:] == [("b", "p-1", "calib-p-1-x.db"), ("b", "p-2", "calib-p-2-y.db")]


def test_groups_larger_than_the_list_cost_nothing() -> None:
    text = "stages:\n  - {each: {i: 1..3}, run: 'a {i}', outputs: ['o-{i}']}\n"
    text += "  - {each: {g: {files: 'o-*', group: 1000000000000}}, run: 'b {inputs}', inputs: ['{g}']}\n"
    assert commands(expanded(text))[-1] == ("b", "o-1", "o-2", "o-3")


@pytest.mark.parametrize("parameters", ["{p: {a: 1}}", "{p: null}", "{p: x, job: y}"])
def test_parameters_that_cannot_stand_in_a_command_are_refused(parameters: str) -> None:
    result = loaded(f"software: [{{id: s, run: 's {{p}}'}}]\nstages:\n  - {{software: s, parameters: {parameters}}}\n")
    assert {fault.code for fault in result.report.errors} <= {"wrong-type", "reserved-name", "unknown-parameter"}
    assert result.report.errors


def test_a_stage_asked_for_by_name_does_not_wait_for_another_that_is_late() -> None:
    text = "stages:\n  - {name: a, run: a, outputs: ['p-*']}\n  - {name: b, each: {f: 'p-*'}, run: 'b {f}', outputs: ['q-{f}']}\n"
    text += "  - {name: c, run: c, outputs: [q-1]}\n  - {name: d, each: {f: {files: 'q-*', stage: c}}, run: 'd {f}'}\n"
    expansion = expanded(text)
    assert [late.stage for late in expansion.late] == [2]
    assert commands(expansion)[-1] == ("d", "q-1")
