"""The one-line bugs that `make mutate` makes of a module."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.operators import mutations_of


def mutants(source: str) -> list[str]:
    return [each.apply(source.encode()).decode() for each in mutations_of("some.py", source.encode())]


@pytest.mark.parametrize(
    "source, mutant",
    [
        ("a < b", "a <= b"),
        ("a is not b", "a is b"),
        ("a not in b", "a in b"),
        ("a and b", "a or b"),
        ("(a) + (b)", "(a) - (b)"),
        ("not a", "(a)"),
        ("x = True", "x = False"),
        ("x = 3", "x = 4"),
        ("x = a if b else c", "x = a if not (b) else c"),
        ("while a():\n    pass", "while not (a()):\n    pass"),
        ("def f():\n    return a", "def f():\n    return None"),
        ("for a in b:\n    break", "for a in b:\n    continue"),
        ("for a in b:\n    continue", "for a in b:\n    pass"),
        ("a.remove(b)", "pass"),
        ("a += b", "pass"),
        ("a.b = c", "pass"),
        ("raise Wrong(1 + 2)", "pass"),
        ("x = 'ü' < b", "x = 'ü' <= b"),
    ],
)
def test_a_bug_is_made_of_one_place(source: str, mutant: str) -> None:
    assert mutant in mutants(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Only words, 1 < 2."""',
        "def f(a: int | None) -> list[int]:\n    pass",
        "@cached(3)\ndef f():\n    pass",
        "if TYPE_CHECKING:\n    a = 1",
        "logger.info('%d', 1 + 2)",
        "def f():\n    return None",
        "x = 'a' + 'b'",
        "class A(B, gc=False):\n    pass",
    ],
)
def test_what_nobody_could_notice_is_left_alone(source: str) -> None:
    assert mutants(source) == []


def test_the_words_of_an_error_are_no_bug_of_their_own() -> None:
    assert mutants("raise Wrong(1 + 2, a and b)") == ["pass"]


def test_every_bug_is_a_program() -> None:
    source = "def f(a, b):\n    if (a\n        and not b):\n        return (a + 1,\n                b)\n    return a == b < 3\n"
    found = mutants(source)
    for each in found:
        ast.parse(each)
    assert len(found) == len(set(found)) == 10
