from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt import commands
from pilotage.agent.attempt.commands import LONG_SECONDS, PATIENCE_SECONDS, WITHOUT_FACTOR, SpawnTurn
from pilotage.agent.attempt.watcher import Watch
from tests.kit.agent_runs import Place, place_in

_SHA256 = hashlib.sha256(b"data").hexdigest()
_INPUTS = [{"name": "in", "sha256": _SHA256, "size_bytes": 4, "made": True}]


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        (place.folder / "in").write_bytes(b"data")
        (place.folder / "mine").write_text("a user's file, which is copied")
        yield place


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PATIENCE_SECONDS", 0.0)


def test_a_turn_that_is_taken_twice_is_given_once() -> None:
    lock = threading.Lock()
    turn = SpawnTurn(lock)
    turn.take()
    turn.take()
    assert lock.locked()
    assert turn.give()
    assert not lock.locked()
    assert not turn.give()


def test_who_waits_in_vain_goes_without_for_a_while_and_takes_nothing_from_who_has_it() -> None:
    lock, clock = threading.Lock(), _Clock()
    lock.acquire()
    turn = SpawnTurn(lock, clock)
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
    turn = SpawnTurn(threading.Lock(), clock)
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


def _spied(place: Place, patch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether a slot has the turn while its command runs, and after it."""
    began, ended = Watch.command_began, Watch.command_ended
    found: dict[str, bool] = {}

    def see_began(watch: Watch, session: int) -> None:
        found["during"] = place.workplace.turns.locked()
        began(watch, session)

    def see_ended(watch: Watch) -> None:
        found["after"] = place.workplace.turns.locked()
        ended(watch)

    patch.setattr(Watch, "command_began", see_began)
    patch.setattr(Watch, "command_ended", see_ended)
    return found


def test_it_is_others_turn_while_a_command_runs_and_while_a_slot_rests(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "LONG_SECONDS", math.inf)  # on a busy computer the first command may last
    place.shell("true", inputs=_INPUTS)  # from now on the checksum is known
    found = _spied(place, monkeypatch)
    assert place.shell("true", inputs=_INPUTS).payload["exit_code"] == "SUCCESS"
    assert found == {"during": False, "after": True}
    assert place.workplace.turns.locked()  # for what follows
    place.runner.rest()
    assert not place.workplace.turns.locked()


@pytest.mark.parametrize("said", [{}, {"inputs": _INPUTS, "post": {"argv": ["true"]}}, {"inputs": [{"name": "mine"}]}])
def test_who_brings_no_inputs_or_does_what_may_last_leaves_it_to_others(
    place: Place, said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.shell("true", inputs=_INPUTS)
    place.runner.rest()
    found = _spied(place, monkeypatch)
    assert place.shell("true", **said).payload["exit_code"] == "SUCCESS"
    assert found == {"during": False, "after": False}


def test_an_attempt_that_fails_in_its_turn_leaves_it_to_others(place: Place) -> None:
    place.shell("true", inputs=_INPUTS)
    assert place.shell("exit 3", inputs=_INPUTS).payload["exit_status"] == 3
    assert place.shell("exit 3", inputs=_INPUTS, keep_failed=True).payload["exit_status"] == 3
    place.runner.rest()
    assert not place.workplace.turns.locked()


@pytest.mark.usefixtures("impatient")
def test_a_slot_that_hangs_in_its_turn_keeps_nobody(place: Place) -> None:
    place.shell("true", inputs=_INPUTS)
    place.workplace.turns.acquire()
    outcome = place.shell("cat in > out", inputs=_INPUTS, binary={"outputs": [{"name": "out"}]})
    assert place.outputs(outcome) == {"out": b"data"}
    assert place.workplace.turns.locked()
    place.workplace.turns.release()
