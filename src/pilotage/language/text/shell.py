"""Putting values into a shell script so that each stays what it is, wherever it stands.

A value between words is quoted whole; inside double quotes, single quotes or a here-document it is escaped for that
place. Command substitutions nest: inside `"$( … )"` quoting starts anew.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal

Context = Literal["bare", "single", "double", "comment", "document", "literal-document", "backtick"]

_HERE = re.compile(r"<<-?[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][A-Za-z0-9_]*))")


def quote_for(value: str, context: Context) -> str:
    """A value as it must be written in a context to come out as itself."""
    if context == "double":
        return re.sub(r'([\\"$`])', r"\\\1", value)
    if context == "single":
        return value.replace("'", "'\\''")
    if context == "document":
        return re.sub(r"([\\$`])", r"\\\1", value)
    if context in ("comment", "literal-document"):
        return value.replace("\n", " ") if context == "comment" else value
    return shlex.quote(value)


class ShellScanner:
    """Goes through a script from left to right and knows in which context it stands."""

    def __init__(self) -> None:
        """Start between words."""
        self._open: list[Context] = ["bare"]
        self._documents: list[tuple[str, bool]] = []  # here-documents announced on this line: end word, and literal
        self._document: tuple[str, bool] | None = None
        self._line = ""
        self._word_starts = True
        self._escaped = False

    @property
    def context(self) -> Context:
        """Where the next character would stand."""
        if self._document is not None:
            return "literal-document" if self._document[1] else "document"
        return self._open[-1]

    def value(self) -> None:
        """Pass a value that is put in here."""
        self._word_starts = False
        self._line += "?"

    def text(self, text: str) -> None:
        """Pass a stretch of the script."""
        position = 0
        while position < len(text):
            position = self._step(text, position)

    def _step(self, text: str, position: int) -> int:
        character = text[position]
        if character == "\n":
            self._end_line()
            return position + 1
        self._line += character
        if self._document is not None:
            return position + 1
        if self._escaped:
            self._escaped = False
            return position + 1
        context = self._open[-1]
        if context == "comment":
            return position + 1
        if context == "single":
            if character == "'":
                self._open.pop()
            return position + 1
        return self._step_in_code(text, position, context)

    def _step_in_code(self, text: str, position: int, context: Context) -> int:
        character = text[position]
        starts, self._word_starts = self._word_starts, character in " \t;&|("
        if character == "\\":
            self._escaped = True
        elif text.startswith("$(", position) and not text.startswith("$((", position):
            self._open.append("bare")
            self._line += "("
            self._word_starts = True
            return position + 2
        elif character == "`":
            self._toggle("backtick", context)
        elif character == '"':
            self._toggle("double", context)
        elif context in ("bare", "backtick"):
            if character == "'":
                self._open.append("single")
            elif character == "#" and starts:
                self._open.append("comment")
            elif character == "(" and len(self._open) > 1 and context == "bare":
                self._open.append("bare")
            elif character == ")" and len(self._open) > 1 and context == "bare":
                self._open.pop()
            elif text.startswith("<<", position) and not text.startswith("<<<", position):
                return self._announce(text, position)
        return position + 1

    def _toggle(self, kind: Context, context: Context) -> None:
        if context == kind:
            self._open.pop()
        else:
            self._open.append(kind)

    def _announce(self, text: str, position: int) -> int:
        found = _HERE.match(text, position)
        if found is None:
            return position + 2
        word = found[1] or found[2] or found[3]
        is_literal = found[3] is None or "\\" in found[0]
        self._documents.append((word, is_literal))
        return found.end()

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        self._word_starts = True
        if self._document is not None:
            if line.lstrip("\t") == self._document[0]:
                self._document = self._documents.pop(0) if self._documents else None
            return
        if self._open[-1] == "comment":
            self._open.pop()
        self._escaped = False
        if self._documents and self._open[-1] not in ("single", "double"):
            self._document = self._documents.pop(0)
