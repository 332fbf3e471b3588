"""A package with a short life has the row, and counts and is told of, as if it had gone the longer way.

Histories here are mostly short lives, told in batches of any size, with whatever else can be told of a package or its job
in between. Two books hear the same batches; one of them takes no life for short.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.codec import Checked
from pilotage.book.fold.fast_path import ShortLives
from pilotage.book.fold.join import Change, Joined
from pilotage.book.rows.rows import EventRow, JobRow, StageRow, StatisticRow, StreamRow, TagRow
from pilotage.book.rows.sketches import Sketch
from tests.kit.memory_ledger import SqliteBook
from tests.kit.shown import assert_book_says
from tests.kit.standing import WireEvent

START = 1_700_000_000.0
SHA256 = "0f" * 32
_sketch = msgspec.msgpack.Decoder(Sketch)


class LongLives(ShortLives):
    """Takes no life for short."""

    def __init__(self, fresh: Sequence[Checked], *, first: int) -> None:
        super().__init__((), first=first)


class Teller:
    """Tells of a job whose packages live shortly, and now and then of something else."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.calm = chance.choice((0.0, 0.02, 0.1, 0.3))  # how often something else is told
        self.events: list[WireEvent] = []
        self._counters: dict[tuple[str, str], int] = {}
        self._now = START

    def say(self, source: str, kind: str, subject: dict[str, Any], **data: Any) -> None:
        stream = f"{source}-{self.chance.choice('ab') if source == 'agent' else 'a'}"
        self._counters[source, stream] = n = self._counters.get((source, stream), 0) + 1
        self._now += self.chance.choice((0.0, 0.001, 0.5, 7.0, -3.0))
        self.events.append({
            "source": source, "stream": stream, "n": n, "type": kind, "time": self._now, "epoch": 1,
            "seen": len(self.events) // 3,
            **subject, "data": data,
        })  # fmt: skip

    def tell(self, packages: int) -> list[WireEvent]:
        """Everything, each package's own events in their order, those of all packages mixed."""
        activities = ["sim", "reco"][: self.chance.randint(1, 2)]
        shapes = [{"items": packages, "templates": [{"lines": 1, "activities": activities}]}]
        self.say(
            "service", "JobRegistered", {"job": "J"}, owner="ada", name="n", stages=shapes, lists={}, expander_version=1
        )
        if self.chance.random() < 0.8:
            self.say("service", "JobAccepted", {"job": "J"})
        most = 2 if self.calm else len(activities)  # where there may be none by the shape of the job
        lives = [self._life(f"1.{line}.{self.chance.randint(1, most)}") for line in range(1, packages + 1)]
        under_way: list[list[tuple[str, str, dict[str, Any], dict[str, Any]]]] = []
        width = self.chance.randint(1, 6)
        while lives or under_way:
            if lives and len(under_way) < width:
                under_way.append(lives.pop(0))
                continue
            life = self.chance.choice(under_way) if self.chance.random() < 0.5 else under_way[0]
            source, kind, subject, data = life.pop(0)
            self.say(source, kind, subject, **data)
            if not life:
                under_way.remove(life)
            if self.chance.random() < self.calm / 4:
                self._of_the_job()
        return self.events

    def _life(self, place: str) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
        chance = self.chance
        subject = {"job": "J", "package": place}
        attempt = subject | {"attempt": 1 if chance.random() < 1 - self.calm else 2}
        life: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
            ("service", "AttemptCreated", attempt, self._created()),
            ("agent", "AttemptFinished", attempt, self._finished()),
            ("service", "CommitGranted", attempt, {}),
        ]
        while chance.random() < self.calm:
            life.insert(chance.randint(0, len(life)), self._else(subject, attempt))
        if chance.random() < self.calm:
            del life[chance.randrange(len(life))]
        if chance.random() < self.calm:
            chance.shuffle(life)
        return life or [("service", "Noted", subject, {"text": "nothing came of it"})]

    def _created(self) -> dict[str, Any]:
        chance = self.chance
        data: dict[str, Any] = {"site": chance.choice(("lyon", "desy")), "lease_seconds": chance.choice((0, 60.0))}
        if chance.random() < 0.8:
            data["pilot"] = "pilot1"
        if chance.random() < 0.3:
            data["remaining_seconds"] = 600.5
        odd = {"memory_bytes": 2**30, "wall_seconds": 90.5, "drop_revision": 3, "replica": True, "replaces": 7}
        data |= {name: value for name, value in odd.items() if chance.random() < self.calm / 4}
        if chance.random() < self.calm / 4:
            del data["lease_seconds"]
        return data

    def _finished(self) -> dict[str, Any]:
        chance = self.chance
        measures = {
            "node": "node7", "exit_status": 0, "peak_memory_bytes": 0, "peak_memory_below_bytes": 4096, "cpu_seconds": 1.5,
            "cpu_user_seconds": 1.0, "cpu_system_seconds": 0.0, "read_bytes": 0, "written_bytes": 17,
            "phases": [{"phase": "application", "started_at": self._now, "seconds": 2.5}],
            "manifest": [{"name": "out", "size_bytes": 1, "sha256": SHA256}] if chance.random() < 0.8 else [],
        }  # fmt: skip
        data: dict[str, Any] = {name: value for name, value in measures.items() if chance.random() < 0.8}
        odd = {"exit_message": "said so", "reason": "out-of-memory", "signal": 9}
        data |= {name: value for name, value in odd.items() if chance.random() < self.calm / 4}
        return data | {"exit_code": "SUCCESS" if chance.random() < 1 - self.calm else "EXECUTION_FAILED"}

    def _else(
        self, subject: dict[str, Any], attempt: dict[str, Any]
    ) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
        found: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
            ("agent", "PhaseEntered", attempt, {"phase": "application"}),
            ("agent", "AttemptStarted", attempt, {"node": "node8"}),
            ("service", "AttemptSuspected", attempt, {}),
            ("service", "AttemptCreated", attempt | {"attempt": 2}, {"site": "lyon", "lease_seconds": 60}),
            ("agent", "AttemptFinished", attempt | {"attempt": 2}, {"exit_code": "SUCCESS"}),
            ("service", "Bound", subject, {"site": "desy"}),
            ("service", "CancelAccepted", subject, {}),
            ("service", "Held", subject, {"operation": 1}),
            ("service", "Restarted", subject | {"epoch": 2}, {"cause": "by-hand"}),
            ("service", "CommitGranted", attempt | {"epoch": 2}, {}),
            ("client", "Tagged", subject, {"name": "study", "value": "A"}),
            ("client", "Cleared", subject, {"by": "user"}),
            ("service", "Noted", attempt, {"text": "worth a line"}),
        ]
        return self.chance.choice(found)

    def _of_the_job(self) -> None:
        job = {"job": "J"}
        shape = {"items": self.chance.randint(0, 40), "templates": [{"lines": 1, "activities": ["sim"]}]}
        told: list[tuple[str, dict[str, Any]]] = [
            ("JobAccepted", {}),
            ("CancelAccepted", {}),
            ("StageExpanded", {"stage": 1, "shape": shape}),
            ("Tagged", {"name": "study", "value": "B"}),
        ]
        kind, data = self.chance.choice(told)
        self.say("service", kind, job, **data)


def batches_of(chance: random.Random, events: list[WireEvent]) -> list[list[WireEvent]]:
    size = chance.choice((1, 3, 10, 40))
    if chance.random() < 0.2:
        chance.shuffle(events)
    found = []
    while events:
        cut = chance.randint(1, size)
        found.append(events[:cut])
        events = events[cut:]
    return found


def change_of(change: Change) -> tuple[Any, ...]:
    package = change.package
    if package is None:
        return change.state_before, change.job
    return change.state_before, change.job, package.stage, package.line, package.number, package.facts


def kept(book: SqliteBook) -> dict[str, Any]:
    """Every row, to the letter of the texts that are stored."""
    return {
        "packages": book.connection.execute("SELECT * FROM package_facts ORDER BY 1, 2, 3, 4").fetchall(),
        **{kind.__name__: book.rows(kind) for kind in (JobRow, StageRow, EventRow, StreamRow, TagRow)},
    }


def counted(book: SqliteBook) -> dict[tuple[Any, ...], tuple[Any, Any]]:
    """What each slice counts, and the sums of seconds, whose last digits depend on the order they were added in."""
    slices = {
        (row.width_seconds, row.slice, row.site, row.activity): _sketch.decode(row.sketch)
        for row in book.rows(StatisticRow)
    }
    return {
        key: (one.counts, {pair: pytest.approx(seconds, rel=1e-6, abs=1e-4) for pair, seconds in one.sums.items()})
        for key, one in slices.items()
    }


@given(st.integers(0, 2**32), st.integers(1, 25))
def test_a_short_life_comes_to_the_same_as_the_longer_way(seed: int, packages: int) -> None:
    chance = random.Random(seed)
    events = Teller(chance).tell(packages)
    short, long = SqliteBook(), SqliteBook()
    told: list[WireEvent] = []
    try:
        for batch in batches_of(chance, list(events)):
            told += batch
            one = short.take(batch, received=START)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("pilotage.book.fold.join.ShortLives", LongLives)
                other = long.take(batch, received=START)
            assert short_ones(other) == []
            assert one.receipt == other.receipt
            assert [change_of(each) for each in one.moved()] == [change_of(each) for each in other.moved()]
            assert kept(short) == kept(long)
        assert counted(short) == counted(long)
        assert_book_says(short, told)
    finally:
        short.close()
        long.close()


def lives(count: int, *, calm: float = 0.0) -> list[WireEvent]:
    teller = Teller(random.Random(3))
    teller.calm = calm
    return teller.tell(count)


def short_ones(joined: Joined) -> list[tuple[int, str, bool]]:
    """Lines and states of short lives, and whether they had a row before."""
    changes = joined.changes
    lived = [(key[2], "DONE", False) for key in changes.lived_packages]
    begun = [(key[2], "RUNNING", False) for key in changes.begun_packages]
    return lived + begun + [(key[2], "DONE", True) for key in changes.ended_packages]


def test_a_life_within_one_batch_is_short_and_so_are_its_two_halves() -> None:
    events = lives(2)
    first = [event for event in events if event.get("package", "").startswith("1.1.")]
    second = [event for event in events if event.get("package", "").startswith("1.2.")]
    book = SqliteBook()
    assert short_ones(book.take([event for event in events if "package" not in event])) == []
    assert short_ones(book.take([*first, second[0]])) == [(1, "DONE", False), (2, "RUNNING", False)]
    assert short_ones(book.take(second[1:])) == [(2, "DONE", True)]
    assert [facts.state for facts in book.packages().values()] == ["DONE", "DONE"]
    book.close()


def test_beside_a_word_about_its_job_no_life_is_taken_for_short() -> None:
    book = SqliteBook()
    joined = book.take(lives(5))
    assert (len(joined.changes.packages), short_ones(joined)) == (5, [])
    book.close()


def test_a_life_whose_beginning_is_forgotten_goes_the_longer_way() -> None:
    events = lives(1)
    begun, *ends = [event for event in events if "package" in event]
    book = SqliteBook()
    book.take([event for event in events if "package" not in event])
    assert short_ones(book.take([begun])) == [(1, "RUNNING", False)]
    book.recent.clear()  # as when a transaction is undone
    assert short_ones(book.take(ends)) == []
    assert [facts.state for facts in book.packages().values()] == ["DONE"]
    book.close()


def both(batches: Sequence[list[WireEvent]]) -> tuple[SqliteBook, SqliteBook, list[Joined]]:
    """What a book says that knows short lives, what one says that does not, and how the first joined each batch."""
    short, long = SqliteBook(), SqliteBook()
    joined = [short.take(batch, received=START) for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pilotage.book.fold.join.ShortLives", LongLives)
        for batch in batches:
            long.take(batch, received=START)
    return short, long, joined


NEARLY: dict[str, tuple[int, dict[str, Any]]] = {
    "the end is another attempt's": (1, {"attempt": 2}),
    "the grant is another attempt's": (2, {"attempt": 2}),
    "the end is of another epoch": (1, {"epoch": 2}),
    "the grant is of another epoch": (2, {"epoch": 2}),
    "all of it is of another epoch": (0, {"epoch": 2}),
    "it began when nobody knows": (0, {"time": 0.0}),
    "it was granted when nobody knows": (2, {"time": 0.0}),
    "it failed": (1, {"data": {"exit_code": "EXECUTION_FAILED"}}),
    "it began without a lease": (0, {"data": {"site": "lyon"}}),
}


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("nearly", NEARLY)
def test_what_is_nearly_a_short_life_goes_the_longer_way(nearly: str, cut: int) -> None:
    events = lives(1)
    at, changed = NEARLY[nearly]
    life = [event for event in events if "package" in event]
    life[at] |= changed
    if at == 0 and "epoch" in changed:
        life = [event | changed for event in life]
    job = [event for event in events if "package" not in event]
    short, long, joined = both([job, life[:cut], *([life[cut:]] if cut < 3 else [])])
    assert short_ones(joined[-1]) == []
    assert (kept(short), counted(short)) == (kept(long), counted(long))
    short.close()
    long.close()


def test_a_life_whose_job_was_accepted_meanwhile_counts_with_that() -> None:
    events = lives(1)
    begun, *ends = [event for event in events if "package" in event]
    registered = next(event for event in events if event["type"] == "JobRegistered")
    accepted = registered | {"n": 900, "seen": 900, "type": "JobAccepted", "time": START - 5.0, "data": {}}
    short, long, joined = both([[registered], [begun], [accepted], ends])
    assert [short_ones(one) for one in joined] == [[], [(1, "RUNNING", False)], [], []]
    assert (kept(short), counted(short)) == (kept(long), counted(long))
    short.close()
    long.close()
