"""Early start: beside the running attempt that makes its input, and granted only after that very attempt."""

from __future__ import annotations

import pytest

from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import InputSource
from pilotage.model.exchange.operations import (
    Accepted,
    Drop,
    Hold,
    Kill,
    Refused,
    Release,
    Replicate,
    Reschedule,
    Restart,
)
from tests.kit.small_engine import JOB, Agent, Small, differences
from tests.kit.small_plans import kind, plan, site, stage

LEASE = 60.0
PAIR = plan(stage(), stage(), early=[("1.1.1", "2.1.1")])


def runs(pilot: Agent, package: str) -> None:
    """Tell that the application of a package runs."""
    pilot.say(payloads.PhaseEntered(phase="application"), pilot.ref(package))
    pilot.exchange()


def started(small: Small) -> Agent:
    """A pilot whose second package reads the outputs of the first one while they grow."""
    small.submit(PAIR)
    pilot = small.pilot()
    runs(pilot, "1.1.1")
    assert pilot.packages == ["1.1.1", "2.1.1"]
    return pilot


def told(small: Small, kind: type[payloads.Payload]) -> list[Event]:
    """The events of a kind, about any package."""
    return [one.event for one in small.book if isinstance(one.data, kind)]


def another(small: Small, at: int) -> Agent:
    """A further pilot at a site, given by its position, that nobody has asked for."""
    where = small.sites[at]
    pilot = small.agent(f"{where.name}-x.1", site=where.name, request=f"{where.name}-x", capacity=where.capacity)
    pilot.exchange()
    return pilot


def grants(small: Small) -> list[str | None]:
    return [event.package for event in told(small, payloads.CommitGranted)]


def test_a_consumer_starts_when_the_application_of_its_producer_runs_and_knows_the_attempt() -> None:
    with Small(site(cores=2)) as small:
        small.submit(PAIR)
        pilot = small.pilot()
        assert pilot.packages == ["1.1.1"]
        assert small.status("2.1.1") == "blocked"
        runs(pilot, "1.1.1")
        assignment = pilot.held[pilot.ref("2.1.1")]
        assert (assignment.inputs, assignment.early) == ((), (InputSource("1.1.1", 1),))
        assert [why.code for why in small.explain("2.1.1").reasons][-1] == "started-early"
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")


def test_its_grant_waits_for_that_of_the_attempt_that_it_read_from() -> None:
    with Small(site(cores=2)) as small:
        pilot = started(small)
        pilot.succeed("2.1.1")
        assert grants(small) == []
        assert small.status("2.1.1") == "live"
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []
        assert grants(small) == []
        pilot.exchange()
        pilot.succeed("1.1.1")
        assert grants(small) == ["1.1.1", "2.1.1"]


def test_without_room_it_waits_for_a_slot_at_that_site_alone() -> None:
    with Small(site("a", cores=1), site("b", cores=4)) as small:
        small.submit(PAIR)
        pilot = small.pilot("a")
        runs(pilot, "1.1.1")
        other = another(small, 1)
        assert other.packages == []
        assert small.status("2.1.1") in ("ready", "reserved")
        assert small.explain("2.1.1").reasons[0].message == "it is reserved for a"
        pilot.succeed("1.1.1")
        other.exchange()
        assert {*pilot.packages, *other.packages} == {"2.1.1"}
        (other if other.packages else pilot).succeed("2.1.1")


@pytest.mark.parametrize("how", ["fails", "is lost", "is rescheduled", "is dropped"])
def test_when_its_producer_does_not_make_the_result_it_is_discarded_and_that_is_no_failure(how: str) -> None:
    with Small(site(cores=2)) as small:
        pilot = started(small)
        if how == "fails":
            pilot.fail("1.1.1", "application-error")
        elif how == "is rescheduled":
            small.ask(Reschedule(job=JOB, package="1.1.1"))
        elif how == "is dropped":
            small.ask(Drop(job=JOB, stage=1, line=1))
        else:
            small.wait(3 * LEASE + 1)
        [again] = small.told(payloads.Restarted, "2.1.1")
        assert (again.epoch, b'"lost_input":{"package":"1.1.1","attempt":1}' in bytes(again.data)) == (2, True)
        small.effects.clear()
        small.finish()
        assert grants(small)[-1] == "2.1.1"
        assert told(small, payloads.Aborted) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_that_read_from_a_failed_attempt_is_not_granted_even_if_it_succeeds(when: str) -> None:
    with Small(site(cores=2)) as small:
        pilot = started(small)
        ref = pilot.ref("2.1.1")
        if when == "before":
            pilot.succeed("2.1.1")
        pilot.end(pilot.ref("1.1.1"), reason="application-error")
        if when == "after":
            pilot.end(ref)  # in one message, after the failure of its producer
        pilot.exchange()
        pilot.unread.clear()
        assert grants(small) == []
        pilot.exchange()
        small.finish()
        granted = small.told(payloads.CommitGranted, "2.1.1")
        assert [(event.epoch, (event.attempt or 0) > 1) for event in granted] == [(2, True)]


def test_what_was_discarded_is_the_same_after_a_restart_of_the_service() -> None:
    with Small(site(cores=2)) as small:
        pilot = started(small)
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []
        pilot.exchange()
        pilot.fail("1.1.1", "application-error")
        assert small.told(payloads.Restarted, "2.1.1") != []
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []
        small.finish()


def test_a_replaced_attempt_of_the_producer_that_comes_back_first_keeps_its_reader() -> None:
    with Small(site(cores=2)) as small:
        pilot = started(small)
        small.wait(LEASE + 1)  # both are suspect, and neither is lost
        other = another(small, 0)
        pilot.exchange()
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")
        assert [event.attempt for event in told(small, payloads.CommitGranted)] == [1, 1]
        other.exchange()


def test_if_another_attempt_of_the_producer_is_granted_its_reader_is_discarded() -> None:
    with Small(site(cores=2), site("b", cores=2)) as small:
        started(small)
        small.wait(LEASE + 1)
        other = small.pilot("b")
        assert other.packages == ["1.1.1"]
        other.succeed("1.1.1")
        assert [event.epoch for event in small.told(payloads.Restarted, "2.1.1")] == [2]
        small.effects.clear()
        small.finish()
        assert [event.epoch for event in small.told(payloads.CommitGranted, "2.1.1")] == [2]


def test_a_failure_of_its_own_does_not_count_and_it_waits_for_complete_inputs() -> None:
    with Small(site(cores=2)) as small:
        pilot = started(small)
        pilot.fail("2.1.1", "application-error")
        assert small.status("2.1.1") == "blocked"
        assert "early-failed" in [why.code for why in small.explain("2.1.1").reasons]
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []
        pilot.exchange()
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")
        assert pilot.packages == ["2.1.1"]
        assert pilot.held[pilot.ref("2.1.1")].inputs == (InputSource("1.1.1", 1),)
        for number in range(3):
            assert (number, told(small, payloads.Aborted)) == (number, [])
            pilot.fail("2.1.1", "application-error")
        assert len(told(small, payloads.Aborted)) == 1  # the usual limit, as if there had been none before


def test_producers_that_run_at_two_sites_are_waited_for() -> None:
    with Small(site("a", cores=1), site("b", cores=1)) as small:
        small.submit(plan(stage(2), stage(), early=[("1.1.1", "2.1.1"), ("1.2.1", "2.1.1")]))
        one, two = small.pilot("a"), another(small, 1)
        runs(one, one.packages[0])
        runs(two, two.packages[0])
        assert small.status("2.1.1") == "blocked"
        one.succeed(*one.packages)
        assert small.status("2.1.1") in ("ready", "reserved", "live")  # one producer is left, at one site
        small.finish()


def test_a_producer_that_is_done_counts_as_complete() -> None:
    with Small(site(cores=3)) as small:
        small.submit(plan(stage(2), stage(), early=[("1.1.1", "2.1.1"), ("1.2.1", "2.1.1")]))
        pilot = small.pilot()
        runs(pilot, "1.1.1")
        assert pilot.packages == ["1.1.1", "1.2.1"]
        pilot.succeed("1.2.1")
        assignment = pilot.held[pilot.ref("2.1.1")]
        assert (assignment.inputs, assignment.early) == ((InputSource("1.2.1", 1),), (InputSource("1.1.1", 1),))
        pilot.succeed("2.1.1")
        pilot.succeed("1.1.1")
        assert grants(small) == ["1.2.1", "1.1.1", "2.1.1"]


def test_a_package_that_also_waits_for_a_complete_file_or_has_side_effects_does_not_start_early() -> None:
    with Small(site(cores=4)) as small:
        edges = [("1.2.1", "2.1.1")]
        early = [("1.1.1", "2.1.1"), ("1.1.1", "3.1.1")]
        small.submit(plan(stage(2), stage(), stage(1, kind(side_effects=True)), edges=edges, early=early))
        pilot = small.pilot()
        runs(pilot, "1.1.1")
        runs(pilot, "1.2.1")
        assert small.standings()["blocked"] == ["2.1.1", "3.1.1"]
        small.finish()


def test_a_producer_that_is_read_gets_no_replica_and_one_with_two_attempts_is_not_read() -> None:
    with Small(site(cores=2), site("b", cores=2)) as small:
        pilot = started(small)
        for package in ("1.1.1", "2.1.1"):
            refused = small.ask(Replicate(job=JOB, package=package))
            assert isinstance(refused, Refused)
            assert (refused.code, "2.1.1 started early" in refused.message) == ("consumer-started", True)
        pilot.succeed("1.1.1")
        pilot.succeed("2.1.1")
    with Small(site(cores=2), site("b", cores=2)) as small:
        small.submit(PAIR)
        pilot = small.pilot()
        assert isinstance(small.ask(Replicate(job=JOB, package="1.1.1")), Accepted)
        runs(pilot, "1.1.1")
        assert small.status("2.1.1") == "blocked"
        other = another(small, 1)
        assert other.packages == ["1.1.1"]
        assert small.status("2.1.1") == "blocked"
        small.effects.clear()
        small.finish()


def test_a_held_package_does_not_start_early_and_one_that_runs_is_granted() -> None:
    with Small(site(cores=2)) as small:
        small.submit(PAIR)
        pilot = small.pilot()
        small.ask(Hold(job=JOB, package="2.1.1"))
        runs(pilot, "1.1.1")
        assert small.status("2.1.1") == "held"
        small.ask(Release(job=JOB, package="2.1.1"))
        pilot.exchange()
        assert pilot.packages == ["1.1.1", "2.1.1"]
        small.ask(Hold(job=JOB, package="2.1.1"))
        pilot.succeed("2.1.1")
        pilot.succeed("1.1.1")
        assert grants(small) == ["1.1.1", "2.1.1"]


def test_a_killed_producer_takes_its_reader_along_and_both_can_be_restarted() -> None:
    with Small(site(cores=2)) as small:
        pilot = started(small)
        small.ask(Kill(job=JOB, package="1.1.1"))
        assert small.standings() == {"cancelled": ["1.1.1"], "upstream": ["2.1.1"]}
        pilot.exchange()
        pilot.unread.clear()
        small.ask(Restart(job=JOB, package="1.1.1"))
        small.effects.clear()
        small.finish()
        assert grants(small) == ["1.1.1", "2.1.1"]


def test_a_reader_of_a_reader_is_discarded_with_it() -> None:
    with Small(site(cores=3)) as small:
        small.submit(plan(stage(), stage(), stage(), early=[("1.1.1", "2.1.1"), ("2.1.1", "3.1.1")]))
        pilot = small.pilot()
        runs(pilot, "1.1.1")
        runs(pilot, "2.1.1")
        assert pilot.packages == ["1.1.1", "2.1.1", "3.1.1"]
        pilot.succeed("3.1.1")
        pilot.succeed("2.1.1")
        assert grants(small) == []
        pilot.fail("1.1.1", "application-error")
        assert {event.package for event in told(small, payloads.Restarted)} == {"2.1.1", "3.1.1"}
        small.finish()
        assert grants(small) == ["1.1.1", "2.1.1", "3.1.1"]
