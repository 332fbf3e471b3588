"""Lists what a conversion between formats loses, so that nothing is lost silently."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pilotage.language.text.tree import NOWHERE, Mark


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One loss: its position in the source, its keyword, and what was lost and why."""

    file: str
    line: int
    keyword: str
    reason: str


class Losses:
    """The losses of one import or export in order, without duplicates."""

    def __init__(self) -> None:
        self._entries: dict[Loss, None] = {}

    def add(self, keyword: str, reason: str, *, file: str, mark: Mark = NOWHERE) -> None:
        """Add one loss."""
        self._entries.setdefault(Loss(file=file, line=mark.line, keyword=keyword, reason=reason))

    def extend(self, other: Losses) -> None:
        """Add all losses of another list."""
        for loss in other:
            self._entries.setdefault(loss)

    def __iter__(self) -> Iterator[Loss]:
        """The losses in order."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)
