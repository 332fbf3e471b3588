"""Checking and mending: what the events say can be folded anew from every journal, and damage is found and put right."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pilotage.book.rows import rows, streams
from pilotage.model.events.payloads import SiteDescribed, Tagged
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import Journal
from pilotage.service.journal.rebuild import BookCheck, check, rebuild
from tests.conformance.journal.harness import Harness, content, keeper
from tests.kit.events import START, Stream, a_short_job, cut, delivered, random_history

DAMAGES = {
    "a package's state": "UPDATE package_facts SET state = 'WAITING' WHERE line = 1",
    "a count": "UPDATE jobs SET done = done + 1",
    "a lost package": "DELETE FROM package_facts WHERE line = 2",
    "a lost stage": "DELETE FROM stages",
    "a tag": "UPDATE tags SET value = 'another'",
    "a site": "UPDATE sites SET kind = 'another'",
}


def verdict(journal: Journal, scratches: Iterator[Journal]) -> BookCheck:
    return check(journal, next(scratches))


def test_a_book_that_was_written_in_any_order_is_sound(
    harness: Harness, journal: Journal, scratches: Iterator[Journal]
) -> None:
    chance = random.Random(5)
    for each in cut(delivered(random_history(chance, steps=120), chance), chance):
        keeper(journal).take(each)
    for job in ("sealed", "purged"):
        keeper(journal).take(a_short_job(job))
    keeper(journal).take(a_short_job("parked")[1:])
    journal.seal("sealed")
    journal.purge("purged", at=1.0)
    found = verdict(journal, scratches)
    assert found.first == []
    assert found.sound
    assert journal.forgotten() == len(a_short_job())
    assert found.events == 122 + len(a_short_job())


def test_a_book_is_sound_that_was_told_of_a_purged_job_again_and_again(
    journal: Journal, scratches: Iterator[Journal]
) -> None:
    late = Stream("agent", "late").event(Tagged(name="t", value="late"), job="j1")
    keeper(journal).take([*a_short_job("j1"), *a_short_job("j2")])
    journal.purge("j1", at=START)
    for _ in range(2):
        receipt = keeper(journal).take([*a_short_job("j1"), late])
        assert {refusal.code for refusal in receipt.refused} == {"purged"}
    assert journal.forgotten() == len(a_short_job("j1")) + 1
    assert verdict(journal, scratches).first == []


def test_a_book_is_sound_of_which_a_stream_had_too_many_holes(
    journal: Journal, scratches: Iterator[Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RANGES_MAX", 2)
    by = Stream("client", "laptop")
    told = [by.event(Tagged(name="t", value=str(n)), job="j1") for n in range(9)]
    keeper(journal).take([*a_short_job("j1"), *told[2::3], *told[::4]])
    assert journal.forgotten() == 2
    assert verdict(journal, scratches).first == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_and_mended(harness: Harness, scratches: Iterator[Journal], damage: str) -> None:
    journal = harness.open()
    chance = random.Random(5)
    admin = Stream("client", "admin")
    tagged = admin.event(Tagged(name="t", value="a\x00b"), job="j1", package="1.1.1")
    described = admin.event(SiteDescribed(kind="slurm"), site="lyon")
    keeper(journal).take([*a_short_job(), tagged, described, *random_history(chance, jobs=1, steps=80)])
    before = content(harness)
    harness.close()
    harness.execute(damage)
    journal = harness.open()
    assert not verdict(journal, scratches).sound
    assert content(harness) != before or "state = 'WAITING'" in damage
    assert not rebuild(journal, next(scratches)).sound
    assert verdict(journal, scratches).first == []
    assert content(harness) == before


def test_events_without_a_job_and_labels_without_facts_are_told(harness: Harness) -> None:
    keeper(harness.open()).take([*a_short_job("j1"), *a_short_job("j2")])
    harness.close()
    harness.execute("DELETE FROM jobs WHERE job = 'j1'")
    harness.execute("UPDATE package_facts SET site = 'elsewhere' WHERE job_id = 2 AND line = 2")
    book = harness.open()
    job = book.job("j2")
    assert job is not None
    assert book.orphans() == [1]
    assert book.mislabelled(job) == [PackageId(1, 2, 1)]


def test_tags_of_a_job_are_listed_in_order_sealed_or_not(harness: Harness, journal: Journal) -> None:
    by = Stream("client", "laptop")
    events = [
        by.event(Tagged(name=name, value=name), job="j1", package=package)
        for package in (None, "1.1.1", "1.2.1")
        for name in ("b", "a", "B")
    ]
    keeper(journal).take([*a_short_job(), *events])
    everything = sorted(harness.rows(rows.TagRow), key=lambda row: (row.stage, row.line, row.number, row.name))
    book = journal
    for _ in range(2):
        job = journal.job("j1")
        assert job is not None
        found = book.tags(job, after=(-1, 0, 0, ""), limit=5)
        assert found == everything[:5]
        last = found[-1]
        assert book.tags(job, after=(last.stage, last.line, last.number, last.name), limit=99) == everything[5:]
        journal.seal("j1")


def test_events_that_waited_too_long_for_their_job_are_dropped(harness: Harness, journal: Journal) -> None:
    keeper(journal).take(a_short_job()[1:])
    keeping: Journal = journal
    waiting = len(a_short_job()) - 1
    assert (keeping.count_parked(before=START), keeping.count_parked(before=START + 1)) == (0, waiting)
    assert keeping.drop_parked(before=START) == 0
    assert keeping.drop_parked(before=START + 1) == waiting
    assert harness.rows(rows.ParkedRow) == []
    assert journal.forgotten() == waiting
