"""Iteration against an oracle that knows nothing but lists of (tag, values)."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pilotage.language import MemoryFolder, RecordingLists, Report, expand
from pilotage.model.jobs.definition import plain
from tests.kit.jobs import definition_of, loaded

Item = tuple[tuple[int, ...], dict[str, str]]


class Unequal(Exception):
    """dot was asked to pair lists of different lengths."""


def oracle(tree: Any) -> list[Item]:
    """The items of a nested iteration, by the definitions of the words."""
    if "variable" in tree:
        return [((i,), {tree["variable"]: value}) for i, value in enumerate(tree["values"])]
    ((operator, operands),) = tree.items()
    lists = [oracle(operand) for operand in operands]
    if operator == "dot":
        if len({len(items) for items in lists}) > 1:
            raise Unequal
        return [(row[0][0], joined(row)) for row in zip(*lists, strict=True)]
    if operator == "cross":
        return [(sum((tag for tag, _ in row), ()), joined(row)) for row in itertools.product(*lists)]
    if operator == "flat-cross":
        return [((i,), joined(row)) for i, row in enumerate(itertools.product(*lists))]
    found = lists[0]
    for right in lists[1:]:
        found = [
            (tag, {**values, **more})
            for begin, values in found
            for tag, more in right
            if len(tag) >= len(begin) and tag[: len(begin)] == begin
        ]
    return found


def joined(row: tuple[Item, ...]) -> dict[str, str]:
    return {name: value for _, values in row for name, value in values.items()}


@st.composite
def iterations(draw: st.DrawFn) -> Any:
    """A nested iteration in which every variable has its own name."""
    names = (f"v{i}" for i in itertools.count())

    def tree(depth: int) -> Any:
        if depth == 0 or draw(st.integers(0, 2)) == 0:
            values = draw(st.lists(st.sampled_from(["a", "b", "1", "x y", "*", "{", "é"]), min_size=1, max_size=3))
            return {"variable": next(names), "values": values}
        operator = draw(st.sampled_from(["dot", "cross", "flat-cross", "match"]))
        return {operator: [tree(depth - 1) for _ in range(draw(st.integers(1, 3)))]}

    return tree(draw(st.integers(0, 3)))


def variables(tree: Any) -> list[str]:
    if "variable" in tree:
        return [tree["variable"]]
    return [name for operands in tree.values() for operand in operands for name in variables(operand)]


@given(iterations())
def test_items_are_those_of_the_oracle(each: Any) -> None:
    names = variables(each)
    document = {
        "pilotage": 1,
        "job": "j",
        "stages": [{"each": each, "run": ["p", *(f"{{{name}}}" for name in names)]}],
    }
    definition = definition_of(document)
    report = Report("oracle")
    expansion = expand(definition, RecordingLists(MemoryFolder()), report)
    try:
        expected = oracle(each)
    except Unequal:
        assert [fault.code for fault in report.errors] == ["unequal-lengths"]
        return
    assert not report.errors, report.errors
    assert expansion is not None
    found = [(p.tag, p.binaries[0].argv[1:]) for p in expansion.packages()]
    assert found == [("_".join(map(str, tag)), tuple(values[name] for name in names)) for tag, values in expected]


@given(iterations())
def test_the_canonical_form_of_an_iteration_is_itself(each: Any) -> None:
    definition = definition_of({"pilotage": 1, "job": "j", "stages": [{"each": each, "run": "p"}]})
    assert plain(definition)["stages"][0]["each"] == each


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7), st.integers(0, 4))
def test_ranges_are_those_of_the_oracle(first: int, last: int, step: int, zeros: int) -> None:
    def padded(number: int) -> str:
        return f"{'-' if number < 0 else ''}{str(abs(number)).zfill(zeros)}"

    text = f"{padded(first)}..{padded(last)}" + (f"..{step}" if step != 1 else "")
    result = loaded(f"stages:\n  - each: {{i: '{text}'}}\n    run: p {{i}}\n")
    expected = []
    value = first
    while step and (value <= last if step > 0 else value >= last):
        expected.append(value)
        value += step
    if not expected:
        assert [fault.code for fault in result.report.errors] == ["bad-iteration"]
        return
    assert result.expansion is not None
    ends = [padded(first).lstrip("-"), padded(last).lstrip("-")]
    width = max(map(len, ends)) if any(len(end) > 1 and end[0] == "0" for end in ends) else 0
    texts = [f"{'-' if number < 0 else ''}{str(abs(number)).zfill(width)}" for number in expected]
    assert [p.binaries[0].argv[1] for p in result.expansion.packages()] == texts
