"""How a query is refused: the place, what is wrong there, and what could be written instead."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pilotage.model.errors import PilotageError

Fault = TypeVar("Fault", bound="QueryError")

_BEFORE = 48
_EXCERPT = 96


def shown(value: object) -> str:
    """A value as an error message shows it: quoted, and cut where it is long."""
    text = value if isinstance(value, str) else type(value).__name__ if isinstance(value, list | dict) else repr(value)
    text = text if len(text) <= 48 else f"{text[:47]}…"
    return repr(text) if isinstance(value, str) else text


class QueryError(PilotageError):
    """A query that cannot be read: mend it at the column that the caret shows."""

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
        """Keep the text of the query and the column, which counts characters from 1; 0 means the whole query."""
        self.query = query
        self.column = column
        where = f"{subject}, column {column}" if column else subject
        super().__init__(what, subject=where, expected=expected, got=got, next_step=next_step)

    @property
    def caret(self) -> str:
        """Two lines, the query about the column and a caret below it; empty where there is no column."""
        if not self.column:
            return ""
        start = max(0, self.column - 1 - _BEFORE)
        excerpt = self.query[start : start + _EXCERPT]
        line = "".join(_plain(character) for character in excerpt)
        before = "… " if start else ""
        after = " …" if start + _EXCERPT < len(self.query) else ""
        return f"{before}{line}{after}\n{' ' * (len(before) + self.column - 1 - start)}^"

    def __str__(self) -> str:
        """What is wrong, the place with its caret, and the hint, each on lines of their own."""
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
    """A package that is not named by its place: whoever knows the names of packages reads the query again with them."""


class QueryTooBroad(PilotageError):
    """No index serves the query: add a condition on an indexed attribute, or have the attribute indexed."""


class CursorError(PilotageError):
    """A cursor that does not belong to this query, or to any: start again without one."""


class Place(msgspec.Struct, frozen=True):
    """Where a part of a query stands: an offset into its text, or a path into its JSON form."""

    text: str = ""
    offset: int = -1
    path: str = ""

    def error(self, what: str, *, expected: str = "", got: str = "", next_step: str = "") -> QueryError:
        """The error that points here."""
        return self._made(QueryError, what, expected=expected, got=got, next_step=next_step)

    def by_name(self, what: str, *, expected: str, got: str) -> PackageByName:
        """The error that points to what may be the name of a package."""
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
