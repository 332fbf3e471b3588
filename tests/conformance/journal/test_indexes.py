"""Times and counts of packages can have an index where a setting asks for it, also in a book that has packages already."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from pilotage.adapters.journals.queries import DEFAULT_INDEXED
from pilotage.book.query import BOOK_OPERATORS, Condition, Operator, Query, QueryTooBroad, matches, parse
from pilotage.book.rows import rows
from pilotage.model.events.payloads import AttemptCreated
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import Journal
from tests.conformance.journal.harness import Harness, PostgresHarness, content, keeper
from tests.conformance.journal.test_reading import package_values, place_of
from tests.kit.events import Stream, a_short_job, random_history

NUMBERS = frozenset({"submitted", "entered", "updated", "attempts"})
QUERIES = (
    "submitted >= 2023-11-14", "entered > 2023-11-14T22:14:00Z", "entered <= 2023-11-14T22:14:00Z",
    "updated within 2023-11-14T22:13:20Z..2023-11-14T22:14:30Z", "attempts=1", "attempts in (0, 2)", "attempts >= 2",
    "attempts < 2", "attempts within 1..3", "attempts=2 or updated > 2023-11-14T22:14:30Z",
)  # fmt: skip


def finds_what_is_meant(harness: Harness, journal: Journal) -> None:
    jobs = {row.job_id: row for row in harness.rows(rows.JobRow)}
    everything: dict[tuple[str, PackageId], dict[str, Any]] = {}
    for job in jobs.values():
        found = journal.find_packages(parse(f"job={job.job}"), after=None, limit=1000).items
        everything |= {place_of(each): package_values(each, job) for each in found}
    for text in QUERIES:
        query = parse(text)
        meant = [place for place, values in everything.items() if matches(query, values)]
        found = journal.find_packages(query, after=None, limit=1000).items
        assert sorted(map(place_of, found)) == sorted(meant), text
        assert journal.count_packages(query) == len(meant), text


def refuses_all_but_the_time_of_the_job(journal: Journal) -> None:
    for text in QUERIES[1:]:
        with pytest.raises(QueryTooBroad):
            journal.count_packages(parse(text))
    assert journal.count_packages(parse(QUERIES[0])) > 0  # by the index that jobs have


def test_an_index_is_made_of_a_book_and_kept_and_dropped(harness: Harness) -> None:
    journal = harness.open()
    history = random_history(random.Random(5), jobs=2, packages=4, steps=200)
    keeper(journal).take(history[:120])
    refuses_all_but_the_time_of_the_job(journal)
    harness.close()
    journal = harness.open(indexed=NUMBERS)
    finds_what_is_meant(harness, journal)
    keeper(journal).take(history[120:])
    finds_what_is_meant(harness, journal)
    before = content(harness)
    harness.close()
    journal = harness.open(indexed=NUMBERS)
    finds_what_is_meant(harness, journal)
    harness.close()
    refuses_all_but_the_time_of_the_job(harness.open())
    assert content(harness) == before
    with pytest.raises(QueryTooBroad):
        harness.reopen().count_packages(parse("attempts=1"))


def test_what_leaves_the_live_book_leaves_the_index_and_comes_back(harness: Harness) -> None:
    journal = harness.open(indexed=NUMBERS | DEFAULT_INDEXED)
    keeper(journal).take(a_short_job("gone"))
    keeper(journal).take(a_short_job("there"))
    journal.seal("gone")
    for text in ("attempts=1", "updated > 2000-01-01", "entered > 2000-01-01", "submitted > 2000-01-01"):
        assert {each.job for each in journal.find_packages(parse(text), after=None, limit=9).items} == {"there"}, text
        assert journal.count_packages(parse(text)) == 2, text
    journal.unseal(["gone"])
    for text in ("attempts=1", "updated > 2000-01-01", "entered > 2000-01-01", "submitted > 2000-01-01"):
        assert journal.count_packages(parse(text)) == 4, text
    engine = Stream("service", "later")
    keeper(journal).take([engine.event(AttemptCreated(site="lyon"), job="gone", package="1.1.1", attempt=7)])
    [found] = journal.find_packages(parse("attempts=2"), after=None, limit=9).items
    assert (found.job, len(found.row.facts.attempts)) == ("gone", 2)


def test_pages_go_on_behind_the_last_package(harness: Harness) -> None:
    journal = harness.open(indexed=NUMBERS)
    keeper(journal).take(a_short_job("j1", packages=9))
    for text in (
        "updated > 2000-01-01",
        "entered < 2100-01-01",
        "attempts > 0",
        "attempts=1",
        "submitted > 2000-01-01",
    ):
        found, after = [], None
        while True:
            page = journal.find_packages(parse(text), after=after, limit=2)
            found += [place_of(each) for each in page.items]
            if not page.more:
                break
            after = page.scanned_to if page.scanned_to is not None else found[-1]
        assert found == sorted(set(found)), text
        assert len(found) == 9, text


def test_a_time_is_found_to_the_last_digit(harness: Harness) -> None:
    """What a store makes of a decimal number is not always the nearest double; what is asked for is found all the same."""
    journal = harness.open(indexed=NUMBERS)
    chance = random.Random(3)
    engine = Stream("service", "core")
    times = [chance.uniform(1.5e9, 1.8e9) for _ in range(60)] + [8.41e8 + 0.1 * number for number in range(60)]
    keeper(journal).take(a_short_job("j1", packages=len(times)))
    made = [
        engine.event(AttemptCreated(site="s"), job="j1", package=f"1.{line}.1", attempt=9, time=2e9 + time)
        for line, time in enumerate(times, 1)
    ]
    keeper(journal).take(made)
    for line, event in enumerate(made, 1):
        found = journal.find_packages(updated_at(event.time), after=None, limit=9).items
        assert [each.row.line for each in found] == [line], event.time
        assert journal.count_packages(updated_at(event.time, math.nextafter(event.time, 0.0))) == 1, event.time


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_asked_is_found_as_it_is_meant(harness: Harness, seed: int) -> None:
    chance = random.Random(seed)
    journal = harness.open(indexed=NUMBERS)
    keeper(journal).take(random_history(chance, jobs=2, packages=4, steps=200))
    everything: dict[tuple[str, PackageId], dict[str, Any]] = {}
    for job in harness.rows(rows.JobRow):
        found = journal.find_packages(parse(f"job={job.job}"), after=None, limit=1000).items
        everything |= {place_of(each): package_values(each, job) for each in found}
    times = [values[name] for values in everything.values() for name in ("entered", "updated", "submitted")]
    for _ in range(60):
        query = Query(tuple(any_clause(chance, times) for _ in range(chance.randint(1, 2))))
        meant = [place for place, values in everything.items() if matches(query, values)]
        found = journal.find_packages(query, after=None, limit=1000).items
        assert sorted(map(place_of, found)) == sorted(meant), query
        assert journal.count_packages(query) == len(meant), query


def any_clause(chance: random.Random, times: list[float]) -> tuple[Condition, ...]:
    """Alternatives that indexes serve, about values that there are, and their neighbours."""
    return tuple(any_condition(chance, times) for _ in range(chance.randint(1, 3)))


def any_condition(chance: random.Random, times: list[float]) -> Condition:
    attribute = chance.choice(sorted(NUMBERS))

    def value() -> float:
        if attribute == "attempts":
            return chance.randint(0, 4)
        time = chance.choice(times)
        return chance.choice([time, math.nextafter(time, 0.0), math.nextafter(time, math.inf), float(int(time))])

    operator = chance.choice([each for each in BOOK_OPERATORS if not each.denies])
    count = {Operator.WITHIN: 2, Operator.IN: 3}.get(operator, 1)
    values = sorted(value() for _ in range(count))
    return Condition(attribute=attribute, operator=operator, values=tuple(values))


def test_what_stands_where_two_alternatives_meet_is_counted_once(harness: Harness) -> None:
    journal = harness.open(indexed=NUMBERS)
    keeper(journal).take(a_short_job("j1", packages=3))
    for number, each in enumerate(journal.find_packages(parse("attempts=1"), after=None, limit=9).items):
        time = each.row.facts.updated_at
        below = Condition(attribute="updated", operator=Operator.LESS, values=(time,))
        there = Condition(attribute="updated", operator=Operator.EQUAL, values=(time,))
        above = Condition(attribute="updated", operator=Operator.GREATER, values=(time,))
        for clause in ((below, there), (there, below), (below, there, above), (above, below, there)):
            count = len(journal.find_packages(Query((clause,)), after=None, limit=9).items)
            assert journal.count_packages(Query((clause,))) == count, (number, clause)


def updated_at(*times: float) -> Query:
    return Query(((Condition(attribute="updated", operator=Operator.IN, values=times),),))


def test_postgres_takes_the_index(harness: Harness) -> None:
    if not isinstance(harness, PostgresHarness):
        return  # SQLite is told which index to take
    keeper(harness.open(indexed=NUMBERS)).take(a_short_job())
    harness.execute("SET enable_seqscan = off")
    for where, index in (
        ("attempts_of(p.facts) >= 2", "package_facts_attempts"),
        ("(p.facts ->> 'entered_at')::double precision > 1e9", "package_facts_entered"),
        ("COALESCE((p.facts ->> 'updated_at')::double precision, 0.0) < 1e9", "package_facts_updated"),
    ):
        plan = harness.execute(f"EXPLAIN SELECT * FROM package_facts AS p WHERE {where}")
        assert any(index in line for (line,) in plan), plan
