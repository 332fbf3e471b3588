"""Submit description text to statements: lines joined, multi-line values and queue lists gathered, nothing expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from pilotage.language.dagman.lexer import SPACE
from pilotage.language.dagman.paths import told
from pilotage.language.text.tree import Mark, Report

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
    """One statement: `name` is what is assigned, or the option of an include; `items` are the lines of a queue list."""

    kind: StatementKind
    name: str = ""
    value: str = ""
    items: tuple[str, ...] | None = None
    mark: Mark
    mentions: frozenset[str] = frozenset()


def physical_lines(text: str) -> tuple[PhysicalLine, ...]:
    """The lines of a submit file with their places."""
    lines = []
    for index, raw in enumerate(text.split("\n")):
        stripped = raw.strip(SPACE)
        lines.append((index + 1, len(raw) - len(raw.lstrip(SPACE)) + 1, stripped))
    return tuple(lines)


def parse_statements(lines: Sequence[PhysicalLine], report: Report, *, file: str) -> tuple[Statement, ...]:
    """The statements of a submit description; lines that are none of them become problems."""
    found: list[Statement] = []
    stream = iter(lines)
    for line, column, text in stream:
        if not text or text.startswith("#"):
            continue
        joined = _continued(text, stream)
        mark = Mark(line, column)
        statement = _statement(joined, stream, mark)
        if isinstance(statement, str):
            report.error("bad-submit-line", told(statement, report, file=file), mark, file=file)
        else:
            names = mentioned(statement.value, *(statement.items or ())) - {statement.name}
            found.append(msgspec.structs.replace(statement, mentions=names) if names else statement)
    return tuple(found)


def mentioned(*texts: str) -> frozenset[str]:
    """The names of the macros in some texts, in lower case."""
    found = (_MENTION.finditer(text) for text in texts if "$" in text or "efined" in text)
    return frozenset((match[1] or match[2]).lower() for matches in found for match in matches)


def _continued(text: str, stream: Iterator[PhysicalLine]) -> str:
    """A line with the ones that continue it; a comment among them counts for nothing but its own backslash."""
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
    """The name in its one spelling: lower case, `my.` for an attribute of the job."""
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
