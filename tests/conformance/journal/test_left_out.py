"""Of a package that ran once and was granted no keys are stored: they are put back when it is told of again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from pilotage.book.rows.rows import AttemptFacts, AttemptKeys, written_facts
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import (
    AttemptCreated,
    AttemptFinished,
    CommitGranted,
    JobAccepted,
    Noted,
    PhaseEntered,
)
from pilotage.model.states import ExitCodeGasw
from pilotage.ports import Journal
from pilotage.service.journal.rebuild import check, rebuild
from pilotage.service.journal.writer import BatchCommitter
from tests.conformance.journal.harness import Harness, forget_version_five, keeper
from tests.kit.events import START, StandingClock, Stream, manifest, registered, shape

SUCCESS, FAILED = ExitCodeGasw.SUCCESS, ExitCodeGasw.EXECUTION_FAILED
ABOUT: dict[str, Any] = {"job": "j1", "package": "1.1.1", "attempt": 1}
KEYS: AttemptKeys = {
    1: (1, 5, 4, 3, "service"),
    10: 1,
    7: (1, 6, 3, 1, "agent"),
    6: 7,
    9: 7,
    8: (1, 7, 4, 4, "service"),
}


class Told:
    """What is told of a job with one package, by whom."""

    def __init__(self) -> None:
        self.service, self.agent = Stream("service", "service"), Stream("agent", "agent")
        self.job = [
            self.service.event(registered(shape("simulate")), job="j1"),
            self.service.event(JobAccepted(), job="j1"),
        ]
        self.life = [
            self.service.event(AttemptCreated(site="lyon", pilot="p1", lease_seconds=60.0), **ABOUT, seen=5),
            self.finished("n1", seen=6),
            self.service.event(CommitGranted(), **ABOUT, seen=7, time=START + 9),
        ]

    def finished(self, node: str, *, seen: int, exit_code: ExitCodeGasw = SUCCESS) -> Event:
        data = AttemptFinished(exit_code=exit_code, node=node, manifest=manifest(1))
        return self.agent.event(data, **ABOUT, seen=seen, time=START + seen)


def attempt_of(harness: Harness) -> AttemptFacts:
    [row] = harness.packages()
    return row.facts.attempts[1]


@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3), (0, 2, 3)], ids=["at once", "begun before", "granted later"])
def test_the_keys_of_a_life_that_is_over_are_left_out(
    harness: Harness, journal: Journal, cuts: tuple[int, ...]
) -> None:
    told = Told()
    keeper(journal).take(told.job)
    for start, end in pairwise(cuts):
        keeper(journal).take(told.life[start:end])
    assert (attempt_of(harness).exit_code, attempt_of(harness).keys) == ("SUCCESS", {})


@pytest.mark.parametrize("sealed", [False, True], ids=["live", "sealed"])
def test_a_word_that_comes_late_finds_the_keys_as_they_were(
    harness: Harness, journal: Journal, *, sealed: bool
) -> None:
    told = Told()
    keeper(journal).take([*told.job, *told.life])
    if sealed:
        journal.seal("j1")
    journal = harness.reopen()
    keeper(journal).take([told.service.event(Noted(text="worth a line"), **ABOUT)])
    assert attempt_of(harness).keys == KEYS


def test_an_older_word_does_not_take_a_register_whose_key_was_left_out(harness: Harness, journal: Journal) -> None:
    told = Told()
    keeper(journal).take([*told.job, *told.life])
    keeper(journal).take([told.finished("n2", seen=4, exit_code=FAILED)])
    assert (attempt_of(harness).node, attempt_of(harness).exit_code) == ("n1", "SUCCESS")
    keeper(journal).take([told.finished("n3", seen=8, exit_code=FAILED)])
    assert (attempt_of(harness).node, attempt_of(harness).exit_code) == ("n3", "EXECUTION_FAILED")


def test_a_job_that_is_loaded_finds_them_before_its_streams_are_written(
    harness: Harness, both: tuple[Harness, Harness]
) -> None:
    told = Told()
    journal = harness.open()
    late = [told.agent.event(PhaseEntered(phase="outputs"), **ABOUT)]
    for at, some in enumerate((told.job, told.life, late)):  # what was received together is joined together again
        BatchCommitter(journal, clock=StandingClock(START + at)).take(some)
    lines = list(journal.dump("j1"))
    expected = attempt_of(harness).keys
    assert expected.items() > KEYS.items()
    for other in both:
        other.open().load(lines)
        assert attempt_of(other).keys == expected


def test_a_row_that_has_them_is_sound_as_long_as_they_are_right(harness: Harness, scratches: Iterator[Journal]) -> None:
    told = Told()
    keeper(harness.open()).take([*told.job, *told.life])
    [row] = harness.packages()
    harness.close()
    forget_version_five(harness)
    harness.set_schema_version(3)
    row.facts.attempts[1].keys = KEYS
    harness.execute(f"UPDATE package_facts SET facts = '{written_facts(row.facts)}'")
    journal = harness.open()
    assert harness.schema_version() == 10
    assert attempt_of(harness).keys == KEYS
    assert check(journal, next(scratches)).first == []

    row.facts.attempts[1].keys = {**KEYS, 7: (1, 5, 3, 1, "agent")}
    harness.close()
    harness.execute(f"UPDATE package_facts SET facts = '{written_facts(row.facts)}'")
    journal = harness.open()
    [found] = check(journal, next(scratches)).first
    assert (found.table, found.what) == ("packages", "differs in facts.attempts")
    rebuild(journal, next(scratches))
    assert attempt_of(harness).keys == {}
    keeper(journal).take([told.finished("n2", seen=4)])
    assert attempt_of(harness).keys == KEYS
