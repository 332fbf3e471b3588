"""What a sender with a wrong clock says is flagged, and nothing else comes of it: in any order, parked or dumped."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from pilotage.book.rows import rows
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Noted
from pilotage.ports import Journal
from pilotage.service.journal.rebuild import check, rebuild
from pilotage.service.journal.writer import Batch, BatchCommitter
from tests.conformance.journal.harness import Content, Harness, content, keeper
from tests.kit.events import START, StandingClock, Stream, a_short_job, random_history, registered

WRONG = ("application", "wrong")
HOUR = 3600.0


def take(journal: Journal, events: Sequence[Event], *, skewed: Sequence[tuple[str, str]] = ()) -> None:
    taking = keeper(journal)
    checked, refused = taking.codec.check_all(events)
    taking.commit_together([Batch(checked, refused, skewed)])


def flags(harness: Harness) -> dict[tuple[str, int], int]:
    """The flag of each event, by its stream and number."""
    streams = {row.stream_id: row.stream for row in harness.rows(rows.StreamRow)}
    return {(streams[row.stream_id], row.n): row.skewed for row in harness.rows(rows.EventRow)}


def two_senders() -> tuple[list[Event], list[Event]]:
    """A job as its service tells of it, and what a program says of it whose clock is wrong."""
    service, wrong = Stream("service", "right"), Stream("application", "wrong")
    told = [service.event(registered(), job="j"), service.event(Noted(text="a"), job="j", package="1.1.1")]
    return told, [
        wrong.event(Noted(text="b"), job="j"),
        wrong.event(Noted(text="c"), job="j", package="1.1.1"),
        wrong.event(Noted(text="d"), site="lyon"),
    ]


def test_all_of_one_sender_is_flagged_and_nothing_of_the_others(harness: Harness) -> None:
    told, wrong = two_senders()
    take(harness.open(), [*told, *wrong], skewed=[WRONG])
    assert flags(harness) == {("right", 1): 0, ("right", 2): 0, ("wrong", 1): 1, ("wrong", 2): 1, ("wrong", 3): 1}


def test_what_waited_for_its_job_keeps_its_flag(harness: Harness) -> None:
    told, wrong = two_senders()
    journal = harness.open()
    take(journal, wrong[:1], skewed=[WRONG])
    take(journal, wrong[1:2])
    take(journal, wrong[:2], skewed=[WRONG])  # a repeat changes nothing
    assert len(harness.rows(rows.ParkedRow)) == 2
    take(journal, told, skewed=[("service", "right")])
    assert flags(harness) == {("right", 1): 1, ("right", 2): 1, ("wrong", 1): 1, ("wrong", 2): 0}


def test_a_flag_is_no_fact(harness: Harness, both: tuple[Harness, Harness]) -> None:
    """Whoever is flagged and in whatever order all comes, the book says the same."""
    chance = random.Random(9)
    history = random_history(random.Random(4), jobs=2, packages=3, steps=120)
    streams = sorted({(each.source, each.stream) for each in history})
    keeper(harness.open()).take(history)
    for other in both:
        shuffled = chance.sample(history, len(history))
        journal = other.open()
        for start in range(0, len(shuffled), 17):
            take(journal, shuffled[start : start + 17], skewed=chance.sample(streams, 2))
        assert facts(other) == facts(harness)
        assert set(flags(other).values()) == {0, 1}


def facts(harness: Harness) -> Content:
    """What a store holds but for events as they came, and but for the order in which they did."""
    found = content(harness)
    return {table: found[table] for table in ("tags", "packages")}


def test_a_flag_goes_with_its_job(harness: Harness, both: tuple[Harness, Harness]) -> None:
    _, wrong = two_senders()
    journal = harness.open()
    take(journal, [*a_short_job("j"), *wrong[:2]], skewed=[WRONG])
    dumped = list(journal.dump("j"))
    for other in both:
        assert other.open().load(dumped) == "j"
        assert flags(other) == flags(harness)
        assert flags(other)["wrong", 2] == 1
    journal.seal("j")
    journal.unseal(["j"])
    assert flags(harness)["wrong", 1] == 1


@pytest.mark.parametrize("skew_seconds", [60.0, HOUR])
def test_what_another_setting_found_goes_with_its_job(
    harness: Harness, both: tuple[Harness, Harness], skew_seconds: float
) -> None:
    journal, ahead = harness.open(), Stream("application", "ahead")
    early = ahead.event(Noted(text="b"), job="j", time=START + 2000.0)
    there = ahead.event(Noted(text="c"), job="j", time=START + 100.0)
    taking = BatchCommitter(journal, clock=StandingClock(), skew_seconds=skew_seconds)
    taking.take([early])  # which waits for its job
    taking.take([*a_short_job("j"), there])
    flagged = flags(harness)
    assert (flagged["ahead", 1], flagged["ahead", 2]) == (int(skew_seconds < 2000.0), int(skew_seconds < 100.0))
    dumped = list(journal.dump("j"))
    for other in both:
        assert other.open().load(dumped) == "j"
        assert flags(other) == flagged


def test_a_dump_that_says_nothing_of_clocks_is_flagged_by_its_times(
    harness: Harness, both: tuple[Harness, Harness]
) -> None:
    _, wrong = two_senders()
    journal, ahead = harness.open(), Stream("application", "ahead")
    take(journal, [*a_short_job("j"), ahead.event(Noted(text="b"), job="j", time=START + HOUR), wrong[0]])
    dumped = list(journal.dump("j"))
    lines = [line.replace(b',"skewed":true', b"") for line in dumped[:-1]]
    assert lines != dumped[:-1]
    end = msgspec.json.decode(dumped[-1]) | {"sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    for other in both:
        assert other.open().load([*lines, msgspec.json.encode(end) + b"\n"]) == "j"
        assert flags(other) == flags(harness)


def test_what_is_flagged_is_sound_and_stays_so(harness: Harness, scratches: Iterator[Journal]) -> None:
    told, wrong = two_senders()
    journal = harness.open()
    take(journal, [*told, *wrong], skewed=[WRONG])
    before = flags(harness)
    assert check(journal, next(scratches)).sound
    rebuild(journal, next(scratches))
    assert flags(harness) == before
