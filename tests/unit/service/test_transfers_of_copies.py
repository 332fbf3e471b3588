"""Copies from the cache of another site come in place of a file that its store does not give: verified, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.model.exchange.operations import CachedCopy, FetchFile
from pilotage.model.exchange.reports import FileArrived
from pilotage.service.transfers.transfers import SiteCache
from tests.kit.cache_site import NAME, Site, arrived, failed, sha256


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for each in made.made:
        each.stop()


def copied(site: Site, content: bytes, *, sha: str = "", key: str = "k1") -> FetchFile:
    """An order to bring a copy that the cache of another site has."""
    locator = site.file(content, "other/cd/copy")
    site.places["near"] = SiteCache(folder=str(Path(locator.removeprefix("file://")).parent.parent))
    copy = CachedCopy(site="near", name="cd/copy", sha256=sha or sha256(content), version="of the store")
    missing = f"file://{site.there}/missing.dat"
    return FetchFile(site="here", key=key, locator=missing, name=NAME, copy=copy)


def test_a_file_that_its_store_does_not_give_comes_from_the_cache_of_another_site(site: Site) -> None:
    site.transfers().want(copied(site, b"the file"))
    report = site.reports.next()
    assert arrived(report) == (8, sha256(b"the file"))
    assert isinstance(report, FileArrived)
    assert report.version == "of the store"
    assert site.fetched() == b"the file"


def test_a_damaged_copy_of_another_site_never_arrives(site: Site) -> None:
    site.transfers().want(copied(site, b"the fi1e", sha=sha256(b"the file")))
    assert failed(site.reports.next()) == "wrong-checksum"
    assert not (site.cache / NAME).exists()


def test_a_copy_in_a_cache_that_is_not_reached_is_told_as_such(site: Site) -> None:
    order = copied(site, b"the file")
    del site.places["near"]
    site.transfers().want(order)
    assert failed(site.reports.next()) == "store-unreachable"
