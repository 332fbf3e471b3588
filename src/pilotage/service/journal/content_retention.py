"""Removes files that were sent and that no job uses any more: folders of purged jobs, contents, and abandoned uploads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pilotage.book.query import EVERYTHING
from pilotage.book.rows.rows import JobRow
from pilotage.ports import ContentStore, Journal

DAY_SECONDS = 86_400.0
UNREGISTERED_SECONDS = DAY_SECONDS
"""How long a folder stays without a job in the book: its job is registered after the folder is made."""
_ROWS_AT_ONCE = 1000


def remove_unused_content(
    content: ContentStore,
    journal: Journal,
    folder_of: Callable[[JobRow], str | None],
    *,
    now: float,
    content_days: float,
    needed: Collection[str] = (),
) -> int:
    """Remove what no job of the book uses; returns how many folders, contents and uploads were removed.

    `needed` are the checksums of contents that jobs will fetch by their locators.
    """
    count = 0
    if folders := content.folders():
        used = {folder_of(row) for row in _jobs(journal)}
        for folder in folders:
            if folder not in used:
                count += content.remove_folder(folder, unless_since=now - UNREGISTERED_SECONDS)
    return count + content.remove_unused(before=now - content_days * DAY_SECONDS, needed=needed)


def _jobs(journal: Journal) -> Iterator[JobRow]:
    """The jobs of the book that were not purged."""
    after: str | None = None
    more = True
    while more:
        page = journal.find_jobs(EVERYTHING, after=after, limit=_ROWS_AT_ONCE)
        yield from (row for row in page.items if row.place != "purged")
        more = page.more
        if more:
            after = page.scanned_to if page.scanned_to is not None else page.items[-1].job
