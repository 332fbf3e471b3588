"""Packages are told apart by their names, written or not."""

from __future__ import annotations

import pytest

from tests.kit.jobs import expanded, only_fault


@pytest.mark.parametrize(
    "text",
    [
        "stages:\n  - {name: x, each: {i: 1..2}, run: 'a {i}'}\n  - {name: x-0, run: b}\n",
        "stages:\n  - name: x\n    lines: [{name: l, run: a}, {name: l, run: b}]\n",
        "stages:\n  - {name: y, run: a}\n  - name: z\n    lines: [{packages: [{name: y, run: b}]}]\n",
    ],
)
def test_equal_names_are_refused(text: str) -> None:
    assert only_fault(text).code == "duplicate-name"


def test_stages_named_by_their_programs_are_told_apart() -> None:
    names = expanded("stages:\n  - run: ./a\n  - run: ./a3\n  - run: ./a\n").stage_names
    assert len(set(names)) == 3
