"""The commands that speak of nodes: each finds its nodes, checks its rule and sets its property."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pilotage.language.dagman import commands as ast
from pilotage.language.dagman.lexer import Word
from pilotage.language.dagman.nodes import DagNode, Variable
from pilotage.language.dagman.parser_nodes import same_keyword
from pilotage.language.dagman.scope import Scope, Workshop
from pilotage.language.dagman.vocabulary import OTHER_LOSSES
from pilotage.model.errors import did_you_mean

_WORK = ("job", "subdag")
_HINTS_MAX = 20
_KNOWN_MAX = 5000


class CommandApplier:
    """Applies the commands of a scope's second pass."""

    def __init__(self, workshop: Workshop) -> None:
        """Work on the nodes of a workshop."""
        self._workshop = workshop
        self._report = workshop.report
        self._hints = 0

    def __call__(self, scope: Scope, command: ast.Command) -> None:
        """Do what one command says."""
        if isinstance(command, ast.DependencyCommand):
            self._depend(scope, command)
        elif isinstance(command, ast.ConnectCommand):
            self._connect(scope, command)
        elif isinstance(command, ast.PinCommand):
            self._pin(scope, command)
        elif isinstance(command, ast.LimitCommand):
            self._limit(scope, command)
        elif isinstance(command, ast.PlainCommand):
            self._workshop.losses.add(
                command.keyword, OTHER_LOSSES[command.keyword], file=command.file, mark=command.mark
            )
        elif isinstance(command, ast.NodeNameCommand):
            self._named(scope, command)
        else:
            self._property(scope, command)

    def _property(self, scope: Scope, command: ast.Command) -> None:
        if isinstance(command, ast.ScriptCommand):
            self._for_each(scope, command.node, command, lambda node: _add_script(node, command))
        elif isinstance(command, ast.VarsCommand):
            self._for_each(scope, command.node, command, lambda node: _add_variables(node, command))
        elif isinstance(command, ast.RetryCommand):
            self._for_each(scope, command.node, command, lambda node: setattr(node, "retry", command), kinds=_WORK)
        elif isinstance(command, ast.AbortCommand):
            self._for_each(
                scope,
                command.node,
                command,
                lambda node: setattr(node, "abort", command),
                kinds=(*_WORK, "provisioner", "service"),
            )
        elif isinstance(command, ast.ToleranceCommand):
            self._for_each(scope, command.node, command, lambda node: setattr(node, "tolerance", command))
        elif isinstance(command, ast.CategoryCommand):
            category = scope.category(command.category)
            self._for_each(scope, command.node, command, lambda node: setattr(node, "category", category), kinds=_WORK)
        elif isinstance(command, ast.NumberCommand) and command.keyword == "PRIORITY":
            self._for_each(scope, command.node, command, lambda node: self._prioritise(node, command), kinds=_WORK)
        elif isinstance(command, ast.NumberCommand):
            self._for_each(scope, command.node, command, lambda node: setattr(node, "pre_skip", command))

    def _named(self, scope: Scope, command: ast.NodeNameCommand) -> None:
        node = self._find(scope, command.node, command)
        if node is None:
            return
        if node.kind not in _WORK:
            self._report.error(
                "special-node",
                f"{command.keyword} cannot speak of the {node.kind} node {node.name!r}",
                command.node.mark,
                file=command.file,
            )
        elif command.keyword == "DONE":
            node.done = True
        else:
            self._workshop.losses.add(
                "SAVE_POINT_FILE",
                OTHER_LOSSES["SAVE_POINT_FILE"],
                file=command.file,
                mark=command.mark,
            )

    def _for_each(
        self,
        scope: Scope,
        word: Word,
        command: ast.Command,
        act: Callable[[DagNode], None],
        *,
        kinds: tuple[str, ...] = (),
    ) -> None:
        if same_keyword(word.text, "ALL_NODES"):
            nodes = [self._workshop.nodes[i] for i in scope.nodes.values()]
            work = [node for node in nodes if node.kind in _WORK]
            if not work and not scope.broken:
                self._report.error("unknown-node", "ALL_NODES stands for no node here", word.mark, file=command.file)
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

    def _find(self, scope: Scope, word: Word, command: ast.Command) -> DagNode | None:
        position = scope.nodes.get(word.text)
        if position is not None:
            return self._workshop.nodes[position]
        self._unknown(scope, word, command, kind="node", known=scope.nodes)
        return None

    def _unknown(self, scope: Scope, word: Word, command: ast.Command, *, kind: str, known: Collection[str]) -> None:
        if not scope.broken:
            self._report.error(
                f"unknown-{kind}",
                f"expected the name of a {kind}, found {word.text!r}",
                word.mark,
                hint=self._hint(word.text, known),
                file=command.file,
            )

    def _hint(self, name: str, known: Collection[str]) -> str:
        """The near name; comparing is slow, so only the first faults get one, and only among a few thousand names."""
        self._hints += 1
        same = (
            next((other for other in known if other.lower() == name.lower()), "") if self._hints <= _HINTS_MAX else ""
        )
        if same:
            return f"did you mean {same!r}?"
        return did_you_mean(name, known) if self._hints <= _HINTS_MAX and len(known) <= _KNOWN_MAX else ""

    def _prioritise(self, node: DagNode, command: ast.NumberCommand) -> None:
        if node.priority is not None and node.priority != command.number:
            self._report.warn(
                "priority-changed",
                f"priority {command.number} of {node.name!r} replaces {node.priority}",
                command.mark,
                file=command.file,
            )
        node.priority = command.number

    def _limit(self, scope: Scope, command: ast.LimitCommand) -> None:
        category = scope.category(command.category)
        if command.limit == 0:
            self._workshop.losses.add(
                "MAXJOBS",
                "a limit of 0 would never start a node of the category; none is set",
                file=command.file,
                mark=command.mark,
            )
            scope.limits.pop(category, None)
        else:
            scope.limits[category] = command.limit

    def _depend(self, scope: Scope, command: ast.DependencyCommand) -> None:
        parents = self._ends(scope, command.parents, command, splice_end=lambda splice: splice.terminal)
        children = self._ends(scope, command.children, command, splice_end=lambda splice: splice.initial)
        for side in (parents, children):
            for i in side:
                node = self._workshop.nodes[i]
                if node.kind not in _WORK:
                    self._report.error(
                        "special-node",
                        f"the {node.kind} node {node.name!r} can be neither parent nor child",
                        command.mark,
                        file=command.file,
                    )
                    return
        if command.weak and parents and children:
            self._workshop.losses.add("WEAK PARENT", OTHER_LOSSES["WEAK PARENT"], file=command.file, mark=command.mark)
        self._workshop.connect(parents, children, command)

    def _ends(
        self, scope: Scope, words: tuple[Word, ...], command: ast.Command, *, splice_end: Callable[[Scope], list[int]]
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

    def _pin(self, scope: Scope, command: ast.PinCommand) -> None:
        position = scope.nodes.get(command.node.text)
        if position is None:
            self._unknown(scope, command.node, command, kind="node", known=scope.nodes)
            return
        pins = scope.pins_in if command.keyword == "PIN_IN" else scope.pins_out
        pins.setdefault(command.pin, []).append(position)

    def _connect(self, scope: Scope, command: ast.ConnectCommand) -> None:
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
            self._workshop.connect(nodes, child.pins_in[pin], command)
        for i in child.order:
            if i not in self._workshop.with_parent:
                self._report.error(
                    "orphan-node",
                    f"expected a PIN_IN or a parent for {self._workshop.nodes[i].name!r}, which CONNECT leaves without",
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


def _add_script(node: DagNode, command: ast.ScriptCommand) -> None:
    node.scripts[command.kind] = command


def _add_variables(node: DagNode, command: ast.VarsCommand) -> None:
    for pair in command.pairs:
        name = f"My.{pair.name[1:]}" if pair.name.startswith("+") else pair.name
        before = node.variables.get(name)
        append = before.append if before else command.append
        node.variables[name] = Variable(value=pair.value, append=append, file=command.file, mark=pair.mark)
