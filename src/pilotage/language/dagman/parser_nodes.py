"""The commands that make nodes and bring in other files, and the helpers that every command's parser uses."""

from __future__ import annotations

import re
from typing import TypedDict

import msgspec

from pilotage.language.dagman import commands as ast
from pilotage.language.dagman.lexer import Cursor, Fault, Line, LineReader, Word
from pilotage.language.text.tree import Mark

RESERVED_NAMES = frozenset({"PARENT", "CHILD", "ALL_NODES"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,12}")
_LEAST, _MOST = -(2**31), 2**31 - 1


class Place(TypedDict):
    """What every command knows of itself."""

    keyword: str
    file: str
    mark: Mark


class ParsedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line whose keyword has been read."""

    cursor: Cursor
    reader: LineReader
    keyword: str
    file: str
    mark: Mark

    @property
    def place(self) -> Place:
        """The fields that all commands have."""
        return {"keyword": self.keyword, "file": self.file, "mark": self.mark}


def same_keyword(text: str, keyword: str) -> bool:
    """Whether a word is that keyword: case does not count, and `-` is the same as `_`."""
    return text.upper().replace("-", "_") == keyword.replace("-", "_")


def required(word: Word | None, cursor: Cursor, expected: str) -> Word:
    """The word, or a fault that says what was expected."""
    if word is None or not word.text:
        raise Fault("missing-word", f"expected {expected}, found the end of the line", cursor.line.mark)
    return word


def number(cursor: Cursor, expected: str, *, least: int = _LEAST, most: int = _MOST) -> int:
    """The next word as an integer between two bounds."""
    word = required(cursor.word(), cursor, expected)
    value = int(word.text) if _INTEGER.fullmatch(word.text) else None
    if value is None or not least <= value <= most:
        bounds = "" if (least, most) == (_LEAST, _MOST) else f" from {least}" + (f" to {most}" if most != _MOST else "")
        raise Fault("bad-number", f"expected {expected}, an integer{bounds}, found {word.text!r}", word.mark)
    return value


def refuse_rest(line: ParsedLine) -> None:
    """Nothing may follow."""
    word = line.cursor.word()
    if word is not None:
        raise Fault("unexpected-word", f"expected the end of the line, found {word.text!r}", word.mark)


def parse_node(line: ParsedLine) -> ast.Command:
    """JOB, FINAL, PROVISIONER, SERVICE."""
    kind: ast.NodeKind = "job"
    if line.keyword == "FINAL":
        kind = "final"
    elif line.keyword == "PROVISIONER":
        kind = "provisioner"
    elif line.keyword == "SERVICE":
        kind = "service"
    return _node(line, kind)


def parse_subdag(line: ParsedLine) -> ast.Command:
    """SUBDAG EXTERNAL."""
    word = line.cursor.word()
    if word is None or not same_keyword(word.text, "EXTERNAL"):
        raise Fault("missing-word", "expected EXTERNAL after SUBDAG", word.mark if word else line.mark)
    return _node(line, "subdag")


def _node(line: ParsedLine, kind: ast.NodeKind) -> ast.Command:
    cursor = line.cursor
    name = required(cursor.word(), cursor, "the name of a node")
    word = required(cursor.unquoted(), cursor, "a DAG file" if kind == "subdag" else "a submit description")
    description: Word | ast.Inline = word
    # The inline text is read before the name is judged, so that a bad name does not make its lines look like commands.
    if kind != "subdag" and (end := _inline_end(word)) is not None:
        description, cursor = _inline(line, word, end=end)
    _check_name(name)
    directory, noop, done = "", False, False
    while (option := cursor.word()) is not None:
        if same_keyword(option.text, "NOOP"):
            noop = True
        elif same_keyword(option.text, "DONE"):
            done = True
        elif same_keyword(option.text, "DIR"):
            directory = required(cursor.unquoted(), cursor, "a folder after DIR").text
        else:
            raise Fault("unexpected-word", f"expected DIR, NOOP or DONE, found {option.text!r}", option.mark)
    return ast.NodeCommand(
        kind=kind, name=name, description=description, directory=directory, noop=noop, done=done, **line.place
    )


def _check_name(name: Word) -> None:
    if name.text.upper() in RESERVED_NAMES:
        raise Fault("reserved-name", f"expected a node name, found the reserved word {name.text!r}", name.mark)
    if "+" in name.text:
        raise Fault(
            "illegal-name",
            f"expected a node name without '+', found {name.text!r}",
            name.mark,
            hint="'+' stands between a splice and its nodes",
        )


def _inline_end(word: Word) -> str | None:
    if word.text.startswith("{"):
        return "}"
    if word.text.startswith("@="):
        if len(word.text) == 2:
            raise Fault("bad-inline", "expected a closing word after '@=', found the end of the line", word.mark)
        return "@" + word.text[2:]
    return None


def _inline(line: ParsedLine, opening: Word, *, end: str) -> tuple[ast.Inline, Cursor]:
    lines: list[Line] = []
    while (inner := line.reader.raw()) is not None:
        if inner.text == end or inner.text.startswith(end + " "):
            inline = ast.Inline(tuple(lines), line.file, opening.mark)
            cursor = Cursor(inner)
            cursor.word()
            return inline, cursor
        lines.append(inner)
    raise Fault(
        "bad-inline",
        f"expected a line {end!r} that ends the inline submit description, found the end of the file",
        opening.mark,
    )


def parse_description(line: ParsedLine) -> ast.Command:
    """SUBMIT-DESCRIPTION."""
    name = required(line.cursor.word(), line.cursor, "the name of a submit description")
    opening = required(line.cursor.word(), line.cursor, "'{' or '@=WORD'")
    end = _inline_end(opening)
    if end is None:
        raise Fault("bad-inline", f"expected '{{' or '@=WORD', found {opening.text!r}", opening.mark)
    inline, _ = _inline(line, opening, end=end)
    return ast.DescriptionCommand(name=name, description=inline, **line.place)


def parse_splice(line: ParsedLine) -> ast.Command:
    """SPLICE."""
    cursor = line.cursor
    name = required(cursor.word(), cursor, "the name of a splice")
    path = required(cursor.unquoted(), cursor, "a DAG file")
    directory = ""
    if (option := cursor.word()) is not None:
        if not same_keyword(option.text, "DIR"):
            raise Fault("unexpected-word", f"expected DIR or the end of the line, found {option.text!r}", option.mark)
        directory = required(cursor.unquoted(), cursor, "a folder after DIR").text
        refuse_rest(line)
    return ast.SpliceCommand(name=name, path=path, directory=directory, **line.place)


def parse_include(line: ParsedLine) -> ast.Command:
    """INCLUDE."""
    path = required(line.cursor.unquoted(), line.cursor, "a file")
    refuse_rest(line)
    return ast.IncludeCommand(path=path, **line.place)
