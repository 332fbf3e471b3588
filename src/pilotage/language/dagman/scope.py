"""A scope is one DAG, or one splice in it, while it is put together; the workshop is what all scopes share."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pilotage.language.dagman.commands import Command, Inline
from pilotage.language.dagman.nodes import DagNode
from pilotage.language.losses import Losses
from pilotage.language.text.tree import Report

NODES_MAX = 1_000_000
SPLICED_MAX = 100_000
EDGES_MAX = 4_000_000
COMMANDS_MAX = 4_000_000


class Workshop(msgspec.Struct, kw_only=True):
    """The nodes and edges of all scopes, and where faults and losses go."""

    report: Report
    losses: Losses
    nodes: list[DagNode] = []
    names: set[str] = set()
    edges: dict[tuple[int, int], Command] = {}
    with_parent: set[int] = set()
    with_child: set[int] = set()
    commands: int = 0
    spliced: int = 0
    full: bool = False  # too much was asked for: nothing more is brought in

    def connect(self, parents: Iterable[int], children: Iterable[int], command: Command) -> None:
        """Add an edge from every parent to every child; one that exists is kept as it is."""
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
        """Whether another file may be brought in."""
        if self.commands > COMMANDS_MAX or len(self.nodes) >= NODES_MAX or self.spliced >= SPLICED_MAX:
            self.too_large(command)
        return not self.full

    def too_large(self, command: Command) -> None:
        """Say once that the DAG is too large."""
        if not self.full:
            self.full = True
            self.report.error(
                "dag-too-large",
                f"expected at most {NODES_MAX} nodes, {SPLICED_MAX} of them from splices, and {EDGES_MAX} edges",
                command.mark,
                file=command.file,
            )


class Scope(msgspec.Struct, kw_only=True):
    """The names of one DAG, and what of it a splice shows to the outside."""

    prefix: str
    directory: str
    splice: str
    nodes: dict[str, int] = {}
    splices: dict[str, Scope] = {}
    special: dict[str, str] = {}
    order: list[int] = []  # all nodes, those of splices after the splice's own place
    initial: list[int] = []
    terminal: list[int] = []
    pins_in: dict[int, list[int]] = {}
    pins_out: dict[int, list[int]] = {}
    limits: dict[str, int] = {}
    descriptions: dict[str, Inline] = {}
    broken: bool = False  # a file is missing, so that unknown names are no news

    def category(self, name: str) -> str:
        """A category's name as the whole DAG knows it; one that begins with `+` is common to all splices."""
        return name if name.startswith("+") else self.prefix + name

    def close(self, workshop: Workshop) -> None:
        """Remember which nodes begin and end the DAG, before anything outside is connected to them."""
        self.initial = [i for i in self.order if i not in workshop.with_parent]
        self.terminal = [i for i in self.order if i not in workshop.with_child]

    def lift(self, inner: Scope) -> None:
        """Take over what a splice holds; limits and descriptions of the outer DAG win."""
        self.order.extend(inner.order)
        for category, limit in inner.limits.items():
            self.limits.setdefault(category, limit)
        for name, description in inner.descriptions.items():
            self.descriptions.setdefault(name, description)
