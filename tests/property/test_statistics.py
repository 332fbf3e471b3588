"""Statistics that grow batch by batch are those that the facts give when they are counted in one go."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.book.rows.fast_rows import EndedLife, Lives
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.rows import AttemptFacts, JobRow, PackageFacts, StatisticRow
from pilotage.book.rows.sketches import BINS, COARSE_SECONDS, ENTRY, FINE_SECONDS, NEVER, Sketch
from pilotage.book.statistics.statistics import Observations, flows, slices_of, statistic_rows
from pilotage.model.states import State
from pilotage.simulator.world.ledger import MemoryLedger
from tests.kit.histories import START, Scheduler
from tests.kit.memory_ledger import Book, MemoryBook, SqliteBook
from tests.kit.shown import cut, delivered
from tests.kit.standing import WireEvent, places

STATES = [state.value for state in State]
EARLY = START - 20_000  # received before anything happened: nothing is too old to be kept
Counted = dict[tuple[int, int, str, str], tuple[Counter[tuple[str, str]], dict[tuple[str, str], float]]]
"""For each slice: how often each pair of states was seen ("" for an entry), and the seconds between them in all."""

seeds = st.integers(0, 2**32)


def ran_since(attempt: AttemptFacts) -> float | None:
    """Since when an attempt ran, as far as anything says so."""
    leased = attempt.created_at if attempt.lease_seconds is not None else None
    doubted = attempt.suspected_at if attempt.suspected_at is not None else attempt.recovered_at
    signs = (attempt.started_at, leased, attempt.phase_at, doubted, attempt.staged_at)
    return next((time for time in signs if time is not None), None)


def milestones(facts: PackageFacts, job: JobRow) -> Iterator[tuple[dict[str, float], str, str]]:
    """When each attempt at a package, or a package that was never tried, entered each state, and where."""
    begun = {
        "SUBMITTED": job.submitted_at,
        "WAITING": facts.opened_at if facts.opened_at is not None else job.accepted_at,
    }
    ended = {"ABORTED": facts.aborted_at, "CANCELLED": facts.cancelled_at, "CLEARED": facts.cleared_at}
    for number, attempt in facts.attempts.items():
        times = {
            "READY": attempt.created_at,
            "SCHEDULED": attempt.queued_at,
            "RUNNING": ran_since(attempt),
            "DONE": attempt.granted_at,
        }
        times |= begun if attempt.epoch == facts.epoch else {}
        times |= ended if number == facts.attempt else {}
        yield {state: time for state, time in times.items() if time is not None}, attempt.site or "", facts.activity
    if facts.attempt is None:
        times = {**begun, "READY": facts.bound_at, **ended}
        yield {state: time for state, time in times.items() if time is not None}, facts.site or "", facts.activity


def entered_together(events: list[WireEvent], found: Counted) -> Counted:
    """The packages of each job, counted when it was submitted and when it was accepted."""
    for event in events:
        if event["type"] != "JobRegistered":
            continue
        accepted = next((e for e in events if e["type"] == "JobAccepted" and e["job"] == event["job"]), None)
        for number, shape in enumerate(event["data"]["stages"], 1):
            for _, activity in places(shape, number):
                for width in (FINE_SECONDS, COARSE_SECONDS):
                    _enter(found, (width, int(event["time"] // width), "", activity), "SUBMITTED", None)
                    if accepted is not None:
                        key = (width, int(accepted["time"] // width), "", activity)
                        _enter(found, key, "WAITING", accepted["time"] - event["time"])
    return found


def _enter(found: Counted, key: tuple[int, int, str, str], state: str, seconds: float | None) -> None:
    counts, sums = found.setdefault(key, (Counter(), {}))
    counts["", state] += 1
    if seconds is not None:
        counts["SUBMITTED", state] += 1
        sums["SUBMITTED", state] = sums.get(("SUBMITTED", state), 0.0) + max(0.0, seconds)


def recounted(packages: Iterable[tuple[dict[str, float], str, str]]) -> Counted:
    """Every pair of times of every package, counted in the slice in which the later one lies."""
    found: Counted = {}
    for times, site, activity in packages:
        for later in STATES[2:]:
            if later not in times:
                continue
            for width in (FINE_SECONDS, COARSE_SECONDS):
                counts, sums = found.setdefault((width, int(times[later] // width), site, activity), (Counter(), {}))
                counts["", later] += 1
                for earlier in STATES[: STATES.index(later)]:
                    if earlier in times:
                        counts[earlier, later] += 1
                        seconds = max(0.0, times[later] - times[earlier])
                        sums[earlier, later] = sums.get((earlier, later), 0.0) + seconds
    return found


def stored(rows: Iterable[StatisticRow]) -> Counted:
    """What the slices of a book hold, without their bins."""
    found: Counted = {}
    for row in rows:
        sketch = msgspec.msgpack.decode(row.sketch, type=Sketch)
        counts: Counter[tuple[str, str]] = Counter()
        for code, count in sketch.counts.items():
            assert count > 0, "nothing is taken back that was not counted"
            counts[pair_of(code // BINS)] += count
        sums = {pair_of(pair): seconds for pair, seconds in sketch.sums.items()}
        if counts:
            found[row.width_seconds, row.slice, row.site, row.activity] = (counts, sums)
    return found


def pair_of(code: int) -> tuple[str, str]:
    earlier, later = divmod(code, 16)
    return ("" if earlier == ENTRY else STATES[earlier], STATES[later])


def assert_same(found: Counted, expected: Counted) -> None:
    assert {key: counts for key, (counts, _) in found.items()} == {key: counts for key, (counts, _) in expected.items()}
    for key, (_, sums) in expected.items():
        for pair, seconds in sums.items():
            # Below a millisecond everything counts as nothing.
            assert found[key][1].get(pair, 0.0) == pytest.approx(seconds, abs=0.01), (key, pair)


def registered_once(events: list[WireEvent]) -> tuple[list[WireEvent], list[WireEvent]]:
    """One registration and one acceptance of each job, and everything else."""
    jobs = {event["job"] for event in events if event["type"] == "JobRegistered"}
    first = [next(e for e in events if e["type"] == "JobRegistered" and e["job"] == job) for job in sorted(jobs)]
    accepted = [e for e in events if e["type"] == "JobAccepted"]
    first += [next(e for e in accepted if e["job"] == job) for job in sorted({e["job"] for e in accepted})]
    return first, [event for event in events if event["type"] not in ("JobRegistered", "JobAccepted")]


def assert_counted_as_the_facts_say(book: Book, *, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    first, others = registered_once(Scheduler(chance, jobs=2).run(steps).events)
    book.take(first, received=EARLY)
    for batch in cut(chance, delivered(chance, others)):
        book.take(batch, received=EARLY)
    jobs = {row.job_id: row for row in book.rows(JobRow)}
    tries = (each for key, facts in book.packages().items() for each in milestones(facts, jobs[key[0]]))
    expected = entered_together(first, recounted(tries))
    assert_same(stored(book.rows(StatisticRow)), expected)
    book.close()


@given(seeds, st.integers(1, 60))
@settings(max_examples=2 * settings().max_examples)
def test_statistics_are_those_of_the_facts_when_jobs_were_registered_and_accepted_first(seed: int, steps: int) -> None:
    assert_counted_as_the_facts_say(MemoryBook(), seed=seed, steps=steps)


@given(seeds, st.integers(1, 60))
@settings(max_examples=max(30, settings().max_examples // 3))
def test_statistics_in_an_sqlite_book_are_the_same(seed: int, steps: int) -> None:
    assert_counted_as_the_facts_say(SqliteBook(), seed=seed, steps=steps)


Times = tuple[float, ...]
times = st.lists(
    st.one_of(st.none(), st.floats(START, START + 3000), st.sampled_from([START, START + 0.001, START + 0.0011])),
    min_size=9,
    max_size=9,
).map(lambda row: tuple(NEVER if time is None else time for time in row))
observed = st.tuples(times, st.sampled_from(["", "lyon"]), st.sampled_from(["sim", "reco"]))


def bins(rows: Iterable[StatisticRow]) -> dict[tuple[object, ...], dict[int, int]]:
    found: dict[tuple[object, ...], dict[int, int]] = {}
    for row in rows:
        counts = msgspec.msgpack.decode(row.sketch, type=Sketch).counts
        if counts:
            found[row.width_seconds, row.slice, row.site, row.activity] = counts
    return found


def added_to(ledger: MemoryLedger, observations: Observations, *, now: float) -> list[StatisticRow]:
    """The slices of a book after some observations."""
    return statistic_rows(ledger, observations.observed(now=now))


def leased(one: tuple[Times, str, str]) -> tuple[Times, str, str]:
    """An attempt that ran as soon as it was there."""
    times, site, activity = one
    running = STATES.index("RUNNING")
    return (*times[:running], times[STATES.index("READY")], *times[running + 1 :]), site, activity


many = st.lists(observed, min_size=1, max_size=80)


@given(many | many.map(lambda several: [leased(one) for one in several]))
@settings(max_examples=80)
def test_many_packages_at_once_count_as_they_do_one_by_one(packages: list[tuple[Times, str, str]]) -> None:
    together = Observations()
    for each in packages:
        together.observe(before=None, after=each)
    ledger = MemoryLedger()
    for each in packages:
        alone = Observations()
        alone.observe(before=None, after=each)
        ledger.write(Changes(received=EARLY, observed=alone.observed(now=EARLY)))
    assert bins(added_to(MemoryLedger(), together, now=EARLY)) == bins(ledger.find_rows(StatisticRow, having={}))


moments = st.floats(START, START + 30) | st.sampled_from([START, START + 0.0005, START + 0.0011])
known_times = st.sampled_from([NEVER, START - 1000.0, START - 2.0, START + 5.0])


@given(
    st.lists(
        st.tuples(
            moments, moments, st.sampled_from(["began", "ended", "lived"]), st.sampled_from(["lyon", "prague", "desy"])
        ),
        min_size=1,
        max_size=80,
    ),
    st.tuples(known_times, known_times),
)
@settings(max_examples=80)
def test_short_lives_count_together_as_they_do_one_by_one(
    told: list[tuple[float, float, str, str]], known: tuple[float, float]
) -> None:
    lived, granted, alone = list[EndedLife](), list[EndedLife](), Observations()
    for began, ended, how, site in told:
        begun: Times = (*known, began, NEVER, began, NEVER, NEVER, NEVER, NEVER)
        over: Times = (*known, began, NEVER, began, ended, NEVER, NEVER, NEVER)
        life = EndedLife(1, site, "sim", None, 60.0, None, began, 1, known, None, True, ended, 2, ended, 3)
        if how != "ended":
            lived.append(life)
        if how != "began":
            granted.append(life)
        before = (begun, site, "sim") if how == "ended" else None
        alone.observe(before=before, after=(begun if how == "began" else over, site, "sim"))
    together = Observations()
    together.observe_lives(Lives(lived, granted), known=known)
    found, expected = added_to(MemoryLedger(), together, now=EARLY), added_to(MemoryLedger(), alone, now=EARLY)
    assert_same(stored(found), stored(expected))
    assert bins(found) == bins(expected)


pairs = st.lists(st.tuples(observed, observed), min_size=1, max_size=80)


@given(pairs | pairs.map(lambda several: [(leased(one), leased(other)) for one, other in several]))
@settings(max_examples=80)
def test_what_is_corrected_is_taken_back_whole(
    packages: list[tuple[tuple[Times, str, str], tuple[Times, str, str]]],
) -> None:
    ledger = MemoryLedger()
    first, then, right = Observations(), Observations(), Observations()
    for before, after in packages:
        first.observe(before=None, after=before)
        then.observe(before=before, after=after)
        right.observe(before=None, after=after)
    for observations in (first, then):
        ledger.put_rows(added_to(ledger, observations, now=EARLY))
    assert bins(ledger.find_rows(StatisticRow, having={})) == bins(added_to(MemoryLedger(), right, now=EARLY))


@given(st.lists(st.floats(0.01, 5000.0), min_size=1, max_size=200))
@settings(max_examples=50)
def test_quantiles_are_within_five_per_cent_and_means_exact(waits: list[float]) -> None:
    observations = Observations()
    for wait in waits:
        row = [NEVER] * 9
        row[STATES.index("WAITING")], row[STATES.index("RUNNING")] = START - wait, START
        observations.observe(before=None, after=(tuple(row), "lyon", "sim"))
    width, numbers = slices_of("1m", now=START)
    rows = [each for each in added_to(MemoryLedger(), observations, now=START) if each.width_seconds == width]
    assert all(each.slice in numbers for each in rows)
    [flow] = flows(rows, window="1m")
    assert (flow.site, flow.activity, flow.entries) == ("lyon", "sim", {"RUNNING": len(waits)})
    assert flow.per_second == {"RUNNING": len(waits) / 60}
    interval = flow.intervals["WAITING-RUNNING"]
    ordered = sorted(START - (START - wait) for wait in waits)  # as a float so far from 1970 can hold them
    assert interval.count == len(waits)
    assert interval.mean_seconds == pytest.approx(sum(ordered) / len(waits), rel=1e-6)
    for share, found in ((0.5, interval.median_seconds), (0.95, interval.p95_seconds)):
        exact = ordered[max(1, math.ceil(share * len(ordered))) - 1]
        assert found == pytest.approx(exact, rel=0.051)


def test_what_is_too_old_for_every_window_is_not_kept() -> None:
    observations = Observations()
    row = [NEVER] * 9
    row[4] = START
    observations.observe(before=None, after=(tuple(row), "lyon", "sim"))
    rows = added_to(MemoryLedger(), observations, now=START + 3600)
    assert [each.width_seconds for each in rows] == [COARSE_SECONDS]
    assert added_to(MemoryLedger(), Observations(), now=START) == []


@pytest.mark.parametrize("packages", [1, 100])
def test_slices_to_which_nothing_is_added_are_left_alone(packages: int) -> None:
    ready = [NEVER] * 9
    ready[STATES.index("READY")] = START
    running = list(ready)
    running[STATES.index("RUNNING")] = START + 3000
    observations = Observations()
    for _ in range(packages):
        observations.observe(before=(tuple(ready), "lyon", "sim"), after=(tuple(running), "lyon", "sim"))
    touched = {(width, number) for width, number, _, _ in observations.observed(now=EARLY)}
    assert touched == {(width, int(START + 3000) // width) for width in (FINE_SECONDS, COARSE_SECONDS)}
