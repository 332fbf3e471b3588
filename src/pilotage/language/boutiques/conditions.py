"""The conditions of `conditional-path-template`: a small boolean language over the values of inputs and outputs.

Boutiques writes them in "limited Python syntax" and hands them to the interpreter. Here they are parsed, and only
comparisons, `and`, `or`, `not` and literals are ever evaluated.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from pilotage.language.boutiques.values import Value

DEFAULT = "default"
LENGTH_MAX = 2000  # far beyond any condition that a person wrote, and short enough for Python's parser
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
    """A condition that cannot be understood, or that compares what cannot be compared; the text says which."""


class Condition(msgspec.Struct, frozen=True):
    """A parsed condition: an expression in which the ids it speaks of have made way for stand-in names."""

    expression: ast.expr
    stand_ins: dict[str, str]  # stand-in name -> id

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether it is true; false if any id it speaks of has no value, as in Boutiques."""
        if any(values.get(id_) is None for id_ in self.stand_ins.values()):
            return False
        operands = {name: _operand(values[id_]) for name, id_ in self.stand_ins.items()}
        return bool(_evaluated(self.expression, operands))


def parsed(text: str, ids: Collection[str]) -> Condition:
    """The condition of a text; raises `ConditionError` when it is none."""
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
        reason = fault.msg if isinstance(fault, SyntaxError) else "it is nested too deep"
        raise ConditionError(f"it cannot be read: {reason}") from None
    _check_nodes(expression, stand_ins)
    return Condition(expression, stand_ins)


def _check_nodes(expression: ast.expr, stand_ins: Mapping[str, str]) -> None:
    level: list[ast.AST] = [expression]
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise ConditionError("it is nested too deep")
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id not in stand_ins:
            raise ConditionError(f"{node.id!r} is not the id of an input or an output")
        if isinstance(node, ast.Constant) and not isinstance(node.value, (str, int, float, bool)):
            raise ConditionError(f"{node.value!r} is not text, a number, True or False")
        if isinstance(node, ast.Compare) and not all(type(sign) in _COMPARISONS for sign in node.ops):
            raise ConditionError("only ==, !=, <, <=, >, >=, in and not in compare")
        if not isinstance(node, _ALLOWED):
            raise ConditionError("only comparisons, and, or, not, text and numbers are understood")


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
    """A value as Boutiques puts it into a condition: what looks like a number is one, all else is its text."""
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
            raise ConditionError(f"{value!r} has no negative")
        return -value
    if isinstance(node, ast.Compare):
        return _compared(node, operands)
    raise ConditionError("only comparisons, and, or, not, text and numbers are understood")


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
    """Whether Boutiques' own check passes: each comparison has one type on both sides, each `and` two truths.

    Only ids of letters and digits count as what they name: an id with an underscore is taken for text.
    """
    return _agrees([types.get(token, token) if _is_name(token) else token for token in _TOKEN.findall(text)])


def _is_name(token: str) -> bool:
    return token.isalnum() and not token.isdigit() and not keyword.iskeyword(token)


def _agrees(tokens: list[str]) -> bool:
    """The check on one level; a pair of parentheses that agrees within itself counts as True.

    Of nested pairs only what follows the innermost opening one is looked at, as Boutiques does.
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
