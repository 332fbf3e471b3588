"""Two contents of an output are identical, equal as declared, or different, whatever they contain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.model.jobs.definition import ComparedAs, Comparison
from pilotage.provenance.compare import compare, comparison_for, number_of


def declared(compared_as: ComparedAs, **more: object) -> Comparison:
    return Comparison(files=("*",), compared_as=compared_as, **more)  # type: ignore[arg-type]


TEXT, NUMBERS = declared("text"), declared("numbers", tolerance=1e-6)


@pytest.mark.parametrize(
    "before, after, comparison, verdict",
    [
        (b"a", b"a", None, "identical"),
        (b"a", b"b", None, "different"),
        (b"a\n", b"a", TEXT, "equal"),
        (b"a\r\nb", b"a\nb\n", TEXT, "equal"),
        (b"a\nb\n", b"b\n", TEXT, "different"),
        (b"Date: 1\nx\n", b"x\nDate: 2\n", declared("text", ignore=("^Date:",)), "equal"),
        (b"Date: 1\nx\n", b"Date: 2\nx\n", TEXT, "different"),
        (b"1.0 2", b"1.0000001 2.0", NUMBERS, "equal"),
        (b"1.0", b"1.0001", NUMBERS, "different"),
        (b"x = 1.0, 2", b"x = 1.0, 3", NUMBERS, "different"),
        (b" 1.0", b"1.0  ", NUMBERS, "equal"),
        (b"1 2 3", b"1 2", NUMBERS, "different"),
        (b"1\n2\n", b"1\n", NUMBERS, "different"),
        (b"run1", b"run1.0000000001", NUMBERS, "different"),
        (b"1d0", b"1.0", NUMBERS, "equal"),
        (b"nan", b"NaN", NUMBERS, "equal"),
        (b"nan", b"1", declared("numbers", tolerance=1e9), "different"),
        (b"inf", b"1e300", declared("numbers", tolerance=0.5), "different"),
        (b"inf", b"+Infinity", NUMBERS, "equal"),
        (b"inf", b"-inf", NUMBERS, "different"),
        (b"1e999", b"2e999", declared("numbers", tolerance=0.9), "different"),
        (b"1e-320", b"0", declared("numbers", absolute_tolerance=1e-300), "equal"),
        (b"0", b"1e-9", NUMBERS, "different"),
        (b"9007199254740993", b"9007199254740992", declared("numbers"), "different"),
        (b"1" * 350, b"1" * 349 + b"2", NUMBERS, "equal"),
        (b"1" * 350, b"1e300", NUMBERS, "different"),
        (b"\xff\xfe\0 1", b"\xff\xfe\0 1.0", NUMBERS, "equal"),
        (b"", b"\n", TEXT, "different"),
    ],
)
def test_contents_compare(before: bytes, after: bytes, comparison: Comparison | None, verdict: str) -> None:
    found = compare(before, after, comparison)
    assert found.verdict == verdict
    assert bool(found.difference) == (verdict == "different")


@pytest.mark.parametrize(
    "before, after, comparison, difference",
    [
        (b"abcd", b"abxd", None, "from byte 3 on"),
        (b"ab", b"abc", None, "3 bytes instead of 2"),
        (b"a\nb", b"a\nc", TEXT, "line 2: 'c' instead of 'b'"),
        (b"a\nb", b"a", TEXT, "line 2 is missing: 'b'"),
        (b"a", b"a\nb", TEXT, "line 2 is new: 'b'"),
        (b"t 1.0", b"t 2.0", NUMBERS, "line 1: '2.0' instead of '1.0'"),
        (b"t 1.0", b"t", NUMBERS, "line 1: nothing instead of '1.0'"),
    ],
)
def test_the_first_difference_is_told(before: bytes, after: bytes, comparison: Comparison, difference: str) -> None:
    assert compare(before, after, comparison).difference == difference


def test_huge_lines_and_hostile_expressions_end() -> None:
    line = b"a" * 2_000_000
    slow = declared("text", ignore=("(a+)+$",))
    assert compare(line + b"\n1", line + b"b\n1", slow).verdict == "different"
    assert compare(b"1 " * 500_000, b"1.0 " * 500_000, NUMBERS).verdict == "equal"
    assert len(compare(line, line + b"b", TEXT).difference) < 200
    digits = b"7" * 1_000_000
    assert compare(digits, digits + b"7", declared("numbers", tolerance=1e9)).verdict == "different"


def test_the_first_declaration_that_fits_a_name_is_used() -> None:
    first = Comparison(files=("*.dat", "sums/*"), compared_as="numbers")
    second = Comparison(files=("*",), compared_as="text")
    chosen = [comparison_for(name, (first, second)) for name in ("a.dat", "deep/er/a.dat", "sums/a", "a/sums/b", "log")]
    assert chosen == [first, first, first, second, second]
    assert comparison_for("a.log", (first,)) is None


words = st.lists(
    st.one_of(
        st.floats().map(repr), st.integers().map(str), st.sampled_from(["x", ",", "1e999", "-nan", ".5", "3.d2"])
    ),
    max_size=6,
)
contents = st.one_of(st.binary(max_size=60), words.map(lambda found: " ".join(found).encode()))
comparisons = st.builds(
    Comparison,
    files=st.just(("*",)),
    compared_as=st.sampled_from(["numbers", "text", "identical"]),
    tolerance=st.sampled_from([0.0, 1e-9, 0.5, 1e300]),
    absolute_tolerance=st.sampled_from([0.0, 1e-9, 1e300]),
    ignore=st.sampled_from([(), ("^x",), ("[0-9]+",)]),
)


@given(contents, contents, comparisons)
def test_the_order_does_not_matter_and_the_same_bytes_are_identical(
    before: bytes, after: bytes, comparison: Comparison
) -> None:
    assert compare(before, after, comparison).verdict == compare(after, before, comparison).verdict
    assert compare(before, before, comparison).verdict == "identical"
    assert (compare(before, after, comparison).verdict == "identical") == (before == after)


@given(words, words, st.floats(0, 10), st.floats(0, 10))
def test_a_larger_tolerance_never_finds_more_differences(
    before: list[str], after: list[str], one: float, other: float
) -> None:
    texts = " ".join(before).encode(), " ".join(after).encode()
    small, large = (compare(*texts, declared("numbers", tolerance=each)).verdict for each in sorted((one, other)))
    assert small == "different" or large == small


@given(st.floats())
def test_every_number_is_read_as_python_writes_it(value: float) -> None:
    found = number_of(repr(value))
    assert found is not None
    assert found == value or (math.isnan(found) and math.isnan(value))
