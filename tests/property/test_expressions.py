"""Expressions of users: what Python's own matcher says, in a time that it cannot promise."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pilotage.agent import expressions
from pilotage.agent.expressions import UnboundedExpression, compile_expression
from tests.kit.jobs import refused

ATOMS = st.sampled_from(
    [
        r"a",
        r"b",
        r".",
        r"[ab]",
        r"[^a]",
        r"\w",
        r"\d",
        r"\b",
        r"\B",
        r"^",
        r"$",
        r"\A",
        r"\Z",
        r"(a|b)",
        r"(?:ab|a)",
        r"(a*)",
        r"(|a)",
        r"(?i:A)",
        r"(?s:.)",
        r"(?m:^)",
        r"(?m:$)",
        r"(?a:\w)",
        r"\s",
        r"é",
        r"_",
        r"\n",
    ]
)
COUNTS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?", "+?", "{2,}"])
PIECES = st.tuples(ATOMS, COUNTS).map("".join)
EXPRESSIONS = st.recursive(
    st.lists(PIECES, min_size=1, max_size=4).map("".join),
    lambda inner: st.tuples(inner, COUNTS, PIECES).map(lambda parts: f"({parts[0]}){parts[1]}{parts[2]}"),
    max_leaves=3,
)


@given(EXPRESSIONS, st.text("abA1_ \né", max_size=8))
def test_the_automaton_says_what_python_says(expression: str, text: str) -> None:
    try:
        compiled = re.compile(expression)
    except re.error:
        assume(condition=False)  # nothing to repeat
    tree = vars(expressions)["_sre_parse"].parse(expression)
    try:
        automaton = expressions._Automaton(tree, tree.state.flags)
    except UnboundedExpression:
        assume(condition=False)  # `a++` is possessive for this Python
    for _ in range(2):  # the second time from what was learnt
        assert automaton.search(text) == (compiled.search(text) is not None)
        assert automaton.fullmatch(text) == (compiled.fullmatch(text) is not None)


@pytest.mark.parametrize(
    "expression", ["(a+)+$", "(a|aa)+$", "(a|a?)+a$", "(.*a){25}$", "(a?){40}a{40}$", "a*a*a*a*a*a*a*a*a$", "(a*)*b|c$"]
)
def test_an_expression_that_is_tried_for_ever_elsewhere_ends(expression: str) -> None:
    compiled = compile_expression(expression)
    text = "a" * 20_000 + "!"
    assert not compiled.search(text)
    assert not compiled.fullmatch(text)


@pytest.mark.parametrize(
    "expression", ["ERROR", "out of memory|OOM", r"\bNaN\b", "ERROR(?! ignored)", r"(.)\1", "colou?r"]
)
def test_an_expression_that_can_be_tried_in_few_ways_is_left_to_python(expression: str) -> None:
    assert inspect.isbuiltin(compile_expression(expression).search)


@pytest.mark.parametrize("expression", [r"(a+)\1+$", "^(?!.*fine).*ERROR", "((a{99}){99}){99}"])
def test_what_no_automaton_can_do_is_refused_by_name(expression: str) -> None:
    with pytest.raises(UnboundedExpression):
        compile_expression(expression)
    stage = f"stages:\n  - run: x\n    failure_patterns: [{{pattern: '{expression}'}}]\n"
    (fault,) = refused(stage)
    assert (fault.code, fault.line) == ("bad-expression", 5)
    assert "could take forever" in fault.message
