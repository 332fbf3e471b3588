"""What follows from failures, as the engine carries it out: elsewhere, later, with more, held, parked, given up."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.exchange.operations import Hold, Release, Restart, SubmitPilot
from pilotage.model.exchange.reports import Gone
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.resources import Capacity
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import IN_ORDER, bag, chain, kind, site

_NOBODY_DRAINED = msgspec.structs.replace(IN_ORDER, black_hole_streak=1000)

GIB = 2**30


def cause(event: Event) -> str:
    return str(msgspec.json.decode(event.data)["cause"])


def both(small: Small) -> dict[str, Agent]:
    """A pilot at each of the sites a and b."""
    pilots = {"a": small.pilot("a")}
    pilots["b"] = small.agent(
        "b-0.1", site="b", request="b-0", capacity=small.engine.state.sites.by_name["b"].site.capacity
    )
    pilots["b"].exchange()
    return pilots


def fail_everywhere(small: Small, pilots: dict[str, Agent], *, reason: str, message: str = "", times: int) -> list[str]:
    """Fail whatever is held, so many times; where each attempt ran."""
    sites = []
    for _ in range(times):
        for name, pilot in pilots.items():
            pilot.exchange(after=1.0)
            for package in pilot.packages:
                sites.append(name)
                pilot.fail(package, reason, message=message)
    return sites


@pytest.mark.parametrize("reason", ["preempted", "platform-failure", "application-error"])
def test_with_one_site_only_it_is_tried_there_again(reason: str) -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.fail("1.1.1", reason)
        assert [ref.attempt for ref in pilot.held] == [2]
        pilot.succeed("1.1.1")
        assert small.status("1.1.1") == "done"


def test_a_platform_failure_goes_elsewhere_and_does_not_count() -> None:
    with Small(site("a"), site("b"), selection=_NOBODY_DRAINED) as small:
        small.submit(bag(1))
        pilots = both(small)
        sites = fail_everywhere(small, pilots, reason="platform-failure", times=1)
        assert sites == ["a", "b"]
        small.wait(1000, *pilots.values())
        for _ in range(5):
            fail_everywhere(small, pilots, reason="platform-failure", times=1)
            small.wait(2000, *pilots.values())
        assert len(small.created()) > 5
        assert small.status("1.1.1") == "live"
        for pilot in pilots.values():
            pilot.unread.clear()


def test_platform_failures_are_bounded_all_the_same() -> None:
    with Small(site(), selection=_NOBODY_DRAINED) as small:
        small.submit(chain())
        pilot = small.pilot()
        while pilot.held:
            pilot.fail("1.1.1", "platform-failure")
            small.wait(4000, pilot)
            pilot.unread.clear()
        assert len(small.created()) == 20
        assert small.standings() == {"aborted": ["1.1.1"], "upstream": ["2.1.1"]}
        assert [cause(event) for event in small.told(payloads.Aborted, "1.1.1")] == ["retries-exhausted"]


def test_an_application_error_is_tried_three_times_at_most() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        for line in range(3):
            pilot.fail("1.1.1", "application-error", message=f"{'x' * line} went wrong")
        assert pilot.packages == []
        assert len(small.created()) == 3
        assert [cause(event) for event in small.told(payloads.Aborted, "1.1.1")] == ["retries-exhausted"]


def test_an_error_that_repeats_identically_at_two_sites_is_permanent() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        pilots = both(small)
        sites = fail_everywhere(small, pilots, reason="application-error", message="line 12: no such column", times=2)
        assert sites == ["a", "b"]
        assert [cause(event) for event in small.told(payloads.Aborted, "1.1.1")] == ["permanent-failure"]


def test_out_of_memory_gets_twice_the_memory_and_then_twice_that_and_no_more() -> None:
    with Small(site(capacity=Capacity(cores_hundredths=100, memory_bytes=64 * GIB))) as small:
        small.submit(bag(1, kind(memory_bytes=GIB)))
        pilot = small.pilot()
        given = []
        while pilot.held:
            given.append(next(iter(pilot.held.values())).demand.memory_bytes // GIB)
            pilot.fail("1.1.1", "out-of-memory")
        assert given == [1, 2, 4]
        assert small.status("1.1.1") == "aborted"
        told = [
            msgspec.json.decode(event.data).get("memory_bytes")
            for event in small.told(payloads.AttemptCreated, "1.1.1")
        ]
        assert told == [None, 2 * GIB, 4 * GIB]


def test_a_package_that_needs_more_memory_than_any_site_has_is_given_up() -> None:
    with Small(site(capacity=Capacity(cores_hundredths=100, memory_bytes=GIB))) as small:
        small.submit(bag(1, kind(memory_bytes=GIB)))
        pilot = small.pilot()
        pilot.fail("1.1.1", "out-of-memory")
        assert pilot.packages == []
        [aborted] = small.told(payloads.Aborted, "1.1.1")
        assert "which no site offers" in msgspec.json.decode(aborted.data)["message"]


def test_a_wall_time_kill_goes_only_where_more_time_is_left() -> None:
    with Small(site("a", wall_seconds=1000.0), site("b", wall_seconds=5000.0)) as small:
        small.submit(bag(1))
        pilot = small.pilot("a", remaining_seconds=500.0)
        pilot.about["remaining_seconds"] = 100.0
        pilot.fail("1.1.1", "wall-time", after=400.0)
        pilot.exchange(remaining_seconds=499.0)
        assert pilot.packages == []
        assert pilot.left  # nothing that waits fits into its time
        pilot.say(payloads.PilotEnded(reason="asked-to-leave"))
        pilot.exchange()
        small.wait(2.0)
        assert small.pilot("a", remaining_seconds=901.0).packages == ["1.1.1"]


def test_after_a_wall_time_kill_a_site_that_never_gives_more_is_not_tried() -> None:
    with Small(site("a", wall_seconds=900.0), site("b", wall_seconds=5000.0)) as small:
        small.submit(bag(1))
        pilot = small.pilot("a", remaining_seconds=900.0)
        pilot.fail("1.1.1", "wall-time", after=900.0)
        small.wait(1, pilot)
        assert pilot.packages == []
        other = small.pilot("b", remaining_seconds=5000.0)
        assert other.packages == ["1.1.1"]


def test_what_a_fresh_pilot_had_no_time_for_is_given_up_where_no_site_gives_more() -> None:
    with Small(site("a", wall_seconds=3600.0)) as small:
        small.submit(bag(1))
        pilot = small.pilot("a", remaining_seconds=3569.0)
        pilot.fail("1.1.1", "wall-time", after=3569.0)
        [aborted] = small.told(payloads.Aborted, "1.1.1")
        assert "more than 3569 s, which no site offers" in msgspec.json.decode(aborted.data)["message"]


def test_a_missing_input_is_tried_later_and_later() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        waits = []
        for _ in range(3):
            pilot.fail("1.1.1", "missing-input")
            assert small.status("1.1.1") == "delayed"
            since = small.now
            while not pilot.held:
                small.wait(1)
                pilot.exchange()
            pilot.unread.clear()
            waits.append(round(small.now - since))
        assert waits == [10, 20, 40]


def test_a_package_under_which_two_pilots_died_is_parked_and_may_be_released() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        for _ in range(2):
            assert small.status("1.1.1") == "reserved"
            pilot = small.pilot()
            assert pilot.packages == ["1.1.1"]
            small.step(Gone(site="a", key=pilot.request, reason="killed", stderr="Killed"))
            small.wait(61)
            pilot.unread.clear()
        assert small.status("1.1.1") == "held"
        [held] = small.told(payloads.Held, "1.1.1")
        assert "2 pilots died while running it" in msgspec.json.decode(held.data)["message"]
        small.wait(600)
        assert len(small.created()) == 2
        small.take(SubmitPilot)
        small.ask(Release(job=JOB, package="1.1.1"))
        small.wait(100)
        assert small.status("1.1.1") != "held"
        small.take(SubmitPilot)


def test_what_only_waited_in_a_pilot_that_died_did_not_kill_it() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(5, kind(run_seconds=0.01)))
        pilot = small.pilot(backlog=3)
        assert len(pilot.held) == 5
        small.step(Gone(site="a", key=pilot.request, reason="killed", stderr="Killed"))
        small.wait(61)
        pilot.unread.clear()
        lost = [one for one in small.book if isinstance(one.data, payloads.AttemptLost)]
        reasons = {one.event.package: one.data.reason for one in lost if isinstance(one.data, payloads.AttemptLost)}
        assert reasons == {
            "1.1.1": "pilot-killed",
            "1.2.1": "pilot-killed",
            **dict.fromkeys(("1.3.1", "1.4.1", "1.5.1"), "platform-failure"),
        }
        small.take(SubmitPilot)


def test_a_rule_of_the_package_can_hold_the_job() -> None:
    retry = Retry(rules=(RetryRule(reason="disk-full", action="hold-job"),))
    with Small(site()) as small:
        small.submit(bag(3, kind(retry=retry)))
        pilot = small.pilot()
        pilot.fail("1.1.1", "disk-full")
        assert small.engine.state.jobs.by_id[JOB].held
        assert pilot.packages == []
        small.ask(Release(job=JOB))
        pilot.exchange()
        assert len(pilot.packages) == 1


def test_the_history_of_failures_is_kept_until_the_package_is_over() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.fail("1.1.1", "platform-failure", message="no such image\nlast words")
        pilot.fail("1.1.1", "preempted")
        small.wait(20, pilot)
        pilot.unread.clear()
        work = small.engine.state.jobs.by_id[JOB].work[0]
        assert [(each.attempt, each.site, each.reason) for each in work.failures.values()] == [
            (1, "a", "platform-failure"),
            (2, "a", "preempted"),
        ]
        assert [why.message for why in small.explain("1.1.1").reasons if why.code == "failed"] == [
            "attempt 1 failed at a: platform-failure: no such image",
            "attempt 2 failed at a: preempted",
        ]
        pilot.exchange()
        pilot.succeed("1.1.1")
        assert small.engine.state.jobs.by_id[JOB].work == {}


def test_an_attempt_that_replaces_a_lost_one_names_it() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        small.wait(200)
        small.take(SubmitPilot)
        other = small.agent("a-0.1", site="a", request="a-0")
        other.exchange()
        assert other.packages == ["1.1.1"]
        last = small.told(payloads.AttemptCreated, "1.1.1")[-1]
        assert msgspec.json.decode(last.data)["replaces"] == 1
        assert pilot.packages == ["1.1.1"]


def test_what_lacked_an_input_goes_on_at_once_when_its_maker_has_made_it_anew() -> None:
    small = Small(site(cores=2))
    small.submit(chain(lines=1))
    pilot = small.pilot()
    pilot.succeed("1.1.1")
    for _ in range(4):
        small.wait(100.0, pilot)
        pilot.fail("2.1.1", "missing-input")
    assert small.status("2.1.1") == "delayed"
    assert [(why.code, why.subject) for why in small.explain("2.1.1").reasons][1] == ("waits-for-input", "1.1.1")
    small.ask(Restart(job=JOB, package="1.1.1"))
    assert small.status("2.1.1") == "blocked"
    [why] = [why for why in small.explain("2.1.1").reasons if why.code == "waits-for-package"]
    assert "is made again" in why.message
    pilot.exchange()
    pilot.succeed("1.1.1")
    assert small.status("2.1.1") == "live"


def test_what_lacked_an_input_from_outside_is_tried_later_and_later() -> None:
    small = Small(site(cores=2))
    small.submit(bag(1))
    pilot = small.pilot()
    pauses = []
    for _ in range(3):
        small.wait(100.0, pilot)
        pilot.fail("1.1.1", "missing-input")
        time, asked = small.explain("1.1.1").reasons[:2]
        assert (time.code, asked.code, asked.subject) == ("waits-for-time", "waits-for-input", "")
        pauses.append((time.until or 0.0) - small.now)
    assert pauses == [10.0, 20.0, 40.0]


def test_a_pause_that_has_another_reason_is_not_cut_short_by_a_maker() -> None:
    rule = RetryRule(reason="application-error", action="later")
    small = Small(site(cores=2))
    small.submit(chain(kind(), kind(retry=Retry(rules=(rule,))), lines=1))
    pilot = small.pilot()
    pilot.succeed("1.1.1")
    pilot.fail("2.1.1", "application-error")
    small.ask(Restart(job=JOB, package="1.1.1"))
    pilot.exchange()
    pilot.succeed("1.1.1")
    assert small.status("2.1.1") == "delayed"


# --- a bug in one command ---------------------------------------------------------------------------------------------


def held_for(small: Small) -> list[str]:
    """Why the job was held, each time that it was."""
    return [str(msgspec.json.decode(event.data)["message"]) for event in small.told(payloads.Held)]


def given_up(small: Small) -> int:
    return len(small.standings().get("aborted", ()))


def fail_all(small: Small, pilot: Agent, *, messages: int = 1, packages: int) -> None:
    """Fail whatever a pilot is given, in one or several ways, until so many packages were given up."""
    while given_up(small) < packages and pilot.held:
        package = pilot.packages[0]
        way = int(package.split(".")[1]) % messages
        pilot.fail(package, "application-error", message=f"line 3: {'abcdefgh'[way]} is missing", after=1.0)


def test_equal_failures_hold_no_job() -> None:
    small = Small(site())
    small.submit(bag(25))
    fail_all(small, small.pilot(), packages=25)
    assert given_up(small) == 25
    assert held_for(small) == []


def test_explain_says_why_a_job_is_held_also_after_a_restart() -> None:
    small = Small(site())
    small.submit(bag(25))
    small.ask(Hold(job=JOB, message="the disk is full"))
    for _ in range(2):
        assert next(each.message for each in small.explain("1.20.1").reasons) == "its job is held: the disk is full"
        small.restart()
    small.ask(Release(job=JOB))
    assert [each.code for each in small.explain("1.20.1").reasons if each.code == "job-held"] == []


def test_failures_of_many_kinds_hold_nothing() -> None:
    small = Small(site())
    small.submit(bag(25))
    fail_all(small, small.pilot(), messages=5, packages=25)
    assert given_up(small) == 25
    assert held_for(small) == []


def test_a_job_ends_when_as_many_packages_failed_as_it_allows_for() -> None:
    small = Small(site(cores=2))
    small.submit(bag(8, failures_max=2))
    pilot = small.pilot()
    fail_all(small, pilot, packages=2)
    [event] = small.told(payloads.CancelAccepted)
    assert msgspec.json.decode(event.data)["message"] == "2 failed, which is the limit of the job (--max-failures 2)"
    assert given_up(small) == 2
    assert "live" not in small.standings()


def test_what_failed_because_of_another_counts_for_no_limit_of_failures() -> None:
    small = Small(site(cores=2))
    small.submit(chain(lines=3, failures_max=2))
    fail_all(small, small.pilot(), packages=1)
    assert small.status("2.1.1") == "upstream"
    assert small.told(payloads.CancelAccepted) == []


def test_a_package_that_was_restarted_and_fails_again_ends_the_job_again() -> None:
    small = Small(site(cores=2))
    small.submit(bag(3, failures_max=1))
    pilot = small.pilot()
    fail_all(small, pilot, packages=1)
    pilot.exchange()
    small.ask(Restart(job=JOB))
    pilot.exchange()
    assert "live" in small.standings()
    fail_all(small, pilot, packages=1)
    assert len(small.told(payloads.CancelAccepted)) == 2
