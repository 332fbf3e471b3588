"""Sites in the engine: they fall asleep and wake by how they behave, come and go while it runs, and are probed."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.engine.selection import SelectionSettings
from pilotage.engine.selection.scores import submission_delta
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import (
    Accepted,
    AnySiteOperation,
    CancelSubmitted,
    HibernateSite,
    Kill,
    ProbeSite,
    Refused,
    SubmitAttempt,
    SubmitPilot,
    WakeSite,
)
from pilotage.model.exchange.reports import Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.service.messages import SiteOperationRequest, SitesChanged
from pilotage.service.sites.status import status_of_site
from tests.kit.small_engine import Small
from tests.kit.small_plans import IN_ORDER, bag, kind, site


def ask(small: Small, operation: AnySiteOperation) -> Accepted | Refused:
    [answer] = small.step(SiteOperationRequest(token=1, operation=operation)).answers
    small.answers.remove(answer)
    return answer.outcome


def statuses(small: Small) -> dict[str, str]:
    return {row.site: row.status for row in small.journal.sites()}


def told(small: Small, kind: type[payloads.Payload]) -> list[str]:
    return [one.event.site or "" for one in small.book if isinstance(one.data, kind)]


def test_a_platform_failure_puts_a_site_to_sleep_and_its_reservations_go_elsewhere() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(2))
        pilot = small.pilot("a")
        assert small.reserved("a")
        pilot.fail("1.1.1", "platform-failure")
        assert told(small, payloads.SiteHibernated) == ["a"]
        assert statuses(small) == {"a": "hibernated"}
        assert not small.reserved("a")
        assert {small.engine.state.jobs.by_id["j"].work[n].bound.name for n in (0, 1)} == {"b"}  # type: ignore[union-attr]
        small.effects.clear()
        pilot.unread.clear()


def test_a_pilot_that_is_outrun_while_it_is_silent_puts_its_site_to_sleep_once_until_another_there_ends_well() -> None:
    with Small(site("a", cores=2), site("b", cores=2)) as small:
        small.submit(bag(3))
        silent, speaking = small.pilot("a"), small.agent("a-1.1", site="a", request="a-1")
        speaking.exchange()
        assert (silent.packages, speaking.packages) == (["1.1.1", "1.2.1"], ["1.3.1"])
        others = [small.agent(f"b-{number}.1", site="b", request=f"b-{number}") for number in (0, 1)]
        small.wait(61, speaking, *others)
        first, second = sorted(others, key=lambda each: each.packages)
        assert (first.packages, second.packages) == (["1.1.1"], ["1.2.1"])
        first.succeed("1.1.1")
        assert told(small, payloads.SiteHibernated) == ["a"]
        speaking.succeed("1.3.1")
        assert told(small, payloads.SiteWoken) == ["a"]
        second.succeed("1.2.1")
        assert told(small, payloads.SiteHibernated) == ["a"]
        small.effects.clear()
        for each in (speaking, *others):
            each.unread.clear()


def test_nothing_is_submitted_to_a_site_that_sleeps_until_somebody_wakes_it() -> None:
    with Small(site("a")) as small:
        assert isinstance(ask(small, HibernateSite(site="a", message="for repair")), Accepted)
        small.submit(bag(1))
        small.wait(10_000)
        assert not small.effects
        assert [row.message for row in small.journal.sites()] == ["for repair"]
        again = ask(small, HibernateSite(site="a"))
        assert isinstance(again, Refused)
        assert again.code == "hibernated"
        assert isinstance(ask(small, WakeSite(site="a")), Accepted)
        small.wait(1)
        small.pilot("a").succeed("1.1.1")
        assert small.status("1.1.1") == "done"
        refused = ask(small, WakeSite(site="a"))
        assert isinstance(refused, Refused)
        assert refused.code == "not-hibernated"


def test_waking_a_site_that_does_not_sleep_clears_a_bad_score_also_for_the_engine_that_follows() -> None:
    with Small(site("a"), site("b")) as small:
        place = small.engine.state.sites.by_name["a"].profile
        place.score.reset(-10.0)
        assert isinstance(ask(small, WakeSite(site="a")), Accepted)
        assert place.score.earned == 0.0
        small.restart()
        assert small.engine.state.sites.by_name["a"].profile.score.earned == 0.0
        assert "nothing counts against it" in str(ask(small, WakeSite(site="a")))


def test_a_site_that_is_not_known_is_refused_with_those_there_are() -> None:
    with Small(site("a")) as small:
        refused = ask(small, WakeSite(site="b"))
        assert isinstance(refused, Refused)
        assert (refused.code, refused.subject) == ("unknown-site", "b")


def test_pilots_that_never_speak_put_their_site_to_sleep_and_the_row_says_why() -> None:
    with Small(site("a", pilots=1), dead_starts_max=2) as small:
        small.submit(bag(1))
        for _ in range(2):
            [wanted] = small.take(SubmitPilot)
            small.step(Gone(site="a", key=wanted.key, reason="failed", stderr="python3: not found"))
            small.wait(100)
        [row] = small.journal.sites()
        assert (row.status, row.reason) == ("hibernated", "dead-starts")
        [slept] = [one.data for one in small.book if isinstance(one.data, payloads.SiteHibernated)]
        assert "python3: not found" in slept.message
        small.wait(3000)
        assert small.take(SubmitPilot) == []  # nothing more is submitted there
        why = small.engine.state.selection.explain("a", now=small.engine.state.clock.wall_time)
        [told] = [each.message for each in why.stages if each.stage == "status"]
        assert "until a person wakes it, a probe passes or its entry changes" in told
        small.step(SitesChanged(sites=small.sites))
        assert small.take(SubmitPilot) == []
        small.step(SitesChanged(sites=small.sites, rewritten=("a",)))
        small.wait(1)
        assert len(small.take(SubmitPilot)) == 1


def test_where_no_pilot_starts_one_is_tried_an_hour_later_also_at_the_only_site() -> None:
    with Small(site("a", pilots=1), dead_starts_max=2, submit_again_seconds=1e6) as small:
        small.submit(bag(3))
        for pause in (200.0, 0.0):  # long enough that nothing more is reserved there before a pilot comes
            [wanted] = small.take(SubmitPilot)
            small.wait(100)
            small.step(Gone(site="a", key=wanted.key, reason="failed", stderr="python3: not found"))
            small.wait(pause)
        for _ in range(2):
            found = status_of_site(small.engine, "a")
            assert found is not None
            assert found.status == "hibernated"
            assert found.next_try_at == pytest.approx(small.now + 3600.0)
            small.wait(3599)
            assert small.take(SubmitPilot) == []
            small.wait(2)
            [wanted] = small.take(SubmitPilot)
            small.step(Gone(site="a", key=wanted.key, reason="failed"))
        small.effects.clear()


def test_a_woken_site_whose_first_pilot_dies_after_long_is_asked_for_another() -> None:
    with Small(site("a", pilots=1), dead_starts_max=0) as small:
        small.submit(bag(3))
        small.take(SubmitPilot)
        ask(small, HibernateSite(site="a"))
        small.take(CancelSubmitted)
        ask(small, WakeSite(site="a"))
        small.wait(2)
        [wanted] = small.engine.state.sites.by_name["a"].requests
        small.wait(200)  # what was reserved for it is released meanwhile
        small.effects.clear()
        small.step(Gone(site="a", key=wanted, reason="failed"))
        small.wait(70)
        assert len(small.take(SubmitPilot)) == 1


def test_a_site_that_is_left_alone_after_a_dead_start_can_be_woken() -> None:
    with Small(site("a", pilots=1)) as small:
        small.submit(bag(1))
        [wanted] = small.take(SubmitPilot)
        small.step(Gone(site="a", key=wanted.key, reason="failed"))
        small.wait(1)
        assert small.take(SubmitPilot) == []
        assert isinstance(ask(small, WakeSite(site="a", message="mended")), Accepted)
        small.wait(1)
        assert len(small.take(SubmitPilot)) == 1


@pytest.mark.parametrize("initial, expected", [(None, 0.8), (3.0, 3.1)])
def test_a_probe_sets_the_first_score_of_a_new_site_by_how_soon_it_came(initial: float | None, expected: float) -> None:
    with Small(site("a", initial_score=initial)) as small:
        ask(small, ProbeSite(site="a"))
        [wanted] = small.take(SubmitPilot)
        small.step(Submitted(site="a", key=wanted.key, native_id="1", seconds=0.1))
        small.wait(720)
        agent = small.agent("p.1", site="a", request=wanted.key)
        agent.exchange()
        assert small.engine.state.sites.by_name["a"].profile.score.earned == pytest.approx(expected)
        small.effects.clear()
        agent.unread.clear()


def test_a_site_that_comes_while_the_engine_runs_gets_work_and_one_that_goes_is_drained() -> None:
    with Small(site("a")) as small:
        small.submit(bag(3))
        pilot = small.pilot("a")
        assert pilot.held
        small.sites = (site("a"), site("b"))
        small.step(SitesChanged(sites=small.sites[1:]))
        assert statuses(small) == {"a": "removed", "b": "candidate"}
        small.wait(2, pilot)
        assert [each.site for each in small.effects if isinstance(each, SubmitPilot)] == ["b"]
        pilot.succeed("1.1.1")
        assert not pilot.held
        assert pilot.left
        small.take(CancelSubmitted)
        other = small.pilot("b")
        other.succeed("1.2.1")
        other.succeed("1.3.1")
        assert small.standings() == {"done": ["1.1.1", "1.2.1", "1.3.1"]}
        pilot.unread.clear()


def test_what_waits_in_the_queue_of_a_site_that_goes_is_tried_elsewhere_and_what_runs_there_goes_on() -> None:
    with Small(site("a", mode="bound", job_throttle=5.0)) as small:
        small.submit(bag(2))
        runs, waits = small.take(SubmitAttempt)
        agent = small.bound(runs)
        small.step(Submitted(site="a", key=waits.key, native_id="42"))
        small.sites = (site("a", mode="bound"), site("b", mode="bound"))
        small.step(SitesChanged(sites=small.sites[1:]))
        assert [each.key for each in small.take(CancelSubmitted)] == [waits.key]
        [again] = small.take(SubmitAttempt)
        assert (again.site, again.ref.package, again.ref.attempt) == ("b", waits.ref.package, 2)
        agent.succeed(runs.ref.package)
        small.bound(again).succeed(again.ref.package)
        assert small.standings() == {"done": ["1.1.1", "1.2.1"]}
        small.take(CancelSubmitted)


def test_a_site_that_goes_and_comes_back_is_used_again() -> None:
    with Small(site("a")) as small:
        small.submit(bag(1))
        small.take(SubmitPilot)
        small.step(SitesChanged(sites=()))
        assert small.status("1.1.1") == "ready"
        small.step(SitesChanged(sites=(site("a"),)))
        assert small.status("1.1.1") == "reserved"
        small.effects.clear()


def test_a_site_that_is_described_anew_takes_what_it_could_not() -> None:
    with Small(site("a", cores=1), site("b", cores=8)) as small:
        small.submit(bag(1, kind(cores_hundredths=400)))
        assert {each.site for each in small.take(SubmitPilot)} == {"b"}
        small.step(SitesChanged(sites=(site("a", cores=8), site("b", cores=1))))
        assert [each.site for each in small.take(CancelSubmitted)] == ["b"]
        small.wait(2)
        assert {each.site for each in small.take(SubmitPilot)} == {"a"}


def test_a_probe_that_comes_wakes_a_site_and_leaves() -> None:
    with Small(site("a")) as small:
        small.engine.state.pending.site_changes += small.engine.state.selection.probe_finished(
            "a", passed=False, at=small.now, message="before"
        )
        small.wait(1)
        assert statuses(small) == {"a": "hibernated"}
        assert isinstance(ask(small, ProbeSite(site="a")), Accepted)
        refused = ask(small, ProbeSite(site="a"))
        assert isinstance(refused, Refused)
        assert refused.code == "probing"
        pilot = small.pilot("a")
        assert pilot.left
        [told_] = [one.data for one in small.book if isinstance(one.data, payloads.SiteProbed)]
        assert told_.passed
        assert statuses(small) == {"a": "candidate"}
        pilot.unread.clear()


def test_a_probe_that_does_not_come_puts_a_site_to_sleep() -> None:
    for late in (True, False):
        with Small(site("a"), probe_timeout_seconds=100.0) as small:
            ask(small, ProbeSite(site="a"))
            [wanted] = small.take(SubmitPilot)
            if late:
                small.wait(101)
            else:
                small.step(Gone(site="a", key=wanted.key, reason="failed", stderr="no such partition"))
            [row] = small.journal.sites()
            assert (row.status, row.reason) == ("hibernated", "probe-failed")
            assert row.probe
            small.effects.clear()


def test_a_submission_under_way_costs_a_site_some_of_its_score_until_it_is_answered() -> None:
    with Small(site("a", mode="bound"), selection=SelectionSettings(policy="first")) as small:
        small.submit(bag(9))
        score = small.engine.state.sites.by_name["a"].profile.score
        first, second = small.take(SubmitAttempt)
        assert score.value == -0.4
        small.step(Submitted(site="a", key=first.key, native_id="1", seconds=0.1))
        assert score.underway("submission") == len(small.engine.state.jobs.by_id["j"].work) - 1
        small.step(SubmissionFailed(site="a", key=second.key, reason="refused", trouble="connection-refused"))
        assert told(small, payloads.SiteHibernated) == ["a"]
        assert told(small, payloads.SiteWoken) == ["a"]  # there is no other
        assert score.underway("submission") == len(small.take(SubmitAttempt))
        small.take(CancelSubmitted)


def test_the_submission_of_an_attempt_that_begins_or_is_killed_before_the_answer_leaves_no_load_behind() -> None:
    with Small(site("a", mode="bound"), selection=SelectionSettings(policy="first")) as small:
        small.submit(bag(2))
        score = small.engine.state.sites.by_name["a"].profile.score
        first, second = small.take(SubmitAttempt)
        assert score.value == -0.4
        agent = small.bound(first)
        assert score.value == -0.2
        small.ask(Kill(job="j", package=second.ref.package))
        assert score.value == 0.0
        small.step(Submitted(site="a", key=first.key, native_id="1"))  # what is answered late is not taken off again
        assert score.value == 0.0
        agent.unread.clear()
        small.take(CancelSubmitted)


def test_the_submission_of_a_pilot_that_comes_or_goes_before_the_answer_leaves_no_load_behind() -> None:
    with Small(site("a", cores=1, pilots=2), selection=SelectionSettings(policy="first")) as small:
        small.submit(bag(9))
        score = small.engine.state.sites.by_name["a"].profile.score
        assert score.value == -0.4
        pilot = small.pilot("a")
        assert score.value == -0.2
        [other] = small.take(SubmitPilot)
        small.step(Gone(site="a", key=other.key, reason="failed"))
        assert score.underway("submission") == len(small.take(SubmitPilot))
        pilot.unread.clear()


def test_a_site_that_is_not_reached_loses_as_much_as_by_a_submission_that_failed_so() -> None:
    with Small(site("a", mode="bound"), selection=SelectionSettings(policy="first", score_floor=-50.0)) as small:
        small.submit(bag(1))
        score = small.engine.state.sites.by_name["a"].profile.score
        [first] = small.take(SubmitAttempt)
        under_way = score.underway("submission")
        small.step(SiteSeen(site="a", answers=False, message="no route"))
        assert score.earned == 0.0
        small.step(SiteSeen(site="a", answers=False, message="Connection refused", trouble="connection-refused"))
        assert score.earned == -10.5
        small.step(SiteSeen(site="a", answers=False, message="timed out", trouble="connection-timed-out"))
        assert score.earned == -31.0
        assert score.underway("submission") == under_way  # what is to be submitted there waits
        small.step(SiteSeen(site="a", answers=True))
        small.step(Submitted(site="a", key=first.key, native_id="1", seconds=-5.0))
        assert score.earned == pytest.approx(-30.9 + submission_delta(0.0, SelectionSettings()))
        small.take(CancelSubmitted)


def test_what_is_queued_for_long_is_queued_elsewhere_and_the_first_to_start_ends_the_other() -> None:
    sites = (site("a", mode="bound"), site("b", mode="bound"))
    with Small(*sites, selection=msgspec.structs.replace(IN_ORDER, replication_limit=3)) as small:
        small.submit(bag(1))
        [first] = small.take(SubmitAttempt)
        small.step(Submitted(site="a", key=first.key, native_id="1"))
        small.wait(59)
        assert not small.effects
        small.wait(2)
        [second] = small.take(SubmitAttempt)
        assert (first.site, second.site) == ("a", "b")
        agent = small.agent("b.1", site="b", request=second.key, serves=second.ref)
        agent.exchange()
        [cancelled] = small.take(CancelSubmitted)
        assert cancelled.key == first.key
        [lost] = [one.data for one in small.book if isinstance(one.data, payloads.AttemptLost)]
        assert lost.reason == "outrun"
        agent.succeed("1.1.1")
        assert small.status("1.1.1") == "done"
        agent.unread.clear()
        small.effects.clear()  # whoever lost is taken out once more, which does no harm


@pytest.mark.parametrize(
    "limit, most, own, live",
    [(9, 3, None, 3), (9, 2, None, 2), (1, 3, None, 2), (9, 3, 2, 2), (9, 2, 3, 3), (9, 3, 1, 1)],
)
def test_no_more_attempts_of_a_package_are_queued_at_once_than_may_be(
    limit: int, most: int, own: int | None, live: int
) -> None:
    sites = [site(name, mode="bound") for name in "abcdef"]
    selection = msgspec.structs.replace(IN_ORDER, replication_limit=limit, max_replicas=most)
    with Small(*sites, selection=selection) as small:
        small.submit(bag(1, kind(replicas_max=own)))
        there: list[str] = []
        for _ in range(60):
            for each in small.take(SubmitAttempt):
                small.step(Submitted(site=each.site, key=each.key, native_id=str(len(there))))
                there.append(each.site)
            small.wait(30)
        assert there == ["a", "b", "c"][:live]


def test_a_replica_that_a_pilot_takes_has_started_and_ends_the_race() -> None:
    sites = (site("a", mode="bound"), site("b"))
    with Small(*sites, selection=msgspec.structs.replace(IN_ORDER, replication_limit=3)) as small:
        small.submit(bag(1))
        [first] = small.take(SubmitAttempt)
        small.step(Submitted(site="a", key=first.key, native_id="1"))
        small.wait(61)
        pilot = small.pilot("b")
        assert [ref.attempt for ref in pilot.held] == [2]
        assert [each.key for each in small.take(CancelSubmitted)] == [first.key]
        pilot.fail("1.1.1", "application-error")
        small.wait(1000, pilot)
        wanted = [one.data for one in small.book if isinstance(one.data, payloads.ReplicaWanted)]
        assert len(wanted) == 1
        small.effects.clear()
        pilot.unread.clear()


def test_what_acts_on_the_outside_is_never_queued_twice() -> None:
    sites = (site("a", mode="bound"), site("b", mode="bound"))
    with Small(*sites, selection=msgspec.structs.replace(IN_ORDER, replication_limit=3)) as small:
        small.submit(bag(1, kind(side_effects=True)))
        [first] = small.take(SubmitAttempt)
        small.step(Submitted(site="a", key=first.key, native_id="1"))
        small.wait(1000)
        assert not small.effects


def test_a_site_of_a_good_past_is_not_promised_all_work_before_it_has_a_slot() -> None:
    with Small(site("a", pilots=1), site("b", pilots=1)) as small:
        small.engine.state.sites.by_name["a"].profile.score.reset(50.0)
        small.submit(bag(90))
        small.wait(1)
        assert {each.site for each in small.take(SubmitPilot)} == {"a", "b"}
        assert max(sum(map(len, small.reserved(name).values())) for name in small.engine.state.sites.by_name) == 3


def test_what_a_package_asks_of_a_site_is_asked_of_every_site() -> None:
    arm, intel = site("arm", platform="aarch64-linux"), site("intel", platform="x86_64-linux")
    with Small(arm, intel) as small:
        small.submit(bag(1, kind(platform="x86_64-linux")))
        assert {each.site for each in small.take(SubmitPilot)} == {"intel"}
        refused = small.submit(bag(1, kind(platform="riscv64-linux")), job="no")
        assert isinstance(refused, Refused)
        assert "riscv64-linux" in refused.message


def test_every_stage_of_the_choice_says_something_of_a_site() -> None:
    with Small(site("a")) as small:
        ask(small, HibernateSite(site="a", message="for repair"))
        why = small.engine.state.selection.explain("a", now=small.engine.state.clock.wall_time)
        assert why.status == "hibernated"
        assert any("for repair" in each.message for each in why.stages)


def test_what_was_learned_of_a_site_survives_a_restart() -> None:
    with Small(site("a")) as small:
        small.submit(bag(6))
        pilot = small.pilot("a")
        for _ in range(4):
            pilot.succeed(next(iter(pilot.held)).package)
        small.wait(61, pilot)
        assert told(small, payloads.SiteStanding) == ["a"]
        again = small.restarted().engine
        before = small.engine.state.selection.learned_state("a")
        assert again.state.selection.learned_state("a") == before
        assert before.earned > 0
        ask(small, HibernateSite(site="a"))
        again = small.restarted().engine
        assert again.state.sites.by_name["a"].asleep
        assert again.durable_state() == small.engine.durable_state()
        small.effects.clear()
        pilot.unread.clear()


def test_a_pilot_where_everything_fails_in_a_row_is_told_to_leave() -> None:
    with Small(site("a"), selection=msgspec.structs.replace(IN_ORDER, black_hole_streak=2)) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        while not pilot.left:
            assert pilot.held
            pilot.fail("1.1.1", "platform-failure")
            small.wait(4000, pilot)
            pilot.unread.clear()
        assert told(small, payloads.SiteDrained) == ["a"]
        small.effects.clear()
