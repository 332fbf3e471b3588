"""The journal of the simulator: durable is what was synced, a crash takes the rest, and any order gives the same book."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.codec import Checked, Codec
from pilotage.book.rows.rows import PackageRow, written_facts
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import (
    AttemptLost,
    AttemptStarted,
    CancelAccepted,
    Cleared,
    JobAccepted,
    PilotStarted,
)
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import JournalError, JournalFull
from pilotage.service.journal.writer import BatchCommitter
from pilotage.simulator.world.journal import SimulatedJournal
from tests.kit.events import START, StandingClock, Stream, a_short_job, cut, random_history, registered, shape


def checked(events: Sequence[Event]) -> list[Checked]:
    found, refused = Codec().check_all(events)
    assert refused == []
    return found


def journal() -> SimulatedJournal:
    return SimulatedJournal(random.Random("a journal"))


def kept(*batches: Sequence[Event]) -> SimulatedJournal:
    """A journal that has taken some batches, each with a sync of its own."""
    made = journal()
    for batch in batches:
        made.append(checked(batch), START)
        made.sync()
    return made


def told(made: SimulatedJournal) -> list[Event]:
    return [one.event for one in made.events()]


def test_what_was_appended_is_durable_after_a_sync_and_not_before() -> None:
    made, events = journal(), a_short_job("j1", packages=3)
    made.append(checked(events), START)
    assert (made.position(), told(made), made.job("j1")) == (0, [], None)
    assert made.sync() == len(events) == made.position()
    assert told(made) == events
    row = made.job("j1")
    assert row is not None
    assert (row.state, row.done, row.heard_at) == ("DONE", 3, START)
    assert made.sync() == len(events)  # nothing new


def test_a_crash_forgets_what_was_not_synced_and_nothing_else() -> None:
    events = a_short_job("j1", packages=3)
    made = kept(events[:5])
    made.append(checked(events[5:8]), START)
    assert made.crash(torn=False) == 0
    assert made.sync() == 5
    assert told(made) == events[:5]
    made.append(checked(events[5:]), START)
    made.sync()
    assert told(made) == events


def test_of_a_torn_tail_a_beginning_of_whole_batches_survives() -> None:
    events = a_short_job("j1", packages=6)
    batches = [events[:2], events[2:5], events[5:8], events[8:11]]
    ends = [sum(map(len, batches[:count])) for count in range(len(batches) + 1)]
    survived = set()
    for seed in range(60):
        made = SimulatedJournal(random.Random(seed))
        for batch in batches:
            made.append(checked(batch), START)
        count = made.crash(torn=True)
        assert told(made) == events[: ends[count]]
        assert made.sync() == ends[count]
        survived.add(count)
    assert survived == set(range(1, 5))


def test_a_full_disk_keeps_nothing_and_what_waits_is_kept_once_there_is_room() -> None:
    events = a_short_job("j1")
    made = kept(events[:3])
    made.full = True
    made.append(checked(events[3:]), START)
    for _ in range(2):
        with pytest.raises(JournalFull):
            made.sync()
    assert told(made) == events[:3]
    made.full = False
    assert made.sync() == len(events)


def test_nothing_of_a_torn_tail_survives_a_full_disk() -> None:
    for seed in range(20):
        made = SimulatedJournal(random.Random(seed))
        made.append(checked(a_short_job("j1")), START)
        made.full = True
        assert made.crash(torn=True) == 0
        made.full = False
        assert made.sync() == 0


def test_an_event_that_the_book_refuses_is_a_fault_of_whoever_wrote_it() -> None:
    by = Stream()
    events = [by.event(registered(), job="j1"), by.event(JobAccepted(), job="j1")]
    made = kept(events)
    by.n = 1
    made.append(checked([by.event(CancelAccepted(), job="j1")]), START)
    with pytest.raises(JournalError, match="known with other content") as fault:
        made.sync()
    assert "service s1 2 (CancelAccepted)" in str(fault.value)


def test_repeats_are_counted_and_told_once() -> None:
    events = a_short_job("j1")
    made = kept(events[:4], [*events[2:], events[-1]])
    assert told(made) == events
    assert (made.repeated, made.parked) == (3, 0)


def test_events_before_their_job_wait_for_it_and_are_told_with_it() -> None:
    events = a_short_job("j1")
    made = kept(events[1:3], events[1:3])
    assert (told(made), made.parked, made.repeated) == ([], 2, 2)
    made.append(checked([events[0], *events[3:]]), START)
    made.sync()
    assert sorted(event.n for event in told(made)) == [event.n for event in events]
    assert made.states().packages == {("j1", "1.1.1"): "DONE", ("j1", "1.2.1"): "DONE"}


def test_any_order_folds_to_the_same_states() -> None:
    chance = random.Random(7)
    made = kept(*cut(random_history(chance, jobs=3, packages=5, steps=300), chance))
    assert len(set(made.states().packages.values())) > 3
    for _ in range(5):
        order = list(range(len(made.events())))
        chance.shuffle(order)
        assert made.refold(order) == made.states()


def test_an_order_must_name_every_event_once() -> None:
    made = kept(a_short_job("j1"))
    for order in ([0, 1], [0] * len(made.events()), list(range(1, len(made.events()) + 1))):
        with pytest.raises(ValueError, match="names each of them once"):
            made.refold(order)


def test_a_fold_of_many_events_of_one_stream_in_any_order_refuses_none() -> None:
    by = Stream("agent", "p.1")
    made = kept([by.event(PilotStarted(site="lyon"), pilot="p.1") for _ in range(24_000)])
    order = list(range(0, 24_000, 2)) + list(range(1, 24_000, 2))
    assert made.refold(order) == made.states()


def test_packages_of_which_nothing_was_heard_stand_where_their_job_puts_them() -> None:
    by = Stream()
    made = kept([
        by.event(registered(shape("simulate", lines=3), shape("merge")), job="j1"),
        by.event(JobAccepted(), job="j1"),
        by.event(AttemptStarted(), job="j1", package="1.2.1", attempt=1),
        by.event(CancelAccepted(), job="j1"),
    ])  # fmt: skip
    states = made.states()
    assert states.jobs == {"j1": "RUNNING"}
    assert states.packages == {
        ("j1", "1.1.1"): "CANCELLED", ("j1", "1.2.1"): "RUNNING", ("j1", "1.3.1"): "CANCELLED",
        ("j1", "2.1.1"): "CANCELLED",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_a_core_that_starts_reads_the_same_as_from_a_book_on_disk(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    events = [*random_history(chance, jobs=3, packages=5, steps=300), *a_short_job("done", packages=12)]
    events.append(Stream("client", "tidy").event(Cleared(by="user"), job="job-3"))
    made, clock = journal(), StandingClock()
    disk = SqliteJournal(tmp_path, durable=False)
    try:
        for batch in cut(events, chance):
            clock.at += 1.0
            made.append(checked(batch), clock.at)
            made.sync()
            BatchCommitter(disk, clock=clock).take(batch)
        assert made.position() == disk.position()
        assert made.live_jobs() == disk.live_jobs()
        for name in ("job-1", "job-2", "job-3", "done"):
            row, other = made.job(name), disk.job(name)
            assert row is not None
            assert row == other
            assert list(made.finals(row)) == list(disk.finals(row))
            assert list(made.unfinished(row)) == list(disk.unfinished(row))
            assert made.stages(row) == disk.stages(row)
            assert made.package(row, PackageId(1, 1, 1)) == disk.package(row, PackageId(1, 1, 1))
        for source in ("service", "agent", "client", "site"):
            assert list(made.streams(source)) == list(disk.streams(source))
        assert made.pilots(after="", limit=9) == disk.pilots(after="", limit=9)
        assert made.sites() == disk.sites()
    finally:
        disk.close()


def test_what_is_read_is_a_copy() -> None:
    by = Stream()
    made = kept([
        by.event(registered(), job="j1"),
        by.event(AttemptStarted(node="n1"), job="j1", package="1.1.1", attempt=1),
    ])  # fmt: skip
    row = made.job("j1")
    assert row is not None
    [package] = made.unfinished(row)
    before = written_facts(package.facts)
    row.state, package.facts.state, package.facts.attempts[1].node = "?", "?", "?"
    package.facts.attempts[2] = package.facts.attempts[1]
    package.facts.positions.clear()
    package.facts.attempts[1].keys.clear()
    again = made.job("j1")
    assert again is not None
    assert again.state == "RUNNING"
    [unharmed] = made.unfinished(again)
    assert unharmed == PackageRow(1, 1, 1, 1, unharmed.facts)
    assert written_facts(unharmed.facts) == before
    late = by.event(AttemptLost(), job="j1", package="1.1.1", attempt=1)
    made.append(checked([late]), START)
    made.sync()
    assert made.states().packages["j1", "1.1.1"] == "WAITING"
