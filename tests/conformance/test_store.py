"""What every store behind locators promises: files go there and back whole, and nothing is replaced."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.app.adapter_registry import find_adapter
from pilotage.ports import AlreadyInStore, NotInStore, Store, StoreError

At = Callable[[str], str]


@pytest.fixture
def store() -> Store:
    """A store, found as the program finds it."""
    made: Store = find_adapter("pilotage.stores", "file")()
    return made


@pytest.fixture(params=["file://", ""])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> At:
    """The locator of a name."""
    return lambda name: f"{request.param}{tmp_path}/there/{name}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source"
    file.write_bytes(b"data")
    return file


def test_a_file_goes_there_and_comes_back(store: Store, at: At, source: Path, tmp_path: Path) -> None:
    put = store.put(str(source), at("deep/a.dat"))
    assert (put.locator, put.size_bytes) == (at("deep/a.dat"), 4)
    assert store.stat(at("deep/a.dat")) == put
    assert store.checksum(at("deep/a.dat")) == hashlib.sha256(b"data").hexdigest()
    target = tmp_path / "back"
    target.write_bytes(b"an earlier one")
    assert store.fetch(at("deep/a.dat"), str(target)) == put
    assert target.read_bytes() == b"data"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "source", "there"]  # and no draft


def test_a_copy_may_be_read_by_everyone_whatever_the_source_allows(
    store: Store, at: At, source: Path, tmp_path: Path
) -> None:
    source.chmod(0o600)
    store.put(str(source), at("a.dat"))
    store.fetch(at("a.dat"), str(tmp_path / "back"))
    copies = tmp_path / "there" / "a.dat", tmp_path / "back"
    assert [stat.S_IMODE(each.stat().st_mode) for each in copies] == [0o644, 0o644]


def test_what_is_not_there_is_said_to_be(store: Store, at: At, tmp_path: Path) -> None:
    assert store.stat(at("a.dat")) is None
    assert list(store.list(at(""))) == []
    assert store.delete(at("a.dat")) is False
    with pytest.raises(NotInStore):
        store.checksum(at("a.dat"))
    with pytest.raises(NotInStore):
        store.fetch(at("a.dat"), str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()


def test_what_is_there_is_not_replaced(store: Store, at: At, source: Path, tmp_path: Path) -> None:
    store.put(str(source), at("a.dat"))
    source.write_bytes(b"other")
    with pytest.raises(AlreadyInStore):
        store.put(str(source), at("a.dat"))
    assert store.checksum(at("a.dat")) == hashlib.sha256(b"data").hexdigest()
    assert [each.locator for each in store.list(at(""))] == [at("a.dat")]


def test_everything_below_a_folder_is_listed(store: Store, at: At, source: Path) -> None:
    for name in ("b/2.dat", "a.dat", "b/c/1.dat"):
        store.put(str(source), at(name))
    assert [each.locator for each in store.list(at("").rstrip("/"))] == [at("a.dat"), at("b/2.dat"), at("b/c/1.dat")]
    assert [each.locator for each in store.list(at("b"))] == [at("b/2.dat"), at("b/c/1.dat")]
    assert store.delete(at("b/2.dat")) is True
    assert [each.locator for each in store.list(at("b"))] == [at("b/c/1.dat")]


def test_a_listed_locator_names_its_file_whatever_its_name(store: Store, at: At, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    for name in ("a b#c%20.dat", "é?.dat"):
        (folder / name).write_bytes(name.encode())
    found = [store.checksum(each.locator) for each in store.list(at("").rstrip("/"))]
    assert sorted(found) == sorted(hashlib.sha256(name.encode()).hexdigest() for name in ("a b#c%20.dat", "é?.dat"))


@pytest.mark.parametrize("locator", ["", "a.dat", "s3://bucket/a", "file://elsewhere/a", "file:///a/../b", "/a\0b"])
def test_what_names_nothing_of_this_store_is_refused(store: Store, locator: str) -> None:
    with pytest.raises(StoreError):
        store.stat(locator)
