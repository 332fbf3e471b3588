from __future__ import annotations

import json
from typing import Any

import pytest

from pilotage.language import boutiques
from pilotage.language.text.tree import Report, tree_of


def descriptor(**changes: Any) -> dict[str, Any]:
    """A small descriptor that is accepted, with fields replaced, or left out where None is given."""
    whole = {
        "name": "tool",
        "tool-version": "1.2",
        "description": "a tool",
        "schema-version": "0.5",
        "command-line": "tool [A] [B] [OUT]",
        "inputs": [
            {"id": "a", "name": "A", "type": "String", "value-key": "[A]"},
            {"id": "b", "name": "B", "type": "Number", "value-key": "[B]", "optional": True},
        ],
        "output-files": [{"id": "out", "name": "Out", "path-template": "[A].txt", "value-key": "[OUT]"}],
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in whole.items() if value is not None}


def with_input(**fields: Any) -> dict[str, Any]:
    """The small descriptor with one more input, an optional one unless said otherwise."""
    base = {"id": "c", "name": "C", "type": "String", "optional": True}
    more = base | {name.replace("_", "-"): value for name, value in fields.items()}
    return descriptor(inputs=[*descriptor()["inputs"], more])


def with_output(**fields: Any) -> dict[str, Any]:
    """The small descriptor with one more output."""
    more = {"id": "log", "name": "Log"} | {name.replace("_", "-"): value for name, value in fields.items()}
    return descriptor(output_files=[*descriptor()["output-files"], more])


def with_group(members: list[str], **fields: Any) -> dict[str, Any]:
    """The small descriptor with a group."""
    more = {name.replace("_", "-"): value for name, value in fields.items()}
    return descriptor(groups=[{"id": "g", "name": "G", "members": members} | more])


def codes(value: Any) -> set[str]:
    report = Report("descriptor.json")
    found = boutiques.read_descriptor(tree_of(value), report)
    assert (found is None) == bool(report.errors)
    return {problem.code for problem in report.errors}


def test_a_descriptor_is_a_value_with_its_fields() -> None:
    report = Report("descriptor.json")
    tool = boutiques.read_descriptor(
        tree_of(
            descriptor(
                container_image={"type": "docker", "image": "tool:1.2"},
                environment_variables=[{"name": "MODE", "value": "fast"}],
                suggested_resources={"cpu-cores": 2, "ram": 1.5, "walltime-estimate": 60},
                error_codes=[{"code": 3, "description": "no memory"}],
                shell="/bin/bash",
            )
        ),
        report,
    )
    assert tool is not None
    assert (tool.name, tool.version, tool.shell) == ("tool", "1.2", "/bin/bash")
    assert [input_.type for input_ in tool.inputs] == ["String", "Number"]
    assert tool.outputs[0].path_template == "[A].txt"
    assert tool.container_image is not None
    assert tool.container_image.image == "tool:1.2"
    assert tool.suggested_resources == boutiques.Resources(cpu_cores=2, ram=1.5, walltime_seconds=60)
    assert tool.error_codes == (boutiques.ErrorCode(3, "no memory"),)
    assert tool.environment_variables == (boutiques.EnvironmentVariable("MODE", "fast"),)


SHAPE = [
    ([], "wrong-type"),
    ("text", "wrong-type"),
    (None, "wrong-type"),
    (descriptor(name=None), "missing-field"),
    (descriptor(inputs=None), "missing-field"),
    (descriptor(nmae="x"), "unknown-field"),
    (descriptor(name=""), "empty-value"),
    (descriptor(name=3), "wrong-type"),
    (descriptor(tool_version=1.2), "wrong-type"),
    (descriptor(schema_version="0.4"), "unknown-choice"),
    (descriptor(inputs=[]), "empty-value"),
    (descriptor(inputs={}), "wrong-type"),
    (descriptor(output_files=[]), "empty-value"),
    (descriptor(inputs=[*descriptor()["inputs"], *descriptor()["inputs"]]), "duplicate-item"),
    (descriptor(online_platform_urls=["ftp://x"]), "bad-pattern"),
    (descriptor(environment_variables=[{"name": "2X", "value": ""}]), "bad-pattern"),
    (descriptor(error_codes=[{"code": 1.0, "description": ""}]), "wrong-type"),
    (descriptor(suggested_resources={"cpu-cores": 0}), "out-of-range"),
    (descriptor(tags={"domain": 3}), "wrong-type"),
    (descriptor(deprecated_by_doi=3), "wrong-type"),
    (descriptor(container_image={"type": "docker"}), "missing-field"),
    (descriptor(container_image={"type": "vm", "image": "x"}), "unknown-choice"),
    (descriptor(container_image={"type": "rootfs", "url": "x", "image": "y"}), "unknown-field"),
    (with_input(id="a b"), "bad-pattern"),
    (with_input(type="Integer"), "unknown-choice"),
    (with_input(list_separator=","), "field-needs-field"),
    (with_input(command_line_flag_separator="="), "field-needs-field"),
    (with_input(exclusive_minimum=True), "field-needs-field"),
    (with_input(value_requires={}), "field-needs-field"),
    (with_input(integer=True), "field-not-for-type"),
    (with_input(type="File", value_choices=["x"]), "field-not-for-type"),
    (with_input(uses_absolute_path=True), "field-not-for-type"),
    (with_input(type="Flag", command_line_flag="-c", list=True), "field-not-for-type"),
    (with_input(value_choices=[True]), "wrong-type"),
    (with_output(), "path-template-choice"),
    (with_output(path_template="x", conditional_path_template=[{"default": "x"}]), "path-template-choice"),
    (with_output(path_template="x", file_template=[]), "empty-value"),
    (with_output(path_template="x", file_template=["x"], list=True), "file-template-list"),
    (with_output(conditional_path_template=[{}]), "wrong-type"),
    (descriptor(tests=[{"name": "t", "invocation": {}, "assertions": {}}]), "missing-field"),
]


@pytest.mark.parametrize("value, code", SHAPE)
def test_what_the_schema_forbids_is_refused(value: Any, code: str) -> None:
    assert codes(value) == {code}


def asserting(*outputs: str) -> dict[str, Any]:
    return {"name": "t", "invocation": {}, "assertions": {"output-files": [{"id": id_} for id_ in outputs]}}


def sharing(*members: str, exclusive: bool) -> dict[str, Any]:
    """Inputs b and c share a key; some inputs are a group."""
    group = {"id": "g", "name": "G", "members": list(members), "mutually-exclusive": exclusive}
    inputs = [each | {"optional": True} for each in with_input(value_key="[B]")["inputs"]]
    return descriptor(inputs=inputs, groups=[group])


def test_inputs_share_a_key_where_the_group_of_exactly_these_is_exclusive() -> None:
    assert "value-key-shared" not in codes(sharing("b", "c", exclusive=True))
    assert "value-key-shared" in codes(sharing("b", "c", exclusive=False))
    assert "value-key-shared" not in codes(sharing("a", "b", exclusive=False))  # bosh looks at no other group


RULES = [
    (with_input(value_key="[C]"), "value-key-unused"),
    (with_input(value_key="A"), "value-key-overlap"),
    (with_input(value_key=""), "empty-value"),
    (with_input(value_key="[B]"), "value-key-shared"),
    (with_input(id="out"), "duplicate-id"),
    (with_input(type="Flag"), "flag-without-flag"),
    (with_input(type="Flag", command_line_flag="-c", optional=False), "flag-not-optional"),
    (with_input(type="Number", minimum=2, maximum=1), "empty-range"),
    (with_input(value_choices=[]), "no-choices"),
    (with_input(value_choices=["x"], default_value="y"), "default-not-a-choice"),
    (with_input(value_choices=["x"], default_value=None), "default-not-a-choice"),
    (with_input(value_choices=["x", "x"]), "duplicate-item"),
    (with_input(list=True, min_list_entries=3, max_list_entries=2), "list-bounds"),
    (with_input(list=True, max_list_entries=-1), "list-bounds"),
    (with_input(list=True, min_list_entries=1.5), "list-bounds"),
    (with_input(requires_inputs=["z"]), "unknown-input"),
    (with_input(disables_inputs=["z"]), "unknown-input"),
    (with_input(requires_inputs=["b"], disables_inputs=["b"]), "requires-and-disables"),
    (with_input(disables_inputs=["a"]), "disables-required"),
    (with_input(requires_inputs=["b"], optional=False), "required-input-depends"),
    (with_input(value_choices=["x", "y"], value_requires={"x": ["b"]}), "choice-rules-mismatch"),
    (with_input(value_choices=["x"], value_disables={"x": ["z"]}), "unknown-input"),
    (with_input(value_choices=["x"], value_disables={"x": ["a"]}), "choice-rule-on-required"),
    (
        with_input(value_choices=["x"], value_disables={"x": ["b"]}, value_requires={"x": ["b"]}),
        "requires-and-disables",
    ),
    (with_group(["z"]), "unknown-input"),
    (with_group(["b", "b"]), "duplicate-member"),
    (with_group(["a", "b"], mutually_exclusive=True), "group-required-member"),
    (with_group(["a"], one_is_required=True), "group-required-member"),
    (with_group(["a"], all_or_none=True), "group-required-member"),
    (with_group([], one_is_required=True), "empty-value"),
    (with_group(["b"], all_or_none=True, one_is_required=True), "group-conflict"),
    (with_output(path_template="[A].txt"), "duplicate-path-template"),
    (with_output(conditional_path_template=[{"b > 2": "x"}]), "condition-default"),
    (with_output(conditional_path_template=[{"default": "x"}, {"default": "y"}]), "condition-default"),
    (with_output(conditional_path_template=[{"z > 2": "x"}, {"default": "y"}]), "condition-unknown-name"),
    (with_output(conditional_path_template=[{"b > 'x'": "x"}, {"default": "y"}]), "bad-condition"),
    (with_output(conditional_path_template=[{"b >": "x"}, {"default": "y"}]), "bad-condition"),
    (descriptor(tests=[asserting("nowhere")]), "unknown-output"),
    (descriptor(tests=[asserting("out", "out")]), "duplicate-test-output"),
    (descriptor(tests=[asserting("out"), asserting("out")]), "duplicate-test"),
    (
        descriptor(container_image={"type": "docker", "image": "docker://x", "index": "shub://"}),
        "container-index-mismatch",
    ),
]


@pytest.mark.parametrize("value, code", RULES)
def test_parts_that_contradict_each_other_are_refused(value: Any, code: str) -> None:
    assert codes(value) == {code}


ACCEPTED = [
    descriptor(),
    with_group(["b"], mutually_exclusive=True, one_is_required=True),
    with_input(list=True, max_list_entries=0),
    with_input(type="Number", value_choices=[], default_value=3),
    with_output(conditional_path_template=[{"b > 2": "x"}], optional=True),
    descriptor(container_image={"type": "rootfs", "url": "http://example.org/image"}),
    descriptor(invocation_schema={"type": "object"}, tags={"domain": ["mri"]}, custom={"x": 1}, deprecated_by_doi=True),
]


@pytest.mark.parametrize("value", ACCEPTED)
def test_what_the_schema_and_the_rules_allow_is_accepted(value: Any) -> None:
    assert codes(value) == set()


def test_every_fault_is_told_at_once_with_its_place() -> None:
    text = '{\n  "name": "",\n  "tool-version": 1,\n\t"descripton": "x",\n  "inputs": [{"id": "a"}]\n}'
    report = Report("descriptor.json", text.splitlines())
    assert boutiques.parse_descriptor(text, report) is None
    assert [(p.line, p.column, p.code) for p in report.errors] == [
        (2, 11, "empty-value"),
        (3, 19, "wrong-type"),
        (4, 2, "unknown-field"),
        (1, 1, "missing-field"),
        (1, 1, "missing-field"),
        (1, 1, "missing-field"),
        (5, 14, "missing-field"),
        (5, 14, "missing-field"),
    ]
    assert report.errors[2].hint == "did you mean 'description'?"


TEXTS = [
    ("", "not-json", 1, 1),
    ("{", "not-json", 1, 2),
    ('{"a": 1,\n"b"}', "not-json", 2, 4),
    ('{"a" 1}', "not-json", 1, 6),
    ("[1 2]", "not-json", 1, 4),
    ("[010]", "not-json", 1, 3),
    ("[NaN]", "not-json", 1, 2),
    ('["NaN",\n -Infinity]', "not-json", 2, 2),
    ('{"a": 1, "b": "x\\ud800"}', "not-json", 1, 15),
    ("[1] x", "not-json", 1, 5),
    ('["\\q"]', "not-json", 1, 3),
    ('["a\nb"]', "not-json", 1, 4),
    ('\ufeff{"a": 1}', "not-json", 1, 1),
    ('{"a": 1, "a": 2}', "duplicate-key", 1, 10),
    ("[" * 200 + "]" * 200, "too-deep", 1, 65),
]


@pytest.mark.parametrize("text, code, line, column", TEXTS)
def test_text_that_is_no_json_is_refused_with_its_place(text: str, code: str, line: int, column: int) -> None:
    report = Report("descriptor.json")
    boutiques.read_json(text, report)
    assert [(p.code, p.line, p.column) for p in report.errors] == [(code, line, column)]


@pytest.mark.parametrize(
    "text, code",
    [
        ('{"a": "\\u0000"}', "nul-character"),
        ('{"a": "\\ud800"}', "not-json"),
        ('{"a": 1e999}', "number-too-large"),
        ('{"a": ' + "9" * 5000 + "}", "number-too-large"),
    ],
)
def test_values_that_no_command_can_carry_are_refused(text: str, code: str) -> None:
    report = Report("invocation.json")
    boutiques.parse_invocation(text, report)
    assert [problem.code for problem in report.errors] == [code]


def test_thousands_of_faults_and_names_are_told_without_looking_for_near_ones_for_each() -> None:
    many = [{"id": f"i{n}", "name": "x", "type": "String", "optional": True} for n in range(3000)]
    value = descriptor(inputs=many, output_files=None, command_line="x")
    value["groups"] = [{"id": "g", "name": "g", "members": [f"j{n}" for n in range(3000)]}]
    report = Report("descriptor.json")
    assert boutiques.parse_descriptor(json.dumps(value), report) is None
    assert len(report.errors) == 3000
