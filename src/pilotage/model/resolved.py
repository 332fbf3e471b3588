"""What was read for a job when it was submitted, and what appeared while it ran: enough to expand it again for ever."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

EXPANDER_VERSION = 1  # raised when the same definition and lists would give other packages


class ResolvedLists(msgspec.Struct, frozen=True, kw_only=True):
    """Every list of a job by a key that says what was asked, and the order in which late stages were laid out.

    The order matters: packages are numbered as their stages appear.
    """

    lists: Mapping[str, tuple[str, ...]] = {}
    growth: tuple[int, ...] = ()  # late stages, counted from 1
    expander_version: int = EXPANDER_VERSION

    def with_growth(self, stage: int, lists: Mapping[str, tuple[str, ...]]) -> ResolvedLists:
        """The lists after one more late stage was laid out over those given."""
        return ResolvedLists(
            lists={**self.lists, **lists}, growth=(*self.growth, stage), expander_version=self.expander_version
        )
