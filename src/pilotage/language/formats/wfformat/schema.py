"""Checks a tree against WfFormat 1.5, and finds the fields that have no meaning here."""

from __future__ import annotations

import re

import msgspec

from pilotage.language.losses import Losses
from pilotage.language.parsing.kinds import describe
from pilotage.language.text.tree import Listing, Mark, Node, Report, Scalar, Table
from pilotage.model.errors import did_you_mean

# The fields of WfFormat 1.5: kind, whether it is required, and what it becomes here.
#
# The reader, the list of losses and the reference page all use these tables.

SCHEMA_VERSION = "1.5"
TASK_REFERENCE = re.compile(r"[0-9a-zA-Z\-_.#]*")
FILE_REFERENCE = re.compile(r"[0-9a-zA-Z\-_./:#]*")


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text with a minimum length, limited to some characters or to some words."""

    least: int = 1
    characters: re.Pattern[str] | None = None
    expected: str = "a text"
    words: tuple[str, ...] = ()


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A number, not below `least`."""

    least: int | None = None
    whole: bool = False


class ListOf(msgspec.Struct, frozen=True, kw_only=True):
    """A list of values of one kind, with a minimum length."""

    of: Kind
    least: int = 0


class Anything(msgspec.Struct, frozen=True):
    """Any value: the schema does not restrict it."""


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object with named fields; others are allowed."""

    fields: dict[str, Field]


Kind = Text | Number | ListOf | Object | Anything


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field: its kind, and either what it becomes here (`kept`) or why it is lost (`lost`)."""

    kind: Kind
    kept: str = ""
    lost: str = ""
    required: bool = False


_TASK_ID = Text(least=0, characters=TASK_REFERENCE, expected="the id of a task: letters, digits, '-', '_', '.', '#'")
_FILE_ID = Text(characters=FILE_REFERENCE, expected="the id of a file: letters, digits, '-', '_', '.', '/', ':', '#'")
_ABOUT_RUN = "a record of the past run"
_MEASURED = "a measurement of the past run, for which pilotage has no field"
_MACHINE = "the machines of the past run do not decide where the job runs"

TASK = Object(
    fields={
        "name": Field(kind=Text(), kept="the activity", required=True),
        "id": Field(kind=Text(), kept="the name of the package", required=True),
        "parents": Field(
            kind=ListOf(of=_TASK_ID),
            kept="`after`, where no file says the same; else nothing is left to say",
            required=True,
        ),
        "children": Field(
            kind=ListOf(of=_TASK_ID), kept="the same as `parents`, seen from the other side", required=True
        ),
        "inputFiles": Field(kind=ListOf(of=_FILE_ID), kept="`inputs`"),
        "outputFiles": Field(kind=ListOf(of=_FILE_ID), kept="`outputs`"),
    }
)

FILE = Object(
    fields={
        "id": Field(kind=_FILE_ID, kept="the name of the file in the job's tree", required=True),
        "sizeInBytes": Field(kind=Number(least=0, whole=True), kept="`size_bytes`", required=True),
    }
)

COMMAND = Object(
    fields={
        "program": Field(kind=Text(), kept="the first word of `run`, or `shell` if it is a script"),
        "arguments": Field(kind=ListOf(of=Text()), kept="the rest of `run`"),
    }
)

EXECUTED_TASK = Object(
    fields={
        "id": Field(kind=Text(), kept="which package this is about", required=True),
        "runtimeInSeconds": Field(kind=Number(), kept="`run_time_seconds`", required=True),
        "executedAt": Field(kind=Text(), lost=_ABOUT_RUN),
        "command": Field(kind=COMMAND, kept="`run` or `shell`"),
        "coreCount": Field(kind=Number(least=1), kept="`cores`"),
        "avgCPU": Field(kind=Number(), kept="`cpu_percent`, at most 100"),
        "readBytes": Field(kind=Number(), lost=_MEASURED),
        "writtenBytes": Field(kind=Number(), lost=_MEASURED),
        "memoryInBytes": Field(kind=Number(), kept="`memory_bytes`"),
        "energyInKWh": Field(kind=Number(), lost=_MEASURED),
        "avgPowerInW": Field(kind=Number(), lost=_MEASURED),
        "priority": Field(kind=Number(), kept="`priority`, if it is a whole number"),
        "machines": Field(kind=ListOf(of=Text()), lost=_MACHINE),
    }
)

MACHINE = Object(
    fields={
        "system": Field(kind=Text(words=("linux", "macos", "windows"), expected="linux, macos or windows")),
        "architecture": Field(kind=Text()),
        "nodeName": Field(kind=Text(), required=True),
        "release": Field(kind=Text()),
        "memoryInBytes": Field(kind=Number(least=1, whole=True)),
        "cpu": Field(
            kind=Object(
                fields={
                    "coreCount": Field(kind=Number(least=1, whole=True)),
                    "speedInMHz": Field(kind=Number(least=1, whole=True)),
                    "vendor": Field(kind=Text()),
                }
            )
        ),
    }
)

SPECIFICATION = Object(
    fields={
        "tasks": Field(kind=ListOf(of=TASK, least=1), kept="one line with one package each", required=True),
        "files": Field(kind=ListOf(of=FILE), kept="names and sizes of inputs and outputs"),
    }
)

EXECUTION = Object(
    fields={
        "makespanInSeconds": Field(kind=Number(), lost=_ABOUT_RUN, required=True),
        "executedAt": Field(kind=Text(), lost=_ABOUT_RUN, required=True),
        "tasks": Field(kind=ListOf(of=EXECUTED_TASK, least=1), kept="what each package runs and takes", required=True),
        "machines": Field(kind=ListOf(of=MACHINE, least=1), lost=_MACHINE),
    }
)

WORKFLOW = Object(
    fields={
        "specification": Field(kind=SPECIFICATION, kept="stages, lines and packages", required=True),
        "execution": Field(kind=EXECUTION, kept="commands and estimates"),
        # Not in the schema, which allows further fields; written by the tracer of Nextflow.
        "repo": Field(kind=Anything(), lost="pilotage has no field for the source of a workflow"),
        "runName": Field(kind=Anything(), lost=_ABOUT_RUN),
    }
)

INSTANCE = Object(
    fields={
        "name": Field(kind=Text(), kept="the job's name", required=True),
        "description": Field(kind=Text(), kept="`description`"),
        "createdAt": Field(kind=Text(), kept="`created`, if it has a zone"),
        "schemaVersion": Field(
            kind=Text(words=(SCHEMA_VERSION,), expected=SCHEMA_VERSION), kept="must be 1.5", required=True
        ),
        "runtimeSystem": Field(
            kind=Object(
                fields={
                    "name": Field(kind=Text(), required=True),
                    "version": Field(kind=Text(), required=True),
                    "url": Field(kind=Text()),
                }
            ),
            lost="a record of the past run: the system that ran it",
        ),
        "author": Field(
            kind=Object(
                fields={
                    "name": Field(kind=Text(), required=True),
                    "email": Field(kind=Text(), required=True),
                    "institution": Field(kind=Text()),
                    "country": Field(kind=Text()),
                }
            ),
            lost="the author of the instance need not be the owner of the job",
        ),
        "workflow": Field(kind=WORKFLOW, kept="the job", required=True),
    }
)


def keywords(kind: Kind = INSTANCE, path: str = "") -> dict[str, Field]:
    """All fields of the format by path, without those inside a lost field."""
    if isinstance(kind, ListOf):
        return keywords(kind.of, path)
    found: dict[str, Field] = {}
    if isinstance(kind, Object):
        for name, field in kind.fields.items():
            inner = f"{path}.{name}" if path else name
            found[inner] = field
            if not field.lost:
                found.update(keywords(field.kind, inner))
    return found


FAULTS_MAX = 100
WHOLE_MAX = 2**63 - 1

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SHORT_WHOLE = re.compile(r"-?[0-9]{1,19}")
_UNKNOWN = "WfFormat 1.5 does not say what it means"


class LossTally:
    """Counts losses by field, so that a thousand tasks give one entry and not a thousand."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Mark] = {}
        self._count: dict[tuple[str, str], int] = {}

    def add(self, keyword: str, reason: str, mark: Mark) -> None:
        """Count one loss; the first position of each is kept."""
        key = (keyword, reason)
        self._first.setdefault(key, mark)
        self._count[key] = self._count.get(key, 0) + 1

    def listed(self, file: str) -> Losses:
        """One entry for each field and reason."""
        losses = Losses()
        for (keyword, reason), mark in self._first.items():
            count = self._count[keyword, reason]
            times = f" ({count:,} times)" if count > 1 else ""
            losses.add(keyword, f"{reason}{times}", file=file, mark=mark)
        return losses


class Shape:
    """Checks a tree against the tables; stops after a hundred faults."""

    def __init__(self, report: Report, tally: LossTally) -> None:
        self._report = report
        self._tally = tally

    def fault(self, code: str, message: str, node: Node, *, hint: str = "") -> None:
        """Report a fault, unless there are too many already."""
        if len(self._report.errors) < FAULTS_MAX:
            self._report.error(code, message, node.mark, hint=hint)

    def check(self, node: Node, kind: Kind, path: str) -> None:
        """Report all faults of a node and its parts, and count the fields that are lost."""
        if len(self._report.errors) >= FAULTS_MAX:
            return
        if isinstance(kind, Object):
            self._check_object(node, kind, path)
        elif isinstance(kind, ListOf):
            self._check_list(node, kind, path)
        elif isinstance(kind, Text):
            self._check_text(node, kind, path)
        elif isinstance(kind, Number):
            self._check_number(node, kind, path)

    def _check_object(self, node: Node, kind: Object, path: str) -> None:
        where = f"'{path}'" if path else "an instance"
        if not isinstance(node, Table):
            self.fault("wrong-type", f"{where} must be an object, got {_described(node)}", node)
            return
        present = set()
        for key, value in node.entries:
            name = key.text
            present.add(name)
            field = kind.fields.get(name)
            inner = f"{path}.{name}" if path else name
            if field is None:
                self._tally.add(inner, _UNKNOWN, key.mark)
                continue
            if field.lost and path not in _LOST_PATHS:
                self._tally.add(inner, field.lost, key.mark)
            self.check(value, field.kind, inner)
        for name, field in kind.fields.items():
            if field.required and name not in present:
                hint = did_you_mean(name, present) if len(present) <= FAULTS_MAX else ""
                hint = hint if hint.startswith("did you") else ""
                self.fault("missing-field", f"{where} needs the field {name!r}", node, hint=hint)

    def _check_list(self, node: Node, kind: ListOf, path: str) -> None:
        if not isinstance(node, Listing):
            self.fault("wrong-type", f"'{path}' must be a list, got {_described(node)}", node)
            return
        if len(node.items) < kind.least:
            self.fault("too-few", f"'{path}' must have at least {kind.least} entry, and has none", node)
        for item in node.items:
            self.check(item, kind.of, path)

    def _check_text(self, node: Node, kind: Text, path: str) -> None:
        if not isinstance(node, Scalar) or node.plain:
            self.fault("wrong-type", f"'{path}' must be a text in quotes, got {_described(node)}", node)
        elif "\0" in node.text:
            self.fault(
                "nul-character", f"'{path}' contains a NUL character, which no command or file name can contain", node
            )
        elif len(node.text) < kind.least:
            self.fault("bad-value", f"'{path}' must not be empty", node)
        elif kind.words and node.text not in kind.words:
            self.fault("bad-value", f"'{path}' must be {kind.expected}, got {describe(node)}", node)
        elif kind.characters and not kind.characters.fullmatch(node.text):
            self.fault("bad-value", f"'{path}' must be {kind.expected}; got {describe(node)}", node)

    def _check_number(self, node: Node, kind: Number, path: str) -> None:
        what = "a whole number" if kind.whole else "a number"
        if not is_number(node):
            self.fault("wrong-type", f"'{path}' must be {what}, got {_described(node)}", node)
            return
        value = number_of(node)
        if value is None:
            self.fault("bad-value", f"'{path}' is out of range: {describe(node)}", node)
        elif kind.whole and value != int(value):
            self.fault("wrong-type", f"'{path}' must be {what}, got {describe(node)}", node)
        elif kind.least is not None and value < kind.least:
            self.fault("bad-value", f"'{path}' must be at least {kind.least}, got {describe(node)}", node)


# Fields inside a lost field are lost with it, and not listed again.
_LOST_PATHS = frozenset(path for path, field in keywords().items() if field.lost)


def is_number(node: Node) -> bool:
    """Whether a node is a number as JSON writes it."""
    return isinstance(node, Scalar) and node.plain and _NUMBER.fullmatch(node.text) is not None


def number_of(node: Node) -> int | float | None:
    """The number of a node; None if it is too large for any quantity."""
    if not isinstance(node, Scalar):
        return None
    if _SHORT_WHOLE.fullmatch(node.text):
        whole = int(node.text)
        return whole if abs(whole) <= WHOLE_MAX else None
    value = float(node.text)
    if abs(value) > WHOLE_MAX:
        return None
    return int(value) if value == int(value) else value


def _described(node: Node) -> str:
    if not isinstance(node, Scalar):
        return "a list" if isinstance(node, Listing) else "an object"
    if not node.plain:
        return f"the text {describe(node)}"
    return f"the number {describe(node)[1:-1]}" if is_number(node) else node.text[:60] or "nothing"
