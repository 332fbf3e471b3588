"""Outputs stay in the cache of the site where they were made: wished for with their grant, brought, and kept until released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pilotage.engine.state.caches import FileState
from pilotage.model.events import file_payloads, payloads
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, PurgeFiles, Release, RemoveFile, Restart, SubmitPilot
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched
from pilotage.model.jobs.file_plan import RetainedOutput, Wish
from pilotage.service.messages import SiteOperationRequest
from tests.kit.small_engine import JOB, Small, differences
from tests.kit.small_plans import bag, chain, kind, site, with_files

KEPT = kind("simulate", retains_outputs=True)
SHA, OTHER = "a" * 64, "b" * 64


class FixedKeeper:
    """Keeps one output of each attempt."""

    def __init__(self, *, wish: Wish = Wish.RETAIN_INDEFINITELY, size_bytes: int = 40) -> None:
        self.wish, self.size_bytes, self.sha256 = wish, size_bytes, SHA
        self.staged: list[AttemptRef] = []

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        self.staged.append(ref)

    def retained(self, ref: AttemptRef) -> list[RetainedOutput]:
        locator = f"job:{ref.job}/{ref.package}.root"
        return [RetainedOutput(locator=locator, size_bytes=self.size_bytes, sha256=self.sha256, wish=self.wish)]


class Keeping(Small):
    """A service that keeps outputs."""

    def __init__(self, *sites: Any, keeper: FixedKeeper | None = None, **settings: Any) -> None:
        super().__init__(*sites, **settings)
        self.keeper = keeper or FixedKeeper()
        self.engine.state.output_keeper = self.keeper

    def restart(self) -> None:
        super().restart()
        self.engine.state.output_keeper = self.keeper

    def fetched(self, *, sha256: str = SHA) -> list[tuple[str, str]]:
        """Let everything arrive that was ordered; the sites and locators."""
        wanted = list(dict.fromkeys(self.take(FetchFile)))  # an engine that starts repeats open orders
        self.step(
            *(
                FileArrived(site=each.site, key=each.key, size_bytes=each.size_bytes or 0, sha256=sha256)
                for each in wanted
            )
        )
        return [(each.site, each.locator) for each in wanted]

    def removed(self) -> int:
        wanted = self.take(RemoveFile)
        self.step(*(FileGone(site=each.site, key=each.key) for each in wanted))
        return len(wanted)

    def there(self, name: str = "a") -> list[str]:
        entries = self.engine.state.files.at(name).entries.values()
        return sorted(each.locator.partition("/")[2] for each in entries if each.state == FileState.PRESENT)

    def same_after_restart(self) -> None:
        before = self.engine.durable_state()
        self.restart()
        assert differences(before, self.engine.durable_state()) == []


def locator(package: str) -> str:
    return f"job:{JOB}/{package}.root"


def test_a_kept_output_comes_into_the_cache_of_the_site_where_it_was_made() -> None:
    with Keeping(site("a"), site("b")) as small:
        small.submit(bag(1, kind("simulate", retains_outputs=True, executor="b")))
        small.pilot("b").succeed("1.1.1")
        assert small.status("1.1.1") == "done"
        small.same_after_restart()
        assert small.fetched() == [("b", locator("1.1.1"))]
        small.same_after_restart()
        assert small.there("b") == ["1.1.1.root"]
        assert small.take(RemoveFile) == []
        [wished] = small.told(file_payloads.RetentionSet)
        told = msgspec.json.decode(wished.data)["files"]
        expected = {"locator": locator("1.1.1"), "size_bytes": 40, "wish": "retain-indefinitely", "owner": "ada"}
        assert told == [expected | {"job": JOB}]


def test_a_package_without_such_outputs_asks_nothing() -> None:
    with Keeping(site()) as small:
        small.submit(bag(1))
        small.pilot().succeed("1.1.1")
        assert small.keeper.staged == []
        assert small.told(file_payloads.RetentionSet) == []


def test_a_full_cache_loses_no_wish_even_in_a_restart_and_outputs_come_when_there_is_space() -> None:
    with Keeping(site(cores=3, cache_bytes=100)) as small:
        small.submit(bag(3, KEPT))
        small.pilot().succeed("1.1.1", "1.2.1", "1.3.1")
        assert len(small.fetched()) == 2
        small.same_after_restart()
        assert small.take(FetchFile) == []
        assert len(small.there()) == 2
        gone = f"job:{JOB}/{small.there()[0]}"
        small.step(SiteOperationRequest(token=9, operation=PurgeFiles(site="a", locators=(gone,))))
        small.answers.clear()
        assert small.removed() == 1
        assert len(small.fetched()) == 1
        assert len(small.there()) == 2


def test_temporary_outputs_give_way_to_newer_ones_and_indefinite_ones_do_not() -> None:
    with Keeping(site(cores=2, cache_bytes=50), keeper=FixedKeeper(wish=Wish.RETAIN_TEMPORARILY)) as small:
        small.submit(bag(2, KEPT))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.fetched()
        pilot.succeed("1.2.1")
        assert small.take(FetchFile) == []
        assert small.removed() == 1
        small.fetched()
        assert small.there() == ["1.2.1.root"]


def test_an_output_larger_than_the_cache_stays_in_the_tree() -> None:
    with Keeping(site(cache_bytes=30)) as small:
        small.submit(bag(1, KEPT))
        small.pilot().succeed("1.1.1")
        assert small.take(FetchFile) == []
        assert small.status("1.1.1") == "done"


def test_a_fetch_that_failed_is_tried_again_though_no_package_waits_for_it() -> None:
    with Keeping(site()) as small:
        small.submit(bag(1, KEPT))
        small.pilot().succeed("1.1.1")
        [wanted] = small.take(FetchFile)
        small.step(FileNotFetched(site="a", key=wanted.key, reason="store-unreachable", message="no route"))
        small.same_after_restart()
        small.wait(10_000.0)
        small.effects = [each for each in small.effects if isinstance(each, FetchFile)]
        assert small.fetched() == [("a", locator("1.1.1"))]
        assert small.there() == ["1.1.1.root"]


def test_a_later_job_of_the_owner_releases_it_and_it_goes() -> None:
    with Keeping(site()) as small:
        small.submit(bag(1, KEPT))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.fetched()
        merge = with_files(bag(1), {"1.1.1": [locator("1.1.1")]}, released={locator("1.1.1")})
        small.submit(merge, job="merge-1")
        pilot.exchange()
        assert small.take(RemoveFile) == []
        pilot.succeed("1.1.1")
        assert small.removed() == 1
        assert small.there() == []


def test_a_later_job_that_reads_the_file_in_its_tree_releases_the_copy_in_the_cache_too() -> None:
    with Keeping(site()) as small:
        small.submit(bag(1, KEPT))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.fetched()
        small.submit(msgspec.structs.replace(bag(1), releases=lambda _: [locator("1.1.1")]), job="merge-1")
        pilot.exchange()
        assert small.take(RemoveFile) == []
        pilot.succeed("1.1.1")
        assert small.removed() == 1
        assert small.there() == []


def test_a_remade_output_with_another_content_replaces_the_one_that_is_kept() -> None:
    with Keeping(site()) as small:
        small.submit(bag(1, KEPT))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.fetched()
        small.keeper.sha256 = OTHER
        small.ask(Restart(job=JOB, package="1.1.1"))
        pilot.exchange()
        pilot.succeed("1.1.1")
        assert small.removed() == 1, "nobody must read the old content"
        small.same_after_restart()
        assert small.fetched(sha256=OTHER) == [("a", locator("1.1.1"))]
        small.same_after_restart()
        [entry] = small.engine.state.files.at("a").entries.values()
        assert (entry.sha256, entry.wish, entry.stale) == (OTHER, Wish.RETAIN_INDEFINITELY, False)


def test_a_candidate_that_waits_for_its_grant_is_kept_where_it_ran_after_a_restart() -> None:
    stored = kind("simulate", retains_outputs=True, stores_outputs=True, executor="b")
    with Keeping(site("a"), site("b")) as small:
        small.submit(chain(stored, stages=1))
        small.pilot("b").succeed("1.1.1")
        small.same_after_restart()
        [work] = small.engine.state.jobs.by_id[JOB].work.values()
        assert dict(work.made_at) == {1: "b"}
        small.effects.clear()


def test_a_package_whose_file_must_be_there_is_held_where_it_is_not_and_nothing_is_fetched() -> None:
    made = with_files(bag(1), {"1.1.1": ["s3://store/a"]})
    assert made.files is not None
    required = msgspec.structs.replace(made.files, present=np.ones(1, np.bool_))
    with Keeping(site()) as small:
        small.submit(msgspec.structs.replace(made, files=required))
        small.take(SubmitPilot)
        assert small.take(FetchFile) == []
        assert small.status("1.1.1") == "held"
        told = "s3://store/a must be in the cache of a (acquisition: none), and is not there"
        assert told.encode() in bytes(small.told(payloads.Held, "1.1.1")[0].data)
        assert "s3://store/a must be" in " ".join(each.message for each in small.explain("1.1.1").reasons)
        small.submit(with_files(bag(1), {"1.1.1": ["s3://store/a"]}), job="other")
        pilot = small.pilot()
        small.fetched()
        small.ask(Release(job=JOB, package="1.1.1"))
        pilot.exchange()
        assert small.take(FetchFile) == []
        small.finish()
