"""Whole histories through the keeper: the same rows in every store, whatever the batches and the order of delivery."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal

import pytest

from pilotage.book.rows import rows
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import JobAccepted, Noted, Tagged
from pilotage.ports import Journal
from tests.conformance.journal.harness import Content, Harness, content, keeper
from tests.kit.events import AWKWARD, Stream, a_short_job, batch, cut, delivered, random_history, registered

VIEWS = ("packages", "attempts", "phases", "files")


def ingest(harness: Harness, batches: Iterable[list[Event]]) -> Content:
    """Take batches in as they come over the wire, and look at what became of them."""
    taking = keeper(harness.open())
    for each in batches:
        assert taking.take_batch(batch(each)).refused == []
    return content(harness)


@pytest.mark.parametrize("seed", range(5))
def test_both_stores_hold_the_same_rows(both: tuple[Harness, Harness], seed: int) -> None:
    events = delivered(random_history(random.Random(seed), steps=120), random.Random(seed))
    batches = list(cut(events, random.Random(seed)))
    first, second = both
    assert ingest(first, batches) == ingest(second, batches)
    for row in (rows.JobRow, rows.StreamRow, rows.EventRow, rows.TagRow):
        # To the last number and byte, for the same batches give the same numbers.
        assert sorted(map(repr, first.rows(row))) == sorted(map(repr, second.rows(row)))


def test_both_stores_hold_the_same_statistics(both: tuple[Harness, Harness]) -> None:
    first, second = both
    for harness in both:
        ingest(harness, cut(a_short_job(packages=30), random.Random(1)))
    told = sorted(map(repr, first.rows(rows.StatisticRow)))
    assert told == sorted(map(repr, second.rows(rows.StatisticRow)))
    assert len(told) > 2


@pytest.mark.parametrize("seed", range(3))
def test_neither_order_nor_batches_nor_repeats_matter(harness: Harness, both: tuple[Harness, ...], seed: int) -> None:
    events = random_history(random.Random(seed), steps=120)
    plain = ingest(harness, [events])
    for number, other in enumerate(both):
        chance = random.Random(100 * seed + number)
        assert ingest(other, cut(delivered(events, chance), chance, size_max=30)) == plain


@pytest.mark.parametrize("seed", range(3))
def test_the_views_show_the_same_in_both_stores(both: tuple[Harness, Harness], seed: int) -> None:
    events = random_history(random.Random(seed), steps=150)
    for harness in both:
        ingest(harness, [events])
    first, second = ({view: _shown(harness, view) for view in VIEWS} for harness in both)
    assert first == second
    assert first["packages"]


def _shown(harness: Harness, view: str) -> list[str]:
    # JSON and text beside it is spelt as each store likes; numbers are numbers.
    columns = [name for name in _columns(harness, view) if name not in ("tags", "exit_message", "name")]
    found = harness.execute(f"SELECT {', '.join(columns)} FROM {view}")
    return sorted(repr([float(value) if isinstance(value, int | Decimal) else value for value in row]) for row in found)


def _columns(harness: Harness, view: str) -> list[str]:
    if harness.name == "sqlite":
        return [name for (name,) in harness.execute(f"SELECT name FROM pragma_table_info('{view}') ORDER BY cid")]
    named = "SELECT column_name FROM information_schema.columns"
    where = f"WHERE table_schema = 'public' AND table_name = '{view}' ORDER BY ordinal_position"
    return [name for (name,) in harness.execute(f"{named} {where}")]


def test_tables_and_views_have_the_same_names_and_columns(both: tuple[Harness, Harness]) -> None:
    for harness in both:
        harness.open()
    tables = ("jobs", "stages", "package_facts", "events", "tags", "pilots", "nodes", "sites", "contents", *VIEWS)
    for name in tables:
        first, second = (_columns(harness, name) for harness in both)
        assert first == second, name
        assert first, name


def test_views_name_the_job_and_the_package_beside_their_numbers(harness: Harness) -> None:
    ingest(harness, [a_short_job("j1")])
    for view in VIEWS:
        assert _columns(harness, view)[:3] == ["job_id", "job", "package"], view
    for view in ("packages", "attempts"):
        found = {tuple(row) for row in harness.execute(f"SELECT job, package, stage, line, number FROM {view}")}
        assert found == {("j1", "1.1.1", 1, 1, 1), ("j1", "1.2.1", 1, 2, 1)}, view


def test_events_of_a_job_that_is_not_registered_are_parked_and_count_when_it_is(harness: Harness) -> None:
    journal = harness.open()
    events = a_short_job()
    receipt = keeper(journal).take(events[1:])
    assert (receipt.parked, receipt.kept) == (len(events) - 1, 0)
    with journal.transaction() as ledger:
        assert len(ledger.parked("j1")) == len(events) - 1
    again = keeper(harness.reopen())
    assert again.take(events[1:]).repeated == len(events) - 1
    again.take(events[:1])
    assert harness.rows(rows.ParkedRow) == []
    late = content(harness)
    assert [job["state"] for job in late["jobs"].values()] == ["DONE"]
    assert len(late["events"]) == len(events)


def test_the_same_identity_with_other_content_is_refused_and_the_rest_is_kept(journal: Journal) -> None:
    taking = keeper(journal)
    taking.take(a_short_job())
    by = Stream(stream="j1-service")
    other = [by.event(registered(owner="eve"), job="j1"), by.event(Noted(text="other"), job="j1", package="1.1.1")]
    by.n = 100
    receipt = taking.take([*other, by.event(JobAccepted(), job="j1")])
    assert [(one.index, one.code) for one in receipt.refused] == [(0, "conflict"), (1, "conflict")]
    assert receipt.kept == 1


@pytest.mark.parametrize("text", AWKWARD, ids=range(len(AWKWARD)))
def test_a_tag_of_any_text_neither_breaks_its_batch_nor_changes(harness: Harness, text: str) -> None:
    taking = keeper(harness.open())
    by = Stream()
    about = {"study": text} if text else {}
    events = [
        by.event(registered(tags=about), job="j1"),
        by.event(Tagged(name="of_package", value=text), job="j1", package="1.1.1"),
        by.event(Noted(text=text), job="j1"),
    ]
    assert taking.take_batch(batch(events)).refused == []
    assert {row.value for row in harness.rows(rows.TagRow)} == {text}
    assert taking.take_batch(batch(events)).repeated == len(events)
    (package,) = harness.packages()
    assert package.facts.tags["of_package"][0] == text
