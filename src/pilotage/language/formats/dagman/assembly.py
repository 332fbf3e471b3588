"""Assembles a flat DAG from commands: reads included files and splices, resolves names, checks rules."""

from __future__ import annotations

from pilotage.language.folder import Folder
from pilotage.language.formats.dagman import lexer
from pilotage.language.formats.dagman.lexer import Word, decode, found_instead, located
from pilotage.language.formats.dagman.node_commands import (
    NODES_MAX,
    SPLICED_MAX,
    CommandApplier,
    Dag,
    DagBuilder,
    DagNode,
    Scope,
)
from pilotage.language.formats.dagman.parser import parse_commands
from pilotage.language.losses import Losses
from pilotage.language.text.tree import NOWHERE, Mark, Report
from pilotage.model.jobs.graph import find_loop, followers

_DEPTH_MAX = 40
_SUBMIT_OF_A_DAG = ".condor.sub"


def assemble(text: str, report: Report, losses: Losses, *, file: str, folder: Folder) -> Dag:
    """The flat DAG of a DAG file and all files that it includes; faults go to the report."""
    builder = DagBuilder(report=report, losses=losses)
    assembler = _Assembler(builder, folder)
    top = Scope(prefix="", directory="", splice="")
    faults_before = len(report.errors)
    assembler.read(top, text, file=file)
    top.close(builder)
    if not builder.nodes and len(report.errors) == faults_before:
        report.error("no-nodes", "expected at least one JOB, found none", NOWHERE, file=file)
    if builder.full:
        return Dag(nodes=(), edges={}, limits={}, descriptions={})
    cycle = find_loop(followers(len(builder.nodes), builder.edges))
    if cycle:
        names = [builder.nodes[i].name for i in cycle]
        command = builder.edges[(cycle[-1], cycle[0])]
        shown = [*names[:12], "…"] if len(names) > 12 else names
        report.error(
            "cycle",
            f"the nodes wait for each other in a cycle: {' → '.join([*shown, names[0]])}",
            command.mark,
            file=command.file,
        )
    return Dag(nodes=tuple(builder.nodes), edges=builder.edges, limits=top.limits, descriptions=top.descriptions)


class _Assembler:
    """Processes DAG files; `_open` holds those being read, to detect a file that includes itself."""

    def __init__(self, builder: DagBuilder, folder: Folder) -> None:
        self._builder = builder
        self._report = builder.report
        self._folder = folder
        self._open: list[str] = []
        self._parsed: dict[str, tuple[lexer.Command, ...]] = {}
        self._apply = CommandApplier(builder)

    def read(self, scope: Scope, text: str, *, file: str) -> None:
        """Apply the commands of one file to a scope: first those that define nodes, then those that refer to them."""
        if file not in self._parsed:
            self._parsed[file] = parse_commands(text, self._report, file=file)
        self._builder.commands += len(self._parsed[file]) + 1
        self._open.append(file)
        later: list[lexer.Command] = []
        for command in self._parsed[file]:
            if isinstance(command, lexer.NodeCommand):
                self._node(scope, command)
            elif isinstance(command, lexer.SpliceCommand):
                self._splice(scope, command)
            elif isinstance(command, lexer.DescriptionCommand):
                scope.descriptions[command.name.text] = command.description
            elif command.keyword == "REJECT":
                self._report.error("rejected", "the DAG is marked as rejected", command.mark, file=command.file)
            else:
                later.append(command)
        for command in later:
            if isinstance(command, lexer.IncludeCommand):
                self._include(scope, command)
            else:
                self._apply(scope, command)
        self._open.pop()

    def _node(self, scope: Scope, command: lexer.NodeCommand) -> None:
        name = command.name.text
        if not self._is_free(scope, command.name, command):
            return
        description = command.description
        if (
            isinstance(description, Word)
            and description.text.endswith(_SUBMIT_OF_A_DAG)
            and command.kind in ("job", "provisioner", "service")
        ):
            self._error(
                "nested-dag",
                f"expected SUBDAG EXTERNAL for a DAG inside a DAG, found {command.keyword}",
                command,
                command.name.mark,
            )
            return
        if command.kind != "job" and command.kind != "subdag":
            if scope.prefix:
                self._error(
                    "special-node-in-splice",
                    f"expected no {command.keyword} node in a splice, found {name!r}",
                    command,
                    command.name.mark,
                )
                return
            if command.kind != "service" and command.kind in scope.special:
                self._error(
                    "second-special-node",
                    f"expected one {command.keyword} node, found {name!r} after {scope.special[command.kind]!r}",
                    command,
                    command.name.mark,
                )
                return
            scope.special[command.kind] = name
            if command.done:
                self._report.warn(
                    "done-ignored", f"a {command.keyword} node cannot be DONE", command.mark, file=command.file
                )
        spliced = self._builder.spliced + bool(scope.prefix)
        if len(self._builder.nodes) >= NODES_MAX or spliced > SPLICED_MAX:
            self._builder.too_large(command)
            return
        node = DagNode(
            name=scope.prefix + name,
            kind=command.kind,
            command=command,
            directory=located(scope.directory, command.directory),
            noop=command.noop,
            done=command.done and command.kind in ("job", "subdag"),
        )
        if node.name in self._builder.names:
            self._error(
                "duplicate-name", f"expected another name, {node.name!r} is a node already", command, command.name.mark
            )
            return
        self._builder.names.add(node.name)
        self._builder.spliced = spliced
        scope.nodes[name] = len(self._builder.nodes)
        scope.order.append(len(self._builder.nodes))
        self._builder.nodes.append(node)

    def _is_free(self, scope: Scope, name: Word, command: lexer.Command) -> bool:
        kind = "node" if name.text in scope.nodes else "splice" if name.text in scope.splices else ""
        if kind:
            self._error(
                "duplicate-name", f"expected another name, {name.text!r} is a {kind} already", command, name.mark
            )
        return not kind

    def _splice(self, scope: Scope, command: lexer.SpliceCommand) -> None:
        if not self._is_free(scope, command.name, command):
            return
        inner = Scope(
            prefix=f"{scope.prefix}{command.name.text}+",
            directory=located(scope.directory, command.directory),
            splice=command.name.text,
        )
        scope.splices[command.name.text] = inner
        path = located(inner.directory, command.path.text)
        text = self._load(path, command, command.path)
        if text is None:
            inner.broken = True
            return
        self.read(inner, text, file=path)
        inner.close(self._builder)
        scope.lift(inner)

    def _include(self, scope: Scope, command: lexer.IncludeCommand) -> None:
        path = located(scope.directory, command.path.text)
        text = self._load(path, command, command.path)
        if text is not None:
            self.read(scope, text, file=path)
        else:
            scope.broken = True

    def _load(self, path: str, command: lexer.Command, word: Word) -> str | None:
        if not self._builder.has_room(command):
            return None
        if path in self._open:
            inside = " → ".join([*self._open, path])
            self._error("recursive-dag", f"{path!r} includes itself: {inside}", command, word.mark)
            return None
        if len(self._open) >= _DEPTH_MAX:
            self._builder.full = True
            self._error("too-deep", f"expected at most {_DEPTH_MAX} files inside each other", command, word.mark)
            return None
        if path in self._parsed:
            return ""
        data = self._folder.read(path)
        if data is None:
            found = found_instead(self._folder, path)
            self._error("missing-dag-file", f"expected a DAG file {path!r}, found {found}", command, word.mark)
            return None
        return decode(data, self._report, file=path)

    def _error(self, code: str, message: str, command: lexer.Command, mark: Mark) -> None:
        self._report.error(code, message, mark, file=command.file)
