"""Simulated transfers: what they bring, how they fail, and what a service that died finds again."""

from __future__ import annotations

from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, RemoveFile, StoreOutputs
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched, OutputsCopied
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.randomness import Dice
from pilotage.simulator.world.stores import StoreSketch, checksum_of
from pilotage.simulator.world.transfers import FilesSetup, Report, Transfers

LOCATOR = "s3://one/data"
SHA256 = "0f" * 32
REF = AttemptRef("job-1", "1.1.1", 1)
SITES = ("lyon", "nice", "paris", "nancy")  # some of them have a program of their own, which lives on


class World:
    """Transfers with a clock, and what they reported."""

    def __init__(self, *stores: StoreSketch, faults: Faults | None = None, rate: float = 0.0, copies: int = 0) -> None:
        self.schedule = Schedule(1000.0)
        self.reports: list[Report] = []
        setup = FilesSetup(stores=stores, sizes_bytes={LOCATOR: 1000}, copies={"job-1": copies}, seed=1)
        self.transfers = Transfers(
            setup,
            rates=dict.fromkeys(SITES, rate),
            schedule=self.schedule,
            injector=FaultInjector(faults or Faults(), Dice(1)),
            manifest=lambda _: (OutputFile(name="out", size_bytes=7, sha256=SHA256),),
            report=self.reports.append,
        )

    def fetch(self, key: str = "f1", site: str = "lyon") -> None:
        self.transfers.carry_out(FetchFile(site=site, key=key, locator=LOCATOR, name="ab/cd"))

    def run(self, seconds: float = 10_000.0) -> list[Report]:
        """What was reported in a time."""
        self.schedule.run(until=self.schedule.now + seconds)
        told, self.reports[:] = list(self.reports), []
        return told


def test_a_file_takes_the_time_of_the_slower_side_and_is_there() -> None:
    world = World(StoreSketch(url="s3://one/", latency_seconds=2.0, bytes_per_second=1000.0), rate=100.0)
    world.fetch()
    world.fetch()  # the order comes again, and changes nothing
    assert world.run() == [
        FileArrived(site="lyon", key="f1", size_bytes=1000, sha256=checksum_of(LOCATOR, 0), version="v0", seconds=12.0)
    ]
    assert [file.locator for file in world.transfers.caches["lyon"].values()] == [LOCATOR]
    assert not world.transfers.drafts["lyon"]


def test_an_order_that_comes_again_after_the_arrival_is_reported_again() -> None:
    world = World()
    world.fetch()
    (first,) = world.run()
    world.fetch()
    assert world.run() == [first]


def test_a_store_that_does_not_answer_fails_the_transfers_that_end_then() -> None:
    world = World(StoreSketch(url="s3://one/", latency_seconds=5.0, outages=((4.0, 10.0), (300.0, 10.0))))
    world.fetch()
    (failed,) = world.run(400.0)
    assert isinstance(failed, FileNotFetched)
    assert failed.reason == "store-unreachable"
    world.fetch("f2")
    assert isinstance(world.run()[0], FileArrived)


def test_a_transfer_waits_for_a_short_outage() -> None:
    world = World(StoreSketch(url="s3://one/", latency_seconds=5.0, outages=((4.0, 10.0),)))
    world.fetch()
    (arrived,) = world.run()
    assert isinstance(arrived, FileArrived)
    assert arrived.seconds == 305.0


def test_a_transfer_that_hangs_ends_with_its_timeout() -> None:
    world = World(faults=Faults(transfer_hangs=1.0))
    world.fetch()
    assert world.run(800.0) == []
    (failed,) = world.run()
    assert isinstance(failed, FileNotFetched)
    assert (failed.reason, failed.seconds) == ("transfer-timeout", 900.0)


def test_a_failing_store_fails_its_transfers_and_leaves_no_draft() -> None:
    world = World(StoreSketch(url="s3://", failure_probability=1.0))
    world.fetch()
    assert isinstance(world.run()[0], FileNotFetched)
    assert not world.transfers.drafts["lyon"]
    assert not world.transfers.caches["lyon"]


def test_a_content_that_changes_under_a_transfer_is_noticed() -> None:
    world = World(StoreSketch(url="s3://one/", latency_seconds=5.0))
    world.fetch()
    world.transfers.stores.change(LOCATOR)
    (failed,) = world.run()
    assert isinstance(failed, FileNotFetched)
    assert failed.reason == "input-checksum"
    world.fetch("f2")
    (arrived,) = world.run()
    assert isinstance(arrived, FileArrived)
    assert (arrived.version, arrived.sha256) == ("v1", checksum_of(LOCATOR, 1))


def test_a_report_may_come_late_or_twice() -> None:
    world = World(faults=Faults(transfer_late=1.0, transfer_repeated=1.0))
    world.fetch()
    told = world.run()
    assert len(told) == 2
    assert told[0] == told[1]


def test_a_file_that_vanishes_is_reported_with_the_key_of_its_fetch() -> None:
    world = World(faults=Faults(cache_loses=1.0))
    world.fetch()
    arrived, gone = world.run()
    assert isinstance(arrived, FileArrived)
    assert gone == FileGone(site="lyon", key="f1")
    assert not world.transfers.caches["lyon"]


def test_a_removed_file_is_gone_and_so_is_one_that_was_never_there() -> None:
    world = World()
    world.fetch()
    world.run()
    world.transfers.carry_out(RemoveFile(site="lyon", key="r1", name="ab/cd"))
    world.transfers.carry_out(RemoveFile(site="nice", key="r2", name="ab/cd"))
    assert sorted(str(each) for each in world.run()) == sorted(
        str(FileGone(site=site, key=key)) for site, key in (("lyon", "r1"), ("nice", "r2"))
    )
    assert not world.transfers.caches["lyon"]


def test_with_the_service_its_own_transfers_die_and_leave_drafts_and_those_of_sites_live_on() -> None:
    world = World(StoreSketch(url="s3://", latency_seconds=60.0))
    for site in SITES:
        world.fetch(site=site)
    world.run(1.0)
    world.transfers.service_crashed()
    lived = {each.site for each in world.run() if isinstance(each, FileArrived)}
    died = {site for site in SITES if world.transfers.drafts[site]}
    assert lived
    assert died
    assert lived | died == set(SITES)
    for site in sorted(died):
        world.fetch(site=site)
    assert {each.site for each in world.run() if isinstance(each, FileArrived)} == died
    assert not any(world.transfers.drafts.values())


def test_outputs_are_copied_to_as_many_stores_as_asked_and_only_where_they_are_not() -> None:
    world = World(StoreSketch(url="s3://one/"), StoreSketch(url="s3://two/", outages=((0.0, 400.0),)), copies=2)
    world.transfers.carry_out(StoreOutputs(ref=REF))
    (told,) = world.run(350.0)
    assert isinstance(told, OutputsCopied)
    assert [each.locator for each in told.copies] == ["s3://one/job-1/1.1.1/out"]
    assert [(each.locator, each.reason) for each in told.failed] == [("s3://two/job-1/1.1.1/out", "store-unreachable")]
    world.run(100.0)
    world.transfers.carry_out(StoreOutputs(ref=REF))
    (told,) = world.run()
    assert isinstance(told, OutputsCopied)
    assert (len(told.copies), told.failed) == (2, ())
    assert world.transfers.stores.copy("s3://two/job-1/1.1.1/out") == SHA256


def test_a_later_attempt_takes_the_place_of_an_earlier_one() -> None:
    world = World(StoreSketch(url="s3://one/", latency_seconds=5.0), copies=1)
    world.transfers.carry_out(StoreOutputs(ref=REF))
    later = AttemptRef("job-1", "1.1.1", 2)
    world.transfers.carry_out(StoreOutputs(ref=later))
    assert [each.ref for each in world.run() if isinstance(each, OutputsCopied)] == [later]
