"""Phases of attempts that move files, as the choice of sites sees them: load while they last, success when they are over."""

from __future__ import annotations

import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import Reschedule
from pilotage.model.states import Phase
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, site


def test_a_long_phase_that_moves_files_weighs_on_its_site_until_it_is_over() -> None:
    with Small(site("a", pilots=1)) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        score = small.engine.state.sites.by_name["a"].profile.score
        before, ref = score.value, pilot.ref("1.1.1")
        seen = []
        for phase in ("setup", "inputs", "application", "outputs"):
            pilot.say(payloads.PhaseEntered(phase=phase), ref)
            pilot.exchange()
            seen.append(round(score.value - before, 6))
        # What is over earned 0.1 each; what is under way costs 0.01 for a file operation and 0.2 for a transfer.
        assert seen == [-0.01, 0.1 - 0.2, 0.2, 0.2 - 0.2]
        pilot.succeed("1.1.1")
        assert round(score.value - before, 6) == 0.4  # and the attempt itself
        assert score.load == 0.0


def test_a_phase_that_its_attempt_did_not_survive_leaves_no_load_behind() -> None:
    with Small(site("a", pilots=1), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        score = small.engine.state.sites.by_name["a"].profile.score
        before = score.earned
        pilot.say(payloads.PhaseEntered(phase="inputs"), pilot.ref("1.1.1"))
        pilot.exchange()
        assert round(score.load, 6) == -0.2
        pilot.fail("1.1.1", "application-error")
        assert (score.load, round(score.earned - before, 6)) == (0.0, 0.0)  # nothing of it did better elsewhere
        small.effects.clear()
        pilot.unread.clear()


def test_a_phase_whose_attempt_is_lost_leaves_no_load_behind() -> None:
    with Small(site("a", pilots=1), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        score = small.engine.state.sites.by_name["a"].profile.score
        pilot.say(payloads.PhaseEntered(phase="inputs"), pilot.ref("1.1.1"))
        pilot.exchange()
        assert round(score.load, 6) == -0.2
        small.ask(Reschedule(job=JOB, package="1.1.1"))
        assert score.load == 0.0
        small.effects.clear()
        pilot.unread.clear()


@pytest.mark.parametrize(
    "phases, reason, earned",
    [
        (("setup", "inputs", "application", "outputs"), None, 0.4),
        (("setup", "application"), None, 0.2),
        (("application",), None, 0.1),
        ((), None, 0.1),
        (("setup", "inputs", "application", "cleaning"), "application-error", 0.2),
        (("setup", "inputs", "cleaning"), "application-error", 0.1),
        (("setup", "inputs", "application", "outputs", "cleaning"), "missing-output", 0.2),
        (("setup",), "application-error", 0.0),
    ],
)
def test_short_phases_are_scored_when_the_end_of_their_attempt_tells_of_them(
    phases: tuple[Phase, ...], reason: str | None, earned: float
) -> None:
    with Small(site("a", pilots=1)) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        score = small.engine.state.sites.by_name["a"].profile.score
        before = score.earned
        pilot.end(pilot.ref("1.1.1"), reason=reason, phases=phases)
        pilot.exchange()
        assert round(score.earned - before, 6) == round(earned, 6)
        assert score.load == 0.0
        pilot.unread.clear()


@pytest.mark.parametrize("kept", ["going on", "restarted"])
def test_a_phase_is_scored_once_whether_it_was_told_of_or_not(kept: str) -> None:
    with Small(site("a", pilots=1)) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        before = small.engine.state.sites.by_name["a"].profile.score.earned
        ref = pilot.ref("1.1.1")
        pilot.say(payloads.PhaseEntered(phase="setup"), ref)
        pilot.exchange()
        pilot.say(payloads.PhaseEntered(phase="inputs"), ref)
        pilot.exchange()
        if kept == "restarted":
            small.restart()
        score = small.engine.state.sites.by_name["a"].profile.score
        assert round(score.load, 6) == -0.2
        seen = score.earned  # the one of setup, where it was written down before the restart
        pilot.end(ref, phases=("setup", "inputs", "application", "outputs"))
        pilot.exchange()
        assert round(score.earned - seen, 6) == 0.3  # inputs, outputs and the attempt
        assert kept == "restarted" or round(score.earned - before, 6) == 0.4
        assert score.load == 0.0
        pilot.unread.clear()


def test_a_site_that_sleeps_earns_nothing_by_its_phases() -> None:
    with Small(site("a", pilots=1), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        small.engine.state.pending.site_changes += small.engine.state.selection.hibernate("a", at=small.now)
        small.engine.state.selection.operations_completed("a", 3)
        assert small.engine.state.sites.by_name["a"].profile.score.earned == 0.0
        pilot.succeed("1.1.1")
        small.effects.clear()
        pilot.unread.clear()
