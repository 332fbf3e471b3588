"""GASW's exit code of a failure: one for each, whoever tells of it."""

from __future__ import annotations

from typing import get_args

import pytest

from pilotage.agent.attempt import diagnosis
from pilotage.model.states import ExitCodeGasw, Phase, Reason, exit_code_for
from pilotage.simulator.agents.attempt import ENDINGS

PHASES = ("", "logs", *get_args(Phase))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("reason", [*get_args(Reason), "cancelled", "a-word-of-the-document"])
def test_the_agent_and_the_simulator_tell_the_same(reason: str, phase: str) -> None:
    assert diagnosis.exit_code_for(reason, phase=phase) == exit_code_for(reason, phase=phase).value


@pytest.mark.parametrize("reason", [each for each in get_args(Reason) if each != "platform-failure"])
def test_a_reason_has_one_code_in_whichever_phase_it_is_told(reason: str) -> None:
    assert len({exit_code_for(reason, phase=phase) for phase in PHASES}) == 1


def test_every_code_of_gasw_can_occur() -> None:
    reasons = [*get_args(Reason), "cancelled"]
    told = {exit_code_for(reason, phase=phase) for reason in reasons for phase in PHASES}
    assert told | {ExitCodeGasw.SUCCESS} == {*ExitCodeGasw}


def test_the_simulator_knows_an_ending_for_every_reason() -> None:
    assert {*get_args(Reason)} <= {*ENDINGS}
