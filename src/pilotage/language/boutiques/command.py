"""Makes the command line, output paths, configuration files and environment of a tool from its descriptor and inputs.

As in bosh, value keys are substituted one after the other in the order of the descriptor, inputs first; the result is a
shell command. Call `check_invocation` first: nothing is checked here.
"""

from __future__ import annotations

import ast
import keyword
import operator
import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from pilotage.language.boutiques.descriptor import Descriptor, Input, Output
from pilotage.language.boutiques.values import Value

# The conditions of `conditional-path-template`: a small boolean language over the values of inputs and outputs.
#
# Boutiques writes them in "limited Python syntax" and lets the interpreter evaluate them. Here they are parsed, and only
# comparisons, `and`, `or`, `not` and literals are evaluated.

DEFAULT = "default"
LENGTH_MAX = 2000  # far longer than real conditions, and short enough for Python's parser
DEPTH_MAX = 50

_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[=!<>]=|[=!<>()]|[^\s=!<>()'"]+|['"]""")
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: operator.contains(other, one),
    ast.NotIn: lambda one, other: not operator.contains(other, one),
}


class ConditionError(Exception):
    """A condition that cannot be parsed or evaluated; the text says why."""


class Condition(msgspec.Struct, frozen=True):
    """A parsed condition, with a valid Python name in place of each id."""

    expression: ast.expr
    stand_ins: dict[str, str]  # stand-in name -> id

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether the condition is true; false if one of its ids has no value, as in Boutiques."""
        if any(values.get(id_) is None for id_ in self.stand_ins.values()):
            return False
        operands = {name: _operand(values[id_]) for name, id_ in self.stand_ins.items()}
        return bool(_evaluated(self.expression, operands))


def parsed(text: str, ids: Collection[str]) -> Condition:
    """Parse a condition; raises `ConditionError` if it is invalid."""
    if len(text) > LENGTH_MAX:
        raise ConditionError(f"it is longer than {LENGTH_MAX} characters")
    prefix = "id"
    while prefix in text:
        prefix += "_id"
    stand_ins: dict[str, str] = {}
    words: list[str] = []
    for token in _TOKEN.findall(text):
        if token in ids:
            name = f"{prefix}{len(stand_ins)}"
            stand_ins[name] = token
            words.append(name)
        else:
            words.append(token)
    try:
        expression = ast.parse(" ".join(words), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as fault:
        reason = fault.msg if isinstance(fault, SyntaxError) else "it is nested too deeply"
        raise ConditionError(f"it cannot be read: {reason}") from None
    _check_nodes(expression, stand_ins)
    return Condition(expression, stand_ins)


def _check_nodes(expression: ast.expr, stand_ins: Mapping[str, str]) -> None:
    level: list[ast.AST] = [expression]
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise ConditionError("it is nested too deeply")
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id not in stand_ins:
            raise ConditionError(f"{node.id!r} is not the id of an input or an output")
        if isinstance(node, ast.Constant) and not isinstance(node.value, (str, int, float, bool)):
            raise ConditionError(f"{node.value!r} is not text, a number, True or False")
        if isinstance(node, ast.Compare) and not all(type(sign) in _COMPARISONS for sign in node.ops):
            raise ConditionError("the only comparisons are ==, !=, <, <=, >, >=, in and not in")
        if not isinstance(node, _ALLOWED):
            raise ConditionError("only comparisons, and, or, not, text and numbers are allowed")


_ALLOWED = (
    ast.BoolOp,
    ast.boolop,
    ast.Compare,
    ast.cmpop,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.Name,
    ast.Load,
    ast.Constant,
)


def _operand(value: Value) -> object:
    """A value as Boutiques uses it in a condition: a number if it looks like one, otherwise its text."""
    text = str(value)
    if _NUMBER.fullmatch(text):
        return value if isinstance(value, (int, float)) else float(text) if "." in text else int(text)
    return text


def _evaluated(node: ast.expr, operands: Mapping[str, object]) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return operands[node.id]
    if isinstance(node, ast.BoolOp):
        wanted = isinstance(node.op, ast.Or)
        value: object = not wanted
        for part in node.values:
            value = _evaluated(part, operands)
            if bool(value) == wanted:
                break
        return value
    if isinstance(node, ast.UnaryOp):
        value = _evaluated(node.operand, operands)
        if isinstance(node.op, ast.Not):
            return not value
        if not isinstance(value, (int, float)):
            raise ConditionError(f"{value!r} cannot be negated")
        return -value
    if isinstance(node, ast.Compare):
        return _compared(node, operands)
    raise ConditionError("only comparisons, and, or, not, text and numbers are allowed")


def _compared(node: ast.Compare, operands: Mapping[str, object]) -> bool:
    left = _evaluated(node.left, operands)
    for sign, part in zip(node.ops, node.comparators, strict=True):
        right = _evaluated(part, operands)
        try:
            true = _COMPARISONS[type(sign)](left, right)
        except TypeError:
            raise ConditionError(f"{left!r} and {right!r} cannot be compared") from None
        if not true:
            return False
        left = right
    return True


def unknown_names(text: str, ids: Collection[str]) -> list[str]:
    """The words of a condition that are neither ids nor literals nor keywords."""
    return [token for token in _TOKEN.findall(text) if _is_name(token) and token not in ids]


_TYPES = frozenset({"String", "File", "Flag", "Number"})


def types_agree(text: str, types: Mapping[str, str]) -> bool:
    """Whether Boutiques' own type check passes: equal types in each comparison, truth values around each `and`.

    As there, only ids of letters and digits are looked up: an id with an underscore counts as text.
    """
    return _agrees([types.get(token, token) if _is_name(token) else token for token in _TOKEN.findall(text)])


def _is_name(token: str) -> bool:
    return token.isalnum() and not token.isdigit() and not keyword.iskeyword(token)


def _agrees(tokens: list[str]) -> bool:
    """The check on one level; parentheses that pass the check count as True.

    As in Boutiques, only the part after the innermost opening parenthesis is checked.
    """
    depth = start = 0
    words: list[str] = []
    for index, token in enumerate(tokens):
        if token == "(":
            depth += 1
            start = index + 1
        elif token == ")":
            depth -= 1
            if depth == 0:
                if not _agrees(tokens[start:index]):
                    return False
                words.append("True")
        elif depth == 0:
            words.append(token)
    return all(_neighbours_agree(words, index) for index in range(len(words)))


def _neighbours_agree(words: list[str], index: int) -> bool:
    word = words[index]
    if keyword.iskeyword(word) and word.lower() not in {"and", "or", "true", "false"}:
        return False
    if word not in {"==", "!=", "<", ">", "<=", ">="} and word.lower() not in {"and", "or"}:
        return True
    if index + 1 >= len(words):
        return False
    before, after = words[index - 1], words[index + 1]
    if word.lower() in {"and", "or"}:
        return all(side in _TYPES or side in {"True", "False"} for side in (before, after))
    return _type_of(before) == _type_of(after)


def _type_of(word: str) -> str:
    if word in _TYPES:
        return word if word != "File" else "String"
    if re.fullmatch(r"[0-9]*\.?[0-9]+", word):
        return "Number"
    return "Flag" if word in {"True", "False", "true", "false"} else "String"


class OutputPath(msgspec.Struct, frozen=True):
    """The path of an output, or a pattern with wildcards; None if none of its conditions holds."""

    id: str
    path: str | None
    optional: bool
    is_list: bool


class ConfigurationFile(msgspec.Struct, frozen=True):
    """A file that must exist before the tool starts, made from a `file-template`."""

    path: str
    text: str


class _Purpose(Enum):
    """The use of a template, which decides about flags, quotes and keys without a value."""

    COMMAND = "command line"
    PATH = "path of an output"
    CONFIGURATION = "line of a configuration file"


def completed(descriptor: Descriptor, invocation: Mapping[str, Value]) -> dict[str, Value]:
    """The invocation with defaults for inputs that are missing or null."""
    values = dict(invocation)
    for input_ in descriptor.inputs:
        if input_.default_value is not None and values.get(input_.id) is None:
            values[input_.id] = input_.default_value
    return values


def command_line(descriptor: Descriptor, invocation: Mapping[str, Value], *, directory: str = ".") -> str:
    """The command line that `bosh exec simulate` prints; `directory` is the folder for outputs with absolute paths."""
    values = completed(descriptor, invocation)
    names = _output_names(descriptor, values, directory=directory, faults=[])
    return _Filler(descriptor, values, names).filled(descriptor.command_line, _Purpose.COMMAND)


def output_paths(
    descriptor: Descriptor, invocation: Mapping[str, Value], *, directory: str = "."
) -> tuple[OutputPath, ...]:
    """The path of each output, in the order of the descriptor."""
    values = completed(descriptor, invocation)
    names = _output_names(descriptor, values, directory=directory, faults=[])
    return tuple(
        OutputPath(output.id, names.get(output.id), optional=output.optional, is_list=output.is_list)
        for output in descriptor.outputs
    )


def configuration_files(
    descriptor: Descriptor, invocation: Mapping[str, Value], *, directory: str = "."
) -> tuple[ConfigurationFile, ...]:
    """The configuration files of the tool; a line whose key has no value is left empty."""
    values = completed(descriptor, invocation)
    names = _output_names(descriptor, values, directory=directory, faults=[])
    filler = _Filler(descriptor, values, names)
    files = []
    for output in descriptor.outputs:
        if output.file_template is None or output.id not in names:
            continue
        stripped = output.path_template_stripped_extensions
        lines = [filler.filled(line, _Purpose.CONFIGURATION, stripped=stripped) for line in output.file_template]
        files.append(ConfigurationFile(names[output.id], "\n".join(lines)))
    return tuple(files)


def environment(descriptor: Descriptor, invocation: Mapping[str, Value]) -> dict[str, str]:
    """The environment variables of the tool, without those of inputs that have no value."""
    values = completed(descriptor, invocation)
    inputs = {input_.value_key: input_.id for input_ in descriptor.inputs if input_.value_key is not None}
    variables = {}
    for variable in descriptor.environment_variables:
        if variable.value not in inputs:
            variables[variable.name] = variable.value
        elif values.get(inputs[variable.value]) is not None:
            variables[variable.name] = str(values[inputs[variable.value]])
    return variables


def condition_faults(descriptor: Descriptor, invocation: Mapping[str, Value]) -> list[str]:
    """The reasons why conditions of outputs cannot be evaluated with these values, each once."""
    faults: list[str] = []
    _output_names(descriptor, completed(descriptor, invocation), directory=".", faults=faults)
    return list(dict.fromkeys(faults))


def _output_names(
    descriptor: Descriptor, values: Mapping[str, Value], *, directory: str, faults: list[str]
) -> dict[str, str]:
    """The paths of the outputs by id; conditions that cannot be evaluated go to `faults` and count as false."""
    names: dict[str, str] = {}
    for _ in range(2):  # the second pass fills in paths of outputs that are defined later
        for output in descriptor.outputs:
            template = _template_of(output, descriptor, {**values, **names}, faults=faults)
            if output.path_template is not None:
                template = names.get(output.id, output.path_template)
            if template is None:
                names.pop(output.id, None)
                continue
            stripped = output.path_template_stripped_extensions
            name = _Filler(descriptor, values, names).filled(template, _Purpose.PATH, stripped=stripped)
            if output.uses_absolute_path:
                name = posixpath.normpath(posixpath.join(directory, name))
            names[output.id] = name
    return names


def _template_of(
    output: Output, descriptor: Descriptor, values: Mapping[str, Value], *, faults: list[str]
) -> str | None:
    """The path template of the first condition that holds."""
    for entry in output.conditional_path_template:
        text, template = next(iter(entry.items()))
        if text.split() == [DEFAULT]:
            return template
        ids = {input_.id for input_ in descriptor.inputs} | {other.id for other in descriptor.outputs}
        try:
            if parsed(text, ids).holds(values):
                return template
        except ConditionError as fault:
            faults.append(f"the condition {text!r} of the output {output.id!r}: {fault}")
    return None


class _Filler:
    """Replaces value keys by their values."""

    def __init__(self, descriptor: Descriptor, values: Mapping[str, Value], names: Mapping[str, str]) -> None:
        self.items: tuple[Input | Output, ...] = (*descriptor.inputs, *descriptor.outputs)
        self.values = values
        self.names = names

    def filled(self, template: str, purpose: _Purpose, *, stripped: Sequence[str] = ()) -> str:
        for item in self.items:
            key = item.value_key
            if key is None:
                continue
            value = self.names[item.id] if item.id in self.names else self.values.get(item.id)
            if value is not None:
                text = self._text(item, value, purpose)
                if isinstance(item, Input) and item.type in {"File", "String"}:
                    for extension in stripped:
                        text = text.replace(extension, "")
                    if item.type == "File" and purpose is _Purpose.PATH and template.find(key) > 0:
                        text = posixpath.basename(text)
                template = template.replace(key, text) if text else template.replace(f" {key}", "")
            elif purpose is _Purpose.COMMAND:
                template = template.replace(f" {key}" if f" {key}" in template else key, "")
            elif purpose is _Purpose.CONFIGURATION and key in template:
                return ""
        return template

    def _text(self, item: Input | Output, value: Value, purpose: _Purpose) -> str:
        kind = item.type if isinstance(item, Input) else ""
        quoted = item.id in self.names or (purpose is not _Purpose.PATH and kind in {"String", "File"})
        if isinstance(value, list):
            separator = item.list_separator if isinstance(item, Input) else " "
            text = separator.join(shlex.quote(str(part)) if quoted else str(part) for part in value)
        else:
            text = shlex.quote(str(value)) if quoted else str(value)
        if purpose is not _Purpose.COMMAND or item.command_line_flag is None:
            return text
        if kind == "Flag":
            return "" if value is False else item.command_line_flag
        return f"{item.command_line_flag}{item.command_line_flag_separator}{text}"
