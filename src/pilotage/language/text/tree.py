"""A document as a tree of nodes with their positions.

All readers work on these nodes, which come from YAML and JSON text or from Python values. Faults are not raised one by
one, but collected in a `Report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pilotage.model.errors import DocumentError, Problem


class Mark(msgspec.Struct, frozen=True):
    """A position in a text: line and column from 1; 0 means that there is none."""

    line: int = 0
    column: int = 0


NOWHERE = Mark()
_SHOWN_COLUMN_MAX = 10_000  # some lines are megabytes long
_SHOWN_BEHIND = 400
_SEARCHED_LINES_MAX = 200


class Scalar(msgspec.Struct, frozen=True):
    """A single value as text, so that `1.10` stays `1.10`, and whether it was plain (unquoted)."""

    text: str
    plain: bool
    mark: Mark = NOWHERE


class Listing(msgspec.Struct, frozen=True):
    """A sequence of nodes."""

    items: tuple[Node, ...]
    mark: Mark = NOWHERE


class Table(msgspec.Struct, frozen=True):
    """A mapping, in document order, with unique keys."""

    entries: tuple[tuple[Scalar, Node], ...]
    mark: Mark = NOWHERE

    def get(self, key: str) -> Node | None:
        """The node under a key, or None."""
        for name, node in self.entries:
            if name.text == key:
                return node
        return None

    def keys(self) -> Iterator[str]:
        """The keys in document order."""
        return (name.text for name, _ in self.entries)


Node = Scalar | Listing | Table


class Report:
    """Collects the errors and warnings of one document."""

    def __init__(self, file: str, lines: Sequence[str] = ()) -> None:
        """`lines` are the lines of the text, shown above the caret."""
        self.file = file
        self.lines = lines
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []

    def error(self, code: str, message: str, mark: Mark = NOWHERE, *, hint: str = "", file: str = "") -> None:
        """Add an error, which rejects the document."""
        self.errors.append(self._problem(code, message, mark, hint=hint, file=file))

    def warn(self, code: str, message: str, mark: Mark = NOWHERE, *, hint: str = "", file: str = "") -> None:
        """Add a warning, which does not reject the document."""
        self.warnings.append(self._problem(code, message, mark, hint=hint, file=file))

    def found(self, mark: Mark, text: str) -> Mark:
        """The position of a text, searched from a position on; that position if the text is not nearby."""
        first = mark.line - 1
        if not text or first < 0:
            return mark
        for number, line in enumerate(self.lines[first : first + _SEARCHED_LINES_MAX]):
            column = line.find(text, mark.column - 1 if number == 0 else 0)
            if column >= 0:
                return Mark(mark.line + number, column + 1)
        return mark

    def refuse_if_faulty(self) -> None:
        """Raise a `DocumentError` with all errors so far, if there are any."""
        if self.errors:
            raise DocumentError(self.errors)

    def _problem(self, code: str, message: str, mark: Mark, *, hint: str, file: str) -> Problem:
        own = not file or file == self.file
        source = self.lines[mark.line - 1] if own and 0 < mark.line <= len(self.lines) else ""
        return Problem(
            file=file or self.file,
            line=mark.line,
            column=mark.column,
            code=code,
            message=message,
            hint=hint,
            source=source[: mark.column + _SHOWN_BEHIND] if mark.column <= _SHOWN_COLUMN_MAX else "",
        )


def tree_of(value: object) -> Node:
    """The nodes of a plain Python value; None becomes an empty scalar, which readers reject."""
    if isinstance(value, bool):
        return Scalar("true" if value else "false", plain=True)
    if isinstance(value, (int, float)):
        return Scalar(repr(value), plain=True)
    if isinstance(value, str):
        return Scalar(value, plain=False)
    if value is None:
        return Scalar("", plain=True)
    if isinstance(value, Mapping):
        return Table(tuple((Scalar(str(key), plain=False), tree_of(item)) for key, item in value.items()))
    if isinstance(value, Sequence):
        return Listing(tuple(tree_of(item) for item in value))
    raise TypeError(f"a document can contain text, numbers, lists and mappings, not {type(value).__name__}")
