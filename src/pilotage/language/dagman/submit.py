"""A node's submit description, run through like a program: values are set, conditions chosen, jobs queued."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pilotage.language.dagman.commands import Inline
from pilotage.language.dagman.conditions import holds
from pilotage.language.dagman.lexer import decode
from pilotage.language.dagman.macros import Notes, expand
from pilotage.language.dagman.nodes import Variable
from pilotage.language.dagman.paths import found_instead, located, told
from pilotage.language.dagman.queue import QUEUED_MAX, QueueReader
from pilotage.language.dagman.statements import Statement, mentioned, parse_statements, physical_lines
from pilotage.language.folder import Folder
from pilotage.language.losses import Losses
from pilotage.language.text.tree import NOWHERE, Mark, Report

_INCLUDES_MAX = 20


class Origin(msgspec.Struct, frozen=True):
    """Where a value was set."""

    file: str
    mark: Mark


class SubmitJob(msgspec.Struct, frozen=True, kw_only=True):
    """One queued job: its values, not yet expanded, and where each was set."""

    table: Mapping[str, str]
    origins: Mapping[str, Origin]
    notes: Notes
    file: str
    mentions: Mapping[str, Origin]  # macro → where it is first written

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
    """Reads submit descriptions; the statements of a file are parsed once, however many nodes name it."""

    def __init__(self, folder: Folder, report: Report, losses: Losses) -> None:
        """Read from a folder; faults go to the report."""
        self.folder = folder
        self.report = report
        self.losses = losses
        self.queues = QueueReader(folder, report)
        self.queued = 0
        self._files: dict[str, tuple[Statement, ...] | None] = {}
        self._inlines: dict[int, tuple[Inline, tuple[Statement, ...]]] = {}

    def file(self, path: str) -> tuple[Statement, ...] | None:
        """The statements of a submit file, or None where it cannot be read."""
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
        """The jobs that a description queues; one where it has no queue statement."""
        run = _Run(self, directory=directory, notes=notes, variables=variables)
        run.table.update(given)
        run.set_variables(append=False)
        run.execute(statements, file=file, depth=0)
        if not run.queue_seen:
            run.queue(Statement(kind="queue", mark=NOWHERE), file=file)
        return run.jobs


class _Run:
    """The state of one description while its statements are gone through."""

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
        """A value that speaks of itself means the value before; everything else is expanded when it is used."""
        if "$(" not in value:
            return value
        before = self.table.get(name, "")
        return re.sub(r"\$\(" + re.escape(name) + r"\)", lambda _: before, value, flags=re.IGNORECASE)

    def execute(self, statements: Sequence[Statement], *, file: str, depth: int) -> None:
        # One entry per open `if`: "taken" while its chosen branch runs, "open" while none was chosen, "over" after.
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
                "use", "a template of the HTCondor configuration is not known here", file=file, mark=statement.mark
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
                # What the jobs of one statement have in common is kept once: there may be a million of them.
                shared = ChainMap(own, table)
                self.jobs.append(
                    SubmitJob(table=shared, origins=origins, notes=self._notes, file=file, mentions=self.mentions)
                )

    def _error(self, code: str, message: str, statement: Statement, file: str) -> None:
        self._report.error(code, told(message, self._report, file=file), statement.mark, file=file)
