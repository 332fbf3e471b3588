"""The edges of a job against an oracle that knows packages, names and patterns only, one by one."""

from __future__ import annotations

import posixpath
from typing import Any

import msgspec
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from pilotage.language import MemoryFolder, RecordingLists, Report, expand
from pilotage.language.text.patterns import can_both_match, literal, matches
from tests.kit.jobs import definition_of

OUTPUTS = ["a-{i}", "./b-{i}", "a-{i}-*", "b-*", "c/{i}", "c/../d-{i}", "e-{i}.x"]
INPUTS = [
    "a-{i}",
    "a-1",
    "b-{i}",
    "./d-{i}",
    "a-*",
    "?-{i}",
    "a-{i}-*",
    "c/*",
    "./c/../d-*",
    "on-disk",
    "e-*.x",
    "a-1-z",
]
DISK = ["on-disk", "a-9", "c/9", "d-9", "e-9.x", "a-1-z", "a-2-z", "b-9", "x-1", "x-2"]


class Made(msgspec.Struct, frozen=True):
    """One package as the oracle sees it."""

    place: tuple[int, int, int]  # stage, line, position in the line
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]


@st.composite
def stages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Stages over the same two items, with lines of one or two packages whose names may meet."""
    unused = draw(st.permutations(OUTPUTS))
    found = []
    for number in range(draw(st.integers(1, 4))):
        lines = []
        for _ in range(draw(st.integers(1, 2))):
            packages = []
            for _ in range(draw(st.integers(1, 2))):
                outputs = [unused.pop() for _ in range(draw(st.integers(0, 1))) if unused]
                inputs = draw(st.lists(st.sampled_from(INPUTS), max_size=2, unique=True))
                packages.append({"run": ["p", "{i}"], "outputs": outputs, "inputs": inputs})
            lines.append({"packages": packages})
        found.append({"name": f"s{number}", "each": {"i": [1, 2]}, "lines": lines})
    return found


def packages_of(document: list[dict[str, Any]]) -> list[Made]:
    """Every package with its names filled in, in the order of the job."""
    found = []
    for number, stage in enumerate(document):
        for item in ("1", "2"):
            for template, line in enumerate(stage["lines"]):
                place = (number, (int(item) - 1) * len(stage["lines"]) + template)
                for position, package in enumerate(line["packages"]):
                    outputs, inputs = (
                        tuple(posixpath.normpath(name.replace("{i}", item)) for name in package[field])
                        for field in ("outputs", "inputs")
                    )
                    found.append(Made((*place, position), outputs, inputs))
    return found


def is_open(name: str) -> bool:
    return "*" in name or "?" in name


def comes_before(maker: Made, taker: Made) -> bool:
    """Whether a pattern may be about what a package makes: an earlier stage, or earlier in the line."""
    same_line = maker.place[:2] == taker.place[:2] and maker.place[2] < taker.place[2]
    return maker.place[0] < taker.place[0] or same_line


def waits_for(taker: Made, maker: Made, everything: list[Made]) -> bool:
    """Whether one package waits for another, by the rules of the language."""
    if maker.place[:2] == taker.place[:2] and maker.place[2] == taker.place[2] - 1:
        return True
    for wanted in taker.inputs:
        for made in maker.outputs:
            if is_open(wanted):
                met = can_both_match(wanted, made) if is_open(made) else matches(wanted, made)
                if met and comes_before(maker, taker):
                    return True
            elif not is_open(made):
                if wanted == made:
                    return True
            elif comes_before(maker, taker) and can_both_match(literal(wanted), made):
                by_name = any(wanted in other.outputs for other in everything)
                if not by_name:
                    return True
    return False


@settings(max_examples=150)
@given(stages())
def test_edges_are_those_that_the_names_imply(document: list[dict[str, Any]]) -> None:
    definition = definition_of({"pilotage": 1, "job": "j", "stages": document})
    expansion = expand(definition, RecordingLists(MemoryFolder(DISK)), Report("job"))
    everything = packages_of(document)
    expected = {
        (m, t)
        for t, taker in enumerate(everything)
        for m, maker in enumerate(everything)
        if m != t and waits_for(taker, maker, everything)
    }
    event("accepted" if expansion is not None else "refused")
    assume(expansion is not None)
    assert expansion is not None
    assert expansion.count == len(everything)
    assert {(s, t) for s, t, _ in expansion.graph.edges()} == expected
