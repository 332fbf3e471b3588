"""Applies the commands that refer to nodes: each finds its nodes, checks its rule and sets its property."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from pilotage.language.formats.dagman import lexer
from pilotage.language.formats.dagman.lexer import (
    AbortCommand,
    Command,
    Inline,
    NodeCommand,
    NodeKind,
    NumberCommand,
    RetryCommand,
    ScriptCommand,
    ToleranceCommand,
    Word,
)
from pilotage.language.formats.dagman.parser import same_keyword
from pilotage.language.formats.dagman.values import OTHER_LOSSES
from pilotage.language.losses import Losses
from pilotage.language.text.tree import Mark, Report
from pilotage.model.errors import did_you_mean

# The flat DAG that the assembler builds: all nodes with their properties, and the edges between them.


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A value that VARS sets for a node's submit description, before or after it."""

    value: str
    append: bool
    file: str
    mark: Mark


class DagNode(msgspec.Struct, kw_only=True):
    """A node with its full name. It is filled while commands are applied, and only read afterwards."""

    name: str
    kind: NodeKind
    command: NodeCommand
    directory: str
    noop: bool
    done: bool
    variables: dict[str, Variable] = {}
    scripts: dict[str, ScriptCommand] = {}
    retry: RetryCommand | None = None
    abort: AbortCommand | None = None
    tolerance: ToleranceCommand | None = None
    priority: int | None = None
    pre_skip: NumberCommand | None = None
    category: str = ""

    @property
    def file(self) -> str:
        """The file that defines the node."""
        return self.command.file

    @property
    def mark(self) -> Mark:
        """The position of its name."""
        return self.command.name.mark


class Dag(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes in the order of their commands; an edge is a pair of positions with its command."""

    nodes: tuple[DagNode, ...]
    edges: dict[tuple[int, int], Command]
    limits: dict[str, int]
    descriptions: dict[str, Inline]


# A scope holds the names of one DAG or splice during assembly; all scopes share one `DagBuilder`.

NODES_MAX = 1_000_000
SPLICED_MAX = 100_000
EDGES_MAX = 4_000_000
COMMANDS_MAX = 4_000_000


class DagBuilder(msgspec.Struct, kw_only=True):
    """The nodes and edges of all scopes, the report and the losses."""

    report: Report
    losses: Losses
    nodes: list[DagNode] = []
    names: set[str] = set()
    edges: dict[tuple[int, int], Command] = {}
    with_parent: set[int] = set()
    with_child: set[int] = set()
    commands: int = 0
    spliced: int = 0
    full: bool = False  # the DAG is too large: nothing more is added

    def connect(self, parents: Iterable[int], children: Iterable[int], command: Command) -> None:
        """Add an edge from every parent to every child, unless it exists."""
        targets = tuple(children)
        for parent in parents:
            if len(self.edges) + len(targets) > EDGES_MAX:
                self.too_large(command)
                return
            for child in targets:
                self.edges.setdefault((parent, child), command)
                self.with_child.add(parent)
                self.with_parent.add(child)

    def has_room(self, command: Command) -> bool:
        """Whether another file may be included."""
        if self.commands > COMMANDS_MAX or len(self.nodes) >= NODES_MAX or self.spliced >= SPLICED_MAX:
            self.too_large(command)
        return not self.full

    def too_large(self, command: Command) -> None:
        """Report once that the DAG is too large."""
        if not self.full:
            self.full = True
            self.report.error(
                "dag-too-large",
                f"expected at most {NODES_MAX} nodes, {SPLICED_MAX} of them from splices, and {EDGES_MAX} edges",
                command.mark,
                file=command.file,
            )


class Scope(msgspec.Struct, kw_only=True):
    """The names of one DAG or splice, and the ends by which others connect to it."""

    prefix: str
    directory: str
    splice: str
    nodes: dict[str, int] = {}
    splices: dict[str, Scope] = {}
    special: dict[str, str] = {}
    order: list[int] = []  # all nodes, with those of a splice at its position
    initial: list[int] = []
    terminal: list[int] = []
    pins_in: dict[int, list[int]] = {}
    pins_out: dict[int, list[int]] = {}
    limits: dict[str, int] = {}
    descriptions: dict[str, Inline] = {}
    broken: bool = False  # a file is missing, so unknown names are not reported

    def category(self, name: str) -> str:
        """The full name of a category; one that begins with `+` is common to all splices."""
        return name if name.startswith("+") else self.prefix + name

    def close(self, builder: DagBuilder) -> None:
        """Store the first and last nodes of the DAG, before nodes outside are connected to them."""
        self.initial = [i for i in self.order if i not in builder.with_parent]
        self.terminal = [i for i in self.order if i not in builder.with_child]

    def lift(self, inner: Scope) -> None:
        """Merge a splice; limits and descriptions of the outer DAG win."""
        self.order.extend(inner.order)
        for category, limit in inner.limits.items():
            self.limits.setdefault(category, limit)
        for name, description in inner.descriptions.items():
            self.descriptions.setdefault(name, description)


_WORK = ("job", "subdag")
_HINTS_MAX = 20
_KNOWN_MAX = 5000


class CommandApplier:
    """Applies the commands of the second pass."""

    def __init__(self, builder: DagBuilder) -> None:
        self._builder = builder
        self._report = builder.report
        self._hints = 0

    def __call__(self, scope: Scope, command: lexer.Command) -> None:
        """Apply one command."""
        if isinstance(command, lexer.DependencyCommand):
            self._depend(scope, command)
        elif isinstance(command, lexer.ConnectCommand):
            self._connect(scope, command)
        elif isinstance(command, lexer.PinCommand):
            self._pin(scope, command)
        elif isinstance(command, lexer.LimitCommand):
            self._limit(scope, command)
        elif isinstance(command, lexer.PlainCommand):
            self._builder.losses.add(
                command.keyword, OTHER_LOSSES[command.keyword], file=command.file, mark=command.mark
            )
        elif isinstance(command, lexer.NodeNameCommand):
            self._named(scope, command)
        else:
            self._property(scope, command)

    def _property(self, scope: Scope, command: lexer.Command) -> None:
        if isinstance(command, lexer.ScriptCommand):
            self._for_each(scope, command.node, command, lambda node: _add_script(node, command))
        elif isinstance(command, lexer.VarsCommand):
            self._for_each(scope, command.node, command, lambda node: _add_variables(node, command))
        elif isinstance(command, lexer.RetryCommand):
            self._for_each(scope, command.node, command, lambda node: setattr(node, "retry", command), kinds=_WORK)
        elif isinstance(command, lexer.AbortCommand):
            self._for_each(
                scope,
                command.node,
                command,
                lambda node: setattr(node, "abort", command),
                kinds=(*_WORK, "provisioner", "service"),
            )
        elif isinstance(command, lexer.ToleranceCommand):
            self._for_each(scope, command.node, command, lambda node: setattr(node, "tolerance", command))
        elif isinstance(command, lexer.CategoryCommand):
            category = scope.category(command.category)
            self._for_each(scope, command.node, command, lambda node: setattr(node, "category", category), kinds=_WORK)
        elif isinstance(command, lexer.NumberCommand) and command.keyword == "PRIORITY":
            self._for_each(scope, command.node, command, lambda node: self._prioritise(node, command), kinds=_WORK)
        elif isinstance(command, lexer.NumberCommand):
            self._for_each(scope, command.node, command, lambda node: setattr(node, "pre_skip", command))

    def _named(self, scope: Scope, command: lexer.NodeNameCommand) -> None:
        node = self._find(scope, command.node, command)
        if node is None:
            return
        if node.kind not in _WORK:
            self._report.error(
                "special-node",
                f"{command.keyword} cannot refer to the {node.kind} node {node.name!r}",
                command.node.mark,
                file=command.file,
            )
        elif command.keyword == "DONE":
            node.done = True
        else:
            self._builder.losses.add(
                "SAVE_POINT_FILE",
                OTHER_LOSSES["SAVE_POINT_FILE"],
                file=command.file,
                mark=command.mark,
            )

    def _for_each(
        self,
        scope: Scope,
        word: Word,
        command: lexer.Command,
        act: Callable[[DagNode], None],
        *,
        kinds: tuple[str, ...] = (),
    ) -> None:
        if same_keyword(word.text, "ALL_NODES"):
            nodes = [self._builder.nodes[i] for i in scope.nodes.values()]
            work = [node for node in nodes if node.kind in _WORK]
            if not work and not scope.broken:
                self._report.error("unknown-node", "ALL_NODES matches no node here", word.mark, file=command.file)
            for node in work:
                act(node)
            return
        found = self._find(scope, word, command)
        if found is None:
            return
        if kinds and found.kind not in kinds:
            self._report.error(
                "special-node",
                f"the {found.kind} node {found.name!r} cannot have {command.keyword}",
                word.mark,
                file=command.file,
            )
            return
        act(found)

    def _find(self, scope: Scope, word: Word, command: lexer.Command) -> DagNode | None:
        position = scope.nodes.get(word.text)
        if position is not None:
            return self._builder.nodes[position]
        self._unknown(scope, word, command, kind="node", known=scope.nodes)
        return None

    def _unknown(self, scope: Scope, word: Word, command: lexer.Command, *, kind: str, known: Collection[str]) -> None:
        if not scope.broken:
            self._report.error(
                f"unknown-{kind}",
                f"expected the name of a {kind}, found {word.text!r}",
                word.mark,
                hint=self._hint(word.text, known),
                file=command.file,
            )

    def _hint(self, name: str, known: Collection[str]) -> str:
        """A similar name; comparing is slow, so only the first faults get one, and only among a few thousand names."""
        self._hints += 1
        same = (
            next((other for other in known if other.lower() == name.lower()), "") if self._hints <= _HINTS_MAX else ""
        )
        if same:
            return f"did you mean {same!r}?"
        return did_you_mean(name, known) if self._hints <= _HINTS_MAX and len(known) <= _KNOWN_MAX else ""

    def _prioritise(self, node: DagNode, command: lexer.NumberCommand) -> None:
        if node.priority is not None and node.priority != command.number:
            self._report.warn(
                "priority-changed",
                f"priority {command.number} of {node.name!r} replaces {node.priority}",
                command.mark,
                file=command.file,
            )
        node.priority = command.number

    def _limit(self, scope: Scope, command: lexer.LimitCommand) -> None:
        category = scope.category(command.category)
        if command.limit == 0:
            self._builder.losses.add(
                "MAXJOBS",
                "a limit of 0 would never start a node of the category; none is set",
                file=command.file,
                mark=command.mark,
            )
            scope.limits.pop(category, None)
        else:
            scope.limits[category] = command.limit

    def _depend(self, scope: Scope, command: lexer.DependencyCommand) -> None:
        parents = self._ends(scope, command.parents, command, splice_end=lambda splice: splice.terminal)
        children = self._ends(scope, command.children, command, splice_end=lambda splice: splice.initial)
        for side in (parents, children):
            for i in side:
                node = self._builder.nodes[i]
                if node.kind not in _WORK:
                    self._report.error(
                        "special-node",
                        f"the {node.kind} node {node.name!r} can be neither parent nor child",
                        command.mark,
                        file=command.file,
                    )
                    return
        if command.weak and parents and children:
            self._builder.losses.add("WEAK PARENT", OTHER_LOSSES["WEAK PARENT"], file=command.file, mark=command.mark)
        self._builder.connect(parents, children, command)

    def _ends(
        self, scope: Scope, words: tuple[Word, ...], command: lexer.Command, *, splice_end: Callable[[Scope], list[int]]
    ) -> list[int]:
        found: dict[int, None] = {}
        for word in words:
            splice = scope.splices.get(word.text)
            if splice is not None:
                ends = splice_end(splice)
                if not ends and not splice.broken:
                    self._report.error(
                        "empty-splice", f"the splice {word.text!r} has no node to connect", word.mark, file=command.file
                    )
                found.update(dict.fromkeys(ends))
            elif word.text in scope.nodes:
                found[scope.nodes[word.text]] = None
            else:
                self._unknown(scope, word, command, kind="node", known=(*scope.nodes, *scope.splices))
        return list(found)

    def _pin(self, scope: Scope, command: lexer.PinCommand) -> None:
        position = scope.nodes.get(command.node.text)
        if position is None:
            self._unknown(scope, command.node, command, kind="node", known=scope.nodes)
            return
        pins = scope.pins_in if command.keyword == "PIN_IN" else scope.pins_out
        pins.setdefault(command.pin, []).append(position)

    def _connect(self, scope: Scope, command: lexer.ConnectCommand) -> None:
        parent = scope.splices.get(command.parent.text)
        child = scope.splices.get(command.child.text)
        for word, found in ((command.parent, parent), (command.child, child)):
            if found is None:
                self._unknown(scope, word, command, kind="splice", known=scope.splices)
        if parent is None or child is None or parent.broken or child.broken:
            return
        fault = _pin_fault(parent, child)
        if fault:
            self._report.error("pin-mismatch", fault, command.mark, file=command.file)
            return
        for pin, nodes in parent.pins_out.items():
            self._builder.connect(nodes, child.pins_in[pin], command)
        for i in child.order:
            if i not in self._builder.with_parent:
                self._report.error(
                    "orphan-node",
                    f"expected a PIN_IN or a parent for {self._builder.nodes[i].name!r}, which CONNECT leaves unconnected",
                    command.mark,
                    file=command.file,
                )


def _pin_fault(parent: Scope, child: Scope) -> str:
    for splice, pins, keyword in ((parent, parent.pins_out, "PIN_OUT"), (child, child.pins_in, "PIN_IN")):
        if not pins:
            return f"expected a {keyword} in the splice {splice.splice!r}, found none"
        missing = next((n for n in range(1, max(pins) + 1) if n not in pins), 0)
        if missing:
            return f"expected {keyword} {missing} in the splice {splice.splice!r}, which has {keyword} {max(pins)}"
    if max(parent.pins_out) != max(child.pins_in):
        return (
            f"expected as many PIN_OUT in {parent.splice!r} as PIN_IN in {child.splice!r}, found "
            f"{max(parent.pins_out)} and {max(child.pins_in)}"
        )
    return ""


def _add_script(node: DagNode, command: lexer.ScriptCommand) -> None:
    node.scripts[command.kind] = command


def _add_variables(node: DagNode, command: lexer.VarsCommand) -> None:
    for pair in command.pairs:
        name = f"My.{pair.name[1:]}" if pair.name.startswith("+") else pair.name
        before = node.variables.get(name)
        append = before.append if before else command.append
        node.variables[name] = Variable(value=pair.value, append=append, file=command.file, mark=pair.mark)
