"""What was counted of packages that were tried again or adopted holds until something unusual is told of their job."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.rows.rows import JobRow, PackageFacts
from pilotage.model.states import ADOPTED, MADE_BEFORE
from pilotage.service.http.progress import _has_failed
from pilotage.service.http.services import UnusualPackages
from tests.kit.histories import Scheduler
from tests.kit.memory_ledger import MemoryBook
from tests.kit.shown import cut, delivered
from tests.kit.standing import WireEvent


def with_adoptions(chance: random.Random, events: list[WireEvent]) -> list[WireEvent]:
    """The same, where some of what is told was found made before, by the service or by an agent."""
    share = chance.choice((0.0, 0.5))
    found = []
    for event in events:
        data = dict(event["data"])
        if event["type"] == "AttemptCreated" and chance.random() < share:
            data["site"] = ADOPTED
        if event["type"] == "AttemptFinished" and data["exit_code"] == "SUCCESS" and chance.random() < share:
            data["reason"] = MADE_BEFORE
        found.append({**event, "data": data})
    return found


def counted(facts: PackageFacts) -> tuple[str, bool] | None:
    """As what a package is told of beside its state, and whether it has failed before; None where it is usual."""
    state, attempts = facts.state, len(facts.attempts)
    failed = any(map(_has_failed, facts.attempts.values()))
    if state in ("DONE", "CLEARED"):
        adopted = facts.site == ADOPTED or facts.reason == MADE_BEFORE
        return (f"done {adopted} {attempts > 1}", failed) if adopted or attempts > 1 else None
    if state in ("SUBMITTED", "WAITING", "READY") and attempts:
        return "retrying", failed
    return ("retried", failed) if state in ("SCHEDULED", "RUNNING") and attempts > 1 else None


def counts(book: MemoryBook) -> dict[str, tuple[Counter[object], Counter[object]]]:
    """By job: of what is done, and of what is not."""
    names = {row.job_id: row.job for row in book.rows(JobRow)}
    found: dict[str, tuple[Counter[object], Counter[object]]] = {
        name: (Counter(), Counter()) for name in names.values()
    }
    for key, facts in book.packages().items():
        kind = counted(facts)
        if kind is not None:
            found[names[key[0]]][not kind[0].startswith("done")][kind] += 1
    return found


@given(st.integers(0, 2**32), st.integers(0, 60))
def test_a_count_is_another_only_where_its_mark_is(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    history = Scheduler(random.Random(chance.random()), jobs=chance.randint(1, 2), reuses=True).run(steps).events
    events = with_adoptions(chance, history)
    if chance.random() < 0.5:
        events = delivered(chance, events)
    book, unusual = MemoryBook(), UnusualPackages()
    known = counts(book)
    for batch in cut(chance, events):
        before = {job: unusual.marks(job) for job in known}
        unusual.note(book.take(batch), book.ledger)
        assert all(unusual.marks(job) in (None, mark) for job, mark in before.items())
        unusual.committed()
        now = counts(book)
        for job, told in known.items():
            mark, other = before[job], unusual.marks(job)
            assert mark is not None
            assert other is not None
            assert [mark[each] != other[each] or told[each] == now[job][each] for each in (0, 1)] == [True, True]
        known = now
