"""The one-line bugs that can be made of a module: a comparison turned, a condition negated, a statement dropped.

A mutation is a stretch of the source and what stands there instead, so the rest of the file stays as it was written.
Left out is what no test could notice or nobody means: annotations, docstrings, texts, decorators, what only a type
checker reads, and the messages of errors.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
}
SILENT_CALLS = frozenset({"debug", "info", "warning", "error", "exception", "describe"})
"""Calls that only tell a log or a reader something."""

SILENT_OPTIONS = frozenset({"gc"})
"""Options that change the speed and nothing else: whether the garbage collector looks at values of a class."""


class Mutation(msgspec.Struct, frozen=True, order=True):
    """One stretch of a file, in bytes, and what stands there instead."""

    path: str
    start: int
    end: int
    line: int
    last_line: int
    kind: str
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """The file with the bug in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutations_of(path: str, source: bytes) -> list[Mutation]:
    """Every bug that can be made of this module, in the order of its text."""
    return sorted(set(_Finder(path, source).find()))


class _Finder:
    """Walks one module and remembers where in the text each node stands."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def find(self) -> Iterator[Mutation]:
        yield from self._below(ast.parse(self._source))

    def _below(self, node: ast.AST) -> Iterator[Mutation]:
        for child in self._children(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield from self._at(child)
            yield from self._below(child)

    @staticmethod
    def _children(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.Raise):  # whether it is raised is a mutation, with which words is not
            return
        if isinstance(node, ast.Call) and _called(node) in {"Meta", "field", "NewType", "TypeVar", *SILENT_CALLS}:
            return
        left_out = {"decorator_list", "annotation", "returns", "type_params", "type_comment", "bases"}
        for name, value in ast.iter_fields(node):
            if name in left_out or (isinstance(node, ast.JoinedStr | ast.FormattedValue) and name != "value"):
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST) and not (isinstance(each, ast.keyword) and each.arg in SILENT_OPTIONS):
                    yield each

    def _at(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.expr):
            yield from self._expression(node)
        elif isinstance(node, ast.stmt):
            yield from self._statement(node)
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.Constant):
            yield self._replaced(node.test, f"not ({self._text(node.test)})", kind="condition")

    def _expression(self, node: ast.expr) -> Iterator[Mutation]:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                    yield from self._between(left, right, *COMPARISONS[type(operator)], kind="comparison")
            case ast.BoolOp():
                word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between(left, right, word, other, kind="connective")
            case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node.left) and not _is_text(node.right):
                yield from self._between(node.left, node.right, *ARITHMETIC[type(node.op)], kind="arithmetic")
            case ast.UnaryOp(op=ast.Not()):
                yield self._replaced(node, "(" + self._text(node.operand) + ")", kind="negation")
            case ast.Constant(value=bool()):
                yield self._replaced(node, str(not node.value), kind="constant")
            case ast.Constant(value=int() as number):
                yield self._replaced(node, str(number + 1), kind="constant")

    def _statement(self, node: ast.stmt) -> Iterator[Mutation]:
        match node:
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield self._replaced(value, "None", kind="result")
            case ast.Break():
                yield self._replaced(node, "continue", kind="loop")
            case ast.Expr(value=ast.Call() as call) if _called(call) not in SILENT_CALLS:
                yield self._replaced(node, "pass", kind="statement")
            case ast.Continue() | ast.Raise() | ast.AugAssign():
                yield self._replaced(node, "pass", kind="statement")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self._replaced(node, "pass", kind="statement")

    def _between(self, left: ast.expr, right: ast.expr, word: str, other: str, *, kind: str) -> Iterator[Mutation]:
        """The operator in the stretch between two operands, which may hold brackets, line ends and comments."""
        start, end = self._end(left), self._start(right)
        gap = self._source[start:end].decode()
        if gap.count(word) != 1 or "#" in gap:
            return
        at = start + len(gap[: gap.index(word)].encode())
        line = left.end_lineno or left.lineno
        yield Mutation(self._path, at, at + len(word.encode()), line, right.lineno, kind, word, other)

    def _replaced(self, node: ast.expr | ast.stmt, after: str, *, kind: str) -> Mutation:
        start, end = self._start(node), self._end(node)
        before = self._source[start:end].decode()
        return Mutation(self._path, start, end, node.lineno, node.end_lineno or node.lineno, kind, before, after)

    def _text(self, node: ast.expr) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def _called(call: ast.Call) -> str:
    """The last name of what is called: `describe` of `parser.describe(…)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
