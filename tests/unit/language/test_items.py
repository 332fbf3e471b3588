from __future__ import annotations

import pytest

from pilotage.language.expansion.lists import (
    Column,
    Groups,
    Items,
    ListFault,
    RangeTexts,
    cross,
    dot,
    flat_cross,
    match,
)


def column(name: str, *values: str) -> Items:
    return Items(len(values), {name: Column(values)})


A = column("a", "1", "2")
B = column("b", "x", "y")


def shown(items: Items) -> dict[str, str]:
    return {items.tag(i): "".join(str(v) for v in items.values(i).values()) for i in range(items.count)}


def test_dot_pairs_by_position() -> None:
    assert shown(dot([("a", A), ("b", B)])) == {"0": "1x", "1": "2y"}


def test_cross_gives_every_pair_with_joined_tags() -> None:
    assert shown(cross([A, B])) == {"0_0": "1x", "0_1": "1y", "1_0": "2x", "1_1": "2y"}


def test_flat_cross_counts_anew() -> None:
    assert shown(flat_cross([A, B])) == {"0": "1x", "1": "1y", "2": "2x", "3": "2y"}


def test_match_pairs_with_every_tag_that_begins_alike() -> None:
    right = cross([column("b", "x", "y"), column("c", "p", "q")])
    assert shown(match([A, right])) == {"0_0": "1xp", "0_1": "1xq", "1_0": "2yp", "1_1": "2yq"}


def test_match_of_equal_depths_pairs_equal_tags() -> None:
    assert shown(match([A, B])) == {"0": "1x", "1": "2y"}


def test_match_with_a_shallower_right_side_gives_nothing() -> None:
    assert match([cross([A, B]), column("c", "p", "q")]).count == 0


def test_match_leaves_out_what_has_no_partner() -> None:
    assert shown(match([A, column("b", "x", "y", "z")])) == {"0": "1x", "1": "2y"}


def test_operators_take_three_operands() -> None:
    c = column("c", "p", "q")
    assert shown(dot([("a", A), ("b", B), ("c", c)])) == {"0": "1xp", "1": "2yq"}
    assert list(shown(cross([A, B, c]))) == ["0_0_0", "0_0_1", "0_1_0", "0_1_1", "1_0_0", "1_0_1", "1_1_0", "1_1_1"]
    assert list(shown(flat_cross([A, B, c])).values())[5] == "2xq"
    assert shown(match([A, B, c])) == {"0": "1xp", "1": "2yq"}


def test_dot_of_a_cross_keeps_the_tags_of_the_first_operand() -> None:
    four = column("d", "p", "q", "r", "s")
    assert shown(dot([("ab", cross([A, B])), ("d", four)])) == {"0_0": "1xp", "0_1": "1yq", "1_0": "2xr", "1_1": "2ys"}
    assert list(shown(dot([("d", four), ("ab", cross([A, B]))]))) == ["0", "1", "2", "3"]


def test_dot_of_unequal_lengths_names_both_with_their_lengths() -> None:
    with pytest.raises(ListFault) as caught:
        dot([("'a'", A), ("'c'", column("c", "1", "2", "3"))])
    assert caught.value.code == "unequal-lengths"
    assert "'a' has 2" in caught.value.message
    assert "'c' has 3" in caught.value.message


def test_dot_names_the_operand_that_differs_even_if_it_is_the_third() -> None:
    with pytest.raises(ListFault, match="'c' has 1"):
        dot([("'a'", A), ("'b'", B), ("'c'", column("c", "1"))])


@pytest.mark.parametrize("operator", [cross, flat_cross, match])
def test_a_variable_given_twice_is_refused(operator: object) -> None:
    with pytest.raises(ListFault) as caught:
        operator([A, column("a", "3", "4")])  # type: ignore[operator] # one of three functions
    assert caught.value.code == "duplicate-variable"


@pytest.mark.parametrize("operator", [cross, flat_cross])
def test_a_combination_too_large_is_refused_before_it_is_made(operator: object) -> None:
    wide = Items(100_000, {"a": Column(RangeTexts("1..100000"))})
    other = Items(100_000, {"b": Column(RangeTexts("1..100000"))})
    with pytest.raises(ListFault, match="10,000,000,000 items") as caught:
        operator([wide, other])  # type: ignore[operator] # one of two functions
    assert caught.value.code == "too-many-items"


@pytest.mark.parametrize("operator", [cross, flat_cross, match])
def test_an_empty_operand_gives_no_items(operator: object) -> None:
    assert operator([A, column("b")]).count == 0  # type: ignore[operator] # one of three functions
    assert operator([column("b"), A]).count == 0  # type: ignore[operator] # one of three functions


@pytest.mark.parametrize(
    "text, values",
    [
        ("1..3", ["1", "2", "3"]),
        ("1..10..4", ["1", "5", "9"]),
        ("3..1..-1", ["3", "2", "1"]),
        ("-1..1", ["-1", "0", "1"]),
        ("008..010", ["008", "009", "010"]),
        ("1..003", ["001", "002", "003"]),
        ("-01..01", ["-01", "00", "01"]),
        ("0..2", ["0", "1", "2"]),
        ("7..7", ["7"]),
        ("98..101", ["98", "99", "100", "101"]),
    ],
)
def test_ranges_include_their_end_and_keep_their_zeros(text: str, values: list[str]) -> None:
    texts = RangeTexts(text)
    assert list(texts) == values
    assert [texts[i] for i in range(len(texts))] == values
    assert list(texts[1:]) == values[1:]


def test_groups_take_so_many_at_a_time_and_the_last_may_be_short() -> None:
    groups = Groups(RangeTexts("1..7"), 3)
    assert list(groups) == [("1", "2", "3"), ("4", "5", "6"), ("7",)]
    assert len(groups) == 3
    assert groups[1:] == [("4", "5", "6"), ("7",)]
    assert len(Groups((), 3)) == 0
