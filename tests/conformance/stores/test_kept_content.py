"""The content store behind `store:` locators: what is put is what its name says, and belongs to who put it."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.adapters.stores.content_store import FolderContent
from pilotage.adapters.stores.kept_content import KeptContent
from pilotage.ports import AccessDenied, NotInStore, StoreError, WrongContent


def locator_of(content: bytes) -> str:
    return f"store:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def content(tmp_path: Path) -> FolderContent:
    return FolderContent(tmp_path / "state")


def test_a_file_of_another_content_is_refused_and_not_kept(content: FolderContent, source: Path) -> None:
    store = KeptContent(content, user="ann")
    with pytest.raises(WrongContent) as refused:
        store.put(str(source), locator_of(b"other"))
    assert (refused.value.reason, refused.value.subject) == ("wrong-checksum", str(source))
    assert store.stat(locator_of(b"other")) is None
    assert list(store.list("store:")) == []


def test_a_put_that_broke_off_goes_on(content: FolderContent, source: Path) -> None:
    source.write_bytes(os.urandom(5 << 20))
    store, locator = KeptContent(content, user="ann"), locator_of(source.read_bytes())
    moved: list[int] = []

    def break_off(count: int) -> None:
        moved.append(count)
        if len(moved) == 4:
            raise StoreError("cut")

    with pytest.raises(StoreError, match="cut"):
        store.put(str(source), locator, sent=break_off)
    rest: list[int] = []
    store.put(str(source), locator, sent=rest.append)
    assert rest[0] >= 3 << 20, "it began again from the start"
    assert sum(rest) == 5 << 20
    assert store.checksum(locator) == locator.removeprefix("store:")


def test_what_one_user_keeps_another_neither_sees_nor_drops(content: FolderContent, source: Path) -> None:
    ann, bob = KeptContent(content, user="ann"), KeptContent(content, user="bob")
    locator = ann.put(str(source), locator_of(b"data")).locator
    assert bob.stat(locator) is None
    assert bob.delete(locator) is False
    with pytest.raises(NotInStore):
        list(bob.read(locator))
    assert bob.put(str(source), locator) == ann.stat(locator)
    assert ann.delete(locator) is True
    assert [each.locator for each in bob.list("store:")] == [locator]


def test_without_a_user_everything_is_read_and_nothing_written(content: FolderContent, source: Path) -> None:
    locator = KeptContent(content, user="ann").put(str(source), locator_of(b"data")).locator
    everyone = KeptContent(content)
    assert b"".join(everyone.read(locator)) == b"data"
    denied: list[Callable[[], object]] = [
        lambda: everyone.put(str(source), locator),
        lambda: everyone.delete(locator),
        lambda: everyone.list("store:"),
    ]
    for do in denied:
        with pytest.raises(AccessDenied):
            do()


def test_a_damaged_content_is_not_there_and_is_put_again(content: FolderContent, source: Path, tmp_path: Path) -> None:
    store = KeptContent(content, user="ann")
    locator = store.put(str(source), locator_of(b"data")).locator
    (file,) = (tmp_path / "state" / "content").glob("??/" + "?" * 64)
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    file.write_bytes(b"date")
    os.utime(file, (1, 1))
    assert KeptContent(content).stat(locator) is None
    assert store.stat(locator) is None
    store.put(str(source), locator)
    assert b"".join(store.read(locator)) == b"data"


def test_what_is_kept_or_needed_stays_and_what_is_dropped_goes(content: FolderContent, source: Path) -> None:
    store, later = KeptContent(content, user="ann"), time.time() + 1000.0
    locator = store.put(str(source), locator_of(b"data")).locator
    assert content.remove_unused(before=later) == 0
    assert store.delete(locator) is True
    sha256 = locator.removeprefix("store:")
    assert content.remove_unused(before=later, needed=[sha256]) == 0
    assert b"".join(KeptContent(content).read(locator)) == b"data", "a job that needs it can still fetch it"
    assert content.remove_unused(before=later) == 1
    assert KeptContent(content).stat(locator) is None
