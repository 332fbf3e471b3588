"""Nodes by name, as documents, sites and pilots say them."""

from __future__ import annotations

import pytest

from pilotage.model.site import can_mean, is_named


@pytest.mark.parametrize(
    "node, names, named",
    [
        ("n17", ("n17",), True),
        ("n17", ("n1", "n170"), False),
        ("n17", ("n1?", "x"), True),
        ("N17.lyon.example", ("n17",), True),
        ("n17.lyon.example", ("n*.lyon.example",), True),
        ("n17.paris.example", ("n*.lyon.example",), False),
        ("n17", ("n17.lyon.example",), True),  # it does not say more of itself
        ("n17.paris.example", ("n17.lyon.example",), False),
        ("n17", ("*.lyon.example",), False),
        ("", ("*",), False),
        ("n17", (), False),
    ],
)
def test_a_node_is_one_of_those_that_are_named(node: str, names: tuple[str, ...], *, named: bool) -> None:
    assert is_named(node, names) == named


@pytest.mark.parametrize(
    "one, other, can",
    [
        ("n17", "n*", True),
        ("n*", "n17.lyon.example", True),
        ("n17", "m*", False),
        ("n1*", "n*7", True),
        ("n1*", "m*7", False),
        ("*", "m[0-9]", True),
        ("n17", "n17.lyon.example", True),
        ("n17", "n18", False),
    ],
)
def test_two_names_can_mean_one_node(one: str, other: str, *, can: bool) -> None:
    assert can_mean(one, other) == can
    assert can_mean(other, one) == can
