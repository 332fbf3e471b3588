"""What one format says that another cannot: every such thing is listed, none is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pilotage.language.text.tree import NOWHERE, Mark


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that has no meaning on the other side: where it stood, its keyword, and what was lost and why."""

    file: str
    line: int
    keyword: str
    reason: str


class Losses:
    """The ordered list of losses of one import or export; the same loss is listed once."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[Loss, None] = {}

    def add(self, keyword: str, reason: str, *, file: str, mark: Mark = NOWHERE) -> None:
        """List one loss under its keyword."""
        self._entries.setdefault(Loss(file=file, line=mark.line, keyword=keyword, reason=reason))

    def extend(self, other: Losses) -> None:
        """List all losses of another list."""
        for loss in other:
            self._entries.setdefault(loss)

    def __iter__(self) -> Iterator[Loss]:
        """The losses in the order in which they were found."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)
