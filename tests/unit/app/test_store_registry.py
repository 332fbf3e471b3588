"""Which store a locator belongs to."""

from __future__ import annotations

import pytest

from pilotage.app.store_registry import StoreRegistry, open_stores
from pilotage.model.locators import BadLocator
from pilotage.model.settings.settings import Settings
from pilotage.model.settings.stores import FilesSettings, StoreSettings, transfer_seconds
from pilotage.ports import StoreError

STORES = (
    StoreSettings(name="disk", url="/data"),
    StoreSettings(name="run", url="file:///data/run 3", concurrency=2),
    StoreSettings(name="bucket", url="s3://Bucket"),
    StoreSettings(name="mine", url="sftp://me@host/"),
    StoreSettings(name="any", url="sftp://host"),
    StoreSettings(name="web", url="https://host:8443/dav/"),
)


@pytest.mark.parametrize(
    "locator, name",
    [
        ("/data/x", "disk"),
        ("file:///data", "disk"),
        ("/data/run 3/x", "run"),
        ("file:///data/run%203/x", "run"),
        ("/data/run 33", "disk"),
        ("/database", "file"),
        ("s3://Bucket/a/b", "bucket"),
        ("s3://bucket/a/b", "s3://bucket"),
        ("sftp://me@host/x", "mine"),
        ("sftp://you@host/x", "any"),
        ("sftp://host/x", "any"),
        ("sftp://host:22/x", "sftp://host:22"),
        ("https://host:8443/dav/x", "web"),
        ("https://host:8443/davos", "https://host:8443"),
        ("https://host/dav/x", "https://host"),
    ],
)
def test_the_longest_url_has_the_locator(locator: str, name: str) -> None:
    registry = StoreRegistry(STORES)
    found = registry.find(locator)
    assert found.name == name
    assert found.settings == next((each for each in STORES if each.name == name), StoreSettings())
    assert registry.find(locator).store is found.store
    registry.close()


def test_a_store_is_found_by_its_name_and_the_archive_in_its_order() -> None:
    registry = open_stores(Settings(stores=STORES, files=FilesSettings(archive=("run", "disk"))))
    assert registry.named("run").settings.concurrency == 2
    assert [each.name for each in registry.archive()] == ["run", "disk"]
    with pytest.raises(StoreError, match="no settings have this store"):
        registry.named("tape")


def test_an_unknown_scheme_names_those_that_exist() -> None:
    with pytest.raises(StoreError) as refused:
        StoreRegistry(()).find("gopher://host/x")
    assert {"file", "http", "https", "s3", "sftp"} <= set(refused.value.expected.split(", "))
    with pytest.raises(BadLocator):
        StoreRegistry(()).find("nothing")


def test_the_time_limit_of_a_transfer_grows_with_its_size() -> None:
    files = FilesSettings()
    assert transfer_seconds(files, size_bytes=0) == 900
    assert transfer_seconds(files, size_bytes=150_000 * 900) == 900
    assert transfer_seconds(files, size_bytes=5_000_000_000) == pytest.approx(33_333.3, abs=1)
