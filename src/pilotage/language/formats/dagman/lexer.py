"""Joins physical lines to logical ones, and splits these into words with positions; also the command types.

A line that ends with a backslash continues; comments and blank lines are skipped, even inside a continuation. White space
separates words; quotes keep white space, and a backslash inside them escapes the next character.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from typing import Literal

import msgspec

from pilotage.language.folder import Folder
from pilotage.language.text.names import tidy_name
from pilotage.language.text.tree import Mark, Report

SPACE = " \t\r\v\f"
_DELIMITERS = " \t\r"
_QUOTES = "\"'"
_PLAIN = re.compile(r"[^ \t\r\"']+(?=[ \t\r]|\Z)")


class Fault(Exception):
    """A line that cannot be parsed; the reader adds it to the report and continues."""

    def __init__(self, code: str, message: str, mark: Mark, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.mark = mark
        self.hint = hint


class Word(msgspec.Struct, frozen=True):
    """One word of a line and its position."""

    text: str
    mark: Mark


class Pair(msgspec.Struct, frozen=True):
    """A `name = value` of a line and the position of its name."""

    name: str
    value: str
    mark: Mark


class Line(msgspec.Struct, frozen=True):
    """A logical line; `pieces` are the starts of its physical lines: (offset, line, column)."""

    text: str
    pieces: tuple[tuple[int, int, int], ...]

    def mark_at(self, offset: int) -> Mark:
        """The position in the file of a character of the logical line."""
        found = self.pieces[max(0, bisect_right(self.pieces, offset, key=lambda piece: piece[0]) - 1)]
        return Mark(found[1], found[2] + max(0, offset - found[0]))

    @property
    def mark(self) -> Mark:
        """The start of the line."""
        return self.mark_at(0)


class LineReader:
    """Reads the lines of a text one by one, logical or raw."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._next = 0

    def logical(self) -> Line | None:
        """The next line with its continuations joined, or None at the end."""
        texts: list[str] = []
        length = 0
        pieces: list[tuple[int, int, int]] = []
        while self._next < len(self._lines):
            raw = self._lines[self._next]
            self._next += 1
            piece = raw.strip(SPACE)
            if _is_skipped(piece):
                continue
            if length:
                texts.append(" ")
                length += 1
            pieces.append((length, self._next, len(raw) - len(raw.lstrip(SPACE)) + 1))
            texts.append(piece.removesuffix("\\"))
            length += len(texts[-1])
            if not piece.endswith("\\"):
                break
        return Line("".join(texts), tuple(pieces)) if pieces else None

    def raw(self) -> Line | None:
        """The next physical line that is neither blank nor a comment, or None at the end."""
        while self._next < len(self._lines):
            raw = self._lines[self._next]
            self._next += 1
            piece = raw.strip(SPACE)
            if not _is_skipped(piece):
                return Line(piece, ((0, self._next, len(raw) - len(raw.lstrip(SPACE)) + 1),))
        return None


def _is_skipped(piece: str) -> bool:
    return not piece or piece.startswith(("#", "//"))


class Cursor:
    """Reads the words of one logical line from left to right."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._at = 0

    @property
    def mark(self) -> Mark:
        """The position of the next word."""
        return self.line.mark_at(self._at)

    def word(self) -> Word | None:
        """The next word with its quotes kept, or None at the end."""
        return self._take(dropped="")

    def unquoted(self) -> Word | None:
        """The next word without its quotes, or None at the end."""
        return self._take(dropped=_QUOTES)

    def peek(self) -> str:
        """The next word without consuming it; empty at the end."""
        at = self._at
        found = self.word()
        self._at = at
        return found.text if found else ""

    def rest(self) -> Word | None:
        """The rest of the line, or None."""
        self._skip_space()
        start, self._at = self._at, len(self.line.text)
        text = self.line.text[start:].strip(SPACE)
        return Word(text, self.line.mark_at(start)) if text else None

    def pair(self) -> Pair | None:
        """The next `name = value`, without quotes around the value, or None at the end."""
        self._skip_space()
        text, start = self.line.text, self._at
        if start >= len(text):
            return None
        mark = self.line.mark_at(start)
        end = start
        while end < len(text) and text[end] not in _DELIMITERS and text[end] != "=":
            if text[end] in _QUOTES:
                raise Fault("bad-pair", "a variable name cannot contain a quotation mark", self.line.mark_at(end))
            end += 1
        name = text[start:end]
        if not name:
            raise Fault("bad-pair", "expected NAME=VALUE, found a value without a name", mark)
        self._at = end
        self._skip_space()
        if not text.startswith("=", self._at):
            raise Fault("bad-pair", f"expected {name}=VALUE, found {name!r} without a value", mark)
        self._at += 1
        self._skip_space()
        if text.startswith("=", self._at):
            raise Fault("bad-pair", f"expected one '=' after {name!r}, found two", self.mark)
        value = self.word()
        if value is None:
            raise Fault("bad-pair", f"expected a value after {name}=, found the end of the line", mark)
        inner = value.text
        if inner[0] in _QUOTES:
            inner = inner[1:-1]
        return Pair(name, inner, mark)

    def _skip_space(self) -> None:
        text = self.line.text
        while self._at < len(text) and text[self._at] in SPACE:
            self._at += 1

    def _take(self, *, dropped: str) -> Word | None:
        text = self.line.text
        while self._at < len(text) and text[self._at] in _DELIMITERS:
            self._at += 1
        start = self._at
        if start >= len(text):
            return None
        plain = _PLAIN.match(text, start)
        if plain is not None:
            self._at = plain.end()
            return Word(plain[0], self.line.mark_at(start))
        return Word(self._quoted(dropped), self.line.mark_at(start))

    def _quoted(self, dropped: str) -> str:
        """A word that contains quotes; those in `dropped` are removed."""
        text, start = self.line.text, self._at
        parts: list[str] = []
        quote = ""
        while self._at < len(text):
            character = text[self._at]
            if quote and character == "\\" and self._at + 1 < len(text):
                self._at += 1
                parts.append(text[self._at])
            elif character in _QUOTES and quote in ("", character):
                quote = "" if quote else character
                parts.append("" if character in dropped else character)
            elif not quote and character in _DELIMITERS:
                break
            else:
                parts.append(character)
            self._at += 1
        if quote:
            message = f"expected a closing {quote}, found the end of the line"
            raise Fault("unterminated-quote", message, self.line.mark_at(start))
        return "".join(parts)


def decode(data: bytes, report: Report, *, file: str) -> str | None:
    """The text of a file, or None with a fault in the report if it is not clean UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        report.error(
            "not-utf8", f"expected UTF-8 text, found byte 0x{data[error.start]:02x}", Mark(line, column), file=file
        )
        return None
    if "\0" in text:
        at = text.index("\0")
        report.error(
            "nul-byte",
            "expected text, found a NUL byte",
            Mark(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)),
            file=file,
        )
        return None
    return text


# Paths of a DAG, relative to the folder of a splice, a node or a description.
#
# As in HTCondor, a path may lead anywhere; it must lead to a readable file.


def located(directory: str, path: str) -> str:
    """A path relative to a folder, normalized; an empty one is the folder itself."""
    return tidy_name(posixpath.join(directory, path)) if path else directory


def is_outside(path: str) -> bool:
    """Whether a path leads out of the folder of the DAG."""
    return path.startswith(("/", "../")) or path == ".."


def program(directory: str, path: str) -> str:
    """A program as a command that is not searched in the PATH."""
    where = located(directory, path) if directory else path
    return where if "/" in where else f"./{where}"


def without_content(message: str, report: Report, *, file: str) -> str:
    """A message without quotations if the file is outside the DAG's folder, whose content must not be disclosed."""
    if file in ("", report.file) or not is_outside(file):
        return message
    expected, found, _ = message.partition(", found ")
    summary = expected if found else "this line cannot be parsed"
    return f"{summary}; its content is not shown, since the file is outside the DAG's folder"


def found_instead(folder: Folder, path: str) -> str:
    """What was found instead of a readable file: nothing, or a folder, a pipe or an unreadable file."""
    return "something that cannot be read as a file" if folder.exists(path) else "none"


# The commands of a DAG file as values: the output of the parser, before names are resolved.

NodeKind = Literal["job", "final", "provisioner", "service", "subdag"]
ScriptKind = Literal["pre", "post", "hold"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all commands: the keyword in its standard spelling, and its position."""

    keyword: str
    file: str
    mark: Mark


class Inline(msgspec.Struct, frozen=True):
    """A submit description inside the DAG file."""

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
    """SPLICE: another DAG in place of a node."""

    name: Word
    path: Word
    directory: str = ""


class IncludeCommand(Command, frozen=True, kw_only=True):
    """INCLUDE: another file that is read at this point."""

    path: Word


class DescriptionCommand(Command, frozen=True, kw_only=True):
    """SUBMIT-DESCRIPTION: a named submit description for several nodes."""

    name: Word
    description: Inline


class DependencyCommand(Command, frozen=True, kw_only=True):
    """[WEAK] PARENT and CHILD."""

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
    """TOLERANCE: the number of jobs of a node that may fail."""

    node: Word
    text: str


class NodeNameCommand(Command, frozen=True, kw_only=True):
    """DONE and SAVE_POINT_FILE: a node."""

    node: Word
    path: str = ""


class CategoryCommand(Command, frozen=True, kw_only=True):
    """CATEGORY: a node and its category."""

    node: Word
    category: str


class LimitCommand(Command, frozen=True, kw_only=True):
    """MAXJOBS: the number of nodes of a category that may run at once."""

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
    """CONFIG, DOT, JOBSTATE_LOG, NODE_STATUS_FILE, SET_JOB_ATTR, ENV, REJECT: commands for DAGMan itself."""

    text: str
