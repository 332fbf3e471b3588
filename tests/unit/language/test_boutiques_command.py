from __future__ import annotations

from typing import Any

import pytest

from pilotage.language import boutiques
from pilotage.language.boutiques import command
from pilotage.language.text.tree import Report, tree_of


def tool(line: str, *inputs: dict[str, Any], **fields: Any) -> boutiques.Descriptor:
    """A descriptor whose inputs have the value keys [ID] and are optional."""
    listed = [
        {"name": "x", "type": "String", "optional": True, "value-key": f"[{input_['id'].upper()}]", **kebab(input_)}
        for input_ in inputs
    ]
    value = {"name": "t", "tool-version": "1", "description": "d", "schema-version": "0.5", "command-line": line}
    report = Report("descriptor.json")
    found = boutiques.read_descriptor(tree_of(value | {"inputs": listed} | kebab(fields)), report)
    assert found is not None, report.errors
    return found


def kebab(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in fields.items()}


A: dict[str, Any] = {"id": "a"}
FILE: dict[str, Any] = {"id": "a", "type": "File"}
NUMBER: dict[str, Any] = {"id": "a", "type": "Number"}
FLAG: dict[str, Any] = {"id": "a", "type": "Flag", "command_line_flag": "-a"}

# Each line is what bosh prints.
LINES = [
    ("t [A] end", A, "x", "t x end"),
    ("t [A] end", A, None, "t end"),
    ("t [A]end", A, None, "tend"),
    ("t-[A] end", A, None, "t- end"),
    ("t  [A] end", A, None, "t  end"),
    ("t [A] [A]", A, "x", "t x x"),
    ("t [A]", A, "it's; $HOME", "t 'it'\"'\"'s; $HOME'"),
    ("t [A]", A, "", "t ''"),
    ("t [A]", A, "é☃", "t 'é☃'"),
    ("t [A]", FILE, "a b/c", "t 'a b/c'"),
    ("t [A]", NUMBER, 1, "t 1"),
    ("t [A]", NUMBER, 1.0, "t 1.0"),
    ("t [A]", NUMBER, 1e-7, "t 1e-07"),
    ("t [A]", NUMBER, 10**30, "t 1000000000000000000000000000000"),
    ("t [A] end", FLAG, True, "t -a end"),
    ("t [A] end", FLAG, False, "t end"),
    ("t-[A] end", FLAG, False, "t-[A] end"),
    ("t [A]", {**A, "command_line_flag": "-a"}, "x y", "t -a 'x y'"),
    ("t [A]", {**A, "command_line_flag": "-a", "command_line_flag_separator": "="}, "x", "t -a=x"),
    ("t [A]", {**A, "list": True}, ["x y", "z"], "t 'x y' z"),
    ("t [A]", {**A, "list": True, "list_separator": ","}, ["x", "z"], "t x,z"),
    ("t [A] end", {**A, "list": True}, [], "t end"),
    ("t [A]", {**A, "list": True, "command_line_flag": "-a"}, [], "t -a "),
    ("t [A]", {**NUMBER, "list": True}, [1, 2.5], "t 1 2.5"),
    ("t [A]", {**A, "default_value": "d"}, None, "t d"),
    ("t [A]", {**A, "value_choices": [0, "x"]}, 0, "t 0"),  # bosh writes '' here, and fails on other numbers
]


@pytest.mark.parametrize("line, input_, value, expected", LINES)
def test_a_value_replaces_its_key(line: str, input_: dict[str, Any], value: Any, expected: str) -> None:
    assert boutiques.command_line(tool(line, input_), {} if value is None else {"a": value}) == expected


PATHS = [
    ("[A].txt", FILE, "dir/x.nii", {}, "dir/x.nii.txt"),
    ("out/[A].txt", FILE, "dir/x.nii", {}, "out/x.nii.txt"),
    ("out/[A].txt", A, "dir/x.nii", {}, "out/dir/x.nii.txt"),
    ("[A].txt", FILE, "x.nii.gz", {"path_template_stripped_extensions": [".nii", ".gz"]}, "x.txt"),
    ("[A] b.txt", A, "x", {}, "x b.txt"),
    ("[A].txt", A, None, {}, "[A].txt"),
    ("x/../[A]", A, "y", {"uses_absolute_path": True}, "/data/y"),
]


@pytest.mark.parametrize("template, input_, value, fields, expected", PATHS)
def test_the_path_of_an_output_follows_from_the_inputs(
    template: str, input_: dict[str, Any], value: Any, fields: dict[str, Any], expected: str
) -> None:
    output = {"id": "o", "name": "O", "path-template": template, **kebab(fields)}
    descriptor = tool("t [A]", input_, output_files=[output])
    values = {} if value is None else {"a": value}
    found = boutiques.output_paths(descriptor, values, directory="/data")
    assert found == (boutiques.OutputPath("o", expected, optional=False, is_list=False),)


def test_an_output_in_the_command_line_is_quoted_and_has_its_flag() -> None:
    output = {"id": "o", "name": "O", "path-template": "[A] *.txt", "value-key": "[O]", "command-line-flag": "-o"}
    descriptor = tool("t [A] [O]", A, output_files=[output])
    assert boutiques.command_line(descriptor, {"a": "x"}) == "t x -o 'x *.txt'"


def test_a_path_may_speak_of_an_output_further_down() -> None:
    outputs = [
        {"id": "log", "name": "L", "path-template": "[O].log"},
        {"id": "o", "name": "O", "path-template": "[A].txt", "value-key": "[O]"},
    ]
    descriptor = tool("t [A] [O]", A, output_files=outputs)
    assert [output.path for output in boutiques.output_paths(descriptor, {"a": "x"})] == ["x.txt.log", "x.txt"]


def test_the_first_condition_that_holds_gives_the_path() -> None:
    choices = [{"(n > 2) and f": "both"}, {"n>2": "many"}, {"default": "few"}]
    output = {"id": "o", "name": "O", "conditional-path-template": choices, "value-key": "[O]"}
    inputs = ({**NUMBER, "id": "n"}, {**FLAG, "id": "f"})
    descriptor = tool("t [N] [F] [O]", *inputs, output_files=[output])
    assert boutiques.command_line(descriptor, {"n": 3, "f": True}) == "t 3 -a both"
    assert boutiques.command_line(descriptor, {"n": 3}) == "t 3 many"
    assert boutiques.command_line(descriptor, {"n": 2}) == "t 2 few"
    assert boutiques.command_line(descriptor, {}) == "t few"


def test_an_output_whose_conditions_all_fail_is_not_in_the_command_line() -> None:
    outputs = [
        {"id": "p", "name": "P", "path-template": "p.txt"},
        {"id": "o", "name": "O", "optional": True, "conditional-path-template": [{"a == 1": "x"}], "value-key": "[O]"},
    ]
    descriptor = tool("t [A] [O]", NUMBER, output_files=outputs)
    assert boutiques.command_line(descriptor, {"a": 2}) == "t 2"
    assert boutiques.output_paths(descriptor, {"a": 2})[1].path is None


def test_a_condition_that_cannot_be_decided_refuses_the_invocation() -> None:
    output = {"id": "o", "name": "O", "optional": True, "conditional-path-template": [{"a > 2": "x"}]}
    report = Report("invocation.json")
    boutiques.check_invocation(tool("t [A]", A, output_files=[output]), {"a": "word"}, report)
    assert [problem.code for problem in report.errors] == ["bad-condition"]


def test_configuration_files_are_filled_and_lines_without_a_value_are_empty() -> None:
    output = {"id": "o", "name": "O", "path-template": "c.ini", "file-template": ["a=[A]", "b=[B]", "end"]}
    descriptor = tool("t", A, {"id": "b"}, output_files=[output])
    expected = (boutiques.ConfigurationFile("c.ini", "a='x y'\n\nend"),)
    assert boutiques.configuration_files(descriptor, {"a": "x y"}) == expected


def test_environment_variables_take_values_of_inputs() -> None:
    variables = [{"name": n, "value": v} for n, v in (("ONE", "[A]"), ("TWO", "[B]"), ("SAME", "x[A]"))]
    descriptor = tool("t", NUMBER, {"id": "b"}, environment_variables=variables)
    assert boutiques.environment(descriptor, {"a": 3}) == {"ONE": "3", "SAME": "x[A]"}


HOLDING = [
    ("n > 2", {"n": 3}, True),
    ("n>10", {"n": 5}, False),
    ("n == 2", {"n": "2"}, True),
    ("n == 2.5", {"n": 2.5}, True),
    ("n < -1", {"n": -2}, True),
    ("1 < n <= 3", {"n": 3}, True),
    ("n", {}, False),
    ("not n", {}, False),
    ("n == 'a (b'", {"n": "a (b"}, True),
    ("n == 'x'", {"n": 'x" or "'}, False),
    ("n == m or m != 2", {"n": 1, "m": 3}, True),
    ("n", {"n": False}, True),  # a flag is its text in a condition, as in bosh, and text is true
    ("'a' in n", {"n": "bar"}, True),
]


@pytest.mark.parametrize("text, values, expected", HOLDING)
def test_a_condition_holds_or_not(text: str, values: dict[str, Any], expected: object) -> None:
    assert command.parsed(text, {"n", "m"}).holds(values) is expected


HOSTILE = [
    "",
    "n >",
    "n = 2",
    "n > __import__('os')",
    "n.real > 1",
    "n ** 99999999 > 1",
    "[n for n in n]",
    "lambda: n",
    "n > None",
    "(" * 900 + "n" + ")" * 900,
    "n > 'x",
    "z == 1",
    "n" * 5000,
    "-" * 900 + "1 > n",
    "not " * 400 + "n",
    "n == b'x'",
    "n > 1 if n else 2",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_program_text_is_no_condition(text: str) -> None:
    with pytest.raises(command.ConditionError):
        command.parsed(text, {"n"})
