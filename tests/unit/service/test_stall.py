"""Whether anything of a job can still move, and who is told what to do where nothing can."""

from __future__ import annotations

from pilotage.model.exchange.operations import (
    Accepted,
    FetchFile,
    HibernateSite,
    Hold,
    Kill,
    ProbeSite,
    Release,
    SubmitPilot,
)
from pilotage.model.exchange.reports import FileNotFetched, Gone, SiteSeen
from pilotage.service.jobs.stall import JobStall, stall_of
from pilotage.service.messages import SiteOperationRequest
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, kind, plan, site, stage, with_files


def stand(small: Small) -> JobStall:
    return stall_of(small.core.engine, JOB)


def put_to_sleep(small: Small, site: str, message: str) -> None:
    [answer] = small.step(SiteOperationRequest(token=1, operation=HibernateSite(site=site, message=message))).answers
    small.answers.remove(answer)
    assert isinstance(answer.outcome, Accepted)


def test_a_job_that_runs_is_not_stuck_and_the_slots_are_counted() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        assert (stand(small).stuck, stand(small).slots) == ("", 1)
        pilot.succeed("1.1.1")
        pilot.succeed("1.2.1")
        assert stand(small).stuck == ""


def test_a_held_job_says_how_it_goes_on() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        small.ask(Hold(job=JOB))
        assert (stand(small).stuck, stand(small).next_step) == ("the job is held", f"pilotage release {JOB}")
        small.take(SubmitPilot)


def test_a_held_job_does_not_move_because_a_package_waits_for_its_next_attempt() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.fail("1.1.1", reason="input-checksum")
        assert (stand(small).stuck, stand(small).trouble != "") == ("", True)
        small.ask(Hold(job=JOB))
        assert stand(small).stuck == "the job is held"


def test_a_held_package_that_everything_waits_for_is_named() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(), stage(), edges=[("1.1.1", "2.1.1")]))
        small.ask(Hold(job=JOB, package="1.1.1"))
        found = stand(small)
        assert found.stuck == "1.1.1 is held, and everything else waits for it"
        assert found.next_step == f"pilotage release {JOB}/1.1.1"
        small.take(SubmitPilot)


def not_fetched(small: Small, *, reason: str, message: str) -> None:
    [wanted] = small.take(FetchFile)
    small.step(FileNotFetched(site=wanted.site, key=wanted.key, reason=reason, message=message))


def test_a_package_that_is_held_for_a_file_says_for_which_and_why() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": ["s3://store/a"]}))
        not_fetched(small, reason="not-in-store", message="no such key")
        found = stand(small)
        assert found.stuck == "1.1.1 is held: s3://store/a could not be brought to a (not-in-store): no such key"
        assert found.next_step == f"when it can be fetched: pilotage release {JOB}/1.1.1"
        small.take(SubmitPilot)


def test_a_package_stays_held_for_its_file_when_its_job_is_released() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": ["s3://store/a"]}))
        not_fetched(small, reason="not-in-store", message="no such key")
        told = stand(small).stuck
        assert "no such key" in told
        small.ask(Hold(job=JOB))
        small.ask(Release(job=JOB))
        assert stand(small).stuck == told
        small.take(SubmitPilot)


def test_a_file_that_is_tried_again_later_is_trouble_and_no_standstill() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": ["s3://store/a"]}))
        assert stand(small).trouble == ""
        not_fetched(small, reason="store-unreachable", message="no route")
        found = stand(small)
        told = "s3://store/a could not be brought to a (store-unreachable): no route; it is tried again at "
        assert (found.stuck, found.trouble.startswith(told)) == ("", True)
        small.wait(30.0)
        [_] = small.take(FetchFile)
        assert stand(small).trouble == f"{told.removesuffix('at ')}now"
        small.take(SubmitPilot)


def test_a_cache_without_space_is_trouble() -> None:
    with Small(site(cores=2, cache_bytes=10)) as small:
        sizes = {"s3://store/a": 8, "s3://store/b": 8}
        small.submit(with_files(bag(2), {"1.1.1": ["s3://store/a"], "1.2.1": ["s3://store/b"]}, sizes=sizes))
        [_] = small.take(FetchFile)
        assert stand(small).trouble == "the cache of a has no space: packages need what is in it"
        small.take(SubmitPilot)


def test_a_job_that_is_over_or_unknown_is_not_stuck() -> None:
    with Small(site()) as small:
        assert stand(small) == JobStall()
        small.submit(bag(1))
        small.ask(Kill(job=JOB))
        assert stand(small).stuck == ""
        small.take(SubmitPilot)


def test_a_site_that_is_silent_is_trouble_and_no_standstill() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        small.step(SiteSeen(site="a", answers=False))
        found = stand(small)
        assert (found.stuck, found.trouble) == ("", "site a does not answer")
        small.take(SubmitPilot)


def test_without_a_site_nothing_can_move() -> None:
    with Small() as small:
        small.submit(bag(3))
        found = stand(small)
        assert found.stuck == "no site can run 3 packages, 1.1.1 first, (there is no site)"
        assert found.next_step


def test_what_can_only_be_tried_later_is_named_with_its_failure() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.fail("1.1.1", "disk-full")
        assert stand(small).trouble == ""  # it is tried again at once
        pilot.exchange()
        pilot.fail("1.1.1", "disk-full")
        found = stand(small)
        assert "1.1.1 will be retried later: attempt 2: disk-full at a" in found.trouble
        assert found.troubled_site == ""
        small.take(SubmitPilot)


def test_what_is_tried_later_is_told_with_what_it_said_also_while_others_run() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        for _ in range(2):
            pilot.fail("1.1.1", "platform-failure", message="no such image\nlast words")
            pilot.exchange()
        found = stand(small)
        assert "1.1.1 will be retried later: attempt 2: platform-failure at a" in found.trouble
        assert found.trouble.endswith(": no such image")
        pilot.succeed("1.2.1")
        small.take(SubmitPilot)


def test_what_waits_in_the_backlog_of_a_pilot_does_not_run() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(3), stage(2)))
        assert stand(small).running == {}
        pilot = small.pilot(backlog=8)
        assert stand(small).running == {1: 2}
        pilot.succeed("1.1.1", "1.2.1")
        assert stand(small).running == {1: 1, 2: 1}
        pilot.succeed("1.3.1", "2.1.1", "2.2.1")
        assert stand(small).running is None


def test_a_site_at_which_no_pilot_starts_is_trouble_for_who_waits_for_it_alone() -> None:
    with Small(site(), site("b")) as small:
        small.submit(bag(1, kind(executor="a")), job="other")
        small.pilot("a")
        small.effects.clear()
        small.submit(bag(1, kind(executor="b")))
        small.effects.clear()
        small.core.engine.state.sites.by_name["b"].dead_starts = 2
        found = stand(small)
        assert (found.trouble, found.troubled_site) == ("no pilot could start at b: 2 died before contacting us", "b")
        small.core.engine.state.sites.by_name["b"].dead_starts = 0
        assert stand(small).trouble == ""


def test_a_site_at_which_no_pilot_starts_is_told_while_others_work_as_long_as_something_waits_that_it_could_run() -> (
    None
):
    with Small(site(), site("b")) as small:
        small.submit(bag(9))
        pilot = small.pilot("a")
        for _ in range(2):
            [wanted] = [each for each in small.take(SubmitPilot) if each.site == "b"]
            small.step(Gone(site="b", key=wanted.key, reason="failed", stderr="no python"))
            small.wait(65.0, pilot)
        assert not small.reserved("b")
        assert stand(small).trouble.startswith(
            "no pilot could start at b: 2 died before contacting us; the next one is tried"
        )
        put_to_sleep(small, "b", "new disks")
        assert stand(small).trouble == ""


def test_it_is_told_when_the_next_pilot_is_tried_where_none_could_start() -> None:
    with Small(site(), dead_starts_max=2) as small:
        small.submit(bag(1))
        asleep = "a (dead starts: 2 pilots in a row ended before making contact: no python)"
        for told in (
            "no pilot could start at a: 1 died before contacting us; the next one is tried at 1970-01-01 00:17:40Z",
            f"all sites that could run it hibernate: {asleep}; the next one is tried at 1970-01-01 01:18:20Z; next: pilotage site wake a",
        ):
            [wanted] = small.take(SubmitPilot)
            small.step(Gone(site="a", key=wanted.key, reason="failed", stderr="no python"))
            assert stand(small).trouble == told
            small.wait(100)
        small.effects.clear()


def test_that_pilots_died_at_a_site_is_told_after_a_restart_too() -> None:
    with Small(site(), site("b"), dead_starts_max=1) as small:
        small.submit(bag(9))
        pilot = small.pilot("a")
        [wanted] = [each for each in small.take(SubmitPilot) if each.site == "b"]
        small.step(Gone(site="b", key=wanted.key, reason="failed", stderr="no python"))
        small.restart()
        pilot.exchange()
        small.effects.clear()
        told = "no pilot could start at b: its pilots died before contacting us; the next one is tried at 1970-01-01 01:16:40Z"
        assert stand(small).trouble == told


def test_a_site_whose_probe_did_not_come_is_told_as_long_as_something_waits_that_it_could_run() -> None:
    with Small(site(), site("b")) as small:
        small.step(SiteOperationRequest(token=1, operation=ProbeSite(site="b")))
        small.answers.clear()
        [probe] = small.take(SubmitPilot)
        small.step(Gone(site="b", key=probe.key, reason="failed", stderr="no python"))
        assert stand(small).trouble == ""
        small.submit(bag(9))
        small.wait(1)
        pilot = small.pilot("a")
        told = "no pilot started at b when it was probed: no python; next: pilotage site test b"
        assert stand(small).trouble == told
        small.effects.clear()
        pilot.unread.clear()


def test_the_trouble_of_a_site_that_could_run_nothing_of_the_job_is_not_told() -> None:
    with Small(site(), site("b", cores=2)) as small:
        small.submit(bag(1, kind(cores_hundredths=200)))
        small.effects.clear()
        small.step(SiteSeen(site="a", answers=False))
        assert stand(small).trouble == ""
        small.step(SiteSeen(site="b", answers=False))
        small.effects.clear()
        assert stand(small).trouble == "site b does not answer"


def test_where_all_sites_sleep_that_could_run_it_that_is_told_with_how_to_wake_them() -> None:
    with Small(site(), site("b", cores=2), site("c", cores=2)) as small:
        put_to_sleep(small, "b", "new disks")
        small.submit(bag(1, kind(cores_hundredths=200)))
        small.effects.clear()
        assert stand(small).trouble == ""
        put_to_sleep(small, "c", "too hot")
        small.effects.clear()
        expected = "all sites that could run it hibernate: b (by hand: new disks), c (by hand: too hot)"
        assert stand(small).trouble == f"{expected}; next: pilotage site wake b c"
