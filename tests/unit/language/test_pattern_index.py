"""Who makes what matches a pattern, before any of the names exists."""

from __future__ import annotations

import pytest

from pilotage.language.expansion import producers
from pilotage.language.expansion.producers import PatternIndex
from pilotage.language.text.patterns import can_both_match


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The made patterns that are compared with the one asked for, in the end."""
    seen: list[str] = []

    def noting(left: str, right: str) -> bool:
        seen.append(left)
        return can_both_match(left, right)

    monkeypatch.setattr(producers, "can_both_match", noting)
    return seen


def index_of(*patterns: str) -> PatternIndex:
    """Each pattern is made by the package of its position, in stage 0."""
    index = PatternIndex()
    index.add(((pattern, package) for package, pattern in enumerate(patterns)), stage=0)
    return index


def test_an_empty_index_is_false_and_has_no_makers() -> None:
    assert not PatternIndex()
    assert PatternIndex().makers_of("*", before_stage=9) == []


@pytest.mark.parametrize(
    "asked, expected",
    [
        ("sub-01_bold.nii.gz", [0, 2]),
        ("*_bold.nii.gz", [0, 1, 2]),
        ("*_T1w.nii.gz", [0, 1, 2, 3]),
        ("a_T1w.nii.gz", [2, 3]),
        ("sub-02*", [1, 2, 3]),
        ("logs/*", []),
        ("logs/2024/x", [4]),
        ("**", [0, 1, 2, 3, 4]),
    ],
)
def test_makers_are_found_by_either_end_and_sorted(asked: str, expected: list[int]) -> None:
    index = index_of("sub-01_*.nii.gz", "sub-02_b*", "*.nii.gz", "*_T1w.nii.gz", "logs/*/*")
    assert index.makers_of(asked, before_stage=1) == expected


def test_only_earlier_stages_or_the_one_asked_for_count() -> None:
    index = PatternIndex()
    for stage in range(4):
        index.add([("a-*", 10 + stage)], stage=stage)
    assert index.makers_of("a-1", before_stage=3) == [10, 11, 12]
    assert index.makers_of("a-1", before_stage=3, stage=1) == [11]
    assert index.makers_of("a-1", before_stage=3, stage=3) == []


def test_what_is_added_after_a_question_is_found_by_the_next_one() -> None:
    index = index_of("a-*")
    assert index.makers_of("a-1", before_stage=1) == [0]
    index.add([(f"a-{i}*", i) for i in range(1, 100)], stage=0)
    assert index.makers_of("a-1", before_stage=1) == [0, 1]
    index.add([("*-1", 100)], stage=0)
    assert index.makers_of("a-1", before_stage=1) == [0, 1, 100]


def test_texts_that_begin_with_the_last_character_there_is_are_found() -> None:
    assert index_of("a\U0010ffff\U0010ffff*").makers_of("a*", before_stage=1) == [0]


def test_long_ends_are_told_apart_to_the_last_character() -> None:
    long = "x" * 1000
    index = index_of(f"{long}a*", f"{long}b*", f"*a{long}", f"*b{long}")
    assert index.makers_of(f"{long}a*", before_stage=1) == [0, 2, 3]
    assert index.makers_of(f"{long}a", before_stage=1) == [0]
    assert index.makers_of(f"b{long}", before_stage=1) == [3]


@pytest.mark.parametrize("template", ["*-{}.out", "reco-{}-*.dat", "*_{}_*.nii.gz/{}"])
def test_a_pattern_is_compared_only_with_those_that_share_an_end(template: str, compared: list[str]) -> None:
    index = index_of(*(template.format(f"{i:03}", f"{i:03}") for i in range(200)))
    asked = template.format("017", "017")
    assert index.makers_of(asked, before_stage=1) == [17]
    assert compared == [asked]


def test_a_name_is_compared_by_the_end_that_tells_more(compared: list[str]) -> None:
    index = index_of(*(f"part-{i:03}-*-{i % 50:02}.dat" for i in range(200)))
    assert index.makers_of("part-*-07.dat", before_stage=1) == [7, 57, 107, 157]
    assert len(compared) == 4
    compared.clear()
    assert index.makers_of("part-017-*.dat", before_stage=1) == [17]
    assert len(compared) == 1


def test_a_pattern_of_many_packages_is_compared_once(compared: list[str]) -> None:
    index = index_of(*["a-*"] * 50)
    assert index.makers_of("a-?", before_stage=1) == list(range(50))
    assert compared == ["a-*"]


def test_a_pattern_of_later_stages_only_is_not_compared(compared: list[str]) -> None:
    assert index_of("a-*").makers_of("a-?", before_stage=0) == []
    assert compared == []
