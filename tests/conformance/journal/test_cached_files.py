"""Files in the caches of sites: read page by page, whatever their names, and as the events have left them."""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.book.fold.cached_files import read_cached_file
from pilotage.model.events.file_payloads import (
    CachedFilesRemoved,
    FailedFetch,
    FetchedFile,
    FetchesFailed,
    FetchesOrdered,
    FilesFetched,
    OrderedFetch,
    OrderedRemoval,
    RemovalsOrdered,
    Retention,
    RetentionSet,
)
from pilotage.model.events.payloads import Payload
from pilotage.ports import Journal
from pilotage.service.journal.rebuild import check
from tests.conformance.journal.harness import Harness, keeper
from tests.kit.events import Stream, a_short_job

LOCATORS = (
    "s3://store/plain",
    "s3://store/with space",
    "sftp://host/ünï-cødé",
    "file:///line\nbreak",
    "http://" + "x" * 8000,
)
SHA = "0f" * 32


def ordered(locator: str, key: str) -> OrderedFetch:
    return OrderedFetch(
        locator=locator, key=key, name="ab/abc", size_bytes=7, wish="retain-temporarily", owner="ada", software=True
    )


def test_files_are_read_page_by_page_and_kept_apart_by_site(harness: Harness) -> None:
    journal, stream = harness.open(), Stream(stream="service")
    for where in ("lyon", "prague"):
        files = tuple(ordered(each, f"fetch.1.{at}") for at, each in enumerate(LOCATORS))
        keeper(journal).take([stream.event(FetchesOrdered(files=files), site=where)])
    journal = harness.reopen()
    found, after = [], ""
    while rows := journal.cached_files("lyon", after=after, limit=2):
        found += rows
        after = rows[-1].digest
    assert sorted(row.locator for row in found) == sorted(LOCATORS)
    assert {(row.site, row.state, row.wish, row.software) for row in found} == {
        ("lyon", "ordered", "retain-temporarily", 1)
    }


def test_a_file_is_as_its_events_have_left_it(harness: Harness) -> None:
    journal, stream, a = harness.open(), Stream(stream="service"), LOCATORS[1]

    def tell(*events: Payload) -> tuple[str, str, int, str, str]:
        keeper(journal).take([stream.event(each, site="lyon") for each in events])
        [row] = journal.cached_files("lyon", after="", limit=10)
        file = read_cached_file(row)
        return file.state, file.key, file.size_bytes, file.sha256, file.reason

    fetched = FetchedFile(locator=a, key="fetch.2.0", size_bytes=9, sha256=SHA, version="v1")
    failed = FailedFetch(locator=a, key="fetch.1.0", reason="store-unreachable", message="no route", failures=1)
    assert tell(FetchesOrdered(files=(ordered(a, "fetch.1.0"),))) == ("ordered", "fetch.1.0", 7, "", "")
    assert tell(FetchesFailed(files=(failed,))) == ("failed", "fetch.1.0", 7, "", "store-unreachable")
    again = tell(FetchesOrdered(files=(ordered(a, "fetch.2.0"),)))
    assert again == ("ordered", "fetch.2.0", 7, "", "store-unreachable")
    assert tell(FilesFetched(files=(fetched,))) == ("present", "fetch.2.0", 9, SHA, "")
    pin = Retention(locator=a, pinned=True, owner="eve")
    keep = Retention(locator=a, wish="retain-indefinitely", owner="bob")
    tell(RetentionSet(files=(pin, keep)))
    [row] = journal.cached_files("lyon", after="", limit=10)
    file = read_cached_file(row)
    assert (file.pins, file.wishes, row.wish) == (("eve",), {"ada": 1, "bob": 2}, "retain-indefinitely")
    tell(RetentionSet(files=(Retention(locator=a, released=True, owner="bob"), Retention(locator=a, stale=True))))
    [row] = journal.cached_files("lyon", after="", limit=10)
    assert (read_cached_file(row).wishes, row.wish, row.stale) == ({"ada": 1}, "retain-temporarily", 1)
    removal = RemovalsOrdered(files=(OrderedRemoval(locator=a, key="remove.9.0", cause="stale"),))
    assert tell(removal) == ("removing", "remove.9.0", 9, SHA, "")
    assert tell(CachedFilesRemoved(locators=(a,)))[0] == "removed"
    again = tell(FetchesOrdered(files=(ordered(a, "fetch.12.0"),)))
    assert again == ("ordered", "fetch.12.0", 7, "", "")
    [row] = journal.cached_files("lyon", after="", limit=10)
    file = read_cached_file(row)
    assert (file.pins, file.wishes, file.stale) == ((), {"ada": 1}, False)  # of the last order only


def test_a_check_of_the_book_compares_cached_files(harness: Harness, scratches: Iterator[Journal]) -> None:
    journal, stream = harness.open(), Stream(stream="service")
    keeper(journal).take(
        [*a_short_job("j1"), stream.event(FetchesOrdered(files=(ordered("s3://a", "k"),)), site="lyon")]
    )
    assert check(journal, next(scratches)).sound
    harness.execute("UPDATE cached_files SET state = 'present'")
    assert check(journal, next(scratches)).counts == {"cached_files": 1}
