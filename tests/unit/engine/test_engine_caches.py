"""Cached files stay as long as a package needs them or somebody wants them, and go when space is needed, the least used first."""

from __future__ import annotations

from typing import Any

import msgspec

from pilotage.engine.state.caches import FileState
from pilotage.model.events import file_payloads, payloads
from pilotage.model.exchange.operations import (
    Accepted,
    AnySiteOperation,
    Drop,
    FetchFile,
    Hold,
    Kill,
    PinFiles,
    PurgeFiles,
    Refused,
    Release,
    RemoveFile,
    Restart,
    SubmitPilot,
    UnpinFiles,
)
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched
from pilotage.model.jobs.file_plan import Wish
from pilotage.service.messages import SiteOperationRequest
from tests.kit.small_engine import JOB, Agent, Small, differences
from tests.kit.small_plans import bag, chain, kind, plan, site, stage, with_files

A, B, C = "s3://store/a", "s3://store/b", "s3://store/c"
SHA, OTHER = "a" * 64, "b" * 64
SIZES = {A: 40, B: 40, C: 40}


class Cached(Small):
    """A service whose files arrive and go when told to."""

    def fetched(self, *, sha256: str = SHA, size_bytes: int = 40) -> list[str]:
        """Let everything arrive that was ordered; the locators."""
        wanted = self.take(FetchFile)
        self.step(*(FileArrived(site=each.site, key=each.key, size_bytes=size_bytes, sha256=sha256) for each in wanted))
        return [each.locator for each in wanted]

    def removed(self) -> int:
        """Let everything go that was to be removed; how many there were."""
        wanted = self.take(RemoveFile)
        self.step(*(FileGone(site=each.site, key=each.key) for each in wanted))
        return len(wanted)

    def there(self, name: str = "a") -> list[str]:
        """The files in the cache of a site."""
        entries = self.engine.state.files.at(name).entries.values()
        return sorted(each.locator for each in entries if each.state == FileState.PRESENT)

    def operate(self, operation: AnySiteOperation) -> Accepted | Refused:
        """An operation on a site."""
        self.step(SiteOperationRequest(token=9, operation=operation))
        return self.answers.pop().outcome

    def run_all(self, *, turns: int = 20) -> None:
        """Let pilots run what there is, and files come and go."""
        agents = list(self.agents.values())
        for _ in range(turns):
            self.fetched()
            self.removed()
            for wanted in self.take(SubmitPilot):
                capacity = self.engine.state.sites.by_name[wanted.site].site.capacity
                agents.append(self.agent(f"{wanted.key}.r", site=wanted.site, request=wanted.key, capacity=capacity))
            for agent in agents:
                for ref in list(agent.held):
                    agent.end(ref)
                agent.exchange()
                agent.unread.clear()
            self.wait(1.0)
            self.take(SubmitPilot)


def causes(small: Small) -> list[str]:
    return [
        each["cause"]
        for event in small.told(file_payloads.RemovalsOrdered)
        for each in msgspec.json.decode(event.data)["files"]
    ]


def pilot_of(small: Small, name: str = "a") -> Agent:
    pilot = small.pilot(name)
    pilot.exchange()
    return pilot


def one(wish: Wish = Wish.RETAIN_TEMPORARILY, **more: Any) -> Any:
    return with_files(bag(1), {"1.1.1": [A]}, sizes=SIZES, wishes={A: wish}, **more)


def test_a_deletable_file_goes_with_the_last_package_that_needs_it() -> None:
    with Cached(site()) as small:
        small.submit(with_files(bag(2), {"1.1.1": [A], "1.2.1": [A]}, wishes={A: Wish.DELETABLE}))
        pilot = pilot_of(small)
        small.fetched()
        pilot.succeed("1.1.1")
        assert small.take(RemoveFile) == []
        pilot.succeed("1.2.1")
        assert small.removed() == 1
        assert small.there() == []
        assert causes(small) == ["deletable"]


def test_a_temporary_file_stays_until_space_is_needed() -> None:
    with Cached(site(cache_bytes=100)) as small:
        small.submit(with_files(bag(3), {"1.1.1": [A], "1.2.1": [B], "1.3.1": [C]}, sizes=SIZES))
        pilot = pilot_of(small)
        assert small.fetched() == [A, B]  # the third waits for space
        small.wait(1.0, pilot)
        assert small.take(RemoveFile) == []  # both are needed
        pilot.exchange()
        pilot.succeed(*pilot.packages)
        assert small.removed() == 1
        assert causes(small) == ["space"]
        assert small.there() == [B]
        assert small.fetched() == [C]
        small.run_all(turns=5)
        assert small.standings() == {"done": ["1.1.1", "1.2.1", "1.3.1"]}
        assert small.there() == [B, C]


def test_the_least_recently_used_file_goes_first() -> None:
    with Cached(site(cores=1, cache_bytes=100)) as small:
        for number, locator in enumerate((A, B, A, C)):
            made = with_files(bag(1), {"1.1.1": [locator]}, sizes=SIZES)
            small.submit(made, job=f"job{number}")
            small.run_all(turns=4)
            assert small.standings(job=f"job{number}") == {"done": ["1.1.1"]}
        assert small.there() == [A, C]


def test_wishes_of_two_owners_hold_until_both_have_released_the_file() -> None:
    with Cached(site()) as small:
        small.submit(one(Wish.RETAIN_INDEFINITELY), job="ada1", owner="ada")
        small.submit(one(Wish.DELETABLE), job="bob1", owner="bob")
        small.run_all(turns=4)
        assert small.there() == [A]
        entry = small.engine.state.files.at("a").entries[A]
        assert entry.wishes == (("ada", Wish.RETAIN_INDEFINITELY), ("bob", Wish.DELETABLE))
        small.submit(one(Wish.DELETABLE, released=[A]), job="bob2", owner="bob")
        small.run_all(turns=4)
        assert small.there() == [A]  # only ada can release what she wants to keep
        small.submit(one(Wish.DELETABLE, released=[A]), job="ada2", owner="ada")
        small.run_all(turns=4)
        assert small.there() == []


def test_a_file_that_is_retained_indefinitely_does_not_make_room_and_the_package_waits() -> None:
    with Cached(site(cache_bytes=60)) as small:
        small.submit(one(Wish.RETAIN_INDEFINITELY))
        small.run_all(turns=4)
        small.submit(with_files(bag(1), {"1.1.1": [B]}, sizes=SIZES), job="other")
        small.wait(5.0)
        small.take(SubmitPilot)
        assert small.take(FetchFile) == []
        reasons = small.explain("1.1.1", job="other").reasons
        assert [each.code for each in reasons] == ["reserved", "waits-for-file"]
        assert "the cache has no space: 40 of 60 bytes" in reasons[1].message
        small.ask(Kill(job="other"))


def test_a_package_whose_files_are_larger_than_the_cache_is_held() -> None:
    with Cached(site(cache_bytes=60)) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A, B]}, sizes=SIZES))
        assert small.status("1.1.1") == "held"
        assert small.take(FetchFile) == []
        [held] = [one for one in small.book if one.event.type == "Held"]
        why = "its files are larger than the cache of a: 80 bytes, and that holds 60"
        assert why in str(held.data)
        assert small.explain("1.1.1").reasons[0].message == why  # from the plan and the site: also after a restart
        small.effects.clear()


def test_a_cache_smaller_than_the_files_of_a_job_is_enough_for_all_its_packages() -> None:
    with Cached(site(cores=2, cache_bytes=100)) as small:
        needs = {f"1.{line}.1": [f"s3://store/{line}", A] for line in range(1, 11)}
        sizes = {locator: 40 for named in needs.values() for locator in named}
        small.submit(with_files(bag(10), needs, sizes=sizes))
        for _ in range(40):
            small.run_all(turns=1)
            assert small.engine.state.files.at("a").taken_bytes <= 100
        assert list(small.standings()) == ["done"]
        fetched = [
            each["locator"]
            for event in small.told(file_payloads.FetchesOrdered)
            for each in msgspec.json.decode(event.data)["files"]
        ]
        assert sorted(fetched) == sorted({A, *(f"s3://store/{line}" for line in range(1, 11))})  # each once


def test_packages_that_hold_the_space_start_before_those_that_wait_for_it() -> None:
    with Cached(site(cache_bytes=40)) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}, sizes=SIZES), job="first")
        small.fetched()
        small.submit(with_files(bag(1, priority=9), {"1.1.1": [B]}, sizes=SIZES), job="urgent")
        assert small.standings(job="first") == {"reserved": ["1.1.1"]}  # it gave way, and got its place back
        small.run_all(turns=8)
        assert small.standings(job="first") == small.standings(job="urgent") == {"done": ["1.1.1"]}


def test_a_file_that_is_needed_again_while_it_is_removed_is_fetched_when_it_is_gone() -> None:
    with Cached(site()) as small:
        small.submit(one(Wish.DELETABLE))
        pilot = pilot_of(small)
        small.fetched()
        pilot.succeed("1.1.1")
        [removal] = small.take(RemoveFile)
        small.submit(one(Wish.DELETABLE), job="again")
        assert small.take(FetchFile) == []
        small.step(FileGone(site="a", key=removal.key))
        [wanted] = small.take(FetchFile)
        assert wanted.name != removal.name
        small.step(FileArrived(site="a", key=wanted.key, size_bytes=1, sha256=OTHER))
        small.run_all(turns=3)


def test_needs_end_with_a_kill_and_a_drop_and_return_with_a_restart() -> None:
    with Cached(site()) as small:
        wishes = {A: Wish.DELETABLE}
        small.submit(with_files(bag(2), {"1.1.1": [A], "1.2.1": [A]}, wishes=wishes))
        small.take(SubmitPilot)
        small.fetched()
        small.ask(Kill(job=JOB, package="1.1.1"))
        assert small.take(RemoveFile) == []
        small.ask(Drop(job=JOB, stage=1, line=2))
        assert small.removed() == 1
        small.ask(Restart(job=JOB, package="1.1.1"))
        small.take(SubmitPilot)
        assert small.fetched() == [A]
        small.ask(Kill(job=JOB))
        assert small.removed() == 1


def test_files_of_a_killed_job_that_never_started_may_go() -> None:
    with Cached(site()) as small:
        small.submit(one(Wish.DELETABLE))
        small.take(SubmitPilot)
        small.fetched()
        small.ask(Kill(job=JOB))
        assert small.removed() == 1


def test_a_restart_that_may_still_come_counts_as_need() -> None:
    with Cached(site()) as small:
        small.submit(one(Wish.DELETABLE))
        pilot = pilot_of(small)
        small.fetched()
        pilot.fail("1.1.1", "platform-failure")
        pilot.unread.clear()
        assert small.take(RemoveFile) == []
        small.ask(Kill(job=JOB))
        assert small.removed() == 1
        small.effects.clear()


def test_a_consumer_that_waits_for_its_producer_needs_its_files_already() -> None:
    with Cached(site()) as small:
        made = with_files(chain(), {"1.1.1": [A], "2.1.1": [A]}, wishes={A: Wish.DELETABLE})
        small.submit(made)
        pilot = pilot_of(small)
        small.fetched()
        pilot.succeed("1.1.1")
        assert small.take(RemoveFile) == []
        pilot.succeed("2.1.1")
        assert small.removed() == 1


# --- space that never comes free --------------------------------------------------------------------------------------


def crowded() -> Any:
    """Two packages, and one that waits for both and needs a file of the first: 1.2.1 never fits beside that file."""
    made = plan(stage(2), stage(1), edges=[("1.1.1", "2.1.1"), ("1.2.1", "2.1.1")])
    return with_files(made, {"1.1.1": [A], "1.2.1": [B], "2.1.1": [A]}, sizes=SIZES)


def test_a_package_is_held_if_only_packages_that_wait_for_it_could_free_its_space() -> None:
    with Cached(site(cache_bytes=60)) as small:
        small.submit(crowded())
        assert small.fetched() == [A]
        assert small.status("1.2.1") != "held"  # 1.1.1 has its files and may still end
        small.run_all(turns=5)
        assert small.standings() == {"done": ["1.1.1"], "held": ["1.2.1"], "blocked": ["2.1.1"]}
        assert small.there() == [A]
        [held] = [each for each in small.book if isinstance(each.data, payloads.Held)]
        why = (
            "no space can come free in the cache of a: its files take 40 of 60 bytes, and 40 are of files that other "
            "packages need, which cannot start now: s3://store/a; raise cache_bytes of a, or kill one of the packages"
        )
        assert isinstance(held.data, payloads.Held)
        assert held.data.message == f"its files cannot be had: {why}"
        [first, *_] = small.explain("1.2.1").reasons
        assert (first.code, first.subject, first.message) == ("waits-for-file", "a", why)
        small.ask(Release(job=JOB, package="1.2.1"))
        small.run_all(turns=3)
        assert small.status("1.2.1") == "held"  # nothing has changed
        small.ask(Kill(job=JOB, package="2.1.1"))
        small.ask(Release(job=JOB, package="1.2.1"))
        small.run_all(turns=5)
        assert small.status("1.2.1") == "done"
        assert causes(small) == ["space"]


def test_no_package_is_held_for_space_while_another_site_may_have_it_or_a_package_runs_that_may_free_it() -> None:
    with Cached(site(cache_bytes=60), site("b")) as small:
        small.submit(crowded())
        small.run_all(turns=3)
        assert small.explain("1.2.1").reasons[0].message == "it is reserved for b"
        assert small.there("b") == [B]
        small.effects.clear()
    with Cached(site(cache_bytes=60)) as small:
        small.submit(crowded())
        small.submit(with_files(bag(1), {"1.1.1": [A]}, sizes=SIZES), job="other")
        small.fetched()
        assert list(small.standings()) == ["reserved", "blocked"]
        small.run_all(turns=8)
        assert small.standings(job="other") == {"done": ["1.1.1"]}
        assert small.status("1.2.1") == "held"


def test_many_packages_without_space_hold_their_job() -> None:
    with Cached(site(cores=1, cache_bytes=60), flood_packages=2) as small:
        edges = [(f"1.{line}.1", "2.1.1") for line in range(1, 7)]
        needs = {f"1.{line}.1": [f"s3://store/{line}"] for line in range(2, 7)}
        sizes = {A: 40, **dict.fromkeys((each for [each] in needs.values()), 40)}
        made = plan(stage(6), stage(1), edges=edges)
        small.submit(with_files(made, {"1.1.1": [A], **needs, "2.1.1": [A]}, sizes=sizes))
        small.run_all(turns=8)
        held = [each.event.package for each in small.book if each.event.type == "Held"]
        assert held == ["1.2.1", "1.3.1", None]


def kept_at(small: Cached, name: str, file: str) -> None:
    """Let a file be in a cache that a held job needs."""
    small.submit(with_files(bag(1, kind(executor=name)), {"1.1.1": [file]}, sizes=SIZES), job=f"keeps-{name}")
    small.ask(Hold(job=f"keeps-{name}"))
    assert small.fetched() == [file]
    assert small.there(name) == [file]


def site_of(small: Small, job: str) -> str | None:
    """The site for which the first package of a job is reserved."""
    work = small.engine.state.jobs.by_id[job].work.get(0)
    return work.bound.name if work is not None and work.bound is not None else None


def runs_at(small: Cached, name: str) -> Agent:
    """A pilot that runs a package there."""
    small.submit(bag(1, kind(executor=name)), job=f"runs-{name}")
    small.wait(10.0)
    pilot = pilot_of(small, name)
    assert [ref.job for ref in pilot.held] == [f"runs-{name}"]
    pilot.unread.clear()
    return pilot


def test_a_package_goes_where_its_files_are_past_those_that_wait_for_space_before_it() -> None:
    with Cached(site(cache_bytes=60), site("b", cores=2)) as small:
        kept_at(small, "a", A)
        kept_at(small, "b", C)
        runs_at(small, "b")  # it might free space for somebody
        small.submit(with_files(bag(1, kind(executor="a")), {"1.1.1": [B]}, sizes=SIZES), job="waits")
        small.submit(with_files(bag(1), {"1.1.1": [C]}, sizes=SIZES), job="later")
        assert site_of(small, "waits") == "a"
        assert [at for _, _, at in small.created("later")] == ["b"]
        for pilot in small.agents.values():
            pilot.unread.clear()
        small.effects.clear()


def test_a_package_runs_at_a_site_that_it_avoids_rather_than_wait_for_space_for_ever() -> None:
    with Cached(site("b"), site(cache_bytes=60)) as small:
        kept_at(small, "a", A)
        pilot = runs_at(small, "b")
        pilot.succeed("1.1.1")
        small.submit(with_files(bag(1), {"1.1.1": [B]}, sizes=SIZES), job="other")
        small.fetched()
        small.wait(10.0, pilot)
        pilot.unread.clear()
        pilot.fail("1.1.1", "platform-failure")
        small.wait(900.0, pilot)
        assert [at for _, _, at in small.created("other")] == ["b", "b"]
        pilot.unread.clear()
        small.effects.clear()


def test_a_lost_attempt_does_not_put_off_the_hold_of_a_package_whose_space_cannot_come_free() -> None:
    with Cached(site(cache_bytes=60), site("b")) as small:
        kept_at(small, "a", A)
        runs_at(small, "b")
        small.submit(with_files(bag(1, kind(executor="a")), {"1.1.1": [B]}, sizes=SIZES), job="waits")
        assert site_of(small, "waits") == "a"
        small.wait(1200.0, pilot_of(small, "a"))  # that of b is never heard of again
        assert small.told(payloads.AttemptLost, "1.1.1", job="runs-b")
        small.effects.clear()
        small.ask(Hold(job="runs-b"))
        assert small.engine.state.jobs.by_id["runs-b"].work[0].attempts  # its result may still count
        small.wait(60.0)
        assert small.standings(job="waits") == {"held": ["1.1.1"]}
        small.effects.clear()


def test_a_package_waits_for_the_space_of_a_pinned_file_and_runs_when_it_is_unpinned() -> None:
    with Cached(site(cache_bytes=60)) as small:
        small.submit(one())
        small.run_all(turns=2)
        small.operate(PinFiles(site="a", locators=(A,), by="eve"))
        small.submit(with_files(bag(1), {"1.1.1": [B]}, sizes=SIZES), job="other")
        small.run_all(turns=2)
        messages = [each.message for each in small.explain("1.1.1", job="other").reasons]
        assert any("40 of 60 bytes are used by files that are needed or kept" in each for each in messages)
        small.operate(UnpinFiles(site="a", locators=(A,), by="eve"))
        small.run_all(turns=4)
        assert small.standings(job="other") == {"done": ["1.1.1"]}


# --- people ---------------------------------------------------------------------------------------------------------


def test_a_pinned_file_stays_until_the_same_person_unpins_it() -> None:
    with Cached(site()) as small:
        small.submit(one(Wish.DELETABLE))
        small.take(SubmitPilot)
        small.fetched()
        assert isinstance(small.operate(PinFiles(site="a", locators=(A,), by="eve")), Accepted)
        small.ask(Kill(job=JOB))
        assert small.take(RemoveFile) == []
        refused = small.operate(PurgeFiles(site="a", locators=(A,)))
        assert isinstance(refused, Refused)
        assert (refused.code, refused.subject) == ("file-pinned", A)
        small.operate(UnpinFiles(site="a", locators=(A,), by="bob"))
        assert small.take(RemoveFile) == []
        small.operate(UnpinFiles(site="a", locators=(A,), by="eve"))
        assert small.removed() == 1


def test_a_purge_of_a_needed_file_is_refused_by_name() -> None:
    with Cached(site()) as small:
        small.submit(one())
        small.take(SubmitPilot)
        small.fetched()
        refused = small.operate(PurgeFiles(site="a", locators=(A,)))
        assert isinstance(refused, Refused)
        assert (refused.code, refused.subject) == ("file-needed", A)
        assert "needed by j (1 package)" in refused.message
        unknown = small.operate(PurgeFiles(site="a", locators=("s3://store/x",)))
        assert isinstance(unknown, Refused)
        assert (unknown.code, unknown.subject) == ("unknown-file", "s3://store/x")


def test_a_purge_tells_what_goes_and_what_stays_and_with_a_dry_run_changes_nothing() -> None:
    with Cached(site()) as small:
        wishes = {B: Wish.RETAIN_INDEFINITELY}
        small.submit(with_files(bag(1), {"1.1.1": [A, B]}, wishes=wishes, software=[A]))
        small.run_all(turns=3)
        small.submit(with_files(bag(1), {"1.1.1": [C]}), job="other")
        small.fetched()
        small.take(SubmitPilot)
        for agent in small.agents.values():
            agent.unread.clear()
        count = len(small.book)
        tried = small.operate(PurgeFiles(site="a", dry_run=True))
        assert isinstance(tried, Accepted)
        assert len(small.book) == count
        assert {each.locator: each.kept for each in tried.purged} == {
            A: "",
            B: "retained indefinitely for ada",
            C: "needed by other (1 package)",
        }
        done = small.operate(PurgeFiles(site="a", software=True))
        assert isinstance(done, Accepted)
        assert [(each.locator, each.kept) for each in done.purged] == [(A, "")]
        assert small.removed() == 1
        assert small.there() == [B, C]
        assert causes(small) == ["purged"]
        small.ask(Kill(job="other"))


# --- another content in the store -----------------------------------------------------------------------------------


def test_a_file_that_its_store_has_changed_is_stale_at_other_sites_and_goes_with_its_last_need() -> None:
    with Cached(site("a", pilots=1), site("b", pilots=1)) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}, wishes={A: Wish.RETAIN_INDEFINITELY}))
        small.take(SubmitPilot)
        small.fetched()
        other = with_files(bag(4), {f"1.{line}.1": [A] for line in range(1, 5)})
        small.submit(other, job="other")
        small.take(SubmitPilot)
        [wanted] = [each for each in small.take(FetchFile) if each.site == "b"]
        small.step(FileArrived(site="b", key=wanted.key, size_bytes=2, sha256=OTHER))
        assert small.engine.state.files.at("a").entries[A].stale
        assert small.take(RemoveFile) == []
        small.ask(Kill(job=JOB))
        small.ask(Kill(job="other"))
        assert small.removed() == 1
        assert causes(small) == ["stale"]
        assert small.there("b") == [A]


# --- starting again -------------------------------------------------------------------------------------------------


def test_an_engine_that_starts_again_knows_the_files_and_asks_again_for_those_on_their_way() -> None:
    with Cached(site(cores=4)) as small:
        needs = {"1.1.1": [A], "1.2.1": [B], "1.3.1": [C]}
        small.submit(with_files(bag(3), needs, wishes={A: Wish.RETAIN_INDEFINITELY}, sizes=SIZES))
        small.take(SubmitPilot)
        first, second, third = small.take(FetchFile)
        small.step(FileArrived(site="a", key=first.key, size_bytes=7, sha256=SHA, version="v1"))
        small.operate(PinFiles(site="a", locators=(A,), by="eve"))
        before = small.engine.durable_state()
        small.restart()
        assert differences(before, small.engine.durable_state()) == []
        again = small.take(FetchFile)
        assert {each.key for each in again} == {second.key, third.key}
        assert {each.name for each in again} == {second.name, third.name}
        small.step(*(FileArrived(site="a", key=each.key, size_bytes=7, sha256=SHA) for each in again))
        small.take(SubmitPilot)
        assert small.there() == [A, B, C]
        assert small.take(FetchFile) == []


def test_an_engine_that_starts_again_removes_what_was_to_be_removed_and_what_nobody_needs() -> None:
    with Cached(site()) as small:
        small.submit(one(Wish.DELETABLE))
        pilot = pilot_of(small)
        small.fetched()
        pilot.succeed("1.1.1")
        [removal] = small.take(RemoveFile)
        small.restart()
        assert small.take(RemoveFile) == [removal]
        small.step(FileGone(site="a", key=removal.key))
        small.restart()
        assert small.take(RemoveFile) == []
        assert small.there() == []


def test_a_release_after_a_restart_tries_a_failed_file_again() -> None:
    with Cached(site()) as small:
        small.submit(one())
        small.take(SubmitPilot)
        [wanted] = small.take(FetchFile)
        small.step(FileNotFetched(site="a", key=wanted.key, reason="not-in-store", message="no such key"))
        small.restart()
        assert small.status("1.1.1") == "held"
        small.ask(Release(job=JOB, package="1.1.1"))
        small.take(SubmitPilot)
        assert small.fetched() == [A]
