"""The flat DAG that the assembler builds: every node with all its properties, and the edges between them."""

from __future__ import annotations

import msgspec

from pilotage.language.dagman.commands import (
    AbortCommand,
    Command,
    Inline,
    NodeCommand,
    NodeKind,
    NumberCommand,
    RetryCommand,
    ScriptCommand,
    ToleranceCommand,
)
from pilotage.language.text.tree import Mark


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A value that VARS gives to a node's submit description, before it or after it."""

    value: str
    append: bool
    file: str
    mark: Mark


class DagNode(msgspec.Struct, kw_only=True):
    """A node under its full name. It is filled while the commands are gone through, and only read afterwards."""

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
        """The file in which the node stands."""
        return self.command.file

    @property
    def mark(self) -> Mark:
        """The place of its name."""
        return self.command.name.mark


class Dag(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes in the order of their commands; an edge is a pair of positions with the command that made it."""

    nodes: tuple[DagNode, ...]
    edges: dict[tuple[int, int], Command]
    limits: dict[str, int]
    descriptions: dict[str, Inline]
