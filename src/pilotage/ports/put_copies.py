"""What this service put into stores for attempts whose outputs are not granted yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from pilotage.model.exchange.exchange import AttemptRef


class PutCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of an output of an attempt in a store; `put` if it was not there before, so that it is ours to remove."""

    ref: AttemptRef
    locator: str
    sha256: str
    owner: str = ""  # of the job
    put: bool = True


class PutCopies(Protocol):
    """Remembers copies until their attempts are granted or they are removed. Every method raises `StoreError`."""

    def note(self, copy: PutCopy) -> None:
        """Remember a copy, before it is put; that it is ours is not forgotten when it is noted again."""
        ...

    def noted(self) -> list[PutCopy]:
        """All that are remembered."""
        ...

    def forget(self, copies: Iterable[PutCopy]) -> None:
        """Forget copies: they stay in their stores, or are gone."""
        ...

    def close(self) -> None:
        """Close it."""
        ...
