"""Fetches into the cache of a site here: every fault of a store is caused, and nothing wrong gets a name."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.agent.durable_files import sync_file_system
from pilotage.model.exchange.operations import FetchFile, RemoveFile
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched
from pilotage.model.settings.stores import FilesSettings, StoreSettings
from pilotage.ports.store import AccessDenied, CredentialExpired, NotInStore, StoreUnreachable
from pilotage.service.transfers import cache_folder, ledger, pool
from pilotage.service.transfers.fetching import RetryPolicy
from tests.kit.cache_site import NAME, Site, arrived, failed, order, sha256
from tests.kit.faulty_store import Stall, before_end, cut, damaged, ended
from tests.kit.waiting import wait_until

MIB = 1 << 20
CUT = StoreUnreachable("the connection broke")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for each in made.made:
        each.stop()


def test_a_file_is_fetched_verified_and_reported(site: Site) -> None:
    content = os.urandom(3 * MIB + 5)
    site.transfers().want(order(site.file(content)))
    assert arrived(site.reports.next()) == (len(content), sha256(content))
    assert site.fetched() == content
    assert site.drafts() == []


def test_an_empty_file_is_a_file(site: Site) -> None:
    site.transfers().want(order(site.file(b"")))
    assert arrived(site.reports.next()) == (0, sha256(b""))
    assert site.fetched() == b""


def test_a_cut_connection_is_resumed_where_it_broke(site: Site) -> None:
    content = os.urandom(3 * MIB)
    site.store.faults += [cut(after_bytes=MIB + 7, error=CUT), cut(after_bytes=100, error=CUT)]
    site.transfers().want(order(site.file(content)))
    assert arrived(site.reports.next()) == (len(content), sha256(content))
    assert site.fetched() == content
    assert site.store.reads == [0, MIB + 7, MIB + 107]


def test_a_file_without_a_version_is_never_resumed(site: Site) -> None:
    content = os.urandom(3 * MIB)
    site.store.versionless = True
    site.store.faults += [cut(after_bytes=MIB, error=CUT)]
    site.transfers().want(order(site.file(content)))
    assert arrived(site.reports.next()) == (len(content), sha256(content))
    assert site.store.reads == [0, 0]


def test_a_file_that_was_swapped_between_two_tries_is_fetched_anew(site: Site) -> None:
    first, second = os.urandom(2 * MIB), os.urandom(2 * MIB)
    locator = site.file(first)
    swapped = cut(after_bytes=MIB + 1, error=CUT)

    def swap(content: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from swapped(content)
        finally:
            site.file(second)

    site.store.faults += [swap]
    site.transfers().want(order(locator))
    assert arrived(site.reports.next()) == (len(second), sha256(second))
    assert site.fetched() == second


@pytest.mark.parametrize("versionless", [False, True])
def test_a_file_that_changes_while_it_is_read_is_fetched_anew(site: Site, *, versionless: bool) -> None:
    first, second = os.urandom(2 * MIB), os.urandom(2 * MIB)
    locator = site.file(first)
    site.store.versionless = versionless

    def change() -> None:
        (site.there / "in.dat").write_bytes(second)

    site.store.faults += [before_end(change)]
    site.transfers().want(order(locator))
    assert arrived(site.reports.next()) == (len(second), sha256(second))
    assert site.fetched() == second


def test_content_that_ends_early_is_not_published(site: Site) -> None:
    content = os.urandom(MIB)
    site.store.faults += [ended(after_bytes=10)] * 4
    site.store.versionless = True
    site.transfers().want(order(site.file(content)))
    assert failed(site.reports.next()) == "truncated"
    assert not (site.cache / NAME).exists()


def test_damage_on_the_way_is_seen_by_the_checksum_of_the_store(site: Site) -> None:
    content = os.urandom(MIB)
    locator = site.file(content)
    site.store.known[locator] = sha256(content)
    site.store.faults += [damaged()]
    site.transfers().want(order(locator))
    assert arrived(site.reports.next()) == (len(content), sha256(content))
    assert site.store.reads == [0, 0]


def test_a_store_that_keeps_a_file_wrongly_is_reported(site: Site) -> None:
    locator = site.file(b"data")
    site.store.known[locator] = sha256(b"other")
    site.transfers().want(order(locator))
    assert failed(site.reports.next()) == "wrong-checksum"
    assert not (site.cache / NAME).exists()


@pytest.mark.parametrize(
    "refusal, reason",
    [
        (AccessDenied("the store answers 403"), "access-denied"),
        (CredentialExpired("the token has expired"), "credential-expired"),
        (NotInStore("no such file"), "not-in-store"),
    ],
)
def test_a_refusal_is_reported_by_its_name_and_not_tried_again(site: Site, refusal: Exception, reason: str) -> None:
    site.store.refusals.append(refusal)  # type: ignore[arg-type]
    site.transfers().want(order(site.file(b"data")))
    assert failed(site.reports.next()) == reason
    assert site.store.reads == []
    assert site.drafts() == []


def test_a_missing_file_is_not_in_its_store(site: Site) -> None:
    site.transfers().want(order(f"file://{site.there}/none"))
    assert failed(site.reports.next()) == "not-in-store"


def test_a_file_with_another_content_than_the_document_requires_is_refused_at_once_and_leaves_nothing(
    site: Site,
) -> None:
    locator, made = site.file(b"data"), site.transfers()
    required = msgspec.structs.replace(order(locator), sha256=sha256(b"DATA"))
    made.want(required)
    report = site.reports.next()
    assert isinstance(report, FileNotFetched)
    assert report.reason == "input-checksum"
    assert f"expected sha256 {sha256(b'DATA')}, got sha256 {sha256(b'data')}" in report.message
    assert site.store.reads == [0]
    assert [path for path in site.cache.rglob("*") if path.is_file()] == []
    site.file(b"DATA")
    made.want(msgspec.structs.replace(required, key="k2"))
    assert arrived(site.reports.next(2)) == (4, sha256(b"DATA"))


def test_a_cached_file_with_another_content_than_required_does_not_stand_for_it(site: Site) -> None:
    locator, made = site.file(b"data"), site.transfers()
    made.want(order(locator))
    site.reports.next()
    site.file(b"DATA")
    made.want(msgspec.structs.replace(order(locator, key="k2"), sha256=sha256(b"DATA")))
    assert arrived(site.reports.next(2)) == (4, sha256(b"DATA"))
    assert site.fetched() == b"DATA"


def test_an_unreachable_store_is_given_up_after_its_tries(site: Site) -> None:
    site.store.refusals += [CUT] * 4
    made = site.transfers()
    made.want(order(site.file(b"data")))
    assert failed(site.reports.next()) == "store-unreachable"
    assert not site.store.refusals
    assert [(each.failures, each.files) for each in made.stores()] == [({"store-unreachable": 1}, 0)]


def test_pauses_grow_and_have_a_limit() -> None:
    policy = RetryPolicy(first_seconds=1.0, seconds_max=10.0)
    assert [policy.pause_seconds(failed) for failed in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_an_unknown_scheme_and_an_unknown_site_are_reported(site: Site) -> None:
    made = site.transfers()
    made.want(order("gopher://there/x"), FetchFile(site="gone", key="k2", locator="file:///x", name=NAME))
    assert failed(site.reports.next(2)) == "store-error"
    assert [failed(each) for each in site.reports.all] == ["store-error"] * 2


def test_a_folder_is_told_from_a_file_that_is_not_there_on_one_line(site: Site) -> None:
    made = site.transfers()
    site.file(b"data", name="run3/in.dat")
    made.want(order(f"file://{site.there}/run3"))
    report = site.reports.next()
    assert failed(report) == "not-in-store"
    assert isinstance(report, FileNotFetched)
    assert "this is a folder, and a locator must name one file" in report.message
    site.store.refusals.append(AccessDenied("refused", next_step="ask its owner"))
    made.want(order(site.file(b"data"), key="k2"))
    told = site.reports.next(2)
    assert isinstance(told, FileNotFetched)
    assert told.message == "refused; ask its owner"


def test_a_full_disk_is_told_and_leaves_no_draft(site: Site) -> None:
    locator = site.file(os.urandom(2 * MIB))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB + 1, limits[1]))
    try:
        site.transfers().want(order(locator))
        report = site.reports.next()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed(report) == "disk-full"
    assert site.drafts() == []


def test_an_order_is_repeated_without_a_second_transfer(site: Site) -> None:
    locator, made = site.file(b"data"), site.transfers()
    made.want(order(locator))
    site.reports.next()
    made.want(order(locator))
    assert arrived(site.reports.next(2)) == (4, sha256(b"data"))
    assert site.store.reads == [0]


def test_what_an_earlier_service_fetched_is_not_fetched_again(site: Site) -> None:
    locator = site.file(b"data")
    site.transfers().want(order(locator))
    first = site.reports.next()
    site.transfers().want(order(locator))
    second = site.reports.next(2)
    assert isinstance(first, FileArrived)
    assert isinstance(second, FileArrived)
    assert (second.sha256, second.version) == (first.sha256, first.version)
    assert site.store.reads == [0]


@pytest.mark.parametrize("change", ["content", "locator"])
def test_a_cached_file_that_is_not_what_was_fetched_is_fetched_again(site: Site, change: str) -> None:
    site.transfers().want(order(site.file(b"data")))
    site.reports.next()
    if change == "content":
        (site.cache / NAME).write_bytes(b"oops")
    locator = site.file(b"DATA", "in.dat" if change == "content" else "other.dat")
    site.transfers().want(order(locator, key="k2"))
    assert arrived(site.reports.next(2)) == (4, sha256(b"DATA"))
    assert site.fetched() == b"DATA"


def test_a_stop_reports_nothing_and_the_next_service_goes_on_from_the_draft(site: Site) -> None:
    content, stall = os.urandom(4 * MIB), Stall()
    locator, made = site.file(content), site.transfers()
    site.store.faults += [stall]
    made.want(order(locator))
    assert stall.reached.wait(20)
    stopping = threading.Thread(target=made.stop)
    stopping.start()
    while not made.ledger.is_stopping:
        stopping.join(0.01)
    stall.over.set()
    stopping.join(20)
    assert site.reports.all == []
    assert site.drafts() == ["abcdef.part", "abcdef.version.part"]
    site.transfers().want(order(locator))
    assert arrived(site.reports.next()) == (len(content), sha256(content))
    assert site.store.reads[1] >= MIB
    assert site.drafts() == []


def test_a_draft_of_another_version_is_not_gone_on_with(site: Site) -> None:
    first, second = os.urandom(2 * MIB), os.urandom(3 * MIB)
    site.store.faults += [cut(after_bytes=MIB + 1, error=CUT)]
    site.transfers(RetryPolicy(tries=1)).want(order(site.file(first)))
    assert failed(site.reports.next()) == "store-unreachable"
    assert site.drafts() != []
    site.transfers().want(order(site.file(second)))
    assert arrived(site.reports.next(2)) == (len(second), sha256(second))
    assert site.store.reads == [0, 0]


def test_a_removal_cancels_the_fetch_of_the_same_file(site: Site) -> None:
    stall, made = Stall(), site.transfers()
    site.store.faults += [stall]
    made.want(order(site.file(os.urandom(2 * MIB))))
    assert stall.reached.wait(20)
    made.want(RemoveFile(site="here", key="r1", name=NAME))
    while not any(each.meter.is_stopped for each in made.ledger._running):
        stall.over.wait(0.01)
    stall.over.set()
    assert failed(site.reports.next(1)) == "cancelled"
    assert site.reports.next(2) == FileGone(site="here", key="r1")
    assert [path for path in site.cache.rglob("*") if path.is_file()] == []


def test_a_fetch_after_a_removal_waits_for_it(site: Site) -> None:
    locator, made = site.file(b"data"), site.transfers()
    made.want(
        order(locator), RemoveFile(site="here", key="r1", name=NAME), order(locator, key="k2"),
    )  # fmt: skip
    site.reports.next(3)
    assert site.reports.all[-1] == FileArrived(
        site="here", key="k2", size_bytes=4, sha256=sha256(b"data"),
        version=site.reports.all[-1].version, seconds=site.reports.all[-1].seconds,  # type: ignore[union-attr]
    )  # fmt: skip
    assert site.fetched() == b"data"


def test_a_removal_is_reported_also_if_nothing_was_there(site: Site) -> None:
    site.transfers().want(RemoveFile(site="here", key="r1", name=NAME))
    assert site.reports.next() == FileGone(site="here", key="r1")


def test_a_removal_follows_no_link_out_of_the_cache(site: Site, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "abcdef").write_text("mine")
    site.cache.mkdir()
    (site.cache / "ab").symlink_to(outside)
    made = site.transfers()
    made.want(RemoveFile(site="here", key="r1", name=NAME), order(site.file(b"data"), name="ab/other"))
    assert failed(site.reports.next()) == "cache-unusable"
    assert (outside / "abcdef").read_text() == "mine"
    assert not (outside / "other").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b/c", "", ".", "a/../b", ".hidden"])
def test_a_name_outside_the_cache_is_refused(site: Site, name: str) -> None:
    site.transfers().want(order(site.file(b"data"), name=name))
    assert failed(site.reports.next()) == "bad-name"


def test_a_hanging_store_delays_no_other(site: Site) -> None:
    stalls = [Stall() for _ in range(2)]
    site.stores.settings = StoreSettings(concurrency=2)
    site.store.faults += stalls
    made = site.transfers()
    content = os.urandom(2 * MIB)
    made.want(*(order(site.file(content, f"a{n}"), key=f"a{n}", name=f"a{n}") for n in range(4)))
    assert all(stall.reached.wait(20) for stall in stalls)
    made.want(*(order(site.file(b"data", f"other/b{n}"), key=f"b{n}", name=f"b{n}") for n in range(4)))
    site.reports.next(4)
    assert site.reports.keys() == {f"b{n}" for n in range(4)}
    assert len([each for each in made.under_way() if each.store == f"file://{site.there}"]) == 2
    for stall in stalls:
        stall.over.set()
    site.reports.next(8)


def test_a_transfer_that_hangs_beyond_its_time_is_given_up(site: Site) -> None:
    stall, now = Stall(), [100.0]
    site.now = lambda: now[0]
    site.settings = FilesSettings(transfer_seconds_min=900.0)
    site.store.faults += [stall]
    made, content = site.transfers(), os.urandom(2 * MIB)
    locator = site.file(content)
    made.want(order(locator))
    assert stall.reached.wait(20)
    now[0] += 899.0 + ledger.GRACE_SECONDS
    made.ledger.give_up_late()
    assert site.reports.all == []
    now[0] += 1.0
    made.ledger.give_up_late()
    assert failed(site.reports.next()) == "timed-out"
    # Ordered again, it does not share a draft with the thread that hangs.
    made.want(order(locator, key="k2"))
    assert arrived(site.reports.next(2)) == (len(content), sha256(content))
    stall.over.set()
    made.stop()
    assert site.fetched() == content
    assert len(site.reports.all) == 2


def test_a_slow_transfer_ends_with_its_time(site: Site) -> None:
    now = [100.0]
    site.now = lambda: now[0]
    site.settings = FilesSettings(transfer_seconds_min=10.0, transfer_bytes_per_second_min=MIB)
    content = os.urandom(20 * MIB)  # it has 20 s

    def slow(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            now[0] += 2.0
            yield piece

    site.store.faults += [slow]
    site.transfers().want(order(site.file(content)))
    assert failed(site.reports.next()) == "timed-out"
    assert site.drafts() != []  # a later order goes on with it


def test_what_runs_is_told_with_its_bytes_and_without_secrets(site: Site) -> None:
    stall, made = Stall(), site.transfers()
    site.store.faults += [cut(after_bytes=5, error=CUT), stall]
    made.want(order(site.file(os.urandom(3 * MIB))))
    assert stall.reached.wait(20)
    (status,) = made.under_way()
    assert (status.kind, status.key, status.site, status.store) == ("fetch", "k1", "here", f"file://{site.there}")
    assert (status.bytes_done, status.total_bytes, status.tries) == (MIB + 5, 3 * MIB, 2)
    assert status.fault == "store-unreachable: the connection broke"
    stall.over.set()
    site.reports.next()
    assert made.under_way() == []
    (counted,) = made.stores()
    assert (counted.files, counted.bytes, counted.failures) == (1, 3 * MIB, {})


def test_an_idle_service_has_no_thread(site: Site) -> None:
    made = site.transfers()
    assert made._pool.threads == 0
    made.want(order(site.file(b"data")))
    site.reports.next()
    until = threading.Event()
    while made._pool.threads:
        until.wait(0.01)


def test_a_thousand_small_files_arrive(site: Site) -> None:
    made = site.transfers()
    for n in range(1000):
        (site.there / f"f{n}").write_bytes(b"%d" % n)
    made.want(*(order(f"file://{site.there}/f{n}", key=f"k{n}", name=f"{n % 16:02x}/f{n}") for n in range(1000)))
    site.reports.next(1000)
    assert site.reports.keys() == {f"k{n}" for n in range(1000)}
    assert (site.cache / "05/f5").read_bytes() == b"5"


def test_many_files_are_on_disk_before_they_get_their_names_and_reported_when_these_are_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, int]] = []
    ready = threading.Event()

    def sync(folder: str) -> None:
        ready.wait(20)
        names = [path for path in site.cache.rglob("*") if path.is_file()]
        drafts = sum(path.name.endswith(".part") for path in names)
        seen.append((drafts, len(names) - drafts, len(site.reports.all)))
        sync_file_system(folder)

    monkeypatch.setattr(cache_folder, "SYNCED_TOGETHER_MIN", 1)
    monkeypatch.setattr(cache_folder, "sync_file_system", sync)
    made = site.transfers()
    orders = [order(site.file(b"%d" % n, f"in-{n}"), key=f"k{n}", name=f"{n % 4:02}/file{n}") for n in range(20)]
    made.want(*orders)
    wait_until(
        lambda: sum(path.stat().st_size > 0 for path in site.cache.rglob("*.part")) == 20, lambda: "drafts", seconds=60
    )
    ready.set()
    site.reports.next(20)
    drafts = 20
    for (before, _, reported), (after, named, reported_then) in zip(seen[::2], seen[1::2], strict=True):
        assert (before, after) == (drafts, 20 - named)
        assert reported == reported_then == 20 - drafts, "what has no durable name is not reported"
        drafts = after
    assert drafts == 0
    assert len(seen) <= 6, "the disk is waited for together"
    assert {site.fetched(each.name) for each in orders} == {b"%d" % n for n in range(20)}


def test_files_that_cannot_be_made_durable_get_no_name_and_leave_no_draft(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(_: str) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(cache_folder, "SYNCED_TOGETHER_MIN", 1)
    monkeypatch.setattr(cache_folder, "sync_file_system", sync)
    site.transfers().want(order(site.file(b"one")))
    report = site.reports.next()
    assert isinstance(report, FileNotFetched)
    assert report.reason == "cache-unusable"
    assert not [path for path in site.cache.rglob("*") if path.is_file()]


def test_transfers_that_are_quick_share_a_thread(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "QUICK_SECONDS", 3600.0)
    made = site.transfers()
    threads: set[int] = set()

    def noted(content: Iterator[bytes]) -> Iterator[bytes]:
        threads.add(threading.get_ident())
        yield from content

    site.store.faults += [noted] * 50
    orders = [order(site.file(b"%d" % n, f"in-{n}"), key=f"k{n}", name=f"ab/file{n}") for n in range(50)]
    made.want(*orders)
    site.reports.next(50)
    assert len(threads) == 1


def test_transfers_that_wait_for_slow_ones_get_threads(site: Site) -> None:
    made, stalls = site.transfers(), [Stall() for _ in range(3)]
    site.store.faults += stalls
    made.want(*(order(site.file(b"data", f"in-{n}"), key=f"k{n}", name=f"ab/file{n}") for n in range(4)))
    for each in stalls:
        assert each.reached.wait(20)
    site.reports.next()
    for each in stalls:
        each.over.set()
    site.reports.next(4)
