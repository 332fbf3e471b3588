"""Which files go along an edge."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

import pytest

from pilotage.language import Expansion, MemoryFolder, load
from pilotage.language.drawing.exports import dot_lines, json_pieces
from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.edge_files import (
    EdgeFiles,
    edges_across,
    inputs_from,
    packages_after,
    packages_before,
)


def expanded(body: str) -> Expansion:
    loaded = load(f"pilotage: 1\njob: trial\n{body}".encode(), file="pilotage.yaml", folder=MemoryFolder())
    assert loaded.expansion is not None, loaded.report.errors
    return loaded.expansion


def test_an_edge_without_a_file_carries_none_whatever_its_names_look_like() -> None:
    body = (
        "stages:\n  - {name: one, each: {v: ['a*']}, run: x, outputs: ['{v}']}\n"
        "  - {run: z, outputs: [ab]}\n  - {run: y, after: [one], inputs: [ab]}\n"
    )
    expansion = expanded(body)
    assert {(a, b): EdgeFiles(expansion).between(a, b) for a, b, _ in expansion.graph.edges()} == {
        (0, 2): [],
        (1, 2): ["ab"],
    }


def test_a_star_in_a_value_is_a_character_of_the_name() -> None:
    body = (
        "stages:\n  - {each: {v: ['a*', ab]}, run: x, outputs: ['{v}']}\n"
        "  - {each: {v: ['a*']}, run: y, inputs: ['{v}']}\n"
    )
    expansion = expanded(body)
    assert {(a, b): EdgeFiles(expansion).between(a, b) for a, b, _ in expansion.graph.edges()} == {(0, 2): ["a*"]}


def test_only_those_patterns_of_a_maker_are_carried_that_can_be_meant() -> None:
    body = "stages:\n  - {run: x, outputs: ['p-*', 'q-*', r]}\n  - {run: y, inputs: ['p-?', r]}\n"
    assert EdgeFiles(expanded(body)).between(0, 1) == ["p-*", "r"]


def test_a_name_that_comes_of_a_pattern_is_carried_as_that_pattern() -> None:
    body = "stages:\n  - {run: x, outputs: ['p-*']}\n  - {run: y, inputs: [p-1, ./p-2]}\n"
    assert EdgeFiles(expanded(body)).between(0, 1) == ["p-*"]


def test_a_pattern_takes_nothing_of_a_later_stage() -> None:
    body = (
        "stages:\n  - {run: a, outputs: [x-0]}\n  - {run: b, inputs: ['x-*', y], outputs: [z]}\n"
        "  - {run: c, outputs: [x-1, y]}\n"
    )
    expansion = expanded(body)
    assert {(a, b): EdgeFiles(expansion).between(a, b) for a, b, _ in expansion.graph.edges()} == {
        (0, 1): ["x-0"],
        (2, 1): ["y"],
    }


def test_packages_of_a_line_hand_on_what_matches() -> None:
    body = "stages:\n  - packages: [{run: a, outputs: [x-1]}, {run: b, inputs: ['x-*']}]\n"
    assert EdgeFiles(expanded(body)).between(0, 1) == ["x-1"]


class Counting:
    """An expansion that counts how often it is asked for the block of a package."""

    def __init__(self, expansion: Expansion) -> None:
        self.graph = expansion.graph
        self.asked: Counter[int] = Counter()
        self._expansion = expansion

    def block(self, package: int) -> Block:
        """The block of a package."""
        self.asked[package] += 1
        return self._expansion.block(package)


def test_what_a_consumer_needs_is_worked_out_once() -> None:
    body = "stages:\n  - {each: {i: 1..50}, run: x, outputs: ['o-{i}']}\n  - {run: y, inputs: ['o-*']}\n"
    counting = Counting(expanded(body))
    files = EdgeFiles(cast("Expansion", counting))
    assert [files.between(maker, 50) for maker in range(50)] == [[f"o-{i}"] for i in range(1, 51)]
    assert counting.asked[50] == 1


LATE = """
stages:
  - {name: split, run: ./split, outputs: ["part-*.dat"]}
  - name: work
    each: {part: part-*.dat}
    run: ./work {part}
    inputs: ["{part}"]
    outputs: ["done-{part.stem}.dat"]
  - name: more
    each: {done: done-*.dat}
    run: ./more {done}
    inputs: ["{done}"]
    outputs: ["more-{done.stem}.dat"]
  - {name: merge, run: "./merge {inputs}", inputs: [more-*.dat]}
  - {name: bell, run: ./bell, after: [work]}
"""


def test_who_stands_before_and_behind_a_late_stage() -> None:
    expansion = expanded(LATE)
    assert [expansion.name(package) for package in packages_before(expansion, 3)] == ["split"]
    assert [expansion.name(package) for package in packages_after(expansion, 3)] == ["merge"]
    assert [expansion.name(package) for package in packages_after(expansion, 2)] == ["bell"]


def test_what_is_taken_of_a_late_stage_is_told_as_the_document_says_it() -> None:
    expansion = expanded(LATE)
    blocks = {expansion.stage_names[block.stage]: block for block in expansion.blocks}
    assert inputs_from(expansion, blocks["merge"], 3) == ["more-*.dat"]
    assert inputs_from(expansion, blocks["bell"], 2) == []


def test_edges_stand_for_late_stages() -> None:
    assert edges_across(expanded(LATE)) == [(0, 1), (0, 2)]


def test_a_job_without_late_stages_needs_no_such_edges() -> None:
    assert edges_across(expanded("stages:\n  - run: a\n")) == []


def _one_maker_of(count: int, *, made: str, taken: str) -> Expansion:
    outputs = "".join(f"      - '{made.format(i)}'\n" for i in range(count))
    return expanded(
        f"stages:\n  - run: make\n    outputs:\n{outputs}"
        f"  - each: {{i: 0..{count - 1}}}\n    run: use\n    inputs: ['{taken}']\n"
    )


def _calls(work: Callable[[], object]) -> int:
    """How many functions a piece of work calls: unlike its time, the same on every machine."""
    counted = Counter[str]()
    sys.setprofile(lambda _frame, event, _argument: counted.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted["call"] + counted["c_call"]


@pytest.mark.parametrize("draw", [json_pieces, dot_lines])
@pytest.mark.parametrize(
    "made, taken, labels",
    [
        ("o-{}.dat", "o-{i}.dat", "o-17.dat"),
        ("o-{}.dat", "o-{i}.*", "o-17.dat"),
        ("o-{}-*.dat", "o-{i}-*", "o-17-*.dat"),
    ],
)
def test_drawing_what_one_package_gives_to_many_costs_in_proportion(
    draw: Callable[[Expansion], Iterable[str]], made: str, taken: str, labels: str
) -> None:
    few, many = (_one_maker_of(count, made=made, taken=taken) for count in (20, 200))
    assert sum(labels in line for piece in draw(many) for line in piece.split("\n")) == 1
    assert _calls(lambda: list(draw(many))) <= 12 * _calls(lambda: list(draw(few)))
