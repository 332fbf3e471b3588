"""The commands of a DAG file as values: what the parser makes of the text, before any name is looked up."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.language.dagman.lexer import Line, Pair, Word
from pilotage.language.text.tree import Mark

NodeKind = Literal["job", "final", "provisioner", "service", "subdag"]
ScriptKind = Literal["pre", "post", "hold"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all commands: the keyword as the reference spells it, and where it stands."""

    keyword: str
    file: str
    mark: Mark


class Inline(msgspec.Struct, frozen=True):
    """A submit description that stands in the DAG file itself."""

    lines: tuple[Line, ...]
    file: str
    mark: Mark


class NodeCommand(Command, frozen=True, kw_only=True):
    """JOB, FINAL, PROVISIONER, SERVICE or SUBDAG EXTERNAL."""

    kind: NodeKind
    name: Word
    description: Word | Inline
    directory: str = ""
    noop: bool = False
    done: bool = False


class SpliceCommand(Command, frozen=True, kw_only=True):
    """SPLICE: another DAG put in the place of a node."""

    name: Word
    path: Word
    directory: str = ""


class IncludeCommand(Command, frozen=True, kw_only=True):
    """INCLUDE: another file read as if it stood here."""

    path: Word


class DescriptionCommand(Command, frozen=True, kw_only=True):
    """SUBMIT-DESCRIPTION: a submit description that nodes name."""

    name: Word
    description: Inline


class DependencyCommand(Command, frozen=True, kw_only=True):
    """PARENT and CHILD, with WEAK before it or not."""

    weak: bool
    parents: tuple[Word, ...]
    children: tuple[Word, ...]


class ScriptCommand(Command, frozen=True, kw_only=True):
    """SCRIPT PRE, POST or HOLD."""

    kind: ScriptKind
    node: Word
    script: Word
    defer_status: int | None = None
    defer_seconds: int | None = None
    debug_file: str = ""


class RetryCommand(Command, frozen=True, kw_only=True):
    """RETRY [UNLESS-EXIT]."""

    node: Word
    times: int
    unless_exit: int | None = None


class AbortCommand(Command, frozen=True, kw_only=True):
    """ABORT-DAG-ON [RETURN]."""

    node: Word
    status: int
    result: int | None = None


class VarsCommand(Command, frozen=True, kw_only=True):
    """VARS [PREPEND|APPEND]."""

    node: Word
    append: bool
    pairs: tuple[Pair, ...]


class NumberCommand(Command, frozen=True, kw_only=True):
    """PRIORITY and PRE_SKIP: a node and a number."""

    node: Word
    number: int


class ToleranceCommand(Command, frozen=True, kw_only=True):
    """TOLERANCE: how many jobs of a node may fail."""

    node: Word
    text: str


class NodeNameCommand(Command, frozen=True, kw_only=True):
    """DONE and SAVE_POINT_FILE: a node."""

    node: Word
    path: str = ""


class CategoryCommand(Command, frozen=True, kw_only=True):
    """CATEGORY: a node and its group."""

    node: Word
    category: str


class LimitCommand(Command, frozen=True, kw_only=True):
    """MAXJOBS: how many nodes of a category may run at once."""

    category: str
    limit: int


class ConnectCommand(Command, frozen=True, kw_only=True):
    """CONNECT: the pins of two splices."""

    parent: Word
    child: Word


class PinCommand(Command, frozen=True, kw_only=True):
    """PIN_IN and PIN_OUT."""

    node: Word
    pin: int


class PlainCommand(Command, frozen=True, kw_only=True):
    """CONFIG, DOT, JOBSTATE_LOG, NODE_STATUS_FILE, SET_JOB_ATTR, ENV, REJECT: about DAGMan itself."""

    text: str
