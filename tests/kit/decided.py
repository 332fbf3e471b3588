"""What must hold of the decisions in any book."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pilotage.book.codec import Checked
from pilotage.model.events import payloads


def check_decisions(book: Iterable[Checked]) -> None:
    """At most one grant for each package and epoch, and never beside an accepted cancel."""
    granted: Counter[tuple[str | None, str | None, int]] = Counter()
    cancelled = set()
    for one in book:
        about = (one.event.job, one.event.package, one.event.epoch)
        if isinstance(one.data, payloads.CommitGranted):
            granted[about] += 1
        elif isinstance(one.data, payloads.CancelAccepted):
            cancelled.add(about)
    assert [about for about, count in granted.items() if count > 1 or about in cancelled] == []
