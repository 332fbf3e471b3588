"""Errors of queries: the place, what is wrong there, and what to write instead."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pilotage.model.errors import PilotageError

Fault = TypeVar("Fault", bound="QueryError")

_BEFORE = 48
_EXCERPT = 96


def shown(value: object) -> str:
    """A value in an error message: quoted, and shortened."""
    text = value if isinstance(value, str) else type(value).__name__ if isinstance(value, list | dict) else repr(value)
    text = text if len(text) <= 48 else f"{text[:47]}…"
    return repr(text) if isinstance(value, str) else text


class QueryError(PilotageError):
    """A malformed query: correct it at the column of the caret."""

    def __init__(
        self,
        what: str,
        *,
        subject: str = "query",
        query: str = "",
        column: int = 0,
        expected: str = "",
        got: str = "",
        next_step: str = "",
    ) -> None:
        """Take the text of the query and the column, counted in characters from 1; 0 means the whole query."""
        self.query = query
        self.column = column
        where = f"{subject}, column {column}" if column else subject
        super().__init__(what, subject=where, expected=expected, got=got, next_step=next_step)

    @property
    def caret(self) -> str:
        """Two lines, the query around the column and a caret below it; empty without a column."""
        if not self.column:
            return ""
        start = max(0, self.column - 1 - _BEFORE)
        excerpt = self.query[start : start + _EXCERPT]
        line = "".join(_plain(character) for character in excerpt)
        before = "… " if start else ""
        after = " …" if start + _EXCERPT < len(self.query) else ""
        return f"{before}{line}{after}\n{' ' * (len(before) + self.column - 1 - start)}^"

    def __str__(self) -> str:
        """What is wrong, the query with its caret, and the hint, each on its own line."""
        text = self.subject + ": " + self.what
        text += f"; expected {self.expected}" if self.expected else ""
        text += f", got {self.got}" if self.got else ""
        lines = [*self.caret.splitlines(), *self.next_step.splitlines()]
        return "\n  ".join([text, *lines])


def _plain(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "?"


class PackageByName(QueryError):
    """A package that is not given by number: a caller that knows package names parses the query again with them."""


class QueryTooBroad(PilotageError):
    """No index serves the query: add a condition on an indexed attribute, or let the attribute be indexed."""


class CursorError(PilotageError):
    """A malformed cursor, or one of another query: start again without one."""


class QueryPlace(msgspec.Struct, frozen=True):
    """The place of a part of a query: an offset into its text, or a path into its JSON form."""

    text: str = ""
    offset: int = -1
    path: str = ""

    def error(self, what: str, *, expected: str = "", got: str = "", next_step: str = "") -> QueryError:
        """An error at this place."""
        return self._made(QueryError, what, expected=expected, got=got, next_step=next_step)

    def by_name(self, what: str, *, expected: str, got: str) -> PackageByName:
        """An error at what may be the name of a package."""
        return self._made(PackageByName, what, expected=expected, got=got)

    def _made(self, kind: type[Fault], what: str, *, expected: str = "", got: str = "", next_step: str = "") -> Fault:
        subject = f"query, {self.path}" if self.path else "query"
        return kind(
            what,
            subject=subject,
            query=self.text,
            column=self.offset + 1,
            expected=expected,
            got=got,
            next_step=next_step,
        )
