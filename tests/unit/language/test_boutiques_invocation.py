from __future__ import annotations

from typing import Any

import pytest

from pilotage.language import boutiques
from pilotage.language.text.tree import Report, tree_of


def tool(*inputs: dict[str, Any], **fields: Any) -> boutiques.Descriptor:
    """A descriptor with these inputs, each optional and of type String unless it says otherwise."""
    listed = [{"name": "x", "type": "String", "optional": True, **kebab(input_)} for input_ in inputs]
    report = Report("descriptor.json")
    value = {"name": "t", "tool-version": "1", "description": "d", "schema-version": "0.5", "command-line": "t"}
    found = boutiques.read_descriptor(tree_of(value | {"inputs": listed} | kebab(fields)), report)
    assert found is not None, report.errors
    return found


def kebab(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in fields.items()}


def group(*members: str, **rules: Any) -> dict[str, Any]:
    return {"id": "g", "name": "G", "members": list(members), **kebab(rules)}


def check(descriptor: boutiques.Descriptor, **values: Any) -> Report:
    report = Report("invocation.json")
    boutiques.check_invocation(descriptor, boutiques.read_invocation(tree_of(values), report), report)
    return report


def codes(report: Report) -> list[str]:
    return [problem.code for problem in report.errors]


A, B, C = {"id": "a"}, {"id": "b"}, {"id": "c"}
FLAG = {"id": "f", "type": "Flag", "command_line_flag": "-f"}
NUMBER = {"id": "n", "type": "Number"}


VALUES = [
    (A, "text", []),
    (A, 3, ["wrong-type"]),
    (A, None, ["wrong-type"]),
    (A, ["x"], ["wrong-type"]),
    ({**A, "type": "File"}, 3, ["wrong-type"]),
    (FLAG, False, []),
    (FLAG, 0, ["wrong-type"]),
    (NUMBER, 1.5, []),
    (NUMBER, "1", ["wrong-type"]),
    (NUMBER, True, ["wrong-type"]),
    ({**NUMBER, "integer": True}, 1, []),
    ({**NUMBER, "integer": True}, 1.0, ["wrong-type"]),
    ({**NUMBER, "minimum": 2}, 2, []),
    ({**NUMBER, "minimum": 2}, 1.9, ["out-of-range"]),
    ({**NUMBER, "minimum": 2, "exclusive_minimum": True}, 2, ["out-of-range"]),
    ({**NUMBER, "maximum": 2}, 2, []),
    ({**NUMBER, "maximum": 2}, 3, ["out-of-range"]),
    ({**NUMBER, "maximum": 2, "exclusive_maximum": True}, 2.0, ["out-of-range"]),
    ({**A, "value_choices": ["x", "y"]}, "y", []),
    ({**A, "value_choices": ["x", "y"]}, "z", ["not-a-choice"]),
    ({**NUMBER, "value_choices": [1, 2]}, 1.0, []),
    ({**NUMBER, "value_choices": [1, 2], "minimum": 2}, 1, ["out-of-range"]),
    ({**A, "list": True}, ["x", "y"], []),
    ({**A, "list": True}, "x", ["wrong-type"]),
    ({**A, "list": True}, ["x", 3], ["wrong-type"]),
    ({**A, "list": True, "min_list_entries": 2}, ["x"], ["list-length"]),
    ({**A, "list": True, "max_list_entries": 1}, ["x", "y"], ["list-length"]),
    ({**A, "list": True, "max_list_entries": 0}, ["x", "y"], []),
]


@pytest.mark.parametrize("input_, value, expected", VALUES)
def test_a_value_must_be_what_its_input_takes(input_: dict[str, Any], value: Any, expected: list[str]) -> None:
    assert codes(check(tool(input_), **{input_["id"]: value})) == expected


def test_an_input_that_is_not_optional_must_be_given() -> None:
    assert codes(check(tool({**A, "optional": False}))) == ["missing-input"]


def test_a_default_stands_in_for_what_is_left_out_or_null() -> None:
    descriptor = tool({**A, "optional": False, "default_value": "x"})
    assert codes(check(descriptor)) == []
    assert codes(check(descriptor, a=None)) == []


def test_a_default_of_the_wrong_type_is_refused_when_it_is_used() -> None:
    descriptor = tool({**A, "default_value": 3})
    assert codes(check(descriptor)) == ["wrong-type"]
    assert codes(check(descriptor, a="x")) == []


def test_an_unknown_input_is_refused_with_a_near_name() -> None:
    report = check(tool({"id": "infile"}), infiel="x")
    assert codes(report) == ["unknown-input"]
    assert report.errors[0].hint == "did you mean 'infile'?"


DEPENDENCIES = [
    ((A, {**B, "requires_inputs": ["a"]}), {"b": "x"}, ["requires-input"]),
    ((A, {**B, "requires_inputs": ["a"]}), {"a": "x", "b": "x"}, []),
    ((FLAG, {**B, "requires_inputs": ["f"]}), {"b": "x", "f": False}, ["requires-input"]),
    ((A, {**FLAG, "requires_inputs": ["a"]}), {"f": True}, ["requires-input"]),
    ((A, {**FLAG, "requires_inputs": ["a"]}), {"f": False}, []),
    ((A, {**B, "disables_inputs": ["a"]}), {"a": "x", "b": "x"}, ["disables-input"]),
    ((FLAG, {**B, "disables_inputs": ["f"]}), {"b": "x", "f": False}, []),
    ((FLAG, {**B, "disables_inputs": ["f"]}), {"b": "x", "f": True}, ["disables-input"]),
]


@pytest.mark.parametrize("inputs, values, expected", DEPENDENCIES)
def test_inputs_require_and_disable_each_other(inputs: Any, values: Any, expected: list[str]) -> None:
    assert codes(check(tool(*inputs), **values)) == expected


GROUPS = [
    (group("a", "b", mutually_exclusive=True), {"a": "x", "b": "x"}, ["mutually-exclusive"]),
    (group("a", "b", mutually_exclusive=True), {"a": "x"}, []),
    (group("a", "f", mutually_exclusive=True), {"a": "x", "f": False}, []),
    # bosh asks whether the rule is there, not what it says
    (group("a", "b", mutually_exclusive=False), {"a": "x", "b": "x"}, ["mutually-exclusive"]),
    (group("a", "b", one_is_required=True), {"c": "x"}, ["one-is-required"]),
    (group("a", "b", one_is_required=True), {"b": "x"}, []),
    (group("a", "f", one_is_required=True), {"f": False}, ["one-is-required"]),
    (group("a", "f", one_is_required=True), {}, ["one-is-required"]),
]


@pytest.mark.parametrize("rule, values, expected", GROUPS)
def test_groups_decide_which_inputs_go_together(rule: Any, values: Any, expected: list[str]) -> None:
    assert codes(check(tool(A, B, C, FLAG, groups=[rule]), **values)) == expected


def test_an_input_can_require_one_of_a_group() -> None:
    descriptor = tool(A, B, {**C, "requires_inputs": ["g"]}, groups=[group("a", "b")])
    assert codes(check(descriptor, c="x")) == ["requires-input"]
    assert codes(check(descriptor, c="x", b="x")) == []


def test_rules_that_bosh_does_not_enforce_are_warned_of() -> None:
    chooser = {**C, "value_choices": ["x"], "value_requires": {"x": ["a"]}, "value_disables": {"x": ["b"]}}
    report = check(tool(A, B, chooser, FLAG, groups=[group("b", "f", all_or_none=True)]), b="x", c="x")
    assert codes(report) == []
    assert [problem.code for problem in report.warnings] == ["all-or-none", "value-requires", "value-disables"]


def test_all_refusals_are_told_at_once_with_their_places() -> None:
    descriptor = tool({**A, "optional": False}, NUMBER, {**B, "value_choices": ["x"]})
    text = '{\n  "n": "1",\n  "b": "y",\n  "zz": 1\n}'
    report = Report("invocation.json", text.splitlines())
    boutiques.check_invocation(descriptor, boutiques.parse_invocation(text, report), report)
    found = [(problem.line, problem.column, problem.code) for problem in report.errors]
    assert sorted(found) == [
        (0, 0, "missing-input"),
        (2, 8, "wrong-type"),
        (3, 8, "not-a-choice"),
        (4, 9, "unknown-input"),
    ]


@pytest.mark.parametrize("value", [[], "text", 3, None])
def test_an_invocation_is_an_object(value: Any) -> None:
    report = Report("invocation.json")
    assert boutiques.read_invocation(tree_of(value), report) == {}
    assert codes(report) == ["wrong-type"]


SCHEMAS = [
    ({"type": "object", "required": ["a"]}, ["invocation-schema"]),
    ({"properties": {"b": {"enum": ["y"]}}}, ["invocation-schema"]),
    ({"properties": {"b": {"type": "string", "minLength": 1}}}, []),
    ({"$ref": "#/definitions/x"}, ["bad-invocation-schema"]),
    ({"properties": 3}, ["bad-invocation-schema"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, ["bad-invocation-schema"]),
]


@pytest.mark.parametrize("schema, expected", SCHEMAS)
def test_a_descriptor_may_bring_its_own_schema_of_invocations(schema: Any, expected: list[str]) -> None:
    assert codes(check(tool(A, B, invocation_schema=schema), b="x")) == expected
