"""The packages of a job page by page: whatever the size of a page, what was heard of, and how far one look reaches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.journals.postgres.journal import PostgresJournal
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.query import parse
from pilotage.book.rows.rows import JobRow
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import Journal
from pilotage.reading import packages
from pilotage.reading.packages import count_of, packages_of
from pilotage.service.journal.writer import BatchCommitter
from tests.engines.postgres import PostgresServer
from tests.kit.served_book import WallClock, event

SHAPED = [PackageId(1, line, number) for line in (1, 2, 3, 4) for number in (1, 2)]
LATER = [PackageId(3, line, 1) for line in (1, 2, 3)]
EVERYONE = sorted([*SHAPED, PackageId(1, 2, 9), PackageId(2, 5, 5), *LATER])
"""Every package: those of two known stages, and two that only their own events tell of."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    stages = [
        {"items": 2, "templates": [{"lines": 2, "activities": ["reco", "merge"]}]},
        {"late": True},
        {"items": 3, "templates": [{"lines": 1, "activities": ["plot"]}]},
    ]
    heard = ["1.1.2", "1.2.9", "1.4.1", "2.5.5", "3.2.1"]
    events = [
        event(1, "JobRegistered", {"owner": "ann", "name": "name", "stages": stages}, job="j"),
        event(2, "JobAccepted", job="j"),
        *[event(n, "Bound", {"site": "lyon"}, job="j", package=place) for n, place in enumerate(heard, 3)],
    ]
    with ExitStack() as stack:
        journal: Journal
        if request.param == "sqlite":
            journal = SqliteJournal(tmp_path_factory.mktemp("book"), durable=False)
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            server.ensure_running()
            url = server.database()
            stack.callback(server.drop, url)
            journal = PostgresJournal(url)
        stack.callback(journal.close)
        receipt = BatchCommitter(journal, clock=WallClock()).take_batch(msgspec.json.encode({"events": events}))
        assert receipt.refused == []
        yield journal


@pytest.fixture
def job(journal: Journal) -> JobRow:
    row = journal.job("j")
    assert row is not None
    return row


def everything(journal: Journal, job: JobRow, query: str, *, limit: int) -> list[PackageId]:
    """Every page of a query, one behind the other."""
    found: list[PackageId] = []
    after = None
    while True:
        page = packages_of(journal, job, parse(query), after=after, limit=limit)
        assert len(page.items) <= limit
        found += [each.place for each in page.items]
        if not page.more:
            return found
        last = page.scanned_to if page.scanned_to is not None else page.items[-1].place
        assert after is None or last > after, "a page that does not move on"
        after = last


@pytest.mark.parametrize("looks_max", [1, 2, 3, 20_000])
@pytest.mark.parametrize(
    "query, expected",
    [
        ("all", EVERYONE),
        ("state=WAITING", [place for place in EVERYONE if place.dotted not in ("1.1.2", "1.2.9", "1.4.1", "2.5.5", "3.2.1")]),
        ("state=READY", [PackageId(1, 1, 2), PackageId(1, 2, 9), PackageId(1, 4, 1), PackageId(2, 5, 5), PackageId(3, 2, 1)]),
        ("activity=plot", LATER),
        ("activity in (merge, plot) and state=WAITING", [PackageId(1, line, 2) for line in (2, 3, 4)] + [LATER[0], LATER[2]]),
        ("package in (1.3.1, 1.4.1, 3.3.1)", [PackageId(1, 3, 1), PackageId(1, 4, 1), PackageId(3, 3, 1)]),
        ("state=DONE", []),
    ],
)  # fmt: skip
def test_all_pages_together_are_what_was_asked_for_whatever_their_size(
    journal: Journal,
    job: JobRow,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    expected: list[PackageId],
    looks_max: int,
) -> None:
    monkeypatch.setattr(packages, "LOOKS_MAX", looks_max)
    for limit in (1, 2, 3, 5, 13, 14, 100):
        assert everything(journal, job, query, limit=limit) == expected, limit


def test_what_was_not_heard_of_knows_its_activity(journal: Journal, job: JobRow) -> None:
    page = packages_of(journal, job, parse("all"), after=PackageId(1, 3, 1), limit=2)
    assert [(each.activity, each.facts is None) for each in page.items] == [("merge", True), ("reco", False)]


def test_a_package_is_found_by_its_place_heard_of_or_not(journal: Journal, job: JobRow) -> None:
    known = [place for place in EVERYONE if packages.package_of(journal, job, place) is not None]
    assert known == EVERYONE
    for absent in (PackageId(1, 5, 1), PackageId(1, 1, 3), PackageId(2, 1, 1), PackageId(4, 1, 1)):
        assert packages.package_of(journal, job, absent) is None


def test_a_sealed_job_has_the_same_packages(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path, durable=False)
    shape = {"items": 2, "templates": [{"lines": 1, "activities": ["reco"]}]}
    events = [
        event(1, "JobRegistered", {"owner": "ann", "name": "name", "stages": [shape]}, job="j"),
        event(2, "CancelAccepted", job="j"),
        event(3, "CancelAccepted", job="j", package="1.2.1"),
    ]
    BatchCommitter(journal, clock=WallClock()).take_batch(msgspec.json.encode({"events": events}))
    journal.seal("j")
    job = journal.job("j")
    assert job is not None
    assert everything(journal, job, "state=CANCELLED", limit=1) == [PackageId(1, 1, 1), PackageId(1, 2, 1)]
    journal.close()


@pytest.mark.parametrize(
    "query",
    [
        "all",
        "state=WAITING",
        "state!=WAITING",
        "state=READY",
        "state=DONE",
        "activity=plot",
        "activity!=plot",
        "activity=reco and state=WAITING",
        "activity in (merge, plot) and state=WAITING",
        "(activity=merge or site=lyon) and job=j",
        "job=j and job=other",
        "package in (1.3.1, 1.4.1, 3.3.1, 7.7.7)",
        "package!=1.3.1 and state=WAITING",
        "package not in (1.3.1, 1.4.1) and activity=reco",
        "(package=1.3.1 or activity=plot) and state=WAITING",
        "package=1.3.1 and activity=merge",
    ],
)
def test_what_is_counted_is_what_is_listed(journal: Journal, job: JobRow, query: str) -> None:
    assert count_of(journal, job, parse(query)) == len(everything(journal, job, query, limit=100))


def test_packages_that_nothing_was_heard_of_are_counted_without_a_look_at_each(tmp_path: Path) -> None:
    stages = [{"items": 900_000, "templates": [{"lines": 1, "activities": ["reco", "merge"]}]}]
    events = [
        event(1, "JobRegistered", {"owner": "ann", "name": "name", "stages": stages}, job="j"),
        event(2, "Bound", {"site": "lyon"}, job="j", package="1.5.2"),
    ]
    journal = SqliteJournal(tmp_path, durable=False)
    try:
        BatchCommitter(journal, clock=WallClock()).take_batch(msgspec.json.encode({"events": events}))
        row = journal.job("j")
        assert row is not None
        begun = time.process_time()
        assert count_of(journal, row, parse("activity=merge and state=SUBMITTED")) == 899_999
        assert count_of(journal, row, parse("state=SUBMITTED and package!=1.1.1")) == 1_799_998
        assert time.process_time() - begun < 0.5
    finally:
        journal.close()
