"""Which places of the program read which field of a record: by the types that annotations tell, without running anything.

A record is a class with annotated fields. What an expression is, is told by annotations of arguments and results, by the
types of fields, by `isinstance`, and by the attributes of other classes that hold a record. What cannot be told is no read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

Texts = Mapping[str, str]
"""The text of each file, by its path."""
Readers = dict[tuple[str, str], list[str]]
"""By the name of a class and of its field: where it is read, as `file:line`."""

_ROUNDS = 2  # until what one function tells is known where it is called


def readers_of(texts: Texts, records: Iterable[str]) -> Readers:
    """Where the fields of records are read; all classes with annotations help to tell what an expression is."""
    trees = {path: ast.parse(text, path) for path, text in texts.items()}
    known = _Known(trees, frozenset(records))
    for _ in range(2):  # what a constructor keeps may come from what another one has kept
        for tree in trees.values():
            _Reader(known).keep(tree)
    found: Readers = {}
    for path, tree in trees.items():
        for name, field, line in _Reader(known).reads(tree):
            found.setdefault((name, field), []).append(f"{path}:{line}")
    return found


_BINDING = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.Call)


class _Known:
    """What classes have and functions give, as texts of types: `Package`, or `[Package]` for many of them."""

    def __init__(self, trees: Mapping[str, ast.Module], records: frozenset[str]) -> None:
        self.records = records
        self.fields: dict[str, dict[str, str]] = {}
        self.results: dict[str, set[str]] = {}
        self.attributes: dict[str, set[str]] = {}
        self.aliases: dict[str, str] = {}
        for tree in trees.values():
            for statement in tree.body:
                self._take_alias(statement)
        for tree in trees.values():
            for node in ast.walk(tree):
                self._take(node)

    def _take_alias(self, node: ast.AST) -> None:
        """A type that goes by another name: `Iteration = Source | Combination`."""
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.BinOp, ast.Subscript)):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id[:1].isupper():
                self.aliases[target.id] = self.type_of(node.value)

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef):
            fields = self.fields.setdefault(node.name, {})
            for base in node.bases:
                fields.update(self.fields.get(ast.unparse(base), {}))
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    fields[each.target.id] = self.type_of(each.annotation)
                    self.attributes.setdefault(each.target.id, set()).add(fields[each.target.id])
                if isinstance(each, ast.FunctionDef) and any(ast.unparse(d) == "property" for d in each.decorator_list):
                    fields[each.name] = self.type_of(each.returns)
                    self.attributes.setdefault(each.name, set()).add(fields[each.name])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.results.setdefault(node.name, set()).add(self.type_of(node.returns))

    def type_of(self, node: ast.expr | None) -> str:
        """The first record, or class, that an annotation names; in brackets where there are many of it."""
        if node is None:
            return ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self.type_of(ast.parse(node.value, mode="eval").body)
            except SyntaxError:  # a word of a Literal
                return ""
        if isinstance(node, ast.Name):
            meant = self.aliases.get(node.id, "")
            return node.id if node.id in self.records or not meant else f"{node.id}|{meant}"
        if isinstance(node, ast.Attribute):
            return node.attr
        if isinstance(node, ast.BinOp):
            parts = [each for each in (self.type_of(node.left), self.type_of(node.right)) if each not in ("", "None")]
            return "|".join(parts)
        if isinstance(node, ast.Subscript):
            outer = ast.unparse(node.value).rpartition(".")[2]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer == "Annotated":
                return self.type_of(inner[0])
            if outer in ("dict", "Mapping", "Callable", "OrderedDict"):
                return f"[{self.type_of(inner[-1])}]"
            told = [self.type_of(each) for each in inner]
            if outer == "tuple" and len(told) > 1 and not (isinstance(inner[-1], ast.Constant)):
                return "(" + ",".join(told) + ")"
            return f"[{told[0]}]" if told else ""
        return ""


class _Reader:
    """Goes through one module."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._found: list[tuple[str, str, int]] = []

    def reads(self, tree: ast.Module) -> list[tuple[str, str, int]]:
        """What the module reads: class, field, line."""
        self._function(tree, {})
        return self._found

    def keep(self, tree: ast.Module) -> None:
        """Learn what the constructors of classes keep: `self.package = …`."""
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                        self._keep(node.name, each)

    def _keep(self, name: str, constructor: ast.FunctionDef) -> None:
        every = [*constructor.args.posonlyargs, *constructor.args.args, *constructor.args.kwonlyargs]
        scope = {each.arg: self._known.type_of(each.annotation) for each in every if each.annotation}
        scope["self"] = name
        fields = self._known.fields[name]
        for node in _own_nodes(constructor):
            self._bind(node, scope)
            if isinstance(node, ast.Assign):
                for target, value in _pairs(node):
                    kind = self._type(value, scope)
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and kind:
                        fields[target.attr] = _joined(fields.get(target.attr, ""), kind)
                        self._known.attributes.setdefault(target.attr, set()).add(kind)

    def _function(self, node: ast.AST, outer: dict[str, str]) -> None:
        scope = dict(outer)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            scope.update({each.arg: self._known.type_of(each.annotation) for each in every if each.annotation})
        inner = list(_own_nodes(node))
        binding = [each for each in inner if isinstance(each, _BINDING)]
        for _ in range(_ROUNDS):
            for one in binding:
                self._bind(one, scope)
        for each in inner:
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
                for name in _single(self._type(each.value, scope)):
                    if name in self._known.records and each.attr in self._known.fields[name]:
                        self._found.append((name, each.attr, each.lineno))
            elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
                self._function(each, _self_of(each, scope))
            elif isinstance(each, ast.MatchClass):
                for name in each.kwd_attrs:
                    self._found.append((ast.unparse(each.cls), name, each.lineno))

    def _bind(self, node: ast.AST, scope: dict[str, str]) -> None:
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                self._assign(target, self._type(value, scope), scope)
        elif isinstance(node, ast.AnnAssign):
            self._assign(node.target, self._known.type_of(node.annotation), scope)
        elif isinstance(node, ast.NamedExpr):
            self._assign(node.target, self._type(node.value, scope), scope)
        elif isinstance(node, (ast.For, ast.comprehension)):
            self._assign(node.target, self._element(node.iter, scope), scope)
        elif (
            isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and isinstance(node.args[0], ast.Name)
        ):
            told = "|".join(self._known.type_of(each) for each in _elements(node.args[1]))
            scope[node.args[0].id] = told

    def _assign(self, target: ast.expr, told: str, scope: dict[str, str]) -> None:
        if isinstance(target, ast.Name):
            if told:
                scope[target.id] = told if not scope.get(target.id) else _joined(scope[target.id], told)
        elif isinstance(target, (ast.Tuple, ast.List)) and told.startswith("("):
            for each, part in zip(target.elts, _parts(told), strict=False):
                self._assign(each, part, scope)

    def _element(self, node: ast.expr, scope: dict[str, str]) -> str:
        """What one of many is."""
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "enumerate":
                return f"(int,{self._element(node.args[0], scope)})"
            if name in ("reversed", "sorted", "list", "tuple", "iter") and node.args:
                return self._element(node.args[0], scope)
            if name.endswith((".values",)) and isinstance(node.func, ast.Attribute):
                return _element_of(self._type(node.func.value, scope))
            if name.endswith(".items") and isinstance(node.func, ast.Attribute):
                return f"(str,{_element_of(self._type(node.func.value, scope))})"
            if name == "zip":
                return "(" + ",".join(self._element(each, scope) for each in node.args) + ")"
        if isinstance(node, (ast.Tuple, ast.List)):
            return "|".join(
                filter(
                    None,
                    (
                        self._element(each.value, scope) if isinstance(each, ast.Starred) else self._type(each, scope)
                        for each in node.elts
                    ),
                )
            )
        if isinstance(node, (ast.IfExp,)):
            return _joined(self._element(node.body, scope), self._element(node.orelse, scope))
        return _element_of(self._type(node, scope))

    def _type(self, node: ast.expr, scope: dict[str, str]) -> str:
        """What an expression is; empty where that cannot be told."""
        match node:
            case ast.Name(id=name):
                return scope.get(name, "")
            case ast.Attribute():
                return self._type_of_attribute(node, scope)
            case ast.Call():
                return self._type_of_call(node, scope)
            case ast.Subscript(value=value, slice=index):
                told = self._type(value, scope)
                return told if isinstance(index, ast.Slice) else _element_of(told)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self._type(value, scope)
        return self._type_of_several(node, scope)

    def _type_of_several(self, node: ast.expr, scope: dict[str, str]) -> str:
        """What comes of more than one expression."""
        match node:
            case ast.IfExp(body=body, orelse=orelse):
                return _joined(self._type(body, scope), self._type(orelse, scope))
            case ast.BoolOp(values=values):
                return "|".join(filter(None, (self._type(each, scope) for each in values)))
            case ast.ListComp(elt=made) | ast.GeneratorExp(elt=made) | ast.SetComp(elt=made):
                inner = dict(scope)
                for each in node.generators:
                    self._assign(each.target, self._element(each.iter, inner), inner)
                return f"[{self._type(made, inner)}]"
            case ast.Tuple() | ast.List():
                return f"[{self._element(node, scope)}]"
        return ""

    def _type_of_attribute(self, node: ast.Attribute, scope: dict[str, str]) -> str:
        known, owners = self._known, _single(self._type(node.value, scope))
        told = {known.fields[each][node.attr] for each in owners if node.attr in known.fields.get(each, {})}
        if not told and not owners:  # of somebody who cannot be told: whatever is called so anywhere
            told = known.attributes.get(node.attr, set())
        return "|".join(sorted(filter(None, told)))

    def _type_of_call(self, node: ast.Call, scope: dict[str, str]) -> str:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if node.args:
            if name in ("replace", "cast", "filled"):
                return self._type(node.args[0], scope)
            if name == "next":
                return self._element(node.args[0], scope)
            if name in ("list", "tuple", "sorted", "reversed"):
                return f"[{self._element(node.args[0], scope)}]"
        if name in self._known.fields:
            return name
        return "|".join(sorted(each for each in self._known.results.get(name, ()) if each not in ("", "None")))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Everything inside a function, but not inside the functions in it."""
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own_nodes(each)


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to what; `a, b = c, d` are two."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _self_of(node: ast.AST, scope: dict[str, str]) -> dict[str, str]:
    return {**scope, "self": node.name} if isinstance(node, ast.ClassDef) else scope


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _single(told: str) -> list[str]:
    """The classes that something may be, unless it is many of them."""
    return [each for each in _alternatives(told) if each and each[0] not in "[("]


def _element_of(told: str) -> str:
    found = []
    for each in _alternatives(told):
        if each.startswith("["):
            found.append(each[1:-1])
        elif each.startswith("("):
            found += _parts(each)
    return "|".join(filter(None, dict.fromkeys(found)))


def _alternatives(told: str) -> list[str]:
    return _split(told, "|")


def _parts(told: str) -> list[str]:
    return _split(told[1:-1], ",")


def _split(told: str, by: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, character in enumerate(told):
        depth += (character in "[(") - (character in ")]")
        if character == by and not depth:
            parts.append(told[start:at])
            start = at + 1
    return [*parts, told[start:]]


def _joined(one: str, other: str) -> str:
    return "|".join(dict.fromkeys(filter(None, (*_alternatives(one), *_alternatives(other)))))
