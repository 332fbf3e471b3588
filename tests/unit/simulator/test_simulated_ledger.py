"""The ledger in memory: what is over is pressed together with others, and is found as it was written all the same."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.book.rows.rows import written_facts
from pilotage.simulator.world.ledger import TOGETHER, CompressedTexts
from tests.kit.memory_ledger import Book, MemoryBook, SqliteBook
from tests.kit.shown import everything

COUNT = 3 * TOGETHER + 5
FAR = 999_999_999
"""The highest number that a stage, a line or a place in it may have."""


def event(n: int, kind: str, package: str | None = None, **data: Any) -> dict[str, Any]:
    about = {} if package is None else {"package": package, "attempt": 1}
    return {
        "source": "service", "stream": "engine", "n": n, "type": kind, "time": 1000.0 + n, "seen": n, "job": "j",
        "data": data, **about,
    }  # fmt: skip


def history() -> list[dict[str, Any]]:
    """Packages that all begin, and of which some dozens are granted; one is at the end of what can be named."""
    shape = {"items": COUNT, "templates": [{"lines": 1, "activities": ["sim"]}]}
    names = [*(f"1.{line}.1" for line in range(1, COUNT + 1)), f"1.{FAR}.{FAR}"]
    told = [event(1, "JobRegistered", owner="ann", name="n", stages=[shape]), event(2, "JobAccepted")]
    for kind, data in (("AttemptCreated", {"site": "lyon", "lease_seconds": 60}), ("CommitGranted", {})):
        for name in names:
            told.append(event(len(told) + 1, kind, name, **data))
    return told


def kept(book: Book, *, at_once: int) -> Book:
    events = history()
    for start in range(0, len(events), at_once):
        book.take(events[start : start + at_once])
    return book


@pytest.mark.parametrize("length", [0, 1, TOGETHER - 1, TOGETHER, TOGETHER + 1, 200 * TOGETHER + 3])
def test_every_text_that_was_put_away_is_found_by_its_number(length: int) -> None:
    pressed, texts = CompressedTexts(), [f'{{"text":"nº {number}\\n"}}' for number in range(length)]
    numbers = [pressed.put(text) for text in texts]
    assert numbers == list(range(length))
    assert [pressed.text(number) for number in reversed(numbers)] == texts[::-1]
    assert [pressed.text(number) for number in numbers[::7]] == texts[::7]


def test_texts_that_are_alike_take_little_room() -> None:
    pressed = CompressedTexts()
    for number in range(10 * TOGETHER):
        pressed.put(f'{{"state":"DONE","site":"lyon","done_at":{1e6 + number},"positions":[{number}]}}')
    assert sum(map(len, pressed._blocks)) < 10 * TOGETHER * 20
    assert pressed._open == []


def test_a_book_in_memory_tells_of_packages_that_are_over_as_a_database_does() -> None:
    database = SqliteBook()
    expected, found = kept(database, at_once=7), kept(MemoryBook(), at_once=7)
    assert everything(found) == everything(expected)
    assert (1, 1, FAR, FAR) in found.packages()
    database.close()


def test_what_is_over_is_told_in_the_order_of_place() -> None:
    book = MemoryBook()
    kept(book, at_once=COUNT)
    places = [(1, line, 1) for line in range(1, COUNT + 1)] + [(1, FAR, FAR)]
    assert [(one.stage, one.line, one.number) for one in book.memory.finals(1)] == places
    assert {(one.state, one.granted) for one in book.memory.finals(1)} == {("DONE", 1)}
    assert list(book.memory.states(1)) == [((1, *place), "DONE") for place in places]
    assert list(book.memory.unfinished(1)) == []


def test_a_package_that_begins_again_after_it_was_over_has_one_row_at_every_time() -> None:
    book = MemoryBook()
    kept(book, at_once=COUNT)
    n = len(history())
    book.take([event(n + 1, "Restarted", cause="by-hand") | {"package": "1.3.1", "epoch": 2}])
    assert [row.line for row in book.memory.unfinished(1)] == [3]
    assert 3 not in [one.line for one in book.memory.finals(1)]
    for kind, data in (("AttemptCreated", {"site": "prague", "lease_seconds": 60}), ("CommitGranted", {})):
        n += 1
        book.take([event(n + 1, kind, "1.3.1", **data) | {"attempt": 2, "epoch": 2}])
    assert [one.line for one in book.memory.finals(1)][:4] == [1, 2, 3, 4]
    assert book.package("j", "1.3.1").site == "prague"


def test_short_lives_are_told_as_a_database_tells_them_begun_and_ended() -> None:
    told = history()[: COUNT + 2]  # all have begun but the last
    for line in range(11, COUNT, 2):
        told.append(event(len(told) + 1, "AttemptFinished", f"1.{line}.1", exit_code="SUCCESS", node="n1"))
        told.append(event(len(told) + 1, "CommitGranted", f"1.{line}.1"))
    told.append(event(len(told) + 1, "AttemptLost", "1.12.1", reason="unheard"))  # its life is an ordinary one
    database, book = SqliteBook(), MemoryBook()
    for start in range(0, len(told), 7):
        for each in (database, book):
            each.take(told[start : start + 7])
    assert everything(book) == everything(database)
    begun = [key[2] for key in book.memory.begun_packages() if key[2] > 10]
    assert begun == [*range(14, COUNT, 2), COUNT]
    over = list(range(11, COUNT, 2))
    assert [one.line for one in book.memory.finals(1)] == over
    assert [row.line for row in book.memory.unfinished(1)] == [n for n in range(1, COUNT + 1) if n not in over]
    database.close()


def test_what_was_read_and_never_written_leaves_no_trace() -> None:
    book = MemoryBook()
    book.take(history()[: 2 * COUNT])  # all have begun, and most are over
    keys = [key for key, _ in book.memory.states(1)]
    before = [written_facts(row.facts) for row in book.memory.packages(keys)]
    for row in book.memory.packages(keys):
        row.facts.state, row.facts.tags["a"], row.facts.keys[1] = "ABORTED", ("b", (1, 1, 1, 1, "x")), (1, 1, 1, 1, "x")
        row.facts.positions.append(7)
        row.facts.attempts[1].keys[1] = (9, 9, 9, 9, "x")
        row.facts.attempts[1].site = "elsewhere"
        del row.facts.attempts[1]
    assert [written_facts(row.facts) for row in book.memory.packages(keys)] == before
