"""Pilots that have not come are withdrawn when nothing waits for them, when their site is another, and at the end."""

from __future__ import annotations

import pytest

from pilotage.engine.decisions.provisioning import HOPEFUL_SECONDS, WITHDRAW_SECONDS
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import (
    CancelSubmitted,
    HibernateSite,
    Hold,
    Kill,
    ProbeSite,
    Release,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.exchange.reports import Gone, SubmissionFailed, Submitted
from pilotage.model.resources import Capacity
from pilotage.model.site import Site
from pilotage.service.messages import SiteOperationRequest, SitesChanged, Stopping
from tests.kit.small_engine import Small
from tests.kit.small_plans import IN_ORDER, bag, chain, site


def ended(small: Small) -> list[str]:
    return [one.event.pilot or "" for one in small.book if getattr(one.data, "reason", "") == "withdrawn"]


@pytest.mark.parametrize("stop", [Kill(job="j"), Hold(job="j")])
def test_pilots_in_a_queue_are_withdrawn_when_their_job_is_stopped(stop: Kill | Hold) -> None:
    with Small(site("a", pilots=4)) as small:
        small.submit(bag(4))
        keys = [each.key for each in small.take(SubmitPilot)]
        assert keys
        small.ask(stop)
        small.wait(WITHDRAW_SECONDS - 2)
        assert not small.effects
        small.wait(4)
        assert [each.key for each in small.take(CancelSubmitted)] == keys == ended(small)
        assert not small.engine.state.sites.by_name["a"].requests
        small.step(Gone(site="a", key=keys[0], reason="cancelled"))
        assert not small.engine.state.sites.by_name["a"].dead_starts
        small.wait(1000)
        assert not small.effects


def test_a_job_that_goes_on_soon_keeps_its_pilots_and_one_that_goes_on_later_gets_others() -> None:
    with Small(site("a", pilots=1)) as small:
        small.submit(bag(1))
        [first] = small.take(SubmitPilot)
        small.ask(Hold(job="j"))
        small.wait(WITHDRAW_SECONDS - 2)
        small.ask(Release(job="j"))
        small.wait(WITHDRAW_SECONDS - 2)
        small.ask(Hold(job="j"))
        small.wait(WITHDRAW_SECONDS - 2)
        assert not small.effects
        small.wait(4)
        assert [each.key for each in small.take(CancelSubmitted)] == [first.key]
        small.ask(Release(job="j"))
        small.wait(2)
        small.pilot("a").succeed("1.1.1")
        assert small.status("1.1.1") == "done"


def test_pilots_are_kept_for_longer_while_packages_wait_for_others() -> None:
    with Small(site("a", pilots=2)) as small:
        small.submit(chain(lines=2))
        pilot = small.pilot("a", capacity=Capacity(cores_hundredths=200))
        assert len(pilot.held) == 2
        [other] = small.take(SubmitPilot)
        small.step(Submitted(site="a", key=other.key, native_id="7"))
        small.wait(HOPEFUL_SECONDS - 20, pilot)
        assert not small.effects
        small.wait(40, pilot)
        assert [each.key for each in small.take(CancelSubmitted)] == [other.key]
        assert len(pilot.held) == 2
        pilot.unread.clear()


def test_a_probe_is_not_withdrawn() -> None:
    with Small(site("a")) as small:
        small.step(SiteOperationRequest(token=1, operation=ProbeSite(site="a")))
        small.answers.clear()
        [wanted] = small.take(SubmitPilot)
        small.wait(10 * WITHDRAW_SECONDS)
        assert [*small.engine.state.pilots.requests] == [wanted.key]
        small.effects.clear()
        assert not ended(small)


def test_a_service_that_ends_withdraws_its_pilots_asks_for_no_more_and_writes_down_what_it_learned() -> None:
    with Small(site("a", pilots=2)) as small:
        small.submit(bag(9))
        pilot = small.pilot("a")
        [queued] = small.take(SubmitPilot)
        pilot.succeed(next(iter(pilot.held)).package)
        learned = small.engine.state.selection.learned_state("a")
        assert small.restarted().engine.state.selection.learned_state("a").earned != learned.earned
        small.step(Stopping(token=3))
        assert [each.token for each in small.answers] == [3]
        small.answers.clear()
        assert [each.key for each in small.take(CancelSubmitted)] == [queued.key]
        again = small.restarted().engine
        assert again.state.selection.learned_state("a").earned == learned.earned
        assert queued.key not in again.state.pilots.requests
        small.wait(30, pilot)
        assert not small.effects
        pilot.unread.clear()


def test_pilots_that_die_together_are_no_row() -> None:
    with Small(site("a", pilots=5), dead_starts_max=3) as small:
        small.submit(bag(5))
        wanted = small.take(SubmitPilot)
        assert len(wanted) == 5
        small.step(*(Gone(site="a", key=each.key, reason="failed", stderr="no disk") for each in wanted))
        assert small.engine.state.sites.by_name["a"].dead_starts == 1
        assert small.engine.state.sites.by_name["a"].status == "candidate"
        for _ in range(2):
            small.wait(200)
            small.step(*(Gone(site="a", key=each.key, reason="failed") for each in small.take(SubmitPilot)))
        assert small.journal.sites()[0].status == "hibernated"


def test_submissions_that_are_refused_are_told_as_such_with_the_error_and_not_the_hint() -> None:
    with Small(site("a"), dead_starts_max=1) as small:
        small.submit(bag(1))
        [wanted] = small.take(SubmitPilot)
        message = "a: sbatch: invalid partition\n  see `pilotage site show a`"
        small.step(SubmissionFailed(site="a", key=wanted.key, reason="refused", message=message))
        [slept] = [one.data for one in small.book if isinstance(one.data, payloads.SiteHibernated)]
        assert slept.message == "1 submissions in a row were refused: a: sbatch: invalid partition"


@pytest.mark.parametrize("changed", [site("a", cores=2, pilots=2), site("a", cores=1, pilots=2, mode="bound")])
def test_a_site_of_another_size_or_mode_lets_its_pilots_finish_and_has_others(changed: Site) -> None:
    with Small(site("a", cores=1, pilots=2)) as small:
        small.submit(bag(3))
        pilot = small.pilot("a")
        [queued] = small.take(SubmitPilot)
        small.step(SitesChanged(sites=(changed,)))
        assert [each.key for each in small.take(CancelSubmitted)] == [queued.key]
        small.wait(2, pilot)
        assert pilot.held
        assert bool(small.take(SubmitPilot)) == (changed.mode == "pilots")
        pilot.succeed(*pilot.packages)
        assert pilot.left
        small.effects.clear()
        pilot.unread.clear()


def test_a_site_that_starts_other_pilots_lets_those_of_before_finish_and_takes_back_what_waits() -> None:
    with Small(site("a", cores=1, pilots=2)) as small:
        small.submit(bag(3))
        pilot = small.pilot("a")
        [queued] = small.take(SubmitPilot)
        small.step(SitesChanged(sites=small.sites, rewritten=("a",), renewed=("a",)))
        assert [each.key for each in small.take(CancelSubmitted)] == [queued.key]
        small.wait(2, pilot)
        assert pilot.held
        assert small.take(SubmitPilot)
        pilot.succeed(*pilot.packages)
        assert pilot.left
        small.effects.clear()
        pilot.unread.clear()


def test_what_waits_in_the_queue_of_a_bound_site_that_starts_others_is_submitted_anew() -> None:
    with Small(site("a", mode="bound")) as small:
        small.submit(bag(1))
        [first] = small.take(SubmitAttempt)
        small.step(Submitted(site="a", key=first.key, native_id="1"))
        small.step(SitesChanged(sites=small.sites, rewritten=("a",), renewed=("a",)))
        assert [each.key for each in small.take(CancelSubmitted)] == [first.key]
        small.step(Gone(site="a", key=first.key, reason="cancelled"))
        [second] = small.take(SubmitAttempt)
        assert second.key != first.key
        small.effects.clear()


@pytest.mark.parametrize("changed", [site("a", cores=2, pilots=2), site("a", cores=1, pilots=2, mode="bound")])
@pytest.mark.parametrize("told", [True, False])
def test_pilots_of_a_site_that_was_of_another_size_or_mode_leave_after_a_restart_too(
    changed: Site, *, told: bool
) -> None:
    with Small(site("a", cores=1, pilots=2)) as small:
        small.submit(bag(3))
        pilot = small.pilot("a")
        [package] = pilot.packages
        if told:  # while the engine ran, and not only in between
            small.step(SitesChanged(sites=(changed,)))
        small.sites = (changed,)
        small.restart()
        small.wait(2, pilot)
        assert pilot.packages == [package]
        pilot.succeed(package)
        assert pilot.left
        assert not pilot.held
        small.effects.clear()
        pilot.unread.clear()


def test_pilots_of_a_site_of_which_only_their_number_changed_stay_over_a_restart() -> None:
    with Small(site("a", cores=1, pilots=2)) as small:
        small.submit(bag(3))
        pilot = small.pilot("a")
        small.sites = (site("a", cores=1, pilots=3),)
        small.restart()
        pilot.succeed(*pilot.packages)
        assert pilot.held
        small.effects.clear()
        pilot.unread.clear()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_site_that_somebody_put_to_sleep_sleeps_on_when_its_entry_was_away_for_a_moment(cores: int) -> None:
    with Small(site("a")) as small:
        small.step(SiteOperationRequest(token=1, operation=HibernateSite(site="a", message="for repair")))
        small.answers.clear()
        small.submit(bag(1))
        small.step(SitesChanged(sites=()))
        small.step(SitesChanged(sites=()))
        small.step(SitesChanged(sites=(site("a", cores=cores),)))
        small.wait(10)
        assert not small.effects
        assert [(row.status, row.message) for row in small.journal.sites()] == [("hibernated", "for repair")]


# --- this computer ----------------------------------------------------------------------------------------------------


def test_what_waits_for_pilots_that_have_not_come_is_done_by_this_computer_as_quickly_as_it_can() -> None:
    with Small(site("far", kind="slurm", pilots=9), site("here", kind="local"), selection=IN_ORDER) as small:
        small.submit(bag(3))
        assert {name for name in small.engine.state.sites.by_name if small.reserved(name)} == {"far"}
        pilot = small.pilot("here")
        assert [each.site for each in small.take(SubmitPilot)] == ["far", "far", "far"]
        for package in ("1.3.1", "1.2.1", "1.1.1"):
            assert pilot.packages == [package]
            pilot.succeed(package)
        small.wait(20)
        assert len(small.take(CancelSubmitted)) == 3


def test_for_what_avoids_this_computer_none_of_its_pilots_is_asked_for() -> None:
    with Small(site("here", kind="local"), site("far", kind="slurm"), selection=IN_ORDER) as small:
        small.submit(bag(1))
        pilot = small.pilot("here")
        pilot.fail("1.1.1", "out-of-memory", after=5.0)
        pilot.say(payloads.PilotEnded(reason="idle"))
        pilot.exchange()
        small.wait(5.0)
        assert {name for name in small.engine.state.sites.by_name if small.reserved(name)} == {"far"}
        assert [each.site for each in small.take(SubmitPilot)] == ["far"]


def test_between_batch_systems_no_pilot_is_asked_for_in_case_another_does_not_come() -> None:
    with Small(site("far", kind="slurm"), site("there", kind="slurm"), selection=IN_ORDER) as small:
        small.submit(bag(1))
        assert [each.site for each in small.take(SubmitPilot)] == ["far"]
