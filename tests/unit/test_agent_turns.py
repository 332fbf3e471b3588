from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.agent import turns
from pilotage.agent.turns import LONG_SECONDS, PATIENCE_SECONDS, WITHOUT_FACTOR, Turn
from pilotage.agent.watching import Watch
from tests.agent_runs import Place, place_in


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.0)


def test_a_turn_that_is_taken_twice_is_given_once() -> None:
    lock = threading.Lock()
    turn = Turn(lock)
    turn.take()
    turn.take()
    assert lock.locked()
    assert turn.give()
    assert not lock.locked()
    assert not turn.give()


def test_who_waits_in_vain_goes_without_for_a_while_and_takes_nothing_from_who_has_it() -> None:
    lock, clock = threading.Lock(), _Clock()
    lock.acquire()
    turn = Turn(lock, clock)
    turn.take()
    assert not turn.give()
    assert lock.locked()
    lock.release()
    turn.take()
    assert not turn.give()
    clock.now = WITHOUT_FACTOR * PATIENCE_SECONDS
    turn.take()
    assert turn.give()


def test_who_had_it_for_long_goes_without_for_many_times_as_long() -> None:
    clock = _Clock()
    turn = Turn(threading.Lock(), clock)
    turn.take()
    clock.now += LONG_SECONDS
    assert turn.give()
    turn.take()
    clock.now += 2 * LONG_SECONDS
    assert turn.give()
    clock.now += (WITHOUT_FACTOR - 1) * 2 * LONG_SECONDS
    turn.take()
    assert not turn.give()
    clock.now += 2 * LONG_SECONDS
    turn.take()
    assert turn.give()


def test_it_is_others_turn_while_a_command_runs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Watch.command_began
    held: list[bool] = []

    def began(watch: Watch, session: int) -> None:
        held.append(place.workplace.turns.locked())
        before(watch, session)

    monkeypatch.setattr(Watch, "command_began", began)
    place.shell("true")
    assert held == [False]
    assert place.workplace.turns.locked()  # until the slot rests, for what follows
    place.runner.rest()
    assert not place.workplace.turns.locked()


@pytest.mark.parametrize("said", [{"post": {"argv": ["true"]}}, {"inputs": [{"name": "mine"}]}])
def test_it_is_others_turn_after_what_may_last(place: Place, said: dict[str, object]) -> None:
    (place.folder / "mine").write_text("a user's file, which is copied")
    place.shell("true")
    assert place.shell("true", **said).payload["exit_code"] == "SUCCESS"
    assert not place.workplace.turns.locked()


@pytest.mark.usefixtures("impatient")
def test_a_slot_that_hangs_in_its_turn_keeps_nobody(place: Place) -> None:
    place.workplace.turns.acquire()
    outcome = place.shell("echo x > out", binary={"outputs": [{"name": "out"}]})
    sha256 = hashlib.sha256(b"x\n").hexdigest()
    assert outcome.payload["manifest"] == [{"name": "out", "size_bytes": 2, "sha256": sha256}]
    assert place.workplace.turns.locked()
    place.workplace.turns.release()
