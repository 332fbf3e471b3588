"""Whole jobs: sealed and brought back, dumped and loaded, purged; and contents, kept by their hash."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import msgspec
import pytest

from pilotage.book.query import EVERYTHING, parse
from pilotage.book.rows import rows
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import (
    CancelAccepted,
    Cleared,
    JobAccepted,
    Noted,
    StageExpanded,
    StageShape,
    Tagged,
)
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import Journal, JournalError
from tests.conformance.journal.harness import Content, Harness, content, keeper
from tests.kit.events import Stream, a_short_job, cut, delivered, random_history, registered, shape

CONTENT = b"pilotage: 1\njob: sweep\n\x00\xff"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def a_tagged_job(job: str = "j1", *, packages: int = 3) -> list[Event]:
    """A finished job with tags of its own and of a package."""
    by = Stream("client", f"{job}-laptop")
    return [
        *a_short_job(job, packages=packages),
        by.event(Tagged(name="study", value="A12"), job=job),
        by.event(Tagged(name="colour", value="red"), job=job, package="1.1.1"),
    ]


def seen(journal: Journal, job: str) -> dict[str, Any]:
    """Everything that the port tells of one job."""
    row = journal.job(job)
    assert row is not None
    packages = journal.find_packages(EVERYTHING, after=None, limit=1000, job=row)
    events = journal.find_events(EVERYTHING, after=0, limit=1000, job=row)
    assert not packages.more
    assert not events.more
    return {
        "row": msgspec.structs.replace(row, place=""),
        "stages": journal.stages(row),
        "packages": packages.items,
        "one": journal.package(row, PackageId(1, 1, 1)),
        "count": journal.count_packages(EVERYTHING, job=row),
        "by state": journal.count_packages(parse("state=DONE"), job=row),
        "by tag": [
            each.row for each in journal.find_packages(parse("tag.colour=red"), after=None, limit=9, job=row).items
        ],
        "line": journal.line_counts(row, stage=1, line=1),
        "events": events.items,
        "of one": journal.find_events(EVERYTHING, after=0, limit=1000, job=row, place=PackageId(1, 1, 1)).items,
    }


def place(journal: Journal, job: str) -> str:
    row = journal.job(job)
    assert row is not None
    return row.place


def test_a_sealed_job_reads_as_before_and_leaves_the_live_book(harness: Harness, journal: Journal) -> None:
    keeper(journal).take(a_tagged_job())
    keeper(journal).take(a_short_job("other"))
    before = seen(journal, "j1")
    journal.seal("j1")
    assert place(journal, "j1") == "sealed"
    assert seen(journal, "j1") == before
    assert {row.job_id for row in harness.packages()} == {2}
    assert {row.job_id for row in harness.rows(rows.EventRow)} == {2}
    assert {row.job_id for row in harness.rows(rows.StageRow)} == {2}


def test_what_is_sealed_stays_so_when_the_book_is_opened_again(harness: Harness) -> None:
    journal = harness.open()
    keeper(journal).take(a_tagged_job())
    before = seen(journal, "j1")
    journal.seal("j1")
    journal.seal("j1")
    again = harness.reopen()
    assert place(again, "j1") == "sealed"
    assert seen(again, "j1") == before


def test_a_job_that_was_brought_back_is_as_it_was(harness: Harness, journal: Journal) -> None:
    keeper(journal).take(a_tagged_job())
    before, told = content(harness), seen(journal, "j1")
    journal.seal("j1")
    journal.unseal(["j1"])
    journal.unseal(["j1"])
    assert content(harness) == before
    assert seen(journal, "j1") == told


def test_a_late_event_brings_a_sealed_job_back_and_repeats_are_recognised(harness: Harness, journal: Journal) -> None:
    taking = keeper(journal)
    events = a_tagged_job()
    taking.take(events)
    journal.seal("j1")
    assert taking.take(events).repeated == len(events)
    assert place(journal, "j1") == "live"
    journal.seal("j1")
    late = Stream("client", "late").event(Cleared(by="user"), job="j1", package="1.1.1")
    assert taking.take([late]).kept == 1
    assert place(journal, "j1") == "live"
    assert sorted(row.facts.state for row in harness.packages()) == ["CLEARED", "DONE", "DONE"]


def test_a_job_that_goes_on_is_not_sealed(journal: Journal) -> None:
    keeper(journal).take(a_short_job()[:4])
    with pytest.raises(JournalError, match="only a job that has ended"):
        journal.seal("j1")
    assert place(journal, "j1") == "live"


def test_packages_of_sealed_jobs_are_found_only_by_naming_the_job(journal: Journal) -> None:
    keeper(journal).take([*a_tagged_job("j1"), *a_tagged_job("j2")])
    journal.seal("j1")
    by_owner = journal.find_packages(parse("owner=ada"), after=None, limit=99)
    assert {found.job for found in by_owner.items} == {"j2"}
    by_name = journal.find_packages(parse("job in (j1, j2)"), after=None, limit=99)
    assert [found.job for found in by_name.items] == ["j1"] * 3 + ["j2"] * 3
    assert journal.count_packages(parse("owner=ada")) == 3
    assert journal.count_sealed() == 1
    assert journal.count_packages(parse("job in (j1, j2) and state=DONE")) == 6


def test_sealed_jobs_are_counted_until_they_are_brought_back_or_purged(journal: Journal) -> None:
    keeper(journal).take([*a_tagged_job("j1"), *a_tagged_job("j2"), *a_tagged_job("j3")])
    assert journal.count_sealed() == 0
    for job in ("j1", "j2", "j3"):
        journal.seal(job)
    assert journal.count_sealed() == 3
    journal.unseal(["j1"])
    journal.purge("j2", at=9.0)
    assert journal.count_sealed() == 1


def test_a_sealed_job_is_found_by_its_own_tags(journal: Journal) -> None:
    keeper(journal).take(a_tagged_job())
    journal.seal("j1")
    assert [row.job for row in journal.find_jobs(parse("tag.study=A12"), after=None, limit=9).items] == ["j1"]
    assert journal.count_jobs(parse("state=DONE and tag.study=A12")) == 1


def test_nobody_knows_a_job_that_is_unknown(journal: Journal) -> None:
    assert journal.job("j1") is None
    for refused in (
        lambda: journal.seal("j1"),
        lambda: journal.unseal(["j1"]),
        lambda: journal.purge("j1", at=1.0),
        lambda: list(journal.dump("j1")),
    ):
        with pytest.raises(JournalError, match="no such job"):
            refused()


def test_a_purged_job_says_so_and_nothing_else_is_left_of_it(harness: Harness, journal: Journal) -> None:
    taking = keeper(journal)
    taking.take([*a_tagged_job("j1"), *a_tagged_job("j2")])
    rest = _of(content(harness), "j2")
    journal.purge("j1", at=1234.5)
    row = journal.job("j1")
    assert row is not None
    assert (row.place, row.purged_at, row.state, row.name, row.owner) == ("purged", 1234.5, "DONE", "sweep", "ada")
    assert (row.tags, row.definition, row.keys) == ("{}", None, b"")
    left = _of(content(harness), "j1")
    assert [name for name, found in left.items() if found] == ["jobs"]
    assert _of(content(harness), "j2") == rest
    assert journal.find_events(EVERYTHING, after=0, limit=9, job=row).items == []
    assert journal.find_packages(EVERYTHING, after=None, limit=9, job=row).items == []
    late = taking.take([Stream("client", "late").event(Noted(text="too late"), job="j1")])
    assert [one.code for one in late.refused] == ["purged"]
    with pytest.raises(JournalError, match="purged"):
        list(journal.dump("j1"))
    journal.purge("j1", at=99.0)
    again = harness.reopen().job("j1")
    assert again == row


def test_a_sealed_job_is_purged_as_well(harness: Harness, journal: Journal) -> None:
    keeper(journal).take(a_tagged_job())
    journal.seal("j1")
    journal.purge("j1", at=5.0)
    row = journal.job("j1")
    assert row is not None
    assert row.place == "purged"
    assert journal.stages(row) == []
    assert journal.package(row, PackageId(1, 1, 1)) is None
    assert harness.rows(rows.TagRow) == []


def _of(everything: Content, job: str) -> Content:
    """What a store holds of one job."""
    tables = ("jobs", "stages", "tags", "packages")
    found: Content = {name: {k: v for k, v in everything[name].items() if k[0] == job} for name in tables}
    found["events"] = {key: value for key, value in everything["events"].items() if value[0] == job}
    return found


@pytest.mark.parametrize("place_of_first", ["live", "sealed"])
@pytest.mark.parametrize("seed", range(2))
def test_a_loaded_dump_is_the_same_job(
    harness: Harness, both: tuple[Harness, Harness], seed: int, place_of_first: str
) -> None:
    chance = random.Random(seed)
    journal = harness.open()
    events = random_history(chance, jobs=2, steps=80)
    events += _cancelled("job-1")
    for each in cut(delivered(events, chance), chance):
        keeper(journal).take(each)
    before = {job: _of(content(harness), job) for job in ("job-1", "job-2")}
    if place_of_first == "sealed":
        journal.seal("job-1")
    dumped = list(journal.dump("job-1"))
    for other in both:
        elsewhere = other.open()
        keeper(elsewhere).take(a_short_job("unrelated"))
        assert elsewhere.load(dumped) == "job-1"
        assert _of(content(other), "job-1") == before["job-1"]
        # What was loaded is known: the same events again are repeats, and a dump of it says the same.
        again = [event for event in events if event.job == "job-1"]
        assert keeper(elsewhere).take(again).repeated == len(again)
        assert _events(elsewhere.dump("job-1")) == _events(dumped)
    assert _of(content(harness), "job-2") == before["job-2"]


def _cancelled(job: str) -> list[Event]:
    """The end of a job, whatever happened to it before."""
    by = Stream("service", "last")
    places = [*(f"1.{line}.{number}" for line in (1, 2, 3) for number in (1, 2)), "2.1.1"]
    return [
        by.event(CancelAccepted(), job=job, epoch=99),
        *(by.event(CancelAccepted(), job=job, package=place, epoch=99) for place in places),
    ]


def _events(lines: Any) -> list[Any]:
    """The events of a dump, and when they were received."""
    found = [msgspec.json.decode(line) for line in lines]
    return [(line["event"], line["received"]) for line in found if "event" in line]


def test_dumps_are_in_the_order_of_positions_and_the_same_in_both_stores(both: tuple[Harness, Harness]) -> None:
    dumps = []
    for harness in both:
        journal = harness.open()
        journal.put_content(CONTENT)
        by = Stream()
        events = [by.event(registered(definition=SHA256), job="j1"), by.event(JobAccepted(), job="j1")]
        for each in cut([*events, *random_history(random.Random(1), jobs=1)], random.Random(1)):
            keeper(journal).take(each)
        for name in ("j1", "job-1"):
            lines = list(journal.dump(name))
            page = journal.find_events(EVERYTHING, after=0, limit=10_000, job=journal.job(name))
            told = [(each.source, each.stream, each.row.n) for each in page.items]
            assert [(event["source"], event["stream"], event["n"]) for event, _ in _events(lines)] == told
            assert len(told) > 1
            dumps.append(lines)
    assert dumps[:2] == dumps[2:]


def test_a_job_that_is_known_is_not_loaded_over(harness: Harness, journal: Journal) -> None:
    keeper(journal).take(a_tagged_job())
    before = content(harness)
    dumped = list(journal.dump("j1"))
    with pytest.raises(JournalError, match="known here already"):
        journal.load(dumped)
    journal.purge("j1", at=1.0)
    with pytest.raises(JournalError, match="known here already"):
        journal.load(dumped)
    assert content(harness)["streams"] == before["streams"]


@pytest.mark.parametrize("harm", ["cut", "changed", "longer"])
def test_a_harmed_dump_is_refused_whole(harness: Harness, both: tuple[Harness, Harness], harm: str) -> None:
    journal = harness.open()
    keeper(journal).take(a_tagged_job())
    lines = list(journal.dump("j1"))
    harmed = {
        "cut": lines[:-1],
        "changed": [line.replace(b"lyon", b"nice") for line in lines],
        "longer": [*lines[:-1], lines[-2], lines[-1]],
    }[harm]
    elsewhere = both[0] if harness.name == "sqlite" else both[1]
    into = elsewhere.open()
    with pytest.raises(JournalError, match="dump"):
        into.load(harmed)
    assert into.job("j1") is None
    assert not any(content(elsewhere).values())


def test_contents_are_kept_by_their_hash(harness: Harness) -> None:
    journal = harness.open()
    assert journal.content(SHA256) is None
    assert journal.put_content(CONTENT) == journal.put_content(CONTENT) == SHA256
    assert journal.put_content(b"") == hashlib.sha256(b"").hexdigest()
    again = harness.reopen()
    assert again.content(SHA256) == CONTENT
    assert again.content(hashlib.sha256(b"").hexdigest()) == b""
    assert again.content("no hash") is None
    large = bytes(range(256)) * 20_000
    assert again.content(again.put_content(large)) == large


def test_many_contents_are_kept_at_once(harness: Harness) -> None:
    journal = harness.open()
    journal.put_content(CONTENT)
    many = [CONTENT, b"", *(b"%d" % number for number in range(300)), b"7"]
    assert journal.put_contents(many) == [hashlib.sha256(each).hexdigest() for each in many]
    assert journal.put_contents(many[:3]) == [hashlib.sha256(each).hexdigest() for each in many[:3]]
    assert journal.put_contents(()) == []
    again = harness.reopen()
    assert [again.content(hashlib.sha256(each).hexdigest()) for each in many] == many


def test_contents_leave_and_come_with_their_job_and_go_with_the_last_that_speaks_of_them(
    harness: Harness, both: tuple[Harness, Harness]
) -> None:
    journal = harness.open()
    journal.put_content(CONTENT)
    list_sha = journal.put_content(b"a list")
    by = Stream()
    taking = keeper(journal)
    for job in ("j1", "j2"):
        taking.take([
            by.event(registered(StageShape(late=True), definition=SHA256), job=job),
            by.event(StageExpanded(stage=1, shape=shape(), lists={"files": list_sha}), job=job),
            by.event(JobAccepted(), job=job),
            by.event(Cleared(by="user"), job=job),
        ])  # fmt: skip
    for other in both:
        elsewhere = other.open()
        elsewhere.load(journal.dump("j1"))
        assert (elsewhere.content(SHA256), elsewhere.content(list_sha)) == (CONTENT, b"a list")
    journal.purge("j1", at=1.0)
    assert (journal.content(SHA256), journal.content(list_sha)) == (CONTENT, b"a list")
    journal.seal("j2")
    assert (journal.content(SHA256), journal.content(list_sha)) == (CONTENT, b"a list")
    journal.purge("j2", at=1.0)
    assert (journal.content(SHA256), journal.content(list_sha)) == (None, None)
