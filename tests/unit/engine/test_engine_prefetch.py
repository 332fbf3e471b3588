"""Files are brought to a site before packages start there: once for each site, retried, and with a reason when they cannot come."""

from __future__ import annotations

import msgspec

from pilotage.engine.files.queries import cached_file, needed_by
from pilotage.engine.state.caches import FileState
from pilotage.model.events import file_payloads, payloads
from pilotage.model.exchange.operations import FetchFile, Kill, Release, RemoveFile, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched, SiteSeen
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import IN_ORDER, bag, site, with_files

A, B, C = "s3://store/a", "s3://store/b", "s3://store/c"
SHA = "a" * 64


def arrive(small: Small, *wanted: FetchFile, size_bytes: int = 10, sha256: str = SHA) -> None:
    small.step(*(FileArrived(site=each.site, key=each.key, size_bytes=size_bytes, sha256=sha256) for each in wanted))


def fail(small: Small, *wanted: FetchFile, reason: str = "store-unreachable", message: str = "no route") -> None:
    small.step(*(FileNotFetched(site=each.site, key=each.key, reason=reason, message=message) for each in wanted))


def idle_pilot(small: Small) -> Agent:
    """A pilot whose exchange is open: work for it is told at once."""
    pilot = small.pilot()
    pilot.exchange()
    return pilot


def test_a_package_is_pulled_when_all_its_files_have_come() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A, B]}))
        pilot = idle_pilot(small)
        assert pilot.held == {}
        assert small.status("1.1.1") == "reserved"
        first, second = small.take(FetchFile)
        assert {first.locator, second.locator} == {A, B}
        arrive(small, first)
        assert pilot.heard() is None
        arrive(small, second)
        assert pilot.heard() is not None
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")
        assert small.status("1.1.1") == "done"


def test_a_file_that_many_packages_and_jobs_need_is_fetched_once_for_each_site() -> None:
    with Small(site("a", cores=4), site("b", cores=4)) as small:
        needs = {f"1.{line}.1": [A] for line in range(1, 11)}
        small.submit(with_files(bag(10), needs))
        small.submit(with_files(bag(10), needs), job="other", owner="bob")
        small.take(SubmitPilot)
        wanted = small.take(FetchFile)
        assert sorted((each.site, each.locator) for each in wanted) == [("a", A), ("b", A)]
        arrive(small, *wanted)
        small.wait(600.0)
        small.effects = [each for each in small.effects if not isinstance(each, SubmitPilot)]
        assert small.take(FetchFile) == []
        assert len(small.told(file_payloads.FetchesOrdered)) == 2


def test_the_files_of_one_round_are_ordered_with_one_event() -> None:
    with Small(site(cores=100)) as small:
        small.submit(with_files(bag(50), {f"1.{line}.1": [f"s3://store/{line}"] for line in range(1, 51)}))
        small.take(SubmitPilot)
        ordered = small.told(file_payloads.FetchesOrdered)
        wanted = small.take(FetchFile)
        assert len(ordered) == 1
        assert len({each.key for each in wanted}) == len({each.name for each in wanted}) == len(wanted) > 1
        arrive(small, *wanted)
        assert len(small.told(file_payloads.FilesFetched)) == 1


def test_a_package_with_its_files_goes_before_one_that_waits() -> None:
    with Small(site(cores=1)) as small:
        small.submit(with_files(bag(2), {"1.1.1": [A], "1.2.1": [B]}))
        pilot = idle_pilot(small)
        first, second = small.take(FetchFile)
        arrive(small, second)
        pilot.heard()
        assert pilot.packages == ["1.2.1"]
        arrive(small, first)
        pilot.succeed("1.2.1")
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")


def test_a_package_without_files_does_not_wait_for_others_that_do() -> None:
    with Small(site(cores=1)) as small:
        small.submit(with_files(bag(2), {"1.1.1": [A]}))
        pilot = small.pilot()
        assert pilot.packages == ["1.2.1"]
        arrive(small, *small.take(FetchFile))
        pilot.succeed("1.2.1")
        pilot.succeed("1.1.1")


def test_at_a_bound_site_the_batch_job_is_submitted_when_the_files_have_come() -> None:
    with Small(site(mode="bound")) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        assert small.take(SubmitAttempt) == []
        arrive(small, *small.take(FetchFile))
        [submitted] = small.take(SubmitAttempt)
        assert submitted.ref.package == "1.1.1"
        small.bound(submitted).succeed("1.1.1")


def test_a_failed_fetch_is_tried_again_later_each_time_with_a_longer_delay() -> None:
    with Small(site(), fetch_attempts_max=3, fetch_delay_seconds=30.0) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        pilot = idle_pilot(small)
        fail(small, *small.take(FetchFile))
        small.wait(29.0, pilot)
        assert small.take(FetchFile) == []
        small.wait(2.0, pilot)
        [again] = small.take(FetchFile)
        fail(small, again)
        small.wait(58.0, pilot)
        assert small.take(FetchFile) == []
        small.wait(3.0, pilot)
        pilot.exchange()
        arrive(small, *small.take(FetchFile))
        pilot.unread.clear()
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")


def test_after_too_many_failures_the_package_is_held_with_file_site_and_reason_and_a_release_tries_again() -> None:
    with Small(site(), fetch_attempts_max=2, fetch_delay_seconds=1.0) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        pilot = idle_pilot(small)
        fail(small, *small.take(FetchFile))
        small.wait(2.0, pilot)
        fail(small, *small.take(FetchFile), message="connection refused")
        assert small.status("1.1.1") == "held"
        [held] = small.told(payloads.Held, "1.1.1")
        assert b"s3://store/a could not be brought to a (store-unreachable): connection refused" in bytes(held.data)
        small.wait(4000.0, pilot)
        assert small.take(FetchFile) == []
        small.ask(Release(job=JOB, package="1.1.1"))
        arrive(small, *small.take(FetchFile))
        pilot.exchange()
        pilot.unread.clear()
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")


def test_a_file_that_its_store_does_not_have_is_not_tried_again_by_itself() -> None:
    for reason in ("not-in-store", "credential-expired"):
        with Small(site()) as small:
            small.submit(with_files(bag(1), {"1.1.1": [A]}))
            before = small.engine.state.selection.profile("a").score.earned
            small.take(SubmitPilot)
            fail(small, *small.take(FetchFile), reason=reason)
            assert small.status("1.1.1") == "held"
            assert small.engine.state.selection.profile("a").score.earned == before  # it is not the site's fault


def test_a_file_with_another_content_than_the_document_requires_is_held_once_for_all_and_costs_no_site() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}, checksums={A: SHA}))
        before = small.engine.state.selection.profile("a").score.earned
        pilot = idle_pilot(small)
        [wanted] = small.take(FetchFile)
        assert wanted.sha256 == SHA
        fail(small, wanted, reason="input-checksum", message="expected sha256 aa, got sha256 bb")
        assert small.status("1.1.1") == "held"
        assert small.engine.state.selection.profile("a").score.earned == before
        first = small.explain("1.1.1").reasons[0]
        assert "(input-checksum): expected sha256 aa, got sha256 bb" in first.message
        assert first.next_step == "release it to try again"
        small.wait(4000.0, pilot)
        assert small.take(FetchFile) == []
        small.ask(Release(job=JOB, package="1.1.1"))
        arrive(small, *small.take(FetchFile))
        pilot.exchange()
        pilot.unread.clear()
        pilot.succeed("1.1.1")


def test_a_cached_file_with_another_content_is_fetched_anew_for_a_job_that_requires_it() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        pilot = idle_pilot(small)
        arrive(small, *small.take(FetchFile), sha256="b" * 64)
        pilot.heard()
        pilot.succeed("1.1.1")
        small.submit(with_files(bag(1), {"1.1.1": [A]}, checksums={A: SHA}), job="exact")
        [removal] = small.take(RemoveFile)
        small.step(FileGone(site="a", key=removal.key))
        [wanted] = small.take(FetchFile)
        assert wanted.sha256 == SHA
        arrive(small, wanted)
        pilot.exchange()
        pilot.unread.clear()
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")
        assert small.status("1.1.1", job="exact") == "done"


def test_a_cached_file_that_another_job_needs_as_it_is_holds_the_job_that_requires_another() -> None:
    with Small(site(cores=1)) as small:
        small.submit(with_files(bag(2), {"1.1.1": [A], "1.2.1": [A]}))
        pilot = idle_pilot(small)
        [wanted] = small.take(FetchFile)
        small.submit(with_files(bag(1, priority=9), {"1.1.1": [A]}, checksums={A: SHA}), job="exact")
        arrive(small, wanted, sha256="b" * 64)
        pilot.heard()
        pilot.succeed("1.1.1")
        pilot.exchange()
        assert small.status("1.1.1", job="exact") == "held"
        assert small.take(RemoveFile) == []
        [why] = [each for each in small.explain("1.1.1", job="exact").reasons if each.code == "waits-for-file"]
        assert f"expected sha256 {SHA}, got sha256 {'b' * 64}, which {JOB} needs" in why.message
        pilot.unread.clear()
        pilot.succeed("1.2.1")


def test_a_file_that_was_given_up_is_tried_again_for_a_job_that_comes_later() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        pilot = idle_pilot(small)
        fail(small, *small.take(FetchFile), reason="not-in-store")
        assert small.status("1.1.1") == "held"
        small.submit(with_files(bag(1), {"1.1.1": [A]}), job="later")
        arrive(small, *small.take(FetchFile))
        pilot.exchange()
        pilot.unread.clear()
        pilot.succeed("1.1.1")
        assert small.status("1.1.1", job="later") == "done"


def test_failed_fetches_count_against_their_site() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        before = small.engine.state.selection.profile("a").score.earned
        small.take(SubmitPilot)
        fail(small, *small.take(FetchFile))
        assert small.engine.state.selection.profile("a").score.earned < before


def test_one_missing_file_of_many_packages_holds_the_job_after_some() -> None:
    with Small(site(cores=100), flood_packages=3) as small:
        small.submit(with_files(bag(20), {f"1.{line}.1": [A] for line in range(1, 21)}))
        small.take(SubmitPilot)
        fail(small, *small.take(FetchFile), reason="not-in-store")
        assert len(small.standings()["held"]) == 3
        assert small.engine.state.jobs.by_id[JOB].held
        small.ask(Release(job=JOB))
        small.take(SubmitPilot)
        arrive(small, *small.take(FetchFile))
        small.take(SubmitPilot)


def test_a_released_reservation_leaves_the_fetch_as_it_is() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        small.take(SubmitPilot)
        [wanted] = small.take(FetchFile)
        small.step(SiteSeen(site="a", answers=False))
        assert small.status("1.1.1") == "ready"
        arrive(small, wanted)
        small.step(SiteSeen(site="a", answers=True))
        assert small.status("1.1.1") == "reserved"
        assert small.take(FetchFile) == []
        pilot = small.agent("p", site="a", capacity=small.sites[0].capacity)
        pilot.exchange()
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")


def test_an_idle_pilot_that_takes_a_reservation_of_another_site_brings_the_files_to_its_own() -> None:
    with Small(site("a", kind="slurm"), site("b")) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        [there] = small.take(FetchFile)
        assert there.site == "a"
        small.take(SubmitPilot)
        pilot = small.agent("p", site="b", capacity=small.sites[1].capacity)
        pilot.exchange()
        pilot.exchange()
        assert pilot.packages == []
        [here] = small.take(FetchFile)
        assert (here.site, here.locator) == ("b", A)
        arrive(small, here)
        pilot.heard()
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")
        arrive(small, there)


def test_a_file_that_vanished_is_fetched_again_before_a_package_starts() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(2), {"1.1.1": [A], "1.2.1": [A]}))
        pilot = idle_pilot(small)
        [wanted] = small.take(FetchFile)
        arrive(small, wanted)
        pilot.heard()
        assert pilot.packages == ["1.1.1"]
        small.step(FileGone(site="a", key=wanted.key))
        pilot.succeed("1.1.1")
        assert pilot.packages == []
        [again] = small.take(FetchFile)
        assert again.name != wanted.name
        pilot.exchange()
        arrive(small, again)
        pilot.heard()
        assert pilot.packages == ["1.2.1"]
        pilot.succeed("1.2.1")


def test_reports_of_orders_that_are_not_open_change_nothing() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        small.take(SubmitPilot)
        [wanted] = small.take(FetchFile)
        arrive(small, wanted, wanted)
        fail(small, wanted)
        small.step(FileArrived(site="a", key="fetch.1.77", size_bytes=1, sha256=SHA))
        assert len(small.told(file_payloads.FilesFetched)) == 1
        assert small.told(file_payloads.FetchesFailed) == []
        assert small.engine.state.files.at("a").entries[A].state == FileState.PRESENT


def test_pilots_prefer_packages_whose_files_their_node_used() -> None:
    with Small(site(), selection=msgspec.structs.replace(IN_ORDER, slots_factor=8.0)) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A, B]}), job="before")
        arrive(small, *small.take(FetchFile))
        small.ask(Kill(job="before"))
        small.submit(with_files(bag(4), {"1.1.1": [A], "1.2.1": [B], "1.3.1": [B], "1.4.1": [A]}))
        pilot = small.pilot()
        order = []
        for _ in range(4):
            order += pilot.packages
            pilot.succeed(*pilot.packages)
        assert order == ["1.1.1", "1.4.1", "1.2.1", "1.3.1"]


def test_explain_says_which_files_are_missing_and_what_becomes_of_them() -> None:
    with Small(site(), fetch_attempts_max=2) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A, B, C]}))
        small.take(SubmitPilot)
        first, second, third = small.take(FetchFile)
        arrive(small, first)
        fail(small, second)
        _, fetching, failed = small.explain("1.1.1").reasons
        if fetching.subject != third.locator:
            fetching, failed = failed, fetching
        assert (fetching.code, fetching.subject) == ("waits-for-file", third.locator)
        assert "is being fetched; 1 of 3 files are there" in fetching.message
        assert "could not be fetched (store-unreachable): no route" in failed.message
        assert failed.until == small.now + 30.0
        arrive(small, third)


def test_explain_names_the_file_that_holds_a_package() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        small.take(SubmitPilot)
        fail(small, *small.take(FetchFile), reason="not-in-store", message="no such key")
        file, held = small.explain("1.1.1").reasons[:2]
        assert (held.code, file.code, file.subject) == ("held", "waits-for-file", A)
        assert file.message == "s3://store/a could not be brought to a (not-in-store): no such key"


def test_the_file_in_a_cache_is_told_for_the_work_order_of_a_package() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        small.take(SubmitPilot)
        assert cached_file(small.engine.state, "a", A) is None
        [wanted] = small.take(FetchFile)
        arrive(small, wanted)
        found = cached_file(small.engine.state, "a", A)
        assert found is not None
        assert (found.name, found.size_bytes, found.sha256) == (wanted.name, 10, SHA)
        assert cached_file(small.engine.state, "b", A) is None
        assert needed_by(small.engine.state, A) == [(JOB, 1)]
