"""Reading: every query finds what its meaning says, page by page, and asks for a narrower one where no index serves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from pilotage.adapters.journals.queries import INDEXABLE
from pilotage.book.query import EVERYTHING, Condition, Operator, Query, QueryTooBroad, matches, parse
from pilotage.book.rows import rows
from pilotage.book.rows.rows import JobRow
from pilotage.model.events.payloads import NodeDescribed, PilotEnded, PilotStarted, SiteDescribed, Tagged
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import FoundEvent, FoundPackage, Journal, Page
from tests.conformance.journal.harness import Harness, content, keeper
from tests.kit.events import START, Stream, a_short_job, random_history, registered

EVERYTHING_INDEXED = frozenset().union(*INDEXABLE.values())

JOB_QUERIES = (
    "all", "job=job-2", "job in (job-1, job-3, nobody)", "owner=ada", "owner!=ada and state in (RUNNING, DONE)", "name='name of job-1'",
    "state=RUNNING or state=WAITING", "state not in (RUNNING) and owner=ada", "submitted < 2030-01-01",
    "updated >= 2023-11-14T22:13:21Z", "entered within 2023-01-01..2030-01-01", "tag.study=plain",
    "tag.study=plain or tag.study=''", "tag.nothing!=x and owner=ada", "held=yes and owner=ada", "cause=quota",
    "owner=ada and (state=CANCELLED or cause=quota)", "parent=x",
)  # fmt: skip
PACKAGE_QUERIES = (
    "job=job-1", "job in (job-1, job-2) and state=RUNNING", "state=RUNNING", "state in (RUNNING, WAITING, CANCELLED)",
    "site=lyon", "site=lyon or site=prague", "site=lyon and state!=RUNNING", "node=node-17", "exit_code=SUCCESS",
    "exit_code in (UNDEFINED, EXECUTION_FAILED)", "reason=out-of-memory or cause=retries-exhausted",
    "activity=simulate and attempts > 1", "owner=ada and attempts >= 2", "owner=ada and pilot='p/1'",
    "tag.colour=plain", "tag.colour=plain or tag.step=plain", "owner=ada and tag.colour!=plain",
    "owner=ada and held=yes", "owner=ada and dropped=yes", "owner=ada and held=no", "owner=ada and package=1.2.1",
    "owner=ada and package not in (1.2.1, 2.1.1)", "owner=ada and entered > 2023-11-14T22:13:30Z",
    "owner=ada and updated within 2023-11-14T22:13:20Z..2023-11-14T22:15:00Z", "name='name of job-2' and site!=lyon",
    "owner=ada and (state=DONE or state=CLEARED)", "job=nobody", "job=job-1 and site=lyon and tag.colour=plain",
    "submitted < 2030-01-01", "submitted within 2023-11-14T22:13:20Z..2023-11-14T22:13:30Z", "submitted > 2030-01-01",
    "entered > 2023-11-14T22:14:00Z", "entered <= 2023-11-14T22:14:00Z", "entered within 2023-11-14T22:14:00Z..2030-01-01",
    "updated >= 2023-11-14T22:14:30Z", "updated < 2023-11-14T22:14:30Z or attempts > 1", "attempts=1", "attempts < 2",
    "attempts in (0, 2, 3)", "attempts within 1..3 and site!=lyon", "attempts >= 2 and job=job-1", "attempts > 1000",
    "job=job-2 and attempts=1 and updated > 2023-11-14T22:14:00Z", "attempts != 1 and entered > 2023-11-14T22:13:50Z",
)  # fmt: skip
EVENT_QUERIES = (
    "job=job-1", "job in (job-1, job-2) and type=AttemptFinished", "job=job-1 and source=agent", "position < 40",
    "position within 10..60 and type in (Tagged, Noted)", "position > 100", "position=5 or position=7",
    "position>=1 and site=lyon", "position>=1 and pilot='p/1'", "position>=1 and job!=job-1",
    "job=job-2 and attempt > 1", "job=job-1 and package=1.1.1", "position>=1 and stream=core and attempt!=1",
    "position>=1 and time > 2023-11-14T22:14:00Z", "job=job-1 and position > 50",
)  # fmt: skip


@pytest.fixture
def book(harness: Harness) -> Journal:
    """Three jobs of which much was heard, in a journal that has every index."""
    journal = harness.open(indexed=EVERYTHING_INDEXED)
    keeper(journal).take(random_history(random.Random(11), jobs=3, packages=4, steps=240))
    return journal


def pages(find: Callable[..., Page[Any]], after: Any, key: Callable[[Any], Any]) -> list[Any]:
    """All items, a page at a time."""
    found: list[Any] = []
    while True:
        page = find(after=after)
        found += page.items
        if not page.more:
            return found
        after = page.scanned_to if page.scanned_to is not None else key(page.items[-1])


def place_of(found: FoundPackage) -> tuple[str, PackageId]:
    return found.job, PackageId(found.row.stage, found.row.line, found.row.number)


def job_values(row: JobRow, tags: Mapping[str, str]) -> dict[str, Any]:
    return {
        "job": row.job, "name": row.name, "parent": row.parent, "owner": row.owner, "state": row.state, "held": row.held,
        "cause": row.cause, "submitted": row.submitted_at, "entered": row.entered_at, "updated": row.updated_at,
        "tags": tags,
    }  # fmt: skip


def package_values(found: FoundPackage, job: JobRow) -> dict[str, Any]:
    facts, place = found.row.facts, place_of(found)[1]
    shown = facts.attempts.get(facts.attempt or 0)
    return {
        "job": job.job, "name": job.name, "parent": job.parent, "owner": job.owner, "submitted": job.submitted_at,
        "package": place.dotted, "state": facts.state, "site": facts.site, "node": facts.node,
        "exit_code": facts.exit_code, "reason": facts.reason, "cause": facts.cause,
        "activity": facts.activity or None, "pilot": shown.pilot if shown else None, "attempts": len(facts.attempts),
        "entered": facts.entered_at, "updated": facts.updated_at, "held": facts.held, "dropped": facts.dropped,
        "tags": {name: value[0] for name, value in facts.tags.items()},
    }  # fmt: skip


def event_values(found: FoundEvent) -> dict[str, Any]:
    row = found.row
    return {
        "job": found.job, "package": PackageId(row.stage, row.line, row.number).dotted if row.stage else None,
        "position": row.position, "pilot": row.pilot, "site": row.site, "type": row.type, "source": found.source,
        "stream": found.stream, "attempt": row.attempt or None, "time": row.time,
    }  # fmt: skip


@pytest.mark.parametrize("limit", [1, 1000])
def test_jobs_are_found_by_what_a_query_means(harness: Harness, book: Journal, limit: int) -> None:
    tags = {key[0]: value for key, value in content(harness)["tags"].items() if key[1] == 0 and key[4] == "study"}
    everything = sorted(harness.rows(rows.JobRow), key=lambda row: row.job)
    for text in JOB_QUERIES:
        query = parse(text)
        meant = [row for row in everything if matches(query, job_values(row, {"study": tags[row.job]}))]
        found = pages(partial(book.find_jobs, query, limit=limit), None, lambda row: row.job)
        assert found == meant, text
        assert book.count_jobs(query) == len(meant), text


@pytest.mark.parametrize("limit", [2, 1000])
def test_packages_are_found_by_what_a_query_means(harness: Harness, book: Journal, limit: int) -> None:
    jobs = {row.job_id: row for row in harness.rows(rows.JobRow)}
    everything = [
        FoundPackage(job=jobs[row.job_id].job, owner=jobs[row.job_id].owner, row=row)
        for row in sorted(harness.packages(), key=lambda row: (row.job_id, row.stage, row.line, row.number))
    ]
    some = 0
    for text in PACKAGE_QUERIES:
        query = parse(text)
        meant = [each for each in everything if matches(query, package_values(each, jobs[each.row.job_id]))]
        found = pages(partial(book.find_packages, query, limit=limit), None, place_of)
        assert found == meant, text
        assert book.count_packages(query) == len(meant), text
        some += bool(meant)
    assert some > len(PACKAGE_QUERIES) // 2


@pytest.mark.parametrize("limit", [7, 1000])
def test_events_are_found_by_what_a_query_means(harness: Harness, book: Journal, limit: int) -> None:
    jobs = {row.job_id: row.job for row in harness.rows(rows.JobRow)}
    streams = {row.stream_id: row for row in harness.rows(rows.StreamRow)}
    everything = [
        FoundEvent(
            job=jobs.get(row.job_id or 0), source=streams[row.stream_id].source, stream=streams[row.stream_id].stream,
            row=row,
        )
        for row in sorted(harness.rows(rows.EventRow), key=lambda row: row.position)
    ]  # fmt: skip
    for text in EVENT_QUERIES:
        query = parse(text)
        meant = [each for each in everything if matches(query, event_values(each))]
        found = pages(partial(book.find_events, query, limit=limit), 0, lambda each: each.row.position)
        assert found == meant, text
    for job in harness.rows(rows.JobRow):
        place = PackageId(1, 1, 1)
        about = [each for each in everything if each.row.job_id == job.job_id]
        assert book.find_events(EVERYTHING, after=0, limit=1000, job=job).items == about
        of_one = [each for each in about if (each.row.stage, each.row.line, each.row.number) == (1, 1, 1)]
        assert book.find_events(EVERYTHING, after=0, limit=1000, job=job, place=place).items == of_one
        tagged = [each for each in about if each.row.type == "Tagged"]
        assert book.find_events(parse("type=Tagged"), after=0, limit=1000, job=job).items == tagged


@pytest.mark.parametrize("value", ["a\x00b\x1a", 'it\'s "so" 100%', "\U0001f600", "x" * 5000, "x" * 4999 + "y"])
def test_a_tag_is_found_by_any_value(journal: Journal, value: str) -> None:
    by = Stream()
    taking = keeper(journal)
    taking.take([by.event(registered(tags={"study": "x" * 5000}), job=f"j{number}") for number in (1, 2)])
    taking.take([
        by.event(Tagged(name="study", value=value), job="j2"),
        by.event(Tagged(name="study", value=value), job="j2", package="1.2.1"),
        by.event(Tagged(name="study", value="other"), job="j2", package="1.1.1"),
    ])  # fmt: skip
    query = tagged("study", value)
    assert [row.job for row in journal.find_jobs(query, after=None, limit=9).items][-1] == "j2"
    found = journal.find_packages(query, after=None, limit=9)
    assert [place_of(each) for each in found.items] == [("j2", PackageId(1, 2, 1))]
    assert journal.count_packages(query) == 1


def tagged(name: str, value: str) -> Query:
    return Query(((Condition(attribute="tag", tag=name, operator=Operator.EQUAL, values=(value,)),),))


def test_a_query_that_no_index_serves_is_refused(journal: Journal) -> None:
    for text in ("node=n1", "attempts > 1", "state=DONE", "owner!=ada"):
        with pytest.raises(QueryTooBroad):
            journal.find_packages(parse(text), after=None, limit=9)
        with pytest.raises(QueryTooBroad):
            journal.count_packages(parse(text))
    with pytest.raises(QueryTooBroad):
        journal.find_packages(EVERYTHING, after=None, limit=9)
    with pytest.raises(QueryTooBroad):
        journal.find_jobs(parse("held=yes"), after=None, limit=9)
    with pytest.raises(QueryTooBroad):
        journal.find_events(parse("type=Tagged"), after=0, limit=9)
    # Whoever names the job may ask anything of it.
    keeper(journal).take(a_short_job())
    job = journal.job("j1")
    assert job is not None
    assert journal.count_packages(parse("state=DONE and attempts > 0"), job=job) == 2
    assert journal.count_packages(parse("job=j1 and state=DONE")) == 2


def test_things_that_are_not_there_are_not_found(journal: Journal) -> None:
    keeper(journal).take([Stream().event(registered(), job="j1")])
    job = journal.job("j1")
    assert job is not None
    assert journal.package(job, PackageId(1, 1, 1)) is None
    assert journal.line_counts(job, stage=1, line=1) == rows.StateHistogram()
    assert [row.stage for row in journal.stages(job)] == [1]
    assert journal.job("j\x00") is None
    assert journal.sites() == []
    assert journal.find_jobs(parse("owner=nobody"), after="zzz", limit=5).items == []


def test_the_histogram_of_a_line_counts_its_rows(harness: Harness, book: Journal) -> None:
    for job in harness.rows(rows.JobRow):
        for line in (1, 2, 3):
            counts = book.line_counts(job, stage=1, line=line)
            states = [
                row.facts for row in harness.packages() if (row.job_id, row.stage, row.line) == (job.job_id, 1, line)
            ]
            assert counts.running == sum(facts.state == "RUNNING" and not facts.dropped for facts in states)
            assert counts.dropped == sum(facts.dropped for facts in states)
            assert counts.touched == sum(facts.shaped for facts in states)
            assert counts.started == sum(facts.started and not facts.dropped for facts in states)


def test_the_latest_pilots_of_a_site_are_found_however_many_there_were_before(journal: Journal) -> None:
    by = Stream("agent", "a1")
    keeper(journal).take([
        *(by.event(PilotStarted(site="lyon"), pilot=f"lyon-{number}", time=1000.0 + number) for number in range(30)),
        by.event(PilotStarted(site="paris"), pilot="paris-1", time=2000.0),
        by.event(PilotEnded(reason="ended", stderr="no"), pilot="lyon-1", time=3000.0),
    ])  # fmt: skip
    found = journal.latest_pilots("lyon", limit=3)
    assert [(row.pilot, row.stderr) for row in found] == [("lyon-1", "no"), ("lyon-29", None), ("lyon-28", None)]
    assert [row.pilot for row in journal.latest_pilots("paris", limit=9)] == ["paris-1"]


def test_pilots_nodes_and_sites_are_listed_by_name(journal: Journal) -> None:
    by = Stream("agent", "a1")
    names = ["b", "B", "a", "é/x", "Z"]
    keeper(journal).take([
        *(by.event(PilotStarted(site="lyon"), pilot=name.replace("é", "e")) for name in names),
        *(by.event(NodeDescribed(node=name), site="lyon") for name in names),
        *(by.event(SiteDescribed(kind="slurm"), site=name.replace("é", "e")) for name in names),
    ])  # fmt: skip
    plain = sorted(name.replace("é", "e") for name in names)
    assert [row.pilot for row in journal.pilots(after="", limit=3)] == plain[:3]
    assert [row.pilot for row in journal.pilots(after=plain[2], limit=9)] == plain[3:]
    assert [journal.pilot(name) for name in plain] == journal.pilots(after="", limit=9)
    assert journal.pilot(f"{plain[0]}x") is None
    assert [row.node for row in journal.nodes(after="", limit=9)] == sorted(names)
    assert [row.node for row in journal.nodes(after=sorted(names)[3], limit=9)] == sorted(names)[4:]
    assert [journal.node(name) for name in sorted(names)] == journal.nodes(after="", limit=9)
    assert journal.node("x") is None
    assert journal.nodes_named(["x", *names]) == journal.nodes(after="", limit=9)
    assert journal.nodes_named([]) == []
    assert [row.site for row in journal.sites()] == sorted({*plain, "lyon"} & {row.site for row in journal.sites()})


def test_statistics_are_read_by_their_slices(harness: Harness, journal: Journal) -> None:
    keeper(journal).take(a_short_job())
    everything = harness.rows(rows.StatisticRow)
    fine = [row for row in everything if row.width_seconds == 10]
    assert fine
    first = int(START) // 10
    assert sorted(map(repr, journal.statistics(width_seconds=10, slices=range(first, first + 100)))) == sorted(
        map(repr, fine)
    )
    assert journal.statistics(width_seconds=10, slices=range(first + 100, first + 200)) == []
    assert journal.statistics(width_seconds=10, slices=range(0)) == []


def test_many_threads_read_while_one_writes(journal: Journal) -> None:
    events = a_short_job(packages=60)
    taking = keeper(journal)
    taking.take(events[:2])
    done = threading.Event()
    faults: list[BaseException | str] = []

    def read() -> None:
        try:
            while not done.is_set():
                _look(journal, faults)
        except BaseException as fault:  # noqa: BLE001 # whatever it is, the test tells
            faults.append(fault)

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    for start in range(2, len(events), 9):
        taking.take(events[start : start + 9])
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []


def _look(journal: Journal, faults: list[Any]) -> None:
    job = journal.job("j1")
    assert job is not None
    found = journal.find_packages(EVERYTHING, after=None, limit=1000, job=job)
    # Whole commits only: never fewer packages than an earlier look at the job's own row counted.
    if len(found.items) < job.touched:
        faults.append(f"{job.touched} packages were counted, {len(found.items)} found")
