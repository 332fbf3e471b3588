"""Pages of a SQLite book: whatever is asked, all pages together are what matches, in order, each once, and nothing is
read through for it."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.adapters.journals.queries import INDEXABLE
from pilotage.adapters.journals.sqlite.connections import connect_reader
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.query import Query, QueryTooBroad, Target, matches, parse
from pilotage.book.query.attributes import TAG
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.rows import AttemptFacts, EventRow, JobRow, PackageFacts, PackageRow, StreamRow, TagRow
from pilotage.model.jobs.layout import PackageId
from tests.property.test_queries_sql import TEXTS, job_attributes, package_attributes, queries

EVERY_INDEX = frozenset().union(*INDEXABLE.values())
ONE_TAG = (EVERY_INDEX - {TAG}) | {"tag.study", "tag.it's"}
JOBS = ["j1", "j2", "J1", "a", "z", "sealed"]
STATES = ["SUBMITTED", "WAITING", "READY", "SCHEDULED", "DONE", "CLEARED"]


class Told:
    """The statements that readers ran, whose plans can then be looked at."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def plans(self, path: Path) -> Iterator[tuple[str, str]]:
        """What SQLite does for each of them."""
        connection = connect_reader(path)
        for statement in dict.fromkeys(self.statements):
            if statement.startswith("SELECT"):
                for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}"):
                    yield statement, detail
        connection.close()


class Filled:
    """A book with rows of every kind, and the same rows as values."""

    def __init__(self, folder: Path, *, indexed: frozenset[str]) -> None:
        chance = random.Random(7)
        self.journal = SqliteJournal(folder, indexed=indexed, scanned_max=3)
        self.jobs: list[JobRow] = []
        self.packages: list[tuple[JobRow, PackageRow]] = []
        self.events: list[tuple[JobRow | None, EventRow]] = []
        self.job_tags: dict[int, dict[str, str]] = {}
        changes = Changes(streams=[StreamRow(stream_id=1, source="agent", stream="a")])
        for job_id, job in enumerate(JOBS, 1):
            self._job(changes, chance, job_id, job)
        self._event(None, PackageId(0, 0, 0), chance)
        changes.events = [msgspec.structs.astuple(row) for _, row in self.events]
        with self.journal.transaction() as ledger:
            ledger.write(changes)
        self.journal.seal("sealed")

    def _job(self, changes: Changes, chance: random.Random, job_id: int, job: str) -> None:
        row = JobRow(
            job_id=job_id, job=job, name=chance.choice(TEXTS[:3]), owner=chance.choice(TEXTS[:2]),
            parent=chance.choice([None, *TEXTS[:2]]), state="DONE" if job == "sealed" else chance.choice(STATES),
            submitted_at=chance.choice([None, 0.0, 1.0, 1.5]), entered_at=chance.choice([None, 1.0, 1.5]),
            updated_at=chance.choice([0.0, 1.0]), held=chance.randint(0, 1), cause=chance.choice([None, "a"]),
        )  # fmt: skip
        self.jobs.append(row)
        changes.jobs.append(row)
        self._event(row, PackageId(0, 0, 0), chance)
        self.job_tags[job_id] = {"study": chance.choice(TEXTS[:2])} if chance.random() < 0.6 else {}
        changes.tags += [TagRow(job_id, 0, 0, 0, name, value) for name, value in self.job_tags[job_id].items()]
        places = [PackageId(s, line, n) for s in (1, 2) for line in (1, 2) for n in (1, 2) if chance.random() < 0.7]
        for place in places:
            tags = {name: chance.choice(TEXTS[:2]) for name in ("study", "it's") if chance.random() < 0.5}
            facts = PackageFacts(
                state=chance.choice(STATES), site=chance.choice([None, *TEXTS[:3]]), node=chance.choice([None, "a"]),
                exit_code=chance.choice([None, "SUCCESS"]), reason=chance.choice([None, "a", "b"]), cause="b",
                activity=chance.choice(["", "a"]), attempt=1,
                attempts={number: AttemptFacts(pilot="a") for number in range(1, chance.randint(1, 3) + 1)},
                entered_at=chance.choice([None, 1.0, 1.5]), updated_at=chance.choice([0.0, 1.0, 1.5]),
                tags={name: (value, (1, 0, 0, 1, "s")) for name, value in tags.items()},
            )  # fmt: skip
            facts.positions = [self._event(row, place, chance) for _ in range(chance.randint(1, 3))]
            package = PackageRow(job_id, place.stage, place.line, place.number, facts)
            self.packages.append((row, package))
            changes.packages.append(package)
            key = (job_id, place.stage, place.line, place.number)
            changes.tags += [TagRow(*key, name, value) for name, value in tags.items()]

    def _event(self, job: JobRow | None, place: PackageId, chance: random.Random) -> int:
        row = EventRow(
            position=len(self.events) + 1, stream_id=1, n=len(self.events) + 1, type=chance.choice(TEXTS[:3]), version=1,
            time=chance.choice([0.0, 1.0]), received=1.0, skewed=0, epoch=1, seen=0,
            job_id=job.job_id if job is not None else None, stage=place.stage, line=place.line, number=place.number,
            attempt=chance.randint(0, 2), pilot=None, site=None if job else "a", data="{}",
        )  # fmt: skip
        self.events.append((job, row))
        return row.position


@pytest.fixture(scope="module", params=[EVERY_INDEX, ONE_TAG], ids=["every-index", "one-tag"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    made = Filled(tmp_path_factory.mktemp("book"), indexed=request.param)
    yield made
    made.journal.close()


def all_pages(find: Any, query: Query, **more: Any) -> list[Any]:
    found: list[Any] = []
    after = more.pop("start")
    for _ in range(1000):
        page = find(query, after=after, limit=2, **more)
        assert len(page.items) <= 2
        found += page.items
        if not page.more:
            return found
        assert page.scanned_to is not None
        assert page.scanned_to != after
        after = page.scanned_to
    raise AssertionError("pages without end")


def without_scans(filled: Filled, told: Told) -> None:
    for statement, detail in told.plans(filled.journal.folder / "book.sqlite"):
        assert not re.match(r"SCAN [pet]\b(?! VIRTUAL)", detail), f"{detail}: {statement}"
        assert "TEMP B-TREE" not in detail or "FROM jobs" in statement, f"{detail}: {statement}"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, filled: Filled) -> Told:
    told = Told()

    def traced(path: Path) -> sqlite3.Connection:
        connection = connect_reader(path)
        connection.set_trace_callback(told.statements.append)
        return connection

    monkeypatch.setattr("pilotage.adapters.journals.sqlite.connections.connect_reader", traced)
    monkeypatch.setattr("pilotage.adapters.journals.sqlite.connections.IDLE_MAX", 0)
    return told


quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])


@quick
@given(query=queries(Target.JOBS))
def test_jobs_are_listed_and_counted(filled: Filled, told: Told, query: Query) -> None:
    told.statements.clear()
    try:
        found = all_pages(filled.journal.find_jobs, query, start=None)
    except QueryTooBroad:
        return
    expected = [
        row.job
        for row in sorted(filled.jobs, key=lambda row: row.job)
        if matches(query, {**job_attributes(row), "tags": filled.job_tags[row.job_id]})
    ]
    assert [row.job for row in found] == expected
    assert filled.journal.count_jobs(query) == len(expected)
    without_scans(filled, told)


@quick
@given(query=queries(Target.PACKAGES), named=st.sampled_from([None, None, *JOBS]))
def test_packages_are_listed_and_counted(filled: Filled, told: Told, query: Query, named: str | None) -> None:
    told.statements.clear()
    job = filled.journal.job(named) if named else None
    try:
        found = all_pages(filled.journal.find_packages, query, start=None, job=job)
    except QueryTooBroad:
        return
    # A sealed job is asked by name.
    says = [clause for clause in query.clauses if all(each.attribute == "job" for each in clause)]
    by_name = named is not None or any(all(not each.operator.denies for each in clause) for clause in says)
    expected = [
        (row.job, package.stage, package.line, package.number)
        for row, package in filled.packages
        if named in (None, row.job) and matches(query, package_attributes(row, package))
        if by_name or row.job != "sealed"
    ]
    assert [(each.job, each.row.stage, each.row.line, each.row.number) for each in found] == expected
    assert all(matches(query, package_attributes(filled.jobs[each.row.job_id - 1], each.row)) for each in found)
    assert filled.journal.count_packages(query, job=job) == len(expected)
    without_scans(filled, told)


@quick
@given(query=queries(Target.EVENTS), named=st.sampled_from([None, None, *JOBS]), data=st.data())
def test_events_are_listed(filled: Filled, told: Told, query: Query, named: str | None, data: st.DataObject) -> None:
    told.statements.clear()
    job = filled.journal.job(named) if named else None
    places = [PackageId(row.stage, row.line, row.number) for each, row in filled.packages if job and each.job == named]
    place = data.draw(st.sampled_from([None, *places]))
    try:
        found = all_pages(filled.journal.find_events, query, start=0, job=job, place=place)
    except QueryTooBroad:
        return
    says = [clause for clause in query.clauses if all(each.attribute == "job" for each in clause)]
    by_name = named is not None or any(all(not each.operator.denies for each in clause) for clause in says)
    expected = [
        row.position
        for each, row in filled.events
        if named is None or (each is not None and each.job == named)
        if place is None or place == PackageId(row.stage, row.line, row.number)
        if matches(query, event_attributes(each, row)) and (by_name or each is None or each.job != "sealed")
    ]
    assert [each.row.position for each in found] == expected
    without_scans(filled, told)


def event_attributes(job: JobRow | None, row: EventRow) -> dict[str, object]:
    return {
        "job": job.job if job else None, "position": row.position, "source": "agent", "stream": "a", "type": row.type,
        "package": PackageId(row.stage, row.line, row.number).dotted if row.stage else None, "pilot": row.pilot,
        "site": row.site, "attempt": row.attempt or None, "time": row.time,
    }  # fmt: skip


def test_a_state_in_which_nearly_all_packages_end_is_asked_with_a_job(filled: Filled) -> None:
    for text in ("state=DONE", "state in (RUNNING, CLEARED)", "state=DONE or site=a"):
        with pytest.raises(QueryTooBroad, match="DONE or CLEARED"):
            filled.journal.find_packages(parse(text), after=None, limit=10)
    done = filled.journal.find_packages(parse("state=DONE and job=j1"), after=None, limit=10)
    assert {each.job for each in done.items} <= {"j1"}
