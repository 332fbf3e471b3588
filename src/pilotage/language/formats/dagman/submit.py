"""Executes a submit description: sets values, evaluates conditions, queues jobs."""

from __future__ import annotations

import posixpath
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from pilotage.language.folder import Folder
from pilotage.language.formats.dagman.lexer import SPACE, Inline, decode, found_instead, located, without_content
from pilotage.language.formats.dagman.macros import Notes, expand
from pilotage.language.formats.dagman.node_commands import Variable
from pilotage.language.losses import Losses
from pilotage.language.text.tree import NOWHERE, Mark, Report

# `if`, `elif`, `else`, `endif` of submit descriptions: the few conditions that HTCondor allows.

VERSION = (25, 0, 0)  # the HTCondor whose submit language is implemented here
_VERSION_TEST = re.compile(r"version\s*(==|!=|>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+){1,3})", re.IGNORECASE)
_DEFINED = re.compile(r"defined(?:\s+(\S+))?", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")


def holds(text: str, table: Mapping[str, str]) -> bool | None:
    """Whether a condition with expanded macros is true; None if HTCondor does not support it."""
    condition = text.strip()
    if condition.startswith("!"):
        truth = _holds(condition[1:].strip(), table)
        return None if truth is None else not truth
    return _holds(condition, table)


def _holds(condition: str, table: Mapping[str, str]) -> bool | None:
    lower = condition.lower()
    if lower in ("true", "yes", "t"):
        return True
    if lower in ("false", "no", "f"):
        return False
    if _NUMBER.fullmatch(condition):
        return float(condition) != 0
    if (asked := _DEFINED.fullmatch(condition)) is not None:
        name = asked[1] or ""
        return bool(_NUMBER.fullmatch(name) or table.get(name.lower()))
    if (found := _VERSION_TEST.fullmatch(condition)) is not None:
        wanted = tuple(int(part[:9]) for part in found[2].split("."))[:3]
        have = VERSION[: len(wanted)]
        return {
            "==": have == wanted,
            "!=": have != wanted,
            ">=": have >= wanted,
            "<=": have <= wanted,
            ">": have > wanted,
            "<": have < wanted,
        }[found[1]]
    return None


# The queue statement: the number of jobs, and the values of each.

QUEUED_MAX = 1_000_000
_KEYWORD = re.compile(r"(?:^|(?<=[\s,]))(in|from|matching)(?=[\s(\[]|$)", re.IGNORECASE)
_COUNT = re.compile(r"([0-9]{1,9})(?=\s|$)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_SLICE = re.compile(r"\[\s*(-?[0-9]{0,9})\s*:?\s*(-?[0-9]{0,9})\s*:?\s*(-?[0-9]{0,9})\s*\]")
_MATCHING = re.compile(r"(files|dirs|any)\b\s*", re.IGNORECASE)


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """`count` jobs for each item; an item has a value for each variable. Without a list there is one empty item."""

    count: int = 1
    variables: tuple[str, ...] = ()
    items: tuple[tuple[str, ...], ...] = ((),)


class QueueReader:
    """Parses queue statements; lists may come from files and patterns of a folder."""

    def __init__(self, folder: Folder, report: Report) -> None:
        self._folder = folder
        self._report = report

    def read(self, text: str, listed: tuple[str, ...] | None, *, directory: str, file: str, mark: Mark) -> Queue | None:
        """Parse a statement with expanded macros; None, with a fault in the report, if it is invalid."""
        found = _KEYWORD.search(text)
        head = (text[: found.start()] if found else text).strip(SPACE)
        count = 1
        if (number := _COUNT.match(head)) is not None:
            count, head = int(number[1]), head[number.end() :].strip(SPACE)
        variables = tuple(name for name in re.split(r"[\s,]+", head) if name)
        wrong = next((name for name in variables if not _NAME.fullmatch(name)), None)
        if wrong is not None or (found is None and variables):
            self._report.error(
                "bad-queue",
                without_content(
                    "expected: queue [COUNT] [VARIABLES] [in LIST | from LINES | matching PATTERNS], "
                    f"found {text[:80]!r}",
                    self._report,
                    file=file,
                ),
                mark,
                file=file,
            )
            return None
        if found is None:
            return Queue(count=count)
        tail = text[found.end() :].strip(SPACE)
        part = _SLICE.match(tail)
        if part is not None:
            tail = tail[part.end() :].strip(SPACE)
        lines = self._items(found[1].lower(), tail, listed, directory=directory, file=file, mark=mark)
        if lines is None:
            return None
        if part is not None:
            if part[3] == "0":
                self._report.error("bad-queue", "expected a step other than 0 in the slice", mark, file=file)
                return None
            single = ":" not in part[0]
            numbers = [int(n) if n.lstrip("-") else None for n in part.groups()]
            lines = (
                [lines[numbers[0]]]
                if single and numbers[0] is not None and -len(lines) <= numbers[0] < len(lines)
                else lines[slice(*numbers)]
            )
        if not lines:
            self._report.error(
                "no-items", f"expected at least one item for 'queue {text[:80]}', found none", mark, file=file
            )
            return None
        names = variables or ("Item",)
        return Queue(count=count, variables=names, items=tuple(_split(line, len(names)) for line in lines))

    def _items(
        self, keyword: str, tail: str, listed: tuple[str, ...] | None, *, directory: str, file: str, mark: Mark
    ) -> list[str] | None:
        if keyword == "in":
            text = ", ".join(listed) if listed is not None else tail
            return [item for item in re.split(r"[\s,]+", text) if item]
        if keyword == "matching":
            return self._matching(tail, directory=directory, file=file, mark=mark)
        if listed is not None:
            return [line for line in listed if line]
        if not tail or tail.endswith("|"):
            self._report.error(
                "queue-command",
                f"expected a file or a list in parentheses after 'from', found a command: {tail!r}",
                mark,
                file=file,
                hint="write its lines into a file",
            )
            return None
        path = located(directory, tail)
        data = self._folder.read(path)
        if data is None:
            self._report.error(
                "missing-list-file",
                f"expected a file {path!r} with one item per line, found {found_instead(self._folder, path)}",
                mark,
                file=file,
            )
            return None
        content = decode(data, self._report, file=path)
        if content is None:
            return None
        lines = (line.strip(SPACE) for line in content.split("\n"))
        return [line for line in lines if line and not line.startswith("#")]

    def _matching(self, tail: str, *, directory: str, file: str, mark: Mark) -> list[str] | None:
        option = _MATCHING.match(tail)
        if option is not None:
            tail = tail[option.end() :]
            if option[1].lower() == "dirs":
                self._report.error(
                    "queue-folders",
                    "expected files after 'matching', found dirs: folders cannot be listed",
                    mark,
                    file=file,
                )
                return None
        found: list[str] = []
        prefix = f"{directory}/" if directory else ""
        for pattern in re.split(r"[\s,]+", tail.strip("()")):
            if pattern:
                names = self._folder.glob(posixpath.join(directory, pattern))
                found.extend(name.removeprefix(prefix) for name in names)
        return sorted(set(found))


def _split(line: str, count: int) -> tuple[str, ...]:
    """The values of an item, one for each variable; the last one takes the rest."""
    values = []
    rest = line.strip(SPACE)
    for _ in range(count - 1):
        found = re.search(r"\s*,\s*|\s+", rest)
        if found is None:
            values.append(rest)
            rest = ""
        else:
            values.append(rest[: found.start()])
            rest = rest[found.end() :]
    return (*values, rest)


# Parses a submit description into statements: joins lines and collects multi-line values and queue lists.

StatementKind = Literal["assign", "queue", "if", "elif", "else", "endif", "include", "use", "error", "warning"]
PhysicalLine = tuple[int, int, str]  # line, column of its first character, text without white space around it

_ASSIGN = re.compile(r"([+]?[A-Za-z_][A-Za-z0-9_.]*)[ \t]*=(.*)", re.DOTALL)
_BLOCK = re.compile(r"([+]?[A-Za-z_][A-Za-z0-9_.]*)[ \t]*@=[ \t]*(\S+)")
_QUEUE = re.compile(r"queue(?:[ \t]+(.*))?", re.IGNORECASE | re.DOTALL)
_CONDITION = re.compile(r"(if|elif|else|endif)\b(.*)", re.IGNORECASE | re.DOTALL)
_COLON = re.compile(r"(include|use|error|warning)\b[ \t]*([A-Za-z_]*)[ \t]*:(.*)", re.IGNORECASE | re.DOTALL)
_MENTION = re.compile(r"\$[A-Za-z_]*\(([A-Za-z0-9_.+]+)|\bdefined[ \t]+([A-Za-z0-9_.+]+)", re.IGNORECASE)
_OPEN_LIST = re.compile(r"\b(?:in|from)\b[^(]*\(", re.IGNORECASE)

_KINDS: dict[str, StatementKind] = {
    "if": "if",
    "elif": "elif",
    "else": "else",
    "endif": "endif",
    "include": "include",
    "use": "use",
    "error": "error",
    "warning": "warning",
}


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement: `name` is the assigned name, or the option of an include; `items` are the lines of a queue list."""

    kind: StatementKind
    name: str = ""
    value: str = ""
    items: tuple[str, ...] | None = None
    mark: Mark
    mentions: frozenset[str] = frozenset()


def physical_lines(text: str) -> tuple[PhysicalLine, ...]:
    """The lines of a submit file with their positions."""
    lines = []
    for index, raw in enumerate(text.split("\n")):
        stripped = raw.strip(SPACE)
        lines.append((index + 1, len(raw) - len(raw.lstrip(SPACE)) + 1, stripped))
    return tuple(lines)


def parse_statements(lines: Sequence[PhysicalLine], report: Report, *, file: str) -> tuple[Statement, ...]:
    """The statements of a submit description; other lines are reported."""
    found: list[Statement] = []
    stream = iter(lines)
    for line, column, text in stream:
        if not text or text.startswith("#"):
            continue
        joined = _continued(text, stream)
        mark = Mark(line, column)
        statement = _statement(joined, stream, mark)
        if isinstance(statement, str):
            report.error("bad-submit-line", without_content(statement, report, file=file), mark, file=file)
        else:
            names = mentioned(statement.value, *(statement.items or ())) - {statement.name}
            found.append(msgspec.structs.replace(statement, mentions=names) if names else statement)
    return tuple(found)


def mentioned(*texts: str) -> frozenset[str]:
    """The names of the macros in some texts, in lower case."""
    found = (_MENTION.finditer(text) for text in texts if "$" in text or "efined" in text)
    return frozenset((match[1] or match[2]).lower() for matches in found for match in matches)


def _continued(text: str, stream: Iterator[PhysicalLine]) -> str:
    """A line with its continuations; a comment among them is skipped, except for its own backslash."""
    parts = []
    while text.endswith("\\"):
        parts.append(text[:-1])
        text = next(stream, (0, 0, ""))[2]
        if text.startswith("#"):
            text = "\\" if text.endswith("\\") else ""
    parts.append(text)
    return "".join(parts)


def _statement(text: str, stream: Iterator[PhysicalLine], mark: Mark) -> Statement | str:
    if (found := _BLOCK.fullmatch(text)) is not None:
        lines = _until(f"@{found[2]}", stream)
        if lines is None:
            return f"expected a line '@{found[2]}' that ends the value, found the end of the description"
        return Statement(kind="assign", name=_command_name(found[1]), value="\n".join(lines), mark=mark)
    if (found := _ASSIGN.fullmatch(text)) is not None:
        return Statement(kind="assign", name=_command_name(found[1]), value=found[2].strip(SPACE), mark=mark)
    if (found := _QUEUE.fullmatch(text)) is not None:
        return _queue((found[1] or "").strip(SPACE), stream, mark)
    if (found := _COLON.fullmatch(text)) is not None:
        return Statement(kind=_KINDS[found[1].lower()], name=found[2].lower(), value=found[3].strip(SPACE), mark=mark)
    if (found := _CONDITION.fullmatch(text)) is not None:
        return Statement(kind=_KINDS[found[1].lower()], value=found[2].strip(SPACE), mark=mark)
    return f"expected NAME = VALUE or a queue statement, found {text[:60]!r}"


def _command_name(text: str) -> str:
    """The normalized name: lower case, with `my.` for a job attribute."""
    lower = text.lower()
    return f"my.{lower[1:]}" if lower.startswith("+") else lower


def _queue(text: str, stream: Iterator[PhysicalLine], mark: Mark) -> Statement | str:
    opening = _OPEN_LIST.search(text) if "(" in text else None
    if opening is None:
        return Statement(kind="queue", value=text, mark=mark)
    head, first = text[: opening.end()], text[opening.end() :].strip(SPACE)
    if first.endswith(")"):
        return Statement(kind="queue", value=head, items=(first[:-1].strip(SPACE),), mark=mark)
    items = [first] if first else []
    for _, _, line in stream:
        if line.startswith(")"):
            return Statement(kind="queue", value=head, items=tuple(items), mark=mark)
        if line and not line.startswith("#"):
            items.append(line)
    return "expected ')' at the end of the queue list, found the end of the description"


def _until(end: str, stream: Iterator[PhysicalLine]) -> list[str] | None:
    lines: list[str] = []
    for _, _, line in stream:
        if line == end:
            return lines
        if line and not line.startswith("#"):
            lines.append(line)
    return None


_INCLUDES_MAX = 20


class Origin(msgspec.Struct, frozen=True):
    """Where a value was set."""

    file: str
    mark: Mark


class SubmitJob(msgspec.Struct, frozen=True, kw_only=True):
    """One queued job: its values before expansion, and where each was set."""

    table: Mapping[str, str]
    origins: Mapping[str, Origin]
    notes: Notes
    file: str
    mentions: Mapping[str, Origin]  # macro → its first use

    def text(self, *names: str) -> str:
        """The expanded value of the first of these commands that is set, or an empty text."""
        for name in names:
            raw = self.table.get(name)
            if raw is not None:
                return expand(raw, self.table, self.notes).strip()
        return ""

    def origin(self, *names: str) -> Origin:
        """Where the first of these commands that is set was set."""
        return next((self.origins[name] for name in names if name in self.origins), Origin(self.file, NOWHERE))


class SubmitReader:
    """Reads submit descriptions; a file is parsed once, however many nodes use it."""

    def __init__(self, folder: Folder, report: Report, losses: Losses) -> None:
        self.folder = folder
        self.report = report
        self.losses = losses
        self.queues = QueueReader(folder, report)
        self.queued = 0
        self._files: dict[str, tuple[Statement, ...] | None] = {}
        self._inlines: dict[int, tuple[Inline, tuple[Statement, ...]]] = {}

    def file(self, path: str) -> tuple[Statement, ...] | None:
        """The statements of a submit file, or None if it cannot be read."""
        if path not in self._files:
            data = self.folder.read(path)
            text = decode(data, self.report, file=path) if data is not None else None
            self._files[path] = None if text is None else parse_statements(physical_lines(text), self.report, file=path)
        return self._files[path]

    def inline(self, inline: Inline) -> tuple[Statement, ...]:
        """The statements of an inline description."""
        known = self._inlines.get(id(inline))
        if known is None:
            lines = tuple((line.mark.line, line.mark.column, line.text) for line in inline.lines)
            known = self._inlines[id(inline)] = (inline, parse_statements(lines, self.report, file=inline.file))
        return known[1]

    def jobs(
        self,
        statements: Sequence[Statement],
        *,
        file: str,
        directory: str,
        given: Mapping[str, str],
        variables: Mapping[str, Variable],
        notes: Notes,
    ) -> list[SubmitJob]:
        """The jobs that a description queues; one if it has no queue statement."""
        run = _Run(self, directory=directory, notes=notes, variables=variables)
        run.table.update(given)
        run.set_variables(append=False)
        run.execute(statements, file=file, depth=0)
        if not run.queue_seen:
            run.queue(Statement(kind="queue", mark=NOWHERE), file=file)
        return run.jobs


class _Run:
    """The state during the execution of one description."""

    def __init__(
        self, reader: SubmitReader, *, directory: str, notes: Notes, variables: Mapping[str, Variable]
    ) -> None:
        self._reader = reader
        self._report = reader.report
        self._directory = directory
        self._notes = notes
        self._variables = variables
        self._process = 0
        self.table: dict[str, str] = {}
        self.origins: dict[str, Origin] = {}
        self.mentions: dict[str, Origin] = {}
        self.jobs: list[SubmitJob] = []
        self.queue_seen = False

    def set_variables(self, *, append: bool) -> None:
        for name, variable in self._variables.items():
            if variable.append is append:
                self.table[name.lower()] = self._of_before(name.lower(), variable.value)
                self.origins[name.lower()] = Origin(variable.file, variable.mark)
                self._mention(mentioned(variable.value), self.origins[name.lower()])

    def _mention(self, names: Iterable[str], origin: Origin) -> None:
        for name in names:
            self.mentions.setdefault(name, origin)

    def _of_before(self, name: str, value: str) -> str:
        """Replace a reference of a value to itself by its old value; everything else is expanded at use."""
        if "$(" not in value:
            return value
        before = self.table.get(name, "")
        return re.sub(r"\$\(" + re.escape(name) + r"\)", lambda _: before, value, flags=re.IGNORECASE)

    def execute(self, statements: Sequence[Statement], *, file: str, depth: int) -> None:
        # One entry per open `if`: "taken" in the chosen branch, "open" before it, "over" after it.
        branches: list[str] = []
        for statement in statements:
            self._notes.used |= statement.mentions
            if statement.kind in ("if", "elif", "else", "endif"):
                self._branch(statement, branches, file=file)
            elif all(branch == "taken" for branch in branches):
                self._perform(statement, file=file, depth=depth)
        if branches:
            self._error("bad-condition", "expected 'endif', found the end of the description", statements[-1], file)

    def _branch(self, statement: Statement, branches: list[str], *, file: str) -> None:
        if statement.kind == "if":
            outer = all(branch == "taken" for branch in branches)
            branches.append(("taken" if self._holds(statement, file) else "open") if outer else "over")
        elif not branches:
            self._error("bad-condition", f"expected 'if' before {statement.kind!r}", statement, file)
        elif statement.kind == "endif":
            branches.pop()
        elif branches[-1] != "open":
            branches[-1] = "over"
        elif statement.kind == "else" or self._holds(statement, file):
            branches[-1] = "taken"

    def _holds(self, statement: Statement, file: str) -> bool:
        result = holds(expand(statement.value, self.table, self._notes), self.table)
        if result is None:
            self._error(
                "bad-condition",
                f"expected true, false, a number, 'defined NAME' or 'version >= N', found {statement.value[:60]!r}",
                statement,
                file,
            )
        return bool(result)

    def _perform(self, statement: Statement, *, file: str, depth: int) -> None:
        if statement.mentions:
            self._mention(statement.mentions, Origin(file, statement.mark))
        if statement.kind == "assign":
            self._assign(statement, file=file)
        elif statement.kind == "queue":
            self.queue(statement, file=file)
        elif statement.kind == "include":
            self._include(statement, file=file, depth=depth)
        elif statement.kind == "use":
            self._reader.losses.add(
                "use", "templates of the HTCondor configuration are not known here", file=file, mark=statement.mark
            )
        elif statement.kind == "error":
            self._error("submit-error", f"the submit description says: {statement.value}", statement, file)
        else:
            self._report.warn(
                "submit-warning", f"the submit description says: {statement.value}", statement.mark, file=file
            )

    def _assign(self, statement: Statement, *, file: str) -> None:
        name = statement.name
        value = self._of_before(name, statement.value)
        if len(value) > QUEUED_MAX:
            self._error(
                "bad-submit-line", f"the value of {name!r} grows beyond {QUEUED_MAX} characters", statement, file
            )
            return
        self.table[name] = value
        self.origins[name] = Origin(file, statement.mark)

    def _include(self, statement: Statement, *, file: str, depth: int) -> None:
        if statement.name == "command":
            self._error("include-command", "expected a file to include, found a command", statement, file)
            return
        path = located(self._directory, expand(statement.value, self.table, self._notes).strip())
        if depth >= _INCLUDES_MAX:
            self._error("too-deep", f"expected at most {_INCLUDES_MAX} includes inside each other", statement, file)
            return
        included = self._reader.file(path)
        if included is not None:
            self.execute(included, file=path, depth=depth + 1)
        elif statement.name != "ifexist" or self._reader.folder.exists(path):
            found = found_instead(self._reader.folder, path)
            self._error("missing-submit-file", f"expected a file {path!r} to include, found {found}", statement, file)

    def queue(self, statement: Statement, *, file: str) -> None:
        if not self.queue_seen:
            self.set_variables(append=True)
        self.queue_seen = True
        text = expand(statement.value, self.table, self._notes)
        items = statement.items
        if items is not None:
            items = tuple(expand(item, self.table, self._notes) for item in items)
        queue = self._reader.queues.read(text, items, directory=self._directory, file=file, mark=statement.mark)
        if queue is None:
            return
        self._reader.queued += queue.count * len(queue.items)
        if self._reader.queued > QUEUED_MAX:
            self._error("queue-too-large", f"expected at most {QUEUED_MAX} queued jobs", statement, file)
            return
        table = dict(self.table)
        names = [name.lower() for name in queue.variables]
        origins = {**self.origins, **{name: Origin(file, statement.mark) for name in names}}
        for row, values in enumerate(queue.items):
            chosen = dict(zip(names, values, strict=True))
            for step in range(queue.count):
                process = str(self._process)
                numbers = {"process": process, "procid": process, "step": str(step), "row": str(row)}
                own = {**numbers, "itemindex": str(row), **chosen}
                self._process += 1
                # The jobs of one statement share their common values: there may be a million of them.
                shared = ChainMap(own, table)
                self.jobs.append(
                    SubmitJob(table=shared, origins=origins, notes=self._notes, file=file, mentions=self.mentions)
                )

    def _error(self, code: str, message: str, statement: Statement, file: str) -> None:
        self._report.error(code, without_content(message, self._report, file=file), statement.mark, file=file)
