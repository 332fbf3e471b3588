"""Questions about the book: who may ask them, and where a page ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.app.state_folder import SystemClock
from pilotage.model.settings.settings import QuerySettings
from pilotage.reading.access import Forbidden, Principal
from pilotage.reading.queries import BookReader
from tests.kit.events import Stream, registered, shape
from tests.kit.sqlite_books import keep, opened

ADA = Principal(user="ada", scopes=frozenset({"book.read"}))
WRITER = Principal(user="ada", scopes=frozenset({"book.write"}))

QUESTIONS: dict[str, Callable[[BookReader, Principal], object]] = {
    "position": lambda reader, who: reader.position(who),
    "job": lambda reader, who: reader.job(who, "j"),
    "jobs": lambda reader, who: reader.jobs(who, "", cursor=None, limit=1),
    "packages": lambda reader, who: reader.packages(who, "job=j", cursor=None, limit=1),
    "events": lambda reader, who: reader.events(who, "job=j", cursor=None, limit=1),
    "count of jobs": lambda reader, who: reader.count_jobs(who, ""),
    "count of packages": lambda reader, who: reader.count_packages(who, "job=j"),
    "flows": lambda reader, who: reader.flows(who, window="1h", site=None, activity=None),
    "pilots": lambda reader, who: reader.pilots(who, after="", limit=1),
    "nodes": lambda reader, who: reader.nodes(who, after="", limit=1),
    "sites": lambda reader, who: reader.sites(who),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_only_who_may_read_the_book_is_answered(
    tmp_path: Path, question: Callable[[BookReader, Principal], object]
) -> None:
    with opened(tmp_path) as journal:
        keep(journal, [Stream().event(registered(), job="j")])
        reader = BookReader(journal, clock=SystemClock(), settings=QuerySettings())
        question(reader, ADA)
        with pytest.raises(Forbidden, match=r"book\.read"):
            question(reader, WRITER)


@pytest.mark.parametrize("limit, more", [(1, True), (2, False), (3, False)])
def test_the_last_page_says_so_though_it_is_full(tmp_path: Path, limit: int, *, more: bool) -> None:
    with opened(tmp_path) as journal:
        keep(journal, [Stream().event(registered(shape("simulate", lines=2)), job="j")])
        reader = BookReader(journal, clock=SystemClock(), settings=QuerySettings())
        page = reader.packages(ADA, "job=j", cursor=None, limit=limit)
        assert (len(page.items), page.next is not None) == (min(limit, 2), more)
