"""Agents whose clocks are wrong, in whole worlds: the book flags what they say, and nothing of the others."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.book.rows.rows import EventRow, StreamRow
from pilotage.simulator.trials.checked_world import CheckedWorld
from pilotage.simulator.trials.definition import World, make_world
from pilotage.simulator.trials.trial import simulate
from pilotage.simulator.world.faults import Faults

NEAR_SECONDS = 250.0  # certainly within the tolerance, with all that a message takes
FAR_SECONDS = 400.0  # certainly beyond it


def told_by_agents(world: World, monkeypatch: pytest.MonkeyPatch) -> list[list[EventRow]]:
    """Run a world; what each of its agents has told, as the book has it."""
    scenes: list[CheckedWorld] = []
    begin = CheckedWorld.begin

    def kept(checked_world: CheckedWorld) -> None:
        scenes.append(checked_world)
        begin(checked_world)

    monkeypatch.setattr(CheckedWorld, "begin", kept)
    assert simulate(world).violation is None
    [checked_world] = scenes
    ledger = checked_world.journal._ledger
    told = {row.stream_id: list[EventRow]() for row in ledger.find_rows(StreamRow, having={}) if row.source == "agent"}
    for row in ledger.find_rows(EventRow, having={}):
        if row.stream_id in told:
            told[row.stream_id].append(row)
    return list(told.values())


@pytest.mark.parametrize("seed", [3, 12])
def test_every_agent_is_found_out_from_its_second_exchange_on(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = msgspec.structs.replace(make_world(seed), faults=Faults(clock_skewed=0.7))
    right = wrong = 0
    for rows in told_by_agents(world, monkeypatch):
        first = min(rows, key=lambda row: row.n)
        off_seconds = first.time - first.received  # it tells at once that it has started
        later = {row.skewed for row in rows if row is not first}
        if abs(off_seconds) < NEAR_SECONDS:
            right += 1
            assert (first.skewed, later | {0}) == (0, {0})
        elif abs(off_seconds) > FAR_SECONDS:
            wrong += 1
            assert first.skewed == (off_seconds > 0.0)
            assert later | {1} == {1}
    assert right
    assert wrong


@pytest.mark.parametrize("seed", [2, 5])
def test_whatever_else_strikes_a_clock_that_is_right_is_not_flagged(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = make_world(seed)
    right = msgspec.structs.replace(usual.faults, clock_skewed=0.0, service_clock_set=0.0)
    faults = msgspec.structs.replace(right, message_delayed=0.05, agent_paused=0.02)
    told = told_by_agents(msgspec.structs.replace(usual, faults=faults), monkeypatch)
    assert [row for rows in told for row in rows if row.skewed] == []
    assert sum(map(len, told)) > 20
