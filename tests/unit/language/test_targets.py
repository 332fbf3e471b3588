"""Targets: a run for some files leaves out what these do not need, and is laid out again in the same way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.app.jobs.targets import source_for
from pilotage.language import (
    Expansion,
    LoadResult,
    MemoryFolder,
    RecordedLists,
    Report,
    expand,
    grow,
    load,
    shapes_of,
    stages_left_out,
    unmade_targets,
)

TEXT = """\
pilotage: 1
job: j
stages:
  - name: other
    shell: echo > other.dat
    outputs: [other.dat]
  - name: split
    shell: split
    outputs: [parts/*.txt]
  - name: work
    each: {part: parts/*.txt}
    shell: cat {part} > done/{part.stem}.out
    inputs: ["{part}"]
    outputs: ["done/{part.stem}.out"]
  - name: result
    shell: cat done/*.out > result.dat
    inputs: [done/*.out]
    outputs: [result.dat]
  - name: spread
    each: {n: 1..3}
    shell: echo > spread-{n}.dat; echo > log-{n}
    outputs: ["spread-{n}.dat", "logs/{n}-*"]
  - name: more
    each: {part: logs/*}
    shell: cat {part} > more/{part.name}
    inputs: ["{part}"]
    outputs: ["more/{part.name}"]
"""


def read(*targets: str) -> LoadResult:
    return load(TEXT.encode(), file="pilotage.yaml", folder=MemoryFolder(), targets=targets)


def laid_out(*targets: str) -> Expansion:
    return read(*targets).job().expansion


def kept(expansion: Expansion) -> list[str]:
    return [expansion.name(number) for number in range(expansion.count) if number not in expansion.left_out]


@pytest.mark.parametrize(
    "targets,names,late",
    [
        ((), ["other", "split", "result", "spread-0", "spread-1", "spread-2"], [3, 6]),
        (("other.dat",), ["other"], []),
        (("result.dat",), ["split", "result"], [3]),
        (("spread-2.dat", "other.dat"), ["other", "spread-1"], []),
        (("spread-*.dat",), ["spread-0", "spread-1", "spread-2"], []),
        (("logs/3-x",), ["spread-2"], []),
        (("parts/a.txt",), ["split"], []),
        (("done/a.out",), ["split"], [3]),
        (("more/x",), ["spread-0", "spread-1", "spread-2"], [6]),
    ],
)
def test_what_a_target_does_not_need_is_left_out(targets: tuple[str, ...], names: list[str], late: list[int]) -> None:
    expansion = laid_out(*targets)
    assert kept(expansion) == names
    assert [each.stage for each in expansion.late] == late
    assert [number for number, shape in enumerate(shapes_of(expansion), start=1) if shape.late] == late
    assert expansion.wanted == len(names)


def test_a_stage_that_grows_brings_what_is_needed_and_is_laid_out_again_in_the_same_way() -> None:
    before = laid_out("done/b.out")
    grown = grow(before, 3, {1: ["parts/a.txt", "parts/b.txt"]}, Report("j"))
    assert grown is not None
    assert kept(grown) == ["split", "work-1"]
    again = expand(grown.definition, RecordedLists(grown.resolved), Report("j"))
    assert again is not None
    assert (again.left_out, again.count, again.late) == (grown.left_out, grown.count, grown.late)


def test_a_stage_that_grows_without_a_target_leaves_the_others_to_be_made() -> None:
    report = Report("j")
    grown = grow(laid_out("done/b.out", "other.dat"), 3, {1: ["parts/a.txt"]}, report)
    assert grown is not None
    assert (kept(grown), report.errors) == (["other", "split"], [])
    made = {0: ["other.dat"], 1: ["parts/a.txt"]}
    assert [*unmade_targets(grown, made.__getitem__)] == [("done/b.out", (), (3,))]


@pytest.mark.parametrize(
    "target,made,missing",
    [
        ("other.dat", {0: ["other.dat"]}, []),
        ("other.dat", {}, [("other.dat", (0,), ())]),
        ("parts/a.txt", {1: ["parts/a.txt", "parts/b.txt"]}, []),
        ("parts/a.txt", {1: ["parts/b.txt"]}, [("parts/a.txt", (1,), ())]),
        ("parts/?.txt", {1: ["parts/b.txt"]}, []),
        ("parts/?.txt", {1: ["parts/bb.txt"]}, [("parts/?.txt", (1,), ())]),
        ("logs/3-x", {3: ["logs/3-x"], 5: ["logs/3-y"]}, [("logs/3-x", (5,), ())]),
        ("logs/*x", {3: ["logs/1-x"]}, []),
        ("logs/*x", {3: ["logs/1-y"]}, [("logs/*x", (3, 4, 5), ())]),
        ("more/x", {3: ["logs/1-x"]}, [("more/x", (), (6,))]),
    ],
)
def test_a_target_is_made_where_a_package_that_could_make_it_has(
    target: str, made: dict[int, list[str]], missing: list[object]
) -> None:
    assert [*unmade_targets(laid_out(target), lambda number: made.get(number, ()))] == missing


def test_stages_of_which_no_target_needs_anything_are_left_out() -> None:
    assert stages_left_out(laid_out()) == frozenset()
    assert stages_left_out(laid_out("other.dat")) == {2, 3, 4, 5, 6}
    assert stages_left_out(laid_out("result.dat", "spread-1.dat")) == {1, 6}
    grown = grow(laid_out("result.dat"), 3, {1: []}, Report("j"))
    assert grown is not None
    assert stages_left_out(grown) == {1, 5, 6}


def test_a_target_that_nobody_makes_is_told_with_what_there_is() -> None:
    (fault,) = read("reslt.dat").report.errors
    assert (fault.code, fault.message) == ("unknown-target", "nothing in this document makes 'reslt.dat'")
    assert fault.hint == "did you mean 'result.dat'?"
    (fault,) = read("zzz").report.errors
    assert fault.hint.startswith("it makes: ")
    assert "result.dat" in fault.hint


def test_the_words_of_a_command_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pilotage.yaml").write_text(TEXT)
    Path("sub").mkdir()
    Path("sub/mine").write_text(TEXT)
    Path("result.dat").write_text("made before")

    def told(*words: str) -> tuple[str, list[str]]:
        source = source_for(words, source_format=None, parameters={})
        document = os.path.relpath(source.folder / source.document)
        return document, kept(source.load().expansion)

    everything = kept(laid_out())
    assert told() == ("pilotage.yaml", everything)
    assert told("pilotage.yaml") == ("pilotage.yaml", everything)
    assert told("other.dat") == ("pilotage.yaml", ["other"])
    assert told("./other.dat", "spread-1.dat") == ("pilotage.yaml", ["other", "spread-0"])
    assert told("result.dat") == ("pilotage.yaml", ["split", "result"])
    assert told("sub/mine") == ("sub/mine", everything)
    assert told("sub/mine", "sub/other.dat") == ("sub/mine", ["other"])
    assert told("pilotage.yaml", "other.dat") == ("pilotage.yaml", ["other"])
